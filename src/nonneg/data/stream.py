"""Images that are not all in memory: files decoded when asked for, and batches made ready ahead of the step.

N images, C channels, S x S pixels, B the batch.

Worker processes decode; each is given names and sends back pixels through a socket, straight into the (pinned) memory
that a GPU copies from. No shared memory is needed, which containers are short of, and nothing is pickled.
"""

import json
import os
import queue
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from nonneg.data.decoder import decode_into
from nonneg.data.pictures import strictly_sized
from nonneg.errors import BadInput
from nonneg.progress import track

RING = 4  # batches in memory: one that a device copies from, three that are ready or being decoded
PIECE = 8  # images in the smallest piece of a batch that is worth a message to a worker
MOST_WORKERS = 32
Jobs: TypeAlias = "list[tuple[int, Future[dict[int, str]]]]"  # the pieces of one batch


@dataclass(frozen=True, eq=False)
class Files:
    """Pictures that stay on disk; it reads like the uint8 tensor N x 3 x S x S that decoding them all would give."""

    paths: list[str] = field(repr=False)
    lengths: list[int] = field(repr=False)  # bytes of each file, by which a changed one is told
    image_size: int
    dtype: ClassVar[torch.dtype] = torch.uint8
    ndim: ClassVar[int] = 4

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), 3, self.image_size, self.image_size))

    def subset(self, indices: Sequence[int]) -> "Files":
        """The files at `indices`, in that order, still on disk."""
        return replace(self, paths=[self.paths[i] for i in indices], lengths=[self.lengths[i] for i in indices])

    def read(self, indices: Sequence[int], title: str = "") -> tuple[Tensor, dict[int, str]]:
        """The pictures at `indices`, and why row r of them could not be read (it is black), decoded in threads.

        With a title a bar says how far it is.
        """
        out = np.empty((len(indices), *self.shape[1:]), np.uint8)
        paths = [self.paths[i] for i in indices]
        with strictly_sized(), ThreadPoolExecutor(cores()) as pool:
            failed = [pool.submit(decode_into, [path], row[None]) for path, row in zip(paths, out, strict=True)]
            waited = track(failed, title, len(failed)) if title else failed
            bad = {row: f.result()[0] for row, f in enumerate(waited) if f.result()}
        return torch.from_numpy(out), bad

    def __getitem__(self, at: int | slice | Tensor) -> Tensor:
        chosen = torch.arange(len(self))[at]
        x, bad = self.read(chosen.reshape(-1).tolist())
        if bad:
            row, why = next(iter(bad.items()))
            raise BadInput(f"{self.paths[chosen.reshape(-1)[row]]} cannot be read any more: {why}; mend or remove it")
        return x.view(*chosen.shape, *self.shape[1:])


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """How many processes decode: $NONNEG_WORKERS, or one for each core; 0 decodes in threads of this process."""
    asked = int(number("NONNEG_WORKERS", min(cores(), MOST_WORKERS))) if hasattr(os, "fork") else 0
    if asked > (most := max(MOST_WORKERS, 4 * cores())):  # a slip of the finger must not bring the machine down
        raise BadInput(
            f"the environment variable NONNEG_WORKERS is {asked} on {cores()} cores; set it to {most} or less"
        )
    return asked


def number(variable: str, default: float) -> float:
    """The number that an environment variable holds."""
    text = os.environ.get(variable) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise BadInput(f"the environment variable {variable} is {text!r}; set it to a number that is not negative")
    return value


