"""How a step is executed, and how its counters are read without making the device wait."""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nonneg.progress import console

LOOKAHEAD = 2  # snapshots in flight before the host waits for the oldest


def fuser(mode: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What wraps each piece of a step: nothing when eager, `torch.compile` when compiled."""
    if mode == "eager":
        return lambda f: f
    return lambda f: torch.compile(f, dynamic=False)


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
        """Snapshots that are here, oldest first; waits when more than LOOKAHEAD are under way, or for all on request."""
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


def say(text: str) -> None:
    """One line for the user, on stderr."""
    console.print(text, highlight=False, markup=False)
