"""The steps: what one turn of the loop does to a `State`. One function for each kind of data.

    two_views   two augmented views of a batch of images: contrastive learning
    labelled    images and their labels: probes, fine-tuning, classifiers
    paired      images and one of the texts of each: two encoders, one space of features

A step takes B rows (`State.batch`), makes a loss, updates, and adds to the epoch's sums. It never waits for the device
and makes every index tensor itself, so that the whole of it is one CUDA graph (engine.py). To add one: write such a
function here, name what it counts, and say in a `line` function what the log shows of the sums; then call
`loop.run_job` with it, as train.py and finetune.py do.

N rows, B the batch, D features, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from nonneg import augment, engine
from nonneg.loop import State
from nonneg.run import Run, Training

EPS = 1e-5  # a feature below this counts as zero, as in the sparsity measure


def two_views(run: Run, s: State, steps_per_epoch: int) -> Callable[[], None]:
    """One step of the paper's algorithm on `s`: two views of a batch, their features, the loss, an update, counts.

    Where rows have partners (images of the same class), the second view is of the partner.
    """
    n, device = run.batch_size, s.order.device
    mode, precision = engine.choose(run.mode, run.precision, device)
    fuse, takes_labels = engine.fuser(mode), run.loss_takes_labels
    rate = run.rate(steps_per_epoch)

    def make_views(noise: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        batch = s.batch(n, steps_per_epoch)
        x = batch["images"]
        x = x if len(x) == 2 * n else torch.cat([x, x])  # partners, or the same images again
        views = run.augment(x, noise).contiguous(memory_format=torch.channels_last)
        return views, (batch["labels"][:n],) if takes_labels else ()

    def forward(views: Tensor, labels: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            joint = run.batch_norm == "joint"
            z = s.model(views) if joint else torch.cat([s.model(views[:n]), s.model(views[n:])])
        return run.loss(z[:n], z[n:], *labels), z

    def update() -> None:
        s.lr.copy_(rate(s.step))
        s.optimizer.step()

    make_views, forward, update, tally = fuse(make_views), fuse(forward), fuse(update), fuse(count_features)

    def step() -> None:
        loss, z = forward(*make_views(augment.draw_noise(2 * n, generator=s.generator)))
        loss.backward()
        update()
        s.optimizer.zero_grad()
        tally(s, loss.detach(), z.detach())

    return engine.executor(step, mode, state=s.changing, generator=s.generator)


def class_pairs(labels: Tensor) -> Callable[..., Tensor]:
    """What draws an epoch's pairs, 2 x N: all rows in random order, and beside each another row of its class.

    Partners are drawn evenly; a row that is alone in its class is its own. `draw(generator=...)` never waits for the
    device: class by class rows lie side by side, and a partner is so many places further round in its class.
    """
    _, y, size = labels.unique(return_inverse=True, return_counts=True)
    by_class = y.argsort(stable=True)
    n, first = len(y), size.cumsum(0) - size  # where each class begins in by_class
    first, size = first[y], size[y]  # of each row's class
    place = torch.empty_like(by_class)
    place[by_class] = torch.arange(n, device=y.device) - first[by_class]  # of each row in its class

    def draw(*, generator: torch.Generator) -> Tensor:
        share = torch.rand(n, generator=generator, device=y.device, dtype=torch.float64)
        further = 1 + (share * (size - 1)).long()  # 1 to size - 1; for a lone row 1, which is itself again
        partner = by_class[first + (place + further) % size]
        order = torch.randperm(n, generator=generator, device=y.device)
        return torch.stack([order, partner[order]])

    return draw


def labelled(
    s: State,
    steps_per_epoch: int,
    *,
    batch_size: int,
    augmentation: Callable[[Tensor, Tensor], Tensor],
    rate: Callable[[Tensor], Tensor],
    mode: engine.Mode = "auto",
    precision: engine.Precision = "auto",
) -> Callable[[], None]:
    """One step of sum over heads of mean CE(logits, y); `s.model(x)` gives each head's logits by its name.

    `rate` is the learning rate at a step. A model that wants a part of itself in float32 turns autocast off there.
    """
    n, device = batch_size, s.order.device
    mode, precision = engine.choose(mode, precision, device)  # pyright: ignore[reportAssignmentType]

    def make_batch(noise: Tensor) -> tuple[Tensor, Tensor]:
        batch = s.batch(n, steps_per_epoch)
        x = augmentation(batch["images"], noise).contiguous(memory_format=torch.channels_last)
        return x, batch["labels"]

    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = s.model(x)
        losses = torch.stack([F.cross_entropy(v.float(), y) for v in logits.values()])
        return losses, torch.stack([(v.argmax(1) == y).sum() for v in logits.values()])

    def update() -> None:
        s.lr.copy_(rate(s.step))
        s.optimizer.step()

    def tally(losses: Tensor, right: Tensor) -> None:
        s.step += 1
        s.totals += torch.cat([losses.double(), right.double()])

    make_batch, forward, update, tally = map(engine.fuser(mode), (make_batch, forward, update, tally))

    def step() -> None:
        losses, right = forward(*make_batch(augment.draw_noise(n, generator=s.generator)))
        losses.sum().backward()  # heads that share no parameter that learns are each trained as if alone
        update()
        s.optimizer.zero_grad()
        tally(losses.detach(), right)

    return engine.executor(step, mode, state=s.changing, generator=s.generator)


def paired(
    run: Training, loss_of: Callable[..., Tensor], texts: Tensor, s: State, steps_per_epoch: int
) -> Callable[[], None]:
    """One step on a view of each image and one of its texts, drawn anew each time; `s.model(x, rows)` gives both z.

    `texts` are all captions as rows of numbers, those of one image together: from `first` on, `counts` of them. A
    temperature that the model learns goes to the loss, and is kept in its bounds after the update.
    """
    n, device, model = run.batch_size, s.order.device, cast(Any, s.model)
    mode, precision = engine.choose(run.mode, run.precision, device)
    fuse = engine.fuser(mode)
    rate = run.rate(steps_per_epoch)

    def make_batch(noise: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        batch = s.batch(n, steps_per_epoch)
        x = run.augment(batch["images"], noise).contiguous(memory_format=torch.channels_last)
        which = torch.minimum((drawn * batch["counts"]).long(), batch["counts"] - 1)  # a product may round up
        return x, texts[batch["first"] + which]

    def forward(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            z1, z2 = model(x, rows)
        learned = {} if model.log_scale is None else {"temperature": model.temperature()}
        return loss_of(z1, z2, **learned), torch.cat([z1, z2])

    def update() -> None:
        s.lr.copy_(rate(s.step))
        s.optimizer.step()
        model.keep_in_bounds()

    make_batch, forward, update, tally = fuse(make_batch), fuse(forward), fuse(update), fuse(count_features)

    def step() -> None:
        noise = augment.draw_noise(n, generator=s.generator)
        loss, z = forward(*make_batch(noise, torch.rand(n, generator=s.generator, device=device)))
        loss.backward()
        update()
        s.optimizer.zero_grad()
        tally(s, loss.detach(), z.detach())

    return engine.executor(step, mode, state=s.changing, generator=s.generator)


# What is counted, and what the log shows of it

FEATURES = ("loss", "zeros", "zero_rows", "steps", "alive", "bad")  # sums; features alive so far; first bad step
LOSS, ZEROS, ZERO_ROWS, STEPS, ALIVE, BAD = range(len(FEATURES))


def count_features(s: State, loss: Tensor, z: Tensor) -> None:
    """Add one step to the counters of a step that gives features z, on the device."""
    on = z.abs() >= EPS
    s.alive |= on.any(dim=0)
    s.step += 1
    s.totals[LOSS] += loss
    s.totals[ZEROS] += 1 - on.double().mean()
    s.totals[ZERO_ROWS] += (~on.any(dim=1)).sum()
    s.totals[STEPS] += 1
    s.totals[ALIVE] = s.alive.sum()
    s.totals[BAD] = torch.where((s.totals[BAD] == 0) & ~loss.isfinite(), s.step, s.totals[BAD])


def features_line(totals: dict[str, float], steps: int) -> dict[str, Any]:
    """Means over the epoch so far, from the sums over its steps."""
    return {
        "loss": totals["loss"] / steps,
        "zeros": totals["zeros"] / steps,
        "alive": int(totals["alive"]),
        "zero_rows": int(totals["zero_rows"]),
    }


def answers(heads: Sequence[str]) -> tuple[str, ...]:
    """What a labelled step counts: the loss of each head, then the right answers of each."""
    return (*(f"loss_{head}" for head in heads), *(f"right_{head}" for head in heads))


def answers_line(totals: dict[str, float], steps: int, *, batch_size: int) -> dict[str, Any]:
    """The mean loss and the share of right answers of each head over the epoch so far; `loss` is the sum of heads."""
    each = {k: v / steps for k, v in totals.items() if k.startswith("loss_")}
    right = {k.replace("right_", "accuracy_"): v / steps / batch_size for k, v in totals.items() if k not in each}
    return {"loss": sum(each.values()), **each, **right}
