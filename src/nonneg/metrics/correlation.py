"""Do features repeat each other? N images, D features; z is N x D. Nothing here is centred: zero means "off"."""

from collections.abc import Sequence

import numpy as np

from nonneg.errors import BadInput
from nonneg.metrics.sparsity import Matrix, as_csr, live


def correlation(z: Matrix, *, features: Sequence[int] | np.ndarray | None = None, eps: float = 1e-5) -> np.ndarray:
    """The cosine z_i . z_j / (|z_i| |z_j|) between feature columns, not centred.

    Over the live features (|z| >= eps somewhere), or over `features` in that order; nan for a column of zeros.
    """
    z = as_csr(z)
    chosen = np.flatnonzero(live(z, eps=eps)) if features is None else np.asarray(features, dtype=np.int64)
    if chosen.size and not (chosen.min() >= 0 and chosen.max() < z.shape[1]):
        raise BadInput(f"there are {z.shape[1]} features: choose from 0 to {z.shape[1] - 1}")
    dot = gram(z[:, chosen])
    norm = np.sqrt(dot.diagonal())
    norm = np.where(norm > 0, norm, np.nan)
    return np.clip(dot / norm[:, None] / norm[None, :], -1, 1)


def orthogonality(z: Matrix, *, eps: float = 1e-5) -> float:
    """The mean |cosine| between different live feature columns, 0 when orthogonal; nan with fewer than two live."""
    cosine = np.abs(correlation(z, eps=eps))
    n = len(cosine)
    return float((cosine.sum() - cosine.trace()) / (n * (n - 1))) if n > 1 else float("nan")


def effective_rank(z: Matrix) -> float:
    """exp(-sum_i p_i log p_i), p_i = s_i / sum_j s_j, of the singular values s of z, not centred.

    The effective rank of Roy & Vetterli (2007), between 1 and the rank. Singular values too small to be told from
    rounding count as zero; nan when z is all zero.
    """
    z = as_csr(z)
    if z.shape[0] < z.shape[1]:
        z = z.T.tocsr()  # the same singular values from the smaller Gram matrix
    squared = np.linalg.eigvalsh(gram(z))
    floor = squared.max(initial=0) * max(z.shape) * np.finfo(np.float64).eps
    s = np.sqrt(squared[squared > floor])
    p = s / s.sum()
    return float(np.exp(-(p * np.log(p)).sum())) if len(s) else float("nan")


def gram(z: Matrix) -> np.ndarray:
    """z^T z in float64: D x D."""
    z = z.astype(np.float64)
    if z.nnz < 0.05 * z.shape[0] * z.shape[1]:
        return (z.T @ z).toarray()
    total = np.zeros((z.shape[1], z.shape[1]))
    for start in range(0, z.shape[0], 4096):  # dense blocks: faster than a sparse product once z is not very sparse
        block = z[start : start + 4096].toarray()
        total += block.T @ block
    return total
