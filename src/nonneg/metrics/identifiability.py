"""Do two runs find the same features? N images, D_a and D_b features; z_a is N x D_a, z_b is N x D_b, row n of both the
same image.

Features are compared by |cosine| or |r| of their columns, which no permutation, scale or flip of sign changes, and
matched one to one so that the sum of similarities is largest (the Hungarian algorithm). Only live features take part.

Two nulls say what a similarity is worth. Shuffled images: what chance matches. Rotated features: a loss of inner
products alone is the same after any rotation z Q, so axes that mean nothing match no better than rotated ones, which in
few dimensions is far above chance.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.optimize import linear_sum_assignment

from nonneg.errors import BadInput, unknown
from nonneg.metrics.sparsity import Matrix, as_csr, live

Similarity = Literal["cosine", "correlation"]

SPARSE = 0.05  # share of values other than zero below which a sparse product is faster than dense blocks
ROWS = 4096  # samples made dense at once
FAR = 1e6  # largest N mean_a mean_b, of columns of length 1, worth subtracting: it takes six of 16 digits along


@dataclass(frozen=True)
class Side:
    """One run's D features: which are live, the partner of each (-1: none), their similarity (nan: no partner)."""

    live: np.ndarray
    partner: np.ndarray
    similarity: np.ndarray


@dataclass(frozen=True)
class Matching:
    """Two runs matched; `mean` similarity and `share` above the threshold are over all matched pairs.

    There are as many pairs as the side with fewer live features has of them.
    """

    a: Side
    b: Side
    mean: float
    share: float


@dataclass(frozen=True)
class Null:
    """`mean` and `share` of a matching in which nothing is left to find, averaged over draws."""

    mean: float
    share: float


@dataclass(frozen=True)
class Stability:
    """R runs matched two at a time, P = R (R - 1) / 2 pairs of runs.

    `scores`: for each run, D numbers: a live feature's similarity to its partner, mean over the other runs (0 in a run
    that has no partner left for it); nan for a dead feature. `means` and `shares` of each pair of runs: R x R,
    symmetric, nan on the diagonal. `mean`, `share`, `shuffled`, `rotated`: averages over pairs; `std`, `share_std`:
    deviation over pairs (divided by P, so 0 for two runs).
    """

    scores: list[np.ndarray]
    means: np.ndarray
    shares: np.ndarray
    mean: float
    std: float
    share: float
    share_std: float
    shuffled: Null
    rotated: Null


def match_features(
    z_a: Matrix, z_b: Matrix, *, similarity: Similarity = "cosine", threshold: float = 0.5, eps: float = 1e-5
) -> Matching:
    """The one-to-one matching p of live features of largest mean_i s(i, p(i)), s = |z_a,i . z_b,j| / (|z_a,i| |z_b,j|).

    `correlation` centres the columns first (s = |r|) and counts a feature that never varies as dead. `share` is that of
    matched pairs with s > threshold.
    """
    a, b = _runs([z_a, z_b], similarity=similarity, threshold=threshold, eps=eps)
    return _matching(a, b, threshold)


def shuffled_null(
    z_a: Matrix,
    z_b: Matrix,
    *,
    similarity: Similarity = "cosine",
    threshold: float = 0.5,
    eps: float = 1e-5,
    draws: int = 3,
    seed: int = 0,
) -> Null:
    """`match_features` with the images of z_b in random order, mean over `draws` orders."""
    _check_draws(draws)
    a, b = _runs([z_a, z_b], similarity=similarity, threshold=threshold, eps=eps)
    return _null(_shuffled(a, b, draws, np.random.default_rng(seed)), threshold)


def rotated_null(
    z_a: Matrix,
    z_b: Matrix,
    *,
    similarity: Similarity = "cosine",
    threshold: float = 0.5,
    eps: float = 1e-5,
    draws: int = 3,
    seed: int = 0,
) -> Null:
    """`match_features` with the live features of z_b turned to z_b Q, Q orthogonal, mean over `draws` random Q."""
    _check_draws(draws)
    a, b = _runs([z_a, z_b], similarity=similarity, threshold=threshold, eps=eps)
    return _null(_rotated(a, b, draws, np.random.default_rng(seed)), threshold)


