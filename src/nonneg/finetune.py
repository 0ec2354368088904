"""The paper's probes, on images: a linear classifier on a frozen encoder, or the encoder fine-tuned with it.

N images, B the batch, C classes. A head reads h (the backbone's output) or z (the features); several heads on one
frozen encoder share each forward pass. Like a training step, a probe's step never waits for the device, and images that
are not all on it are streamed into a buffer of one batch.
"""

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from nonneg import augment, backbones, engine, optim, progress
from nonneg.data import Dataset, stream
from nonneg.encoder import Encoder
from nonneg.errors import BadInput

Place = Literal["h", "z"]


@dataclass(frozen=True, eq=False)
class ProbeRun:
    """A trained head, the encoder it reads, and shares of right answers: on test images, on the last training crops."""

    accuracy: float
    train_accuracy: float
    seconds: float  # of the whole call, which may have trained other heads as well
    head: nn.Linear = field(repr=False)
    encoder: Encoder = field(repr=False)


@dataclass
class _State:
    """All that a step reads and changes."""

    encoder: Encoder
    heads: nn.ModuleDict
    optimizer: Optimizer
    generator: torch.Generator
    images: Tensor  # uint8, all N of them, or one batch where they are streamed
    labels: Tensor  # of those images
    order: Tensor  # this epoch's permutation of the N images
    step: Tensor
    lr: Tensor
    totals: Tensor  # sums over this epoch: the loss of each head, then the right answers of each

    def changing(self) -> list[Tensor]:
        """Every tensor that a step changes in place."""
        moments = [v for slots in self.optimizer.state.values() for v in slots.values()]
        model = [*self.encoder.parameters(), *self.encoder.buffers(), *self.heads.parameters()]
        return [*model, *moments, self.step, self.lr, self.totals]


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
) -> dict[str, ProbeRun]:
    """min over W, b of mean CE(W f(crop) + b, y) by the paper's protocol, for each f of `on`; then test accuracy.

    The encoder is frozen in evaluation mode or, with `tune`, trained along with batch norm in training mode; either
    way it is a copy, and what was given is not touched. lr is for a batch of 256; the warm-up takes at most a third.
    """
    began = time.monotonic()
    device = torch.device(device)
    classes = _check(encoder, train, test, on, tune, epochs, batch_size)
    chosen, precision = engine.choose(mode, precision, device, short=True)  # pyright: ignore[reportAssignmentType]
    n = min(batch_size, len(train))
    steps = len(train) // n
    streamed = not _fits(train.images, device)
    s = _fresh(encoder, train, on, classes, tune, optimizer, weight_decay, seed, device, n if streamed else None)

    def make_batch(noise: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(n, device=device)
        rows = rows if streamed else s.order[s.step % steps * n + rows]
        return augmentation(s.images[rows], noise).contiguous(memory_format=torch.channels_last), s.labels[rows]

    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        logits = _logits(s.encoder, s.heads, x, precision)
        losses = torch.stack([F.cross_entropy(v, y) for v in logits.values()])
        return losses, torch.stack([(v.argmax(1) == y).sum() for v in logits.values()])

    def update() -> None:
        warmup = min(warmup_epochs, epochs // 3) * steps
        s.lr.copy_(schedule(s.step, peak=lr * n / 256, warmup=warmup, total=epochs * steps))
        s.optimizer.step()

    def tally(losses: Tensor, right: Tensor) -> None:
        s.step += 1
        s.totals += torch.cat([losses.double(), right.double()])

    make_batch, forward, update, tally = map(engine.fuser(chosen), (make_batch, forward, update, tally))

    def step() -> None:
        losses, right = forward(*make_batch(augment.draw_noise(n, generator=s.generator)))
        losses.sum().backward()  # heads share no parameter that learns, so a sum trains each as if it were alone
        update()
        s.optimizer.zero_grad()
        tally(losses.detach(), right)

    with engine.on(device):
        run = engine.executor(step, chosen, state=s.changing, generator=s.generator)
        label = f"{'fine-tuning' if tune else 'probing'} {' and '.join(on)}"
        if streamed:
            assert train.labels is not None  # _check saw to it
            with stream.Source(train.images, batch_size=n, device=device) as source:
                last = _loop(s, run, epochs, steps, label, partial(_feed, s, source, train.labels))
        else:
            last = _loop(s, run, epochs, steps, label, lambda: range(steps))
    heads: dict[str, nn.Linear] = {place: s.heads[place].requires_grad_(False) for place in on}  # pyright: ignore[reportAssignmentType]
    right = accuracy(s.encoder, heads, test, device=device, precision=precision)
    seconds = time.monotonic() - began
    seen = [v / (steps * n) for v in last[len(on) :]]
    return {p: ProbeRun(right[p], seen[i], seconds, heads[p], s.encoder) for i, p in enumerate(on)}


@torch.inference_mode()
def accuracy(
    encoder: Encoder,
    heads: Mapping[str, nn.Linear],
    data: Dataset,
    *,
    device: str | torch.device = "cpu",
    precision: engine.Precision = "auto",
    batch_size: int = 1000,
) -> dict[str, float]:
    """Each head's share of right answers on all of `data`, unaugmented, the encoder in evaluation mode."""
    device = torch.device(device)
    if data.labels is None:
        raise BadInput(f"{data.name} has no labels: accuracy needs labelled images")
    precision = engine.choose("eager", precision, device)[1]  # pyright: ignore[reportAssignmentType]
    encoder = encoder.to(device).eval()
    right = torch.zeros(len(heads), dtype=torch.int64, device=device)
    batches = stream.in_order(data.images, batch_size=batch_size, device=device)
    for (images, bad), labels in zip(batches, data.labels.split(batch_size), strict=True):
        y = labels.clone()
        y[list(bad)] = -1  # an image that cannot be read is an answer missed
        x, y = images.to(device, non_blocking=True).float() / 255, y.to(device)
        logits = _logits(encoder, heads, x.contiguous(memory_format=torch.channels_last), precision)
        right += torch.stack([(v.argmax(1) == y).sum() for v in logits.values()])
    return {place: count / len(data) for place, count in zip(heads, right.tolist(), strict=True)}


def _logits(
    encoder: Encoder, heads: nn.ModuleDict | Mapping[str, nn.Linear], x: Tensor, precision: str
) -> dict[str, Tensor]:
    """B x C for each head; the encoder in the given precision, the heads always in float32."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=precision == "bf16"):
        places = {"h": encoder.features(x)}
        if "z" in heads:
            places["z"] = encoder.map(encoder.projector(places["h"]))
    return {place: head(places[place].float()) for place, head in heads.items()}


def _loop(
    s: _State, step: Callable[[], None], epochs: int, steps: int, label: str, feed: Callable[[], Iterable[object]]
) -> list[float]:
    """Shuffle and step until the last epoch is over, `feed` bringing each batch of an epoch; its totals."""
    reader, shown, totals = engine.Reader(), 0, [0.0]
    with progress.bar(label, epochs) as advance:
        for epoch in range(1, epochs + 1):
            s.order.copy_(torch.randperm(len(s.order), generator=s.generator, device=s.order.device))
            s.totals.zero_()
            for _ in feed():
                step()
            reader.post(epoch, s.totals)
            for seen, totals in reader.arrived(wait=epoch == epochs):
                advance(seen - shown, note=f"loss {totals[0] / steps:.3f}")
                shown = seen
    if not all(math.isfinite(v) for v in totals):
        raise BadInput(f"{label}: the loss is not finite; lower lr, or check that the encoder's weights are finite")
    return totals


def _feed(s: _State, source: stream.Source, labels: Tensor) -> Iterator[None]:
    """This epoch's batches, each copied to where the step looks for it."""
    n = len(s.images)
    order = s.order.cpu()[: len(s.order) // n * n]
    for (x, bad), rows in zip(source.batches(order), order.split(n), strict=True):
        y = labels[rows].pin_memory() if s.labels.is_cuda else labels[rows]  # pageable memory would make the host wait
        if bad:
            stream.replace_unreadable(x, bad)
            stream.replace_unreadable(y, bad)
        s.images.copy_(x, non_blocking=True)
        s.labels.copy_(y, non_blocking=True)
        yield


def _fits(images: Tensor | stream.Files, device: torch.device) -> bool:
    """Whether the images are in memory and leave half of a GPU's free memory to the network."""
    if not isinstance(images, Tensor):
        return False
    return device.type != "cuda" or images.nbytes < torch.cuda.mem_get_info(device)[0] / 2


def _fresh(
    encoder: Encoder,
    train: Dataset,
    on: Sequence[Place],
    classes: int,
    tune: bool,
    optimizer: Callable[..., Optimizer],
    weight_decay: float,
    seed: int,
    device: torch.device,
    buffer: int | None,
) -> _State:
    """The state before the first step: a copy of the encoder, heads as nn.Linear draws them, the same for any `on`."""
    assert train.labels is not None
    model = copy.deepcopy(encoder).to(device, memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    model.train(tune).requires_grad_(tune)
    width = {"h": backbones.output_width(encoder.backbone, train.channels), "z": encoder.dim}
    heads = nn.ModuleDict()
    for place in on:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            heads[place] = nn.Linear(width[place], classes)
    heads.to(device)
    learning = list(heads.parameters())
    if tune:
        learning += (model if "z" in on else model.backbone).parameters()
    lr = torch.zeros((), device=device)
    if buffer is None:
        assert isinstance(train.images, Tensor)
        images, labels = train.images.to(device), train.labels.to(device)
    else:
        images = torch.zeros(buffer, *train.images.shape[1:], dtype=torch.uint8, device=device)
        labels = torch.zeros(buffer, dtype=torch.int64, device=device)
    return _State(
        encoder=model,
        heads=heads,
        optimizer=optimizer(learning, lr=lr, weight_decay=weight_decay),
        generator=torch.Generator(device).manual_seed(seed),
        images=images,
        labels=labels,
        order=torch.arange(len(train), device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        lr=lr,
        totals=torch.zeros(2 * len(on), dtype=torch.float64, device=device),
    )


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
        if data.channels != encoder.mean.shape[1] and encoder.mean.shape[1] != 1:
            raise BadInput(f"the model expects {encoder.mean.shape[1]} channels, {data.name} has {data.channels}")
    assert train.labels is not None
    return len(train.classes) if train.classes else int(train.labels.max()) + 1
