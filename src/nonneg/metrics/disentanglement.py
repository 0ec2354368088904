"""Does a feature say what the others do not? SEPIN, exact for all features at once, and no labels.

N images, D features; f and g are N x D: row n of f and row n of g are two augmented views of image n. A block is R
anchors (rows of f) against all N rows of g. Dropping feature i adds d_nm to the logit of the pair (n, m), so

    SEPIN_i = mean_n [ -d_nn + log1p( sum_m p_nm expm1(d_nm) ) ],  p_nm = w_nm E_nm / sum_k w_nk E_nk:

no loss is subtracted from another, and a pair with d_nm = 0 costs nothing.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy import sparse

from nonneg.errors import BadInput, unknown
from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows

Weights = Literal["mean", "sum"]

BLOCK = 2**24  # pairs of images held at a time: 128 MB an array
PART = 2**17  # pairs worked on at a time: what stays in a core's cache
SERIES_RANGE = 6.0  # |d| up to which the power series keeps its digits: its terms grow like e^|d|
SERIES_REST = 1e-12  # what the series may leave out, relative to its first term
GATHERED = 150  # what one gathered pair and its expm1 cost, in multiply-adds of a matrix product
STEEP = 9.0  # rows that grow more than tenfold when re-normalised get their inner products anew


def sepin(
    f: Matrix,
    g: Matrix,
    *,
    temperature: float = 1.0,
    weights: Weights = "mean",
    normalise: bool = True,
    renormalise: bool = False,
) -> np.ndarray:
    """SEPIN_i = L(without i) - L, L = -mean_n log(E_nn / sum_m w_nm E_nm), E_nm = exp(f_n . g_m / T): D nats.

    The positive of f_n is g_n (w = 1), its negatives are all M = N - 1 other rows of g, each with w = 1/M ("mean", as
    in the paper) or 1 ("sum"). `normalise` gives rows unit length first (rows of zeros stay); `renormalise` does so
    again after feature i is gone, otherwise the shortened rows stay as they are. A feature always 0 scores 0.
    """
    if not (temperature > 0 and math.isfinite(temperature)):
        raise BadInput(f"the temperature is {temperature}: give a positive number such as 1 or 0.2")
    if weights not in get_args(Weights):
        raise unknown("weights", str(weights), get_args(Weights))
    if renormalise and not normalise:
        raise BadInput("renormalise compares rows of unit length before and after: leave normalise on")
    f, g = _two_views(f, g, normalise=normalise)
    n = f.shape[0]
    log_w = -math.log(n - 1) if weights == "mean" else 0.0
    dropped = _renormalised if renormalise else _plain
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is done again in logarithms, or refused below
        total = sum(dropped(_block(f, g, rows, temperature, log_w), f, g, temperature) for rows in _blocks(n))
    if not np.isfinite(total).all():
        raise BadInput(f"features are too large for temperature {temperature}: normalise them, or raise it")
    return np.asarray(total) / n


def sepin_at(values: np.ndarray, k: int) -> float:
    """SEPIN@k: the mean of the k largest of the D values of `sepin`; k = D is the paper's SEPIN@all."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise BadInput("SEPIN@k needs one finite number per feature: give what sepin returned")
    if not 1 <= k <= len(values):
        raise BadInput(f"k is {k}, but there are {len(values)} features: choose from 1 to {len(values)}")
    return float(np.sort(values)[-k:].mean())


@dataclass(frozen=True)
class _Block:
    """Anchors `rows` against all of g: logits f.g / T (R x N), the softmax p of logits + log w, its log-sum (R)."""

    rows: slice
    logits: np.ndarray
    p: np.ndarray
    log_sum: np.ndarray
    log_w: float


def _two_views(f: Matrix, g: Matrix, *, normalise: bool) -> tuple[Matrix, Matrix]:
    f, g = (as_csr(z).astype(np.float64) for z in (f, g))
    if f.shape != g.shape:
        raise BadInput(f"the two views have shapes {f.shape} and {g.shape}: give the same images and features")
    if f.shape[0] < 2:
        raise BadInput(f"there are {f.shape[0]} images, and an image needs at least one other as its negative")
    for z in (f, g):
        z.eliminate_zeros()
    return (unit_rows(f), unit_rows(g)) if normalise else (f, g)


