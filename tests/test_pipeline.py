"""The whole line, as the README's first command runs it, only shorter."""

import json
from pathlib import Path

import pytest

from nonneg import cli


def test_the_demo_from_data_to_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["demo", "--out", str(tmp_path / "demo"), "--epochs", "6", "--json"])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert set(result) == {"cl", "ncl", "chance", "seconds"}
    cl, ncl = result["cl"], result["ncl"]
    assert cl["sparsity"] < 0.01 and ncl["sparsity"] > 0.5
    assert ncl["class_consistency"] > 2 * cl["class_consistency"]
    assert cl["linear_probe"] > 0.9 and ncl["linear_probe"] > 0.9
    assert result["chance"]["class_consistency"] == pytest.approx(0.1, abs=0.02)
    html = (tmp_path / "demo" / "report.html").read_text()
    assert html.lower().startswith("<!doctype html>")
    assert "CL" in html and "NCL" in html
    for name in ("cl", "ncl"):
        files = {p.name for p in (tmp_path / "demo" / name).iterdir()}
        assert {"run.json", "model.safetensors", "encoder.json", "log.jsonl", "metrics.json", "features"} <= files
        log = (tmp_path / "demo" / name / "log.jsonl").read_text().splitlines()
        assert len(log) == 6
    cl_run, ncl_run = (json.loads((tmp_path / "demo" / n / "run.json").read_text())["run"] for n in ("cl", "ncl"))
    assert {k for k in cl_run if cl_run[k] != ncl_run[k]} == {"map"}
    with pytest.raises(SystemExit):
        cli.main(["demo", "--out", str(tmp_path / "demo"), "--epochs", "1"])
