"""Training: the paper's algorithm, a loop around one `step`, and a checkpoint from which it continues exactly.

N images, B the batch, D features. Everything that changes lives in `State`, as tensors on the device. Images that do
not all fit there are streamed: a batch is brought to the device before each step, and all else is the same.
"""

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from nonneg import augment, encoder, engine, optim, progress, rundir
from nonneg.data import Dataset, Files
from nonneg.data.stream import Source, replace_unreadable
from nonneg.encoder import Encoder
from nonneg.errors import BadInput
from nonneg.run import Run

EPS = 1e-5  # a feature below this counts as zero, as in the sparsity measure
SAMPLE = 2000  # images from which mean and deviation are taken
READ_EVERY = 16  # steps between two looks at the counters of a GPU
LOSS, ZEROS, ZERO_ROWS, STEPS, ALIVE, BAD = range(6)  # places in State.totals


class Interrupted(BadInput):
    """Training was stopped on request; what it says is how to resume."""


@dataclass
class State:
    """All that a step reads and changes."""

    encoder: Encoder
    optimizer: Optimizer
    generator: torch.Generator
    images: Tensor  # uint8, all N x C x H x W; when streamed, the B of the step
    streamed: bool
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
    mean, std = _mean_and_deviation(data)
    streamed = not _fits(data, device)
    place = torch.zeros(run.batch_size, *data.images.shape[1:], dtype=torch.uint8) if streamed else data.images
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
        images=cast(Tensor, place).to(device),
        streamed=streamed,
        order=torch.arange(len(data), device=device),
        step=torch.zeros((), dtype=torch.int64, device=device),
        lr=lr,
        totals=torch.zeros(6, dtype=torch.float64, device=device),
        alive=torch.zeros(model.dim, dtype=torch.bool, device=device),
    )


def _mean_and_deviation(data: Dataset) -> tuple[Tensor, Tensor]:
    """Of each channel, over at most SAMPLE images evenly spread."""
    which = torch.arange(0, len(data), -(-len(data) // SAMPLE))
    if isinstance(data.images, Files):
        x, bad = data.images.read(which.tolist())
        x = x[[row for row in range(len(x)) if row not in bad] or [0]]
    else:
        x = data.images[which.to(data.images.device)]
    x = x.float() / 255
    return x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3)).clamp_min(1e-3)


def _fits(data: Dataset, device: torch.device) -> bool:
    """Whether all images can stay on the device: they are in memory, and leave half of a GPU's free memory free."""
    if isinstance(data.images, Files):
        engine.say(f"{len(data)} images are streamed from disk, for they take {_gib(data.images)} GiB when decoded")
        return False
    if device.type != "cuda" or data.images.is_cuda:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    if data.images.nbytes <= free / 2:
        return True
    engine.say(
        f"{len(data)} images are streamed from the host's memory, for they take {_gib(data.images)} GiB, "
        f"more than half of the {free / 2**30:.1f} GiB free on the GPU"
    )
    return False


def _gib(images: Tensor | Files) -> str:
    return f"{math.prod(images.shape) / 2**30:.1f}"


def two_views(run: Run, s: State, steps_per_epoch: int) -> Callable[[], None]:
    """One step of the paper's algorithm on `s`: two views of a batch, their features, the loss, an update, counts."""
    n, device = run.batch_size, s.images.device
    mode, precision = engine.choose(run.mode, run.precision, device)
    fuse = engine.fuser(mode)
    total, warmup = run.epochs * steps_per_epoch, min(run.warmup_epochs, run.epochs - 1) * steps_per_epoch
    peak = run.lr * n / 256

    def make_views(noise: Tensor) -> Tensor:
        rows = s.step % steps_per_epoch * n + torch.arange(n, device=device)
        x = s.images if s.streamed else s.images[s.order[rows]]
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
    if run.data_root is not None:  # run.json must mean the same from any folder
        run = replace(run, data_root=run.data_root.absolute())
    if resume and overwrite:
        raise BadInput("--resume continues a run and --overwrite replaces it; give one of them")
    job = Job(run, data or run.load("train"), Path(folder), label)
    if job.steps_per_epoch == 0:
        many, name = len(job.data), job.data.name
        raise BadInput(f"--batch-size {run.batch_size} is larger than the {many} images of {name}; lower it")
    if resume:
        rundir.check_same(run, job.folder, job.data)
    else:
        rundir.check_free(job.folder, overwrite)
    if skipped := job.data.skipped:
        engine.say(f"{len(skipped)} inputs skipped (all listed in {job.folder / 'log.jsonl'}), first {skipped[0]}")
    with engine.on(run.torch_device()), _memory_named(run, job.data):
        s, done = fresh(run, job.data), 0
        checkpoint = rundir.load_checkpoint(job.folder, previous=previous) if resume else None
        if checkpoint is not None:  # else killed before the first one: the run starts again, and ends the same
            tensors, done = checkpoint
            s.restore(tensors)
        step = two_views(run, s, job.steps_per_epoch)
        if not resume:  # only now, when all that was asked for can be done, is anything replaced
            rundir.claim(run, job.folder, job.data)
        _loop(job, s, step, done)
    encoder.save(s.encoder, job.folder)
    return s.encoder.eval()


@dataclass(frozen=True)
class Job:
    """What one call of `train` is about."""

    run: Run
    data: Dataset
    folder: Path
    label: str

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data) // self.run.batch_size

    @property
    def steps(self) -> int:
        return self.run.epochs * self.steps_per_epoch


