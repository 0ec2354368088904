"""Training on pairs: the step is the equation, it learns, repeats, survives a stop; and what the verbs make of it."""

import csv
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_array

from nonneg import (
    augment,
    backbones,
    cli,
    encoder,
    files,
    losses,
    maps,
    multimodal,
    optim,
    pairs,
    reproduce,
    rundir,
    tables,
)
from nonneg.data import Dataset
from nonneg.errors import BadInput
from nonneg.features import Features
from nonneg.figures import Column
from nonneg.loop import Rows
from nonneg.multimodal import PAIR_RECIPES, PairRun, report, texts, verbs
from nonneg.multimodal.measure import PairFeatures
from nonneg.multimodal.train import begin, fresh, train_pairs
from nonneg.pairs import Pairs, paired
from nonneg.pairs import captions as captions_file
from nonneg.report import View
from nonneg.run import from_json
from nonneg.steps import LOSS
from nonneg.steps import paired as paired_step

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TINY = replace(
    PAIR_RECIPES["digits"],
    backbone=partial(backbones.small_net, width=4),
    projector=(32, 16),
    text=partial(texts.bag, width=16),
    batch_size=128,
    epochs=2,
    checkpoint_seconds=0.0,
    device="cpu",  # the reference; a GPU has tests of its own
)


@pytest.fixture(scope="module")
def digits() -> Pairs:
    return pairs.digits(split="train")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, digits: Pairs) -> Path:
    """A run of some epochs, long enough to have learned the digits' names."""
    folder = tmp_path_factory.mktemp("pairs") / "run"
    wider = partial(backbones.small_net, width=8)
    train_pairs(replace(TINY, epochs=8, lr=1e-2, backbone=wider, checkpoint_seconds=60), folder, data=digits)
    return folder


def made(run: PairRun, data: Pairs) -> tuple[Any, torch.Tensor, Any]:
    """A state, all texts as rows, and the step."""
    model = fresh(run, data)
    rows, _ = model.text.read(data.captions)
    state = begin(run, model, Rows(data.images, {"first": data.first, "counts": data.counts}))
    rows = rows.to(run.torch_device())
    return state, rows, paired_step(run, run.loss, rows, state, len(data) // run.batch_size)


def same_model(a: Path, b: Path) -> bool:
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in ("model.safetensors", "text.safetensors"))


# The step


@pytest.mark.parametrize("map", [maps.identity, maps.rep_relu])
@pytest.mark.parametrize("loss", [losses.clip, losses.spectral])
def test_a_step_is_the_equation(digits: Pairs, map, loss) -> None:
    """One step of plain gradient descent, by hand: the same views, the same captions, the same update."""
    run = replace(TINY, map=map, loss=loss, optimizer=partial(optim.sgd, momentum=0.0), lr=0.1, warmup_epochs=0)
    s, _, step = made(run, digits)
    hand, rows, _ = made(run, digits)
    step()
    noise = torch.rand(128, augment.NOISE, generator=hand.generator)
    drawn = torch.rand(128, generator=hand.generator)
    counts, first = digits.counts[:128], digits.first[:128]
    which = [int(first[i]) + int(drawn[i] * int(counts[i])) for i in range(128)]
    x = digits.images.images[:128]
    z1 = hand.model.image(run.augment(x, noise))  # pyright: ignore[reportArgumentType]
    z2 = hand.model.text(rows[which])
    learned = {} if loss is losses.spectral else {"temperature": torch.exp(-hand.model.log_scale)}
    value = loss(z1, z2, **learned)
    parameters = dict(hand.model.named_parameters())
    gradients = torch.autograd.grad(value, list(parameters.values()))
    for (name, p), g in zip(parameters.items(), gradients, strict=True):
        decay = 0.0 if name == "log_scale" else run.weight_decay
        p.data -= 0.05 * (g + decay * p)  # 0.1 for a batch of 256 is 0.05 for 128
    assert ("log_scale" in parameters) == (loss is losses.clip)
    for name, p in s.model.named_parameters():
        torch.testing.assert_close(p, parameters[name], rtol=1e-4, atol=1e-6)
    assert s.totals[LOSS].item() == pytest.approx(value.item(), rel=1e-5)