def stability(
    zs: Sequence[Matrix],
    *,
    similarity: Similarity = "cosine",
    threshold: float = 0.5,
    eps: float = 1e-5,
    draws: int = 3,
    seed: int = 0,
    names: Sequence[str] = (),
) -> Stability:
    """Every two of R >= 2 runs matched, beside both nulls: score_i = mean over the other runs of s(i, p(i)).

    `names` are what runs are called where one of them cannot be matched.
    """
    if len(zs) < 2:
        raise BadInput(f"stability compares runs, but {len(zs)} was given: give the features of two or more runs")
    _check_draws(draws)
    runs = _runs(zs, similarity=similarity, threshold=threshold, eps=eps, names=names)
    n = len(runs)
    scores = [np.where(run.live, 0.0, np.nan) for run in runs]
    means, shares = np.full((n, n), np.nan), np.full((n, n), np.nan)
    shuffled, rotated = [], []
    for i, j in itertools.combinations(range(n), 2):
        found = _matching(runs[i], runs[j], threshold)
        means[i, j] = means[j, i] = found.mean
        shares[i, j] = shares[j, i] = found.share
        for run, side in ((i, found.a), (j, found.b)):
            has = side.partner >= 0
            scores[run][has] += side.similarity[has] / (n - 1)
        shuffled.append(_null(_shuffled(runs[i], runs[j], draws, np.random.default_rng(seed)), threshold))
        rotated.append(_null(_rotated(runs[i], runs[j], draws, np.random.default_rng(seed)), threshold))
    pairs = np.triu_indices(n, 1)
    return Stability(
        scores=scores,
        means=means,
        shares=shares,
        mean=float(means[pairs].mean()),
        std=float(means[pairs].std()),
        share=float(shares[pairs].mean()),
        share_std=float(shares[pairs].std()),
        shuffled=_mean_null(shuffled),
        rotated=_mean_null(rotated),
    )


@dataclass(frozen=True)
class _Columns:
    """The L live features of one run, scaled: (z - offset) has columns of length 1; offset is 0 unless centred.

    `size` is how long the columns were, relative to the longest.
    """

    z: Matrix  # N x L, CSR, float64
    offset: np.ndarray  # L
    size: np.ndarray  # L
    live: np.ndarray  # D


def _runs(
    zs: Sequence[Matrix], *, similarity: Similarity, threshold: float, eps: float, names: Sequence[str] = ()
) -> list[_Columns]:
    if similarity not in get_args(Similarity):
        raise unknown("similarity", str(similarity), get_args(Similarity))
    if not 0 <= threshold < 1:
        raise BadInput(f"the threshold is {threshold}, but similarities are between 0 and 1: give one such as 0.5")
    zs = [as_csr(z) for z in zs]
    counts = [z.shape[0] for z in zs]
    if len(set(counts)) > 1:
        raise BadInput(f"the runs have features of {counts} images: give the same images, in the same order, to each")
    if counts[0] < 2:
        raise BadInput(f"there are features of {counts[0]} images: matching needs two or more")
    runs = [_unit_columns(z, centred=similarity == "correlation", eps=eps) for z in zs]
    called = names or [f"run {number} (counted from 0)" for number in range(len(runs))]
    for name, run in zip(called, runs, strict=True):
        if not run.live.any():
            varies = " and varies" if similarity == "correlation" else ""
            raise BadInput(f"no feature of {name} is live{varies}: there is nothing to match")
    return runs


