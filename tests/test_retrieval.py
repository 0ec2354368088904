"""Retrieval against loops over pairs of samples. N images, D features."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nonneg import metrics
from nonneg.errors import BadInput


def example(*, n: int = 40, d: int = 9, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sparse whole numbers, so that many cosines are equal, with copies of rows and two rows of zeros."""
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 4, (n, d)) * (rng.random((n, d)) < 0.3)
    z[5], z[11], z[30:33] = 0, 0, z[1]
    return z.astype(np.float32), rng.integers(0, classes, n)


def slow_neighbours(z: np.ndarray, query: int, k: int) -> list[int]:
    """All others by falling cosine, then in the order for ties; cosines that differ by rounding are equal."""
    turn = np.argsort(metrics.tie_order(len(z)))

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        if not a.any() or not b.any():
            return 0.0
        return round(float(a @ b) / float(np.sqrt((a @ a) * (b @ b))), 7)

    rows = z.astype(np.float64)
    others = [m for m in range(len(z)) if m != query]
    return sorted(others, key=lambda m: (-cosine(rows[query], rows[m]), turn[m]))[:k]


def slow_cosines(z: np.ndarray) -> np.ndarray:
    """As `slow_neighbours` has them, rounded so that equal ones are equal; with itself nobody is compared."""
    rows = z.astype(np.float64)
    norms = np.sqrt((rows * rows).sum(1, keepdims=True))
    cosines = np.divide(rows @ rows.T, norms * norms.T, out=np.zeros((len(z), len(z))), where=norms * norms.T > 0)
    return np.where(np.eye(len(z), dtype=bool), -np.inf, cosines.round(7))


def slow_retrieval(z: np.ndarray, y: np.ndarray, k: int, normaliser: str, *, orders: Any = 600) -> tuple[float, float]:
    """The mean over many orders of equally similar samples, or over those that are given."""
    rng, cosines = np.random.default_rng(0), slow_cosines(z)
    precisions, averages = [], []
    for order in [rng.permutation(len(z)) for _ in range(orders)] if isinstance(orders, int) else orders:
        order = np.asarray(order)
        near = order[np.argsort(-cosines[:, order], axis=1, kind="stable")[:, :k]]
        right = y[near] == y[:, None]
        relevant = (y == y[:, None]).sum(1) - 1
        gained = (right * right.cumsum(1) / np.arange(1, k + 1)).sum(1)
        divisor = {"hits": right.sum(1), "min": np.minimum(k, relevant), "relevant": relevant}[normaliser]
        asked = relevant > 0
        precisions.append(right[asked].mean())
        averages.append((gained / np.maximum(divisor, 1))[asked].mean())
    return float(np.mean(precisions)), float(np.mean(averages))


# By hand


def test_one_query_by_hand() -> None:
    """Neighbours of sample 0 in order: wrong, right, right; one more of its class is never reached."""
    angle = np.deg2rad([0, 10, 20, 30, 80, 90])
    z, y = np.stack([np.cos(angle), np.sin(angle)], 1), np.array([0, 1, 0, 0, 0, 1])
    found = metrics.retrieval(z, y, k=3, queries=[0], normaliser="hits")
    gained = 1 / 2 + 2 / 3
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["map"] == found["map_hits"] == pytest.approx(gained / 2)
    assert found["map_min"] == pytest.approx(gained / 3) and found["map_relevant"] == pytest.approx(gained / 3)
    assert metrics.retrieval(z, y, k=2, queries=[0])["map_relevant"] == pytest.approx(0.5 / 3)
    assert metrics.retrieval(z, y, k=2, queries=[0])["map_min"] == pytest.approx(0.5 / 2)
    assert (found["k"], found["queries"], found["left_out"], found["normaliser"]) == (3, 1, 0, "hits")


def test_one_hot_features_retrieve_without_error() -> None:
    y = np.repeat(np.arange(4), 6)
    found = metrics.retrieval(np.eye(4)[y], y, k=5)
    assert found["precision"] == found["map_hits"] == found["map_min"] == found["map_relevant"] == 1
    assert metrics.retrieval(np.eye(4)[y], y, k=10)["map_relevant"] == 1  # all five are found first
    assert metrics.retrieval(np.eye(4)[y], y, k=10)["precision"] == 0.5