@pytest.mark.parametrize("loss", [losses.clip, losses.spectral])
@pytest.mark.parametrize("text", [texts.bag, texts.transformer])
def test_a_step_never_waits_for_the_device(digits: Pairs, loss, text, no_waiting: Callable) -> None:
    s, _, step = made(replace(TINY, loss=loss, text=partial(text, width=16)), digits)
    with no_waiting():
        step()
        step()
    assert s.step == 2


def test_each_image_is_paired_with_its_own_captions_each_as_often() -> None:
    """Images 0 to 7 with 1 to 8 captions: over many steps each image meets each of its own alike, and no other."""
    n = 8
    images = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, 8, 8).contiguous() * 10
    said = [[f"{i} {j}" for j in range(i + 1)] for i in range(n)]
    data = paired(Dataset("toy", images, None, None, [str(i) for i in range(n)]), said)
    met: list[tuple[int, str]] = []

    class Spy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1))
            self.log_scale = None

        def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            numbers = (x[:, 0, 0, 0] * 25.5).round().long().tolist()
            met.extend(zip(numbers, (data.captions[r] for r in rows.flatten().tolist()), strict=True))
            return self.w * x.flatten(1), self.w * x.flatten(1)

        def keep_in_bounds(self) -> None: ...

        def groups(self) -> list[dict[str, Any]]:
            return [{"params": [self.w]}]

    run = replace(TINY, augment=augment.none, batch_size=n, optimizer=optim.sgd, lr=1e-9)
    spy: Any = Spy()
    spy.dim = 64
    s = begin(run, spy, Rows(data.images, {"first": data.first, "counts": data.counts}))
    step = paired_step(run, losses.spectral, torch.arange(len(data.captions)).view(-1, 1), s, 1)
    for _ in range(600):
        step()
    assert all(text.split()[0] == str(number) for number, text in met)
    for i in range(n):
        seen = [text for number, text in met if number == i]
        assert len(seen) == 600 and set(seen) == set(said[i])
        assert min(map(seen.count, said[i])) > 0.5 * 600 / (i + 1)


def test_a_temperature_is_learned_unless_it_is_not_wanted(digits: Pairs) -> None:
    assert fresh(TINY, digits).temperature().item() == pytest.approx(0.07)
    given = fresh(replace(TINY, loss=partial(losses.clip, temperature=0.2)), digits)
    assert given.temperature().item() == pytest.approx(0.2)
    for run in (replace(TINY, learn_temperature=False), replace(TINY, loss=losses.spectral)):
        assert fresh(run, digits).log_scale is None
    assert fresh(replace(TINY, loss=losses.info_nce), digits).log_scale is None  # its temperature is a number


def test_the_temperature_stays_in_its_bounds(digits: Pairs) -> None:
    for outside, bound in ((5.0, 0.01), (-1.0, 1.0)):
        s, _, step = made(replace(TINY, lr=1e-9, warmup_epochs=0), digits)
        s.model.log_scale.data.fill_(outside)  # farther than one update could bring it back
        step()
        assert s.model.temperature().item() == pytest.approx(bound, abs=1e-6)


# Training


def test_it_learns_names_and_logs_what_it_learns(trained: Path, digits: Pairs) -> None:
    found = multimodal.measure(multimodal.extract(multimodal.load(trained), pairs.digits(split="test")))
    assert found["image_to_text@1"]["value"] > 0.5 and found["image_to_text@1"]["chance"] == pytest.approx(0.1)
    assert found["text_to_image@1"]["value"] > 0.6 and found["sparsity_images"]["value"] > 0.1
    log = rundir.read_log(trained)
    assert len(log) == 8 and log[-1]["loss"] < log[0]["loss"] and log[-1]["temperature"] != log[0]["temperature"]
    about = files.read_json(trained / "run.json")
    assert about["kind"] == "pairs" and about["data"]["captions"] == 5388 and about["data"]["texts"] == 40
    assert about["data"]["fingerprint"] == digits.fingerprint()
    assert encoder.load(trained).dim == 16  # an ordinary encoder of images