def _unit_columns(z: Matrix, *, centred: bool, eps: float) -> _Columns:
    alive = live(z, eps=eps)
    if centred and z.shape[1]:
        alive &= z.max(axis=0).toarray().ravel() > z.min(axis=0).toarray().ravel()
    z = z[:, np.flatnonzero(alive)].astype(np.float64)
    n, d = z.shape
    if not d:
        return _Columns(z, np.zeros(0), np.zeros(0), alive)
    most = abs(z).max(axis=0).toarray().ravel()
    z.data /= most[z.indices]  # at most 1, so that no square overflows or vanishes
    offset = np.bincount(z.indices, weights=z.data, minlength=d) / n if centred else np.zeros(d)
    stored = np.bincount(z.indices, minlength=d)
    squares = np.bincount(z.indices, weights=(z.data - offset[z.indices]) ** 2, minlength=d)
    length = np.sqrt(squares + (n - stored) * offset**2)  # zeros, too, are that far from the mean
    z.data /= length[z.indices]
    size = most / most.max() * length
    return _Columns(z, offset / length, size / size.max(), alive)


def _dot(a: _Columns, b: _Columns, order: np.ndarray | None = None) -> np.ndarray:
    """The cosine of every feature of a with every one of b, the samples of b in `order`: L_a x L_b."""
    n, width = a.z.shape[0], a.z.shape[1] + b.z.shape[1]
    b_z = b.z if order is None else b.z[order]
    hardly_varies = n * np.abs(a.offset).max() * np.abs(b.offset).max() > FAR
    if a.z.nnz + b_z.nnz < SPARSE * n * width and not hardly_varies:
        return (a.z.T @ b_z).toarray() - n * np.multiply.outer(a.offset, b.offset)
    total = np.zeros((a.z.shape[1], b_z.shape[1]))
    for rows in (slice(at, at + ROWS) for at in range(0, n, ROWS)):
        total += (a.z[rows].toarray() - a.offset).T @ (b_z[rows].toarray() - b.offset)
    return total


def _shuffled(a: _Columns, b: _Columns, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    for _ in range(draws):
        yield _dot(a, b, rng.permutation(b.z.shape[0]))


def _rotated(a: _Columns, b: _Columns, draws: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Cosines of a with b Q from inner products alone: a^T (b Q) = (a^T b) Q, and |b Q_j|^2 = Q_j^T (b^T b) Q_j."""
    dot = _dot(a, b) * b.size
    gram = _dot(b, b) * np.multiply.outer(b.size, b.size)
    for _ in range(draws):
        q = _orthogonal(len(gram), rng)
        yield dot @ q / np.sqrt(np.einsum("ij,ij->j", q, gram @ q))


def _orthogonal(d: int, rng: np.random.Generator) -> np.ndarray:
    """A random d x d orthogonal matrix: the signs of R make Q uniform."""
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return q * np.where(r.diagonal() < 0, -1, 1)


def _best(cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and |cosine| of the one-to-one matching of largest sum."""
    similarity = np.abs(cosine).clip(max=1)
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    return rows, columns, similarity[rows, columns]


def _matching(a: _Columns, b: _Columns, threshold: float) -> Matching:
    rows, columns, found = _best(_dot(a, b))
    in_a, in_b = np.flatnonzero(a.live)[rows], np.flatnonzero(b.live)[columns]
    return Matching(
        a=_side(a.live, in_a, in_b, found),
        b=_side(b.live, in_b, in_a, found),
        mean=float(found.mean()),
        share=float((found > threshold).mean()),
    )


def _side(alive: np.ndarray, features: np.ndarray, partners: np.ndarray, similarity: np.ndarray) -> Side:
    side = Side(alive, np.full(len(alive), -1), np.full(len(alive), np.nan))
    side.partner[features], side.similarity[features] = partners, similarity
    return side


def _null(cosines: Iterable[np.ndarray], threshold: float) -> Null:
    found = [_best(cosine)[2] for cosine in cosines]
    return _mean_null([Null(float(s.mean()), float((s > threshold).mean())) for s in found])


def _mean_null(nulls: Sequence[Null]) -> Null:
    return Null(float(np.mean([null.mean for null in nulls])), float(np.mean([null.share for null in nulls])))


def _check_draws(draws: int) -> None:
    if draws < 1:
        raise BadInput(f"draws is {draws}: give 1 or more")
