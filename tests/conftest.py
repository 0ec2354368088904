"""One thread: the nets here are tiny, and two threads on a busy machine wait for each other more than they work."""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # for processes the tests start

import torch

torch.set_num_threads(1)
