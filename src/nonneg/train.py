"""Training: the paper's algorithm, a loop around one `step`, and a checkpoint from which it continues exactly.

N images, B the batch, D features. Everything that changes lives in `State`, as tensors on the device.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from nonneg import augment, encoder, engine, optim, progress, rundir
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.run import Run

EPS = 1e-5  # a feature below this counts as zero, as in the sparsity measure
READ_EVERY = 16  # steps between two looks at the counters
LOSS, ZEROS, ZERO_ROWS, STEPS, ALIVE, BAD = range(6)  # places in State.totals


class Interrupted(BadInput):
    """Training was stopped on request; what it says is how to resume."""


@dataclass
class State:
    """All that a step reads and changes."""

    encoder: Encoder
    optimizer: Optimizer
    generator: torch.Generator
    images: Tensor  # N x C x H x W, uint8
    order: Tensor  # this epoch's permutation of the N images
    step: Tensor  # how many steps were taken
    lr: Tensor
    totals: Tensor  # sums over this epoch: loss, share of zeros, zero rows, steps; features alive; first bad step + 1
    alive: Tensor  # D, features seen above EPS this epoch

    def changing(self) -> list[Tensor]:
        """Every tensor that a step changes in place."""
        moments = [v for slots in self.optimizer.state.values() for v in slots.values()]
        mine = [self.step, self.lr, self.totals, self.alive]
        return [*self.encoder.parameters(), *self.encoder.buffers(), *moments, *mine]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        out = {f"model.{k}": v for k, v in self.encoder.state_dict().items()}
        for i, slots in self.optimizer.state_dict()["state"].items():
            out |= {f"optimizer.{i}.{k}": v for k, v in slots.items()}
        parts = {"order": self.order, "step": self.step, "totals": self.totals, "alive": self.alive}
        return out | parts | {"generator": self.generator.get_state()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        take = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        self.encoder.load_state_dict(take)
        parameters = list(self.encoder.parameters())
        slots: dict[int, dict[str, Tensor]] = {}
        for k, v in tensors.items():
            if k.startswith("optimizer."):
                _, i, name = k.split(".", 2)
                slots.setdefault(int(i), {})[name] = _laid_out_like(parameters[int(i)], v)
        self.optimizer.load_state_dict({"state": slots, "param_groups": self.optimizer.state_dict()["param_groups"]})
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        for name in ("order", "step", "totals", "alive"):
            getattr(self, name).copy_(tensors[name])
        self.generator.set_state(tensors["generator"])


def _laid_out_like(parameter: Tensor, saved: Tensor) -> Tensor:
    """`saved` with the parameter's strides: fused optimisers walk both through memory side by side."""
    return torch.empty_like(parameter).copy_(saved) if saved.shape == parameter.shape else saved