class Source:
    """Batches of images, made ready in the background; a context manager, for it may start processes.

    Files are decoded by worker processes, or by threads where there are none; a tensor is gathered by threads.
    """

    def __init__(self, images: Tensor | Files, *, batch_size: int, device: torch.device) -> None:
        self.images, self.batch_size, self.device = images, batch_size, device
        self.fill: Callable[[list[Any], np.ndarray], dict[int, str]] = decode_into
        self.jobs: deque[Jobs] = deque()

    def __enter__(self) -> "Source":
        self.count = workers() or cores()
        shape, pinned = (RING, self.batch_size, *self.images.shape[1:]), self.device.type == "cuda"
        self.memory = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        with ExitStack() as stack:
            if not isinstance(self.images, Files):
                self.fill = self._gather
            elif workers():
                self.fill = stack.enter_context(Decoders(self.count)).fill
            else:
                stack.enter_context(strictly_sized())
            self.pool = stack.enter_context(ThreadPoolExecutor(self.count))
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def batches(self, order: Tensor) -> Iterator[tuple[Tensor, dict[int, str]]]:
        """The images at `order`, B at a time, and why row r of a batch could not be read; good until the next is taken.

        A GPU may still be copying from a batch when the next one is taken: its memory is written again only after all
        that was queued by then is done.
        """
        self._settle()
        parts = order.cpu().split(self.batch_size)
        self.jobs = jobs = deque(self._submit(part, place) for part, place in zip(parts, self.memory, strict=False))
        done: deque[Callable[[], None]] = deque()  # each waits until a batch was used
        for i, part in enumerate(parts):
            if i >= 2 and i + RING - 2 < len(parts):  # into the place of batch i - 2: batch i - 1 is in use just now
                done.popleft()()
                jobs.append(self._submit(parts[i + RING - 2], self.memory[(i - 2) % RING]))
            bad = {first + row: why for first, job in jobs.popleft() for row, why in job.result().items()}
            yield self.memory[i % RING, : len(part)], bad
            done.append(self._end_of_queue())

    def _settle(self) -> None:
        """Wait until nobody writes to the memory or reads from it: the order before may have been left early."""
        wait([job for pieces in self.jobs for _, job in pieces if not job.cancel()])
        self._end_of_queue()()

    def _end_of_queue(self) -> Callable[[], None]:
        """What waits until the device has done all that it was told so far."""
        if self.device.type != "cuda":
            return lambda: None
        event = torch.cuda.Event(blocking=True)  # sleep while waiting: the core is for decoding
        event.record(torch.cuda.current_stream(self.device))
        return event.synchronize

    def _submit(self, indices: Tensor, place: Tensor) -> Jobs:
        """Begin to fill one batch, a piece for each worker; the first row of each piece, and its failures to come."""
        size = max(PIECE, -(-len(indices) // self.count))
        firsts = range(0, len(indices), size)
        pixels = place[: len(indices)].numpy()
        which = indices.tolist()
        what = [self.images.paths[i] for i in which] if isinstance(self.images, Files) else which
        return [(a, self.pool.submit(self.fill, what[a : a + size], pixels[a : a + size])) for a in firsts]

    def _gather(self, rows: list[int], out: np.ndarray) -> dict[int, str]:
        torch.index_select(cast(Tensor, self.images), 0, torch.tensor(rows), out=torch.from_numpy(out))
        return {}


def in_order(
    images: Tensor | Files, *, batch_size: int, device: torch.device
) -> Iterator[tuple[Tensor, dict[int, str]]]:
    """All images from first to last, in batches, each with the rows that could not be read."""
    if isinstance(images, Tensor):
        for part in images.split(batch_size):
            yield part, {}
        return
    with Source(images, batch_size=batch_size, device=device) as source:
        yield from source.batches(torch.arange(len(images)))


def replace_unreadable(x: Tensor, bad: dict[int, str]) -> None:
    """Put in the place of each unreadable row the next readable one of the batch (after the last comes the first)."""
    if len(bad) == len(x):
        raise BadInput(f"none of the {len(x)} images of a batch can be read, the first: {bad[0]}; is the disk there?")
    for row in bad:
        after = row
        while after in bad:
            after = (after + 1) % len(x)
        x[row] = x[after]


# The packages stand in without their __init__, which would import torch, of no use to a decoder.
PROGRAM = """
import sys, types
for name, path in (("nonneg", sys.argv[1]), ("nonneg.data", sys.argv[1] + "/data")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from nonneg.data.decoder import serve
serve([int(descriptor) for descriptor in sys.argv[2:]])
"""


class Decoders:
    """`count` processes that decode pictures (see decoder.py), each at the other end of a socket."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> "Decoders":
        pairs = [socket.socketpair() for _ in range(self.count)]
        theirs = [end.fileno() for _, end in pairs]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(Path(__file__).parents[1]), *map(str, theirs)],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the training alone: it may still want a batch
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self.ours = [end for end, _ in pairs]
        for _, end in pairs:
            end.close()
        self.free: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        for end in self.ours:
            self.free.put((end.makefile("rb"), end.makefile("wb")))
        return self

    def __exit__(self, *_: object) -> None:
        while not self.free.empty():
            for stream in self.free.get():
                with suppress(OSError):
                    stream.close()
        for end in self.ours:
            end.close()
        self.process.kill()  # the others end by themselves; this one may still be importing
        self.process.wait()

    def fill(self, paths: list[str], out: np.ndarray) -> dict[int, str]:
        """`decode_into`, by whichever process is free; called from one thread for each."""
        answers, requests = worker = self.free.get()
        try:
            requests.write(json.dumps([paths, out.shape[-1]]).encode() + b"\n")
            requests.flush()
            line = answers.readline()
            if answers.readinto(out.data.cast("B")) < out.nbytes:
                raise ConnectionError
        except ConnectionError:
            raise BadInput(
                "a process that decodes images has ended, killed for want of memory perhaps; "
                "set the environment variable NONNEG_WORKERS to a smaller number and continue the run"
            ) from None
        finally:
            self.free.put(worker)
        return {int(row): why for row, why in json.loads(line).items()}
