"""Evaluation of whole runs: measures of images through the model, every group, and every bad input it may meet."""

import errno
import fcntl
import itertools
import json
import math
import multiprocessing
import re
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from nonneg import (
    augment,
    backbones,
    cli,
    corruptions,
    data,
    embedding,
    evaluate,
    features,
    figures,
    files,
    finetune,
    losses,
    maps,
    measures,
    metrics,
    on_images,
    plots,
    probes,
    progress,
    rundir,
    tables,
    workflow,
)
from nonneg.data import Dataset
from nonneg.data.sprites import FACTORS, ORIGINAL, factors_of
from nonneg.encoder import load, save
from nonneg.errors import BadInput
from nonneg.evaluate import Asked
from nonneg.features import Features
from nonneg.run import DIGITS, Training
from nonneg.train import train

TINY = replace(
    DIGITS, backbone=partial(backbones.small_net, width=4), projector=(32, 16), epochs=1, batch_size=256, device="cpu"
)


def strict_json(path: Path) -> dict[str, Any]:
    """A metrics.json in which NaN is an error."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} in {path}")

    return json.loads(path.read_text(), parse_constant=refuse)


# Groups that need images


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small runs on digits, "a" and "b"; never written to but for features: take `copied`."""
    root = tmp_path_factory.mktemp("runs")
    for name, seed in (("a", 0), ("b", 1)):
        train(replace(TINY, seed=seed), root / name)
    evaluate.evaluate(root / "a")
    return root


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture(scope="module")
def digits() -> dict[str, Dataset]:
    return {split: data.digits(split=split) for split in ("train", "test")}


def made(folder: Path, digits: dict[str, Dataset]) -> dict[str, Features]:
    return {s: embedding.embed(folder, d, s, rundir.read_run(folder)[0]) for s, d in digits.items()}


