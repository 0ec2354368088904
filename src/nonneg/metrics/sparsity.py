"""How few features fire. N images, D features; z is N x D, sparse (CSR) or dense."""

from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from nonneg.errors import BadInput

Matrix: TypeAlias = Any  # scipy.sparse.csr_array, for which scipy ships no types, or np.ndarray


def sparsity(z: Matrix, *, eps: float = 1e-5) -> float:
    """The share of features with |z| < eps, averaged over samples; nan without samples or features."""
    count = active_per_sample(z, eps=eps)
    size = len(count) * z.shape[1]
    return float(1 - count.sum() / size) if size else float("nan")


def active_per_sample(z: Matrix, *, eps: float = 1e-5) -> np.ndarray:
    """How many features have |z| >= eps, for each of the N samples."""
    return np.diff(active(z, eps=eps).indptr).astype(np.int64)


def live(z: Matrix, *, eps: float = 1e-5) -> np.ndarray:
    """Which of the D features have |z| >= eps on at least one sample."""
    fired = np.zeros(z.shape[1], dtype=bool)
    fired[active(z, eps=eps).indices] = True
    return fired


def live_features(z: Matrix, *, eps: float = 1e-5) -> int:
    """How many features have |z| >= eps on at least one sample."""
    return int(live(z, eps=eps).sum())


def zero_rows(z: Matrix) -> int:
    """How many samples have no feature other than exactly zero."""
    z = as_csr(z)
    sample = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
    return z.shape[0] - len(np.unique(sample[z.data != 0]))  # a stored zero is still a zero


def active(z: Matrix, *, eps: float) -> Matrix:
    """The magnitudes |z| that reach eps, and nothing else, as N x D."""
    if not eps > 0:
        raise BadInput(f"eps is {eps}, but a feature fires where |z| >= eps: give a positive number such as 1e-5")
    z = as_csr(z)
    magnitude = np.abs(z.data)
    keep = magnitude >= eps
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    return sparse.csr_array((magnitude[keep], z.indices[keep], kept_before[z.indptr]), shape=z.shape)


def as_csr(z: Matrix) -> Matrix:
    """z as CSR of finite floats with each entry stored once; what was given is not changed."""
    dense = z if sparse.issparse(z) else np.asarray(z)
    if dense.ndim != 2:
        raise BadInput(f"features have shape {dense.shape}: give one row per sample and one column per feature")
    if dense.dtype.kind not in "fiub":
        raise BadInput(f"features are of type {dense.dtype}: give real numbers")
    csr: Matrix = sparse.csr_array(dense)
    if csr.dtype not in (np.float32, np.float64):
        csr = csr.astype(np.float32)
    if not csr.has_canonical_format:
        csr = csr.copy()
        csr.sum_duplicates()
    if not np.isfinite(csr.data).all():
        raise BadInput("features hold NaN or infinite values: the model diverged, or the file is damaged")
    return csr


def unit_rows(z: Matrix) -> Matrix:
    """Rows divided by their length, in float64; rows of zeros stay zero."""
    z = rows_at_most_one(z)
    sample = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
    length = np.sqrt(np.bincount(sample, weights=z.data**2, minlength=z.shape[0]))
    z.data /= np.where(length > 0, length, 1)[sample]
    return z


def rows_at_most_one(z: Matrix) -> Matrix:
    """Rows divided by their largest |z|, in float64: cosines stay, and no square vanishes or overflows."""
    z = as_csr(z).astype(np.float64)
    sample = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
    largest = np.zeros(z.shape[0])
    np.maximum.at(largest, sample, np.abs(z.data))
    z.data /= np.where(largest > 0, largest, 1)[sample]
    return z
