"""Features kept beside the results, in 8 bits, for measures thought of later: small enough to commit.

N images, D features.
"""

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from nonneg import files
from nonneg.errors import BadInput
from nonneg.features import Features

MOST_BYTES = int(2.7 * 2**20)  # what a repository can bear
NEAR_DENSE = 0.99  # share of values other than zero above which positions are not worth storing


@dataclass(frozen=True)
class Kept:
    """z (N x D, CSR) within half a `quantum` (D) of what it was, zeros where they were; labels N or None."""

    z: Any
    labels: np.ndarray | None
    quantum: np.ndarray


def keep(stem: str, folder: Path, test: Features, seed: int) -> list[str]:
    """Keep the test features if they are small, and dense ones of the first seed only; the names of what was kept."""
    packed = pack(test.z, test.labels) if seed == 0 or not _near_dense(test.z) else None
    if packed is None or len(packed) > MOST_BYTES:
        return []
    path = folder / f"{stem}-test.npz"
    with files.atomic(path) as temporary:
        temporary.write_bytes(packed)
    return [path.name]


def pack(z: Any, labels: np.ndarray | None) -> bytes:
    """z in 8 bits a value, as a .npz: cell = floor(z / quantum_d), quantum_d = max_n |z_nd| / 256 (128 if signed).

    A value is read back as the middle of its cell, so that what is not zero never becomes zero.
    """
    z = sp.csr_array(z)
    n, d = z.shape
    signed = bool((z.data < 0).any())
    largest = np.full(d, 1e-30)
    np.maximum.at(largest, z.indices, np.abs(z.data))
    quantum = (largest / (128 if signed else 256)).astype(np.float32)
    low, high, kind = (-128, 127, np.int8) if signed else (0, 255, np.uint8)
    if _near_dense(z):
        arrays = {"cells": np.floor(z.toarray() / quantum).clip(low, high).astype(kind)}
    else:
        width = np.uint8 if d <= 2**8 else np.uint16 if d <= 2**16 else np.int32
        cells = np.floor(z.data / quantum[z.indices]).clip(low, high).astype(kind)
        arrays = {"cells": cells, "indices": z.indices.astype(width), "indptr": z.indptr.astype(np.int32)}
    arrays |= {"quantum": quantum, "shape": np.array([n, d])}
    if labels is not None:
        arrays["labels"] = labels.astype(np.uint8 if labels.max(initial=0) < 2**8 else np.uint16)
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **arrays)
    return out.getvalue()


def load(path: Path) -> Kept:
    """Features that `pack` packed."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as f:
            quantum, shape, cells = f["quantum"], tuple(f["shape"]), f["cells"].astype(np.float32) + np.float32(0.5)
            labels = f["labels"].astype(np.int64) if "labels" in f else None
            if "indices" not in f:
                return Kept(sp.csr_array(cells * quantum), labels, quantum)
            indices = f["indices"].astype(np.int32)
            return Kept(sp.csr_array((cells * quantum[indices], indices, f["indptr"]), shape=shape), labels, quantum)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; `kept` in the results says which features were kept") from None
    except (ValueError, KeyError, IndexError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is damaged or no kept features ({error})") from None


def _near_dense(z: Any) -> bool:
    return z.nnz > NEAR_DENSE * z.shape[0] * z.shape[1]
