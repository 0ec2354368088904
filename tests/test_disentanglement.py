"""SEPIN against brute force (drop the feature, take the loss again), theorems and edges. N images, D features."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

from nonneg import metrics
from nonneg.errors import BadInput
from nonneg.metrics import disentanglement


def views(*, n: int = 40, d: int = 9, active: float = 0.3, signed: bool = False, seed: int = 0):
    """Two noisy views; feature 0 is dead, 1 fires in f only, 2 nearly always; one row zero, one of a single feature."""
    rng = np.random.default_rng(seed)
    base = (rng.normal(size=(n, d)) if signed else rng.random((n, d)) + 0.1) * (rng.random((n, d)) < active)
    f, g = (base * (1 + 0.3 * rng.random((n, d))) * (rng.random((n, d)) < 0.9) for _ in range(2))
    f[:, 0] = g[:, 0] = g[:, 1] = 0
    f[:, 2], g[:, 2] = f[:, 2] + 0.5, g[:, 2] + 0.5
    f[3] = 0
    f[4], g[4] = np.eye(d)[5], np.eye(d)[5]
    f[5], g[6] = np.eye(d)[5] + 1e-5 * f[7], np.eye(d)[5] + 1e-7 * g[8]  # nearly one feature alone
    return f, g


def unit(z: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(z, axis=1, keepdims=True)
    return z / np.where(norm > 0, norm, 1)


def loss(f: np.ndarray, g: np.ndarray, *, temperature: float, weights: str) -> float:
    """-mean_n log(E_nn / sum_m w_nm E_nm), one anchor at a time."""
    n, total = len(f), 0.0
    for k in range(n):
        logits = np.array([f[k] @ g[m] for m in range(n)]) / temperature
        w = np.full(n, 1 / (n - 1) if weights == "mean" else 1.0)
        w[k] = 1
        total += logsumexp(logits, b=w) - logits[k]
    return total / n


def brute_force(f: Any, g: Any, *, renormalise: bool = False, **knobs: Any) -> np.ndarray:
    f, g = unit(f), unit(g)
    whole, found = loss(f, g, **knobs), []
    for i in range(f.shape[1]):
        a, b = (z * (np.arange(f.shape[1]) != i) for z in (f, g))
        found.append(loss(*((unit(a), unit(b)) if renormalise else (a, b)), **knobs) - whole)
    return np.array(found)


# A reference

KNOBS = list(itertools.product(["mean", "sum"], [0.2, 1.0], [False, True]))


@pytest.mark.parametrize(("weights", "temperature", "renormalise"), KNOBS)
@pytest.mark.parametrize(("active", "signed"), [(0.3, False), (1.0, True)])
def test_sepin_matches_brute_force(weights: Any, temperature: float, renormalise: bool, active: float, signed: bool):
    f, g = views(active=active, signed=signed)
    knobs: dict[str, Any] = {"weights": weights, "temperature": temperature, "renormalise": renormalise}
    found = metrics.sepin(sparse.csr_array(f), g, **knobs)
    assert found == pytest.approx(brute_force(f, g, **knobs), abs=1e-9, rel=0)


@pytest.mark.parametrize("gathered", [0, 10**9])
@pytest.mark.parametrize("block", [100, 2**24])
def test_pairs_and_power_series_give_the_same_in_any_block(monkeypatch: Any, gathered: int, block: int):
    f, g = views(active=0.6, signed=True, seed=1)
    called = []
    kept = disentanglement._series
    monkeypatch.setattr(disentanglement, "_series", lambda *a: called.append(1) or kept(*a))
    monkeypatch.setattr(disentanglement, "GATHERED", gathered)
    monkeypatch.setattr(disentanglement, "BLOCK", block)
    monkeypatch.setattr(disentanglement, "PART", 50)
    found = metrics.sepin(f, g, temperature=0.2)
    assert bool(called) == (gathered > 0)
    assert found == pytest.approx(brute_force(f, g, temperature=0.2, weights="mean"), abs=1e-9, rel=0)
    renormalised = brute_force(f, g, temperature=0.2, weights="mean", renormalise=True)
    assert metrics.sepin(f, g, temperature=0.2, renormalise=True) == pytest.approx(renormalised, abs=1e-9, rel=0)


@pytest.mark.parametrize("block", [100, 2**24])  # in blocks of a few anchors, and all at once
@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize("weights", ["sum", "mean"])
def test_a_tiny_temperature_keeps_its_digits(monkeypatch: Any, weights: Any, renormalise: bool, block: int):
    monkeypatch.setattr(disentanglement, "BLOCK", block)
    labels = np.arange(30) % 4
    one_hot = np.eye(4)[labels] + 0.01 * np.random.default_rng(0).random((30, 4))
    expected = brute_force(one_hot, one_hot, temperature=0.002, weights=weights, renormalise=renormalise)
    found = metrics.sepin(one_hot, one_hot, temperature=0.002, weights=weights, renormalise=renormalise)
    assert found == pytest.approx(expected, abs=1e-9, rel=1e-12)


def test_the_series_is_long_enough():
    for x in [0.0, 1e-9, 0.01, 0.3, 2.0, disentanglement.SERIES_RANGE]:
        terms = disentanglement._terms(x)
        power, total = 1.0, 0.0
        for t in range(1, terms + 1):
            power *= x / t
            total += power
        assert total == pytest.approx(np.expm1(x), rel=1e-12, abs=1e-300)
    assert disentanglement._terms(1.01 * disentanglement.SERIES_RANGE) == 0


# Theorems


@pytest.mark.parametrize("renormalise", [False, True])
def test_a_feature_that_is_always_zero_scores_exactly_zero(renormalise: bool):
    found = metrics.sepin(*views(), renormalise=renormalise)
    assert found[0] == 0
    assert (found[1] == 0) != renormalise  # one view only: no product has it, but lengths do
    assert not metrics.sepin(np.zeros((5, 3)), np.zeros((5, 3)), renormalise=renormalise).any()


@pytest.mark.parametrize("renormalise", [False, True])
def test_order_of_features_and_images_and_scale_of_rows_do_not_matter(renormalise: bool):
    f, g = views(seed=2)
    rng = np.random.default_rng(0)
    features, images = rng.permutation(f.shape[1]), rng.permutation(len(f))
    scale = 0.5 + rng.random((len(f), 1))
    found = metrics.sepin((scale * f)[images][:, features], g[images][:, features], renormalise=renormalise)
    assert found == pytest.approx(metrics.sepin(f, g, renormalise=renormalise)[features], abs=1e-13)


def test_one_hot_classes_have_the_value_worked_out_by_hand():
    n, c = 12, 4
    z = np.eye(c)[np.arange(n) % c]
    same = n // c - 1
    with_it = np.log(np.e + (same * np.e + n - 1 - same) / (n - 1)) - 1
    assert metrics.sepin(z, z) == pytest.approx(np.full(c, (np.log(2) - with_it) / c), abs=1e-14)


def test_disentangled_features_score_higher_than_their_rotation():
    rng = np.random.default_rng(0)
    factor = np.eye(8)[rng.integers(0, 8, 200)]
    f, g = (factor + 0.05 * rng.random(factor.shape) for _ in range(2))
    rotation = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    straight, rotated = metrics.sepin(f, g, temperature=0.2), metrics.sepin(f @ rotation, g @ rotation, temperature=0.2)
    assert metrics.sepin_at(straight, 8) > 1.2 * metrics.sepin_at(rotated, 8)


def test_a_copied_feature_scores_less_than_the_one_it_copies():
    rng = np.random.default_rng(0)
    z = np.eye(4)[rng.integers(0, 4, 100)]
    twice = np.hstack([z, z[:, :1]])
    found = metrics.sepin(twice, twice, temperature=0.2)
    assert found[0] == pytest.approx(found[4])
    assert found[0] < 0.5 * metrics.sepin(z, z, temperature=0.2)[0]


def test_sepin_at_k_is_the_mean_of_the_k_largest():
    values = np.array([0.1, -2.0, 0.7, 0.4])
    assert metrics.sepin_at(values, 1) == 0.7
    assert metrics.sepin_at(values, 3) == pytest.approx(0.4)
    assert metrics.sepin_at(values, 4) == pytest.approx(values.mean())


# Edges


def test_rows_given_as_they_are_and_not_changed():
    f, g = unit(views()[0]), unit(views()[1])
    before = f.copy()
    assert metrics.sepin(f, g, normalise=False) == pytest.approx(metrics.sepin(3 * f, g), abs=1e-14)
    given = sparse.csr_array(3 * f)
    metrics.sepin(given, g)
    assert (f == before).all()
    assert (given.toarray() == 3 * f).all()


def test_huge_values_are_normalised_or_refused_not_nan():
    f, g = views()
    assert metrics.sepin(1e200 * f, 1e-200 * g) == pytest.approx(metrics.sepin(f, g), abs=1e-12)
    assert np.isfinite(metrics.sepin(30 * f, 30 * g, normalise=False)).all()
    with pytest.raises(BadInput, match="too large"):
        metrics.sepin(1e200 * f, 1e200 * g, normalise=False)


@pytest.mark.parametrize(
    ("change", "knobs", "message"),
    [
        (lambda f, g: (np.where(f > 0.5, np.nan, f), g), {}, "NaN"),
        (lambda f, g: (f, g[:-1]), {}, "shapes"),
        (lambda f, g: (f, g[:, :-1]), {}, "shapes"),
        (lambda f, g: (f[:1], g[:1]), {}, "negative"),
        (lambda f, g: (f[0], g[0]), {}, "one row per sample"),
        (lambda f, g: (f, g), {"temperature": 0.0}, "temperature"),
        (lambda f, g: (f, g), {"temperature": float("nan")}, "temperature"),
        (lambda f, g: (f, g), {"weights": "means"}, "did you mean 'mean'"),
        (lambda f, g: (f, g), {"normalise": False, "renormalise": True}, "normalise"),
    ],
)
def test_bad_input_is_said_in_one_sentence(change: Any, knobs: dict[str, Any], message: str):
    with pytest.raises(BadInput, match=message):
        metrics.sepin(*change(*views()), **knobs)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_is_between_one_and_the_number_of_features(k: int):
    with pytest.raises(BadInput, match="there are 4 features"):
        metrics.sepin_at(np.zeros(4), k)


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.array([1.0, np.nan])])
def test_sepin_at_refuses_what_is_not_one_number_per_feature(values: np.ndarray):
    with pytest.raises(BadInput, match="finite number per feature"):
        metrics.sepin_at(values, 1)
