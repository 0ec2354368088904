"""Does one feature stand for one factor? For data whose factors are known, such as sprites.

N images, D codes (features), F factors, K values of a factor, B bins; z is N x D, factors N x F whole numbers. A factor
with one value says nothing: it is left out and listed as `constant`. A code with one value informs about nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from nonneg.errors import BadInput, unknown
from nonneg.metrics.sparsity import Matrix, as_csr

Binning = Literal["width", "quantile"]

HELD_OUT = 0.25
TREES, LEAF = 10, 10  # of each forest: its trees, and the least samples in a leaf
PART = 2**22  # counts, or samples to be counted, held at a time


@dataclass(frozen=True, eq=False)
class Mig:
    """`score` is the mean of `gaps`, one for each factor in `used`; `information` is used x D nats."""

    score: float
    gaps: np.ndarray
    information: np.ndarray
    entropy: np.ndarray
    used: tuple[int, ...]
    constant: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Dci:
    """Three scores with their parts: by code (D), by factor in `used`; `importance` is D x used."""

    disentanglement: float
    completeness: float
    informativeness: float
    by_code: np.ndarray
    completeness_by_factor: np.ndarray
    accuracy_by_factor: np.ndarray
    chance_by_factor: np.ndarray
    importance: np.ndarray
    used: tuple[int, ...]
    constant: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Sap:
    """`score` is the mean of `gaps`, one for each factor in `used`; `accuracy` is used x D."""

    score: float
    gaps: np.ndarray
    accuracy: np.ndarray
    used: tuple[int, ...]
    constant: tuple[int, ...]


def mig(z: Matrix | Tensor, factors: np.ndarray | Tensor, *, bins: int = 20, binning: Binning = "width") -> Mig:
    """MIG = mean_k [ I(z_1st; v_k) - I(z_2nd; v_k) ] / H(v_k), the two codes that inform most about factor v_k.

    Mutual information of a factor with a binned code, from exact counts, in nats. `width` cuts the range of a code into
    `bins` equal parts, `quantile` its values into equal shares, equal ones together. With one code the second is 0.
    """
    codes, known = _codes(z), _factors(factors, z.shape[0])
    binned = _binned(codes, codes, bins, binning)
    information = np.array([_information(binned, y, bins) for y in known.values])
    entropy = np.array([_entropy(y) for y in known.values])
    gaps = _gap(information) / entropy
    return Mig(float(gaps.mean()), gaps, information, entropy, known.used, known.constant)


def sap(
    z: Matrix | Tensor,
    factors: np.ndarray | Tensor,
    *,
    bins: int = 20,
    binning: Binning = "width",
    seed: int = 0,
) -> Sap:
    """SAP = mean_k [ A(z_1st, v_k) - A(z_2nd, v_k) ], A the accuracy with which one code alone tells a factor's value.

    The code is cut into bins on three quarters of the samples, as in `mig`; each bin stands for the value of largest
    #(bin, value) / #(value) there. A is the share of right answers on the other quarter, each value weighing the same
    (chance is 1 / K). A bin that was empty is never right; with one code the second scores 0.
    """
    codes, known = _codes(z), _factors(factors, z.shape[0])
    train, test = _split(codes.shape[0], seed)
    seen, asked = (_binned(codes[part], codes[train], bins, binning) for part in (train, test))
    accuracy = np.array([_balanced_accuracy(seen, y[train], asked, y[test], bins) for y in known.values])
    gaps = _gap(accuracy)
    return Sap(float(gaps.mean()), gaps, accuracy, known.used, known.constant)


def dci(z: Matrix | Tensor, factors: np.ndarray | Tensor, *, seed: int = 0) -> Dci:
    """Disentanglement sum_i w_i (1 - H_F(R_i / sum R_i)), completeness mean_k (1 - H_D(R_k)), informativeness.

    R_ik is the importance of code i in a forest of extremely randomised trees that tells factor k from all codes; over
    codes it sums to 1, or is 0 where none helps. H_F is an entropy in base F, w_i the share of code i in all of R.
    Informativeness is the mean accuracy of the forests on a quarter of the samples, held out; `chance` is that of the
    most frequent value. A single code that helps is complete, and codes of a single factor are disentangled.
    """
    codes, known = _codes(z), _factors(factors, z.shape[0])
    train, test = _split(codes.shape[0], seed)
    codes = _at_most_one(codes)
    told = [_forest(codes[train], y[train], codes[test], y[test], seed=seed) for y in known.values]
    importance = np.stack([r for r, _ in told], axis=1)
    accuracy = np.array([right for _, right in told])
    chance = np.array([(y[test] == np.bincount(y[train]).argmax()).mean() for y in known.values])
    alive = importance.sum(axis=1) > 0  # a code that nobody needs, dead ones among them, makes no factor more complete
    by_code, complete = _concentration(importance), _concentration(importance[alive].T)
    total = importance.sum()
    weight = importance.sum(axis=1) / total if total else np.zeros(len(importance))
    return Dci(
        disentanglement=float(weight @ by_code),
        completeness=float(complete.mean()),
        informativeness=float(accuracy.mean()),
        by_code=by_code,
        completeness_by_factor=complete,
        accuracy_by_factor=accuracy,
        chance_by_factor=chance,
        importance=importance,
        used=known.used,
        constant=known.constant,
    )


@dataclass(frozen=True)
class _Known:
    """The factors that vary, each as N numbers 0..K-1, and which columns they and the constant ones were."""

    values: list[np.ndarray]
    used: tuple[int, ...]
    constant: tuple[int, ...]


def _factors(factors: np.ndarray | Tensor, n: int) -> _Known:
    table = factors.detach().cpu().numpy() if isinstance(factors, Tensor) else np.asarray(factors)
    if table.ndim != 2 or table.shape[0] != n:
        raise BadInput(f"there are {n} samples but factors of shape {table.shape}: give one row per sample")
    if table.dtype.kind not in "iu":
        raise BadInput(f"factors are of type {table.dtype}: give whole numbers, one for each value of a factor")
    values = [np.unique(column, return_inverse=True)[1] for column in table.T]
    varies = [bool(y.any()) for y in values]
    if not any(varies):
        raise BadInput(f"none of the {table.shape[1]} factors takes two values on these {n} samples: give some that do")
    used = tuple(k for k, v in enumerate(varies) if v)
    return _Known([values[k] for k in used], used, tuple(k for k, v in enumerate(varies) if not v))


def _codes(z: Matrix | Tensor) -> np.ndarray:
    """Finite float64 codes, N x D."""
    csr = as_csr(z.detach().to("cpu", torch.float64).numpy() if isinstance(z, Tensor) else z)
    if not csr.shape[1]:
        raise BadInput("there are no codes: give at least one column")
    return csr.toarray().astype(np.float64)


def _split(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three quarters of n samples to learn from and one to ask about, at random."""
    order, held_out = np.random.default_rng(seed).permutation(n), max(1, round(HELD_OUT * n))
    return order[held_out:], order[:held_out]


