"""One thread: the nets here are tiny, and two threads on a busy machine wait for each other more than they work."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for processes the tests start

import pytest
import torch

from nonneg import progress

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def nothing_was_said_before() -> None:
    """What is said once in a process is said once in a test."""
    progress.SAID.clear()
