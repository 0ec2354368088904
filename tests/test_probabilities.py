"""Features as probabilities and as clusters, against worlds where the answer is known and loops over samples."""

import itertools
import math

import numpy as np
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from nonneg import measures, metrics, theory
from nonneg.errors import BadInput
from nonneg.features import Features


def by_hand() -> theory.World:
    """Two classes, three samples: the middle one is shared. P(x) = 3/20, 5/20, 12/20, and P(y = 1|x) = 0, 3/5, 1."""
    return theory.World(np.array([0.25, 0.75]), np.array([[0.6, 0.4, 0.0], [0.0, 0.2, 0.8]]), np.array([0, 1]))


def drawn() -> Features:
    """The world by hand as 20 samples with labels, each as often as it is likely."""
    z = by_hand().phi[np.repeat([0, 1, 2], [3, 5, 12])]
    y = np.array([0] * 3 + [0, 0, 1, 1, 1] + [1] * 12)
    return Features(np.zeros((20, 1), np.float32), sparse.csr_array(z), y, [str(i) for i in range(20)])


# Probabilities


def test_a_known_world_is_read_back_from_its_features() -> None:
    world, data = by_hand(), drawn()
    assert data.labels is not None
    prior = metrics.latent_prior(data.z)
    assert prior == pytest.approx(world.prior)
    rows = metrics.latent_posterior(data.z, prior).toarray()
    assert rows[[0, 3, 8]] == pytest.approx(world.posterior)
    head, best = metrics.counted_head(data.z, data.labels, 2), np.diag(np.sqrt(world.prior))
    assert head == pytest.approx((world.phi.T * world.marginal) @ world.phi @ best)
    assert metrics.one_class_head(head) == pytest.approx(best, abs=1e-12)
    assert metrics.least_squares_head(data.z, head) == pytest.approx(best)
    found = measures.probabilities(data, data, scaled=True)
    assert found["latent_total"]["value"] == pytest.approx(1) and found["latent_row_sum"]["value"] == pytest.approx(1)
    assert found["latent_row_off"]["value"] == pytest.approx(0, abs=1e-12)
    assert found["latent_classes"]["value"] == pytest.approx(math.exp(-0.25 * math.log(0.25) - 0.75 * math.log(0.75)))
    assert found["latent_calibration_error"]["value"] == pytest.approx(0, abs=1e-12)
    assert found["latent_calibration_error"]["accuracy"] == pytest.approx(0.15 + 0.25 * 0.6 + 0.6)
    assert not any("heuristic" in e["definition"] for e in found.values())


def test_the_label_probability_is_the_sum_that_its_definition_says() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.exponential(size=(80, 6)) * (rng.random((80, 6)) < 0.6), rng.integers(0, 3, 80)
    data = Features(z, sparse.csr_array(z), y, [])
    owner = [max(range(3), key=lambda label, c=c: z[y == label, c].sum()) for c in range(6)]
    posterior = z * z.mean(axis=0)
    label = np.stack([posterior[:, [c for c in range(6) if owner[c] == of]].sum(axis=1) for of in range(3)], axis=1)
    label = np.where(label.any(axis=1, keepdims=True), label, 1)
    found = measures.probabilities(data, data, scaled=True)["latent_calibration_error"]
    assert found["confidence"] == pytest.approx((label.max(axis=1) / label.sum(axis=1)).mean())
    assert "over the features whose most frequent label on training samples" in found["definition"]


@pytest.mark.parametrize("seed", range(3))
def test_a_random_world_is_read_back_from_a_sample(seed: int) -> None:
    world, rng = theory.random_world(seed=seed, labels=3), np.random.default_rng(seed)
    x, y = world.labelled(100_000, rng)
    z = world.phi[x]
    assert metrics.latent_prior(z) == pytest.approx(world.prior, abs=0.01)
    head = metrics.counted_head(z, y, 3)
    for closed in (metrics.one_class_head(head), metrics.least_squares_head(z, head)):
        assert np.abs(z @ closed - world.label_posterior[x]).max() < 0.05
        assert metrics.calibration(z @ closed, y).error < 0.02
    assert np.abs(z @ head - world.label_posterior[x]).max() > 0.1  # classes overlap, so counting alone blurs them


def test_without_overlap_counting_is_enough() -> None:
    world = theory.one_hot(classes=6, labels=3)
    x, y = world.labelled(50_000, np.random.default_rng(0))
    z = world.phi[x]
    assert np.abs(z @ metrics.counted_head(z, y, 3) - world.label_posterior[x]).max() < 0.05


