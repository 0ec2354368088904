"""The paper's probes: they learn, match a loop written out by hand, and leave the encoder they are given alone."""

import copy
import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from nonneg import augment, backbones, data, finetune, maps, optim
from nonneg.data import Dataset, stream
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.finetune import probe

SMALL = 256
quick = partial(probe, epochs=3, batch_size=64, augmentation=augment.none)


@pytest.fixture(scope="module")
def digits() -> tuple[Dataset, Dataset]:
    return data.digits(split="train"), data.digits(split="test")


@pytest.fixture(scope="module")
def few(digits: tuple[Dataset, Dataset]) -> tuple[Dataset, Dataset]:
    return digits[0].subset(range(SMALL)), digits[1].subset(range(100))


def model(seed: int = 0) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        made = Encoder(partial(backbones.small_net, width=8), projector=(48, 24), map=maps.rep_relu, channels=1)
        with torch.no_grad():  # running statistics that are not those of a fresh net
            made.train()(torch.rand(64, 1, 16, 16))
    return made


def state(encoder: Encoder) -> dict[str, Tensor]:
    return copy.deepcopy(encoder.state_dict())


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_probe_learns_and_fine_tuning_learns_more(digits: tuple[Dataset, Dataset]) -> None:
    # not LARS, which moves a classifier by at most 2 % a step: too slow for a test
    frozen = probe(
        model(), *digits, epochs=8, lr=2.0, optimizer=optim.adamw, batch_size=64, augmentation=augment.none
    )["h"]  # fmt: skip
    tuned = probe(model(), *digits, epochs=4, tune=True, lr=2.0, batch_size=64, augmentation=augment.none)["h"]
    assert 0.4 < frozen.accuracy < 0.95 and 0.4 < frozen.train_accuracy < 0.95
    assert tuned.accuracy > frozen.accuracy + 0.02 and tuned.accuracy > 0.9
    assert frozen.seconds > 0


@pytest.mark.parametrize("place", ["h", "z"])
def test_a_frozen_probe_is_this_loop(few: tuple[Dataset, Dataset], place: finetune.Place) -> None:
    """crop and flip, logits, cross entropy, LARS and the schedule, one line after the other in plain Python."""
    train, test = few
    epochs, n, seed, decay, peak = 3, 100, 5, 1e-4, 0.4 * 100 / 256
    found = probe(model(), *few, on=(place,), epochs=epochs, batch_size=n, seed=seed)[place]

    encoder = model().eval()
    torch.manual_seed(seed)
    head = torch.nn.Linear(32 if place == "h" else 24, 10)
    w, b = head.weight.detach().clone(), head.bias.detach().clone()
    velocity_w, velocity_b = torch.zeros_like(w), torch.zeros_like(b)
    generator = torch.Generator().manual_seed(seed)
    assert train.labels is not None and isinstance(train.images, Tensor)
    at, steps, right = 0, SMALL // n, 0
    total, warmup = epochs * steps, 1 * steps  # a third of three epochs
    for _ in range(epochs):
        order, right = torch.randperm(SMALL, generator=generator), 0
        for i in range(steps):
            rows = order[i * n : i * n + n]
            x = augment.crop_flip(train.images[rows], torch.rand(n, augment.NOISE, generator=generator))
            with torch.no_grad():
                f = encoder.features(x) if place == "h" else encoder(x)
            p = (f @ w.T + b).softmax(1)
            y = train.labels[rows]
            right += int((p.argmax(1) == y).sum())
            error = (p - F.one_hot(y, 10)) / n
            grad_w, grad_b = error.T @ f, error.sum(0)
            if at < warmup:
                lr = 3e-5 + (peak - 3e-5) * at / warmup
            else:
                lr = peak / 2 * (1 + math.cos(math.pi * (at - warmup) / (total - warmup)))
            trust = min(1.0, 0.02 * float(w.norm()) / (float(grad_w.norm()) + decay * float(w.norm())) / lr)
            velocity_w = 0.9 * velocity_w + trust * (grad_w + decay * w)
            velocity_b = 0.9 * velocity_b + grad_b
            w, b, at = w - lr * velocity_w, b - lr * velocity_b, at + 1
    assert torch.allclose(found.head.weight, w, atol=1e-5) and torch.allclose(found.head.bias, b, atol=1e-5)
    assert found.train_accuracy == pytest.approx(right / (steps * n), abs=0.011)

    assert isinstance(test.images, Tensor) and test.labels is not None
    one_by_one = 0
    with torch.no_grad():
        for image, label in zip(test.images, test.labels, strict=True):
            x = image[None].float() / 255
            f = encoder.features(x) if place == "h" else encoder(x)
            one_by_one += int((f @ w.T + b).argmax() == label)
    assert found.accuracy == pytest.approx(one_by_one / len(test), abs=0.011)


