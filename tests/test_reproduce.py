"""Reproducing a table: trained once, evaluated at once, continued after an interruption, and reported from files."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from PIL import Image

from nonneg import backbones, experiments, files, gallery, kept_features, ledger, loop, provenance, reproduce, rundir
from nonneg.comparison import Row, as_json
from nonneg.data import Dataset
from nonneg.errors import BadInput
from nonneg.experiments import MEASURES, Experiment, cifar10, imagenet100, method_of
from nonneg.kept_features import pack
from nonneg.loop import Interrupted, TooLittleMemory
from nonneg.run import ClassifierRun, Run

KEYS = {"measure", "method", "paper", "ours", "std", "seeds"}


def small(run: Run) -> Run:
    return replace(run, backbone=partial(backbones.small_net, width=4), projector=(12, 8), batch_size=16, device="cpu")


def cifar_files(root: Path) -> Path:
    """A CIFAR-10 of 40 training and 20 test images in the binary layout; brightness tells the class."""
    folder, rng = root / "cifar-10-batches-bin", np.random.default_rng(0)
    folder.mkdir(parents=True)

    def records(n: int) -> bytes:
        pixels = rng.integers(0, 30, (n, 3072))
        return b"".join(bytes([i % 10]) + (pixels[i] + 22 * (i % 10)).astype(np.uint8).tobytes() for i in range(n))

    for i in range(1, 6):
        (folder / f"data_batch_{i}.bin").write_bytes(records(8))
    (folder / "test_batch.bin").write_bytes(records(20))
    (folder / "batches.meta.txt").write_text("\n".join(f"thing{i}" for i in range(10)))
    return root


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cifar_files(tmp_path_factory.mktemp("cifar"))


@pytest.fixture(scope="module")
def pair(cifar: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Where a small CL and NCL were reproduced, and their table."""
    place = tmp_path_factory.mktemp("pair")
    return place, go(place, cifar, seeds=1)


def go(place: Path, data_root: Path, name: str = "cifar10", **how: object) -> list[Row]:
    given = {"data_root": data_root, "results": place / "results", "runs": place / "runs", "epochs": 1, "change": small}
    return reproduce.reproduce(name, **{**given, **how})  # type: ignore[arg-type]


def lines(place: Path, name: str = "cifar10-1epochs") -> list[dict]:
    return [json.loads(line) for line in (place / "results" / f"{name}.jsonl").read_text().splitlines()]


def find(rows: list[Row], measure: str, method: str) -> Row:
    (row,) = (r for r in rows if (r.measure, r.method) == (measure, method))
    return row


# --- the declarations --------------------------------------------------------------------------------------------


def test_every_experiment_is_found_by_its_file_and_declares_sound_runs() -> None:
    assert experiments.names() == [
        "cifar10",
        "cifar100",
        "imagenet100",
        "maps",
        "multimodal",
        "recipe",
        "spectral",
        "sprites",
        "supcon",
        "supervised",
        "wide",
    ]
    for name in experiments.names():
        e = experiments.find(name)
        assert isinstance(e, Experiment) and all(f"-s{run.seed}" in run_name for run_name, run in e.runs.items())
        assert {method_of(run_name) for run_name in e.runs} == e.methods.keys()
    with pytest.raises(BadInput, match="did you mean 'cifar10'"):
        experiments.find("cifar1")


def test_a_pair_of_cl_and_ncl_differs_in_the_map_alone() -> None:
    for name in ("cifar10", "cifar100", "imagenet100"):
        runs = experiments.find(name).runs
        assert list(runs)[:2] == ["cl-s0", "ncl-s0"]  # one pair first, further seeds after it
        for seed in range(3):
            cl, ncl = (runs[f"{method}-s{seed}"].to_json() for method in ("cl", "ncl"))
            assert {k for k in cl if cl[k] != ncl[k]} == {"map"} and cl["map"] == "identity"


def test_the_declared_recipes_are_the_papers() -> None:
    ncl = imagenet100.RUNS["ncl-s0"].to_json()
    assert (ncl["map"], ncl["projector"], ncl["image_size"]) == ("relu", [16384, 2048], 224)
    assert (ncl["lr"], ncl["batch_size"], ncl["epochs"], ncl["backbone"]) == (0.3, 256, 200, "resnet18:stem=imagenet")
    ten = cifar10.RUNS["ncl-s2"].to_json()
    assert (ten["map"], ten["lr"], ten["epochs"], ten["seed"]) == ("rep_relu", 0.4, 200, 2)
    maps = experiments.find("maps").runs
    on_digits = {run.to_json()["map"] for name, run in maps.items() if name.startswith("digits-")}
    assert on_digits == {"identity", "relu", "rep_relu", "softplus", "sigmoid", "exp"}
    assert {run.epochs for name, run in maps.items() if name.startswith("cifar10-50-")} == {50}
    assert maps["cifar10-rep_relu-s0"] == cifar10.RUNS["ncl-s0"]  # which is why it may be borrowed


def test_the_recipe_is_changed_one_thing_at_a_time_and_ours_is_borrowed(tmp_path: Path) -> None:
    runs = experiments.find("recipe").runs
    ours = experiments.find("cifar100").runs["cl-s0"].to_json()
    changed = {n: {k: v for k, v in run.to_json().items() if v != ours[k]} for n, run in runs.items()}
    pad, views = {"backbone": "resnet18:pad=2"}, {"batch_norm": "per_view"}
    large = {n: v for n, v in changed.items() if not n.startswith("narrow-")}
    assert large == {"ours-s0": {}, "pad-s0": pad, "views-s0": views, "both-s0": pad | views}
    narrow = runs["narrow-ours-s0"].to_json()
    changed = {n: {k: v for k, v in runs[f"narrow-{n}"].to_json().items() if v != narrow[k]} for n in large}
    assert changed == {
        n: v | ({"backbone": "resnet18:pad=2,width=16"} if "backbone" in v else {}) for n, v in large.items()
    }
    write_lines(tmp_path / "cifar100.jsonl", {"cl-s0": 0.607})
    rows = reproduce.reproduce("recipe", results=tmp_path, report_only=True)
    assert [(r.paper, r.ours) for r in rows if r.measure == "linear probe"] == [
        (None, pytest.approx(60.7)),
        (None, None),
        (None, None),
        (58.6, None),
    ]


def test_the_spectral_trio_differs_in_map_and_penalty_and_only_cifar_is_probed(cifar: Path, tmp_path: Path) -> None:
    runs = experiments.find("spectral").runs
    for place in ("", "digits-"):
        told = {k: runs[f"{place}{k}-s0"].to_json() for k in ("cl", "l1", "ncl", "mu1-cl", "mu1-l1", "mu1-ncl")}
        assert [(v["map"], v["loss"]) for v in told.values()] == [
            ("identity", "spectral"),
            ("identity", "spectral:l1=0.01"),
            ("rep_relu", "spectral"),
            ("identity", "spectral:mu=1.0"),
            ("identity", "spectral:l1=0.01,mu=1.0"),
            ("rep_relu", "spectral:mu=1.0"),
        ]
        assert {k for v in told.values() for k in v if v[k] != told["cl"][k]} == {"map", "loss"}
    with pytest.raises(BadInput, match=r"l1-s0 takes the learning rate .* 3 of its 3 .* spectral --only cl$"):
        go(tmp_path, cifar, "spectral", only=["l1-s0"])
    rows = go(tmp_path, cifar, "spectral", only=["ncl", "digits-ncl-s0"])
    *searches, on_cifar, on_digits = lines(tmp_path, "spectral-1epochs")
    best = min(searches, key=lambda line: line["train_loss"])
    weights = {p.parent.name for p in (tmp_path / "runs" / "spectral-1epochs").glob("*/*.safetensors")}
    assert weights == {"ncl-s0", "digits-ncl-s0"}  # a search leaves its log
    assert not any("search" in p.name for p in (tmp_path / "results" / "features").iterdir())
    assert len(searches) == 3 and on_cifar["run"]["lr"] == best["run"]["lr"] and "probe_h" not in best["measures"]
    assert on_cifar["name"] == "ncl-s0" and {"probe_h", "probe_z"} <= on_cifar["measures"].keys()
    assert on_digits["name"] == "digits-ncl-s0" and "probe_h" not in on_digits["measures"]
    shown = {(r.measure, r.method): r.ours for r in rows}
    assert shown["linear probe", "NCL, CIFAR-10"] == pytest.approx(100 * on_cifar["measures"]["probe_h"])
    assert ("linear probe", "NCL, digits") not in shown  # it is not a measure of that run
    assert find(go(tmp_path, None, "spectral", report_only=True), "linear probe", "SCL, CIFAR-10").ours is None  # type: ignore[arg-type]
    assert ("linear probe", "SCL, CIFAR-10") not in shown  # it was not asked for
    assert not any(row.method == "search" for row in rows)
    again = go(tmp_path, cifar, "spectral", only=["ncl", "digits-ncl-s0"])
    assert again == rows and len(lines(tmp_path, "spectral-1epochs")) == 5


