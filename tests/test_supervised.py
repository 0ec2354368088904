"""Classifiers: they learn, their step is plain cross entropy, they resume exactly, and they explain themselves."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from PIL import Image
from torch import Tensor

from nonneg import augment, backbones, classifier, data, encoder, explain, files, maps, optim, rundir, workflow
from nonneg.data import Dataset, stream
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.run import CLASSIFIERS, RECIPES, ClassifierRun, Run, classifier_of, from_json
from nonneg.supervised import begin_with, check, epochs_to, fresh, train_classifier
from nonneg.train import train

TINY = replace(
    CLASSIFIERS["digits"],
    backbone=partial(backbones.small_net, width=4),
    epochs=2,
    warmup_epochs=0,
    batch_size=64,
    checkpoint_seconds=0.0,
    device="cpu",
)
SMALL = ["--backbone", "small_net:width=4", "--epochs", "1", "--batch-size", "16"]


@pytest.fixture(scope="module")
def digits() -> tuple[Dataset, Dataset]:
    return data.digits(split="train"), data.digits(split="test")


@pytest.fixture(scope="module")
def few(digits: tuple[Dataset, Dataset]) -> tuple[Dataset, Dataset]:
    return digits[0].subset(range(256)), digits[1].subset(range(100))


@pytest.fixture(scope="module")
def trained(digits: tuple[Dataset, Dataset], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of digits, with an MLP, that is mostly right."""
    folder = tmp_path_factory.mktemp("classifier") / "run"
    run = replace(TINY, backbone=partial(backbones.small_net, width=8), projector=(32, 24), augment=augment.none)
    run = replace(run, optimizer=optim.adamw, lr=0.04, epochs=8, test_every=3, checkpoint_seconds=60.0)
    train_classifier(run, folder, data=digits)
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    parts = (files.read_tensors(folder / name)[0] for name in ("model.safetensors", "head.safetensors"))
    return {k: v for part in parts for k, v in part.items()}


def same(a: Path, b: Path) -> bool:
    x, y = weights(a), weights(b)
    return x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)


# --- what a run is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run", [*CLASSIFIERS.values(), replace(TINY, pretrained=Path("a b"), weight_map=maps.rep_relu)]
)
def test_a_classifiers_run_survives_json(run: ClassifierRun) -> None:
    back = from_json(run.to_json(), Path("run.json"), ClassifierRun)
    assert back.to_json() == run.to_json() and isinstance(back, ClassifierRun)
    assert back.weight_map is run.weight_map and back.pretrained == run.pretrained


def test_every_data_set_has_a_classifier_that_shares_its_network() -> None:
    assert CLASSIFIERS.keys() == RECIPES.keys()
    for name, run in RECIPES.items():
        mine = CLASSIFIERS[name]
        assert (mine.data, mine.backbone, mine.optimizer) == (run.data, run.backbone, run.optimizer)
        assert (mine.map, mine.weight_map, mine.projector) == (maps.relu, maps.relu, ())
    assert classifier_of(RECIPES["digits"], lr=3.0).lr == 3.0
    with pytest.raises(BadInput, match="--test-every is 0"):
        replace(TINY, test_every=0)