def test_a_run_is_a_function_of_its_seed_and_resumes_exactly(tmp_path: Path, digits: Pairs) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    model = train_pairs(TINY, whole, data=digits)
    assert "temperature" in rundir.read_log(whole)[-1]
    calls = [0]

    def stopping(images: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        if calls[0] == 14:
            raise KeyboardInterrupt
        return TINY.augment(images, noise)

    with pytest.raises(KeyboardInterrupt):
        train_pairs(replace(TINY, augment=stopping), cut, data=digits)
    about = files.read_json(cut / "run.json")
    files.write_json(cut / "run.json", {**about, "run": TINY.to_json()})  # as if it were the same function
    assert rundir.checkpoint_step(cut) == 13
    train_pairs(TINY, cut, data=digits, resume=True)
    assert same_model(whole, cut)
    loaded = multimodal.load(whole)
    assert all(a.equal(b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True))


def test_other_captions_are_not_resumed(tmp_path: Path, digits: Pairs) -> None:
    train_pairs(replace(TINY, epochs=1), tmp_path / "a", data=digits)
    other = Pairs(digits.images, [text.replace("three", "drei") for text in digits.captions], digits.counts)
    with pytest.raises(BadInput, match="begun on other images or captions"):
        train_pairs(replace(TINY, epochs=1), tmp_path / "a", data=other, resume=True)
    with pytest.raises(BadInput, match="already exists"):
        train_pairs(replace(TINY, epochs=1), tmp_path / "a", data=digits)


def test_captions_that_are_too_long_are_cut_counted_and_said(
    tmp_path: Path, digits: Pairs, capsys: pytest.CaptureFixture[str]
) -> None:
    few = digits.subset(torch.arange(128))
    long = Pairs(few.images, ["one two three four " * 9, *few.captions[1:]], few.counts)
    train_pairs(replace(TINY, epochs=1), tmp_path / "a", data=long)
    assert "1 of 512 captions are longer than the text encoder reads" in " ".join(capsys.readouterr().err.split())
    assert files.read_json(tmp_path / "a" / "run.json")["data"]["cut"] == 1


@pytest.mark.parametrize("make", [texts.transformer, texts.vectors])
def test_other_ways_to_read_text_train_too(tmp_path: Path, digits: Pairs, make) -> None:
    few = digits.subset(torch.arange(256))
    text = partial(make, width=16)
    if make is texts.vectors:
        said = list(dict.fromkeys(few.captions))
        with (tmp_path / "c.csv").open("w", newline="") as f:
            csv.writer(f).writerows([("id", "caption"), *((str(i), t) for i, t in enumerate(said))])
        np.save(tmp_path / "e.npy", np.random.default_rng(0).normal(size=(len(said), 12)))
        text = partial(make, path=str(tmp_path / "e.npy"), of=str(tmp_path / "c.csv"))
    train_pairs(replace(TINY, epochs=1, text=text), tmp_path / "run", data=few)
    run, _ = rundir.read_run(tmp_path / "run", PairRun)
    assert run.to_json() == replace(TINY, epochs=1, text=text).to_json()
    found = multimodal.extract(multimodal.load(tmp_path / "run"), few)
    assert found.texts.z.shape == (40, 16) and found.pairs.shape == (1024, 2)  # pyright: ignore


class Letters(torch.nn.Module):
    """A text encoder of one's own: how often each letter occurs."""

    dim = 26

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(26))

    def read(self, said: Sequence[str]) -> tuple[torch.Tensor, int]:
        return torch.tensor([[text.count(chr(97 + i)) for i in range(26)] for text in said]).float(), 0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows * self.scale


def square(z: torch.Tensor) -> torch.Tensor:
    return z * z