def test_the_sums_notice_a_wrong_scale_and_the_heuristic_does_not_need_one() -> None:
    data = drawn()
    double = Features(data.h, data.z * 2.0, data.labels, data.ids)
    assert measures.probabilities(double, double, scaled=True)["latent_total"]["value"] == pytest.approx(4)
    found = measures.probabilities(double, double, scaled=False)
    assert found["latent_total"]["value"] == pytest.approx(1) and "heuristic" in found["latent_total"]["definition"]
    uneven = Features(data.h, sparse.csr_array(data.z.toarray() * np.arange(1, 21)[:, None]), data.labels, data.ids)
    again = measures.probabilities(uneven, uneven, scaled=False)
    assert again["latent_row_sum"]["value"] == pytest.approx(found["latent_row_sum"]["value"])
    assert metrics.on_scale(data.z, data.z).toarray() == pytest.approx(metrics.on_scale(uneven.z, uneven.z).toarray())


def test_calibration_against_a_loop() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet([1, 1, 1], size=200)
    p[0] = [1.5, 0, 0]  # more than certain
    y = rng.integers(0, 3, 200)
    found = metrics.calibration(p, y, bins=5)
    error = 0.0
    for b in range(5):
        members = [i for i in range(200) if min(int(max(p[i]) * 5), 4) == b]
        if not members:
            assert math.isnan(found.accuracy[b]) and found.share[b] == 0
            continue
        sure = sum(max(p[i]) for i in members) / len(members)
        right = sum(int(np.argmax(p[i])) == y[i] for i in members) / len(members)
        assert (found.confidence[b], found.accuracy[b]) == (pytest.approx(sure), pytest.approx(right))
        error += len(members) / 200 * abs(sure - right)
    assert found.error == pytest.approx(error) and found.share.sum() == pytest.approx(1)


def test_the_counted_head_against_a_loop_and_least_squares_against_numpy() -> None:
    rng = np.random.default_rng(0)
    z, y = rng.normal(size=(50, 4)), rng.integers(0, 3, 50)  # of any sign
    z[:, 2], z[:, 3] = 0, 1e-3 * z[:, 3]  # a dead feature, and one that is hardly used
    head = metrics.counted_head(sparse.csr_array(z), y, 3)
    for j, c in itertools.product(range(4), range(3)):
        assert head[j, c] == pytest.approx(sum(z[i, j] for i in range(50) if y[i] == c) / 50)
    least = metrics.least_squares_head(z, head)
    assert least == pytest.approx(np.linalg.lstsq(z, np.eye(3)[y], rcond=None)[0], rel=1e-6, abs=1e-9)
    scores = np.array([[0.0, 0.3, 0.1], [0.2, 0.0, 0.0]])
    assert metrics.one_class_head(scores) == pytest.approx(np.array([[0, 0.4, 0], [0.2, 0, 0]]))


def test_what_is_no_probability_gets_one_sentence() -> None:
    signed, none = np.array([[1.0, -1.0]]), np.zeros((0, 2))
    for call in (lambda: metrics.latent_prior(signed), lambda: metrics.on_scale(signed, signed)):
        with pytest.raises(BadInput, match="some features are negative"):
            call()
    with pytest.raises(BadInput, match="no samples"):
        metrics.latent_prior(none)
    with pytest.raises(BadInput, match="every training feature is zero"):
        metrics.on_scale(np.ones((2, 2)), np.zeros((2, 2)))
    with pytest.raises(BadInput, match="one label per sample"):
        metrics.counted_head(np.ones((2, 2)), np.array([0]), 2)
    with pytest.raises(BadInput, match="with 2 classes give 0 to 1"):
        metrics.counted_head(np.ones((2, 2)), np.array([0, 2]), 2)
    with pytest.raises(BadInput, match="1 bin or more"):
        metrics.calibration(np.ones((2, 2)), np.array([0, 1]), bins=0)


def test_dead_features_have_probability_zero_and_images_without_features_no_opinion() -> None:
    data = drawn()
    dead = np.pad(data.z.toarray(), ((0, 0), (0, 1)))
    dead[0] = 0
    some = Features(data.h, sparse.csr_array(dead), data.labels, data.ids)
    found = measures.probabilities(some, some, scaled=True)
    assert found["latent_total"]["each"][2] == 0
    assert all(math.isfinite(e["value"]) for e in found.values())
    nothing = Features(data.h, sparse.csr_array((20, 2)), data.labels, data.ids)
    found = measures.probabilities(nothing, nothing, scaled=True)
    assert found["latent_total"]["value"] == 0 and found["latent_classes"]["value"] is None
    unlabelled = Features(data.h, data.z, None, data.ids)
    for train, test, without in ((unlabelled, unlabelled, "training"), (data, unlabelled, "test")):
        none = measures.probabilities(train, test, scaled=True)["latent_calibration_error"]
        assert none["value"] is None and none["why"] == f"the {without} data have no labels"


