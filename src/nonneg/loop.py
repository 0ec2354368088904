"""The one training loop: shuffle, feed, step, look, save; and a checkpoint from which it goes on exactly.

N rows of data, B the batch, D features. It knows neither model nor loss: those are in the `step` it repeats (steps.py).
Everything that changes lives in `State`, as tensors on the device. Images that do not all fit there are streamed: a
batch is brought to the device before each step, and all else is the same.
"""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nonneg import engine, progress, rundir
from nonneg.data import Dataset, Files
from nonneg.data.stream import Source, replace_unreadable, workers
from nonneg.errors import BadInput

READ_EVERY = 16  # steps between two looks at the counters of a GPU
PACED, LONG = 2, 3600.0  # after so many steps on a CPU the pace is judged, and advice given if it takes so many seconds


class Interrupted(BadInput):
    """Training was stopped on request; what it says is how to resume."""


class NotFinite(BadInput):
    """Training ended in numbers that are none."""


class TooLittleMemory(BadInput):
    """A GPU has too little memory for a batch: `need` says how much it would take, the message also what to lower."""

    def __init__(self, need: str, batch_size: int, image_size: int) -> None:
        self.need, self.batch_size = need, batch_size
        super().__init__(
            f"{need}; lower --batch-size (now {batch_size}) or --image-size (now {image_size}), or take a smaller "
            "--backbone or --projector"
        )


