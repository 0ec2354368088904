"""Do neighbours share a class? N images, D features, Q queries (all N unless chosen); z is N x D, labels N integers.

Similarity is the cosine, each query against all other samples, none left out and nothing approximated: float64
products, rounded to float32 so that equal cosines are equal. What is said of classes is the mean over all orders of
equally similar samples, exactly; where neighbours themselves are named, a fixed random order (`tie_order`) tells equal
ones apart. So samples sorted by class gain nothing. A row of zeros has cosine 0 with everything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.special import gammaln
from torch import Tensor

from nonneg.errors import BadInput, unknown
from nonneg.metrics.consistency import _class_index, tie_order
from nonneg.metrics.sparsity import Matrix, as_csr, rows_at_most_one

NORMALISERS = ("hits", "min", "relevant")
CHUNK = 2**20  # cosines held at once: what stays in a cache
SPARSE = 0.06  # share of values other than zero below which a sparse product is faster than a dense one on a CPU


def retrieval(
    z: Matrix,
    labels: np.ndarray | None,
    *,
    k: int = 10,
    queries: Sequence[int] | np.ndarray | None = None,
    normaliser: str = "min",
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Precision@k, the share of a query's k nearest that have its class, and mAP@k, both means over queries.

    AP@k = sum_{i<=k} rel_i precision@i / normaliser: `hits`, those among the k (0 where none); `min`, min(k, R);
    `relevant`, R, the other samples of the query's class. `map` is by `normaliser`, `map_hits`, `map_min` and
    `map_relevant` by each. Of equally similar samples every order counts the same: these are means over all of them.
    A query whose class has no other sample is left out; `left_out` counts them.
    """
    whole = np.arange(z.shape[1])
    found = retrieval_by_prefix(
        z, labels, whole, [len(whole)], k=k, queries=queries, normaliser=normaliser, device=device
    )
    return {name: value for name, value in found[0].items() if name != "features"}


def retrieval_by_prefix(
    z: Matrix,
    labels: np.ndarray | None,
    order: Sequence[int] | np.ndarray,
    sizes: Sequence[int],
    *,
    k: int = 10,
    queries: Sequence[int] | np.ndarray | None = None,
    normaliser: str = "min",
    device: str | torch.device | None = None,
) -> list[dict[str, Any]]:
    """`retrieval` of the first s features of `order`, for each s in `sizes`, in one sweep; `features` is s.

    Inner products grow feature by feature, z_n . z_m += z_n[new] . z_m[new], and each prefix divides by its own norms,
    so all prefixes together cost the products of the longest one.
    """
    if normaliser not in NORMALISERS:
        raise unknown("normaliser", normaliser, NORMALISERS)
    y = _classes(labels, z.shape[0])
    asked = _check_queries(queries, z.shape[0])
    _check_k(k, z.shape[0])
    relevant = np.bincount(y)[y[asked]] - 1  # R of each query
    if not relevant.any():
        raise BadInput("no query has another sample of its class: retrieval needs two samples of some class")
    classes = torch.as_tensor(y, device=device)

    def read(cosine: Tensor, here: Tensor) -> Tensor:
        return _levels(cosine, classes == classes[here, None], k)

    by_size = _sweep(z, np.asarray(order), sorted(set(sizes)), read, k=k, queries=asked, device=device)
    return [{"features": int(s), **_means(by_size[s], relevant, k, normaliser)} for s in sizes]


def neighbours(
    z: Matrix,
    *,
    k: int = 10,
    queries: Sequence[int] | np.ndarray | None = None,
    device: str | torch.device | None = None,
) -> np.ndarray:
    """The k samples of largest cosine to each query, itself left out, nearest first: Q x k."""
    asked = _check_queries(queries, z.shape[0])
    shuffled, width = tie_order(z.shape[0]), z.shape[1]
    mixed = torch.as_tensor(shuffled, device=device)

    def read(cosine: Tensor, here: Tensor) -> Tensor:  # noqa: ARG001 (the signature of what reads cosines)
        return mixed[_nearest(cosine[:, mixed], k)]

    return _sweep(z, np.arange(width), [width], read, k=k, queries=asked, device=device)[width]


def neighbour_overlap(a: np.ndarray, b: np.ndarray) -> float:
    """The mean over queries of |a_q and b_q in common| / k, for two answers of `neighbours` to the same queries."""
    if a.shape != b.shape or not a.size:
        raise BadInput(f"neighbours of shapes {a.shape} and {b.shape} cannot be compared: ask both the same")
    both = np.sort(np.concatenate([a, b], axis=1), axis=1)  # no neighbour occurs twice in a or in b
    return float((both[:, 1:] == both[:, :-1]).sum() / a.size)