def test_spectral_is_probed_for_100_epochs_and_takes_the_rate_of_least_training_loss() -> None:
    one = experiments.find("spectral")
    assert one.probe is not None and one.probe.keywords == {"epochs": 100}
    told = zip((5e-4, 1.5e-3, 4.5e-3), ((-3.0, 0.9), (-5.0, 0.7), (-4.0, 0.5)), strict=True)
    rows = {
        f"cl-search-lr{lr}-s0": {"train_loss": loss, "measures": {"linear_probe": right}} for lr, (loss, right) in told
    }
    assert one.settle("l1-s0", one.runs["l1-s0"], rows).lr == 1.5e-3  # a penalty is searched by the method without
    assert one.settle("digits-l1-s0", one.runs["digits-l1-s0"], {}) is one.runs["digits-l1-s0"]


def test_classifiers_take_the_rate_of_least_held_out_loss_whatever_the_accuracy() -> None:
    one, name = experiments.find("supervised"), "narrow-scratch-nce-s0"
    told = zip((0.1, 0.4, 1.6, 6.4), ((0.9, 0.3), (0.7, 0.2), (0.5, 0.3), (0.8, 0.4)), strict=True)
    rows = {
        f"narrow-scratch-nce-search-lr{lr}-s0": {"measures": {"test_loss": loss, "test_accuracy": right}}
        for lr, (loss, right) in told
    }
    assert one.settle(name, one.runs[name], rows).lr == 1.6
    rows["narrow-scratch-nce-search-lr1.6-s0"] = {"measures": {}, "diverged": "the loss is not finite"}
    assert one.settle(name, one.runs[name], rows).lr == 0.4
    with pytest.raises(BadInput, match="with none of its rates it trains"):
        one.settle(name, one.runs[name], {key: {"measures": {}, "diverged": "no"} for key in rows})


def test_a_rate_with_which_training_diverges_is_out_of_the_search_and_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def diverge(*_: object) -> Iterator[dict]:
        raise loop.NotFinite("the loss is not finite since step 3; a checkpoint is kept in FOLDER. Lower --lr")
        yield {}

    monkeypatch.setattr(reproduce, "_classify_one", diverge)
    only = ("digits-scratch-ce-search-lr0.4-s0",)
    go(tmp_path, tmp_path, "supervised", only=only, change=tiny)
    assert "is out of the search: the loss is not finite since step 3" in " ".join(capsys.readouterr().err.split())
    (line,) = lines(tmp_path, "supervised-1epochs")
    assert (line["name"], line["measures"], line["seed"]) == (only[0], {}, 0) and line["run"]["lr"] == 0.4
    assert line["diverged"] == "the loss is not finite since step 3"  # of a search no checkpoint is kept
    monkeypatch.setattr(reproduce, "_classify_one", lambda *_: pytest.fail("it was tried again"))
    go(tmp_path, tmp_path, "supervised", only=only, change=tiny)
    monkeypatch.setattr(reproduce, "_run_one", diverge)
    with pytest.raises(BadInput, match="not finite"):  # what is no search is an error
        go(tmp_path, tmp_path, "maps", only=("digits-identity-s0",), change=tiny)


def test_ce_and_nce_differ_in_their_maps_alone_and_each_has_its_search() -> None:
    runs = {name: run for name, run in experiments.find("supervised").runs.items() if isinstance(run, ClassifierRun)}
    assert len(runs) == len(experiments.find("supervised").runs)
    for name, run in runs.items():
        if "-nce" in name:
            ours, theirs = run.to_json(), runs[name.replace("-nce", "-ce")].to_json()
            assert {k for k in ours if ours[k] != theirs[k]} == {"map", "weight_map"}
            assert (ours["map"], ours["weight_map"], theirs["map"], theirs["weight_map"]) == (
                "relu", "relu", "identity", "identity")  # fmt: skip
        assert run.validation is ("-search-" in name) and (run.epochs in (4, 20) or not run.validation)
    scratch, tuned = (runs[f"cifar100-{start}-nce_mlp-s0"] for start in ("scratch", "tuned"))
    assert (scratch.projector, scratch.epochs, tuned.epochs) == ((16384, 2048), 100, 50)  # the paper's
    assert scratch.to_json()["optimizer"] == "lars" and scratch.to_json()["augment"] == "crop_flip"


# --- end to end on CIFAR's layout --------------------------------------------------------------------------------


def test_a_line_holds_every_measure_and_where_it_came_from(pair: tuple[Path, list[Row]]) -> None:
    place, _ = pair
    cl, ncl = lines(place)
    assert [cl["name"], ncl["name"]] == ["cl-s0", "ncl-s0"] and [cl["method"], ncl["method"]] == ["CL", "NCL"]
    for line in (cl, ncl):
        assert {k for k in cifar10.TABLE if k not in line["measures"]} <= {"orthogonality", "class_consistency"}
        assert all(isinstance(v, int | float) for v in line["measures"].values())
        assert line["seed"] == 0 and line["epochs"] == 1 and line["batch_size"] == 16
        assert line["mode"] == "eager" and line["precision"] == "fp32" and "thread" in line["hardware"]
        assert line["train_seconds"] >= 0 and line["evaluate_seconds"] > 0 and line["commit"]
        assert line["run"]["backbone"] == "small_net:width=4" and "data_root" not in line["run"]
    assert cl["run"]["map"] == "identity" and ncl["run"]["map"] == "rep_relu"
    assert cl["measures"]["sparsity"] < 0.01 and ncl["measures"]["active_least"] <= 8


def test_the_table_is_the_lines_in_points(pair: tuple[Path, list[Row]]) -> None:
    place, rows = pair
    cl, ncl = lines(place)
    row = find(rows, "linear probe", "NCL")
    assert row == Row("linear probe", "NCL", 87.8, 100 * ncl["measures"]["probe_h"], None, 1)
    assert row.difference == pytest.approx(100 * ncl["measures"]["probe_h"] - 87.8)
    assert find(rows, "live features", "CL").ours == cl["measures"]["live_features"]
    assert find(rows, "k-NN", "CL").paper is None and find(rows, "k-NN", "CL").difference is None
    assert "| linear probe | NCL | 87.8 |" in (place / "results" / "cifar10-1epochs.md").read_text()
    assert all(set(r) == KEYS for r in as_json(rows))


def test_figures_features_and_weights_are_kept(pair: tuple[Path, list[Row]]) -> None:
    place, _ = pair
    with Image.open(place / "results" / "figures" / "cifar10-1epochs.png") as picture:
        assert picture.width == 1600  # two columns
    assert "NCL" in (place / "runs" / "cifar10-1epochs" / "report.html").read_text()
    for line in lines(place):
        assert line["kept"] == [f"cifar10-1epochs-{line['name']}-test.npz"]
        kept = kept_features.load(place / "results" / "features" / line["kept"][0])
        assert kept.z.shape == (20, 8) and kept.labels is not None and kept.labels.tolist() == [*range(10), *range(10)]
        half, about = files.read_tensors(place / "runs" / "cifar10-1epochs" / line["name"] / "model.bf16.safetensors")
        full, _ = files.read_tensors(place / "runs" / "cifar10-1epochs" / line["name"] / "model.safetensors")
        assert half.keys() == full.keys() and about["encoder"]["projector"] == [12, 8]
        assert all((half[k].float() - full[k].float()).abs().max() <= 2**-8 * full[k].abs().max() for k in full)


