"""How a step is executed - eagerly, compiled, captured whole in one CUDA graph, or both - and how its counters are read
without making the device wait."""

import logging
import re
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from nonneg.progress import say_once

Mode = Literal["auto", "eager", "compiled", "captured", "graph"]
Precision = Literal["auto", "fp32", "bf16"]
LOOKAHEAD = 2  # snapshots in flight before the host waits for the oldest
WARM_UP = 3  # steps taken and undone before a capture, so that every lazy initialisation is over
COMPILERS_OWN = (  # warnings that torch.compile gives of itself, nothing that a user could mend
    "TensorFloat32 tensor cores",
    "The .grad attribute of a Tensor that is not a leaf",
    r".*torch\._prims_common\.check",
    r"\s*Online softmax is disabled",
)


def choose(mode: Mode, precision: Precision, device: torch.device, *, short: bool = False) -> tuple[str, str]:
    """The mode and precision for this device: what was asked for, or the nearest it can do, said in one line.

    `short` work (a probe of seconds) is captured without compiling, which would take longer than it saves.
    """
    cuda = device.type == "cuda"
    torch.backends.cudnn.benchmark = True  # shapes never change: let it find the fastest convolutions once
    if mode == "auto":
        mode = ("captured" if short else "graph") if cuda else "eager"
    if mode in ("captured", "graph") and not cuda:
        say_once(f"a CUDA graph needs a GPU; on the {device.type} this runs eagerly")
        mode = "eager"
    if mode in ("compiled", "graph") and (why := _cannot_compile(device)):
        mode = "captured" if mode == "graph" else "eager"
        say_once(f"torch.compile does not work here ({why}); running {mode}, which is slower")
    if precision == "auto":
        precision = "bf16" if cuda else "fp32"
    if precision == "bf16" and cuda and not torch.cuda.is_bf16_supported(including_emulation=False):
        say_once(f"{torch.cuda.get_device_name(device)} has no bfloat16; computing in float32, which is slower")
        precision = "fp32"
    if precision == "bf16" and device.type == "cpu" and not _bf16_instructions():
        say_once("this CPU has no bfloat16 instructions; --precision bf16 takes two or three times as long as fp32")
    return mode, precision


def _bf16_instructions(info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the CPU computes in bfloat16 by itself (avx512_bf16, amx_bf16, bf16), as where nobody says."""
    return not info.exists() or "bf16" in info.read_text(errors="replace")


@cache
def _cannot_compile(device: torch.device) -> str:
    """Why torch.compile cannot be used here, or nothing: tried once, for it needs a compiler at run time."""
    try:
        torch.compile(torch.neg)(torch.zeros(8, device=device))
    except Exception as error:  # whatever it is, the answer is to go on without
        said = [line for line in str(error).splitlines() if line.strip() and not line.endswith(" raised:")]
        return said[0].strip() if said else type(error).__name__  # the first line may only name the part that raised it
    return ""


@contextmanager
def on(device: torch.device) -> Iterator[None]:
    """Make `device` the current GPU, where streams, graphs and events are created."""
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        yield


def lack_of_memory(error: BaseException | None) -> str:
    """How much memory a GPU lacked, if that led to `error` (a graph that could not be recorded hides it), or nothing.

    On the current device, see `on`.
    """
    while error is not None and not isinstance(error, torch.OutOfMemoryError):
        error = error.__cause__ or error.__context__
    if error is None:
        return ""
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    held = ""
    if torch.cuda.is_available():
        free, whole = (x / 2**30 for x in torch.cuda.mem_get_info())
        most = torch.cuda.max_memory_reserved() / 2**30
        held = f" beyond the {most:.1f} GiB it had taken, and of the GPU's {whole:.1f} GiB {free:.1f} are free"
    return f"too little GPU memory: the run needs {asked[1] if asked else 'more'}{held}"


def fuser(mode: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What wraps each piece of a step: `torch.compile` for compiled and graph, else nothing."""
    if mode in ("compiled", "graph"):
        say_once("compiling the training step: a minute or two the first time on a machine, then a few seconds")
        torch.compiler.reset()  # code of an earlier run in this process; after eight versions it would give up
        for noise in COMPILERS_OWN:
            warnings.filterwarnings("ignore", message=noise)
        logging.getLogger("torch._dynamo.variables.ctx_manager").addFilter(_not_of_the_profiler)
        return lambda f: torch.compile(f, dynamic=False)
    return lambda f: f


def _not_of_the_profiler(record: logging.LogRecord) -> bool:
    """Whether it says something else than that optimisers mark their steps for a profiler, which a compiler ignores."""
    return "Profiler record function" not in record.getMessage()


def executor(
    step: Callable[[], None],
    mode: str,
    *,
    state: Callable[[], Sequence[Tensor]],
    generator: torch.Generator,
) -> Callable[[], None]:
    """`step` as it is, or recorded once in a CUDA graph and replayed: one launch instead of a thousand.

    Recording takes a few real steps first. `state` lists every tensor a step changes; they are put back afterwards
    (those that did not exist before, an optimiser's moments, are zeroed), so the first replay is step 1.
    """
    if mode not in ("captured", "graph"):
        return step
    before = [(t.detach(), t.detach().clone()) for t in state()]
    random = generator.get_state()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        step()
    known = {t.data_ptr() for t, _ in before}
    for t in state():
        if t.data_ptr() not in known:
            t.detach().zero_()
    for t, value in before:
        t.copy_(value)
    generator.set_state(random)
    return lambda graph=graph, _step=step: graph.replay()  # the graph reads the step's tensors: they must live on


class Reader:
    """Copies of a device tensor that arrive later: `post` it now, take what has arrived; the device never waits."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, Tensor, torch.cuda.Event | None]] = deque()

    def post(self, at: int, values: Tensor) -> None:
        if values.device.type == "cuda":
            copy = torch.empty_like(values, device="cpu", pin_memory=True)
            copy.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            self.waiting.append((at, copy, event))
        else:
            self.waiting.append((at, values.clone(), None))

    def arrived(self, *, wait: bool = False) -> list[tuple[int, list[float]]]:
        """Snapshots that are here, oldest first; waits if more than LOOKAHEAD are under way, or for all on request."""
        out = []
        while self.waiting:
            at, copy, event = self.waiting[0]
            if event is not None:
                if wait or len(self.waiting) > LOOKAHEAD:
                    event.synchronize()
                elif not event.query():
                    break
            out.append((at, copy.tolist()))
            self.waiting.popleft()
        return out
