"""One thread: the nets here are tiny, and two threads on a busy machine wait for each other more than they work."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for processes the tests start

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nonneg import augment, cli, progress
from nonneg.data import stream

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_was_said_before() -> None:
    """What is said once in a process is said once in a test."""
    progress.SAID.clear()


@pytest.fixture
def tell(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`tell("train", "digits")` runs the command: its exit status, stdout, and stderr in one line."""

    def call(*args: object) -> tuple[int, str, str]:
        code = 0
        try:
            cli.main([str(a) for a in args])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return call


@pytest.fixture
def decoded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images on disk are decoded in this process: others take seconds to start, and have tests of their own."""

    @contextmanager
    def decoders(count: int) -> Iterator[SimpleNamespace]:  # noqa: ARG001 (the signature of stream.Decoders)
        yield SimpleNamespace(fill=stream.decode_into)

    monkeypatch.setattr(stream, "Decoders", decoders)


class NoWaiting(TorchDispatchMode):
    """Raises where a GPU would have to be waited for: a value is asked for, or the size of a result depends on one.

    Also where a tensor is made of Python's numbers, which would be copied to the device first.
    """

    WAITS = (
        "_local_scalar_dense", "equal", "lift_fresh", "masked_select", "nonzero", "repeat_interleave.Tensor",
        "unique_consecutive", "unique_dim", "_unique", "_unique2",
    )  # fmt: skip

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        waits = name in self.WAITS or name.partition(".")[0] in self.WAITS
        if name.startswith("index"):
            chosen = [i for arg in args if isinstance(arg, list | tuple) for i in arg if isinstance(i, Tensor)]
            waits |= any(i.dtype == torch.bool for i in chosen)
        assert not waits, f"{name} would wait for the device"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """`with no_waiting(): step()` fails where the step would wait for a GPU; augmentation takes the way of a GPU."""

    @contextmanager
    def watch() -> Iterator[None]:
        def refuse(*_: Any, **__: Any) -> None:
            raise AssertionError("a tensor's values are taken to Python: that would wait for the device")

        with monkeypatch.context() as patch, NoWaiting():
            for reading in ("tolist", "numpy", "cpu", "__array__"):
                patch.setattr(Tensor, reading, refuse)
            patch.setattr(augment, "_select_rows", lambda _: False)  # on a CPU it asks how many rows are chosen
            yield

    return watch