def test_the_first_tuning_step_is_autograd_through_a_net_in_training_mode(few: tuple[Dataset, Dataset]) -> None:
    found = probe(
        model(), *few, tune=True, epochs=1, batch_size=SMALL, lr=0.1, weight_decay=0.0, augmentation=augment.none,
        optimizer=optim.sgd, schedule=finetune.constant,
    )["h"]  # fmt: skip
    encoder = model().train()
    torch.manual_seed(0)
    head = torch.nn.Linear(32, 10)
    train = few[0]
    assert isinstance(train.images, Tensor) and train.labels is not None
    loss = F.cross_entropy(head(encoder.features(train.images.float() / 255)), train.labels)  # any order: one batch
    loss.backward()
    first = next(encoder.backbone.parameters())
    assert first.grad is not None and head.weight.grad is not None and first.grad.norm() > 0
    assert torch.allclose(next(found.encoder.backbone.parameters()), first - 0.1 * first.grad, atol=1e-5)
    assert torch.allclose(found.head.weight, head.weight - 0.1 * head.weight.grad, atol=1e-5)
    mean = "backbone.blocks.0.1.running_mean"
    assert torch.allclose(found.encoder.state_dict()[mean], encoder.state_dict()[mean], atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_the_given_encoder_is_unchanged_bit_for_bit(few: tuple[Dataset, Dataset], training: bool) -> None:
    encoder = model().train(training)
    before = state(encoder)
    frozen = quick(encoder, *few, on=("h", "z"))
    assert same(state(frozen["h"].encoder), before)  # nor does the copy: frozen, batch norm included
    tuned = quick(encoder, *few, tune=True)["h"]
    assert same(state(encoder), before)
    assert encoder.training is training and all(p.requires_grad and p.grad is None for p in encoder.parameters())
    after = state(tuned.encoder)
    changed = {k for k in before if not torch.equal(before[k], after[k])}
    assert any("running_mean" in k for k in changed) and all(k.startswith("backbone") for k in changed)
    projector = quick(encoder, *few, on=("z",), tune=True)["z"].encoder.state_dict()
    assert not torch.equal(projector["projector.0.weight"], before["projector.0.weight"])


def test_the_same_seed_gives_the_same_probe_and_another_seed_another(few: tuple[Dataset, Dataset]) -> None:
    a, b, c = (quick(model(), *few, seed=seed)["h"].head.weight for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c)


def test_a_probe_does_not_draw_from_the_global_generator(few: tuple[Dataset, Dataset]) -> None:
    before = torch.random.get_rng_state()
    quick(model(), *few)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_heads_trained_together_equal_each_alone(few: tuple[Dataset, Dataset]) -> None:
    both = quick(model(), *few, on=("h", "z"))
    for place in ("h", "z"):
        alone = quick(model(), *few, on=(place,))[place]
        assert torch.allclose(both[place].head.weight, alone.head.weight, atol=1e-6)
        assert (both[place].accuracy, both[place].train_accuracy) == (alone.accuracy, alone.train_accuracy)
    assert both["h"].head.weight.shape != both["z"].head.weight.shape


def test_accuracy_covers_the_last_images_too(few: tuple[Dataset, Dataset]) -> None:
    _, test = few
    found = quick(model(), *few)["h"]
    parts = [finetune.accuracy(found.encoder, {"h": found.head}, test, batch_size=b)["h"] for b in (7, 100, 1000)]
    assert parts == [found.accuracy] * 3


def test_bfloat16_stays_near_float32(few: tuple[Dataset, Dataset]) -> None:
    full, half = (quick(model(), *few, precision=p)["h"] for p in ("fp32", "bf16"))
    assert half.head.weight.dtype == torch.float32
    assert not torch.equal(full.head.weight, half.head.weight)
    assert torch.allclose(full.head.weight, half.head.weight, atol=5e-3)


@pytest.mark.usefixtures("decoded_here")
def test_images_on_disk_give_the_probe_that_images_in_memory_give(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20, 3, 12, 12), generator=generator, dtype=torch.uint8)
    paths = [str(tmp_path / f"{i}.png") for i in range(20)]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(path)
    resident = Dataset("twenty", images, torch.arange(20) % 2, ["a", "b"], paths)
    lazy = replace(resident, images=stream.Files(paths, [Path(p).stat().st_size for p in paths], 12))
    net = Encoder(partial(backbones.small_net, width=4), projector=(8,), channels=3)
    a, b = (probe(net, d, resident, on=("h", "z"), epochs=2, batch_size=6) for d in (resident, lazy))
    for place in ("h", "z"):
        assert torch.equal(a[place].head.weight, b[place].head.weight) and a[place].accuracy == b[place].accuracy

    Path(paths[3]).write_bytes(b"no longer a picture")  # stands in for another image then, and counts as missed
    damaged = probe(net, lazy, lazy, epochs=2, batch_size=6)["h"]
    whole = finetune.accuracy(damaged.encoder, {"h": damaged.head}, resident)["h"]
    (part,) = finetune.scores(damaged.encoder, {"h": damaged.head}, lazy).values()
    others = resident.subset([i for i in range(20) if i != 3])
    (rest,) = finetune.scores(damaged.encoder, {"h": damaged.head}, others, batch_size=7).values()
    assert part.accuracy == damaged.accuracy and part.loss == pytest.approx(rest.loss)  # the loss leaves it out
    assert torch.isfinite(damaged.head.weight).all() and whole - 0.05 <= damaged.accuracy + 1e-9 <= whole + 1e-8