def test_parts_of_ones_own_are_trained_saved_and_passed_in_to_load(tmp_path: Path, digits: Pairs) -> None:
    few, out = digits.subset(torch.arange(128)), tmp_path / "run"
    net = lambda channels: backbones.small_net(channels, width=3)  # noqa: E731 (not one of nonneg's)
    run = replace(TINY, epochs=1, text=lambda _: Letters(), map=square, backbone=net)
    model = train_pairs(run, out, data=few)
    wanted = multimodal.extract(model, few)
    given: dict[str, Any] = {"text": Letters(), "map": square, "backbone": net}
    found = multimodal.extract(multimodal.load(out, **given), few)
    assert np.array_equal(found.images.z.toarray(), wanted.images.z.toarray())
    assert np.array_equal(found.texts.z.toarray(), wanted.texts.z.toarray())
    for part, called in (("text", "text encoder"), ("map", "map"), ("backbone", "backbone")):
        with pytest.raises(BadInput, match=rf"the {called} is not one of nonneg's, so pass it: load\(folder, {part}="):
            multimodal.load(out, **{k: v for k, v in given.items() if k != part})
    with pytest.raises(BadInput, match=r"the text encoder Linear needs \.dim, an integer, and \.read"):
        train_pairs(replace(run, text=lambda _: torch.nn.Linear(2, 2)), tmp_path / "none", data=few)
    assert not (tmp_path / "none").exists()


def test_a_run_is_the_same_after_json() -> None:
    run = replace(TINY, captions=Path("/c.csv"), text=partial(texts.transformer, layers=1), loss=losses.spectral)
    again = from_json(json.loads(json.dumps(run.to_json())), Path("run.json"), PairRun)
    assert again.to_json() == run.to_json() and again.captions == Path("/c.csv")
    with pytest.raises(BadInput, match="did you mean 'bag'"):
        from_json({**run.to_json(), "text": "bagg"}, Path("run.json"), PairRun)


@gpu
@pytest.mark.parametrize("text", [texts.bag, texts.transformer])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_mode_gives_the_same_losses(digits: Pairs, text, precision: Literal["fp32", "bf16"]) -> None:
    run = replace(TINY, device="cuda", precision=precision, text=text, epochs=20, warmup_epochs=0)
    found = {}
    for mode in ("eager", "compiled", "captured", "graph"):
        s, _, step = made(replace(run, mode=mode), digits)
        for _ in range(20):
            step()
        found[mode] = s.totals[LOSS].item() / 20
    assert all(value == pytest.approx(found["eager"], abs=0.03) for value in found.values()), found


