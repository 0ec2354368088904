"""One thread: the nets here are tiny, and two threads on a busy machine wait for each other more than they work."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for processes the tests start

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from nonneg import cli, progress
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