def test_a_training_set_smaller_than_the_batch_is_one_batch(few: tuple[Dataset, Dataset]) -> None:
    tiny = few[0].subset(range(30))
    one, exact = (probe(model(), tiny, few[1], epochs=2, batch_size=b)["h"] for b in (256, 30))
    assert torch.equal(one.head.weight, exact.head.weight)


def test_bad_input_is_refused_in_one_sentence(few: tuple[Dataset, Dataset]) -> None:
    train, test = few
    with pytest.raises(BadInput, match="tune one at a time"):
        probe(model(), train, test, on=("h", "z"), tune=True)
    with pytest.raises(BadInput, match="name h"):
        probe(model(), train, test, on=())
    with pytest.raises(BadInput, match="name h"):
        probe(model(), train, test, on=("h", "h"))
    with pytest.raises(BadInput, match="at least 1"):
        probe(model(), train, test, epochs=0)
    unlabelled = replace(train, labels=None, classes=None)
    with pytest.raises(BadInput, match="no labels"):
        probe(model(), unlabelled, test)
    with pytest.raises(BadInput, match="no labels"):
        finetune.accuracy(model(), {}, unlabelled)
    colour = Encoder(backbones.small_net, projector=(8,), channels=3, mean=(0.5,) * 3, std=(0.2,) * 3)
    with pytest.raises(BadInput, match="channels"):
        probe(colour, train, test)
    three = replace(train, images=train.images[:].repeat(1, 3, 1, 1))
    with pytest.raises(BadInput, match="the model expects 1 channels"):
        probe(model(), three, replace(test, images=test.images[:].repeat(1, 3, 1, 1)))
    assert train.labels is not None and test.labels is not None
    unnamed = (replace(data, classes=None) for data in (train.subset(torch.nonzero(train.labels < 9).flatten()), test))
    with pytest.raises(BadInput, match="a test image has the label 9, but the training images have 9 classes"):
        probe(model(), *unnamed)
    with pytest.raises(BadInput, match="not finite"):
        probe(model(), train, test, epochs=2, lr=1e38, optimizer=optim.sgd, weight_decay=1.0)