# --- training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("map", [maps.identity, maps.relu])
def test_the_first_step_is_cross_entropy_by_autograd(
    tmp_path: Path, few: tuple[Dataset, Dataset], map: Callable[[Tensor], Tensor]
) -> None:
    train, test = few
    run = replace(TINY, map=map, weight_map=map, projector=(16, 12), epochs=1, batch_size=256, lr=0.1, weight_decay=0.0,
                  augment=augment.none, optimizer=optim.sgd)  # fmt: skip
    found = train_classifier(run, tmp_path / "a", data=few)
    plain = fresh(run, train, [str(i) for i in range(10)]).train()
    assert isinstance(train.images, Tensor) and train.labels is not None
    z = map(plain.encoder.projector(plain.encoder.features(train.images.float() / 255)))
    loss = F.cross_entropy(z @ map(plain.head.weight).T, train.labels)  # in any order: there is one batch
    names, parameters = zip(*plain.named_parameters(), strict=True)
    after = dict(found.named_parameters())
    for name, p, slope in zip(names, parameters, torch.autograd.grad(loss, parameters), strict=True):
        torch.testing.assert_close(after[name], p - 0.1 * slope, rtol=1e-4, atol=1e-5)
        assert slope.abs().sum() > 0
    (line,) = rundir.read_log(tmp_path / "a")
    assert line["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert line["accuracy"] == pytest.approx((z @ map(plain.head.weight).T).argmax(1).eq(train.labels).double().mean())
    assert found.explain(torch.zeros(1, 1, 16, 16), 3).votes.shape == (1, 3)
    del test


def test_nce_learns_and_the_log_is_the_model(digits: tuple[Dataset, Dataset], trained: Path) -> None:
    log = rundir.read_log(trained)
    assert [line["epoch"] for line in log if "test_accuracy" in line] == [3, 6, 8]  # every third, and the last
    assert log[-1]["test_accuracy"] > 0.8 and log[-1]["loss"] < log[0]["loss"] and 0 <= log[-1]["dead_weights"] < 1
    model, test = classifier.load(trained), digits[1]
    assert model.classes == [str(i) for i in range(10)]
    right, loss = 0, 0.0
    assert isinstance(test.images, Tensor) and test.labels is not None
    with torch.no_grad():
        for i in range(0, len(test), 90):  # another way to the same numbers
            logits, y = model(test.images[i : i + 90].float() / 255), test.labels[i : i + 90]
            right += int((logits.argmax(1) == y).sum())
            loss -= logits.log_softmax(1)[torch.arange(len(y)), y].double().sum().item()
        assert (model.encoder(test.images[:50].float() / 255) >= 0).all()
    assert log[-1]["test_accuracy"] == pytest.approx(right / len(test))
    assert log[-1]["test_loss"] == pytest.approx(loss / len(test), rel=1e-4)
    assert log[-1]["dead_weights"] == pytest.approx(float((model.head.weight <= 0).double().mean()))


def test_equal_runs_give_equal_classifiers_and_testing_changes_nothing(
    tmp_path: Path, few: tuple[Dataset, Dataset]
) -> None:
    for name, run in {"a": TINY, "b": replace(TINY, test_every=2), "c": replace(TINY, seed=1)}.items():
        before = torch.random.get_rng_state()
        train_classifier(run, tmp_path / name, data=few)
        assert torch.equal(torch.random.get_rng_state(), before)
    assert same(tmp_path / "a", tmp_path / "b") and not same(tmp_path / "a", tmp_path / "c")


def test_ce_and_nce_begin_from_the_same_draw(few: tuple[Dataset, Dataset]) -> None:
    ce, nce = (
        fresh(replace(TINY, map=m, weight_map=m, projector=(8, 6)), few[0], ["a", "b"])
        for m in (maps.identity, maps.relu)
    )  # fmt: skip
    ours, theirs = ce.encoder.state_dict(), nce.encoder.state_dict()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours) and torch.equal(ce.head.weight.abs(), nce.head.weight)


def test_half_of_cross_entropy_is_said(
    tmp_path: Path, few: tuple[Dataset, Dataset], capsys: pytest.CaptureFixture
) -> None:
    some = few[0].subset(range(64)), few[1].subset(range(10))
    for second in (maps.identity, maps.relu):
        run = replace(TINY, map=maps.identity, weight_map=second, epochs=1)
        train_classifier(run, tmp_path / second.__name__, data=some)
        said = " ".join(capsys.readouterr().err.split())
        half = "features pass identity, class weights relu; cross entropy has identity on both" in said
        assert half == (second is maps.relu)