@dataclass(frozen=True)
class Rows:
    """What is learned from, row by row: images, in memory or on disk, and what belongs to them (labels, tokens)."""

    dataset: Dataset
    beside: dict[str, Tensor] = field(default_factory=dict)  # name -> N x ..., in the order of the images

    def __post_init__(self) -> None:
        for name, values in self.beside.items():
            if len(values) != len(self.dataset):
                many = len(self.dataset)
                raise BadInput(f"{self.dataset.name}: {len(values)} {name} for {many} images; give one for each image")

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass
class State:
    """All that a step reads and changes."""

    model: nn.Module  # all that learns, or is saved with what learns: an encoder, one with a head, two encoders
    optimizer: Optimizer
    generator: torch.Generator
    rows: dict[str, Tensor]  # images (uint8) and what is beside them: all N rows; when streamed, the B of the step
    streamed: bool
    shuffle: Callable[..., Tensor]  # shuffle(generator=...) draws the next epoch's order
    order: Tensor  # this epoch's permutation of the N rows; or 2 x N, its second line the partner of each
    step: Tensor  # how many steps were taken
    lr: Tensor
    counters: tuple[str, ...]  # the names of `totals`
    totals: Tensor  # sums over this epoch, whichever the step counts
    alive: Tensor  # D, features seen above zero this epoch, where the step counts them

    def batch(self, n: int, steps_per_epoch: int) -> dict[str, Tensor]:
        """The n rows of this step, by name, then their n partners if they have any.

        Index tensors are made here, inside the step: a recorded step must own all that it reads.
        """
        if self.streamed:
            return self.rows
        at = self.step % steps_per_epoch * n + torch.arange(n, device=self.order.device)
        chosen = self.order[..., at].flatten()
        return {name: values[chosen] for name, values in self.rows.items()}

    def changing(self) -> list[Tensor]:
        """Every tensor that a step changes in place."""
        moments = [v for slots in self.optimizer.state.values() for v in slots.values()]
        mine = [self.step, self.lr, self.totals, self.alive]
        return [*self.model.parameters(), *self.model.buffers(), *moments, *mine]

    def tensors(self) -> dict[str, Tensor]:
        """Everything a resumed run needs, by name."""
        out = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for i, slots in self.optimizer.state_dict()["state"].items():
            out |= {f"optimizer.{i}.{k}": v for k, v in slots.items()}
        parts = {"order": self.order, "step": self.step, "totals": self.totals, "alive": self.alive}
        return out | parts | {"generator": self.generator.get_state()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        take = {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
        self.model.load_state_dict(take)
        learning = [p for group in self.optimizer.param_groups for p in group["params"]]
        slots: dict[int, dict[str, Tensor]] = {}
        for k, v in tensors.items():
            if k.startswith("optimizer."):
                _, i, name = k.split(".", 2)
                slots.setdefault(int(i), {})[name] = _laid_out_like(learning[int(i)], v)
        self.optimizer.load_state_dict({"state": slots, "param_groups": self.optimizer.state_dict()["param_groups"]})
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        for name in ("order", "step", "totals", "alive"):
            getattr(self, name).copy_(tensors[name])
        self.generator.set_state(tensors["generator"])


def _laid_out_like(parameter: Tensor, saved: Tensor) -> Tensor:
    """`saved` with the parameter's strides: fused optimisers walk both through memory side by side."""
    return torch.empty_like(parameter).copy_(saved) if saved.shape == parameter.shape else saved


def begin(
    model: nn.Module,
    rows: Rows,
    *,
    optimizer: Callable[..., Optimizer],
    batch_size: int,
    seed: int,
    device: torch.device,
    counters: tuple[str, ...],
    features: int = 0,
    pairs: Callable[..., Tensor] | None = None,
) -> State:
    """The state before the first step; `optimizer(lr=...)` is given a tensor, `features` are those counted as alive.

    Rows are shuffled anew for each epoch; or `pairs(generator=...)` draws 2 x N rows, each of the first line once, and
    a step takes B columns.
    """
    streamed = not _fits(rows.dataset, device)
    whole = {"images": rows.dataset.images, **rows.beside}
    order = torch.arange(len(rows), device=device)
    if streamed:
        workers()  # a number that cannot be meant is refused now, before a run folder is claimed
        size = batch_size * (2 if pairs else 1)
        here = {k: torch.zeros(size, *v.shape[1:], dtype=v.dtype, device=device) for k, v in whole.items()}
    else:
        here = {k: cast(Tensor, v).to(device) for k, v in whole.items()}
    lr = torch.zeros((), device=device)
    return State(
        model=model,
        optimizer=optimizer(lr=lr),
        generator=torch.Generator(device).manual_seed(seed),
        rows=here,
        streamed=streamed,
        shuffle=pairs or partial(torch.randperm, len(rows), device=device),
        order=torch.stack([order, order]) if pairs else order,
        step=torch.zeros((), dtype=torch.int64, device=device),
        lr=lr,
        counters=counters,
        totals=torch.zeros(len(counters), dtype=torch.float64, device=device),
        alive=torch.zeros(features, dtype=torch.bool, device=device),
    )


def _fits(data: Dataset, device: torch.device) -> bool:
    """Whether all images can stay on the device: they are in memory, and leave half of a GPU's free memory free."""
    if isinstance(data.images, Files):
        progress.say(f"{len(data)} images are streamed from disk, for they take {_gib(data.images)} GiB when decoded")
        return False
    if device.type != "cuda" or data.images.is_cuda:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # left of work done before
    if data.images.nbytes <= free / 2:
        return True
    progress.say(
        f"{len(data)} images are streamed from the host's memory, for they take {_gib(data.images)} GiB, "
        f"more than half of the {free / 2**30:.1f} GiB free on the GPU"
    )
    return False


def _gib(images: Tensor | Files) -> str:
    return f"{math.prod(images.shape) / 2**30:.1f}"


@dataclass(frozen=True)
class Keep:
    """The run folder, what run.json says of the run (`rundir.describe`), and how the run is taken up again."""

    folder: Path
    about: dict[str, Any]
    again: str  # the words that resume it
    defaults: dict[str, Any] = field(default_factory=dict)  # of settings that an older run.json does not name
    seconds: float = 60.0  # between two checkpoints
    tensorboard: bool = False
    resume: bool = False
    previous: bool = False  # from the checkpoint before the last
    overwrite: bool = False


def as_begun(folder: Path) -> dict[str, bool]:
    """How to go on in this folder, as `resume` and `previous` of `Keep`: from the newest checkpoint that is intact."""
    newest = folder / rundir.CHECKPOINT
    if not newest.exists() or rundir.checkpoint_step(folder) is not None:
        return {"resume": (folder / "run.json").exists()}
    if (at := rundir.checkpoint_step(folder, previous=True)) is None:
        raise BadInput(
            f"{newest} is damaged, and there is no older one; remove {folder} and give the same command again"
        )
    progress.say(f"{newest} is damaged: going on from the one before it, of step {at}")
    return {"resume": True, "previous": True}


def nothing(epoch: int) -> dict[str, Any]:  # noqa: ARG001 (the signature of what is measured after an epoch)
    """Measure nothing after an epoch."""
    return {}


@dataclass(frozen=True)
class Job:
    """What one call of the loop is about; without `keep` it leaves no trace but the state it returns."""

    rows: Rows
    batch_size: int
    epochs: int
    device: torch.device
    line: Callable[[dict[str, float], int], dict[str, Any]]  # an epoch's sums and its steps so far -> the log's line
    note: str = "loss {loss:.3f}"  # what the progress bar shows of that line
    label: str = "training"
    advice: str = "Start anew with a lower --lr"  # when numbers are not finite
    strict: bool = False  # stop at an image that cannot be read
    keep: Keep | None = None
    after_epoch: Callable[[int], dict[str, Any]] = nothing  # measured then, and added to the log's line

    @property
    def steps_per_epoch(self) -> int:
        return len(self.rows) // self.batch_size

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_per_epoch


def run_job(
    job: Job, *, begin: Callable[[], State], step: Callable[[State, int], Callable[[], None]]
) -> State:  # fmt: skip
    """Begin a state or restore it, take every step (`step(state, steps_per_epoch)` makes the first) and return it."""
    data, keep = job.rows.dataset, job.keep
    if job.steps_per_epoch == 0:
        fits = 2 ** max(1, (len(data) // 2).bit_length() - 1)
        raise BadInput(
            f"--batch-size {job.batch_size} is larger than the {len(data)} images of {data.name} to train on; "
            f"lower it, to {fits} say"
        )
    if keep is not None:
        if keep.resume and keep.overwrite:
            raise BadInput("--resume continues a run and --overwrite replaces it; give one of them")
        if keep.previous and not keep.resume:
            raise BadInput("--previous says where --resume goes on from; give both of them")
        if keep.resume:
            rundir.check_same(keep.about, keep.folder, defaults=keep.defaults)
        else:
            rundir.check_free(keep.folder, keep.overwrite)
        if keep.tensorboard:
            rundir.board_writer()
        if data.skipped:
            progress.say(f"{data.said_skipped()}; all are listed in {keep.folder / 'log.jsonl'}")
    with engine.on(job.device), _memory_named(job), rundir.alone(keep.folder) if keep else nullcontext():
        if keep and keep.resume:
            rundir.clear_leftovers(keep.folder)
        s, done, before = begin(), 0, 0.0
        checkpoint = rundir.load_checkpoint(keep.folder, previous=keep.previous) if keep and keep.resume else None
        if checkpoint is not None:  # else killed before the first one: the run starts again, and ends the same
            s.restore(checkpoint.tensors)
            done, before = checkpoint.at, checkpoint.seconds
            del checkpoint  # a file mapped into memory takes its room on the disk as long as it is
        take_step = step(s, job.steps_per_epoch)
        if keep is not None and not keep.resume:  # only now, when all that was asked for can be done, is it replaced
            rundir.claim(keep.about, keep.folder)
        _loop(job, s, take_step, done, before)
    return s


def _loop(job: Job, s: State, step: Callable[[], None], done: int, before: float) -> None:
    """Shuffle, step, look, save - until the last epoch is over; `before`: seconds that the steps `done` took."""
    per_epoch, total, keep = job.steps_per_epoch, job.steps, job.keep
    reader, at, shown, told_dead = engine.Reader(), done, done, False
    measured: dict[int, dict[str, Any]] = {}  # after the step of that number
    started = saved = time.monotonic()
    look = READ_EVERY if s.totals.is_cuda else 1  # on a CPU a look costs nothing, and steps may be slow
    with ExitStack() as stack:
        stop = stack.enter_context(_stop_requested()) if keep else threading.Event()
        advance = stack.enter_context(progress.bar(job.label, total, done=done))
        log = stack.enter_context(_log(job, keep, done)) if keep else None
        feed = stack.enter_context(_feeder(job, s, log))
        while at < total:
            if at % per_epoch == 0:
                s.order.copy_(s.shuffle(generator=s.generator))
                s.totals.zero_()
                s.alive.zero_()
            feed(at % per_epoch)
            step()
            at += 1
            stopping = stop.is_set()  # looked at once: a signal that comes below is seen after the next step
            save = at == total or stopping or bool(keep and time.monotonic() - saved > keep.seconds)
            if save or at % per_epoch == 0 or at % look == 0:
                reader.post(at, s.totals)
            if at % per_epoch == 0:
                measured[at] = job.after_epoch(at // per_epoch)
            for seen, values in reader.arrived(wait=save):
                totals = dict(zip(s.counters, values, strict=True))
                _check_finite(totals, seen, job)
                line = {"epoch": -(-seen // per_epoch), "step": seen, **job.line(totals, (seen - 1) % per_epoch + 1)}
                advance(seen - shown, note=job.note.format(**line))
                shown = seen
                if look == 1 and seen == done + PACED:
                    _tell_long((time.monotonic() - started) / PACED * (total - seen), job)
                if seen % per_epoch == 0:
                    told_dead = _tell_dead(line, job, told=told_dead)
                    if log:
                        log.write({**line, **measured.pop(seen)}, seconds=before + time.monotonic() - started)
            if save and keep:  # the losses up to here were seen and are finite; is what they led to?
                tensors = s.tensors()
                _check_weights(tensors, at, job)
                saved = time.monotonic()
                rundir.save_checkpoint(keep.folder, tensors, at, seconds=before + saved - started)
            if keep and (stopping or (at == total and stop.is_set())):  # both with a checkpoint of this very step
                raise Interrupted(f"stopped at step {at} of {total}; nothing is lost. Resume with: {keep.again}")


def _log(job: Job, keep: Keep, done: int) -> rundir.Log:
    return rundir.Log(keep.folder, done, job.rows.dataset.skipped, tensorboard=keep.tensorboard)


@contextmanager
def _feeder(job: Job, s: State, log: rundir.Log | None) -> Iterator[Callable[[int], None]]:
    """What puts batch `i` of the epoch into `s.rows`, for i = 0, 1, ... or from where a run is resumed."""
    if not s.streamed:
        yield lambda _: None
        return
    data, cuda = job.rows.dataset, s.totals.is_cuda
    order, batches = s.order, cast(Iterator[tuple[Tensor, dict[int, str]]] | None, None)
    with Source(data.images, batch_size=len(s.rows["images"]), device=s.order.device) as source:

        def feed(i: int) -> None:
            nonlocal order, batches
            if i == 0 or batches is None:
                order = _by_step(s.order.cpu(), job.batch_size)  # the device waits: once an epoch
                batches = source.batches(order[i:].flatten())
            x, bad = next(batches)
            which = order[i]
            beside = {name: values[which] for name, values in job.rows.beside.items()}
            if bad:
                rows = which.tolist()
                _list_unreadable({data.ids[rows[row]]: why for row, why in bad.items()}, job, log)
                for values in (x, *beside.values()):
                    _replace(values, bad, job.batch_size)
            s.rows["images"].copy_(x, non_blocking=True)  # queued behind the step that still reads what is there
            for name, values in beside.items():  # pageable memory would make the host wait
                s.rows[name].copy_(values.pin_memory() if cuda else values, non_blocking=True)

        yield feed


def _by_step(order: Tensor, n: int) -> Tensor:
    """Line i: the n rows of the epoch's step i, then their n partners if they have any."""
    lines = order.view(-1, order.shape[-1])  # 1 or 2
    steps = lines.shape[1] // n
    return lines[:, : steps * n].view(-1, steps, n).transpose(0, 1).flatten(1)


def _replace(values: Tensor, bad: dict[int, str], n: int) -> None:
    """Put another row in the place of each unreadable one: its partner if it has one, else the next of the batch."""
    if len(values) > n:
        both = {row: why for row, why in bad.items() if (row + n) % (2 * n) in bad}
        for row in bad.keys() - both.keys():
            values[row] = values[(row + n) % (2 * n)]
        for half in values.split(n):
            replace_unreadable(half, {row: why for row, why in both.items() if row < n})
    else:
        replace_unreadable(values, bad)


def _list_unreadable(bad: dict[str, str], job: Job, log: rundir.Log | None) -> None:
    """Name, once each, the images that could be opened when training began and cannot be decoded now."""
    skipped = job.rows.dataset.skipped
    new = [line for name, why in bad.items() if (line := f"{name}: {why}") not in skipped]
    for line in new:
        if job.strict:
            raise BadInput(f"{line}; mend or remove it, or train without --strict")
        progress.say(f"cannot be read, and another image is taken in its place: {line}")
    if new:
        skipped.extend(new)
        if log:
            log.add({"skipped": new})


@contextmanager
def _memory_named(job: Job) -> Iterator[None]:
    """Turn a GPU's lack of memory into a sentence that says how much was needed and what to lower."""
    try:
        yield
    except RuntimeError as error:
        if need := engine.lack_of_memory(error):
            raise TooLittleMemory(need, job.batch_size, job.rows.dataset.image_size) from error
        raise


def _tell_dead(line: dict[str, Any], job: Job, *, told: bool) -> bool:
    """Say, after the first epoch that ends so and after the last, that no feature is live; whether it was said."""
    if line.get("alive") != 0 or (told and line["epoch"] < job.epochs):
        return told
    progress.say(
        f"{job.label}: after epoch {line['epoch']} of {job.epochs} no feature is live: all are zero on every image "
        "and nothing is learned; start anew with a lower --lr or another --optimizer"
    )
    return True


def _tell_long(seconds: float, job: Job) -> None:
    """Say what would be faster on a CPU, where it takes long: most people who have no GPU do not know what it costs."""
    if seconds > LONG:
        progress.say(
            f"{job.label} takes about {seconds / 3600:.0f} hours on this CPU; a narrower --backbone (resnet18:width=16 "
            "does a sixteenth of resnet18's work), smaller images or fewer --epochs take less"
        )


def _check_finite(totals: dict[str, float], at: int, job: Job) -> None:
    if all(map(math.isfinite, totals.values())):
        return
    bad = int(totals.get("bad", at))  # a step may count the first; else it is one since the last look
    raise NotFinite(
        f"{job.label}: the loss is not finite since step {bad} (epoch {(bad - 1) // job.steps_per_epoch + 1}), seen at "
        f"step {at}{_kept(job)}. {job.advice}"
    )


def _check_weights(tensors: dict[str, Tensor], at: int, job: Job) -> None:
    """Refuse to save a state that is no longer finite; the checkpoints before it stay as they are."""
    bad = [k for k, v in tensors.items() if v.is_floating_point() and not v.isfinite().all()]
    if bad:
        raise NotFinite(
            f"at step {at} {bad[0]} is not finite ({len(bad)} tensors are not){_kept(job)}. {job.advice}"
        )  # fmt: skip


def _kept(job: Job) -> str:
    if job.keep is None:
        return ""
    kept = rundir.checkpoint_step(job.keep.folder)
    if kept is None:
        return "; no checkpoint had been written yet"
    return f"; the checkpoint of step {kept} is kept in {job.keep.folder}"


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


@contextmanager
def named(what: str) -> Iterator[None]:
    """Say of work that stopped which it was, and how it can go on."""
    try:
        yield
    except Interrupted:
        raise Interrupted(f"{what} was stopped; nothing is lost. Continue with the same command") from None
    except TooLittleMemory as error:
        raise BadInput(
            f"{what}: {error.need}; try a smaller --batch-size (now {error.batch_size}), whose results are kept apart, "
            "or a GPU with more memory"
        ) from error
    except KeyboardInterrupt:  # while measuring, where no step is waited for
        raise Interrupted(
            f"{what} was stopped; nothing that was finished is lost. Continue with the same command"
        ) from None