# The verbs


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty pictures of one colour, their captions beside them, and some things that do not fit."""
    root = tmp_path_factory.mktemp("photos")
    names = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250), "white": (250, 250, 250)}
    rows = [("file_name", "caption")]
    rng = np.random.default_rng(0)
    for i in range(40):
        name, colour = list(names.items())[i % 4]
        pixels = np.clip(np.array(colour) + rng.integers(-20, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(root / f"{i:02}.png")
        rows += [(f"{i:02}.png", f"a {name} square"), (f"{i:02}", f"something {name}")]
    rows += [("99.png", "a ghost"), ("00.png", "")]
    with (root / "captions.csv").open("w", newline="") as f:
        csv.writer(f).writerows(rows[:-4] + rows[-2:])  # the last image has no caption
    return root


def said(capsys: pytest.CaptureFixture[str]) -> str:
    got = capsys.readouterr()
    return re.sub(r"\s+", " ", got.out + got.err)


FLAGS = ["--backbone", "small_net:width=4", "--projector", "16", "8", "--image-size", "16", "--batch-size", "16"]


def test_from_a_folder_to_a_report(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = ["--data-root", str(photos), "--captions", str(photos / "captions.csv")]
    cli.main(["train-pairs", "folder", *where, *FLAGS, "--epochs", "2", "--text", "bag:width=8", "--json"])
    out = said(capsys)
    assert "1 x no image of that id" in out and "1 x empty caption" in out and "1 x no caption (first: 39.png)" in out
    run = Path("runs/folder-pairs-rep_relu-s0")
    skipped = "\n".join(rundir.read_skipped(run))
    assert "no image of that id" in skipped and "39.png: no caption" in skipped
    cli.main(["evaluate", str(run), "--json"])
    got = json.loads(capsys.readouterr().out)
    assert 0 <= got["text_to_image@1"] <= 1 and got["features"] == 8 and got["texts_cut"] == 0
    entries = files.read_json(run / "metrics.json")
    assert all(e["definition"] for e in entries.values()) and len(entries["modality_balance"]["each"]) == 8
    cli.main(["report", str(run)])
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.count('class="words"') >= 1 and 'class="balance"' in page and "Asked in words" in page
    texts = re.findall(r'<p class="text"><b title="([^"]+)">', page)
    assert 1 <= len(texts) <= 8 and ".strip .text { white-space: normal; }" in page  # to be read whole, not cut
    assert "square" in page and "no image of that id" in page and 'src="http' not in page
    capsys.readouterr()
    cli.main(["features", str(run), "--json"])
    written = json.loads(capsys.readouterr().out)
    assert all(Path(path).exists() for paths in written.values() for path in paths) and len(written["test"]) == 3
    cli.main(["features", str(run), "--out", "f"])
    with np.load("f/folder-test-texts.npz", allow_pickle=False) as f:
        assert set(f["ids"].tolist()) <= {
            f"{a}{c}{b}" for a, b in (("a ", " square"), ("something ", "")) for c in COLOURS
        }
    assert np.load("f/folder-test-pairs.npy").shape[1] == 2
    capsys.readouterr()
    cli.main(["train-pairs", "folder", "--out", str(run), "--resume", "--json"])
    assert json.loads(capsys.readouterr().out)["epoch"] == 2  # flags left out are those it was begun with
    rundir.claim({}, run)
    assert not list((run / "features").iterdir())  # nothing of an earlier run is left for the next


COLOURS = ("red", "green", "blue", "white")


def named(path: Path, spell: Callable[[int, str], str]) -> Path:
    """A captions file of one colour's name for each picture, spelt as `spell(i, name)` says."""
    with path.open("w", newline="") as f:
        csv.writer(f).writerows([("id", "caption"), *((f"{i:02}", spell(i, COLOURS[i % 4])) for i in range(40))])
    return path


def of_photos(photos: Path, captions: Path) -> PairRun:
    """One epoch of a small net on the pictures, by these captions."""
    return replace(
        PAIR_RECIPES["folder"], data_root=photos, captions=captions, image_size=16, backbone=TINY.backbone,
        projector=(16, 8), text=TINY.text, batch_size=16, epochs=1, device="cpu",
    )  # fmt: skip


def test_captions_that_are_read_alike_are_one_text_and_one_word_is_enough(photos: Path, tmp_path: Path) -> None:
    plain = named(tmp_path / "plain.csv", lambda _, name: name)
    mixed = named(tmp_path / "mixed.csv", lambda i, name: f" {name.upper()}  " if i % 3 else name)
    run = replace(
        PAIR_RECIPES["folder"], data_root=photos, captions=plain, image_size=16, backbone=TINY.backbone,
        projector=(16, 8), text=TINY.text, batch_size=16, epochs=1, device="cpu",
    )  # fmt: skip
    model = train_pairs(run, tmp_path / "run")
    a, b = (multimodal.extract(model, replace(run, captions=path).load_pairs("train")) for path in (plain, mixed))
    assert sorted(map(str.lower, map(str.strip, b.texts.ids))) == sorted(a.texts.ids) == sorted(COLOURS)
    found, other = multimodal.measure(a), multimodal.measure(b)
    for key in ("image_to_text@1", "text_to_image@1", "text_to_image@5"):
        assert found[key]["value"] == other[key]["value"] and found[key]["data"] != other[key]["data"]
    assert a.words().words == sorted(COLOURS)  # of each there is one text, of many pictures


