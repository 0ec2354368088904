"""The classifier that learns along: the encoder is what it is without, a stop changes nothing, nothing waits."""

import importlib.util
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from nonneg import backbones, data, files, maps, rundir, steps
from nonneg.data import Dataset
from nonneg.errors import BadInput
from nonneg.run import DIGITS
from nonneg.train import train

SCRIPT = Path(__file__).parent.parent / "experiments/online.py"
TINY = replace(
    DIGITS,
    map=maps.identity,
    backbone=partial(backbones.small_net, width=8),
    projector=(16, 8),
    batch_size=40,
    epochs=4,
    checkpoint_seconds=0.0,
    device="cpu",
)


@pytest.fixture(scope="module")
def online() -> ModuleType:
    spec = importlib.util.spec_from_file_location("online", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.digits(split="train").subset(range(800))


def weights(folder: Path) -> dict[str, Tensor]:
    return files.read_tensors(folder / "model.safetensors")[0]


def test_the_encoder_is_the_one_trained_without_it(online: ModuleType, digits: Dataset, tmp_path: Path) -> None:
    found = online.train(TINY, digits, data.digits(split="test"), tmp_path / "with")
    train(TINY, tmp_path / "without", data=digits)
    a, b = weights(tmp_path / "with"), weights(tmp_path / "without")
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    assert found.test > 0.2 and found.views > 0.2  # chance is 0.1
    assert found.by_epoch.keys() == {1, 2, 3, 4} and found.by_epoch[4] == found.test
    log = [json.loads(line) for line in (tmp_path / "with/log.jsonl").read_text().splitlines()]
    plain = [json.loads(line) for line in (tmp_path / "without/log.jsonl").read_text().splitlines()]
    assert [line["loss"] for line in log] == [line["loss"] for line in plain]
    assert log[-1]["online"] == found.test and log[-1]["right"] == found.views


def test_its_rate_is_a_quarter_of_the_encoders(online: ModuleType, digits: Dataset) -> None:
    run = replace(TINY, lr=0.4, warmup_epochs=0)
    s = online.begin(run, digits, 10)
    before = s.model.head.bias.detach().clone()
    online.step_of(run, s, 10)()
    first = s.optimizer.param_groups
    assert first[0]["lr"] is s.lr and float(s.lr) == pytest.approx(0.4 * 40 / 256)
    assert float(first[1]["lr"]) == pytest.approx(0.1 * 40 / 256) and first[1]["weight_decay"] == 0
    assert first[1]["momentum"] == first[0]["momentum"] == 0.9
    moved = s.model.head.bias.detach() - before  # biases are neither scaled nor decayed
    torch.testing.assert_close(moved, -first[1]["lr"] * s.optimizer.state[s.model.head.bias]["momentum_buffer"])


def test_a_stop_changes_nothing(
    online: ModuleType, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, save = data.digits(split="test"), rundir.save_checkpoint
    whole = online.train(TINY, digits, test, tmp_path / "whole")

    def cut(folder: Path, tensors: dict[str, Tensor], at: int, **more: float) -> None:
        save(folder, tensors, at, **more)
        if at == 50:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rundir, "save_checkpoint", cut)
        with pytest.raises(KeyboardInterrupt):
            online.train(TINY, digits, test, tmp_path / "cut")
    again = online.train(TINY, digits, test, tmp_path / "cut")
    a, b = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(a[k], b[k]) for k in a) and (again.test, again.views) == (whole.test, whole.views)
    assert again.by_epoch == whole.by_epoch


def test_a_step_never_waits_for_the_device(online: ModuleType, digits: Dataset, no_waiting: Callable) -> None:
    s = online.begin(TINY, digits, 10)
    step = online.step_of(TINY, s, 10)
    with no_waiting():
        step()
        step()
    assert s.step == 2


def test_without_labels_there_is_nothing_to_learn(online: ModuleType, digits: Dataset) -> None:
    with pytest.raises(BadInput, match="digits has no labels"):
        online.begin(TINY, replace(digits, labels=None, classes=None), 10)


def test_right_answers_are_counted_among_both_views(online: ModuleType) -> None:
    totals = dict.fromkeys((*steps.FEATURES, "right"), 0.0) | {"right": 120.0}
    assert online.line_of(totals, 3, batch_size=40)["right"] == 0.5  # of 3 x 2 x 40


def test_a_line_tells_test_images_from_views(
    online: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(online, "train", lambda *_: online.Found(None, 0.25, 0.5, {1: 0.125}))
    monkeypatch.setattr(online.protocol, "heads", lambda *_, **__: {"crops": 0.75})
    words = ["online.py", "digits", "--epochs", "1", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    online.main()
    line = json.loads((tmp_path / "online.jsonl").read_text())
    assert line["run"]["seed"] == 0 and not line["run"].keys() & set(rundir.FREE)  # places on this machine
    assert line["measures"] == {"online": 0.25, "online_views": 0.5, "crops": 0.75} and line["by_epoch"] == {"1": 0.125}


def test_the_command_writes_a_line(
    online: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["online.py", "digits", "--epochs", "1", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    online.main()
    (line,) = [json.loads(text) for text in (tmp_path / "online.jsonl").read_text().splitlines()]
    assert line["name"] == "digits-1epochs-s0" and line["measures"].keys() == {
        "online", "online_views", "crops", "views_alone", "views"
    }  # fmt: skip
    assert "on the views of pretraining" in capsys.readouterr().out