# Against loops


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("share", [0.0, 1.0], ids=["dense product", "sparse product"])
@pytest.mark.parametrize("normaliser", ["hits", "min", "relevant"])
def test_retrieval_matches_a_loop(monkeypatch: pytest.MonkeyPatch, make, share: float, normaliser: str) -> None:
    monkeypatch.setitem(metrics.neighbours.__globals__, "SPARSE", share)
    monkeypatch.setitem(metrics.neighbours.__globals__, "CHUNK", 300)  # several blocks, the last one short
    z, y = example()
    z = z + np.random.default_rng(1).uniform(0.01, 1, z.shape)  # so that no two cosines are equal
    found = metrics.retrieval(make(z), y, k=7, normaliser=normaliser)
    assert (found["precision"], found["map"]) == pytest.approx(slow_retrieval(z, y, 7, normaliser, orders=1), abs=1e-12)


@pytest.mark.parametrize("normaliser", ["hits", "min", "relevant"])
@pytest.mark.parametrize("seed", range(8))
def test_ties_are_the_mean_over_every_order(seed: int, normaliser: str) -> None:
    rng = np.random.default_rng(seed)
    z, y = rng.integers(0, 2, (6, 2)), rng.integers(0, 2, 6)
    y[:2] = 0
    every = list(itertools.permutations(range(6)))
    for k in range(1, 6):
        found = metrics.retrieval(z, y, k=k, normaliser=normaliser)
        wanted = slow_retrieval(z, y, k, normaliser, orders=every)
        assert (found["precision"], found["map"]) == pytest.approx(wanted, abs=1e-12)


def test_ties_among_many_are_the_mean_over_orders_drawn() -> None:
    z, y = example(n=60, d=3, seed=5)
    for k, normaliser in ((3, "hits"), (10, "hits"), (10, "min"), (40, "relevant")):
        found = metrics.retrieval(z, y, k=k, normaliser=normaliser)
        assert (found["precision"], found["map"]) == pytest.approx(slow_retrieval(z, y, k, normaliser), abs=4e-3)


def test_the_order_of_the_samples_does_not_matter() -> None:
    z, y = example(n=200, d=3, seed=6)
    by_class, mixed = np.argsort(y, kind="stable"), np.random.default_rng(0).permutation(200)
    first, second = (metrics.retrieval(z[order], y[order]) for order in (by_class, mixed))
    assert first == pytest.approx(second, abs=1e-12)


def test_neighbours_and_their_order_match_a_loop() -> None:
    z, _ = example(seed=3)
    z = np.where(z == 3, 4, z)  # powers of two: what cancels is zero exactly
    z[:, 0] *= -1  # negative values too
    near = metrics.neighbours(z, k=39)
    assert near.tolist() == [slow_neighbours(z, q, 39) for q in range(40)]
    assert metrics.neighbours(z, k=6, queries=[3, 9]).tolist() == [slow_neighbours(z, q, 6) for q in (3, 9)]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12))
def test_neighbours_that_are_tied_go_by_a_fixed_order(seed: int, k: int) -> None:
    z, _ = example(n=34, d=3, seed=seed)  # three features: almost everything is tied
    assert metrics.neighbours(z, k=k).tolist() == [slow_neighbours(z, q, k) for q in range(34)]


def test_a_row_of_zeros_is_at_cosine_zero() -> None:
    z = np.array([[0.0, 0], [-1, 0], [1, 0], [0, 1]])
    near = metrics.neighbours(z, k=3).tolist()
    assert [sorted(near[0]), sorted(near[3])] == [[1, 2, 3], [0, 1, 2]]  # all tied
    assert [(sorted(near[i][:2]), near[i][2]) for i in (1, 2)] == [([0, 3], 2), ([0, 3], 1)]