def _row_of(z: Matrix) -> np.ndarray:
    return np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))


def _blocks(n: int) -> Iterator[slice]:
    """Slices of nearly equal length, n rows in all, each of about BLOCK pairs at most."""
    edges = np.linspace(0, n, math.ceil(n * n / BLOCK) + 1).round().astype(int)
    yield from (slice(int(a), int(b)) for a, b in itertools.pairwise(edges) if b > a)


def _parts(n_rows: int, n_columns: int) -> Iterator[slice]:
    step = max(1, PART // n_columns)
    yield from (slice(start, start + step) for start in range(0, n_rows, step))


def _block(f: Matrix, g: Matrix, rows: slice, temperature: float, log_w: float) -> _Block:
    f = f[rows]
    logits = _inner(f, g)
    logits /= temperature
    p = _weighted(logits, np.arange(rows.start, rows.stop), log_w)
    top = p.max(axis=1)
    np.exp(np.subtract(p, top[:, None], out=p), out=p)
    total = p.sum(axis=1)
    p /= total[:, None]
    return _Block(rows, logits, p, top + np.log(total), log_w)


def _weighted(logits: np.ndarray, positive: np.ndarray, log_w: float) -> np.ndarray:
    """logits + log w: 0 for the positive of each row, log_w for the others."""
    weighted = logits + log_w
    index = np.arange(len(positive))
    weighted[index, positive] = logits[index, positive]
    return weighted


def _inner(f: Matrix, g: Matrix) -> np.ndarray:
    """f_n . g_m for all pairs, dense, by the cheaper of a sparse and a dense product."""
    a, b = (np.bincount(z.indices, minlength=z.shape[1]) for z in (f, g))
    shared = np.flatnonzero(a * b)
    if 50 * int(a @ b) < len(shared) * f.shape[0] * g.shape[0]:
        return (f @ g.T).toarray()
    return f[:, shared].toarray() @ g[:, shared].toarray().T


def _log_change(block: _Block, rows: np.ndarray, gain: np.ndarray, delta: Callable[[np.ndarray], np.ndarray]) -> float:
    """The sum over rows of log1p(gain), gain = sum_m p_nm expm1(d_nm).

    A gain near -1 has lost its digits, and one that overflowed has none: there log sum_m w_nm exp(logit + d_nm) is
    taken anew, and being far from the old one it may be subtracted. `delta` gives d of the rows chosen by a mask: x N.
    """
    lost = ~((gain > -0.999) & (gain < 1e3))
    total = np.log1p(gain[~lost]).sum()
    if lost.any():
        chosen = rows[lost]
        new = _weighted(block.logits[chosen] + delta(lost), chosen + block.rows.start, block.log_w)
        top = new.max(axis=1)
        total += (top + np.log(np.exp(new - top[:, None]).sum(axis=1)) - block.log_sum[chosen]).sum()
    return float(total)


# Without re-normalisation: d_nm = -f_ni g_mi / T, zero unless both are active


def _plain(block: _Block, f: Matrix, g: Matrix, temperature: float) -> np.ndarray:
    """The sum over the block's anchors of f_ni g_ni / T + log1p(sum_m p_nm expm1(-f_ni g_mi / T)): D values."""
    f, n = f[block.rows], g.shape[0]
    total = np.asarray(f.multiply(g[block.rows]).sum(axis=0)).ravel() / temperature
    f, g = f.tocsc() / temperature, g.tocsc()
    largest = _column_max(f) * _column_max(g)
    terms = np.array([_terms(x) for x in largest])
    pairs = np.diff(f.indptr).astype(np.int64) * np.diff(g.indptr)
    by_series = (terms > 0) & (GATHERED * pairs > terms * f.shape[0] * n)
    for i in np.flatnonzero((pairs > 0) & ~by_series).tolist():
        total[i] += _gathered(block, *_column(f, i), *_column(g, i))
    chosen = np.flatnonzero(by_series)
    chosen = chosen[np.argsort(terms[chosen], kind="stable")]  # features that need as many terms go together
    for group in np.array_split(chosen, math.ceil(len(chosen) / 256)) if len(chosen) else []:
        total[group] += _series(block.p, f[:, group].toarray(), g[:, group].toarray(), terms[group].max())
    return total


def _gathered(block: _Block, a: np.ndarray, x: np.ndarray, b: np.ndarray, y: np.ndarray) -> float:
    """One feature, from the pairs of its active anchors a (values x) and active candidates b (values y) alone."""
    total = 0.0
    for part in _parts(len(a), len(b)):
        rows, values = a[part], x[part]

        def delta(lost: np.ndarray, values: np.ndarray = values) -> np.ndarray:
            d = np.zeros((int(lost.sum()), block.p.shape[1]))
            d[:, b] = -np.multiply.outer(values[lost], y)
            return d

        d = np.multiply.outer(-values, y)
        gain = np.einsum("rm,rm->r", block.p[np.ix_(rows, b)], np.expm1(d, out=d))
        total += _log_change(block, rows, gain, delta)
    return total


def _series(p: np.ndarray, f: np.ndarray, g: np.ndarray, terms: int) -> np.ndarray:
    """Many features, by matrix products: sum_m p_nm expm1(-f_ni g_mi) = sum_t (-f_ni)^t / t! (p @ g^t)_ni."""
    scale = np.abs(g).max(axis=0)  # powers of numbers up to 1 do not overflow
    f, g = -f * scale, g / scale
    f_power, g_power = f.copy(), g.copy()
    gain = f_power * (p @ g_power)
    for t in range(2, int(terms) + 1):
        f_power *= f / t
        g_power *= g
        gain += f_power * (p @ g_power)
    return np.log1p(gain).sum(axis=0)


def _terms(x: float) -> int:
    """How many terms of expm1's series leave out less than SERIES_REST of the first, up to |x|; 0: none do."""
    if x > SERIES_RANGE:
        return 0
    terms, rest = 1, math.exp(x) * x / 2  # e^x x^t / (t + 1)!
    while rest > SERIES_REST:
        terms += 1
        rest *= x / (terms + 1)
    return terms


def _column_max(z: Matrix) -> np.ndarray:
    """max_n |z_nd| for each of the D features of a CSC matrix."""
    most = np.zeros(z.shape[1])
    np.maximum.at(most, np.repeat(np.arange(z.shape[1]), np.diff(z.indptr)), np.abs(z.data))
    return most


def _column(z: Matrix, i: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows where feature i of a CSC matrix is active, and its values there."""
    where = slice(z.indptr[i], z.indptr[i + 1])
    return z.indices[where], z.data[where]


# With re-normalisation: d_nm = (s_nm - f_ni g_mi) / (T |f_n without i| |g_m without i|) - s_nm / T, s = f . g, zero
# only if neither is active


@dataclass(frozen=True)
class _Drop:
    """Feature i of one view: the rows where it is active, its values there, and each row's growth 1/|without i| - 1."""

    i: int
    rows: np.ndarray
    value: np.ndarray
    growth: np.ndarray

    @property
    def steep(self) -> np.ndarray:
        """Which of the rows are nearly this feature alone: s_nm - f_ni g_mi would lose its digits."""
        return np.flatnonzero(self.growth > STEEP)


def _renormalised(block: _Block, f: Matrix, g: Matrix, temperature: float) -> np.ndarray:
    """The sum over the block's anchors of -d_nn + log1p(sum_m p_nm expm1(d_nm)): D values."""
    f_growth, g_growth = _growth(f)[block.rows].tocsc(), _growth(g).tocsc()
    f, f_columns, g_columns = f[block.rows], f[block.rows].tocsc(), g.tocsc()
    turned = (np.ascontiguousarray(block.logits.T), np.ascontiguousarray(block.p.T))  # columns are gathered as rows
    total = np.zeros(g.shape[1])
    for i in range(g.shape[1]):
        a = _Drop(i, *_column(f_columns, i), _column(f_growth, i)[1])
        b = _Drop(i, *_column(g_columns, i), _column(g_growth, i)[1])
        total[i] = _active_anchors(block, f, g, a, b, temperature) + _other_anchors(block, turned, a, b)
    return total


def _growth(z: Matrix) -> Matrix:
    """1 / |z_n without i| - 1 at each active entry of unit rows; -1 where nothing is left: that row becomes zero."""
    row, square = _row_of(z), z.data**2
    large = square > 0.75  # at most one in a row; 1 - square would lose its digits, the others' squares do not
    others = np.bincount(row, weights=np.where(large, 0, square), minlength=z.shape[0])[row]
    rest = np.sqrt(np.where(large, others, 1 - square))
    growth = np.full(len(rest), -1.0)
    np.divide(np.where(large, 1 - rest, square / (1 + rest)), rest, out=growth, where=rest > 0)
    return sparse.csr_array((growth, z.indices, z.indptr), shape=z.shape)


def _active_anchors(block: _Block, f: Matrix, g: Matrix, a: _Drop, b: _Drop, temperature: float) -> float:
    """Anchors with feature i: all pairs change, by (AB - 1) s - AB f_ni g_mi over T; A = 1 + growth of n, B of m."""
    n = g.shape[0]
    g_value, g_growth = np.zeros(n), np.zeros(n)
    g_value[b.rows], g_growth[b.rows] = b.value, b.growth
    total = 0.0
    for part in _parts(len(a.rows), n):
        one = _Drop(a.i, a.rows[part], a.value[part], a.growth[part])
        grown = 1 + one.growth
        s = block.logits[one.rows]
        d = np.multiply.outer(grown, g_growth)
        d += one.growth[:, None]  # A (B - 1) + (A - 1), which for A, B >= 1 never cancels
        d *= s
        d -= np.multiply.outer(grown * one.value / temperature, (1 + g_growth) * g_value)
        for k in one.steep:
            rest = _without(f, one.rows[k : k + 1], a.i)
            d[k] = grown[k] * (1 + g_growth) * (g @ rest[0]) / temperature - s[k]
        if len(columns := b.steep):
            rest = f[one.rows] @ _without(g, b.rows[columns], a.i).T
            m = b.rows[columns]
            d[:, m] = np.multiply.outer(grown, 1 + g_growth[m]) * rest / temperature - s[:, m]
        gain = np.einsum("rm,rm->r", block.p[one.rows], np.expm1(d))
        total -= d[np.arange(len(d)), one.rows + block.rows.start].sum()
        total += _log_change(block, one.rows, gain, d.__getitem__)
    return total


def _without(z: Matrix, rows: np.ndarray, i: int) -> np.ndarray:
    """Those rows, dense, with feature i set to zero."""
    rest = z[rows].toarray()
    rest[:, i] = 0
    return rest


def _other_anchors(block: _Block, turned: tuple[np.ndarray, np.ndarray], a: _Drop, b: _Drop) -> float:
    """Anchors without feature i: only candidates that have it change, by (B - 1) s over T."""
    with_it = np.zeros(len(block.p), dtype=bool)
    with_it[a.rows] = True
    if with_it.all() or not len(b.rows):
        return 0.0
    total = 0.0
    for part in _parts(len(block.p), len(b.rows)):
        rows = np.flatnonzero(~with_it[part])
        logits, p = (z[:, part][b.rows] for z in turned)
        d = logits * b.growth[:, None]

        def delta(lost: np.ndarray, d: np.ndarray = d, rows: np.ndarray = rows) -> np.ndarray:
            full = np.zeros((int(lost.sum()), block.p.shape[1]))
            full[:, b.rows] = d[:, rows[lost]].T
            return full

        gain = np.einsum("mr,mr->r", p, np.expm1(d))[rows]
        total += _log_change(block, rows + part.start, gain, delta)
        own = b.rows - block.rows.start - part.start  # the anchor of which each candidate is the positive
        here = np.isin(own, rows)
        total -= d[here, own[here]].sum()
    return total
