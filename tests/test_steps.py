"""What a step takes: pairs of one class, labels for a loss that asks for them; the same from memory and from disk."""

import collections
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from nonneg import (
    augment,
    backbones,
    cli,
    data,
    files,
    finetune,
    loop,
    losses,
    maps,
    optim,
    progress,
    rundir,
    steps,
    supervised,
)
from nonneg.data import Dataset, stream
from nonneg.errors import BadInput
from nonneg.run import CLASSIFIERS, DIGITS, Run
from nonneg.train import fresh, train

TINY = replace(
    DIGITS,
    backbone=partial(backbones.small_net, width=4),
    projector=(16, 8),
    batch_size=40,
    epochs=2,
    checkpoint_seconds=0.0,
)
CLASS, MULTI = replace(TINY, positives="class"), replace(TINY, loss=losses.supcon)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.digits(split="train").subset(range(200))


def test_pairs_are_of_one_class_never_of_one_image_and_drawn_evenly() -> None:
    labels = torch.tensor([7, 3, 3, 7, 3, 100, 3, 7])  # 100 is alone
    draw, generator = steps.class_pairs(labels), torch.Generator().manual_seed(0)
    seen = collections.Counter()
    for _ in range(4000):
        order, partner = draw(generator=generator)
        assert sorted(order.tolist()) == list(range(8)) and torch.equal(labels[order], labels[partner])
        seen.update(zip(order.tolist(), partner.tolist(), strict=True))
    for i, label in enumerate(labels.tolist()):
        others = [j for j in range(8) if labels[j] == label and j != i] or [i]
        assert {j for a, j in seen if a == i} == set(others)
        for j in others:
            assert seen[i, j] == pytest.approx(4000 / len(others), rel=0.15)