def test_compare_measures_again_where_captions_have_changed(photos: Path, tmp_path: Path) -> None:
    captions = named(tmp_path / "c.csv", lambda _, name: name)
    run = of_photos(photos, captions)
    train_pairs(run, tmp_path / "run")
    first = verbs.measured_of(tmp_path / "run")
    assert verbs.measured_of(tmp_path / "run") == first
    named(captions, lambda i, name: name if i % 2 else "a thing")
    assert (
        verbs.measured_of(tmp_path / "run")["image_to_text@1"]["candidates"] != first["image_to_text@1"]["candidates"]
    )


def by_hand(images: list[list[float]], said: dict[str, list[float]], owners: list[tuple[int, int]]) -> PairFeatures:
    """Features z of images and of texts as given, and (image, text) pairs."""

    def features(z: list[list[float]], ids: list[str]) -> Features:
        return Features(np.zeros((len(z), 0), np.float32), csr_array(np.array(z)), None, ids)

    shown = features(images, [str(i) for i in range(len(images))])
    return PairFeatures(shown, features(list(said.values()), list(said)), np.array(owners), 0)


def test_the_nearest_images_are_those_of_largest_cosine_however_long() -> None:
    test = by_hand([[1, 0], [5, 5], [0, 9], [-3, 0]], {"right": [2, 0], "up": [0, 1]}, [(0, 0), (2, 1)])
    assert [found.tolist() for found in report.nearest(test, np.array([0, 1]), 3)] == [[0, 1, 2], [2, 1, 0]]
    assert [found.tolist() for found in report.nearest(test, np.array([1]), 1)] == [[2]]


def test_of_two_runs_each_says_how_many_features_are_its_own() -> None:
    nothing: Any = None
    made = [by_hand([[1] * d] * 2, {"all": [1.0] * d, "one": [1.0] + [0.0] * (d - 1)}, []) for d in (4, 6)]
    shown = [Column("", "", m.images, m.images, {}, torch.zeros(2, 3, 8, 8), None, [], []) for m in made]
    columns = [report.PairColumn(c, m, nothing, nothing, nothing) for c, m in zip(shown, made, strict=True)]
    section = report.active_in_texts(columns, [View(c, "#000000", 300) for c in shown], 0)
    assert [panel.note for panel in section.panels] == [
        "On average 4.0 of 4 features fire on an image, 2.5 on a text.",
        "On average 6.0 of 6 features fire on an image, 3.5 on a text.",
    ]


def test_features_that_agree_most_come_first_and_those_of_one_kind_not_at_all() -> None:
    agreement = np.array([0.1, np.nan, 0.9, -0.2, 0.5])
    nothing: Any = None
    column = report.PairColumn(nothing, nothing, nothing, nothing, agreement)
    assert column.agreed(3).tolist() == [2, 4, 0] and column.agreed(9).tolist() == [2, 4, 0, 3]


def test_a_word_counts_the_images_of_its_texts_and_scores_the_damped_mean_of_its_texts() -> None:
    said = {"a red cat": [3.0, 0.0], "A dog": [0.0, 2.0]}
    made = by_hand([[1, 0]] * 4, said, [(0, 0), (1, 0), (2, 0), (3, 1)])
    found = made.words()  # "a" in both texts, "red" and "cat" in that of three images, "dog" in that of one
    assert found.words == ["a", "cat", "red"] and found.scores.tolist() == [[0.2, 0.2], [0.25, 0], [0.25, 0]]


def test_a_report_takes_its_words_from_the_training_texts(photos: Path, tmp_path: Path) -> None:
    captions = named(tmp_path / "c.csv", lambda _, name: name)
    run = of_photos(photos, captions)
    tested = {Path(name).stem for name in run.load_pairs("test").images.ids}
    named(captions, lambda i, name: f"{'unseen' if f'{i:02}' in tested else 'seen'} {name}")
    train_pairs(run, tmp_path / "run")
    assert report.column(tmp_path / "run", "a").words.words == sorted([*COLOURS, "seen"])


