"""Features kept beside the results, in 4 bits a value, for measures thought of later: small enough to commit.

N images, D features.
"""

import io
import zipfile
from dataclasses import dataclass
from lzma import LZMAError
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from nonneg import files
from nonneg.errors import BadInput
from nonneg.features import Features

MOST_BYTES = int(1.4 * 2**20)  # what a repository can bear
TOP = 10  # values of a feature, the largest, that are kept in 16 bits
NEAR_DENSE = 0.99  # share of values other than zero above which positions are not worth storing


@dataclass(frozen=True)
class Kept:
    """z (N x D, CSR), a little coarser than it was, zeros and signs where they were; labels N or None."""

    z: Any
    labels: np.ndarray | None


def path_of(name: str, run_name: str, results: Path) -> Path:
    """Where the test features of a run of the experiment `name` are kept, if they are."""
    return results / "features" / f"{name}-{run_name}-test.npz"


def keep(path: Path, test: Features, seed: int) -> list[str]:
    """Keep the test features if they are small, and dense ones of the first seed only; the names of what was kept."""
    packed = pack(test.z, test.labels) if seed == 0 or not _near_dense(test.z) else None
    if packed is None or len(packed) > MOST_BYTES:
        return []
    with files.atomic(path) as temporary:
        temporary.write_bytes(packed)
    return [path.name]


def pack(z: Any, labels: np.ndarray | None) -> bytes:
    """z in 4 bits a value, as a .npz: cell = floor(L sqrt(|z| / largest_d)), L = 16, or 8 for each sign if signed.

    largest_d = max_n |z_nd|. A value is read back as the middle of its cell, ((cell + 1/2) / L)^2 largest_d, so that
    what is not zero never becomes zero. The root gives small values, which are many, the finer cells: with equal ones
    precision@10 of dense features came out 0.6 points too high. Large values then share a cell, so the ten largest
    of each feature, by which people look at it, are also kept in 16 bits.
    """
    z = sp.csr_array(z)
    z.sort_indices()
    n, d = z.shape
    signed, largest = bool((z.data < 0).any()), np.full(d, 1e-30, np.float32)
    np.maximum.at(largest, z.indices, np.abs(z.data).astype(np.float32))
    arrays = {"largest": largest, "signed": np.array(signed), "shape": np.array([n, d])}
    if _near_dense(z):
        values, of = z.toarray().ravel(), np.tile(np.arange(d), n)
    else:
        values, of = z.data, z.indices
        width = np.uint8 if d <= 2**8 else np.uint16 if d <= 2**16 else np.int32
        arrays |= {"indices": of.astype(width), "counts": np.diff(z.indptr).astype(np.int32)}
    share = values / largest[of]
    top = _top_entries(np.abs(share), of)
    arrays |= {"cells": _two_a_byte(_cells(share, signed)), "top": top.astype(np.uint32)}
    arrays["top_values"] = share[top].astype(np.float16)
    if labels is not None:
        arrays["labels"] = labels.astype(np.uint8 if labels.max(initial=0) < 2**8 else np.uint16)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: the same features, the same bytes
            info.compress_type = zipfile.ZIP_LZMA  # which numpy reads but does not write; for positions a tenth smaller
            with archive.open(info, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return out.getvalue()


def load(path: Path) -> Kept:
    """Features that `pack` packed, now."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as f:
            labels = f["labels"].astype(np.int64) if "labels" in f else None
            return Kept(_read(f), labels)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; `kept` in the results says which features were kept") from None
    except (ValueError, KeyError, IndexError, EOFError, OSError, LZMAError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is damaged or no kept features ({error})") from None


def _read(f: Any) -> Any:
    (n, d), top, exact = f["shape"], f["top"], f["top_values"].astype(np.float32)
    of = f["indices"].astype(np.int32) if "indices" in f else np.tile(np.arange(d), n)
    share, least = _shares(_one_a_byte(f["cells"], len(of)), bool(f["signed"])), np.ones(d, np.float32)
    np.minimum.at(least, of[top], np.abs(exact))
    share = np.clip(share, -least[of], least[of])  # none of the others was larger than these
    share[top] = exact
    values = share * f["largest"][of]
    if "indices" not in f:
        return sp.csr_array(values.reshape(n, d))
    return sp.csr_array((values, of, np.concatenate([[0], np.cumsum(f["counts"])])), shape=(n, d))


def _cells(share: np.ndarray, signed: bool) -> np.ndarray:
    """Shares of the largest as whole numbers from 0 to 15; of signed ones the negative from 7 down to 0."""
    levels = 8 if signed else 16
    cells = np.minimum(np.floor(levels * np.sqrt(np.abs(share))), levels - 1).astype(np.int8)
    return (np.where(share < 0, 7 - cells, 8 + cells) if signed else cells).astype(np.uint8)


def _shares(cells: np.ndarray, signed: bool) -> np.ndarray:
    """The middles of these cells."""
    middle = (cells - np.float32(8) if signed else cells) + np.float32(0.5)
    return np.sign(middle) * np.square(middle / np.float32(8 if signed else 16))


def _top_entries(size: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Which values are among the ten largest of the feature that they are `of`, but for what 16 bits cannot hold."""
    order = np.lexsort((-size, of))
    rank = np.arange(len(order)) - np.searchsorted(of[order], of[order])
    return np.sort(order[(rank < TOP) & (size[order] > 1e-4)])


def _two_a_byte(cells: np.ndarray) -> np.ndarray:
    flat = np.append(cells.ravel(), np.zeros(cells.size % 2, np.uint8))
    return flat[::2] | flat[1::2] << 4


def _one_a_byte(packed: np.ndarray, n: int) -> np.ndarray:
    if len(packed) != (n + 1) // 2:
        raise ValueError(f"{len(packed)} bytes do not hold {n} values")
    return np.stack([packed & 15, packed >> 4], axis=1).ravel()[:n]


def _near_dense(z: Any) -> bool:
    return z.nnz > NEAR_DENSE * z.shape[0] * z.shape[1]
