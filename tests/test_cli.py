"""The command line as a stranger types it: exit codes, one clear sentence, JSON on stdout and progress on stderr."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from rich.table import Table

from nonneg import cli, data, features, losses, maps, progress, tables, theory, workflow
from nonneg.multimodal import PAIR_RECIPES
from nonneg.run import CLASSIFIERS, DIGITS

SMALL = ["--backbone", "small_net:width=4", "--projector", "32", "16", "--epochs", "1", "--batch-size", "16"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(40):
        size = (int(rng.integers(20, 90)), int(rng.integers(20, 90)))
        mode = ["RGB", "L", "RGBA", "P"][i % 4]
        pixels = rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).convert(mode).save(folder / f"{i:02d}.png")
    for i in range(6):
        (folder / f"broken{i}.jpg").write_bytes(b"\xff\xd8 not a picture")
    return folder


def test_folders_are_named_by_what_sets_a_run_apart() -> None:
    ways = {
        "digits-rep_relu-s0": DIGITS,
        "digits-identity-s3": replace(DIGITS, map=maps.identity, seed=3),
        "digits-spectral-mu-10.0-rep_relu-s0": replace(DIGITS, loss=partial(losses.spectral, mu=10.0)),
        "digits-class-rep_relu-s0": replace(DIGITS, positives="class"),
    }
    assert {name: cli._Into().folder(run) for name, run in ways.items()} == {n: Path("runs") / n for n in ways}
    tuned = replace(CLASSIFIERS["digits"], pretrained=Path("runs/a"))
    assert cli._Into().folder(tuned, "classifier") == Path("runs/digits-classifier-tuned-relu-s0")
    assert cli._Into().folder(PAIR_RECIPES["digits"], "pairs") == Path("runs/digits-pairs-rep_relu-s0")
    assert cli._Into(out=Path("x")).folder(DIGITS) == Path("x")


def test_a_folder_of_unlabelled_photos_from_training_to_report(
    tmp_path: Path, photos: Path, tell: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    out = tmp_path / "run"
    code, text, err = tell("train", "folder", "--data-root", photos, "--image-size", 32, "--out", out, *SMALL, "--json")
    assert code == 0 and json.loads(text)["epoch"] == 1
    assert "broken" in (out / "log.jsonl").read_text() and "inputs skipped" in err
    code, text, err = tell("evaluate", out, "--json")
    values = json.loads(text)
    assert code == 0 and values["sparsity"] > 0 and values["linear_probe"] is None  # the key is there, the value not
    assert "measuring" in err
    skipped = {split: len(data.folder(split=split, root=photos, image_size=32).skipped) for split in ("train", "test")}
    assert min(skipped.values()) > 0
    for n in skipped.values():  # each time: what is not there cannot be seen in the numbers
        assert f"folder: {n} inputs skipped beside" in " ".join(err.split())
    assert json.loads((out / "metrics.json").read_text())["sparsity"]["threshold"] == 1e-5
    code, text, _ = tell("features", out, "--json")
    assert code == 0 and all(Path(p).exists() for p in json.loads(text).values())
    code, text, _ = tell("report", out)
    page = (out / "report.html").read_text()
    assert code == 0 and all(f"broken{i}.jpg" in page for i in range(6))
    code, _, err = tell("report", out)
    assert code == 1 and "already exists; add --overwrite" in err
    code, _, err = tell("train", "folder", "--data-root", photos, "--strict", "--out", tmp_path / "b", *SMALL)
    assert code == 1 and "broken" in err and not (tmp_path / "b").exists()


def test_labelled_runs_are_compared_side_by_side(tmp_path: Path, tell: Callable) -> None:
    folders = []
    for map in ("identity", "relu"):
        folders.append(tmp_path / map)
        assert tell("train", "digits", "--map", map, "--out", folders[-1], *SMALL)[0] == 0
    code, text, _ = tell("compare", *folders, "--json")
    values = json.loads(text)
    assert code == 0 and list(values) == [str(f) for f in folders]
    code, text, _ = tell("compare", *folders, "--out", tmp_path / "both.html")
    assert code == 0 and f"written: {tmp_path / 'both.html'}" in text and (tmp_path / "both.html").exists()
    for key in workflow.HEADLINE:
        assert key in values[str(folders[0])], key
    assert values[str(folders[0])]["sparsity"] < 0.01 < values[str(folders[1])]["sparsity"]
    assert all(
        0 <= values[str(f)][k] <= 1 for f in folders for k in ("sparsity", "class_consistency", "linear_probe", "knn")
    )
    code, text, _ = tell("evaluate", folders[1])
    assert code == 0 and "class_consistency" in text
    code, _, err = tell("compare", folders[0])
    assert code == 1 and "two run folders or more" in err


def test_features_of_another_data_set(tmp_path: Path, photos: Path, tell: Callable) -> None:
    out = tmp_path / "run"
    assert tell("train", "folder", "--data-root", photos, "--image-size", 16, "--out", out, *SMALL)[0] == 0
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (10, 16, 16, 3), dtype=np.uint8))
    args = ["features", out, "--data", "arrays", "--data-root", tmp_path / "x.npy", "--out", tmp_path / "f", "--json"]
    code, text, _ = tell(*args)
    assert code == 0 and json.loads(text) == {s: str(tmp_path / "f" / f"arrays-{s}.npz") for s in ("train", "test")}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian", "digits"], "unknown verb 'trian': did you mean 'train'?"),
        (["train", "digit"], "unknown data set 'digit': did you mean 'digits'?"),
        (["train", "--epochs", "3"], "name a data set first"),
        (["train", "digits", "--batch-size", "9999"], "--batch-size 9999 is larger than the 1347 images of digits"),
        (["train", "folder", "--data-root", "nowhere"], "nowhere"),
        (["train", "folder"], "--data-root"),
        (["evaluate", "nowhere"], "nowhere is not a run folder"),
        (["report", "nowhere"], "nowhere is not a run folder"),
        (["reproduce", "cifar"], "unknown experiment 'cifar': did you mean 'cifar10'?"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = tell(*args)
    assert code == 1 and message in err and "Traceback" not in err and out == ""
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "digits", "--map", "rep_rel"], "unknown map 'rep_rel': did you mean 'rep_relu'?"),
        (["train", "digits", "--epochs", "0"], "nonneg: --epochs is 0; it must be at least 1"),
        (["train", "digits", "--epochs", "x"], "--epochs: invalid literal for int()"),
        (["train", "digits", "--epoch", "3"], "--epoch, 3; did you mean --epochs?"),
        (["evaluate"], "Missing from nonneg evaluate: RUN The run folder."),
    ],
)
def test_a_wrong_flag_is_one_sentence_too(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = 0
    try:
        cli.main(args)
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 1 and message in err and len(err.splitlines()) == 1 and "│" not in err


def test_a_package_that_is_not_there_harms_nothing(
    tmp_path: Path, tell: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    assert tell("train", "digits", "--out", out, *SMALL)[0] == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, err = tell("train", "digits", "--out", out, *SMALL, "--overwrite", "--tensorboard")
    assert code == 1 and "--tensorboard needs the tensorboard package" in err
    assert {path: path.read_bytes() for path in out.iterdir()} == before


@pytest.mark.parametrize(
    "words",
    [
        ["train", "digits", "--strict", "--tensorboard"],
        ["train-classifier", "digits", "--validation"],
        ["train-pairs", "digits", "--no-learn-temperature"],
    ],
)
def test_a_command_with_a_switch_is_taken_up_by_the_same_words(
    tmp_path: Path, tell: Callable, words: list[str]
) -> None:
    words += ["--backbone", "small_net:width=2", "--projector", 8, 4, "--epochs", 1, "--out", tmp_path / "run"]
    assert tell(*words)[0] == 0
    code, _, err = tell(*words, "--resume")
    assert code == 0, err


def test_a_flag_that_cannot_be_met_harms_nothing(tmp_path: Path, tell: Callable) -> None:
    out = tmp_path / "run"
    assert tell("train", "digits", "--out", out, *SMALL)[0] == 0
    before = (out / "model.safetensors").read_bytes()
    losses = ("info_nce:temperature=0", "supcon:temperature=0", "spectral:l1=-1")
    seconds = [["--checkpoint-seconds", value] for value in ("inf", "nan", "-1")]
    flags = [["--device", "tpu"], ["--backbone", "small_net:width=0"], ["--optimizer", "sgd:momentum=-1"], *seconds]
    for wrong in (*flags, *(["--loss", loss] for loss in losses)):
        assert tell("train", "digits", "--out", out, *SMALL, "--overwrite", *wrong)[0] == 1
        assert (out / "model.safetensors").read_bytes() == before
        assert tell("train", "digits", "--out", tmp_path / "new", *SMALL, *wrong)[0] == 1
        assert not (tmp_path / "new").exists()
    assert tell("train-pairs", "digits", "--out", tmp_path / "new", *SMALL, "--loss", "spectral:l1=-1")[0] == 1
    assert not (tmp_path / "new").exists()
    assert tell("train", "digits", "--out", out, "--resume", "--overwrite")[0] == 1


@pytest.mark.parametrize(
    ("flags", "optimizer", "lr"),
    [
        (["--loss", "spectral"], "adamw", 0.003),
        (["--loss", "spectral:l1=0.01,normalise=true", "--lr", "0.01"], "adamw", 0.01),
        (["--loss", "spectral", "--optimizer", "adamw"], "adamw", 0.003),
        (["--loss", "spectral", "--optimizer", "lars"], "lars", 2.0),
        (["--loss", "spectral", "--optimizer", "sgd", "--lr", "0.05"], "sgd", 0.05),
        (["--loss", "info_nce"], "lars", 2.0),
    ],
)
def test_the_spectral_loss_takes_its_own_optimiser_unless_one_is_named(
    tmp_path: Path, tell: Callable, flags: list[str], optimizer: str, lr: float
) -> None:
    code, _, err = tell("train", "digits", "--out", tmp_path / "run", *SMALL, "--batch-size", 512, *flags)
    about = json.loads((tmp_path / "run" / "run.json").read_text())["run"]
    assert code == 0 and (about["optimizer"], about["lr"]) == (optimizer, lr)
    assert (f"is trained by adamw at lr {lr}; --optimizer" in err) == (optimizer == "adamw")
    code, _, err = tell("train", "digits", "--out", tmp_path / "run", "--resume", "--epochs", "1")
    assert code == 0 and "is trained by" not in err  # run.json knows


def test_a_run_that_ends_without_a_live_feature_says_so(tmp_path: Path, tell: Callable) -> None:
    dies = ["--loss", "spectral:l1=100", "--lr", "0.1", "--map", "relu", "--warmup-epochs", "0", "--epochs", "4"]
    code, _, err = tell("train", "digits", "--out", tmp_path / "run", *SMALL, "--batch-size", "128", *dies)
    assert code == 0 and "after epoch 4 of 4 no feature is live" in err and err.count("no feature is live") == 2
    assert json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])["alive"] == 0
    code, _, err = tell("train", "digits", "--out", tmp_path / "alive", *SMALL)
    assert code == 0 and "no feature is live" not in err


def test_a_truncated_model_is_named_and_the_checkpoint_offered(tmp_path: Path, tell: Callable) -> None:
    out = tmp_path / "run"
    assert tell("train", "digits", "--out", out, *SMALL)[0] == 0
    path = out / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    code, _, err = tell("evaluate", out)
    assert code == 1 and f"nonneg train digits --out {out} --resume" in err and "model.safetensors is damaged" in err
    assert tell("train", "digits", "--out", out, "--resume")[0] == 0
    assert path.read_bytes() == whole


def test_a_damaged_cache_is_made_again_and_new_images_are_measured_again(
    tmp_path: Path, photos: Path, tell: Callable
) -> None:
    out = tmp_path / "run"
    assert tell("train", "folder", "--data-root", photos, "--image-size", 16, "--out", out, *SMALL)[0] == 0
    first = json.loads(tell("evaluate", out, "--json")[1])
    for path in (out / "features").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:100])
    assert json.loads(tell("evaluate", out, "--json")[1]) == first
    for i in range(30):
        Image.fromarray(np.full((20, 20, 3), 8 * i, np.uint8)).save(photos / f"new{i}.png")
    code, text, _ = tell("compare", out, out, "--json")
    assert code == 0 and json.loads(text)[str(out)]["effective_rank"] != first["effective_rank"]


def test_another_data_set_is_embedded_at_the_size_and_with_the_channels_of_the_model(
    tmp_path: Path, photos: Path, tell: Callable
) -> None:
    out = tmp_path / "run"
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), dtype=np.uint8))
    assert tell("train", "arrays", "--data-root", tmp_path / "x.npy", "--out", out, *SMALL)[0] == 0
    args = ("features", out, "--data", "folder", "--data-root", photos, "--json")
    code, text, _ = tell(*args)
    whole = features.load(Path(json.loads(text)["test"])).h
    code, text, _ = tell(*args, "--image-size", 16)
    assert np.array_equal(features.load(Path(json.loads(text)["test"])).h, whole)
    code, _, err = tell("features", out, "--data", "digits")
    assert code == 1 and "images of 3 channels; digits has 1" in err
    code, _, err = tell("features", out, "--data", "folde")
    assert code == 1 and "did you mean 'folder'?" in err


def test_test_images_of_a_class_that_training_lacks_are_told(tmp_path: Path, tell: Callable) -> None:
    for place, count in (("train/dog", 16), ("train/cat", 16), ("test/dog", 4), ("test/Cat", 3)):
        (tmp_path / "pets" / place).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (9 * i, 5, len(place))).save(tmp_path / "pets" / place / f"{i}.png")
    out = tmp_path / "run"
    assert tell("train", "folder", "--data-root", tmp_path / "pets", "--image-size", 8, "--out", out, *SMALL)[0] == 0
    code, _, err = tell("evaluate", out)
    assert code == 0 and "3 of 7 test images are of a class without training images, first 'Cat'" in err


def test_resuming_under_another_data_set_is_refused(tmp_path: Path, tell: Callable) -> None:
    out = tmp_path / "my run"
    code, text, _ = tell("train", "digits", "--out", out, *SMALL)
    assert code == 0 and text.endswith(f"with: nonneg evaluate '{out}'\n")  # as it has to be typed
    code, _, err = tell("train", "cifar10", "--out", out, "--resume")
    assert code == 1 and f"was begun on digits, not cifar10: nonneg train digits --out '{out}' --resume" in err


def test_a_run_of_a_gpu_machine_is_evaluated_where_there_is_none_and_where_its_data_went(
    tmp_path: Path, photos: Path, tell: Callable
) -> None:
    out = tmp_path / "run"
    assert tell("train", "folder", "--data-root", photos, "--image-size", 16, "--out", out, *SMALL)[0] == 0
    about = json.loads((out / "run.json").read_text())
    about["run"]["device"] = "cuda"
    (out / "run.json").write_text(json.dumps(about))
    moved = photos.rename(tmp_path / "moved")
    code, _, err = tell("evaluate", out)
    assert code == 1 and "photos does not exist; pass --data-root" in err
    assert tell("evaluate", out, "--data-root", moved)[0] == 0
    assert tell("report", out, "--data-root", moved)[0] == 0


@pytest.mark.parametrize("place", ["run.json", "metrics.json"])
def test_a_damaged_file_is_named(tmp_path: Path, place: str, tell: Callable) -> None:
    out = tmp_path / "run"
    assert tell("train", "digits", "--out", out, *SMALL)[0] == 0
    assert tell("evaluate", out)[0] == 0
    (out / place).write_text('{"x": 1}')
    code, _, err = tell("report", out)
    assert code == 1 and f"{place} is damaged" in err and "unexpected" not in err


@pytest.mark.parametrize("place", ["/proc/x", "/etc/hostname/x"])
def test_a_place_where_nothing_can_be_written_is_one_sentence(place: str, tell: Callable) -> None:
    code, _, err = tell("train", "digits", "--out", place, *SMALL)
    assert code == 1 and "cannot write" in err and "unexpected" not in err


def test_a_run_json_that_names_foreign_code_is_refused(tmp_path: Path, tell: Callable) -> None:
    out = tmp_path / "run"
    assert tell("train", "digits", "--out", out, *SMALL)[0] == 0
    about = json.loads((out / "run.json").read_text())
    about["run"]["backbone"] = "os.system:cmd=true"
    (out / "run.json").write_text(json.dumps(about))
    code, _, err = tell("evaluate", out)
    assert code == 1 and "unknown backbone 'os.system'" in err


@pytest.mark.parametrize("verb", ["train", "demo", "evaluate", "features", "compare", "report", "reproduce", "select"])
def test_help_has_examples(verb: str, tell: Callable) -> None:
    code, out, _ = tell(verb, "--help")
    assert code == 0 and f"nonneg {verb}" in out and "Examples" in out


def test_every_field_of_run_is_a_flag(tell: Callable) -> None:
    from dataclasses import fields

    from nonneg.run import Run

    _, out, _ = tell("train", "cifar10", "--help")
    for f in fields(Run):
        assert f.name == "data" or f"--{f.name.replace('_', '-')}" in out


def test_the_installed_command_prints_help_and_version() -> None:
    for flag in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-m", "nonneg", flag], capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout


def test_too_little_memory_outside_training_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tell: Callable) -> None:
    def short(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has ...")

    monkeypatch.setattr(workflow, "demo", short)
    code, out, err = tell("demo")
    assert (code, out) == (1, "") and "unexpected" not in err
    assert err.startswith("nonneg: too little GPU memory: the run needs 1.50 GiB") and "end what else uses" in err


def test_debug_shows_the_traceback(tell: Callable) -> None:
    code, _, err = tell("evaluate", "nowhere", "--debug")
    assert code == 1 and "Traceback" in err


def test_the_committed_results_are_printed_without_a_gpu(tell: Callable) -> None:
    results = Path(__file__).parent.parent / "experiments" / "results"
    code, text, _ = tell("reproduce", "cifar10", "--report-only", "--json", "--results", results)
    rows = json.loads(text)
    assert code == 0 and all(set(r) == {"measure", "method", "paper", "ours", "std", "seeds"} for r in rows)
    probe = next(r for r in rows if r["measure"] == "linear probe" and r["method"] == "NCL")
    assert probe["paper"] == 87.8 and probe["seeds"] >= 1 and abs(probe["ours"] - 87.8) < 1.0
    flags = ["--report-only", "--epochs", "2", "--batch-size", "64", "--results", results]
    assert "cifar10-2epochs-batch64" in tell("reproduce", "cifar10", *flags)[1]  # the title


def test_theory_prints_rows_writes_a_page_and_refuses_impossible_worlds(
    tmp_path: Path, tell: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [theory.Row("theorem", "claim", "1 < 2", True), theory.Row("theorem", "another", "2 < 1", False)]
    monkeypatch.setattr(
        theory, "study", lambda world, seed: theory.Study(world, seed, rows)
    )  # test_theory has it whole
    flags, page = ["--world", "classes=3,overlap=0.1", "--out", str(tmp_path / "page.html")], tmp_path / "page.html"
    code, text, _ = tell("theory", *flags, "--json")
    assert code == 0 and json.loads(text) == [asdict(row) for row in rows]
    assert page.read_text().startswith("<!doctype html>") and "1 of 2 come out as claimed" in page.read_text()
    code, _, err = tell("theory", *flags)
    assert code == 1 and "page.html already exists; add --overwrite" in err
    code, text, _ = tell("theory", *flags, "--overwrite")
    assert code == 0 and "NO" in text and "1 of 2 hold" in text
    code, _, err = tell("theory", "--world", "overlap=3", "--out", str(tmp_path / "none.html"))
    assert code == 1 and "an overlap of 3.0 is impossible" in err
    (tmp_path / "w.json").write_text('{"prior": [0.5, 0.6], "conditional": [[1], [1]], "labels": [0, 1]}')
    for world, says in (
        ("", "the world is empty"),
        (tmp_path / "w.json", "P(c) sums to 1.1, not to 1"),
        ("k=0", "k is 0"),
    ):
        code, _, err = tell("theory", "--world", world, "--out", str(tmp_path / "none.html"))
        assert code == 1 and says in err and not (tmp_path / "none.html").exists()


def test_a_name_in_brackets_is_shown_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    named = "x [red] :cat: [/y]"  # to rich: a colour, a picture, and an error
    table = Table("feature", f"for {named}", title=f"image {named}")
    table.add_row("1", named)
    tables.screen.print(table, width=100)
    tables.screen.print(f"drawn: {named}", soft_wrap=True)
    assert capsys.readouterr().out.count(named) == 4