def test_pairs_repeat_with_the_generator() -> None:
    draw = steps.class_pairs(torch.arange(50) % 4)
    a, b, c = (draw(generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_step_with_class_pairs_is_the_papers_algorithm_on_partners(digits: Dataset) -> None:
    assert isinstance(digits.images, Tensor) and digits.labels is not None
    s, plain = fresh(CLASS, digits), fresh(CLASS, digits)
    for state in (s, plain):
        state.order.copy_(state.shuffle(generator=state.generator))
    steps.two_views(CLASS, s, 5)()
    rows, partners = plain.order[:, :40]
    assert torch.equal(digits.labels[rows], digits.labels[partners]) and not (rows == partners).any()
    noise = torch.rand(80, augment.NOISE, generator=plain.generator)
    z = plain.model(CLASS.augment(torch.cat([digits.images[rows], digits.images[partners]]), noise))
    assert s.totals[steps.LOSS].item() == pytest.approx(losses.info_nce(z[:40], z[40:]).item(), rel=1e-5)


def test_a_loss_that_takes_labels_is_given_those_of_the_batch(digits: Dataset) -> None:
    assert isinstance(digits.images, Tensor) and digits.labels is not None
    s, plain = fresh(MULTI, digits), fresh(MULTI, digits)
    steps.two_views(MULTI, s, 5)()
    noise = torch.rand(80, augment.NOISE, generator=plain.generator)
    x = digits.images[:40]
    z = plain.model(MULTI.augment(torch.cat([x, x]), noise))
    want = losses.supcon(z[:40], z[40:], digits.labels[:40]).item()
    assert s.totals[steps.LOSS].item() == pytest.approx(want, rel=1e-5)
    assert "labels" not in fresh(TINY, digits).rows and "labels" not in fresh(CLASS, digits).rows
    assert MULTI.loss_takes_labels and replace(TINY, loss=partial(losses.supcon, temperature=1.0)).loss_takes_labels
    assert not TINY.loss_takes_labels


def weights(folder: Path) -> dict[str, Tensor]:
    return files.read_tensors(folder / "model.safetensors")[0]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize(
    "run",
    [
        CLASS,
        replace(MULTI, optimizer=optim.adamw, lr=1e-3),
        replace(CLASS, loss=losses.supcon, optimizer=optim.sgd, lr=0.05),
    ],
    ids=["class by lars", "multi by adamw", "both by sgd"],
)
def test_streamed_or_resumed_it_ends_with_the_same_model(
    run, tmp_path: Path, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(run, tmp_path / "memory", data=digits)
    save = rundir.save_checkpoint

    def cut(folder: Path, tensors: dict[str, Tensor], at: int, **more: float) -> None:
        save(folder, tensors, at, **more)
        if at == 7:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_fits", lambda *_: False)
        train(run, tmp_path / "streamed", data=digits)
        patch.setattr(rundir, "save_checkpoint", cut)
        with pytest.raises(KeyboardInterrupt):
            train(run, tmp_path / "cut", data=digits)
    train(run, tmp_path / "cut", data=digits, resume=True)  # streamed before, in memory after
    assert same(weights(tmp_path / "memory"), weights(tmp_path / "streamed"))
    assert same(weights(tmp_path / "memory"), weights(tmp_path / "cut"))


def test_an_image_that_cannot_be_read_gives_its_place_to_its_partner(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every pair stays of one class, also where both of it are lost."""
    assert digits.labels is not None and isinstance(digits.images, Tensor)
    lost, gather = set(range(0, 200, 3)), stream.Source._gather
    known = {image.numpy().tobytes(): label for image, label in zip(digits.images, digits.labels.tolist(), strict=True)}

    def fails(self: stream.Source, rows: list[int], out) -> dict[int, str]:
        gather(self, rows, out)
        return {at: "gone" for at, row in enumerate(rows) if row in lost}

    pairs = []

    def spy(images: Tensor, noise: Tensor) -> Tensor:
        classes = [known[image.numpy().tobytes()] for image in images]
        pairs.extend(zip(classes[:40], classes[40:], strict=True))
        return augment.none(images, noise)

    monkeypatch.setattr(loop, "_fits", lambda *_: False)
    monkeypatch.setattr(stream.Source, "_gather", fails)
    monkeypatch.setattr(progress, "say", lambda _: None)
    train(replace(CLASS, augment=spy), tmp_path / "a", data=replace(digits, skipped=[]))
    assert len(pairs) == 400 and all(a == b for a, b in pairs)


@pytest.mark.parametrize(
    ("run", "asks"), [(CLASS, "--positives class"), (MULTI, "--loss supcon")], ids=["class", "multi"]
)
def test_without_labels_or_with_one_class_it_says_so(run, asks: str, tmp_path: Path, digits: Dataset) -> None:
    with pytest.raises(BadInput, match=f"digits has no labels, and {asks} needs them"):
        train(run, tmp_path / "a", data=replace(digits, labels=None, classes=None))
    alike = replace(digits, labels=torch.zeros(200, dtype=torch.int64))
    with pytest.raises(BadInput, match=f"all 200 images of digits are of one class, and {asks} needs two classes"):
        train(run, tmp_path / "a", data=alike)
    assert not (tmp_path / "a").exists()


def test_lone_images_are_counted_once(tmp_path: Path, digits: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    labels = torch.zeros(200, dtype=torch.int64)
    labels[:2] = torch.tensor([1, 2])
    train(replace(CLASS, epochs=1), tmp_path / "a", data=replace(digits, labels=labels))
    said = " ".join(capfd.readouterr().err.split())
    assert said.count("2 of 3 classes have one image only") == 1


def test_the_command_line_takes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--epochs", "1", "--projector", "8", "--backbone", "small_net:width=4"]
    for more, key, value in (
        (["--positives", "class"], "positives", "class"),
        (["--loss", "supcon:temperature=0.1"], "loss", "supcon:temperature=0.1"),
    ):
        out = tmp_path / key
        cli.main(["train", "digits", "--out", str(out), *flags, *more])
        assert files.read_json(out / "run.json")["run"][key] == value
        assert rundir.read_run(out)[0].to_json()[key] == value
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(12):
        Image.new("RGB", (8, 8), (i, i, i)).save(photos / f"{i}.png")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main(
            ["train", "folder", "--data-root", str(photos), "--image-size", "8", "--batch-size", "4",
             "--positives", "class", "--out", str(tmp_path / "x"), *flags]
        )  # fmt: skip
    assert "has no labels, and --positives class needs them" in " ".join(capsys.readouterr().err.split())


# Nothing waits for the device


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).all()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[x > 0],
        lambda x: x.masked_fill_(x > 0, 1).nonzero(),
        lambda x: x.unique(),
        lambda x: x + torch.tensor([1.0, 2.0]),
        lambda x: torch.equal(x, x),
        lambda x: torch.repeat_interleave(x, x.long()),
        lambda x: x.__setitem__(x > 0, torch.ones(2)),
    ],
)
def test_what_would_wait_is_found(wait: Callable[[Tensor], object], no_waiting: Callable) -> None:
    with pytest.raises(AssertionError, match="wait for the device"), no_waiting():
        wait(torch.ones(2))


WAYS = [
    replace(TINY, loss=loss, optimizer=optimizer, map=map, batch_norm=norm, positives=positives, augment=views)
    for loss, optimizer, map, norm, positives, views in (
        (losses.info_nce, optim.lars, maps.rep_relu, "joint", "views", augment.simclr),
        (losses.spectral, optim.adamw, maps.relu, "per_view", "views", augment.gentle),
        (partial(losses.spectral, l1=0.01, mu=1.0), optim.sgd, maps.identity, "joint", "class", augment.crop_flip),
        (losses.supcon, optim.lars, maps.softplus, "joint", "views", augment.none),
        (losses.info_nce, optim.lars, maps.sigmoid, "joint", "class", augment.simclr),
        (losses.info_nce, optim.lars, maps.exp, "joint", "views", augment.simclr),
    )
]


@pytest.mark.parametrize("run", WAYS, ids=lambda run: f"{run.to_json()['loss']} {run.to_json()['map']}")
def test_a_step_with_two_views_never_waits_for_the_device(run: Run, digits: Dataset, no_waiting: Callable) -> None:
    s = fresh(run, digits)
    step = steps.two_views(run, s, 5)
    with no_waiting():
        for _ in range(2):  # the second finds the optimiser's moments
            s.order.copy_(s.shuffle(generator=s.generator))
            step()
    assert s.step == 2 and s.totals[steps.STEPS] == 2


@pytest.mark.parametrize("what", ["probe", "fine-tuning", "classifier"])
def test_a_labelled_step_never_waits_for_the_device(
    what: str, digits: Dataset, no_waiting: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken, labelled = [], steps.labelled

    def watched(*args: object, **knobs: object) -> Callable[[], None]:
        step = labelled(*args, **knobs)  # pyright: ignore[reportArgumentType]

        def watched_step() -> None:
            with no_waiting():
                step()
            taken.append(step)

        return watched_step

    monkeypatch.setattr(steps, "labelled", watched)
    knobs = {"backbone": TINY.backbone, "batch_size": 40, "epochs": 1}
    if what == "classifier":
        run = replace(CLASSIFIERS["digits"], map=maps.relu, weight_map=maps.relu, projector=(16, 8), **knobs)
        supervised.train_classifier(run, tmp_path / "a", data=(digits, digits))
    else:
        tune = what == "fine-tuning"
        on = ("z",) if tune else ("h", "z")
        model = fresh(TINY, digits).model
        finetune.probe(model, digits, digits, on=on, tune=tune, epochs=1, batch_size=40)  # pyright: ignore[reportArgumentType]
    assert len(taken) == 5
