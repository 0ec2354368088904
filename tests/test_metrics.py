"""Metrics against theorems, brute force and scikit-learn. N images, D features, C classes."""

import itertools
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize

from nonneg import metrics
from nonneg.errors import BadInput
from nonneg.measures import measure

EPS = 1e-5


def example(*, n: int = 60, d: int = 12, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sparse features with a dead column, a faint column, a dense column, tied values and a zero row."""
    rng = np.random.default_rng(seed)
    z = np.round(rng.normal(size=(n, d)), 1) * (rng.random((n, d)) < 0.3)
    z[:, 0], z[:, 1], z[:, 2] = 0, 1e-6, 1 + rng.random(n)
    z[7] = 0
    return z.astype(np.float32), rng.integers(0, classes, n)


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(labels.max() + 1, dtype=np.float32)[labels]


# Theorems


def test_one_hot_features_are_sparse_consistent_orthogonal_and_full_rank():
    labels = np.repeat([0, 1, 2, 3], 5)
    z = one_hot(labels)
    assert metrics.sparsity(z) == pytest.approx(3 / 4)
    assert metrics.class_consistency(z, labels) == 1
    assert metrics.top10_consistency(z, labels) == 1
    assert metrics.orthogonality(z) == 0
    assert metrics.effective_rank(z) == pytest.approx(4)
    assert metrics.expected_activation(z) == pytest.approx(np.full(4, 1 / 4))


def test_features_that_always_fire_score_chance():
    z, labels = np.random.default_rng(0).normal(size=(50, 6)) + 10, np.arange(50) % 3
    assert metrics.sparsity(z) == 0
    assert metrics.chance(labels) == 17 / 50
    assert metrics.class_consistency(z, labels) == pytest.approx(17 / 50)
    assert metrics.class_consistency(z, labels, weighted=True) == pytest.approx(17 / 50)


def test_random_features_score_the_top_k_chance():
    rng = np.random.default_rng(0)
    z, labels = rng.random((500, 400)), np.arange(500) % 5
    assert metrics.top10_consistency(z, labels) == pytest.approx(metrics.top_k_chance(labels, 10), abs=0.02)


def test_effective_rank_is_unchanged_by_rotation_and_scale():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 6)) * [1, 2, 3, 4, 5, 0]
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert metrics.effective_rank(7 * z @ rotation) == pytest.approx(metrics.effective_rank(z))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.5, 1.0, 8.0]))
def test_order_of_samples_and_scale_of_rows_do_not_matter(seed: int, scale: float):
    z, labels = example(seed=seed)
    order = np.random.default_rng(seed).permutation(len(z))
    assert metrics.class_consistency(z[order], labels[order]) == pytest.approx(metrics.class_consistency(z, labels))
    assert metrics.orthogonality(z[order]) == pytest.approx(metrics.orthogonality(z))
    assert metrics.expected_activation(scale * z[order]) == pytest.approx(metrics.expected_activation(z))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_sparse_and_dense_features_measure_the_same(seed: int):
    z, labels = example(seed=seed)
    csr = sparse.csr_array(z)
    for name in ("sparsity", "live_features", "zero_rows", "orthogonality", "effective_rank"):
        assert getattr(metrics, name)(csr) == pytest.approx(getattr(metrics, name)(z)), name
    assert np.array_equal(metrics.live(csr), metrics.live(z))
    assert np.array_equal(metrics.expected_activation(csr), metrics.expected_activation(z))
    assert metrics.class_consistency(csr, labels) == metrics.class_consistency(z, labels)
    assert metrics.top10_consistency(csr, labels) == metrics.top10_consistency(z, labels)


# References


def test_sparsity_matches_a_double_loop():
    z, _ = example()
    active = [sum(abs(v) >= EPS for v in row) for row in z]
    assert list(metrics.active_per_sample(z)) == active
    assert metrics.sparsity(z) == pytest.approx(np.mean([1 - a / z.shape[1] for a in active]))
    assert list(metrics.live(z)) == [any(abs(v) >= EPS for v in column) for column in z.T]
    assert metrics.live_features(z) == z.shape[1] - 2  # the dead and the faint column


def majority(labels: list[int]) -> float:
    return max(labels.count(c) for c in labels) / len(labels)


def test_class_consistency_matches_a_double_loop():
    z, labels = example()
    fired = [[int(c) for v, c in zip(column, labels, strict=True) if abs(v) >= EPS] for column in z.T]
    expected = np.array([majority(f) if f else np.nan for f in fired])
    np.testing.assert_allclose(metrics.per_feature_consistency(z, labels), expected)
    assert metrics.class_consistency(z, labels) == pytest.approx(np.nanmean(expected))
    sizes = np.array([len(f) for f in fired])
    weighted = np.nansum(expected * sizes) / sizes.sum()
    assert metrics.class_consistency(z, labels, weighted=True) == pytest.approx(weighted)
    assert weighted != pytest.approx(np.nanmean(expected))


@pytest.mark.parametrize("k", [1, 3, 10, 1000])
def test_top_k_consistency_matches_a_sort(k: int):
    z, labels = example(n=200)
    order, shares = metrics.tie_order(200), []
    for column in z.T:
        ranked = sorted((-abs(column[n]), at, n) for at, n in enumerate(order) if abs(column[n]) >= EPS)
        if ranked:
            shares.append(majority([int(labels[n]) for _, _, n in ranked[:k]]))
    assert metrics.top10_consistency(z, labels, k=k) == pytest.approx(np.mean(shares))


def test_equal_activations_of_samples_sorted_by_class_score_by_chance():
    z, labels = np.ones((1000, 1)), np.repeat(np.arange(10), 100)
    assert metrics.top10_consistency(z, labels, k=100) < 0.25  # the first hundred are of one class


def test_top_k_chance_matches_all_subsets():
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2])
    subsets = itertools.combinations(labels.tolist(), 4)
    expected = np.mean([majority(list(s)) for s in subsets])
    assert metrics.top_k_chance(labels, 4) == pytest.approx(expected, abs=0.005)
    assert metrics.top_k_chance(labels, 4) == metrics.top_k_chance(labels, 4)
    assert metrics.top_k_chance(labels, 100) == pytest.approx(4 / 9)  # all of them, every time
    assert metrics.top_k_chance(labels, 1) == 1


@pytest.mark.parametrize("density", [0.02, 1.0])  # the sparse and the dense product
def test_correlation_matches_scikit_learn(density: float):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(5000, 15)) * (rng.random((5000, 15)) < density)
    z[:, 4] = 0
    alive = np.delete(z, 4, axis=1)
    expected = cosine_similarity(alive.T)
    np.testing.assert_allclose(metrics.correlation(z), expected, atol=1e-12)
    np.testing.assert_allclose(metrics.correlation(z, features=[7, 2]), cosine_similarity(z.T[[7, 2]]), atol=1e-12)
    off_diagonal = expected[~np.eye(14, dtype=bool)]
    assert metrics.orthogonality(z) == pytest.approx(np.abs(off_diagonal).mean())


@pytest.mark.parametrize("shape", [(80, 10), (10, 80)])
def test_effective_rank_matches_the_singular_values(shape: tuple[int, int]):
    z = np.random.default_rng(0).random(shape) ** 3
    s = np.linalg.svd(z, compute_uv=False)
    p = s / s.sum()
    assert metrics.effective_rank(z) == pytest.approx(np.exp(-(p * np.log(p)).sum()))


def test_effective_rank_of_a_rank_one_matrix_is_one():
    z = np.outer(np.arange(1, 200), np.arange(1, 50)).astype(np.float32)
    assert metrics.effective_rank(z) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("absolute", [False, True])
def test_expected_activation_matches_scikit_learn(absolute: bool):
    z, _ = example()
    unit = np.asarray(normalize(z.astype(np.float64)))
    expected = (np.abs(unit) if absolute else unit).mean(axis=0)
    np.testing.assert_allclose(metrics.expected_activation(z, absolute=absolute), expected, atol=1e-12)


# Edges


def test_without_live_features_there_is_nothing_to_average():
    z, labels = np.zeros((5, 3)), np.arange(5)
    assert metrics.sparsity(z) == 1
    assert metrics.live_features(z) == 0
    assert metrics.zero_rows(z) == 5
    assert metrics.correlation(z).shape == (0, 0)
    assert np.isnan(metrics.per_feature_consistency(z, labels)).all()
    undefined = (
        metrics.class_consistency(z, labels),
        metrics.class_consistency(z, labels, weighted=True),
        metrics.top10_consistency(z, labels),
        metrics.orthogonality(z),
        metrics.effective_rank(z),
    )
    assert np.isnan(undefined).all()
    assert (metrics.expected_activation(z) == 0).all()


def test_a_threshold_above_every_value_leaves_nothing_live():
    z, labels = example()
    assert metrics.sparsity(z, eps=100) == 1
    assert np.isnan(metrics.class_consistency(z, labels, eps=100))
    assert np.isnan(metrics.orthogonality(z, eps=100))


def test_a_value_at_the_threshold_is_active():
    z = np.array([[0.5, 0.25, -0.5]])
    assert metrics.active_per_sample(z, eps=0.5).tolist() == [2]


def test_without_samples_there_is_nothing_to_average():
    z, labels = np.zeros((0, 3)), np.zeros(0, dtype=np.int64)
    undefined = (
        metrics.sparsity(z),
        metrics.class_consistency(z, labels),
        metrics.top10_consistency(z, labels),
        metrics.chance(labels),
        metrics.top_k_chance(labels),
        metrics.effective_rank(z),
    )
    assert np.isnan(undefined).all()
    assert np.isnan(metrics.expected_activation(z)).all()
    assert metrics.zero_rows(z) == 0


def test_with_one_class_every_live_feature_is_consistent():
    z, labels = example(classes=1)
    assert metrics.class_consistency(z, labels) == 1
    assert metrics.top10_consistency(z, labels) == 1
    assert metrics.chance(labels) == metrics.top_k_chance(labels) == 1


def test_one_live_feature_has_nothing_to_be_orthogonal_to():
    assert np.isnan(metrics.orthogonality(np.array([[1.0, 0.0], [2.0, 0.0]])))


def test_a_chosen_dead_feature_has_no_direction():
    cosine = metrics.correlation(np.array([[1.0, 0.0], [2.0, 0.0]]), features=[0, 1])
    assert cosine[0, 0] == 1
    assert np.isnan(cosine[1]).all()
    assert np.isnan(cosine[0, 1])


def test_stored_zeros_and_duplicates_are_read_as_values_and_left_in_place():
    z = sparse.csr_array((np.array([0.0, 1.0, 1.0, -1.0, 1.0]), np.array([0, 1, 1, 0, 0]), np.array([0, 1, 3, 5])))
    plain = np.array([[0.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    assert metrics.zero_rows(z) == metrics.zero_rows(plain) == 2
    assert metrics.live(z).tolist() == [False, True]
    assert metrics.active_per_sample(z).tolist() == [0, 1, 0]
    assert z.nnz == 5


def test_labels_may_skip_numbers():
    z, labels = example()
    assert metrics.class_consistency(z, 1000 * labels + 3) == metrics.class_consistency(z, labels)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda z, _: metrics.sparsity(z, eps=0), "positive"),
        (lambda z, _: metrics.sparsity(z, eps=float("nan")), "positive"),
        (lambda z, _: metrics.sparsity(z[0]), "one row per sample"),
        (lambda z, _: metrics.sparsity(z.astype(str)), "real numbers"),
        (lambda z, _: metrics.effective_rank(np.where(z > 0, np.nan, z)), "NaN"),
        (lambda z, _: metrics.correlation(z, features=[12]), "from 0 to 11"),
        (lambda z, _: metrics.correlation(z, features=[-1]), "from 0 to 11"),
        (lambda z, y: metrics.class_consistency(z, y[:-1]), "one label per sample"),
        (lambda z, y: metrics.class_consistency(z, y - 1), "whole numbers from 0"),
        (lambda z, y: metrics.class_consistency(z, y / 2), "whole numbers from 0"),
        (lambda z, y: metrics.top10_consistency(z, y, k=0), "1 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_sentence(call, says: str):
    with pytest.raises(BadInput, match=says):
        call(*example())


# Everything at once


@dataclass(frozen=True)
class Sample:
    h: np.ndarray
    z: sparse.csr_array
    labels: np.ndarray | None


UNLABELLED = {
    "sparsity",
    "active_per_sample",
    "active_per_sample_median",
    "active_least",
    "active_under_20",
    "orthogonality",
    "live_features",
    "dead_features",
    "features",
    "zero_rows",
    "effective_rank",
    "expected_activation_top",
}
CONSISTENCY = {"class_consistency", "class_consistency_weighted", "top10_consistency", "chance", "top10_chance"}
PROBES = {"linear_probe", "knn", "linear_probe_z", "knn_z", "counted_probe_z"}


def sample(*, seed: int, n: int = 60) -> Sample:
    z, labels = example(n=n, seed=seed)
    h = one_hot(labels) + 0.1 * np.random.default_rng(seed).normal(size=(n, 4)).astype(np.float32)
    return Sample(h, sparse.csr_array(z), labels)


def test_measure_reports_each_value_with_its_definition():
    train, test = sample(seed=1, n=120), sample(seed=2)
    report = measure(train, test)
    assert set(report) == UNLABELLED | CONSISTENCY | PROBES
    assert json.loads(json.dumps(report, allow_nan=False)) == report  # plain numbers only
    assert all(entry["definition"] and type(entry["value"]) in (int, float) for entry in report.values())
    z, labels = example(seed=2)
    assert report["sparsity"] == report["sparsity"] | {"value": metrics.sparsity(z), "threshold": EPS}
    assert report["active_per_sample_median"]["value"] == np.median((np.abs(z) >= EPS).sum(axis=1))
    assert report["active_least"]["value"] == (np.abs(z) >= EPS).sum(axis=1).min()
    assert report["active_under_20"]["value"] == 1  # there are 12
    assert report["live_features"]["value"] + report["dead_features"]["value"] == report["features"]["value"] == 12
    assert report["top10_consistency"]["k"] == 10
    assert report["class_consistency"]["value"] == metrics.class_consistency(z, labels)
    assert report["class_consistency_weighted"]["value"] == metrics.class_consistency(z, labels, weighted=True)
    assert report["zero_rows"]["value"] == 1
    unit = np.asarray(normalize(train.z.toarray().astype(np.float64)))
    used = np.sort(np.abs(unit).sum(axis=0))
    assert report["expected_activation_top"]["value"] == pytest.approx(used[-10:].sum() / used.sum())
    assert report["linear_probe"]["value"] == 1
    assert report["linear_probe_z"]["value"] < 0.6  # these z were drawn without regard to the labels
    assert report["knn"]["k"] == 11
    assert train.labels is not None
    head = metrics.counted_head(train.z, train.labels, 4)
    assert report["counted_probe_z"]["value"] == ((test.z @ head).argmax(axis=1) == labels).mean()


def test_under_20_active_features_are_19_or_fewer():
    z = (np.arange(25) < np.array([[19], [20], [21]])).astype(np.float32)
    data = Sample(z, sparse.csr_array(z), None)
    assert measure(data, data)["active_under_20"]["value"] == pytest.approx(1 / 3)


def test_measure_leaves_out_what_needs_labels():
    train, test = sample(seed=1), sample(seed=2)
    bare_train, bare_test = Sample(train.h, train.z, None), Sample(test.h, test.z, None)
    assert set(measure(train, bare_test)) == UNLABELLED
    assert set(measure(bare_train, test)) == UNLABELLED | CONSISTENCY
    one_class = Sample(train.h, train.z, np.zeros(60, dtype=np.int64))
    assert set(measure(one_class, test)) == UNLABELLED | CONSISTENCY


def test_measure_says_none_where_a_value_is_not_defined():
    dead = Sample(np.ones((4, 2)), sparse.csr_array((4, 3), dtype=np.float32), None)
    report = measure(dead, dead)
    undefined = {name for name, entry in report.items() if entry["value"] is None}
    assert undefined == {"orthogonality", "effective_rank", "expected_activation_top"}


def test_measure_refuses_features_of_two_models():
    train, test = sample(seed=1), sample(seed=2)
    with pytest.raises(BadInput, match="use one model"):
        measure(train, Sample(test.h, test.z[:, :5], test.labels))