def fresh(run: Run, data: Dataset) -> State:
    """The state before the first step; all randomness comes from `run.seed`."""
    device = run.torch_device()
    x = data.images[:: max(1, len(data) // 10_000)].float() / 255
    mean, std = x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3)).clamp_min(1e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.seed)
        model = Encoder(
            run.backbone,
            projector=run.projector,
            map=run.map,
            channels=data.channels,
            mean=[round(m, 4) for m in mean.tolist()],
            std=[round(s, 4) for s in std.tolist()],
        )
    model = model.to(device, memory_format=torch.channels_last).train()  # pyright: ignore[reportCallIssue]
    lr = torch.zeros((), device=device)
    return State(
        encoder=model,
        optimizer=run.optimizer(model.parameters(), lr=lr, weight_decay=run.weight_decay),
        generator=torch.Generator(device).manual_seed(run.seed),
        images=data.images.to(device),
        order=torch.arange(len(data), device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        lr=lr,
        totals=torch.zeros(6, dtype=torch.float64, device=device),
        alive=torch.zeros(model.dim, dtype=torch.bool, device=device),
    )


def two_views(run: Run, s: State, steps_per_epoch: int) -> Callable[[], None]:
    """One step of the paper's algorithm on `s`: two views of a batch, their features, the loss, an update, the counts."""
    n, device = run.batch_size, s.images.device
    rows = torch.arange(n, device=device)
    mode, precision = engine.choose(run.mode, run.precision, device)
    fuse = engine.fuser(mode)
    total, warmup = run.epochs * steps_per_epoch, min(run.warmup_epochs, run.epochs - 1) * steps_per_epoch
    peak = run.lr * n / 256

    def make_views(noise: Tensor) -> Tensor:
        x = s.images[s.order[s.step % steps_per_epoch * n + rows]]
        return run.augment(torch.cat([x, x]), noise).contiguous(memory_format=torch.channels_last)

    def forward(views: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            if run.batch_norm == "joint":
                z = s.encoder(views)
            else:
                z = torch.cat([s.encoder(views[:n]), s.encoder(views[n:])])
        return run.loss(z[:n], z[n:]), z

    def update() -> None:
        s.lr.copy_(optim.warmup_cosine(s.step, peak=peak, warmup=warmup, total=total))
        s.optimizer.step()

    make_views, forward, update, tally = fuse(make_views), fuse(forward), fuse(update), fuse(count)

    def step() -> None:
        loss, z = forward(make_views(augment.draw_noise(2 * n, generator=s.generator)))
        loss.backward()
        update()
        s.optimizer.zero_grad()
        tally(s, loss.detach(), z.detach())

    return engine.executor(step, mode, state=s.changing, generator=s.generator)


def count(s: State, loss: Tensor, z: Tensor) -> None:
    """Add one step to the counters, on the device."""
    on = z.abs() >= EPS
    s.alive |= on.any(dim=0)
    s.step += 1
    s.totals[LOSS] += loss
    s.totals[ZEROS] += 1 - on.double().mean()
    s.totals[ZERO_ROWS] += (~on.any(dim=1)).sum()
    s.totals[STEPS] += 1
    s.totals[ALIVE] = s.alive.sum()
    s.totals[BAD] = torch.where((s.totals[BAD] == 0) & ~loss.isfinite(), s.step, s.totals[BAD])


def train(
    run: Run,
    folder: Path | str,
    *,
    data: Dataset | None = None,
    resume: bool = False,
    previous: bool = False,
    overwrite: bool = False,
    label: str = "training",
) -> Encoder:
    """Train `run` in `folder` and return the encoder, which is also saved there; `resume` continues exactly."""
    folder, data = Path(folder), data or run.load("train")
    if len(data) < run.batch_size:
        raise BadInput(f"--batch-size {run.batch_size} is larger than the {len(data)} images of {data.name}; lower it")
    steps_per_epoch = len(data) // run.batch_size
    if resume:
        rundir.check_same(run, folder, data)
    else:
        rundir.claim(run, folder, data, overwrite)
    s, done = fresh(run, data), 0
    checkpoint = rundir.load_checkpoint(folder, previous=previous) if resume else None
    if checkpoint is not None:  # else killed before the first one: the run starts again, and ends the same
        tensors, done = checkpoint
        s.restore(tensors)
    step = two_views(run, s, steps_per_epoch)
    if data.skipped:
        engine.say(
            f"{len(data.skipped)} inputs skipped (all listed in {folder / 'log.jsonl'}), first {data.skipped[0]}"
        )
    _loop(run, s, step, folder, done, steps_per_epoch, label, data.skipped)
    encoder.save(s.encoder, folder)
    return s.encoder.eval()


def _loop(
    run: Run,
    s: State,
    step: Callable[[], None],
    folder: Path,
    done: int,
    steps_per_epoch: int,
    label: str,
    skipped: list[str],
) -> None:
    """Shuffle, step, look, save - until the last epoch is over."""
    total = run.epochs * steps_per_epoch
    reader, at, shown = engine.Reader(), done, done
    started = saved = time.monotonic()
    with (
        _stop_requested() as stop,
        progress.bar(label, total) as advance,
        rundir.Log(run, folder, done, skipped) as log,
    ):
        advance(done)
        while at < total:
            if at % steps_per_epoch == 0:
                s.order.copy_(torch.randperm(len(s.order), generator=s.generator, device=s.order.device))
                s.totals.zero_()
                s.alive.zero_()
            step()
            at += 1
            save = at == total or stop.is_set() or time.monotonic() - saved > run.checkpoint_seconds
            if save or at % steps_per_epoch == 0 or at % READ_EVERY == 0:
                reader.post(at, s.totals)
            for seen, totals in reader.arrived(wait=save):
                line = _summary(totals, seen, steps_per_epoch)
                _check_finite(totals, seen, steps_per_epoch, folder)
                advance(seen - shown, note="loss {loss:.3f}  alive {alive}  zeros {zeros:.0%}".format(**line))
                shown = seen
                if seen % steps_per_epoch == 0:
                    log.write(line, seconds=time.monotonic() - started)
            if save:  # everything up to here was seen and is finite
                rundir.save_checkpoint(folder, s.tensors(), at)
                saved = time.monotonic()
            if stop.is_set() and at < total:
                again = _resume_command(run, folder)
                raise Interrupted(f"stopped at step {at} of {total}; nothing is lost. Resume with: {again}")


def _summary(totals: list[float], at: int, steps_per_epoch: int) -> dict[str, Any]:
    """Means over the epoch so far, from the sums."""
    steps = max(totals[STEPS], 1)
    return {
        "epoch": -(-at // steps_per_epoch),
        "step": at,
        "loss": totals[LOSS] / steps,
        "zeros": totals[ZEROS] / steps,
        "alive": int(totals[ALIVE]),
        "zero_rows": int(totals[ZERO_ROWS]),
    }


def _resume_command(run: Run, folder: Path) -> str:
    return f"nonneg train {run.to_json()['data']} --out {folder} --resume"


def _check_finite(totals: list[float], at: int, steps_per_epoch: int, folder: Path) -> None:
    if totals[BAD] == 0:
        return
    bad, kept = int(totals[BAD]), rundir.checkpoint_step(folder)
    there = (
        "no checkpoint had been written yet" if kept is None else f"the checkpoint of step {kept} is kept in {folder}"
    )
    raise BadInput(
        f"the loss is not finite since step {bad} (epoch {(bad - 1) // steps_per_epoch + 1}), seen at step {at}; "
        f"{there}. Lower --lr, or raise the loss's temperature"
    )


@contextmanager
def _stop_requested() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a polite kill sets, so that a step is never cut in two; a second Ctrl-C cuts."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(*_: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
