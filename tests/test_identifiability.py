"""Features of two runs matched, against all permutations. N images, D features."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics import identifiability
from nonneg.metrics.identifiability import match_features, rotated_null, shuffled_null, stability


def codes(n: int = 60, d: int = 5, *, share: float = 0.3, seed: int = 0) -> np.ndarray:
    """Sparse and non-negative; every feature fires, none always."""
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=(n, d)) * (rng.random((n, d)) < share)
    z[0], z[1] = 1, 0
    return z


def slow_similarity(x: np.ndarray, y: np.ndarray, similarity: str) -> float:
    if similarity == "correlation":
        return abs(float(np.corrcoef(x, y)[0, 1]))
    return abs(sum(float(p) * float(q) for p, q in zip(x, y, strict=True))) / float(
        np.sqrt(sum(p * p for p in x) * sum(q * q for q in y))
    )


def slow_matches(a: np.ndarray, b: np.ndarray, similarity: str) -> tuple[dict[int, int], list[float]]:
    """The best of all ways to give each feature of a another one of b; a is the narrower, all are live."""
    table = [[slow_similarity(x, y, similarity) for y in b.T] for x in a.T]
    ways = itertools.permutations(range(b.shape[1]), a.shape[1])
    best = max(ways, key=lambda p: sum(table[i][j] for i, j in enumerate(p)))
    return dict(enumerate(best)), [table[i][j] for i, j in enumerate(best)]


# Against all permutations


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense product", "sparse product"])
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_array, sparse.csc_array], ids=["dense", "csr", "csc"])
@pytest.mark.parametrize("similarity", ["cosine", "correlation"])
@pytest.mark.parametrize("signed", [False, True])
def test_matching_is_the_best_of_all(monkeypatch: pytest.MonkeyPatch, share, make, similarity, signed: bool) -> None:
    monkeypatch.setattr(identifiability, "SPARSE", share)
    monkeypatch.setattr(identifiability, "ROWS", 17)  # several blocks, the last one short
    a, b = codes(d=4, seed=1), codes(d=6, seed=2)
    b[:, 3] += 2 * a[:, 1]
    if signed:
        a, b = a - 0.4, 0.7 - b
    partner, similarities = slow_matches(a, b, similarity)
    found = match_features(make(a), make(b), similarity=similarity, threshold=0.4)
    assert dict(enumerate(found.a.partner)) == partner
    np.testing.assert_allclose(found.a.similarity, similarities, atol=1e-12)
    assert found.mean == pytest.approx(np.mean(similarities))
    assert found.share == np.mean(np.array(similarities) > 0.4)
    turned = match_features(make(b), make(a), similarity=similarity, threshold=0.4)
    for one, other in ((turned.a, found.b), (turned.b, found.a)):
        np.testing.assert_array_equal(one.partner, other.partner)
        np.testing.assert_allclose(one.similarity, other.similarity, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10**6), d_a=st.integers(1, 5), d_b=st.integers(1, 5))
def test_the_mean_is_the_largest_of_any_matching(seed: int, d_a: int, d_b: int) -> None:
    a, b = codes(12, d_a, seed=seed), codes(12, d_b, seed=seed + 1)
    narrow, wide = (a, b) if d_a <= d_b else (b, a)
    assert match_features(a, b).mean == pytest.approx(np.mean(slow_matches(narrow, wide, "cosine")[1]))


# Known answers


@pytest.mark.parametrize("similarity", ["cosine", "correlation"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_permuted_and_rescaled_copy_is_recognised(similarity: Any, signed: bool) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(200, 30)) if signed else codes(200, 30, share=0.05)
    order, scale = rng.permutation(30), rng.uniform(0.5, 200, 30)
    if signed:
        scale *= rng.choice([-1, 1], 30)  # |cosine|: a flipped feature of CL is the same feature
    found = match_features(a, (a * scale)[:, order], similarity=similarity)
    np.testing.assert_array_equal(order[found.a.partner], np.arange(30))
    np.testing.assert_array_equal(found.b.partner, order)
    np.testing.assert_allclose(found.a.similarity, 1, atol=1e-12)
    assert found.mean == pytest.approx(1) and found.share == 1


def test_a_rotated_copy_is_not() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(2000, 64))
    rotation = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    found = match_features(a, a @ rotation)
    null = shuffled_null(a, a @ rotation)
    assert found.mean < 0.4 and found.share < 0.1
    assert null.mean < 0.1 and null.share == 0


def test_noise_lowers_the_similarity_as_it_should() -> None:
    """x against x + noise of t times its size: cosine 1 / sqrt(1 + t^2)."""
    rng = np.random.default_rng(0)
    a, noise = rng.normal(size=(20_000, 6)), rng.normal(size=(20_000, 6))
    for t in (0.5, 1.0):
        assert match_features(a, a + t * noise).mean == pytest.approx(1 / np.sqrt(1 + t * t), abs=0.01)


def test_correlation_does_not_see_a_common_mean() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2000, 8)) + 10, rng.normal(size=(2000, 8)) + 10
    assert match_features(a, b).mean > 0.95  # all that agrees is the mean, and shuffling says so
    assert shuffled_null(a, b).mean == pytest.approx(match_features(a, b).mean, abs=0.01)
    assert match_features(a, b, similarity="correlation").mean < 0.1


def test_correlation_keeps_its_digits_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=(300, 3))
    found = match_features(a, a[:, ::-1] + 1e5, similarity="correlation")
    np.testing.assert_allclose(found.a.similarity, 1, atol=1e-9)


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense product", "sparse product"])
def test_correlation_of_features_that_hardly_vary_keeps_its_digits(monkeypatch: pytest.MonkeyPatch, share) -> None:
    monkeypatch.setattr(identifiability, "SPARSE", share)
    rng = np.random.default_rng(0)
    a, b = (np.float32(1 + 3e-7 * rng.normal(size=(400, 1))) for _ in range(2))
    found = match_features(a, b, similarity="correlation")
    want = slow_similarity(a.ravel().astype(np.float64), b.ravel().astype(np.float64), "correlation")
    assert found.mean == pytest.approx(want, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-3, 1e200])
def test_scale_does_not_matter(scale: float) -> None:
    a, b = codes(seed=1), codes(seed=2)
    np.testing.assert_allclose(match_features(a, b * scale).a.similarity, match_features(a, b).a.similarity)


# The nulls


def test_the_null_is_that_of_shuffled_rows() -> None:
    a, b = codes(d=4, seed=1), codes(d=5, seed=2)
    rng = np.random.default_rng(7)
    means = [np.mean(slow_matches(a, b[rng.permutation(60)], "cosine")[1]) for _ in range(2)]
    assert shuffled_null(a, b, draws=2, seed=7).mean == pytest.approx(np.mean(means))
    assert shuffled_null(a, b, seed=7) != shuffled_null(a, b, seed=8)


@pytest.mark.parametrize("similarity", ["cosine", "correlation"])
def test_the_null_of_sparse_codes_is_low(similarity: Any) -> None:
    z = codes(4000, 60, share=0.02)
    null = shuffled_null(z, z, similarity=similarity)
    assert 0 < null.mean < 0.15 and null.share == 0
    assert match_features(z, z, similarity=similarity).share == 1


@pytest.mark.parametrize("share", [0.0, 1.1], ids=["dense product", "sparse product"])
@pytest.mark.parametrize("similarity", ["cosine", "correlation"])
def test_the_rotated_null_is_that_of_rotated_features(monkeypatch: pytest.MonkeyPatch, share, similarity: Any) -> None:
    monkeypatch.setattr(identifiability, "SPARSE", share)
    a, b = codes(d=7, seed=1), codes(d=5, seed=2) * np.array([1, 30, 0, 0.2, 1])  # 0: a dead feature is not rotated
    rng = np.random.default_rng(4)
    turned = [b[:, [0, 1, 3, 4]] @ identifiability._orthogonal(4, rng) for _ in range(3)]
    found = [match_features(a, z, similarity=similarity, threshold=0.3) for z in turned]
    null = rotated_null(a, b, similarity=similarity, threshold=0.3, seed=4)
    assert null.mean == pytest.approx(np.mean([m.mean for m in found]))
    assert null.share == pytest.approx(np.mean([m.share for m in found]))


def test_random_rotations_are_orthogonal_and_uniform() -> None:
    rng = np.random.default_rng(0)
    draws = np.array([identifiability._orthogonal(3, rng) for _ in range(4000)])
    np.testing.assert_allclose(draws @ draws.transpose(0, 2, 1), np.broadcast_to(np.eye(3), draws.shape), atol=1e-12)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose((draws**2).mean(axis=0), 1 / 3, atol=0.03)


def test_in_few_dimensions_only_the_rotated_null_gives_dense_features_away() -> None:
    """40 dense features in 4 dimensions match well with any axes; sparse codes match better than their rotations."""
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(2000, 4))
    a, b = factors @ rng.normal(size=(4, 40)), factors @ rng.normal(size=(4, 40))
    matched = match_features(a, b)
    assert matched.mean > 0.8 and shuffled_null(a, b).mean < 0.1
    assert matched.mean == pytest.approx(rotated_null(a, b).mean, abs=0.05)
    z = codes(2000, 40, share=0.05)
    assert match_features(z, z[:, ::-1]).mean == pytest.approx(1) and rotated_null(z, z[:, ::-1]).mean < 0.5


# Dead features


def test_dead_features_are_told_and_not_matched() -> None:
    a, b = codes(d=4, seed=1), codes(d=4, seed=2)
    wider = np.insert(np.insert(a, 1, 0, axis=1), 3, 1e-7, axis=1)  # features 1 and 3 never reach eps
    found, plain = match_features(wider, b), match_features(a, b)
    assert found.a.live.tolist() == [True, False, True, False, True, True]
    assert found.a.partner[[1, 3]].tolist() == [-1, -1] and np.isnan(found.a.similarity[[1, 3]]).all()
    assert found.a.partner[[0, 2, 4, 5]].tolist() == plain.a.partner.tolist()
    assert (found.mean, found.share) == (plain.mean, plain.share)


def test_a_feature_that_never_varies_has_no_correlation() -> None:
    a = codes(d=4, seed=1)
    constant = np.insert(a, 2, 0.1, axis=1)
    found = match_features(constant, a, similarity="correlation")
    assert found.a.live.tolist() == [True, True, False, True, True] and found.mean == pytest.approx(1)
    assert match_features(constant, a).a.live.all()


def test_the_wider_side_has_features_without_partner() -> None:
    a, b = codes(d=3, seed=1), codes(d=5, seed=2)
    found = match_features(a, b)
    assert (found.b.partner == -1).sum() == 2
    assert sorted(found.b.partner[found.b.partner >= 0]) == [0, 1, 2]
    assert (np.isnan(found.b.similarity) == (found.b.partner == -1)).all()


# Several runs


@pytest.mark.parametrize("similarity", ["cosine", "correlation"])
def test_stability_is_the_mean_over_other_runs(similarity: Any) -> None:
    zs = [codes(d=d, seed=s) for s, d in enumerate((3, 5, 4))]
    zs[1][:, 2] = 0  # a dead feature
    found = stability(zs, similarity=similarity, threshold=0.3)
    pairs = list(itertools.combinations(range(3), 2))
    for run in range(3):
        for feature in range(zs[run].shape[1]):
            alive = zs[run][:, feature].any()
            scores = []
            for other in (r for r in range(3) if r != run):
                matched = match_features(zs[run], zs[other], similarity=similarity).a
                scores.append(matched.similarity[feature] if matched.partner[feature] >= 0 else 0)
            assert found.scores[run][feature] == pytest.approx(np.mean(scores) if alive else np.nan, nan_ok=True)
    matched = [match_features(zs[i], zs[j], similarity=similarity, threshold=0.3) for i, j in pairs]
    assert found.means[tuple(zip(*pairs, strict=True))].tolist() == [m.mean for m in matched]
    np.testing.assert_array_equal(found.means, found.means.T)
    assert np.isnan(found.means.diagonal()).all()
    assert found.mean == pytest.approx(np.mean([m.mean for m in matched]))
    assert found.std == pytest.approx(np.std([m.mean for m in matched]))
    assert found.share == pytest.approx(np.mean([m.share for m in matched]))
    assert found.share_std == pytest.approx(np.std([m.share for m in matched]))
    for null, slow in ((found.shuffled, shuffled_null), (found.rotated, rotated_null)):
        nulls = [slow(zs[i], zs[j], similarity=similarity, threshold=0.3) for i, j in pairs]
        assert null.mean == pytest.approx(np.mean([n.mean for n in nulls]))
        assert null.share == pytest.approx(np.mean([n.share for n in nulls]))


def test_stability_tells_the_feature_that_all_runs_share() -> None:
    """One feature is in every run; the others are each run's own."""
    zs = [codes(3000, 12, share=0.05, seed=s) for s in range(3)]
    for place, z in enumerate(zs):
        z[:, place] = zs[0][:, 0] * (1 + place)
    found = stability(zs)
    for place, scores in enumerate(found.scores):
        assert scores[place] == pytest.approx(1)
        assert np.delete(scores, place).max() < 0.3
    assert found.shuffled.mean < found.mean < 0.3