# Clusters


def test_agreement_against_a_search_over_all_matchings() -> None:
    rng = np.random.default_rng(0)
    for kinds, classes in ((3, 3), (2, 4), (5, 3)):
        found, labels = rng.integers(0, kinds, 60) * 7 - 1, rng.integers(0, classes, 60)
        names, wide = sorted(set(found)), max(kinds, classes)
        best = max(
            sum(pick[names.index(f)] == y for f, y in zip(found, labels, strict=True))
            for pick in itertools.permutations(range(wide), len(names))
        )
        agrees = metrics.agreement(found, labels)
        assert agrees.accuracy == pytest.approx(best / 60) and agrees.clusters == len(names)
        pure = sum(max(sum((found == n) & (labels == c)) for c in range(classes)) for n in names)
        assert agrees.purity == pytest.approx(pure / 60)
        joint = {(n, c): np.mean((found == n) & (labels == c)) for n in names for c in range(classes)}
        p, q = {n: np.mean(found == n) for n in names}, {c: np.mean(labels == c) for c in range(classes)}
        shared = sum(v * math.log(v / p[n] / q[c]) for (n, c), v in joint.items() if v)
        both = sum(-v * math.log(v) for share in (p, q) for v in share.values() if v)
        assert agrees.nmi == pytest.approx(2 * shared / both)


def blobs(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Three groups of directions, of all lengths."""
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    z = np.maximum(rng.normal(0.05, 0.05, (n, 6)), 0) + np.repeat(np.eye(3), 2, axis=1)[y] * rng.uniform(0.5, 1, (n, 6))
    return z * rng.uniform(0.1, 10, (n, 1)), y


def test_samples_that_are_all_alike_are_not_clustered_by_their_order() -> None:
    y = np.repeat(np.arange(3), 30)
    for z in (np.zeros((90, 4)), np.ones((90, 4))):
        assert metrics.agreement(metrics.spectral_clustering(z, 3), y).nmi < 0.1


def test_both_clusterings_find_groups_that_are_there() -> None:
    z, y = blobs()
    for cluster in (metrics.k_means, metrics.spectral_clustering):
        assert adjusted_rand_score(y, cluster(sparse.csr_array(z), 3)) == 1
    found = measures.clusters(Features(z, sparse.csr_array(z), y, []))
    assert found["kmeans_accuracy"]["value"] == found["spectral_nmi"]["value"] == found["argmax_purity"]["value"] == 1
    assert found["argmax_nmi"]["clusters"] == found["kmeans_many_purity"]["clusters"] == 6
    assert found["argmax_accuracy"]["value"] < 0.8  # six clusters cannot all be matched to three classes
    assert measures.clusters(Features(z, sparse.csr_array(z), y, []), most=30)["argmax_nmi"]["samples"] == 30


def test_the_largest_feature_of_ties_zeros_and_negatives() -> None:
    z = np.array([[0, 2, 2], [0, 0, 0], [-3, -1, 0], [-1, -2, -3]])
    assert metrics.by_largest(z).tolist() == [1, -1, 2, 0]


def test_degenerate_clusters_are_defined_or_refused() -> None:
    y = np.array([0, 0, 1, 1])
    same = Features(np.ones((4, 1)), sparse.csr_array(np.ones((4, 2))), y, [])
    found = measures.clusters(same)  # too few samples for a cluster a class, and one different row
    assert found["argmax_nmi"]["value"] == 0 and found["kmeans_many_purity"]["value"] == 0.5
    for name in ("kmeans_nmi", "kmeans_purity", "kmeans_accuracy", "spectral_nmi"):
        assert found[name]["value"] is None and found[name]["clusters"] == 2
        assert found[name]["why"] == "2 classes of 4 test samples leave a cluster too few"
    assert all(("why" in e) == (e["value"] is None) for e in found.values())
    with pytest.raises(BadInput, match="a single class"):
        measures.clusters(Features(same.h, same.z, np.zeros(4, int), []))
    with pytest.raises(BadInput, match="5 clusters of 4 samples"):
        metrics.k_means(same.z, 5)
    with pytest.raises(BadInput, match="one label per sample"):
        metrics.agreement(y, y[:2])
    apart = np.kron(np.eye(2), np.ones((20, 2)))  # a graph in two parts
    assert adjusted_rand_score(np.repeat([0, 1], 20), metrics.spectral_clustering(apart, 2)) == 1
    for shape in ((1000, 2), (150, 64)):  # rows all alike, on which the usual solver gives up
        assert len(metrics.spectral_clustering(np.zeros(shape), 10)) == shape[0]  # without a warning
