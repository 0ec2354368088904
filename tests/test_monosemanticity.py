"""Label-free monosemanticity against a double loop over images. N images, D features, d dimensions of the embedding."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics.monosemanticity import monosemanticity


def example(n: int = 25, d: int = 7, *, seed: int = 0, signed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=(n, d)) * (rng.random((n, d)) < 0.6)
    e = rng.normal(size=(n, 3)) + 1
    return (z - 0.5 if signed else z), e


def slow(weights: np.ndarray, e: np.ndarray, *, centred: bool = False) -> float:
    """The weighted mean cosine over ordered pairs of different images."""
    e = e - e.mean(axis=0) if centred else e
    above, below = [], []
    for n in range(len(e)):
        for m in range(len(e)):
            if n != m:
                size = float(np.linalg.norm(e[n]) * np.linalg.norm(e[m]))
                cosine = float(e[n] @ e[m]) / size if size > 1e-12 else 0.0
                above.append(float(weights[n]) * float(weights[m]) * cosine)
                below.append(float(weights[n]) * float(weights[m]))
    return math.fsum(above) / math.fsum(below)


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense product", "sparse product"])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_it_matches_a_double_loop(monkeypatch: pytest.MonkeyPatch, share, make, signed: bool, centred: bool) -> None:
    monkeypatch.setitem(monosemanticity.__globals__, "SPARSE", share)
    monkeypatch.setitem(monosemanticity.__globals__, "ROWS", 9)  # several blocks, the last one short
    z, e = example(signed=signed)
    e[4] = 0 if not centred else e[np.arange(25) != 4].mean(axis=0)  # a row that has no direction
    found = monosemanticity(make(z), make(e), centred=centred)
    expected = [slow(np.maximum(column, 0), e, centred=centred) for column in z.T]
    np.testing.assert_allclose(found.per_feature, expected, atol=1e-12)
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.baseline == pytest.approx(slow(np.ones(25), e, centred=centred))
    assert (found.measured, found.single, found.dead) == (7, 0, 0)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), decades=st.floats(0, 30))
def test_it_keeps_its_digits_where_one_activation_dwarfs_the_others(seed: int, decades: float) -> None:
    rng = np.random.default_rng(seed)
    z = 10 ** rng.uniform(-4, decades - 4, size=(8, 2))
    z[3, 0] = 1e30
    e = rng.normal(size=(8, 3))
    found = monosemanticity(z, e).per_feature
    np.testing.assert_allclose(found, [slow(column, e) for column in z.T], atol=1e-12)


def test_one_cluster_scores_one_and_two_opposite_ones_do_not() -> None:
    """Features 0 and 1 each fire on one cluster, 2 on both alike: (2 * 10 * 9 - 2 * 100) / (20 * 19) of the pairs."""
    e = np.repeat([[1.0, 0], [-1, 0]], 10, axis=0)
    z = np.stack([np.repeat([2, 0], 10), np.repeat([0, 5], 10), np.ones(20)], axis=1)
    found = monosemanticity(z, e)
    np.testing.assert_allclose(found.per_feature, [1, 1, -20 / 380])
    assert found.baseline == pytest.approx(-20 / 380)


def test_a_feature_always_on_scores_the_baseline() -> None:
    _, e = example()
    found = monosemanticity(np.full((25, 1), 3.0), e)
    assert found.mean == pytest.approx(found.baseline) and found.baseline > 0.2


def test_centring_takes_the_plateau_away() -> None:
    rng = np.random.default_rng(0)
    e = rng.normal(size=(500, 20)) + 5
    z = np.ones((500, 1))
    assert monosemanticity(z, e).baseline > 0.9
    assert abs(monosemanticity(z, e, centred=True).baseline) < 0.01


def test_weights_are_activations_and_scales_do_not_matter() -> None:
    z, e = example()
    found = monosemanticity(z, e).per_feature
    scaled = monosemanticity(z * np.geomspace(0.01, 1e150, 7), e * np.geomspace(1e-200, 1e100, 25)[:, None])
    np.testing.assert_allclose(scaled.per_feature, found, atol=1e-12)
    louder = z.copy()
    louder[np.flatnonzero(z[:, 0])[0], 0] *= 10
    assert abs(monosemanticity(louder, e).per_feature[0] - found[0]) > 1e-3


def test_features_without_a_pair_are_counted_and_left_out() -> None:
    z, e = example(d=5)
    z[:, 1] = 0
    z[:, 2] = np.eye(25)[3]
    z[:, 4] = -z[:, 4]  # negative values are off
    found = monosemanticity(z, e)
    assert (found.measured, found.single, found.dead) == (2, 1, 2)
    assert np.isnan(found.per_feature).tolist() == [False, True, True, False, True]
    assert found.mean == pytest.approx(np.mean([slow(z[:, 0], e), slow(z[:, 3], e)]))


def test_eps_says_what_is_off() -> None:
    z, e = example()
    found = monosemanticity(z, e, eps=0.5).per_feature
    np.testing.assert_allclose(found, [slow(np.where(c >= 0.5, c, 0), e) for c in z.T], atol=1e-12)


def test_all_dead_features_have_a_baseline_and_no_mean() -> None:
    _, e = example()
    found = monosemanticity(np.zeros((25, 4)), e)
    assert math.isnan(found.mean) and found.dead == 4 and math.isfinite(found.baseline)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"e": np.ones((24, 3))}, "features of 25 images, embeddings of 24"),
        ({"e": np.zeros((25, 3))}, "zero for all images"),
        ({"e": np.full((25, 3), 0.1), "centred": True}, "the same for all images"),
        ({"e": np.full((25, 3), np.nan)}, "NaN"),
        ({"e": np.zeros((25, 0))}, "at least one column"),
        ({"z": np.full((25, 3), np.inf)}, "infinite"),
        ({"z": np.ones((1, 3)), "e": np.ones((1, 3))}, "two or more"),
        ({"eps": 0.0}, "eps is 0.0"),
    ],
)
def test_bad_input_is_one_sentence(change: dict, message: str) -> None:
    z, e = example()
    asked: dict[str, Any] = {"z": z, "e": e, **change}
    with pytest.raises(BadInput, match=message):
        monosemanticity(**asked)
