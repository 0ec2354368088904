"""The program of a worker process: names of pictures in, pixels out.

n pictures of S x S pixels. One program forks into all workers once its imports are over, so that none is a copy of a
process with threads, locks or a GPU. Nothing here may import torch: that would take longer than all the rest.

A request is one line of JSON, the paths and S; the answer is one line, the failures, then n x 3 x S x S bytes.
"""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path

import numpy as np

from nonneg.data.pictures import strictly_sized, try_read


def decode_into(paths: list[str], out: np.ndarray) -> dict[int, str]:
    """Fill `out` (n x 3 x S x S) with the pictures; why row r could not be read, which is then black."""
    bad: dict[int, str] = {}
    for row, path in enumerate(paths):
        result = try_read(Path(path), out.shape[-1])
        if isinstance(result, str):
            out[row], bad[row] = 0, result
        else:
            out[row] = result
    return bad


def serve(descriptors: list[int]) -> None:
    """The worker program: one process for each socket, answering until it is closed."""
    mine = descriptors[0]
    for other in descriptors[1:]:
        if os.fork() == 0:
            mine = other
            break
    for other in descriptors:
        if other != mine:
            os.close(other)  # else nobody would notice that its owner has ended
    with socket.socket(fileno=mine) as end, strictly_sized(), suppress(ConnectionError):
        requests, answers = end.makefile("rb"), end.makefile("wb")
        for line in requests:
            paths, size = json.loads(line)
            out = np.empty((len(paths), 3, size, size), np.uint8)
            bad = decode_into(paths, out)
            answers.write(json.dumps(bad).encode() + b"\n")
            answers.write(out.data)
            answers.flush()