def test_figures_are_drawn_where_one_is_missing_or_older_than_a_run_and_only_then(
    pair: tuple[Path, list[Row]], cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(pair[0], tmp_path, dirs_exist_ok=True)  # with the times of its files
    figures, page = tmp_path / "results" / "figures", tmp_path / "runs" / "cifar10-1epochs" / "report.html"
    made = [page, figures / "cifar10-1epochs.png", figures / "cifar10-1epochs-features.png"]
    go(tmp_path, cifar, seeds=1)
    assert [p.stat().st_mtime_ns for p in made] == [
        (pair[0] / p.relative_to(tmp_path)).stat().st_mtime_ns for p in made
    ]
    made[2].unlink()  # as a kill while drawing leaves it
    with monkeypatch.context() as during:
        during.setattr(gallery.figures, "overview", lambda *_: interrupt())
        with pytest.raises(Interrupted, match="drawing cifar10-1epochs was stopped"):
            go(tmp_path, cifar, seeds=1)
    go(tmp_path, cifar, seeds=1)
    assert made[2].exists()
    newer = time.time() + 100
    os.utime(page.parent / "ncl-s0" / "metrics.json", (newer, newer))
    before = [p.stat().st_mtime_ns for p in made]
    go(tmp_path, cifar, seeds=1)
    assert all(p.stat().st_mtime_ns > then for p, then in zip(made, before, strict=True))


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_table_is_told_although_its_figures_cannot_be_drawn(
    pair: tuple[Path, list[Row]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pair[0], tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("figures"))
    assert go(tmp_path, tmp_path / "moved", seeds=1) == pair[1]
    assert "figures of cifar10-1epochs are not drawn" in capsys.readouterr().err


def test_figures_are_drawn_again_from_kept_features(
    pair: tuple[Path, list[Row]], cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, rows = pair
    shutil.copytree(place / "results", tmp_path / "results")
    shutil.rmtree(tmp_path / "results" / "figures")
    assert go(tmp_path, cifar, report_only=True) == rows  # the run folders are gone

    def sizes(folder: Path) -> dict[str, tuple[int, int]]:
        found = {}
        for path in (folder / "results" / "figures").iterdir():
            with Image.open(path) as picture:
                found[path.name] = picture.size
        return found

    assert sizes(tmp_path) == sizes(place)  # CL and NCL side by side, as they were
    others = cifar_files(tmp_path / "others")
    batch = others / "cifar-10-batches-bin" / "test_batch.bin"
    right = batch.read_bytes()
    for wrong in (right[: 3073 * 10], right[3073:] + right[:3073]):
        batch.write_bytes(wrong)
        with pytest.raises(BadInput, match=r"cl-s0-test.npz holds features of 20 images, and those of cifar10 in"):
            go(tmp_path, others, report_only=True)
    (tmp_path / "results" / "features" / "cifar10-1epochs-cl-s0-test.npz").unlink()
    capsys.readouterr()
    go(tmp_path, cifar, report_only=True)
    said = capsys.readouterr().err
    assert "cl-s0 is not drawn: there is no" in said and "are left as they are" in said
    assert sizes(tmp_path) == sizes(place)  # with CL still in them
    shutil.rmtree(tmp_path / "results" / "figures")
    go(tmp_path, cifar, report_only=True)
    assert sizes(tmp_path).keys() == {"cifar10-1epochs.png", "cifar10-1epochs-features.png"}
    assert sizes(tmp_path)["cifar10-1epochs.png"][0] < sizes(place)["cifar10-1epochs.png"][0]  # NCL alone
    assert not (tmp_path / "runs").exists()


def test_a_figure_of_two_runs_is_not_drawn_over_by_one(
    pair: tuple[Path, list[Row]], cifar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(pair[0], tmp_path, dirs_exist_ok=True)
    both = (figure := tmp_path / "results" / "figures" / "cifar10-1epochs.png").read_bytes()
    shutil.rmtree(tmp_path / "runs" / "cifar10-1epochs" / "ncl-s0")
    metrics = tmp_path / "runs" / "cifar10-1epochs" / "cl-s0" / "metrics.json"
    os.utime(metrics, (time.time() + 60, time.time() + 60))
    go(tmp_path, cifar, only=("cl-s0",))
    assert figure.read_bytes() == both
    assert "are left as they are: ncl-s0, which they may show, cannot be drawn" in capsys.readouterr().err


def test_a_figure_of_pairs_is_not_drawn_over_by_fewer_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = experiments.find("multimodal")
    shown = [name for name in one.show if name.startswith("digits")]
    for name in shown:
        ledger.put(tmp_path / "multimodal.jsonl", {"name": name, "measures": {}})
    folder = tmp_path / "runs" / "multimodal" / shown[0]
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text("{}")
    (tmp_path / "figures").mkdir()
    (picture := tmp_path / "figures" / "multimodal-digits.png").write_bytes(b"of three runs")
    assert gallery.draw("multimodal", one, results=tmp_path, runs=tmp_path / "runs") == []
    assert picture.read_bytes() == b"of three runs"
    assert f"{shown[1]} and {shown[2]}, which it may show, cannot be drawn" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_checkpoint_is_passed_over_or_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert loop.as_begun(tmp_path) == {"resume": False}
    files.write_json(tmp_path / "run.json", {})
    assert loop.as_begun(tmp_path) == {"resume": True}  # killed before its first checkpoint
    for step in (3, 5):
        rundir.save_checkpoint(tmp_path, {"x": torch.full((50,), float(step))}, step, seconds=0.0)
    assert loop.as_begun(tmp_path) == {"resume": True} and not capsys.readouterr().err
    newest, older = tmp_path / rundir.CHECKPOINT, tmp_path / rundir.PREVIOUS
    newest.write_bytes(newest.read_bytes()[:100])
    assert loop.as_begun(tmp_path) == {"resume": True, "previous": True}
    assert "is damaged: going on from the one before it, of step 3" in " ".join(capsys.readouterr().err.split())
    older.write_bytes(b"cut")
    with pytest.raises(
        BadInput, match=r"checkpoint.safetensors is damaged.* remove .* and give the same command again"
    ):
        loop.as_begun(tmp_path)


def test_what_cannot_be_used_is_said_before_anything_is_trained(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reproduce, "_run_one", lambda *_: pytest.fail("trained"))
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(BadInput, match=r"--results .*file.* is no folder to write to"):
            go(tmp_path, cifar, results=place)
    with pytest.raises(BadInput, match="unknown device 'gpu'"):
        go(tmp_path, cifar, device="gpu")
    assert len(reproduce._chosen(experiments.find("cifar10"), (), 5)) == 6
    assert "--seeds is 5, and 3 are declared" in capsys.readouterr().err


def test_runs_of_different_data_or_nets_have_a_figure_each() -> None:
    shown = experiments.find("spectral").side_by_side()
    assert {ends: [name.removesuffix("-s0") for name in names] for ends, names in shown.items()} == {
        "-digits": ["digits-cl", "digits-ncl", "digits-mu1-ncl"],
        "-cifar10-resnet18": ["cl", "ncl", "mu1-ncl"],
        "-cifar10-small_net": ["small-cl", "small-ncl", "small-mu1-ncl"],
    }
    assert experiments.find("cifar10").side_by_side() == {"": ("cl-s0", "ncl-s0")}


def test_every_group_of_shown_runs_is_drawn_from_its_own_folders(
    pair: tuple[Path, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digits of a spectral experiment were not trained here, the two kinds of CIFAR-10 runs were."""
    one = experiments.find("spectral")
    for name in ("cl-s0", "ncl-s0", "small-ncl-s0"):
        folder = pair[0] / "runs" / "cifar10-1epochs" / name.removeprefix("small-")
        shutil.copytree(folder, tmp_path / "runs" / "spectral" / name)
    seen = []
    real = gallery.report.write
    monkeypatch.setattr(gallery.report, "write", lambda c, path, **how: seen.append(path.name) or real(c, path, **how))
    written = gallery.draw("spectral", one, results=tmp_path / "results", runs=tmp_path / "runs")
    ends = ("-cifar10-resnet18", "-cifar10-small_net")
    assert [p.name for p in written] == [f"spectral{end}{more}.png" for end in ends for more in ("", "-features")]
    assert all(p.exists() for p in written) and seen == [f"report{end}.html" for end in ends]


def test_seeds_whose_features_were_kept_are_shown_matched(
    pair: tuple[Path, list[Row]], cifar: Path, tmp_path: Path
) -> None:
    shutil.copytree(pair[0] / "results", tmp_path / "results", ignore=shutil.ignore_patterns("figures"))
    path, stem = tmp_path / "results" / "cifar10-1epochs.jsonl", "features/cifar10-1epochs-ncl"
    second = next(line for line in lines(tmp_path) if line["name"] == "ncl-s0") | {"name": "ncl-s1"}
    path.write_text(f"{path.read_text()}{json.dumps(second)}\n")
    shutil.copy(tmp_path / "results" / f"{stem}-s0-test.npz", tmp_path / "results" / f"{stem}-s1-test.npz")
    go(tmp_path, cifar, report_only=True)
    drawn = {p.name for p in (tmp_path / "results" / "figures").iterdir()}
    assert drawn == {"cifar10-1epochs.png", "cifar10-1epochs-features.png", "cifar10-1epochs-ncl-seeds.png"}


def test_other_batches_are_kept_apart(cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    seen = []
    monkeypatch.setattr(reproduce, "_run_one", lambda *args: seen.append(args) or iter(()))
    go(tmp_path, cifar, only=("ncl-s0",), batch_size=8, change=None)
    (name, run_name, experiment, _, run, *_), *others = seen
    assert (name, run_name, run.batch_size, others) == ("cifar10-1epochs-batch8", "ncl-s0", 8, [])
    assert experiment.probe.keywords["batch_size"] == experiment.tune.keywords["batch_size"] == 8
    with pytest.raises(BadInput, match="--batch-size is 1"):
        go(tmp_path, cifar, batch_size=1)


def test_a_second_time_nothing_is_done_again(
    pair: tuple[Path, list[Row]], cifar: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, rows = pair
    monkeypatch.setattr(reproduce, "_run_one", lambda *_: pytest.fail("a finished run was started again"))
    assert go(place, cifar, seeds=1) == rows
    assert go(place, cifar, report_only=True) == rows
    with pytest.raises(pytest.fail.Exception):
        go(place, cifar, only=("ncl-s1",))


def test_an_interrupted_reproduction_continues_where_it_stopped(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[str, object]] = []
    real, fails = reproduce.train, {"ncl-s0"}

    def stops(run: Run, folder: Path, **how: object) -> object:
        trained.append((folder.name, how["resume"]))
        encoder = real(run, folder, **how)  # type: ignore[arg-type]
        if folder.name in fails:  # as a kill would leave it: begun, a checkpoint, no model
            (folder / "model.safetensors").unlink()
            raise Interrupted("stopped")
        return encoder

    monkeypatch.setattr(reproduce, "train", stops)
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    with pytest.raises(Interrupted, match="ncl-s0 was stopped; nothing is lost"):
        go(tmp_path, cifar, seeds=1)
    assert [line["name"] for line in lines(tmp_path)] == ["cl-s0"]
    assert trained == [("cl-s0", False), ("ncl-s0", False)]
    fails.clear()
    rows = go(tmp_path, cifar, seeds=1)
    assert [line["name"] for line in lines(tmp_path)] == ["cl-s0", "ncl-s0"]
    assert trained[2:] == [("ncl-s0", True)] and find(rows, "linear probe", "NCL").ours is not None


def test_a_run_that_was_trained_but_not_evaluated_is_not_trained_again(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    with monkeypatch.context() as broken:
        broken.setattr(reproduce, "evaluate", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go(tmp_path, cifar, only=("cl-s0",))
    monkeypatch.setattr(reproduce, "train", lambda *_, **__: pytest.fail("trained again"))
    go(tmp_path, cifar, only=("cl-s0",))
    assert len(lines(tmp_path)) == 1


def stopping(real: Callable[..., object], calls: list[str], where: str) -> Callable[..., object]:
    """A probe that notes what it is asked for and, at `where`, is stopped as by Ctrl-C."""

    def probe(*args: object, **how: object) -> object:
        calls.append(("tune " if how.get("tune") else "probe ") + "".join(how["on"]))  # type: ignore[arg-type]
        if calls[-1] == where:
            raise KeyboardInterrupt
        return real(*args, **how)

    return probe


def stop_at(where: str, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stops = stopping(cifar10.EXPERIMENT.probe.func, calls, where)  # type: ignore[union-attr]
    probe, tune = partial(stops, epochs=50), partial(stops, tune=True, epochs=30)
    monkeypatch.setattr(cifar10, "EXPERIMENT", replace(cifar10.EXPERIMENT, probe=probe, tune=tune))


def test_what_was_measured_outlives_every_interruption_and_is_not_measured_again(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    calls: list[str] = []
    numbers: dict[str, float] = {}
    for where, new in (("probe hz", "sparsity"), ("tune h", "probe_h"), ("tune z", "tune_h"), ("", "tune_z")):
        with monkeypatch.context() as during:
            stop_at(where, calls, during)
            if where:
                with pytest.raises(Interrupted, match=r"cl-s0 was stopped; nothing that was finished is lost"):
                    go(tmp_path, cifar, only=("cl-s0",))
            else:
                go(tmp_path, cifar, only=("cl-s0",))
        (line,) = lines(tmp_path)
        assert new in line["measures"] and line["measures"].items() >= numbers.items() and line["kept"]
        numbers = line["measures"]
        monkeypatch.setattr(reproduce, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert calls == ["probe hz", "probe hz", "tune h", "tune h", "tune z", "tune z"]


def test_a_probe_that_was_cut_goes_on_from_its_checkpoint(
    cifar: Path, tmp_path: Path, pair: tuple[Path, list[Row]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    save, saved = rundir.save_checkpoint, []

    def cut(folder: Path, tensors: dict[str, torch.Tensor], at: int, **more: float) -> None:
        save(folder, tensors, at, **more)
        saved.append(folder.name.partition("-")[0])
        if saved[-1] in ("probe", "tune") and saved.count(saved[-1]) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(rundir, "save_checkpoint", cut)
    for _ in ("probe", "tune"):
        with pytest.raises(Interrupted, match="cl-s0 was stopped"):
            go(tmp_path, cifar, only=("cl-s0",))
    rows = go(tmp_path, cifar, only=("cl-s0",))
    assert saved.count("probe") == 1  # it was over when it was cut: nothing was left to do
    for measure in ("linear probe", "fine-tune", "fine-tune, projector"):
        assert find(rows, measure, "CL").ours == find(pair[1], measure, "CL").ours  # as if never cut
    assert not [p for p in (tmp_path / "runs").rglob("*") if p.name.startswith(("probe-", "tune-"))]


def test_what_cannot_be_written_down_is_not_trained_again(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    put, save, saved = ledger.put, rundir.save_checkpoint, []

    def full(path: Path, line: dict[str, Any]) -> None:
        if "tune_h" in line["measures"]:
            raise BadInput("no space left")
        put(path, line)

    with monkeypatch.context() as during, pytest.raises(BadInput, match="no space left"):
        during.setattr(ledger, "put", full)
        go(tmp_path, cifar, only=("cl-s0",))

    def note(folder: Path, *rest: Any, **more: Any) -> None:
        saved.append(folder.name.partition("-cpu")[0])
        save(folder, *rest, **more)

    monkeypatch.setattr(rundir, "save_checkpoint", note)
    go(tmp_path, cifar, only=("cl-s0",))
    assert set(saved) == {"tune-z"} and {"tune_h", "tune_z"} <= lines(tmp_path)[0]["measures"].keys()
    assert not list((tmp_path / "runs").rglob("tune-*"))


def test_a_line_tells_where_it_was_trained_and_where_it_was_measured(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    for commit, where in (("first", "tune h"), ("second", "")):
        provenance.commit.cache_clear()
        monkeypatch.setenv("NONNEG_COMMIT", commit)
        with monkeypatch.context() as during, pytest.raises(Interrupted) if where else nullcontext():
            stop_at(where, [], during)
            go(tmp_path, cifar, only=("cl-s0",))
        (line,) = lines(tmp_path)
        assert line["commit"] == "first" and ("evaluated" in line) == (commit == "second")
    provenance.commit.cache_clear()
    assert line["evaluated"]["commit"] == "second" and "hardware" not in line["evaluated"]  # the same machine


def test_numbers_of_a_run_with_other_settings_are_not_taken_for_its_own(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    with monkeypatch.context() as during:
        stop_at("probe hz", [], during)
        with pytest.raises(Interrupted):
            go(tmp_path, cifar, only=("cl-s0",))
    path = tmp_path / "results" / "cifar10-1epochs.jsonl"
    (line,) = lines(tmp_path)
    right = line["measures"]["sparsity"]
    line["measures"]["sparsity"] = 0.123
    path.write_text(json.dumps({**line, "run": {**line["run"], "lr": 7.0}}) + "\n")
    go(tmp_path, cifar, only=("cl-s0",))
    assert lines(tmp_path)[0]["measures"]["sparsity"] == right


def test_a_half_measured_run_whose_model_is_gone_is_said_to_be(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    with monkeypatch.context() as during:
        stop_at("tune h", [], during)
        with pytest.raises(Interrupted):
            go(tmp_path, cifar, only=("cl-s0",))
    shutil.rmtree(tmp_path / "runs")
    monkeypatch.setattr(reproduce, "train", lambda *_, **__: pytest.fail("trained again"))
    capsys.readouterr()
    go(tmp_path, cifar, only=("cl-s0",))
    said = capsys.readouterr().err
    assert "cl-s0 was not fully measured (no tune_h, tune_z)" in said and "remove its line" in said


def test_too_little_memory_is_told_with_the_flag_that_this_verb_has(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise TooLittleMemory("too little GPU memory: the run needs 2 GiB", 256, 32)

    monkeypatch.setattr(reproduce, "train", short)
    with pytest.raises(
        BadInput, match=r"cl-s0: too little GPU memory: .* a smaller --batch-size \(now 256\)"
    ) as caught:
        go(tmp_path, cifar, only=("cl-s0",))
    assert "--image-size" not in str(caught.value) and "--backbone" not in str(caught.value)


def test_supcon_differs_as_declared_and_keeps_curves_from_which_its_figure_is_drawn(tmp_path: Path) -> None:
    runs = experiments.find("supcon").runs
    plain = cifar10.RUNS["cl-s0"].to_json()
    for name, more in {"cl": {"positives"}, "ncl": {"positives", "map"}, "cl-multi": {"loss"}}.items():
        mine = runs[f"{name}-s0"].to_json()
        assert {k for k in mine if mine[k] != plain[k]} == more
    change = partial(replace, projector=(16, 32), backbone=partial(backbones.small_net, width=4))
    rows = go(tmp_path, None, "supcon", only=("digits-ncl-multi",), seeds=1, change=change)  # type: ignore[arg-type]
    found = {line["name"]: line["measures"] for line in lines(tmp_path, "supcon-1epochs")}
    assert set(found) == {"digits-ncl-multi-s0"}
    measures = found["digits-ncl-multi-s0"]
    activations, eigenvalues = measures["activations"], measures["eigenvalues"]
    assert len(activations) == len(eigenvalues) == 32 and sum(eigenvalues) == pytest.approx(1, abs=1e-3)
    assert measures["activation_fall"] == pytest.approx(1 - activations[19] / activations[9], abs=1e-3)
    row = find(rows, MEASURES["activation_fall"][0], "NCL, multi-positive, digits")
    assert row.ours == pytest.approx(100 * measures["activation_fall"], abs=1e-3)
    with Image.open(tmp_path / "results" / "figures" / "supcon-1epochs.png") as picture:
        assert picture.width > 600 and len(set(picture.convert("L").tobytes())) > 5
    draw = experiments.find("supcon").draw
    assert draw is not None and draw({}) is None


# --- reports from files ------------------------------------------------------------------------------------------


def write_lines(path: Path, values: dict[str, float], key: str = "probe_h") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"name": k, "measures": {key: v}}) + "\n" for k, v in values.items()))


def test_without_results_every_cell_says_not_run(tmp_path: Path) -> None:
    for name in experiments.names():
        rows = reproduce.reproduce(name, results=tmp_path, runs=tmp_path / "runs", report_only=True)
        assert rows and all(row.ours is None and row.cells()[3] == "not run" and row.seeds == 0 for row in rows)
        assert all(set(r) == KEYS and r["ours"] is None and r["std"] is None for r in as_json(rows))
    assert not list(tmp_path.iterdir())  # it only reads


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    values = {"cl-s0": 0.875, "cl-s1": 0.881, "cl-s2": 0.872, "ncl-s0": 0.878, "stray-s0": 0.1}
    write_lines(tmp_path / "cifar10.jsonl", values)
    rows = reproduce.reproduce("cifar10", results=tmp_path, report_only=True)
    cl, ncl = find(rows, "linear probe", "CL"), find(rows, "linear probe", "NCL")
    three = [87.5, 88.1, 87.2]
    assert cl.ours == pytest.approx(np.mean(three)) and cl.std == pytest.approx(np.std(three, ddof=1)) and cl.seeds == 3
    assert cl.cells() == ("linear probe", "CL", "87.6", "87.6 ± 0.5", "+0.0", "3")
    assert (ncl.std, ncl.seeds, ncl.cells()[3]) == (None, 1, "87.8")
    only = reproduce.reproduce("cifar10", results=tmp_path, report_only=True, only=("cl",))
    assert only == [row for row in rows if row.method == "CL"]
    one = reproduce.reproduce("cifar10", results=tmp_path, report_only=True, only=("cl-s1",))
    assert find(one, "linear probe", "CL").ours == pytest.approx(88.1) and find(one, "linear probe", "CL").seeds == 1
    assert find(rows, "fine-tune", "CL").cells() == ("fine-tune", "CL", "92.3", "not run", "", "0")


def test_shares_of_less_than_a_tenth_of_a_percent_show_two_digits() -> None:
    assert Row("sparsity", "l1", 0.03, 0.0042, 0.00123, 3).cells()[2:5] == ("0.03", "0.0042 ± 0.0012", "-0.026")
    assert Row("sparsity", "l1", 0.03, 0.0, 0.0, 3).cells()[2:5] == ("0.03", "0.0 ± 0.0", "-0.03")
    assert Row("sparsity", "ncl", 69.65, 0.05, None, 1).cells()[2:5] == ("69.7", "0.05", "-69.6")
    assert Row("probe", "cl", 88.0, 88.04, 0.04, 3).cells()[2:5] == ("88.0", "88.0 ± 0.0", "+0.0")  # as elsewhere


def test_the_maps_borrow_the_run_that_cifar10_has_made(tmp_path: Path) -> None:
    write_lines(tmp_path / "cifar10.jsonl", {"ncl-s0": 0.9, "ncl-s1": 0.1}, "sparsity")
    rows = reproduce.reproduce("maps", results=tmp_path, report_only=True)
    assert find(rows, "sparsity", "rep_relu, CIFAR-10").ours == pytest.approx(90)
    assert find(rows, "sparsity", "rep_relu, CIFAR-10, 50 epochs").ours is None


def test_bad_input_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown experiment 'cifar11'"):
        reproduce.reproduce("cifar11", results=tmp_path)
    with pytest.raises(BadInput, match="unknown run 'nlc'"):
        reproduce.reproduce("cifar10", results=tmp_path, only=("nlc",))
    with pytest.raises(BadInput, match="--seeds is 0"):
        reproduce.reproduce("cifar10", results=tmp_path, seeds=0)
    for name, run_name, seeds in (("cifar10", "cl-s2", 1), ("supervised", "digits-scratch-ce-s2", None)):
        with pytest.raises(BadInput, match=f"--only {run_name} is of seed 2, .*: give --seeds 3"):
            reproduce.reproduce(name, results=tmp_path, only=(run_name,), seeds=seeds)
    with pytest.raises(BadInput, match="--epochs is 0"):
        reproduce.reproduce("cifar10", results=tmp_path, epochs=0)
    with pytest.raises(BadInput, match="--classes chooses among the folders of imagenet100"):
        reproduce.reproduce("cifar10", results=tmp_path, classes=tmp_path / "c.txt")
    whole = '{"name": "cl-s0", "measures": {}}'
    for bad in (
        '{"name": "ncl',
        '{"name": "a", "measures": {"probe_h": NaN}}',
        '{"name": "a", "measures": {"x": "y"}}',
    ):
        (tmp_path / "cifar10.jsonl").write_text(f"{whole}\n{bad}\n")
        with pytest.raises(BadInput, match="line 2 is not a result"):
            reproduce.reproduce("cifar10", results=tmp_path, report_only=True)
    for bad in ("[0.5]", '{"a": 1}', "true"):
        (tmp_path / "cifar10.jsonl").write_text(f'{{"name": "cl-s0", "measures": {{"probe_h": {bad}}}}}\n')
        with pytest.raises(BadInput, match=r"probe_h of cl in cifar10\.jsonl is .*, not a number"):
            reproduce.reproduce("cifar10", results=tmp_path, report_only=True)
    (tmp_path / "cifar10.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"cifar10.jsonl cannot be read as lines of text"):
        reproduce.reproduce("cifar10", results=tmp_path, report_only=True)
    (tmp_path / "cifar100.jsonl").mkdir()
    with pytest.raises(BadInput, match=r"cifar100.jsonl cannot be read as lines of text"):
        reproduce.reproduce("cifar100", results=tmp_path, report_only=True)


def test_the_commit_is_unknown_outside_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NONNEG_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    assert provenance.commit.__wrapped__() == "unknown"
    monkeypatch.setenv("NONNEG_COMMIT", "abc1234")
    assert provenance.commit.__wrapped__() == "abc1234"


# --- kept features -----------------------------------------------------------------------------------------------


def some_features(kind: str, *, n: int = 400, width: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    z = rng.gamma(0.5, size=(n, width)).astype(np.float32) * rng.uniform(1e-3, 30, width).astype(np.float32)
    if "signed" in kind:
        z *= rng.choice([-1, 1], z.shape)
    if "sparse" in kind:
        z[rng.random(z.shape) < 0.9] = 0
        z[:, 7] = 0  # a dead feature
        z[4:, 9] = 0  # active on four images at most
        z[3, 5] = 1e-9  # tiny, but not zero
    return z


@pytest.mark.parametrize("width", [200, 301])
@pytest.mark.parametrize("kind", ["sparse", "dense", "signed and sparse", "signed and dense"])
def test_kept_features_come_back_as_the_middle_of_their_cell(tmp_path: Path, kind: str, width: int) -> None:
    z = some_features(kind, n=61, width=width)
    labels = np.random.default_rng(1).integers(0, 300, len(z))
    (tmp_path / "z.npz").write_bytes(pack(sp.csr_array(z), labels))
    kept = kept_features.load(tmp_path / "z.npz")
    back, levels, wanted = kept.z.toarray(), 8 if "signed" in kind else 16, np.zeros_like(z)
    for d in range(width):
        largest = np.abs(z[:, d]).max()
        first = [
            i for i in sorted(range(len(z)), key=lambda i, d=d: -abs(z[i, d]))[:10] if abs(z[i, d]) > 1e-4 * largest
        ]
        for i in np.flatnonzero(z[:, d]):
            cell = min(int(levels * (abs(z[i, d]) / largest) ** 0.5), levels - 1)
            middle = min(((cell + 0.5) / levels) ** 2 * largest, abs(z[first[-1], d]))
            wanted[i, d] = z[i, d] if i in first else np.copysign(middle, z[i, d])
    assert np.allclose(back, wanted, rtol=1e-3, atol=0)
    assert (np.sign(back) == np.sign(z)).all()
    assert kept.labels is not None and (kept.labels == labels).all() and kept.labels.dtype == np.int64
    assert pack(sp.csr_array(z), labels) == pack(sp.csr_array(z), labels)


def test_sparse_features_take_a_byte_and_a_half_a_value_and_what_is_damaged_is_told(tmp_path: Path) -> None:
    z = np.random.default_rng(0).gamma(0.5, size=(2000, 256)).astype(np.float32)
    z[np.random.default_rng(1).random(z.shape) < 0.95] = 0
    packed = pack(sp.csr_array(z), None)
    assert len(packed) < 1.5 * np.count_nonzero(z) + 6 * 10 * 256 + 4 * 256 + 2000 + 2000
    for content in (b"PK not really", packed[:-50], packed[:1000] + bytes(500) + packed[1500:]):
        (tmp_path / "z.npz").write_bytes(content)
        with pytest.raises(BadInput, match="damaged"):
            kept_features.load(tmp_path / "z.npz")
    (tmp_path / "z.npz").write_bytes(pack(z[:3, :2] + 1, None))
    with np.load(tmp_path / "z.npz") as f:
        np.savez(tmp_path / "z.npz", **{**f, "cells": f["cells"][:1]})
    with pytest.raises(BadInput, match="do not hold 6 values"):
        kept_features.load(tmp_path / "z.npz")
    with pytest.raises(BadInput, match="does not exist"):
        kept_features.load(tmp_path / "none.npz")


def test_large_features_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from nonneg.features import Features

    rng = np.random.default_rng(0)
    dense = Features(np.zeros((500, 2), np.float32), sp.csr_array(rng.random((500, 64))), None, [""] * 500)
    keep = partial(kept_features.keep, tmp_path / "x-test.npz")
    assert keep(dense, 0) == ["x-test.npz"] and keep(dense, 1) == []
    monkeypatch.setattr(kept_features, "MOST_BYTES", 1000)
    assert keep(dense, 0) == []


# --- ImageNet-100's layout ---------------------------------------------------------------------------------------


def tree(root: Path) -> Path:
    """Three classes of small JPEGs, brightness telling the class, with shifted sets beside train/ and val/."""
    rng = np.random.default_rng(0)

    def fill(folder: Path, count: int, classes: tuple[int, ...] = (0, 1, 2)) -> None:
        for c in classes:
            place = folder / f"n0000000{c}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 40, (20, 24, 3)) + 100 * c
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{i}.jpeg")

    fill(root / "train", 12)
    fill(root / "val", 4)
    fill(root / "imagenet-sketch", 2, (0, 1))  # one class lacks pictures there
    for corruption in ("fog", "noise"):
        for severity in ("1", "5"):
            fill(root / "C" / corruption / severity, 1)
    return root


def small_photos(run: Run) -> Run:
    return replace(small(run), image_size=32, batch_size=8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tree(tmp_path_factory.mktemp("photos"))


def test_imagenet100_from_a_tree_of_folders(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)  # drawn once already, for CIFAR
    rows = go(tmp_path, photos, "imagenet100", seeds=1, change=small_photos)
    for method in ("CL", "NCL"):
        for measure in ("linear probe", "fine-tune", "linear probe, Sketch", "linear probe, Corruption"):
            ours = find(rows, measure, method).ours
            assert ours is not None and 0 <= ours <= 100
        missing = find(rows, "linear probe, Stylized", method)
        assert missing.ours is None and missing.cells()[3] == "not run" and missing.paper is not None
    first = lines(tmp_path, "imagenet100-1epochs")[0]
    assert first["run"]["data"] == "folder" and first["measures"]["features"] == 8
    groups = sorted((tmp_path / "runs" / "imagenet100-1epochs" / "data" / "ood_corruption").iterdir())
    assert len(groups) == 4  # two corruptions at two severities
    assert len(list(photos.rglob("*.jpeg"))) == 3 * 16 + 4 + 12  # the originals are all there
    chosen = tmp_path / "classes.txt"
    chosen.write_text("n00000009\n")
    again = partial(go, tmp_path, photos, "imagenet100", seeds=1, change=small_photos, classes=chosen)
    for report_only in (False, True):  # although all is done
        with pytest.raises(BadInput, match="unknown class folder 'n00000009'"):
            again(report_only=report_only)
    chosen.write_text("n00000000\nn00000002\n")
    links = {p: p.readlink() for p in (tmp_path / "runs").rglob("*") if p.is_symlink()}
    for report_only in (False, True):
        with pytest.raises(BadInput, match=r"are of 3 classes, and these are 2 \(n00000001 is in one of them only"):
            again(report_only=report_only)
    assert links == {p: p.readlink() for p in (tmp_path / "runs").rglob("*") if p.is_symlink()}  # runs need them
    with pytest.raises(BadInput, match=r"cl-s0 is of 3 classes, and these are 2 \(n00000001 is in one of them only"):
        again(runs=tmp_path / "elsewhere")
    chosen.write_text("n00000000\nn00000001\nn00000002\n")
    assert again() == rows
    assert go(tmp_path, None, "imagenet100", seeds=1) == rows  # type: ignore[arg-type]


def test_a_shifted_set_that_comes_later_is_measured_later(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "imagenet-sketch").rename(tmp_path / "sketch")
    run = partial(go, tmp_path, tmp_path / "photos", "imagenet100", only=("cl-s0",), change=small_photos)
    assert find(run(), "linear probe, Sketch", "CL").ours is None
    before = lines(tmp_path, "imagenet100-1epochs")[0]["measures"]
    (tmp_path / "sketch").rename(tmp_path / "photos" / "imagenet-sketch")
    monkeypatch.setattr(reproduce, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert find(run(), "linear probe, Sketch", "CL").ours is not None
    after = lines(tmp_path, "imagenet100-1epochs")[0]["measures"]
    assert after.items() > before.items() and after.keys() - before.keys() == {"ood_sketch"}
    monkeypatch.setattr(reproduce, "_run_one", lambda *_: pytest.fail("a finished run was started again"))
    run()


def test_a_shifted_set_without_a_picture_is_said_and_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    for picture in (tmp_path / "photos" / "imagenet-sketch").rglob("*.jpeg"):
        picture.unlink()
    found = imagenet100.prepare(tmp_path / "photos", tmp_path / "data", None)
    assert found.more == ("ood_corruption",)
    assert "imagenet-sketch holds no picture in a folder named as one of the 3 classes" in capsys.readouterr().err


def test_accuracy_under_shift_is_the_mean_over_its_groups(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = imagenet100.prepare(photos, tmp_path / "data", None)
    run, asked = replace(small_photos(experiments.find("imagenet100").runs["cl-s0"]), data_root=found.root), []

    def right(_encoder: object, _heads: object, shifted: Dataset, **_: object) -> dict[str, float]:
        asked.append(len(shifted))
        return {"h": 0.1 * len(asked)}

    monkeypatch.setattr(imagenet100.finetune, "accuracy", right)
    probed = {"h": SimpleNamespace(encoder=None, head=None)}
    got = imagenet100.shifts(probed, run)  # type: ignore[arg-type]
    assert asked == [3, 3, 3, 3, 4]  # four groups of corruptions, and two classes of sketches
    assert got == {"ood_corruption": pytest.approx(0.25), "ood_sketch": pytest.approx(0.5)}


def test_a_probe_is_kept_until_the_shifted_sets_are_measured_too(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: [])
    run = partial(go, tmp_path, photos, "imagenet100", only=("cl-s0",), change=small_photos)
    accuracy, asked = imagenet100.finetune.accuracy, []

    def cut(encoder: Any, heads: Any, *rest: Any, **how: Any) -> Any:
        asked.append(len(heads))
        if asked.count(1) == 2:  # of h alone, on the second shifted set
            raise KeyboardInterrupt
        return accuracy(encoder, heads, *rest, **how)

    with monkeypatch.context() as during, pytest.raises(Interrupted, match="nothing that was finished is lost"):
        during.setattr(imagenet100.finetune, "accuracy", cut)
        run()
    (line,) = lines(tmp_path, "imagenet100-1epochs")
    assert "probe_h" in line["measures"] and "ood_sketch" not in line["measures"]
    saved, save = [], rundir.save_checkpoint

    def note(folder: Path, *rest: Any, **more: Any) -> None:
        saved.append(folder.name)
        save(folder, *rest, **more)

    monkeypatch.setattr(rundir, "save_checkpoint", note)
    run()
    (line,) = lines(tmp_path, "imagenet100-1epochs")
    assert {"ood_sketch", "ood_corruption", "tune_z"} <= line["measures"].keys()
    assert not [name for name in saved if name.startswith("probe-")]  # it was over: nothing of it was trained again
    assert not list((tmp_path / "runs").rglob("probe-*"))


def test_the_same_command_given_twice_leaves_the_first_ones_probe_alone(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: None)
    folder = tmp_path / "runs" / "cifar10-1epochs" / "cl-s0"
    with monkeypatch.context() as during, pytest.raises(Interrupted):
        stop_at("probe hz", [], during)
        go(tmp_path, cifar, only=("cl-s0",))
    (folder / "probe-cpu-of-the-first").mkdir()
    with (
        rundir.alone(folder),
        pytest.raises(BadInput, match=r"another process is at work in .*cl-s0; wait for it"),
    ):
        go(tmp_path, cifar, only=("cl-s0",))
    assert (folder / "probe-cpu-of-the-first").is_dir()


def test_a_class_whose_images_cannot_be_read_does_not_make_the_results_anothers(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery, "draw", lambda *_, **__: [])
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "train" / "n00000007").mkdir()
    (tmp_path / "photos" / "train" / "n00000007" / "a.jpeg").write_bytes(b"")
    run = partial(go, tmp_path, tmp_path / "photos", "imagenet100", only=("cl-s0",), change=small_photos)
    first = run()
    assert len(lines(tmp_path, "imagenet100-1epochs")[0]["classes"]) == 4
    assert run() == first == run(report_only=True)


def test_places_that_cannot_be_written_to_are_named_before_anything_is_trained(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"no links to images can be made in .*name other --runs"):
        imagenet100.prepare(photos, tmp_path / "file", None)

    def refused(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ledger.tempfile, "TemporaryFile", refused)
    monkeypatch.setattr(reproduce, "_run_one", lambda *_: pytest.fail("trained"))
    with pytest.raises(BadInput, match=r"--results .* is no folder to write to \(Permission denied\)"):
        reproduce.reproduce("maps", only=("digits-relu-s0",), results=tmp_path / "results", runs=tmp_path / "runs")


def test_stray_files_and_classes_without_test_images(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photos, tmp_path / "photos")
    work, prepare = tmp_path / "data", partial(imagenet100.prepare, tmp_path / "photos", tmp_path / "data", None)
    (tmp_path / "photos" / "train" / "n00000009").mkdir()
    (tmp_path / "photos" / "train" / "n00000009" / ".DS_Store").write_bytes(b"x")  # no class, for it has no picture
    assert prepare().more == ("ood_corruption", "ood_sketch")
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 3 classes are not in" in said and "imagenet-sketch, first n00000002: not measured there" in said
    for place in (work, work / "clean" / "train", work / "ood_sketch", work / "ood_sketch" / "000" / "test"):
        (place / ".DS_Store").write_bytes(b"x")
    link = work / "clean" / "train" / "n00000001"
    made = link.lstat().st_mtime_ns
    shutil.rmtree(tmp_path / "photos" / "imagenet-sketch")
    assert prepare().more == ("ood_corruption",)
    assert link.lstat().st_mtime_ns == made and not capsys.readouterr().err  # another reproduction may be reading it
    shutil.rmtree(tmp_path / "photos" / "val" / "n00000001")
    assert prepare().classes == [f"n0000000{c}" for c in range(3)]
    said = " ".join(capsys.readouterr().err.split())
    assert "1 of 3 classes are not in" in said and "first n00000001: nothing is tested of them" in said
    (tmp_path / "photos" / "stylized" / "n1").mkdir(parents=True)
    shutil.rmtree(tmp_path / "photos" / "C" / "fog" / "1" / "n00000000")
    assert prepare().more == ("ood_corruption",)
    said = " ".join(capsys.readouterr().err.split())
    assert "stylized holds no picture in a folder named as one of the 3 classes: not measured" in said
    assert "C/fog/1, first n00000000: not measured there" in said
    shutil.rmtree(tmp_path / "photos" / "val")
    (tmp_path / "photos" / "val").mkdir()
    with pytest.raises(BadInput, match=r"3 of 3 classes are not in .*one folder a class"):
        prepare()


def test_a_file_of_classes_restricts_every_set(photos: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "classes.txt"
    chosen.write_bytes(b"\xef\xbb\xbfn00000002 tench, Tinca tinca\r\n\r\n# two of them\r\nn00000000\r\n")
    root = imagenet100.prepare(photos, tmp_path / "data", chosen).root
    run = replace(imagenet100.RUNS["cl-s0"], data_root=root, image_size=16)
    for split, count in (("train", 24), ("test", 8)):
        loaded = run.load(split)
        assert loaded.classes == ["n00000000", "n00000002"] and len(loaded) == count and not loaded.skipped
    sketch = replace(run, data_root=tmp_path / "data" / "ood_sketch" / "000").load("test")
    assert sketch.classes == ["n00000000", "n00000002"] and sketch.labels is not None
    assert sketch.labels.tolist() == [0, 0]
    again = imagenet100.prepare(photos, tmp_path / "data", None).root  # links made earlier are replaced
    assert replace(run, data_root=again).load("test").classes == [f"n0000000{c}" for c in range(3)]


def test_a_tree_that_is_not_imagenets_is_refused(photos: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "classes.txt"
    chosen.write_text("n00000009\n")
    with pytest.raises(BadInput, match="unknown class folder 'n00000009'"):
        imagenet100.prepare(photos, tmp_path / "data", chosen)
    chosen.write_text("\n# nothing\n")
    with pytest.raises(BadInput, match="names no class"):
        imagenet100.prepare(photos, tmp_path / "data", chosen)
    with pytest.raises(BadInput, match="cannot be read"):
        imagenet100.prepare(photos, tmp_path / "data", tmp_path / "none.txt")
    with pytest.raises(BadInput, match="must hold train/ and val/"):
        imagenet100.prepare(photos / "train", tmp_path / "data", None)
    with pytest.raises(BadInput, match="is not downloaded; pass --data-root"):
        go(tmp_path, None, "imagenet100")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="nowhere is no folder"):
        imagenet100.prepare(tmp_path / "nowhere", tmp_path / "data", None)


def test_the_measures_of_every_table_have_a_text() -> None:
    texts = [text for text, _ in MEASURES.values()]
    assert len(set(texts)) == len(texts)


# --- classifiers, end to end on digits ---------------------------------------------------------------------------


def tiny(run: Run | ClassifierRun) -> Run | ClassifierRun:
    projector = (8, 6) if run.projector else ()
    return replace(
        run, backbone=partial(backbones.small_net, width=2), projector=projector, batch_size=256, warmup_epochs=0
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Row]]:
    """Where CE and NCE, fine-tuned on digits, were reproduced small, and their table."""
    place = tmp_path_factory.mktemp("tuned")
    only = ("digits-tuned-ce", "digits-tuned-nce")
    return place, go(place, place, "supervised", only=only, change=tiny)


def test_the_search_comes_first_and_its_best_rate_is_used(tuned: tuple[Path, list[Row]]) -> None:
    place, rows = tuned
    found = {line["name"]: line for line in lines(place, "supervised-1epochs")}
    searches = [name for name in found if "-search-" in name]
    assert (
        len(searches) == 12 and len(found) == 14 and list(found)[-2:] == ["digits-tuned-ce-s0", "digits-tuned-nce-s0"]
    )
    for loss in ("ce", "nce"):
        mine = [found[name] for name in searches if name.startswith(f"digits-tuned-{loss}-search")]
        best = min(line["measures"]["test_loss"] for line in mine)
        rates = [line["run"]["lr"] for line in mine if line["measures"]["test_loss"] == best]
        final = found[f"digits-tuned-{loss}-s0"]
        assert final["run"]["lr"] == min(rates) == final["measures"]["lr"]
        assert final["start"] == "maps-1epochs/digits-identity-s0" and "pretrained" not in final["run"]
        assert final["by_epoch"] == [[1, pytest.approx(final["measures"]["test_accuracy"], abs=1e-5)]]
        assert "class_consistency" in final["measures"] and all("sparsity" not in line["measures"] for line in mine)
        assert final["images"] == [1347, 450] and all(line["images"] == [1078, 269] for line in mine)
    assert found["digits-tuned-ce-s0"]["measures"]["dead_weights"] == 0
    start = place / "runs" / "maps-1epochs" / "digits-identity-s0"  # was trained first, shortened too
    assert (start / "model.safetensors").exists() and len(rundir.read_log(start)) == 1
    weights = {p.parent.name for p in (place / "runs" / "supervised-1epochs").glob("*/*.safetensors")}
    assert weights == {"digits-tuned-ce-s0", "digits-tuned-nce-s0"}  # a search leaves its log
    row = find(rows, "test accuracy", "NCE, digits, fine-tuned")
    assert row.ours == pytest.approx(100 * found["digits-tuned-nce-s0"]["measures"]["test_accuracy"])
    assert find(rows, "epochs to 95 % test accuracy", "CE, digits, fine-tuned").cells()[3] == "not reached"
    everything = go(place, place, "supervised", report_only=True)
    assert find(everything, "test accuracy", "CE, CIFAR-100, from scratch").cells()[3] == "not run"
    assert {row.method for row in rows} == {"CE, digits, fine-tuned", "NCE, digits, fine-tuned"}
    assert not any(row.method == "search" for row in rows)
    assert not any("30 %" in row.measure and "digits" in row.method for row in rows)
    with Image.open(place / "results" / "figures" / "supervised-1epochs.png") as picture:
        assert picture.height > picture.width / 2  # one column: the curves, the search


def test_classifiers_are_not_trained_twice_and_wait_for_their_search(
    tuned: tuple[Path, list[Row]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, rows = tuned
    monkeypatch.setattr(reproduce, "_classify_one", lambda *_: pytest.fail("a classifier was started"))
    assert go(place, place, "supervised", change=tiny, only=("digits-tuned-ce", "digits-tuned-nce")) == rows
    with pytest.raises(pytest.fail.Exception):
        go(place, place, "supervised", change=tiny, only=("digits-tuned-nce-s2",), seeds=3)
    with pytest.raises(
        BadInput, match=r"takes the learning rate that did best in a search, and 6 of its 6 runs are not"
    ):
        go(tmp_path, tmp_path, "supervised", change=tiny, only=("digits-scratch-nce-s0",))


def test_a_result_of_its_own_goes_before_a_borrowed_one(tmp_path: Path) -> None:
    experiment = experiments.find("recipe")
    for name, run_name, right in (("cifar100", "cl-s0", 0.1), ("recipe", "ours-s0", 0.2)):
        ledger.put(tmp_path / f"{name}.jsonl", {"name": run_name, "measures": {"knn": right}})
        assert ledger.of("recipe", experiment, tmp_path)["ours-s0"]["measures"] == {"knn": right}