def _binned(codes: np.ndarray, like: np.ndarray, bins: int, binning: str) -> np.ndarray:
    """The bin, from 0 to bins - 1, of each value of each code, by bins made for the values in `like`: N x D."""
    if bins < 2:
        raise BadInput(f"bins is {bins}: a code needs 2 or more to say anything")
    if binning not in get_args(Binning):
        raise unknown("binning", str(binning), get_args(Binning))
    into = _into_shares if binning == "quantile" else _into_widths
    return np.stack([into(code, values, bins) for code, values in zip(codes.T, like.T, strict=True)], axis=1)


def _into_widths(code: np.ndarray, like: np.ndarray, bins: int) -> np.ndarray:
    """Equal parts of the range; a value on an edge goes up."""
    half = np.linspace(0.5 * like.min(), 0.5 * like.max(), bins + 1)  # the range of two large floats would overflow
    return np.searchsorted(2 * half[1:-1], code, side="right")


def _into_shares(code: np.ndarray, like: np.ndarray, bins: int) -> np.ndarray:
    """floor(bins x the middle of a value's ranks / n): equal values share a bin, and a spike swallows no others."""
    ordered = np.sort(like)
    ranks = np.searchsorted(ordered, code, side="left") + np.searchsorted(ordered, code, side="right")
    return np.minimum(bins * ranks // (2 * len(ordered)), bins - 1)


def _parts(binned: np.ndarray, k: int, bins: int) -> Iterator[slice]:
    """Some codes at a time, so that neither their samples nor their counts fill the memory."""
    n, d = binned.shape
    step = max(1, PART // max(n, k * bins))
    yield from (slice(start, start + step) for start in range(0, d, step))


def _counts(binned: np.ndarray, y: np.ndarray, k: int, bins: int) -> np.ndarray:
    """#(value, code, bin): K x D x B."""
    d = binned.shape[1]
    cell = (y[:, None] * d + np.arange(d)) * bins + binned
    return np.bincount(cell.ravel(), minlength=k * d * bins).reshape(k, d, bins)


def _n_log_n(counts: np.ndarray) -> np.ndarray:
    return counts * np.log(np.maximum(counts, 1))


def _entropy(y: np.ndarray) -> float:
    """-sum_v p(v) log p(v), in nats."""
    return float(np.log(len(y)) - _n_log_n(np.bincount(y)).sum() / len(y))


def _information(binned: np.ndarray, y: np.ndarray, bins: int) -> np.ndarray:
    """I(code; y) = sum_vb p(v, b) log( p(v, b) / (p(v) p(b)) ), in nats, for each of the D codes."""
    n, k, found = len(y), int(y.max()) + 1, []
    for part in _parts(binned, k, bins):
        both = _counts(binned[:, part], y, k, bins)
        alone = both.sum(axis=0)
        inside = _n_log_n(both).sum(axis=(0, 2)) - _n_log_n(alone).sum(axis=1)
        varies = (alone > 0).sum(axis=1) > 1  # a code in one bin informs of exactly nothing, whatever the rounding
        found.append(varies * np.maximum(inside / n + _entropy(y), 0))
    return np.concatenate(found)


def _balanced_accuracy(seen: np.ndarray, y: np.ndarray, asked: np.ndarray, answer: np.ndarray, bins: int) -> np.ndarray:
    """Mean over values of the share of samples of that value whose bin stands for it, for each of the D codes."""
    k = int(max(y.max(), answer.max())) + 1
    learned, present = np.bincount(y, minlength=k), np.bincount(answer, minlength=k)
    found = []
    for part in _parts(seen, k, bins):
        before, after = _counts(seen[:, part], y, k, bins), _counts(asked[:, part], answer, k, bins)
        stands_for = (before / np.maximum(learned, 1)[:, None, None]).argmax(axis=0)  # d x bins
        right = np.take_along_axis(after, stands_for[None], axis=0)[0] * before.any(axis=0)
        found.append((right / np.maximum(present[stands_for], 1)).sum(axis=1) / (present > 0).sum())
    return np.concatenate(found)


def _gap(scores: np.ndarray) -> np.ndarray:
    """The largest minus the second largest over the D codes, which is 0 where there is one code: one for each row."""
    ordered = np.sort(scores, axis=1)
    return ordered[:, -1] - (ordered[:, -2] if scores.shape[1] > 1 else 0)


def _at_most_one(codes: np.ndarray) -> np.ndarray:
    """Columns divided by their largest magnitude: trees see the same, and in single precision nothing overflows."""
    largest = np.abs(codes).max(axis=0)
    return (codes / np.where(largest > 0, largest, 1)).astype(np.float32)


def _forest(
    codes: np.ndarray, y: np.ndarray, asked: np.ndarray, answer: np.ndarray, *, seed: int
) -> tuple[np.ndarray, float]:
    """The importance of each code (decrease of impurity, summing to 1 or all 0) and the accuracy on `asked`."""
    from sklearn.ensemble import ExtraTreesClassifier  # imported here: it costs a second that no other metric needs

    forest = ExtraTreesClassifier(
        TREES,
        # all codes at each split: trees that must choose among a random few credit codes that say little
        max_features=None,  # pyright: ignore[reportArgumentType]
        min_samples_leaf=LEAF,
        random_state=seed % 2**32,  # all that scikit-learn takes
    ).fit(codes, y)
    return forest.feature_importances_, float((forest.predict(asked) == answer).mean())


def _concentration(rows: np.ndarray) -> np.ndarray:
    """1 - H(row / its sum) / log(its length), one for each row: 1 all in one place, 0 evenly spread or all zero."""
    total = rows.sum(axis=1, keepdims=True)
    p = rows / np.where(total > 0, total, 1)
    entropy = -(p * np.log(np.where(p > 0, p, 1))).sum(axis=1)
    return np.where(total[:, 0] > 0, 1 - entropy / np.log(max(rows.shape[1], 2)), 0)