def test_images_that_a_run_was_not_trained_on_are_said_to_be(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate.evaluate(copied / "a", asked=evaluate.Asked(only=("spectrum",)))
    assert "other images" not in capsys.readouterr().err
    real = Training.load
    monkeypatch.setattr(Training, "load", lambda run, split: real(run, split).subset(range(300)))
    evaluate.evaluate(copied / "a", asked=evaluate.Asked(only=("spectrum",)))
    said = capsys.readouterr().err
    assert "was trained on other images than digits holds now (1347 then, 300 now)" in said.replace("\n", " ")


def test_two_views_without_augmentation_are_the_features(runs: Path, digits: dict[str, Dataset]) -> None:
    first, second = on_images.two_views(load(runs / "a"), digits["test"], augment.none, seed=0, device="cpu")
    whole = made(runs / "a", digits)["test"]
    np.testing.assert_allclose(first.z.toarray(), whole.z.toarray(), atol=1e-5)
    assert (first.z != second.z).nnz == 0 and first.ids == whole.ids
    one, two = on_images.two_views(load(runs / "a"), digits["test"], augment.gentle, seed=0, device="cpu")
    assert (one.z != two.z).nnz > 100
    again, _ = on_images.two_views(load(runs / "a"), digits["test"], augment.gentle, seed=0, device="cpu")
    assert (one.z != again.z).nnz == 0


def test_the_clean_probe_is_the_linear_probe(runs: Path, digits: dict[str, Dataset]) -> None:
    f = made(runs / "a", digits)
    probe = on_images.clean_probe(f["train"], f["test"], device="cpu")
    right = probe.right(torch.as_tensor(f["test"].h), torch.as_tensor(f["test"].labels)).item()
    found = probes.linear_probe(f["train"].h, f["train"].labels, f["test"].h, f["test"].labels)
    assert right / 450 == pytest.approx(found.accuracy, abs=0.005) and probe.l2 == found.l2
    assert probe.clean == right / 450


def test_damage_counts_in_its_kind_and_images_that_nothing_damages_are_told_like_clean_ones(
    runs: Path, digits: dict[str, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    f, few = made(runs / "a", digits), digits["test"].subset(range(60))
    probe = on_images.clean_probe(f["train"], f["test"], device="cpu")

    def some_hurt(x: torch.Tensor, name: str, severity: int, *, generator: torch.Generator) -> torch.Tensor:
        assert generator.device == x.device
        mild = {"gaussian_noise": 2, "motion_blur": 3, "fog": 4, "pixelate": 1}
        return torch.zeros_like(x) if severity > mild.get(name, 5) else x

    monkeypatch.setattr(corruptions, "corrupt", some_hurt)
    found = on_images.corrupted(load(runs / "a"), probe, few, seed=0, device="cpu")
    entry = found["corruption_accuracy"]
    right = probe.right(torch.as_tensor(f["test"].h[:60]), torch.as_tensor(f["test"].labels[:60])).item() / 60
    black = entry["each"]["fog"]["severity"][4]
    assert entry["clean"] == pytest.approx(right) and black < right and len(entry["each"]) == 15
    assert entry["value"] == pytest.approx((65 * right + 10 * black) / 75)
    assert entry["each"]["fog"]["mean"] == pytest.approx((4 * right + black) / 5, abs=1e-6)
    for kind, cells, hurt in (("noise", 15, 3), ("blur", 20, 2), ("weather", 20, 1), ("digital", 20, 4)):
        want = ((cells - hurt) * right + hurt * black) / cells
        assert found[f"corruption_{kind}"]["value"] == pytest.approx(want)
    assert entry["images"] == 60


def test_probe_entries_are_those_of_the_papers_protocol(runs: Path, digits: dict[str, Dataset]) -> None:
    parts = [digits[s].subset(range(60)) for s in ("train", "test")]
    found = on_images.probed(load(runs / "a"), *parts, tune=False, epochs=2, seed=3, device="cpu")
    direct = finetune.probe(load(runs / "a"), *parts, on=("h", "z"), epochs=2, seed=3)
    assert {k: e["value"] for k, e in found.items()} == {f"probe_{p}": r.accuracy for p, r in direct.items()}
    assert found["probe_h"]["epochs"] == 2 and found["probe_h"]["train_images"] == 60
    assert set(on_images.probed(load(runs / "a"), *parts, tune=True, epochs=1, seed=0, device="cpu")) == {
        "tune_h",
        "tune_z",
    }


# Other folders


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, digits: dict[str, Dataset]) -> Path:
    """Test images of three classes as a labelled folder."""
    root, test = tmp_path_factory.mktemp("ood"), digits["test"]
    for i, y in enumerate(test.labels.tolist()):
        if y in (2, 5, 7):  # numbered 0, 1, 2 in the folder
            (root / str(y)).mkdir(exist_ok=True)
            Image.fromarray(test.images[i, 0].numpy()).save(root / str(y) / f"{i}.png")
    return root


def test_a_folder_of_the_test_images_is_told_like_the_test_images(
    runs: Path, digits: dict[str, Dataset], pictures: Path
) -> None:
    f = made(runs / "a", digits)
    probe = on_images.clean_probe(f["train"], f["test"], device="cpu")
    place = on_images.elsewhere(
        f"same={pictures}", data.folder, digits["train"].classes, channels=1, image_size=16
    )  # fmt: skip
    found = on_images.out_of_distribution(load(runs / "a"), probe, place, device="cpu")
    chosen = np.flatnonzero(np.isin(f["test"].labels, (2, 5, 7)))
    right = probe.right(torch.as_tensor(f["test"].h[chosen]), torch.as_tensor(f["test"].labels[chosen])).item()
    assert found["ood_same"] | {"images": len(chosen), "classes": 3} == found["ood_same"]
    assert found["ood_same"]["value"] == pytest.approx(right / len(chosen))
    assert f"on the {len(chosen)} images of another folder, of 3 of 10 classes" in found["ood_same"]["definition"]


def test_class_names_that_do_not_match_are_listed_from_both_sides(tmp_path: Path, pictures: Path) -> None:
    shutil.copytree(pictures, tmp_path / "other")
    (tmp_path / "other" / "2").rename(tmp_path / "other" / "two")
    with pytest.raises(BadInput, match=r"only in .*other: two; only in the run: 2, 9; rename"):
        on_images.elsewhere(f"x={tmp_path / 'other'}", data.folder, ["2", "5", "7", "9"], channels=1, image_size=16)
    with pytest.raises(BadInput, match="has no labels; give it one sub-folder a class"):
        on_images.elsewhere(f"x={pictures / '5'}", data.folder, ["0"], channels=1, image_size=16)
    for text in ("sketch", "=here", "x=", "a/b=c"):
        with pytest.raises(BadInput, match="write NAME=FOLDER"):
            on_images.elsewhere(text, data.folder, ["0"], channels=1, image_size=16)
    with pytest.raises(BadInput, match="no names"):
        on_images.elsewhere(f"x={pictures}", data.folder, None, channels=1, image_size=16)


# Whole runs


@pytest.fixture(autouse=True)
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "PROBE_EPOCHS", 2)
    monkeypatch.setattr(evaluate, "TUNE_EPOCHS", 1)


def evaluated(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, dict[str, Any], str]:
    code = 0
    try:
        cli.main(["evaluate", *(str(a) for a in args), "--json"])
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, " ".join(err.split())


def test_all_of_a_run_with_every_group_its_data_allow(
    copied: Path, pictures: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)  # without a terminal, a line for each step
    a, b = copied / "a", copied / "b"
    flags = ["--all", "--judge", b, "--against", b, "--ood", f"same={pictures}", "--ood", f"twin={pictures}"]
    code, found, err = evaluated(capsys, a, *flags, "--heavy", "--subset", 30)
    assert code == 0 and found["skipped"] == {"factors": "the factors of digits are not known, only those of sprites"}
    stored = strict_json(a / "metrics.json")
    assert {"sepin@1", "precision@10", "eigenvalues_top", "monosemanticity", "identifiability_cosine"} <= stored.keys()
    assert {"ood_same", "ood_twin", "probe_z", "tune_h", "corruption_blur"} <= stored.keys()
    assert stored["corruption_accuracy"]["images"] == stored["probe_h"]["train_images"] == 30
    assert len(stored["identifiability_cosine"]["each"]) == len(stored["sepin@all"]["each"]) == 16
    assert all(e["definition"] for e in stored.values())
    assert {k: e["value"] for k, e in stored.items()} == {k: v for k, v in found.items() if k in stored}
    assert {Path(p).stem for p in found["plots"]} == plots.PLOTS.keys() - {"factors"}
    for path in found["plots"]:
        with Image.open(path) as picture:
            assert picture.width > 500
    assert err.count("measuring") >= 1 and "corruptions" in err and "left" in err

    # a part again: the rest stays
    code, part, _ = evaluated(capsys, a, "--only", "spectrum, sepin")
    assert code == 0 and part["sepin@1"] == found["sepin@1"] and "sparsity" not in part
    code, part, _ = evaluated(capsys, a, "--all", "--ood", f"third={pictures}")
    assert code == 0 and "monosemanticity" in part["skipped"] and part["ood_third"] == found["ood_same"]
    assert strict_json(a / "metrics.json").keys() == stored.keys() | {"ood_third"}
    cli.main(["compare", str(a), str(b)])
    text = capsys.readouterr().out
    assert "sepin@1" in text and "corruption blur" in text and "ood same" in text
    shown = workflow.column(a, "a").metrics  # a report prints every parameter: lists of numbers are none
    assert shown.keys() > stored.keys() and not any("each" in e for e in shown.values())


def test_stored_features_and_views_are_used_and_no_model_runs(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = evaluated(capsys, copied / "a", "--only", "basic,sepin")[1]

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("extracted again")

    monkeypatch.setattr(features, "extract", refuse)
    monkeypatch.setattr(on_images, "two_views", refuse)
    code, again, _ = evaluated(capsys, copied / "a", "--only", "basic,sepin")
    assert code == 0 and again == first


def test_features_of_another_model_are_made_again_and_old_measures_go(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = copied / "a", copied / "b"
    before = evaluated(capsys, a, "--only", "spectrum,sepin")[1]
    shutil.copy(b / "model.safetensors", a / "model.safetensors")
    code, after, err = evaluated(capsys, a, "--only", "sepin")
    assert code == 0 and "was not made by this model; making it again" in err
    assert after["sepin@1"] != before["sepin@1"] == pytest.approx(before["sepin@1"])
    assert "eigenvalues_top" not in strict_json(a / "metrics.json") and not (a / "plots" / "spectra.png").exists()
    assert after["sepin@1"] == evaluated(capsys, b, "--only", "sepin")[1]["sepin@1"]
    assert "sparsity" in evaluate.measured_of(a)  # what compare and report need is measured when they ask


def test_numbers_of_other_images_are_never_taken_for_the_runs_own(tmp_path: Path) -> None:
    rng, folder = np.random.default_rng(0), tmp_path / "run"
    for name in ("own", "other"):
        images = rng.integers(0, 255, (30, 8, 8), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(30) % 3)
    train(replace(TINY, data=data.arrays, data_root=tmp_path / "own.npz", batch_size=16), folder)
    evaluate.evaluate(folder, asked=Asked(only=("basic", "spectrum")))
    own = strict_json(folder / "metrics.json")
    evaluate.evaluate(folder, tmp_path / "other.npz")  # features of both are in the folder from now on
    evaluate.evaluate(folder, asked=Asked(only=("spectrum",)))
    assert strict_json(folder / "metrics.json") == {k: e for k, e in own.items() if e.get("group") == "spectrum"}
    other = evaluate.measured_of(folder, tmp_path / "other.npz")
    assert other.keys() == {k for k, e in own.items() if "group" not in e} and other["knn"] != own["knn"]
    assert evaluate.measured_of(folder) == {k: e for k, e in own.items() if "group" not in e}
    old = {k: {n: v for n, v in e.items() if n != "data"} for k, e in own.items()}
    files.write_json(folder / "metrics.json", old)  # as it was before entries said what they are about
    assert evaluate.measured_of(folder) == old


def test_probabilities_of_a_run_say_whether_its_loss_fixes_the_scale(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for loss, fixes in (
        (losses.spectral, True),
        (partial(losses.spectral, l1=0.1), True),
        (partial(losses.spectral, normalise=True), False),
        (partial(losses.spectral, mu=1.0), False),
        (losses.info_nce, False),
    ):
        assert evaluate.fixes_scale(replace(TINY, loss=loss)) is fixes
    for name, map in (("spectral", TINY.map), ("signed", maps.identity)):
        train(replace(TINY, loss=losses.spectral, lr=0.1, map=map), tmp_path / name)
    assert evaluate._temperature(replace(TINY, loss=partial(losses.info_nce, temperature=1))) == 1
    code, found, _ = evaluated(capsys, tmp_path / "spectral", "--only", "sepin,probabilities,clusters")
    assert code == 0 and found["no_value"]["sepin_training@1"] == "the loss of this run has no temperature"
    assert {"latent_total", "latent_calibration_error", "argmax_nmi", "spectral_accuracy"} <= found.keys()
    stored = strict_json(tmp_path / "spectral" / "metrics.json")
    assert stored["latent_total"]["scale"] == "the loss's" and stored["latent_total"]["group"] == "probabilities"
    assert {Path(path).stem for path in found["plots"]} == {"sepin", "probabilities", "clusters"}
    code, _, err = evaluated(capsys, tmp_path / "signed", "--only", "probabilities")
    assert code == 1 and "probabilities cannot be measured: features of this run are negative" in err


def evaluate_beside_another(folder: Path, group: str, both: Any) -> None:
    """In a process of its own: measure a group after both have read what was there, then count to 100 together."""
    take = evaluate._attempt

    def when_both_are_here(*args: Any) -> Any:
        both.wait(timeout=60)
        return take(*args)

    evaluate._attempt = when_both_are_here
    evaluate.evaluate(folder, asked=Asked(only=(group,)))
    both.wait(timeout=60)
    for _ in range(100):
        with files.locked(folder):
            count = folder / "count"
            count.write_text(str(int(count.read_text()) + 1))


@pytest.mark.parametrize("what", ["no locks on this file system", "no locks on this system"])
def test_where_nothing_can_be_locked_files_are_written_all_the_same(
    copied: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, what)

    if "file" in what:
        monkeypatch.setattr(fcntl, "flock", refuse)
    else:
        monkeypatch.setitem(sys.modules, "fcntl", None)
    evaluate.evaluate(copied / "a", asked=Asked(only=("spectrum",)))
    assert "eigenvalues_top" in strict_json(copied / "a" / "metrics.json")


def test_two_evaluations_at_the_same_moment_keep_each_others_entries_and_plots(copied: Path) -> None:
    a = copied / "a"
    evaluate.evaluate(a, asked=Asked(only=("sepin",)))
    (a / "count").write_text("0")
    here = multiprocessing.get_context("spawn")
    both = here.Barrier(2)
    processes = [here.Process(target=evaluate_beside_another, args=(a, g, both)) for g in ("spectrum", "retrieval")]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert {"sparsity", "sepin@1", "eigenvalues_top", "precision@10"} <= strict_json(a / "metrics.json").keys()
    assert {path.stem for path in (a / "plots").iterdir()} >= {"sepin", "spectra", "retrieval"}
    assert (a / "count").read_text() == "200"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "sepin,retreival"], "unknown group of measures 'retreival': did you mean 'retrieval'?"),
        (["--only", "sepin", "--all"], "--all is every group and --only a part"),
        (["--subset", "100"], "--subset 100 shortens the heavy measures"),
        (["--heavy", "--subset", "0"], "give 1 or more"),
        (["--only", "monosemanticity"], "monosemanticity cannot be measured: it needs another run's eyes"),
        (["--only", "identifiability"], "name others of this data with --against"),
        (["--only", "factors"], "the factors of digits are not known"),
        (["--only", "ood"], "--ood NAME=FOLDER"),
        (["--judge", "SELF"], "is the run that is measured: name another one"),
        (["--against", "OTHER", "OTHER"], "--against names a run twice"),
        (["--against", "nowhere"], "nowhere is not a run folder"),
        (["--ood", "x=nowhere"], "--ood x=nowhere: nowhere does not exist"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(
    runs: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (runs / "a" / "metrics.json").read_bytes()
    flags = [{"SELF": str(runs / "a"), "OTHER": str(runs / "b")}.get(flag, flag) for flag in flags]
    code, found, err = evaluated(capsys, runs / "a", *flags)
    assert code == 1 and not found and message in err and "unexpected" not in err
    assert (runs / "a" / "metrics.json").read_bytes() == before


def test_without_labels_the_label_free_groups_run_and_the_others_are_named(
    tmp_path: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = np.random.default_rng(0).integers(0, 255, (60, 16, 16), dtype=np.uint8)
    np.save(tmp_path / "x.npy", images)
    run = replace(TINY, data=data.arrays, data_root=tmp_path / "x.npy", batch_size=16)
    for name in ("c", "d"):
        train(replace(run, seed=ord(name)), copied / name)
    flags = ["--all", "--heavy", "--judge", copied / "d", "--against", copied / "d"]
    code, found, _ = evaluated(capsys, copied / "c", *flags)
    without = "the train and test data have no labels"
    unlabelled = ("class consistency and probes", "retrieval", "selection", "clusters", "ood", *measures.HEAVY)
    assert code == 0 and {k for k, why in found["skipped"].items() if why == without} == set(unlabelled)
    assert found["skipped"].keys() - set(unlabelled) == {"factors"}
    assert {"sepin@1", "eigenvalues_top", "monosemanticity", "identifiability_cosine"} <= found.keys()
    assert found["class_consistency"] is None and "precision@10" not in found
    none = "the training data have no labels"
    assert found["no_value"]["activation_fall"] == found["no_value"]["latent_calibration_error"] == none
    cli.main(["evaluate", str(copied / "c"), "--all"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"not measured: retrieval ({without})" in text and f"not measured: corruptions ({without})" in text
    assert "no value: sepin@100 (there are 16 features)" in text
    cli.main(["compare", str(copied / "a"), str(copied / "c")])
    rows = {
        cells[1]: cells[2:4]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [c.strip() for c in line.split("│")]) == 5
    }
    assert rows["sepin@100"] == ["-", "none"] and rows["class consistency"][1] == "-"  # not measured, undefined


def test_labels_of_the_test_images_alone_are_enough_for_what_asks_no_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    made = {
        f"{split}_images": rng.integers(0, 255, (n, 16, 16), np.uint8) for split, n in (("train", 40), ("test", 30))
    }
    np.savez(tmp_path / "x.npz", **made, test_labels=np.arange(30) % 3)
    train(replace(TINY, data=data.arrays, data_root=tmp_path / "x.npz", batch_size=16), tmp_path / "run")
    code, found, err = evaluated(capsys, tmp_path / "run", "--all")
    assert code == 0, err
    assert {"precision@10", "kmeans_nmi", "precision_bytes_16", "kept_precision", "class_consistency"} <= found.keys()
    none = "the train data have no labels"
    assert {k for k, why in found["skipped"].items() if why == none} == {"probes", "ood", *measures.HEAVY}
    none = "the training data have no labels"
    names = ("activation_fall", "latent_calibration_error", "kept_probe")
    assert [found["no_value"][name] for name in names] == [none] * 3
    assert found["linear_probe"] is None and found["active_least"] <= found["active_per_sample_median"] <= 16
    assert found["active_under_20"] == 1  # there are 16 features


def test_a_subset_says_which_images_it_cut_and_is_refused_before_anything_is_measured(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = evaluated(capsys, copied / "a", "--only", "corruptions,probe", "--subset", 30)
    assert code == 0, err
    stored = strict_json(copied / "a" / "metrics.json")
    assert stored["corruption_accuracy"]["subset"] == "30 test images"  # its probe is that of all training images
    assert stored["probe_h"]["subset"] == "30 training and 30 test images"
    code, _, err = evaluated(capsys, copied / "a", "--all", "--heavy", "--subset", 5)
    assert code == 1 and "--subset 5 is fewer images than the 10 classes" in err and "measuring" not in err
    assert "sepin@1" not in strict_json(copied / "a" / "metrics.json")
    whole = {name: {k: v for k, v in entry.items() if k != "subset"} for name, entry in stored.items()}
    (copied / "a" / "metrics.json").write_text(json.dumps(whole))
    code, text, err = evaluated(capsys, copied / "a", "--only", "corruptions", "--subset", 30)
    assert code == 1 and not text and "on all images before, which --subset would replace" in " ".join(err.split())
    assert strict_json(copied / "a" / "metrics.json") == whole


def poisoned(folder: Path, value: float) -> None:
    """The run's model with every projector output at `value`."""
    model = load(folder)
    last = model.projector[-1]
    with torch.no_grad():
        last.weight.zero_()
        last.bias.fill_(value)
    save(model, folder)


def test_all_dead_features_are_defined_or_one_sentence(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    poisoned(copied / "a", -1.0)
    code, found, err = evaluated(
        capsys, copied / "a", "--all", "--judge", copied / "b", "--against", copied / "b"
    )  # fmt: skip
    assert code == 0 and "unexpected" not in err and found["live_features"] == 0 and found["sparsity"] == 1
    assert found["sepin@all"] == 0 and found["eigenvalues_top"] is None and found["monosemanticity"] is None
    assert found["no_value"]["precision@10"] == found["no_value"]["spectral_nmi"]
    assert found["no_value"]["precision@10"] == "every feature is zero on every test sample"
    assert found["skipped"]["selection"] == found["no_value"]["precision@10"]
    assert "no feature of the run measured is live" in found["skipped"]["identifiability"]
    strict_json(copied / "a" / "metrics.json")
    code, _, err = evaluated(capsys, copied / "a", "--only", "identifiability", "--against", copied / "b")
    assert code == 1 and "identifiability cannot be measured: no feature of the run measured is live" in err
    code, _, err = evaluated(capsys, copied / "b", "--only", "identifiability", "--against", copied / "a")
    assert code == 1 and f"no feature of {copied / 'a'} is live" in err
    assert not (copied / "b" / "metrics.json").exists()  # nothing was measured


def test_what_was_measured_is_kept_when_a_later_group_fails_or_is_interrupted(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BadInput("no query has another sample of its class")

    monkeypatch.setattr(measures, "retrieval", fails)
    code, _, err = evaluated(capsys, copied / "b", "--only", "sepin,retrieval,spectrum")
    assert code == 1 and "retrieval cannot be measured: no query has another sample of its class" in err
    assert f"the other groups are in {copied / 'b' / 'metrics.json'}" in err
    assert {"sepin@1", "eigenvalues_top"} <= strict_json(copied / "b" / "metrics.json").keys()
    assert {path.stem for path in (copied / "b" / "plots").iterdir()} == {"sepin", "spectra"}

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measures, "spectrum", interrupted)
    with pytest.raises(KeyboardInterrupt):
        evaluate.evaluate(copied / "b", asked=Asked(only=("basic", "clusters", "sepin", "spectrum")))
    assert "sparsity" in strict_json(copied / "b" / "metrics.json")


def test_nan_in_features_is_one_sentence(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    poisoned(copied / "a", math.nan)
    code, _, err = evaluated(capsys, copied / "a", "--all")
    assert code == 1 and "hold NaN or infinite values in z: the model diverged" in err
    with pytest.raises(SystemExit):
        cli.main(["compare", str(copied / "b"), str(copied / "a")])
    assert f"{copied / 'a'}: the features of digits" in " ".join(capsys.readouterr().err.split())  # of two runs, which
    with pytest.raises(SystemExit):
        cli.main(["features", str(copied / "a"), "--out", str(copied / "out")])
    err = " ".join(capsys.readouterr().err.split())
    assert "hold NaN or infinite values in z" in err and not (copied / "out").exists()


def test_stored_features_that_are_not_finite_are_made_again_for_that_reason(
    copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = (copied / "a" / "features").glob("digits-test-*.npz")
    bad = features.load(path)
    bad.z.data[3] = math.nan
    bad.save(path)
    with pytest.raises(BadInput, match="hold NaN or infinite values in z"):
        features.load(path)
    code, _, err = evaluated(capsys, copied / "a", "--only", "spectrum")
    assert code == 0 and "NaN" in err and "was not made by this model" not in err
    assert np.isfinite(features.load(path).z.data).all()


def test_compare_says_what_a_number_was_measured_with(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = copied / "a", copied / "b"
    groups = "corruptions,monosemanticity,identifiability"
    evaluated(capsys, a, "--only", groups, "--heavy", "--subset", 30, "--judge", b, "--against", b)
    cli.main(["compare", str(a), str(b)])
    text = capsys.readouterr().out
    notes = {line[:3]: line[4:].strip() for line in text.splitlines() if line.startswith("[")}
    assert sorted(notes.values()) == sorted(["on 30 test images (--subset)", f"judged by {b}", f"against {b}"])
    marked = {name: next(line for line in text.splitlines() if f" {name} " in line) for name in
              ("corruption blur", "monosemanticity", "identifiability cosine")}  # fmt: skip
    wanted = ("on 30 test images (--subset)", f"judged by {b}", f"against {b}")
    assert [notes[re.search(r"\[\d\]", line)[0]] for line in marked.values()] == list(wanted)
    assert "[" not in next(line for line in text.splitlines() if "sparsity" in line)


def test_compare_says_in_what_runs_were_measured_otherwise(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [copied / "a", copied / "b"]
    for place, temperature in zip(places, (0.2, 0.5), strict=True):
        evaluate.evaluate(place)
        measured = files.read_json(place / "metrics.json")
        new = {"value": 0.1, "definition": "x", "temperature": temperature, "views": "gentle", "group": "sepin"}
        files.write_json(place / "metrics.json", {**measured, "sepin@1": new})
    cli.main(["compare", *map(str, places)])
    text = capsys.readouterr().out
    assert "[1] at temperature 0.2" in text and "[2] at temperature 0.5" in text and "views" not in text


def test_compare_says_that_runs_were_measured_on_other_images(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = copied / "a", copied / "b"
    for place in (a, b):
        evaluate.evaluate(place)
    of = {place: files.read_json(place / "metrics.json") for place in (a, b)}
    tables.compared({"a": of[a], "b": of[b]}, (), ("sparsity",))
    assert "not measured on the same images" not in capsys.readouterr().out
    others = {name: {**e, "data": {"test": "others"}} for name, e in of[b].items()}
    tables.compared({"a": of[a], "b": others}, (), ("sparsity",))
    assert "not measured on the same images" in capsys.readouterr().out


def test_runs_stand_side_by_side_as_far_as_there_is_room() -> None:
    cells = {"cl": ["99.3%", "-"], "ncl": ["98.9%", "12"], "third": ["1.0% [1]", "-"]}
    assert tables._that_fit(cells, 8 + 8 + 11) == [["cl", "ncl", "third"]]
    assert tables._that_fit(cells, 8 + 8 + 10) == [["cl", "ncl"], ["third"]]
    assert tables._that_fit(cells, 3) == [["cl"], ["ncl"], ["third"]]


def test_a_report_says_how_stable_each_feature_is(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = copied / "a", copied / "b"
    workflow.write_report([a], copied / "before.html", overwrite=False)
    assert "stable 0" not in (copied / "before.html").read_text()
    evaluated(capsys, a, "--only", "identifiability", "--against", b)
    workflow.write_report([a], copied / "after.html", overwrite=False)
    each = strict_json(a / "metrics.json")["identifiability_cosine"]["each"]
    page, live = (copied / "after.html").read_text(), [v for v in each if v is not None]
    assert all(f"stable {v:.2f}" in page for v in live[:3]) and "the matched feature of other runs" in page


def test_class_consistency_of_each_feature_is_kept_and_drawn_beside_its_looks(
    copied: Path, capsys: pytest.CaptureFixture[str], digits: dict[str, Dataset]
) -> None:
    code, found, _ = evaluated(capsys, copied / "a", "--only", "basic,monosemanticity", "--judge", copied / "b")
    test = made(copied / "a", digits)["test"]
    each = metrics.per_feature_consistency(test.z, test.labels)
    kept = strict_json(copied / "a" / "metrics.json")["class_consistency"]["each"]
    np.testing.assert_allclose([np.nan if v is None else v for v in kept], each, atol=1e-4)
    assert code == 0 and "monosemanticity_by_consistency" in {Path(p).stem for p in found["plots"]}


def test_a_judge_that_cannot_see_the_images_is_named(
    tmp_path: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "x.npz", images=np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), dtype=np.uint8))
    colour = replace(TINY, data=data.arrays, data_root=tmp_path / "x.npz", batch_size=16)
    train(colour, tmp_path / "colour")
    code, _, err = evaluated(capsys, copied / "a", "--only", "monosemanticity", "--judge", tmp_path / "colour")
    assert code == 1 and f"{tmp_path / 'colour'}: the model takes images of 3 channels; digits has 1" in err


def test_a_class_of_one_sample_is_measured_around(
    tmp_path: Path, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    labels = {"train_labels": np.r_[0, np.arange(39) % 2 + 1], "test_labels": np.r_[0, np.arange(19) % 2 + 1]}
    images = {
        f"{s}_images": rng.integers(0, 255, (n, 16, 16), dtype=np.uint8) for s, n in (("train", 40), ("test", 20))
    }
    np.savez(tmp_path / "x.npz", **images, **labels)
    train(replace(TINY, data=data.arrays, data_root=tmp_path / "x.npz", batch_size=16), copied / "one")
    code, found, _ = evaluated(capsys, copied / "one", "--all", "--heavy", "--subset", 6)
    assert code == 0 and found["skipped"].keys() == {"monosemanticity", "identifiability", "factors", "ood"}
    stored = strict_json(copied / "one" / "metrics.json")
    assert stored["precision@10"]["left_out"] == 1 and 0 <= stored["linear_probe"]["value"] <= 1
    labels = {split: np.zeros(n, np.int64) for split, n in (("train_labels", 40), ("test_labels", 20))}
    np.savez(tmp_path / "x.npz", **images, **labels)
    code, found, _ = evaluated(capsys, copied / "one", "--all", "--data-root", tmp_path / "x.npz")
    assert code == 0 and found["skipped"]["probes"] == "the training data have a single class"


def test_sprites_are_measured_by_their_factors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    latents = np.stack([np.zeros(900, int), *(rng.integers(0, n, 900) for n in FACTORS.values())], axis=1)
    latents[:, 2] = 3  # one scale only
    latents = np.unique(latents, axis=0)
    images = rng.integers(0, 2, (len(latents), 64, 64), dtype=np.uint8)
    np.savez(tmp_path / ORIGINAL, imgs=images, latents_classes=latents)
    run = replace(TINY, data=data.sprites, data_root=tmp_path, image_size=16, batch_size=32)
    train(run, tmp_path / "run")
    code, found, err = evaluated(capsys, tmp_path / "run", "--only", "factors")
    assert code == 0, err
    stored = strict_json(tmp_path / "run" / "metrics.json")
    assert stored["mig"]["left_out_as_constant"] == ["scale"]
    assert set(stored["sap"]["each"]) == FACTORS.keys() - {"scale"} and Path(found["plots"][0]).stem == "factors"
    test = embedding.embed(tmp_path / "run", run.load("test"), "test", run)
    assert stored["mig"]["value"] == metrics.mig(test.z, factors_of(test.ids)).score


def test_a_subset_is_balanced_and_the_same_each_time(runs: Path, digits: dict[str, Dataset]) -> None:
    run = rundir.read_run(runs / "a")[0]
    job = evaluate._Job(runs / "a", run, digits, {}, Asked(subset=50), {}, [])
    assert np.bincount(job.short("train").labels.numpy()).tolist() == [5] * 10
    assert job.short("train").ids == job.short("train").ids and job.short("test").ids != digits["test"].ids[:50]
    whole = evaluate._Job(runs / "a", run, digits, {}, Asked(subset=9999), {}, [])
    assert whole.short("test") is digits["test"]


def test_no_more_images_are_viewed_than_said(
    copied: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "VIEWED", 40)
    evaluated(capsys, copied / "a", "--only", "sepin")
    assert strict_json(copied / "a" / "metrics.json")["sepin@1"]["images"] == 40


def test_any_number_of_runs_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    columns = {f"run-{i:02d}": {"sparsity": i / 100, "sepin@1": i / 1000} for i in range(13)}
    tables.side_by_side(columns, ["sepin@1"])
    text = capsys.readouterr().out
    assert all(f"{i}.0%" in text and f"run-{i:02d}" in text and f"{i / 1000:.3g}" in text for i in range(13))
    assert tables.show("sepin@all", 0.00091234) == "0.000912" and tables.show("mig", 0.12345) == "0.1235"
    assert "…" not in text and max(map(len, text.splitlines())) <= 80


def test_the_table_says_what_a_value_is_to_be_read_against(capsys: pytest.CaptureFixture[str]) -> None:
    entries = {
        "kept_probe": measures.entry(0.849, "test accuracy", random=0.612),
        "identifiability_cosine_share": measures.entry(0.93, "share above 0.5", shuffled=0.0, rotated=0.04),
        "dci_informativeness": measures.entry(0.6, "accuracy", chance=0.15),
        "kept_precision": measures.entry(0.5, "precision", random=None),
    }
    tables.measured(Path("run"), entries)
    text = " ".join(re.sub("[│┃]", " ", capsys.readouterr().out).split())
    assert "as many at random: 61.2%" in text and "images shuffled: 0.0%; features rotated: 4.0%" in text
    assert "by chance 0.1500" in text and text.count("as many at random") == 1


def test_plots_are_left_out_where_nothing_was_measured() -> None:
    assert {name: draw({}, "#000000") for name, draw in plots.PLOTS.items()} == dict.fromkeys(plots.PLOTS)


def drawn(monkeypatch: pytest.MonkeyPatch, name: str, measured: dict[str, Any]) -> Figure:
    """The figure of a plot, in which no text may reach over the edge."""
    shown: list[Figure] = []
    for room in (plots, figures):
        monkeypatch.setattr(room, "png_bytes", lambda figure: shown.append(figure) or b"")
    plots.PLOTS[name](measured, "#d9702b")
    canvas = FigureCanvasAgg(shown[0])
    canvas.draw()
    for text in shown[0].findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(canvas.get_renderer())
            assert box.x0 >= 0 and box.x1 <= shown[0].bbox.x1 and box.y1 <= shown[0].bbox.y1, text.get_text()
    return shown[0]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]


def test_the_plot_of_stability_counts_all_live_features(monkeypatch: pytest.MonkeyPatch) -> None:
    each = [0.9] * 1843 + [0.0] * 205 + [None] * 7  # alike; matched at 0, or without a match; dead
    measured = {f"identifiability_cosine{null}": {"value": 0.5, "each": each} for null in ("", "_shuffled", "_rotated")}
    figure = drawn(monkeypatch, "stability", measured)
    heights = {round(bar.get_x(), 2): bar.get_height() for bar in figure.axes[0].patches if bar.get_height()}  # type: ignore[attr-defined]
    assert heights == {0.0: 205, 0.9: 1843}
    said = "2048 live features: |cosine| with the match, mean over other runs (0 in one without)"
    assert said in words(figure)


def test_the_plot_of_looks_by_classes_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = {name: {"value": 0.5, "each": [1.0] * 2048} for name in ("monosemanticity", "class_consistency")}
    measured |= {"monosemanticity_baseline": {"value": 0.0}, "chance": {"value": 0.1}}
    assert "100 %" in words(drawn(monkeypatch, "monosemanticity_by_consistency", measured))


def test_the_numbers_over_small_gaps_of_factors_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    gaps = {"shape": 0.0012, "scale": 0.005, "orientation": 0.00051, "x": 8.8e-05, "y": 0.00042}
    small = {"value": 0.0003, "each": dict.fromkeys(gaps, 0.00034)}
    figure = drawn(monkeypatch, "factors", {"mig": {"value": 0.0014, "each": gaps}, "sap": small})
    boxes = sorted((text.get_window_extent() for text in figure.axes[0].texts), key=lambda box: box.x0)
    assert len(boxes) == 10 and all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))


def test_plots_say_on_how_few_images_corruptions_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    each = {name: {"mean": 0.5, "severity": [0.5] * 5} for name in corruptions.NAMES}
    corrupted = {"value": 0.5, "clean": 0.9, "images": 20, "subset": "20 test images", "each": each}
    measured = {"corruption_accuracy": corrupted, "chance": {"value": 0.1}}
    measured |= {f"ood_{i}": {"value": 0.8, "clean": 0.9} for i in range(4)}
    assert any(
        text.startswith("test accuracy in %, 20 images") for text in words(drawn(monkeypatch, "corruptions", measured))
    )
    shifts = drawn(monkeypatch, "shifts", measured)
    assert "corruptions\non 20 images" in words(shifts)
    axes, chance = shifts.axes[0], next(t for t in shifts.findobj(Text) if t.get_text().startswith("chance"))
    bars = [patch.get_window_extent() for patch in axes.patches]
    assert chance.get_window_extent().x0 > max(bar.x1 for bar in bars)  # and not over a bar
