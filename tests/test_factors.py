"""MIG, SAP and DCI on codes with known answers, and against scikit-learn and loops. N images, D codes, F factors."""

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.metrics import balanced_accuracy_score, mutual_info_score

from nonneg.errors import BadInput
from nonneg.metrics import factors as room
from nonneg.metrics.factors import dci, mig, sap

SIZES = (3, 4, 5, 8)


def grid(copies: int = 6) -> np.ndarray:
    """Every combination of the factors, equally often: factors that are exactly independent."""
    return np.tile(np.array(list(itertools.product(*map(range, SIZES)))), (copies, 1))


def rotated(v: np.ndarray, seed: int = 0) -> np.ndarray:
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(v.shape[1], v.shape[1])))
    return (v - v.mean(0)) / v.std(0) @ turn


def noise(n: int, d: int = 6, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d))


def mixed(n: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Codes of every kind (dense, sparse, whole numbers, dead) that know something of four uneven factors."""
    rng = np.random.default_rng(seed)
    v = np.stack([rng.integers(0, k, n) ** 2 // (k - 1) for k in (2, 5, 7, 12)], axis=1)
    z = v @ rng.normal(size=(4, 7)) + rng.normal(size=(n, 7))
    z[:, 2] = np.maximum(z[:, 2] - 2, 0)
    z[:, 3] = np.round(z[:, 3])
    z[:, 5] = 1.7
    return z, v


# --- known answers -----------------------------------------------------------------------------------------------


def test_the_factors_themselves_are_disentangled() -> None:
    v = grid()
    assert mig(v, v).gaps == pytest.approx(1, abs=1e-12)
    assert mig(v, v, binning="quantile").score == pytest.approx(1, abs=1e-12)
    found = dci(v, v)
    assert found.disentanglement > 0.999 and found.completeness > 0.999 and found.informativeness == 1
    assert found.by_code.min() > 0.999 and found.importance.argmax(0).tolist() == [0, 1, 2, 3]
    assert (found.chance_by_factor < 0.45).all()
    best = sap(v, v)
    assert best.accuracy.diagonal() == pytest.approx(1)
    assert best.gaps == pytest.approx([1 - 1 / k for k in SIZES], abs=0.1)  # the others are at chance


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_rotation_of_the_factors_is_not(seed: int) -> None:
    v = grid()
    z = rotated(v, seed)
    assert mig(z, v).score < 0.5 and sap(z, v).score < 0.35  # for the factors themselves: 1 and 0.78
    found = dci(z, v)
    assert found.disentanglement < 0.5 and found.completeness < 0.5
    assert found.informativeness > found.chance_by_factor.mean() + 0.3  # it is all still there


def test_noise_knows_nothing() -> None:
    v = grid()
    z = noise(len(v))
    assert mig(z, v).score < 0.01 and sap(z, v).score < 0.05
    found = dci(z, v)
    assert found.disentanglement < 0.05 and found.completeness < 0.05
    assert found.accuracy_by_factor == pytest.approx([1 / k for k in SIZES], abs=0.08)


def test_a_copy_of_each_code_takes_mig_and_sap_to_zero_but_not_disentanglement() -> None:
    v = grid()
    z = np.concatenate([v, v], axis=1)
    assert mig(z, v).score == pytest.approx(0, abs=1e-12) and sap(z, v).score == pytest.approx(0, abs=1e-12)
    found = dci(z, v)
    assert found.disentanglement > 0.999 and 0.5 < found.completeness < 0.9  # each factor has two codes of eight


def test_more_values_than_bins_cannot_all_be_told() -> None:
    v = np.tile(np.array(list(itertools.product(range(40), range(3)))), (10, 1))
    assert mig(v, v).gaps == pytest.approx([math.log(20) / math.log(40), 1])  # 40 values, two in each of 20 bins
    assert mig(v, v, bins=40).score == pytest.approx(1)


def test_one_code_has_a_second_of_zero() -> None:
    v = grid()
    alone = mig(v[:, :1], v[:, :1])
    assert alone.score == pytest.approx(1) and alone.information == pytest.approx(math.log(3))
    assert sap(v[:, :1], v[:, :1]).score == pytest.approx(1)
    found = dci(v[:, :1], v[:, :1])
    assert (found.disentanglement, found.completeness, found.informativeness) == (1, 1, 1)


def test_a_dead_code_informs_of_exactly_nothing() -> None:
    z, v = mixed()
    assert (mig(z, v).information[:, 5] == 0).all() and (mig(z, v, binning="quantile").information[:, 5] == 0).all()
    found = dci(z, v)
    assert found.by_code[5] == 0 and (found.importance[5] == 0).all()
    dead = np.zeros((len(v), 3))
    assert mig(dead, v).score == 0 and sap(dead, v).score == 0
    nothing = dci(dead, v)
    assert nothing.disentanglement == nothing.completeness == 0
    assert nothing.informativeness == pytest.approx(nothing.chance_by_factor.mean())


def test_a_spike_at_zero_does_not_swallow_rare_activations() -> None:
    """Active on 2 % of the samples, under the share of a bin: still one bin for off, and at least one for on."""
    v = np.repeat([0, 1], [980, 20])[:, None]
    z = np.where(v == 1, 1 + np.arange(1000)[:, None] / 1000, 0)
    for binning in ("width", "quantile"):
        assert mig(z, v, binning=binning).score == pytest.approx(1)


# --- against references ------------------------------------------------------------------------------------------


def slow_bins(code: np.ndarray, bins: int, binning: str) -> np.ndarray:
    if binning == "width":
        return np.digitize(code, np.histogram(code, bins)[1][:-1])
    share = [(np.sum(code < c) + np.sum(code <= c)) / 2 / len(code) for c in code]
    return np.array([min(math.floor(bins * s + 1e-9), bins - 1) for s in share])


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, torch.tensor], ids=["dense", "sparse", "tensor"])
@pytest.mark.parametrize("binning", ["width", "quantile"])
@pytest.mark.parametrize("bins", [2, 11, 20])
def test_mig_matches_a_double_loop_of_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, make: Any, binning: Any, bins: int
) -> None:
    monkeypatch.setattr(room, "PART", 700)  # two codes at a time, the last one alone
    z, v = mixed()
    cells = [slow_bins(code, bins, binning) for code in z.T]
    information = np.array([[mutual_info_score(y, cell) for cell in cells] for y in v.T])
    entropy = np.array([mutual_info_score(y, y) for y in v.T])
    first, second = np.sort(information, axis=1)[:, ::-1][:, :2].T
    found = mig(make(z), v, bins=bins, binning=binning)
    assert found.information == pytest.approx(information, abs=1e-12)
    assert found.entropy == pytest.approx(entropy, abs=1e-12)
    assert found.gaps == pytest.approx((first - second) / entropy, abs=1e-12)
    assert found.score == pytest.approx(np.mean((first - second) / entropy), abs=1e-12)


def slow_accuracy(code: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, bins: int) -> float:
    edges = np.histogram(code[train], bins)[1][1:-1]
    cell = np.digitize(code, edges)
    answers = []
    for sample in test:
        votes = {v: np.mean(cell[train][y[train] == v] == cell[sample]) for v in sorted(set(y[train]))}
        answers.append(max(votes, key=lambda v: votes[v]) if any(votes.values()) else -1)
    return float(np.mean([np.mean(np.array(answers)[y[test] == v] == v) for v in sorted(set(y[test]))]))


@pytest.mark.parametrize("seed", [0, 1])
def test_sap_matches_a_loop(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(room, "PART", 700)
    z, v = mixed(200, seed)
    order = np.random.default_rng(seed).permutation(200)
    expected = np.array([[slow_accuracy(code, y, order[50:], order[:50], 9) for code in z.T] for y in v.T])
    found = sap(z, v, bins=9, seed=seed)
    assert found.accuracy == pytest.approx(expected, abs=1e-12)
    first, second = np.sort(expected, axis=1)[:, ::-1][:, :2].T
    assert found.gaps == pytest.approx(first - second) and found.score == pytest.approx(np.mean(first - second))


def test_sap_of_a_two_valued_code_is_scikit_learns_balanced_accuracy() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.2).astype(int)
    z = np.where(rng.random(400) < 0.8, y, 1 - y)
    test = np.random.default_rng(3).permutation(400)[:100]
    assert sap(z[:, None], y[:, None], seed=3).score == pytest.approx(balanced_accuracy_score(y[test], z[test]))


def test_a_value_that_is_never_asked_about_does_not_count_against_a_code() -> None:
    order = np.random.default_rng(0).permutation(200)
    y = np.arange(200) % 2
    y[order[60:70]] = 2  # learned from, and not among the 50 that are held out
    assert sap(y[:, None], y[:, None], seed=0).accuracy.item() == 1


def test_dci_follows_from_its_importances() -> None:
    z, v = mixed()
    found = dci(z, v)
    r = found.importance
    assert r.shape == (7, 4) and r.sum(0) == pytest.approx(1)

    def spread(weights: np.ndarray) -> float:
        p = [w / weights.sum() for w in weights if w > 0]
        return -sum(q * math.log(q, len(weights)) for q in p)

    by_code = [1 - spread(row) if row.any() else 0 for row in r]
    assert found.by_code == pytest.approx(by_code)
    assert found.disentanglement == pytest.approx(sum(d * row.sum() for d, row in zip(by_code, r, strict=True)) / 4)
    assert found.completeness_by_factor == pytest.approx([1 - spread(column) for column in r[r.any(axis=1)].T])
    assert found.completeness == pytest.approx(found.completeness_by_factor.mean())
    assert found.informativeness == pytest.approx(found.accuracy_by_factor.mean())


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), power=st.integers(-300, 300))
def test_scale_order_and_names_do_not_matter(seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    z, v = mixed(60, seed)
    names = 3 * rng.permutation(200) - 100
    order = rng.permutation(7), rng.permutation(4)
    scaled = z[:, order[0]] * 2.0**power  # a power of two is exact, so that not a single value changes its bin
    assert mig(scaled, names[v[:, order[1]]]).score == pytest.approx(mig(z, v).score)


def test_the_same_seed_gives_the_same_numbers() -> None:
    z, v = mixed()
    assert dci(z, v, seed=2**40 + 1).importance.tolist() == dci(z, v, seed=2**40 + 1).importance.tolist()
    assert sap(z, v, seed=1).accuracy.tolist() == sap(z, v, seed=1).accuracy.tolist()
    assert sap(z, v, seed=1).accuracy.tolist() != sap(z, v, seed=2).accuracy.tolist()


def test_mig_is_fast() -> None:
    rng = np.random.default_rng(0)
    z = np.maximum(rng.normal(size=(10_000, 256)), 0).astype(np.float32)
    v = np.stack([rng.integers(0, k, 10_000) for k in (3, 6, 40, 32, 32)], axis=1)
    start = time.process_time()
    mig(z, v)
    assert time.process_time() - start < 4  # 0.3 s on an idle core


# --- edges and bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", [mig, sap, dci])
def test_constant_factors_are_left_out_and_listed(measure: Any) -> None:
    z, v = mixed()
    v = np.insert(v, [0, 2], 7, axis=1)
    found = measure(z, v)
    assert found.constant == (0, 3) and found.used == (1, 2, 4, 5)
    parts = {"Mig": "gaps", "Sap": "gaps", "Dci": "accuracy_by_factor"}[type(found).__name__]
    assert getattr(found, parts).tolist() == getattr(measure(z, v[:, [1, 2, 4, 5]]), parts).tolist()


@pytest.mark.parametrize("measure", [mig, sap, dci])
@pytest.mark.parametrize("scale", [1e-310, 1e307])
def test_very_small_and_very_large_codes_stay_finite(measure: Any, scale: float) -> None:
    z, v = mixed(80)
    for value in vars(measure(z / np.abs(z).max() * 17 * scale, v)).values():
        assert np.isfinite(value).all()


@pytest.mark.parametrize("measure", [mig, sap, dci])
def test_two_samples_are_enough_to_be_defined(measure: Any) -> None:
    for value in vars(measure(np.eye(2), np.array([[0], [1]]))).values():
        assert np.isfinite(value).all()


@pytest.mark.parametrize("measure", [mig, sap, dci])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"factors": np.full((300, 3), 2)}, "none of the 3 factors takes two values on these 300 samples"),
        ({"factors": np.zeros((300, 0), dtype=int)}, "none of the 0 factors"),
        ({"factors": np.zeros((299, 2), dtype=int)}, r"300 samples but factors of shape \(299, 2\)"),
        ({"factors": np.zeros(300, dtype=int)}, "give one row per sample"),
        ({"factors": np.zeros((300, 2))}, "factors are of type float64: give whole numbers"),
        ({"z": np.full((300, 2), np.nan)}, "NaN or infinite"),
        ({"z": np.zeros((300, 0))}, "no codes"),
        ({"z": np.zeros(300)}, "one row per sample and one column per feature"),
    ],
)
def test_bad_input_is_one_sentence(measure: Any, change: dict[str, Any], message: str) -> None:
    z, v = mixed()
    asked: dict[str, Any] = {"z": z, "factors": v, **change}
    with pytest.raises(BadInput, match=message):
        measure(**asked)


@pytest.mark.parametrize("measure", [mig, sap])
def test_bad_bins_are_one_sentence(measure: Any) -> None:
    z, v = mixed()
    with pytest.raises(BadInput, match="bins is 1"):
        measure(z, v, bins=1)
    with pytest.raises(BadInput, match="did you mean 'quantile'"):
        measure(z, v, binning="quantiles")
