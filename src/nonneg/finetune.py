"""The paper's probes, on images: a linear classifier on a frozen encoder, or the encoder fine-tuned with it.

N images, B the batch, C classes. A head reads h (the backbone's output) or z (the features); several heads on one
frozen encoder share each forward pass. The step is `steps.labelled`, repeated by the one loop (loop.py).
"""

import copy
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from nonneg import augment, backbones, engine, loop, optim, rundir, steps
from nonneg.data import Dataset, stream
from nonneg.encoder import Encoder, in_parts
from nonneg.errors import BadInput
from nonneg.loop import Job, Keep, Rows, State

Place = Literal["h", "z"]


@dataclass(frozen=True, eq=False)
class ProbeRun:
    """A trained head, the encoder it reads, and shares of right answers: on test images, on the last training crops."""

    accuracy: float
    train_accuracy: float
    seconds: float  # of the whole call, which may have trained other heads as well
    head: nn.Linear = field(repr=False)
    encoder: Encoder = field(repr=False)


def constant(step: Tensor, *, peak: float, warmup: int, total: int) -> Tensor:  # noqa: ARG001 (a schedule's signature)
    """The same learning rate at every step."""
    return torch.full_like(step, peak, dtype=torch.float32)


def probe(
    encoder: Encoder,
    train: Dataset,
    test: Dataset,
    *,
    on: Sequence[Place] = ("h",),
    tune: bool = False,
    epochs: int = 50,
    lr: float = 0.4,
    weight_decay: float = 1e-4,
    batch_size: int = 256,
    warmup_epochs: int = 10,
    optimizer: Callable[..., Optimizer] = optim.lars,
    schedule: Callable[..., Tensor] = optim.warmup_cosine,
    augmentation: Callable[[Tensor, Tensor], Tensor] = augment.crop_flip,
    seed: int = 0,
    device: str | torch.device = "cpu",
    mode: engine.Mode = "auto",
    precision: engine.Precision = "auto",
    folder: Path | None = None,
    resume: bool = False,
) -> dict[str, ProbeRun]:
    """min over W, b of mean CE(W f(crop) + b, y) by the paper's protocol, for each f of `on`; then test accuracy.

    The encoder is frozen in evaluation mode or, with `tune`, trained along with batch norm in training mode; either
    way it is a copy, and what was given is not touched. lr is for a batch of 256; the warm-up takes at most a third.
    In a `folder` it is checkpointed and logged, and `resume` continues exactly; without one it leaves nothing behind.
    """
    began = time.monotonic()
    device = torch.device(device)
    classes = _check(encoder, train, test, on, tune, epochs, batch_size)
    assert train.labels is not None
    mode, precision = engine.choose(mode, precision, device, short=True)  # pyright: ignore[reportAssignmentType]
    n = min(batch_size, len(train))
    rows, per_epoch = Rows(train, {"labels": train.labels}), len(train) // n
    rate = partial(
        schedule,
        peak=lr * n / 256,
        warmup=min(warmup_epochs, epochs // 3) * per_epoch,
        total=epochs * per_epoch,
    )

    def begin() -> State:
        model = _with_heads(encoder, train, on, classes, tune, seed).to(device)
        learning = [*model.heads.parameters()]
        if tune:
            learning += (model.encoder if "z" in on else model.encoder.backbone).parameters()
        make = partial(optimizer, learning, weight_decay=weight_decay)
        return loop.begin(
            model, rows, optimizer=make, batch_size=n, seed=seed, device=device, counters=steps.answers(on)
        )  # fmt: skip

    settings = {"on": list(on), "tune": tune, "epochs": epochs, "lr": lr, "weight_decay": weight_decay, "seed": seed}
    settings |= {"batch_size": n, "warmup_epochs": warmup_epochs, "precision": precision, "encoder": digest(encoder)}
    settings |= {"optimizer": _name(optimizer), "schedule": _name(schedule), "augment": _name(augmentation)}
    job = Job(
        rows=rows,
        batch_size=n,
        epochs=epochs,
        device=device,
        line=partial(steps.answers_line, batch_size=n),
        label=f"{'fine-tuning' if tune else 'probing'} {' and '.join(on)}",
        advice="Lower lr, or check that the encoder's weights are finite",
        keep=folder and Keep(
            folder,
            rundir.describe("probe", settings, train, device),
            again=f"probe(..., folder={str(folder)!r}, resume=True)",
            resume=resume,
        ),
    )  # fmt: skip
    step = partial(
        steps.labelled, batch_size=n, augmentation=augmentation, rate=rate, mode=mode, precision=precision
    )  # fmt: skip
    s = loop.run_job(job, begin=begin, step=step)
    assert isinstance(s.model, WithHeads)
    heads: dict[str, nn.Linear] = {place: s.model.heads[place].requires_grad_(False) for place in on}  # pyright: ignore[reportAssignmentType]
    right = accuracy(s.model.encoder, heads, test, device=device, precision=precision)
    seconds = time.monotonic() - began
    seen = job.line(dict(zip(s.counters, s.totals.tolist(), strict=True)), per_epoch)
    return {p: ProbeRun(right[p], seen[f"accuracy_{p}"], seconds, heads[p], s.model.encoder) for p in on}


class WithHeads(nn.Module):
    """An encoder and linear heads on it; forward gives the logits of each head by its place."""

    def __init__(self, encoder: Encoder, heads: nn.ModuleDict) -> None:
        super().__init__()
        self.encoder, self.heads = encoder, heads

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return _logits(self.encoder, self.heads, x)


class Score(NamedTuple):
    """The share of right answers, and the mean cross entropy of the images that could be read."""

    accuracy: float
    loss: float


def accuracy(
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    data: Dataset,
    *,
    device: str | torch.device = "cpu",
    precision: engine.Precision = "auto",
    batch_size: int = 1000,
) -> dict[str, float]:
    """Each head's share of right answers on all of `data`, unaugmented, the encoder in evaluation mode."""
    found = scores(encoder, heads, data, device=device, precision=precision, batch_size=batch_size)
    return {place: score.accuracy for place, score in found.items()}


@torch.inference_mode()
def scores(
    encoder: Encoder,
    heads: Mapping[str, nn.Module],
    data: Dataset,
    *,
    device: str | torch.device = "cpu",
    precision: engine.Precision = "auto",
    batch_size: int = 1000,
) -> dict[str, Score]:
    """Each head's accuracy and cross entropy on all of `data`, unaugmented, the encoder in evaluation mode."""
    device = torch.device(device)
    if data.labels is None:
        raise BadInput(f"{data.name} has no labels: accuracy needs labelled images")
    precision = engine.choose("eager", precision, device)[1]  # pyright: ignore[reportAssignmentType]
    encoder = encoder.to(device).eval()
    right = torch.zeros(len(heads), dtype=torch.int64, device=device)
    losses, unread = torch.zeros(len(heads), dtype=torch.float64, device=device), 0

    def logits(images: Tensor) -> tuple[Tensor, ...]:
        x = (images.float() / 255).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            return tuple(_logits(encoder, heads, x).values())

    batches = stream.in_order(data.images, batch_size=batch_size, device=device)
    for (images, bad), labels in zip(batches, data.labels.split(batch_size), strict=True):
        y = labels.clone()
        y[list(bad)] = -1  # an image that cannot be read is an answer missed
        found, y = in_parts(logits, images.to(device, non_blocking=True)), y.to(device)
        right += torch.stack([(v.argmax(1) == y).sum() for v in found])
        each = [F.cross_entropy(v, y, ignore_index=-1, reduction="sum") for v in found]
        losses, unread = losses + torch.stack(each), unread + len(bad)
    n = len(data)
    by_head = zip(heads, right.tolist(), losses.tolist(), strict=True)
    return {place: Score(count / n, loss / max(n - unread, 1)) for place, count, loss in by_head}


def _logits(encoder: Encoder, heads: nn.ModuleDict | Mapping[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
    """B x C for each head; the encoder in whatever precision holds here, the heads always in float32."""
    places = {"h": encoder.features(x)}
    if "z" in heads:
        places["z"] = encoder.map(encoder.projector(places["h"]))
    with torch.autocast(x.device.type, enabled=False):
        return {place: head(places[place].float()) for place, head in heads.items()}


def _with_heads(
    encoder: Encoder, train: Dataset, on: Sequence[Place], classes: int, tune: bool, seed: int
) -> WithHeads:
    """A copy of the encoder, frozen unless tuned, and heads as nn.Linear draws them, the same for any `on`."""
    model = copy.deepcopy(encoder).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    model.train(tune).requires_grad_(tune)
    width = {"h": backbones.output_width(encoder.backbone, train.channels), "z": encoder.dim}
    heads = nn.ModuleDict()
    for place in on:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads[place] = nn.Linear(width[place], classes)
    return WithHeads(model, heads)


def digest(encoder: Encoder) -> str:
    """The first 16 hex digits of sha256 of the weights: by it a probe of another encoder is told."""
    digest = hashlib.sha256()
    for name, values in encoder.state_dict().items():
        digest.update(name.encode() + values.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _name(f: Callable[..., Any]) -> str:
    """A function in words, with the knobs that were bound."""
    if isinstance(f, partial):
        return f"{_name(f.func)} {f.keywords}"
    return getattr(f, "__name__", repr(f))


def _check(
    encoder: Encoder,
    train: Dataset,
    test: Dataset,
    on: Sequence[Place],
    tune: bool,
    epochs: int,
    batch_size: int,
) -> int:
    """Refuse what cannot be probed; the number of classes."""
    if not on or len(set(on)) != len(on) or not {"h", "z"}.issuperset(on):
        raise BadInput(f"on is {tuple(on)}: name h (the backbone's output), z (the features) or both, once each")
    if tune and len(on) > 1:
        raise BadInput("fine-tuning h and z at once would train one encoder for two heads: tune one at a time")
    if epochs < 1 or batch_size < 1:
        raise BadInput(f"epochs is {epochs} and batch_size {batch_size}: give at least 1 of each")
    for data in (train, test):
        if data.labels is None:
            raise BadInput(f"{data.name} has no labels: a probe needs labelled images")
        if data.channels != (wanted := encoder.about["channels"]):
            raise BadInput(f"the model expects {wanted} channels, {data.name} has {data.channels}")
    assert train.labels is not None and test.labels is not None
    classes = len(train.classes) if train.classes else int(train.labels.max()) + 1
    if (largest := int(test.labels.max())) >= classes:
        raise BadInput(
            f"{test.name}: a test image has the label {largest}, but the training images have {classes} classes"
        )
    return classes