def test_a_resumed_classifier_is_the_uninterrupted_one(tmp_path: Path, few: tuple[Dataset, Dataset]) -> None:
    calls = 0

    def fails_at(step: int, images: Tensor, noise: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == step:
            raise RuntimeError("the power is gone")
        return augment.gentle(images, noise)

    run = replace(TINY, epochs=3, projector=(8, 6))
    train_classifier(replace(run, augment=partial(fails_at, 0)), tmp_path / "whole", data=few)
    calls = 0
    cut = replace(run, augment=partial(fails_at, 7))  # in the middle of the second epoch of four steps
    with pytest.raises(RuntimeError, match="power"):
        train_classifier(cut, tmp_path / "cut", data=few)
    assert rundir.checkpoint_step(tmp_path / "cut") == 6 and not (tmp_path / "cut" / "model.safetensors").exists()
    train_classifier(cut, tmp_path / "cut", data=few, resume=True)
    assert same(tmp_path / "whole", tmp_path / "cut")
    kept = ("epoch", "step", "loss", "accuracy", "test_accuracy", "test_loss", "dead_weights")
    logs = [[{k: line[k] for k in kept} for line in rundir.read_log(tmp_path / name)] for name in ("whole", "cut")]
    assert logs[0] == logs[1] and len(logs[0]) == 3
    with pytest.raises(BadInput, match="was begun with lr"):
        train_classifier(replace(cut, lr=1.0), tmp_path / "cut", data=few, resume=True)
    with pytest.raises(BadInput, match="already exists"):
        train_classifier(cut, tmp_path / "cut", data=few)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path, few: tuple[Dataset, Dataset]) -> None:
    with pytest.raises(BadInput, match=r"not finite.*lower --lr"):
        train_classifier(replace(TINY, optimizer=optim.sgd, lr=1e30), tmp_path / "a", data=few)


def test_validation_holds_out_a_fifth_and_never_looks_at_the_test_images(
    tmp_path: Path, few: tuple[Dataset, Dataset]
) -> None:
    train, test = few
    assert test.labels is not None
    lying = replace(test, labels=(test.labels + 1) % 10)
    run = replace(TINY, validation=True, batch_size=32)
    for name, given in (("a", test), ("b", lying)):
        train_classifier(run, tmp_path / name, data=(train, given))
    logs = [rundir.read_log(tmp_path / name) for name in ("a", "b")]
    assert [line["test_accuracy"] for line in logs[0]] == [line["test_accuracy"] for line in logs[1]]
    about = files.read_json(tmp_path / "a" / "run.json")
    assert about["data"]["images"] == 256 - round(256 / 5) and about["kind"] == "classifier"
    share = logs[0][-1]["test_accuracy"] * round(256 / 5)
    assert share == pytest.approx(round(share))  # a whole number of the 51


