"""Does a feature mean one class? N images, D features, C classes; z is N x D, labels N integers from 0.

A feature is active on a sample where |z| >= eps. A feature with few active samples scores high by construction (one
sample: 1), a dense feature scores the share of the largest class: `chance` and `weighted=True` put both in proportion.
"""

import numpy as np

from nonneg.errors import BadInput
from nonneg.metrics.sparsity import Matrix, active


def class_consistency(z: Matrix, labels: np.ndarray, *, eps: float = 1e-5, weighted: bool = False) -> float:
    """The mean over live features of max_c #(active, class c) / #(active); nan when no feature is live.

    With `weighted`, features count in proportion to their number of active samples: sum_f max_c n_fc / sum_f n_f.
    """
    counts = _class_counts(z, labels, eps=eps)
    most, total = counts.max(axis=0, initial=0), counts.sum(axis=0)
    if not total.any():
        return float("nan")
    if weighted:
        return float(most.sum() / total.sum())
    return float((most[total > 0] / total[total > 0]).mean())


def per_feature_consistency(z: Matrix, labels: np.ndarray, *, eps: float = 1e-5) -> np.ndarray:
    """max_c #(active, class c) / #(active) for each of the D features; nan for a feature that never fires."""
    counts = _class_counts(z, labels, eps=eps)
    most, total = counts.max(axis=0, initial=0), counts.sum(axis=0)
    return np.where(total > 0, most / np.maximum(total, 1), np.nan)


def chance(labels: np.ndarray) -> float:
    """The share of the largest class, which a feature that always fires scores; nan without samples."""
    y = _class_index(labels, len(labels))
    return float(np.bincount(y).max() / len(y)) if len(y) else float("nan")


def top10_consistency(z: Matrix, labels: np.ndarray, *, k: int = 10, eps: float = 1e-5) -> float:
    """The mean over live features of the majority-class share among the k samples of largest |z|.

    A feature with fewer than k active samples is judged on those it has; equal |z| are told apart by `tie_order`, for
    samples may be sorted by class; nan when no feature is live.
    """
    _check_k(k)
    order = tie_order(z.shape[0])
    y = _class_index(labels, z.shape[0])[order]
    columns = active(z, eps=eps)[order].tocsc()  # within a column the samples are in this order
    shares = []
    for start, end in zip(columns.indptr[:-1], columns.indptr[1:], strict=True):
        if end > start:
            chosen = y[columns.indices[start:end][_largest(columns.data[start:end], k)]]
            shares.append(np.bincount(chosen).max() / len(chosen))
    return float(np.mean(shares)) if shares else float("nan")


def tie_order(n: int) -> np.ndarray:
    """The order of n samples by which equal values are told apart: random, and always the same."""
    return np.random.default_rng(0).permutation(n)


def top_k_chance(labels: np.ndarray, k: int = 10, *, draws: int = 20_000, seed: int = 0) -> float:
    """The expected majority-class share of k samples drawn at random without replacement, over `draws` draws.

    k is clipped to the number of samples; nan without samples.
    """
    _check_k(k)
    y = _class_index(labels, len(labels))
    if not len(y):
        return float("nan")
    k, sizes, rng = min(k, len(y)), np.bincount(y), np.random.default_rng(seed)
    chunks = np.diff(np.arange(0, draws + 1000, 1000).clip(max=draws))  # draws x C would be large for many classes
    most = [rng.multivariate_hypergeometric(sizes, k, size=n, method="count").max(axis=1) for n in chunks]
    return float(np.concatenate(most).mean() / k)


def _class_counts(z: Matrix, labels: np.ndarray, *, eps: float) -> np.ndarray:
    """How many samples of each class each feature is active on: C x D."""
    y = _class_index(labels, z.shape[0])
    fired = active(z, eps=eps)
    n_classes, n_features = int(y.max(initial=-1)) + 1, z.shape[1]
    cell = np.repeat(y * n_features, np.diff(fired.indptr)) + fired.indices
    return np.bincount(cell, minlength=n_classes * n_features).reshape(n_classes, n_features)


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest values (all, if fewer); of equal values the first ones."""
    if len(values) <= k:
        return np.arange(len(values))
    bar = np.partition(values, -k)[-k]
    above = np.flatnonzero(values > bar)
    return np.concatenate([above, np.flatnonzero(values == bar)[: k - len(above)]])


def _class_index(labels: np.ndarray, n: int) -> np.ndarray:
    """Labels as 0..C-1 over the classes that occur."""
    y = np.asarray(labels)
    if y.shape != (n,):
        raise BadInput(f"there are {n} samples but labels of shape {y.shape}: give one label per sample")
    if y.size and (y.dtype.kind not in "iu" or y.min() < 0):
        raise BadInput("labels must be whole numbers from 0: leave out samples that have no label")
    return np.unique(y, return_inverse=True)[1].astype(np.int64)


def _check_k(k: int) -> None:
    if k < 1:
        raise BadInput(f"k is {k}: give the number of samples to look at, 1 or more")