def test_captions_that_are_gone_are_named_with_what_to_do(photos: Path, tmp_path: Path) -> None:
    captions = named(tmp_path / "c.csv", lambda _, name: name)
    run = of_photos(photos, captions)
    train_pairs(run, tmp_path / "run")
    moved = tmp_path / "moved"
    shutil.copytree(photos, moved)
    captions.rename(moved / "c.csv")
    with pytest.raises(BadInput, match=r"are not at .*c\.csv any more; .* with --data-root"):
        verbs.evaluate(tmp_path / "run")
    assert verbs.evaluate(tmp_path / "run", moved)["image_to_text@1"]["value"] is not None


def test_embeddings_named_by_a_relative_path_are_found_from_any_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "of spring, of autumn"  # run.json spells the path among knobs, which commas part
    here.mkdir()
    monkeypatch.chdir(here)
    captions = named(Path("c.csv"), lambda _, name: name)
    rng = np.random.default_rng(0)
    of = {name: rng.normal(size=6) for name in COLOURS}
    np.save("e.npy", np.stack([of[line.split(",")[1]] for line in captions.read_text().splitlines()[1:]]))
    run = replace(of_photos(photos, captions), text=partial(texts.vectors, path="e.npy", of="c.csv"))
    train_pairs(run, tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    begun = rundir.read_run(tmp_path / "run", PairRun)[0]
    assert isinstance(begun.text, partial) and Path(begun.text.keywords["path"]) == here / "e.npy"
    train_pairs(begun, tmp_path / "run", resume=True)


def test_one_text_for_all_is_refused(photos: Path, tmp_path: Path) -> None:
    captions = named(tmp_path / "c.csv", lambda i, _: "Same  text" if i % 2 else "same text")
    with pytest.raises(BadInput, match="images of folder have one text only"):
        train_pairs(replace(PAIR_RECIPES["folder"], data_root=photos, captions=captions), tmp_path / "run")


def test_half_a_character_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text('{"id": "a", "caption": "x"}\n{"id": "b", "caption": "cut \\ud83d"}\n')
    with pytest.raises(BadInput, match=r"c.jsonl: line 2 holds half of a character"):
        captions_file.read(tmp_path / "c.jsonl")


def test_two_runs_are_compared(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], digits: Pairs
) -> None:
    other = tmp_path / "cl"
    train_pairs(replace(TINY, epochs=1, map=maps.identity), other, data=digits)
    cli.main(["compare", str(trained), str(other), "--json"])
    got = json.loads(capsys.readouterr().out)
    assert got[str(other)]["sparsity_images"] < 0.05 < got[str(trained)]["sparsity_images"]
    cli.main(["compare", str(trained), str(other), "--out", str(tmp_path / "both.html")])
    rows = {
        cells[1]: cells[2:5]
        for line in capsys.readouterr().out.splitlines()
        if len(cells := [cell.strip() for cell in re.split("[│┃]", line)]) == 6
    }
    assert rows["measure"] == ["run", "cl", "by chance"] and rows["image to text@1"][2] == "10.0%"
    assert rows["sparsity images"][2] == "-" and rows["class consistency"][2] == "10.2%"
    cli.main(["evaluate", str(other)])
    assert "by chance 10.0%" in re.sub(r"[\s│]+", " ", capsys.readouterr().out)
    other_data = {"by": {"recall": {"value": 0.5, "chance": 0.1}}, "to": {"recall": {"value": 0.5, "chance": 0.2}}}
    assert tables._chances(other_data) == {"by chance": {"recall": "10.0% / 20.0%"}}
    page = (tmp_path / "both.html").read_text(encoding="utf-8")
    assert "Signed features are taken by their absolute values" in page and "−" in page