def test_stability_of_two_runs_has_no_deviation() -> None:
    a, b = codes(seed=1), codes(seed=2)
    found = stability([a, b], seed=3)
    assert (found.mean, found.std, found.share_std) == (match_features(a, b).mean, 0, 0)
    assert found.shuffled == shuffled_null(a, b, seed=3)
    assert found.rotated == rotated_null(a, b, seed=3)
    np.testing.assert_array_equal(found.scores[0], match_features(a, b).a.similarity)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z_b": codes(59)}, r"features of \[60, 59\] images"),
        ({"z_a": codes(2)[:1], "z_b": codes(2)[:1]}, "features of 1 images"),
        ({"z_a": np.zeros((60, 4))}, "no feature of run 0"),
        ({"z_b": np.zeros((60, 0))}, "no feature of run 1"),
        ({"z_b": np.full((60, 4), np.nan)}, "NaN"),
        ({"z_b": np.ones((60, 2)), "similarity": "correlation"}, "live and varies"),
        ({"similarity": "cosin"}, "did you mean 'cosine'"),
        ({"threshold": 1.0}, "threshold is 1.0"),
        ({"threshold": float("nan")}, "threshold is nan"),
        ({"eps": 0.0}, "eps is 0.0"),
    ],
)
def test_bad_input_is_one_sentence(change: dict, message: str) -> None:
    asked: dict[str, Any] = {"z_a": codes(), "z_b": codes(seed=1), **change}
    for measure in (match_features, shuffled_null, rotated_null):
        with pytest.raises(BadInput, match=message):
            measure(**asked)
    runs = [asked.pop("z_a"), asked.pop("z_b")]
    with pytest.raises(BadInput, match=message):
        stability(runs, **asked)


def test_a_run_without_features_is_called_by_its_name() -> None:
    with pytest.raises(BadInput, match="no feature of runs/b is live: there is nothing to match"):
        stability([codes(), np.zeros((60, 4))], names=["runs/a", "runs/b"])


def test_bad_runs_and_draws_are_one_sentence() -> None:
    with pytest.raises(BadInput, match="two or more runs"):
        stability([codes()])
    with pytest.raises(BadInput, match="draws is 0"):
        stability([codes(), codes()], draws=0)
    for null in (shuffled_null, rotated_null):
        with pytest.raises(BadInput, match="draws is 0"):
            null(codes(), codes(), draws=0)