def test_ties_tell_nothing_of_samples_that_are_sorted_by_class() -> None:
    y = np.repeat(np.arange(4), [300, 100, 100, 100])
    chance = np.mean([(np.delete(y, i) == c).mean() for i, c in enumerate(y)])
    assert metrics.retrieval(np.zeros((600, 3)), y)["precision"] == pytest.approx(chance, abs=1e-12)


@pytest.mark.parametrize("density", [0.03, 0.4])
def test_all_prefixes_in_one_sweep_match_one_by_one(density: float) -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(60, 50)) * (rng.random((60, 50)) < density)
    y, order, sizes = rng.integers(0, 3, 60), rng.permutation(50), [20, 3, 50, 1]
    found = metrics.retrieval_by_prefix(z, y, order, sizes, k=5)
    assert [f["features"] for f in found] == sizes
    for s, f in zip(sizes, found, strict=True):
        assert (f["precision"], f["map"]) == pytest.approx(
            slow_retrieval(z[:, order[:s]], y, 5, "min"),
            abs=0.01,  # most are tied
        )


def test_scale_does_not_matter_however_small() -> None:
    z, y = example(seed=2)
    tiny = z.astype(np.float64) * np.geomspace(1e-180, 1e120, len(z))[:, None]  # squares would vanish or overflow
    assert metrics.retrieval(tiny, y) == metrics.retrieval(z, y)


def test_overlap_counts_common_neighbours() -> None:
    a, b = np.array([[1, 2, 3], [4, 5, 6]]), np.array([[3, 2, 1], [6, 7, 8]])
    assert metrics.neighbour_overlap(a, a) == 1
    assert metrics.neighbour_overlap(a, b) == pytest.approx((3 + 1) / 6)


def test_a_class_with_one_sample_is_left_out_and_counted() -> None:
    z, y = example()
    y[7] = 9
    found = metrics.retrieval(z, y, k=5)
    assert found["left_out"] == 1 and found["queries"] == 39
    assert found["precision"] == pytest.approx(slow_retrieval(z, y, 5, "min")[0], abs=5e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_agrees() -> None:
    z, y = example()
    assert metrics.retrieval(z, y, device="cuda") == metrics.retrieval(z, y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 40}, "k is 40 but a query has 39 other samples"),
        ({"k": 0}, "k is 0"),
        ({"labels": None}, "no labels"),
        ({"labels": np.arange(40)}, "two samples of some class"),
        ({"labels": np.zeros(3, dtype=int)}, "40 samples but labels of shape"),
        ({"queries": [40]}, "indices below 40"),
        ({"queries": []}, "one or more sample indices"),
        ({"normaliser": "mim"}, "did you mean 'min'"),
        ({"z": np.full((40, 2), np.nan)}, "NaN"),
        ({"z": np.zeros((1, 2)), "labels": np.zeros(1, dtype=int)}, "two or more"),
    ],
)
def test_bad_input_is_one_sentence(change: dict, message: str) -> None:
    z, y = example()
    asked: dict[str, Any] = {"z": z, "labels": y, **change}
    with pytest.raises(BadInput, match=message):
        metrics.retrieval(**asked)


@pytest.mark.parametrize(
    ("order", "sizes", "message"),
    [
        ([0, 1], [3], "2 features are ordered"),
        ([0, 1], [], "sizes are"),
        ([0, 0], [1], "each once"),
        ([0, 9], [1], "from 0 to 8"),
    ],
)
def test_bad_prefixes_are_one_sentence(order: list[int], sizes: list[int], message: str) -> None:
    z, y = example()
    with pytest.raises(BadInput, match=message):
        metrics.retrieval_by_prefix(z, y, order, sizes)


def test_features_that_are_all_dead_have_a_defined_result() -> None:
    y = np.array([0, 0, 1, 1, 0])
    found = metrics.retrieval(np.zeros((5, 3)), y, k=2)  # everything is tied: two of the other four, at random
    assert found["precision"] == pytest.approx(np.mean([2 / 4, 2 / 4, 1 / 4, 1 / 4, 2 / 4]))