def _sweep(
    z: Matrix,
    order: np.ndarray,
    sizes: Sequence[int],
    read: Callable[[Tensor, Tensor], Tensor],
    *,
    k: int,
    queries: np.ndarray,
    device: str | torch.device | None,
) -> dict[int, np.ndarray]:
    """What `read` makes of the cosines of queries (a part of them, x N) and of their numbers, by the first s features.

    A query's cosine with itself is -inf; sizes ascend.
    """
    z = as_csr(z)
    n = z.shape[0]
    _check_sweep(z, order, sizes, k=k)
    z = rows_at_most_one(z)[:, order[: sizes[-1]]]
    ends = list(zip([0, *sizes[:-1]], sizes, strict=True))
    products = [_product(z[:, start:end], device) for start, end in ends]
    inverse = [torch.as_tensor(_inverse_norm(z[:, :s]), device=device) for s in sizes]
    made: dict[int, list[Tensor]] = {s: [] for s in sizes}
    step = max(1, CHUNK // n)
    for at in range(0, len(queries), step):
        asked = queries[at : at + step]
        here = torch.as_tensor(asked, device=device)
        gram = torch.zeros(len(asked), n, dtype=torch.float64, device=device)
        for size, product, scale in zip(sizes, products, inverse, strict=True):
            gram += product(asked)
            cosine = (gram * scale[here][:, None]).mul_(scale).float()
            cosine[torch.arange(len(asked), device=device), here] = -torch.inf
            made[size].append(read(cosine, here).cpu())
    return {s: torch.cat(parts).numpy() for s, parts in made.items()}


def _product(part: Matrix, device: str | torch.device | None) -> Callable[[np.ndarray], Tensor]:
    """Rows of part @ part^T, len(asked) x N: by sparse products where few values are not zero, else dense."""
    on_cpu = torch.device(device or "cpu").type == "cpu"
    if on_cpu and part.nnz < SPARSE * part.shape[0] * part.shape[1]:
        turned = part.T.tocsr()
        return lambda asked: torch.from_numpy((part[asked] @ turned).toarray())
    dense = torch.as_tensor(part.toarray(), device=device)
    return lambda asked: dense[torch.as_tensor(asked, device=device)] @ dense.T


def _nearest(cosine: Tensor, k: int) -> Tensor:
    """Columns of the k largest of each row, largest first; of equal ones the lowest column."""
    values, columns = cosine.topk(k + 1, dim=1) if k < cosine.shape[1] else cosine.topk(k, dim=1)
    first = values[:, :k]
    tied = (values[:, 1:] == values[:, :-1]).any(1)  # topk may then have taken, and put first, any of them
    chosen = columns[:, :k]
    if tied.any():
        chosen[tied] = _nearest_of_tied(cosine[tied], first[tied][:, -1:], k)
    return chosen


def _nearest_of_tied(cosine: Tensor, bar: Tensor, k: int) -> Tensor:
    """As `_nearest`, without sorting whole rows: all above the k-th value, then the first of those equal to it."""
    above, level = cosine > bar, cosine == bar
    free = k - above.sum(1, keepdim=True)
    taken = above | (level & (level.cumsum(1, dtype=torch.int32) <= free))  # k in each row
    columns = taken.nonzero()[:, 1].view(len(cosine), k)
    best_first = cosine.gather(1, columns).sort(dim=1, descending=True, stable=True).indices
    return columns.gather(1, best_first)


def _levels(cosine: Tensor, same: Tensor, k: int) -> Tensor:
    """Of each row's k nearest: which are right (`same` is true), which begin a new level of equal cosines, and how many
    samples, and right ones, the last of these levels has in all: it may go on beyond the k. Q x (2k + 2)."""
    values, columns = cosine.topk(min(k + 1, cosine.shape[1]), dim=1)
    right, begins = same.gather(1, columns[:, :k]), torch.ones_like(columns[:, :k], dtype=torch.bool)
    begins[:, 1:] = values[:, 1:k] != values[:, : k - 1]
    bar = values[:, k - 1 : k]
    last = values[:, :k] == bar
    size, right_there = last.sum(1), (last & right).sum(1)
    if (further := (values[:, k:] == bar).any(1)).any():
        level = cosine[further] == bar[further]
        size[further], right_there[further] = level.sum(1), (level & same[further]).sum(1)
    return torch.cat([right.int(), begins.int(), size[:, None].int(), right_there[:, None].int()], dim=1)


def _expected(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means over all orders of equal cosines, of each query: hits, sum_i rel_i precision@i, and that / hits.

    At the i-th place (from 0) of a level of n samples, r of them right, that begins after s places with R right ones,
    a right sample lies with probability r / n, and precision is (R + 1 + i (r - 1) / (n - 1)) / (s + i + 1) there in
    the mean. How many right ones of the last level are among the k is hypergeometric.
    """
    k = (levels.shape[1] - 2) // 2
    right, begins, (size, right_there) = levels[:, :k], levels[:, k : 2 * k] > 0, levels[:, 2 * k :].T[:, :, None]
    place = np.arange(k)
    start = np.maximum.accumulate(np.where(begins, place, 0), axis=1)  # of each place's level
    last = start == start[:, -1:]
    so_far = right.cumsum(1)
    before = np.take_along_axis(so_far - right, start, axis=1)
    ends = np.minimum.accumulate(np.where(np.roll(begins, -1, axis=1), place, k - 1)[:, ::-1], axis=1)[:, ::-1]
    n = np.where(last, size, ends - start + 1)
    r = np.where(last, right_there, np.take_along_axis(so_far, ends, axis=1) - before)
    gained = _gain(place - start, start, before, n, r)
    hits, total = (r / n).sum(1), gained.sum(1)
    per_hit = total / np.maximum(hits, 1)
    cut = (begins * place).max(1) + size[:, 0] > k  # the last level goes on: only some of it are among the k
    if cut.any():
        first, met, n, r = (v[cut] for v in (start[:, -1:], before[:, -1:], size, right_there))
        whole = np.where(last, 0, gained)[cut].sum(1, keepdims=True)
        mean, certain = np.zeros_like(whole), np.zeros_like(whole)
        for h in range(k + 1):
            likely = np.exp(_log_choose(r, h) + _log_choose(n - r, k - first - h) - _log_choose(n, k - first))
            inside = np.where(place >= first, _gain(place - first, first, met, k - first, h), 0)
            mean += likely * (whole + inside.sum(1, keepdims=True)) / np.maximum(met + h, 1)
            certain += likely
        per_hit[cut] = (mean / certain)[:, 0]
    return hits, total, per_hit


def _gain(i: np.ndarray, start: np.ndarray, before: np.ndarray, n: np.ndarray, r: np.ndarray | int) -> np.ndarray:
    """E[rel precision] at place i of a level, as `_expected` has it."""
    return r / n * (before + 1 + i * (r - 1) / np.maximum(n - 1, 1)) / (start + i + 1)


def _log_choose(n: np.ndarray, k: np.ndarray | int) -> np.ndarray:
    """log(n over k), -inf where there is no such choice."""
    possible = (k >= 0) & (k <= n)
    k = np.where(possible, k, 0)
    return np.where(possible, gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1), -np.inf)


def _means(levels: np.ndarray, relevant: np.ndarray, k: int, normaliser: str) -> dict[str, Any]:
    """What `retrieval` says, of `_levels` of each query and R, the other samples of its class."""
    some = relevant > 0
    hits, gained, per_hit = _expected(levels[some])
    each = {"hits": per_hit, "min": gained / np.minimum(k, relevant[some]), "relevant": gained / relevant[some]}
    maps = {f"map_{name}": float(values.mean()) for name, values in each.items()}
    return {
        "precision": float(hits.mean() / k),
        "map": maps[f"map_{normaliser}"],
        "normaliser": normaliser,
        **maps,
        "k": k,
        "queries": int(some.sum()),
        "left_out": int((~some).sum()),
    }


def _inverse_norm(z: Matrix) -> np.ndarray:
    """1 / |z_n|, 0 for a row of zeros."""
    norm = np.sqrt(np.asarray(z.multiply(z).sum(axis=1)).ravel())
    return np.divide(1, norm, out=np.zeros_like(norm), where=norm > 0)


def _classes(labels: np.ndarray | None, n: int | None = None) -> np.ndarray:
    """Labels as 0..C-1, one for each of n samples."""
    if labels is None:
        raise BadInput("the data have no labels: retrieval asks whether neighbours share a class")
    return _class_index(labels, len(labels) if n is None else n)


def _check_queries(queries: Sequence[int] | np.ndarray | None, n: int) -> np.ndarray:
    asked = np.arange(n) if queries is None else np.asarray(queries)
    if asked.ndim != 1 or not asked.size or asked.dtype.kind not in "iu" or asked.min() < 0 or asked.max() >= n:
        raise BadInput(f"queries must be one or more sample indices below {n}, the number of samples")
    return asked.astype(np.int64)


def _check_k(k: int, n: int) -> None:
    if n < 2:
        raise BadInput(f"there is {n} sample: neighbours need two or more")
    if not 1 <= k < n:
        raise BadInput(f"k is {k} but a query has {n - 1} other samples: give k between 1 and {n - 1}")


def _check_sweep(z: Matrix, order: np.ndarray, sizes: Sequence[int], *, k: int) -> None:
    n, d = z.shape
    _check_k(k, n)
    whole = order.ndim == 1 and order.size and order.dtype.kind in "iu"
    if not whole or order.min() < 0 or order.max() >= d or len(np.unique(order)) < len(order):
        raise BadInput(f"the order must name features, each once, from 0 to {d - 1}")
    if not sizes or sizes[0] < 1 or sizes[-1] > len(order):
        raise BadInput(f"sizes are {list(sizes)} but {len(order)} features are ordered: give 1 to {len(order)}")