@pytest.mark.usefixtures("decoded_here")
def test_images_on_disk_give_the_classifier_that_images_in_memory_give(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (40, 3, 12, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    paths = [str(tmp_path / f"{i}.png") for i in range(40)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    resident = Dataset("forty", images, torch.arange(40) % 2, ["a", "b"], paths)
    lazy = replace(resident, images=stream.Files(paths, [Path(p).stat().st_size for p in paths], 12))
    run = replace(TINY, batch_size=8, validation=True)
    for name, each in (("memory", resident), ("disk", lazy)):
        train_classifier(run, tmp_path / name, data=(each, each))
    assert same(tmp_path / "memory", tmp_path / "disk")
    scores = [[line["test_loss"] for line in rundir.read_log(tmp_path / name)] for name in ("memory", "disk")]
    assert scores[0] == scores[1] and len(scores[0]) == 2


# --- from a pretrained run -------------------------------------------------------------------------------------------


def pretrained(folder: Path, channels: int = 1) -> Encoder:
    torch.manual_seed(9)
    made = Encoder(partial(backbones.small_net, width=4), projector=(5,), channels=channels, mean=[0.3], std=[0.4])
    made.train()(torch.rand(16, channels, 16, 16))  # running statistics of its own
    encoder.save(made, folder)
    return made


def test_a_pretrained_backbone_is_begun_with(tmp_path: Path, few: tuple[Dataset, Dataset]) -> None:
    theirs = pretrained(tmp_path / "pre").backbone.state_dict()
    run = replace(TINY, pretrained=tmp_path / "pre", projector=(7,), seed=4)
    model = fresh(run, few[0], [str(i) for i in range(10)])
    mine = model.encoder.backbone.state_dict()
    assert all(torch.equal(mine[k], theirs[k]) for k in theirs)  # statistics of batch norm too
    assert model.encoder.about["mean"] == [0.3] and model.encoder.dim == 7
    scratch = fresh(replace(run, pretrained=None), few[0], [str(i) for i in range(10)])
    assert torch.equal(scratch.head.weight, model.head.weight)  # all that is new is drawn alike
    assert not torch.equal(scratch.encoder.backbone.state_dict()["blocks.0.0.weight"], theirs["blocks.0.0.weight"])
    train_classifier(run, tmp_path / "tuned", data=few)
    assert classifier.load(tmp_path / "tuned").encoder.about["mean"] == [0.3]


def test_a_pretrained_run_that_does_not_fit_is_named(tmp_path: Path, few: tuple[Dataset, Dataset]) -> None:
    run = replace(TINY, pretrained=tmp_path / "pre")
    with pytest.raises(BadInput, match=r"--from .*pre: .*encoder\.json does not exist"):
        train_classifier(run, tmp_path / "a", data=few)
    pretrained(tmp_path / "pre")
    with pytest.raises(BadInput, match=r"backbone is small_net:width=4, not small_net:width=8; leave --backbone out"):
        train_classifier(replace(run, backbone=partial(backbones.small_net, width=8)), tmp_path / "a", data=few)
    pretrained(tmp_path / "colour", channels=3)
    with pytest.raises(BadInput, match=r"its images have 3 channels, those of digits 1"):
        train_classifier(replace(run, pretrained=tmp_path / "colour"), tmp_path / "a", data=few)
    assert not (tmp_path / "a").exists()


# --- bad input -------------------------------------------------------------------------------------------------------


def test_labels_that_no_classifier_can_learn_get_one_sentence(tmp_path: Path, few: tuple[Dataset, Dataset]) -> None:
    train, test = few
    assert train.labels is not None and test.labels is not None
    bare = replace(train, labels=None, classes=None)
    for pair, split in (((bare, test), "training"), ((train, bare), "test")):
        with pytest.raises(BadInput, match=f"digits: the {split} images have no labels"):
            check(*pair)
    one = replace(train, labels=torch.full_like(train.labels, 3))
    with pytest.raises(BadInput, match=r"all 256 training images are of one class, '3'; give two at least"):
        check(one, test)
    unnamed = replace(train, labels=train.labels % 4, classes=None)
    with pytest.raises(
        BadInput, match=r"a test image has the label 9, but the training images know the classes 0 to 3"
    ):
        check(unnamed, replace(test, classes=None))
    with pytest.raises(BadInput, match=r"labels run from 0 to 9, but must be 0 to 3"):
        replace(train, classes=["a", "b", "c", "d"])
    with pytest.raises(BadInput, match="same classes in the same order"):
        check(train, replace(test, classes=[*"9876543210"]))
    with pytest.raises(BadInput, match="one class"):
        train_classifier(TINY, tmp_path / "a", data=(one, test))
    with pytest.raises(BadInput, match=r"--batch-size 9999 is larger"):
        train_classifier(replace(TINY, batch_size=9999), tmp_path / "a", data=few)
    with pytest.raises(BadInput, match=r"--validation: digits has 1 training images, too few"):
        train_classifier(replace(TINY, validation=True), tmp_path / "a", data=(train.subset([0]), test))
    assert not (tmp_path / "a").exists()


def test_a_class_without_training_images_is_said(few: tuple[Dataset, Dataset], capsys: pytest.CaptureFixture) -> None:
    train, test = few
    assert train.labels is not None
    kept = train.subset(torch.nonzero(train.labels != 7).flatten())
    assert check(kept, test) == [str(i) for i in range(10)]
    assert "1 of 10 classes have no training image, first '7'" in " ".join(capsys.readouterr().err.split())


# --- what is measured ------------------------------------------------------------------------------------------------


def test_another_data_set_is_read_at_the_size_that_the_backbone_knows(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (60, 24, 24, 3)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels)
    run = replace(RECIPES["arrays"], data_root=tmp_path / "a.npz", backbone=TINY.backbone, projector=(16, 8),
                  batch_size=16, epochs=1, device="cpu")  # fmt: skip
    train(run, tmp_path / "run")
    assert run.image_size is None  # that of the file
    begun = begin_with(tmp_path / "run", CLASSIFIERS["folder"])
    assert begun.image_size == 24 and begun.to_json()["backbone"] == "small_net:width=4"
    assert begin_with(tmp_path / "run", replace(CLASSIFIERS["arrays"], image_size=None)).image_size is None


def test_the_report_says_how_many_were_held_out(tmp_path: Path) -> None:
    run = replace(TINY, validation=True, batch_size=32, epochs=1)
    train_classifier(run, tmp_path / "run")
    workflow.write_report([tmp_path / "run"], tmp_path / "r.html", overwrite=False)
    assert "1347 training and 450 test images, 1 epochs, 269 of the training images held out" in " ".join(
        (tmp_path / "r.html").read_text(encoding="utf-8").split()
    )


def test_epochs_to_a_level_is_the_first_that_reached_it() -> None:
    log = [{"epoch": 1, "test_accuracy": 0.2}, {"epoch": 2}, {"epoch": 3, "test_accuracy": 0.5},
           {"epoch": 4, "test_accuracy": 0.45}, {"epoch": 5, "test_accuracy": 0.6}]  # fmt: skip
    assert epochs_to((0.1, 0.3, 0.5, 0.55, 0.9), log) == {0.1: 1, 0.3: 3, 0.5: 3, 0.55: 5, 0.9: None}


def test_explained_votes_are_the_models(trained: Path, digits: tuple[Dataset, Dataset]) -> None:
    found, picture = explain.explain_run(trained, indices=[5, 8], k=4)
    model, test = classifier.load(trained), digits[1]
    assert isinstance(test.images, Tensor) and test.labels is not None
    for i, e in zip((5, 8), found, strict=True):
        with torch.no_grad():
            z = model.encoder(test.images[i : i + 1].float() / 255)[0]
            logits = (z @ maps.relu(model.head.weight).T).tolist()
        order = sorted(range(10), key=lambda c: -logits[c])
        assert (e.said, e.runner_up) == (str(order[0]), str(order[1])) and e.truth == str(int(test.labels[i]))
        assert e.logit == pytest.approx(logits[order[0]], rel=1e-5)
        assert sum(e.votes) + e.rest == pytest.approx(e.logit, rel=1e-5) and min(e.votes) >= 0
        assert sum(e.against) + e.rest_against == pytest.approx(e.runner_up_logit, rel=1e-5)
        assert e.runner_up_logit == pytest.approx(logits[order[1]], rel=1e-5)
        assert e.votes == sorted(e.votes, reverse=True) and len(e.features) == 4
        top = e.features[0]
        assert e.votes[0] == pytest.approx(float(z[top]) * float(model.head.weight[order[0], top].detach()), rel=1e-5)
        assert e.probability == pytest.approx(float(torch.tensor(logits).softmax(0).max()), rel=1e-4)
    (trained / "p.png").write_bytes(picture)
    with Image.open(trained / "p.png") as opened:
        assert opened.width == 2 * explain.WIDTH and opened.height > 400
        pixels = np.asarray(opened.convert("RGB"))
    assert (pixels < 250).any(axis=2).mean() > 0.05  # not an empty sheet


def test_the_picture_has_a_bar_for_every_vote(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bars, draw = [], Axes.barh

    def noted(axes: Axes, at: float, width: float, **more: Any) -> Any:
        bars.append((at, width))
        box = axes.get_position()
        assert 0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1  # on the sheet
        return draw(axes, at, width, **more)

    monkeypatch.setattr(Axes, "barh", noted)
    ((found,), _) = explain.explain_run(trained, indices=[5], k=3)
    said, other = [*found.votes, found.rest], [*found.against, found.rest_against]
    assert said != other
    assert [width for _, width in bars] == [width for two in zip(said, other, strict=True) for width in two]
    assert [round(at) for at, _ in bars] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_pictures_are_read_grey_for_a_model_of_grey_ones(tmp_path: Path) -> None:
    Image.new("RGB", (20, 30), (255, 0, 0)).save(tmp_path / "red.png")
    grey, colour = (explain._read([tmp_path / "red.png"], 8, channels) for channels in (1, 3))
    assert grey.shape == (1, 1, 8, 8) and colour.shape == (1, 3, 8, 8)
    assert grey.unique().tolist() == [76] and colour.amax(dim=(0, 2, 3)).tolist() == [255, 0, 0]


def test_a_few_telling_images_are_chosen_mistakes_first(trained: Path) -> None:
    found, _ = explain.explain_run(trained)
    right = [e.truth == e.said for e in found]
    assert (
        len(found) == 6 and right == sorted(right) and len({e.said for e in found if e.truth == e.said}) == sum(right)
    )
    mistakes = [e.probability for e in found if e.truth != e.said]
    assert mistakes == sorted(mistakes, reverse=True) and len(mistakes) == 3


def shaded(path: Path, classes: list[str]) -> Path:
    """Ninety images of three shades, labelled by the shade's place among these classes; the last few are snow."""
    shade, rng = np.array([20, 120, 220]).repeat(30), np.random.default_rng(0)
    names = [*["black"] * 30, *["grey"] * 30, *["white"] * 25, *["snow" if "snow" in classes else "white"] * 5]
    images = (shade[:, None, None] + rng.integers(-15, 15, (90, 16, 16))).astype(np.uint8)
    np.savez(path, images=images, labels=[classes.index(name) for name in names], classes=classes)
    return path


def test_classes_are_told_by_their_names_in_whatever_order(tmp_path: Path, tell: Callable) -> None:
    own = shaded(tmp_path / "own.npz", ["black", "grey", "white"])
    run = replace(CLASSIFIERS["arrays"], data_root=own, backbone=TINY.backbone, augment=augment.none, lr=0.04, epochs=8,
                  batch_size=16, device="cpu")  # fmt: skip
    folder = tmp_path / "run"
    train_classifier(run, folder)
    accuracy = json.loads(tell("evaluate", folder, "--json")[1])["test_accuracy"]
    assert accuracy > 0.6
    turned = shaded(tmp_path / "turned.npz", ["white", "black", "grey"])
    assert json.loads(tell("evaluate", folder, "--data-root", turned, "--json")[1])["test_accuracy"] == accuracy
    for chosen in ((), (0, 8, 15)):
        ours, theirs = (explain.explain_run(folder, indices=chosen, data_root=place)[0] for place in (own, turned))
        assert [(e.name, e.truth) for e in ours] == [(e.name, e.truth) for e in theirs]
    four = shaded(tmp_path / "four.npz", ["black", "grey", "snow", "white"])
    both = "class names do not match: only in the data: snow; only in the run: none; rename them"
    found = json.loads(tell("evaluate", folder, "--data-root", four, "--json")[1])
    assert found["test_accuracy"] is None and both in found["no_value"]["test_accuracy"] and found["knn"] > 0
    code, _, err = tell("explain", folder, "--data-root", four)
    assert code == 1 and both in err
    nameless = Dataset("x", torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 3, 1]), None, [*"abcd"])
    assert nameless.numbers_among([*"pqrs"], "x").tolist() == [0, 1, 2, 3]  # by number, where there is no name
    with pytest.raises(BadInput, match="only in x: 2, 3; only in the run: none"):
        nameless.numbers_among([*"pq"], "x")


# --- the command line ------------------------------------------------------------------------------------------------


def test_from_labelled_folder_to_explanation(tmp_path: Path, tell: Callable) -> None:
    rng = np.random.default_rng(0)
    for name, colour in (("dark", 60), ("light", 180)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(40):
            pixels = rng.integers(colour - 40, colour + 40, (20, 24, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    out, photos = tmp_path / "run", tmp_path / "photos"
    where = ["folder", "--data-root", photos, "--image-size", 16, "--out", out]
    code, text, _ = tell("train-classifier", *where, *SMALL, "--json")
    line = json.loads(text)
    assert code == 0 and line["epoch"] == 1 and 0 <= line["test_accuracy"] <= 1
    code, text, err = tell("train-classifier", *where, "--resume")  # finished: nothing is left to do
    assert code == 0 and "of the test images right" in text, err
    picture = photos / "light" / "3.png"
    code, text, err = tell("explain", out, "--image", picture, "--top", 3, "--json", "--out", tmp_path / "w.png")
    (e,) = json.loads(text)["predictions"]
    assert code == 0 and e["said"] in ("dark", "light") and e["truth"] is None and len(e["votes"]) == 3, err
    assert sum(e["votes"]) + e["rest"] == pytest.approx(e["logit"], rel=1e-4) and (tmp_path / "w.png").exists()
    code, text, _ = tell("explain", out, "--index", 0)
    assert code == 0 and "sum (logit)" in text and (out / "votes.png").exists()
    code, text, err = tell("evaluate", out, "--json")  # its features are measured like any others
    found = json.loads(text)
    assert code == 0 and found["live_features"] > 0, err
    assert found["test_accuracy"] == line["test_accuracy"]  # the classifier itself, beside the probes of its features
    assert found["dead_weights"] == pytest.approx(line["dead_weights"])
    code, text, err = tell("compare", out, out)
    assert code == 0 and "test accuracy" in text, err
    code, _, err = tell("report", out)
    assert code == 0 and "The classifier itself" in (out / "report.html").read_text(encoding="utf-8"), err
    code, text, err = tell("train-classifier", "folder", "--data-root", photos, "--from", out, "--out",
                           tmp_path / "tuned", "--epochs", 1, "--batch-size", 16)  # fmt: skip
    assert code == 0, err
    begun = rundir.read_run(tmp_path / "tuned", ClassifierRun)[0]
    assert begun.image_size == 16 and begun.to_json()["backbone"] == "small_net:width=4" and begun.pretrained == out
    for args, message in (
        (("explain", out, "--index", 99), "--index 99: the test images are numbered 0 to 15"),
        (("explain", out, "--index", 0, "--image", picture), "give one of them"),
        (("explain", out, "--image", tmp_path / "none.png"), "no such file"),
        (("explain", out, "--top", 0), "--top is 0"),
        (("explain", out, "--index", 0, "--out", tmp_path / "w.png"), "already exists; add --overwrite"),
        (("train", "folder", "--data-root", photos, "--out", out, "--resume"), "another kind: classifier, not encoder"),
    ):
        code, _, err = tell(*args)
        assert code == 1 and message in err, err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train-classifier", "digit"], "unknown data set 'digit': did you mean 'digits'?"),
        (["train-classifier", "--epochs", "3"], "name a data set first"),
        (["train-clasifier", "digits"], "did you mean 'train-classifier'?"),
        (["train-classifier", "digits", "--weight-map", "rel"], "unknown map 'rel': did you mean 'relu'?"),
        (["train-classifier", "digits", "--from", "nowhere"], "nowhere is not a run folder"),
        (["explain", "nowhere"], "nowhere is not a run folder"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tell: Callable, args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = tell(*args)
    assert code == 1 and message in err and "Traceback" not in err and out == ""
    assert not (tmp_path / "runs").exists()


def test_a_run_without_labels_has_nothing_to_explain(tmp_path: Path, tell: Callable) -> None:
    code, _, err = tell("train", "digits", *SMALL, "--projector", 8, "--out", tmp_path / "run")
    assert code == 0, err
    code, _, err = tell("explain", tmp_path / "run")
    assert code == 1 and "holds no classifier" in err
    assert isinstance(rundir.read_any(tmp_path / "run")[0], Run)
