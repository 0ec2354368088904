"""Spectra against a singular value decomposition and a loop. N images, D features."""

import numpy as np
import pytest
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics.spectrum import activation_spectrum, eigenvalues, fall_after


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize(("n", "d"), [(50, 8), (8, 50), (5, 5)])
@pytest.mark.parametrize("density", [0.03, 1.0])
def test_eigenvalues_are_squared_singular_values_over_n(make, n: int, d: int, density: float) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(n, d)) * (rng.random((n, d)) < density)
    z[0, 0] = 1
    s = np.linalg.svd(z, compute_uv=False)
    expected = np.concatenate([s**2 / n, np.zeros(d - len(s))])
    found = eigenvalues(make(z))
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(eigenvalues(make(z), normalise=True), expected / expected.sum(), atol=1e-12)
    assert (found >= 0).all() and (np.diff(found) <= 0).all()


def test_one_hot_features_scaled_as_in_the_theorem_have_a_flat_spectrum() -> None:
    """phi = 1_c / sqrt(P(c)) gives E[phi phi^T] = I, whatever the class sizes."""
    y = np.repeat([0, 1, 2], [10, 30, 60])
    z = np.eye(3)[y] / np.sqrt(np.array([0.1, 0.3, 0.6]))
    np.testing.assert_allclose(eigenvalues(z), 1)


def test_the_moment_is_not_centred() -> None:
    np.testing.assert_allclose(eigenvalues(np.full((10, 2), 3.0)), [18, 0], atol=1e-12)


@pytest.mark.parametrize("absolute", [False, True])
def test_activation_spectrum_matches_a_loop(absolute: bool) -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(30, 6))
    z[4] = 0
    expected = []
    for column in range(6):
        values = [row[column] / np.linalg.norm(row) for row in z if row.any()]
        expected.append(sum(map(abs, values) if absolute else values) / 30)
    expected = sorted(expected, reverse=True)
    np.testing.assert_allclose(activation_spectrum(z, absolute=absolute), expected)
    if absolute:
        shares = activation_spectrum(z, absolute=True, normalise=True)
        np.testing.assert_allclose(shares, np.array(expected) / sum(expected))


def test_a_dead_feature_comes_last_with_zero() -> None:
    z = sparse.csr_array(np.array([[0.0, 3], [0, 4]]))
    assert activation_spectrum(z).tolist() == [1, 0]
    np.testing.assert_allclose(eigenvalues(z), [12.5, 0])


@pytest.mark.parametrize("spectrum", [eigenvalues, activation_spectrum])
def test_all_dead_features_have_a_spectrum_but_no_shares(spectrum) -> None:
    assert spectrum(np.zeros((4, 3))).tolist() == [0, 0, 0]
    with pytest.raises(BadInput, match="every feature is zero"):
        spectrum(np.zeros((4, 3)), normalise=True)


@pytest.mark.parametrize("spectrum", [eigenvalues, activation_spectrum])
@pytest.mark.parametrize(
    ("z", "message"),
    [
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        (np.zeros((3, 0)), r"shape \(3, 0\)"),
        (np.full((3, 2), np.nan), "NaN"),
        (np.zeros(3), "one row per sample"),
    ],
)
def test_bad_input_is_one_sentence(spectrum, z: np.ndarray, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        spectrum(z)


def test_shares_of_signed_features_are_refused() -> None:
    with pytest.raises(BadInput, match="absolute=True"):
        activation_spectrum(np.array([[1.0, -1], [0, 1]]), normalise=True)


def test_the_fall_after_c_features() -> None:
    y = np.arange(30) % 3
    one_each = np.eye(7)[y]
    assert activation_spectrum(one_each).tolist() == pytest.approx([1 / 3] * 3 + [0] * 4)
    assert fall_after(activation_spectrum(one_each), 3) == 1  # three features, and no more
    assert fall_after(np.ones(6), 3) == 0
    assert fall_after(np.array([8.0, 8, 4, 2, 1, 1]), 2) == 0.75  # from 8 to 2
    assert np.isnan(fall_after(np.ones(5), 3))  # no sixth
    assert np.isnan(fall_after(np.array([1.0, 0, 0, 0]), 2))
    with pytest.raises(BadInput, match="not after 0"):
        fall_after(np.ones(5), 0)