def _loop(job: Job, s: State, step: Callable[[], None], done: int) -> None:
    """Shuffle, step, look, save - until the last epoch is over."""
    run, per_epoch, total = job.run, job.steps_per_epoch, job.steps
    reader, at, shown = engine.Reader(), done, done
    started = saved = time.monotonic()
    look = READ_EVERY if s.totals.is_cuda else 1  # on a CPU a look costs nothing, and steps may be slow
    with (
        _stop_requested() as stop,
        progress.bar(job.label, total) as advance,
        rundir.Log(run, job.folder, done, job.data.skipped) as log,
        _feeder(job, s, log) as feed,
    ):
        advance(done)
        while at < total:
            if at % per_epoch == 0:
                s.order.copy_(torch.randperm(len(s.order), generator=s.generator, device=s.order.device))
                s.totals.zero_()
                s.alive.zero_()
            feed(at % per_epoch)
            step()
            at += 1
            save = at == total or stop.is_set() or time.monotonic() - saved > run.checkpoint_seconds
            if save or at % per_epoch == 0 or at % look == 0:
                reader.post(at, s.totals)
            for seen, totals in reader.arrived(wait=save):
                line = _summary(totals, seen, per_epoch)
                _check_finite(totals, seen, per_epoch, job.folder)
                advance(seen - shown, note="loss {loss:.3f}  alive {alive}  zeros {zeros:.0%}".format(**line))
                shown = seen
                if seen % per_epoch == 0:
                    log.write(line, seconds=time.monotonic() - started)
            if save:  # the losses up to here were seen and are finite; is what they led to?
                tensors = s.tensors()
                _check_weights(tensors, at, job.folder)
                rundir.save_checkpoint(job.folder, tensors, at)
                saved = time.monotonic()
            if stop.is_set() and at < total:
                again = _resume_command(run, job.folder)
                raise Interrupted(f"stopped at step {at} of {total}; nothing is lost. Resume with: {again}")


@contextmanager
def _feeder(job: Job, s: State, log: rundir.Log) -> Iterator[Callable[[int], None]]:
    """What puts batch `i` of the epoch into `s.images`, for i = 0, 1, ... or from where a run is resumed."""
    if not s.streamed:
        yield lambda _: None
        return
    n, device = job.run.batch_size, s.images.device
    batches: Iterator[tuple[Tensor, dict[int, str]]] | None = None
    with Source(job.data.images, batch_size=n, device=device) as source:

        def feed(i: int) -> None:
            nonlocal batches
            if i == 0 or batches is None:
                batches = source.batches(s.order[i * n : job.steps_per_epoch * n])  # the device waits: once an epoch
            x, bad = next(batches)
            if bad:
                which = s.order[i * n : (i + 1) * n].tolist()
                _list_unreadable({job.data.ids[which[row]]: why for row, why in bad.items()}, job, log)
                replace_unreadable(x, bad)
            s.images.copy_(x, non_blocking=True)  # queued behind the step that still reads what is there

        yield feed


def _list_unreadable(bad: dict[str, str], job: Job, log: rundir.Log) -> None:
    """Name, once each, the images that could be opened when training began and cannot be decoded now."""
    new = [line for name, why in bad.items() if (line := f"{name}: {why}") not in job.data.skipped]
    for line in new:
        if job.run.strict:
            raise BadInput(f"{line}; mend or remove it, or train without --strict")
        engine.say(f"cannot be read, and another image is taken in its place: {line}")
    if new:
        job.data.skipped.extend(new)
        log.add({"skipped": new})


@contextmanager
def _memory_named(run: Run, data: Dataset) -> Iterator[None]:
    """Turn a GPU's lack of memory into a sentence that says how much was needed and what to lower."""
    try:
        yield
    except RuntimeError as error:
        short = _out_of_memory(error)
        if short is None:
            raise
        asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(short))
        held = ""
        if (device := run.torch_device()).type == "cuda":
            free, whole = (x / 2**30 for x in torch.cuda.mem_get_info(device))
            most = torch.cuda.max_memory_reserved(device) / 2**30
            held = f" beyond the {most:.1f} GiB it had taken, and of the GPU's {whole:.1f} GiB {free:.1f} are free"
        raise BadInput(
            f"too little GPU memory: the run needs {asked[1] if asked else 'more'}{held}; lower --batch-size (now "
            f"{run.batch_size}) or --image-size (now {data.image_size}), or take a smaller --backbone or --projector"
        ) from error


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """The lack of memory that led to `error`: a CUDA graph that could not be recorded hides it behind its own."""
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    return error


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


def _check_weights(tensors: dict[str, Tensor], at: int, folder: Path) -> None:
    """Refuse to save a state that is no longer finite; the checkpoints before it stay as they are."""
    bad = [k for k, v in tensors.items() if v.is_floating_point() and not v.isfinite().all()]
    if bad:
        raise BadInput(
            f"at step {at} {bad[0]} is not finite ({len(bad)} tensors are not); {_kept(folder)}. "
            "Start anew with a lower --lr, or a higher temperature of the loss"
        )


def _kept(folder: Path) -> str:
    kept = rundir.checkpoint_step(folder)
    if kept is None:
        return "no checkpoint had been written yet"
    return f"the checkpoint of step {kept} is kept in {folder}"


def _check_finite(totals: list[float], at: int, steps_per_epoch: int, folder: Path) -> None:
    if totals[BAD] == 0:
        return
    bad = int(totals[BAD])
    raise BadInput(
        f"the loss is not finite since step {bad} (epoch {(bad - 1) // steps_per_epoch + 1}), seen at step {at}; "
        f"{_kept(folder)}. Start anew with a lower --lr, or a higher temperature of the loss"
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