def test_images_left_on_disk_give_the_same_model(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"backbone": TINY.backbone, "projector": (16, 8), "text": TINY.text, "batch_size": 16, "epochs": 2}
    run = replace(PAIR_RECIPES["folder"], data_root=photos, captions=photos / "captions.csv", image_size=16, **small)
    train_pairs(run, tmp_path / "here")
    monkeypatch.setenv("NONNEG_RESIDENT_GB", "0")
    monkeypatch.setenv("NONNEG_WORKERS", "0")
    train_pairs(run, tmp_path / "there")
    assert not isinstance(run.load_pairs("train").images.images, torch.Tensor)
    for name in ("model.safetensors", "text.safetensors"):
        here, there = (files.read_tensors(tmp_path / place / name)[0] for place in ("here", "there"))
        assert here.keys() == there.keys() and all(v.equal(there[k]) for k, v in here.items())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train-pairs", "cifar10"], r"unknown data set 'cifar10'"),
        (["train-pairs", "--epochs", "2"], "name a data set first"),
        (["train-pairs", "folder"], "no root given"),
        (["train-pairs", "digits", "--captions", "c.csv"], "digits have their own captions"),
        (["train-pairs", "digits", "--text", "bagg"], "did you mean 'bag'"),
        (["train-pairs", "digits", "--loss", "clip:temperature=0"], "temperature is 0.0; it must be positive"),
        (["train-pairs", "digits", "--loss", "clip:temperature=2"], "between 0.01 and 1"),
        (["train-pairs", "digits", "--loss", "supcon"], "supcon needs labels, and pairs have texts instead"),
        (["evaluate", "RUN", "--all"], "leave the flags out"),
        (["features", "RUN", "--data", "digits"], "leave --data and --image-size out"),
        (["select", "RUN", "--top", "4"], "a run of another kind: pairs"),
        (["train", "digits", "--out", "RUN", "--resume"], "a run of another kind: pairs"),
        (["train-pairs", "emoji", "--out", "RUN", "--resume"], "was begun on digits, not emoji"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    trained: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained.parent)
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(trained) if a == "RUN" else a for a in args])
    err = capsys.readouterr().err
    assert stopped.value.code == 1 and re.search(message, " ".join(err.split())) and "Traceback" not in err


def test_runs_of_two_kinds_are_not_compared(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.write_json(tmp_path / "other" / "run.json", {"run": {}})
    with pytest.raises(SystemExit):
        cli.main(["compare", str(trained), str(tmp_path / "other")])
    assert "name runs of one kind" in said(capsys)
    with pytest.raises(SystemExit):
        cli.main(["report", str(trained), str(tmp_path / "nowhere")])
    assert "nowhere is not a run folder" in said(capsys)


def test_the_experiment_trains_measures_and_draws(tmp_path: Path) -> None:
    def short(run: PairRun) -> PairRun:
        return replace(run, backbone=TINY.backbone, projector=TINY.projector, text=TINY.text, epochs=1)

    where = {"results": tmp_path / "results", "runs": tmp_path / "runs"}
    rows = reproduce.reproduce("multimodal", only=["digits-ncl"], seeds=1, change=short, **where)  # pyright: ignore
    line = json.loads((tmp_path / "results" / "multimodal.jsonl").read_text().splitlines()[0])
    assert (
        line["name"] == "digits-ncl-clip-s0" and line["texts"] == [40, 40] and line["chance"]["image_to_text@1"] == 0.1
    )
    assert line["temperature"] and line["run"]["text"] == "bag:width=16" and "data_root" not in line["run"]
    found = {(r.measure, r.method): r.ours for r in rows}
    assert found["sparsity, images", "NCL, spectral, digits"] is not None
    assert not any("emoji" in row.method for row in rows)  # they were not asked for
    picture, page = tmp_path / "results" / "figures" / "multimodal-digits.png", tmp_path / "runs" / "multimodal"
    assert picture.stat().st_size > 1000
    (page / "report-digits.html").unlink()  # as if the drawing had been stopped
    reproduce.reproduce("multimodal", only=["digits-ncl"], seeds=1, change=short, **where)  # pyright: ignore
    drawn = (page / "report-digits.html").stat().st_mtime_ns, picture.stat().st_mtime_ns
    again = reproduce.reproduce("multimodal", only=["digits-ncl"], seeds=1, change=short, **where)  # pyright: ignore
    assert again == rows and len((tmp_path / "results" / "multimodal.jsonl").read_text().splitlines()) == 3
    assert drawn == ((page / "report-digits.html").stat().st_mtime_ns, picture.stat().st_mtime_ns)
