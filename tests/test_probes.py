"""Probes against scikit-learn and brute force. N images, D features, C classes."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from nonneg import probes
from nonneg.errors import BadInput
from nonneg.probes import L2, ProbeResult, default_k, knn, linear_probe, logistic

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These problems are small: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def blobs(*, n: int = 300, d: int = 8, classes: int = 4, spread: float = 1.0, seed: int = 0) -> Split:
    """Overlapping Gaussian classes: two thirds to train on, one third to test."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    x = (rng.normal(size=(classes, d))[y] + spread * rng.normal(size=(n, d))).astype(np.float32)
    cut = 2 * n // 3
    return x[:cut], y[:cut], x[cut:], y[cut:]


def digits() -> Split:
    x, y = load_digits(return_X_y=True)
    return x[:1347].astype(np.float32), y[:1347], x[1347:].astype(np.float32), y[1347:]


# Theorems


def test_separated_classes_are_told_apart():
    data = blobs(spread=0.01)
    found = linear_probe(*data)
    assert (found.accuracy, found.validation_accuracy, found.converged) == (1.0, 1.0, True)
    assert knn(*data) == 1


def test_the_gradient_vanishes_at_the_solution():
    x, y = (torch.from_numpy(a) for a in blobs()[:2])
    x = x.double()
    model = logistic(x, y, classes=4, l2=1e-2, tolerance=1e-9)
    weight, bias = model.weight.requires_grad_(), model.bias.requires_grad_()
    loss = F.cross_entropy(x @ weight + bias, y) + 1e-2 / 2 * weight.square().sum()
    loss.backward()
    assert model.converged
    for parameter in (weight, bias):
        assert parameter.grad is not None
        assert parameter.grad.abs().max() < 1e-8


def test_scale_and_offset_of_features_do_not_matter_to_the_linear_probe():
    train_x, train_y, test_x, test_y = blobs()
    scale, offset = 2.0 ** np.arange(-4, 4, dtype=np.float32), np.arange(8, dtype=np.float32)
    moved = linear_probe(train_x * scale + offset, train_y, test_x * scale + offset, test_y)
    assert moved == linear_probe(train_x, train_y, test_x, test_y)


def test_length_of_rows_does_not_matter_to_knn():
    train_x, train_y, test_x, test_y = blobs()
    length = (2.0 ** np.random.default_rng(0).integers(-60, 60, size=(len(train_x), 1))).astype(np.float32)
    assert knn(train_x * length, train_y, test_x, test_y, k=7) == knn(train_x, train_y, test_x, test_y, k=7)


def test_test_labels_choose_nothing():
    train_x, train_y, test_x, test_y = blobs()
    result, flipped = (linear_probe(train_x, train_y, test_x, y) for y in (test_y, (test_y + 1) % 4))
    assert (result.l2, result.validation_accuracy) == (flipped.l2, flipped.validation_accuracy)
    assert flipped.accuracy < result.accuracy


# References


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_logistic_matches_scikit_learn(l2: float):
    x, y = blobs()[:2]
    reference = LogisticRegression(C=1 / (l2 * len(x)), tol=1e-10, max_iter=10_000).fit(x.astype(np.float64), y)
    model = logistic(torch.from_numpy(x).double(), torch.from_numpy(y), classes=4, l2=l2, tolerance=1e-8)
    assert model.converged
    np.testing.assert_allclose(model.weight.T, reference.coef_, atol=5e-5)
    bias = model.bias.numpy()  # the same constant on every class changes nothing
    np.testing.assert_allclose(bias - bias.mean(), reference.intercept_ - reference.intercept_.mean(), atol=5e-5)


def test_a_warm_start_changes_the_path_and_not_the_solution():
    x, y = (torch.from_numpy(a) for a in blobs()[:2])
    cold = logistic(x.double(), y, classes=4, l2=1e-3, tolerance=1e-8)
    strong = logistic(x.double(), y, classes=4, l2=1.0, tolerance=1e-8)
    warm = logistic(x.double(), y, classes=4, l2=1e-3, tolerance=1e-8, start=strong)
    torch.testing.assert_close(warm.weight, cold.weight, atol=1e-5, rtol=0)


def test_linear_probe_matches_scikit_learn_on_digits():
    train_x, train_y, test_x, test_y = digits()
    result = linear_probe(train_x, train_y, test_x, test_y)
    assert result.converged
    assert result.l2 in L2
    regression = LogisticRegression(C=1 / (result.l2 * len(train_x)), tol=1e-6, max_iter=10_000)
    reference = make_pipeline(StandardScaler(), regression).fit(train_x, train_y)
    # With the weakest l2, which one CPU's rounding chooses and another's does not, the minimum is flat: its loss is
    # found, and the last steps there would move a few test images.
    x = reference[0].transform(train_x)  # standardised
    weight = result.model.weight.numpy() * reference[0].scale_[:, None]
    bias = result.model.bias.numpy() + reference[0].mean_ @ result.model.weight.numpy()

    def objective(weight: np.ndarray, bias: np.ndarray) -> float:
        logits = torch.from_numpy(x @ weight + bias)
        return F.cross_entropy(logits, torch.from_numpy(train_y)).item() + result.l2 / 2 * (weight**2).sum()

    least = objective(reference[-1].coef_.T, reference[-1].intercept_)
    assert least - 1e-5 < objective(weight, bias) < least + 3e-4
    assert result.accuracy == pytest.approx(reference.score(test_x, test_y), abs=0.01)
    assert result.validation_accuracy > 0.95


def test_the_penalty_is_the_one_by_which_the_held_out_samples_are_likeliest():
    rng = np.random.default_rng(0)
    noise, y = rng.normal(size=(100, 20)), rng.integers(0, 2, 100)
    assert probes.linear_probe(noise, y, noise, y).l2 == max(L2)
    told = noise + 20 * y[:, None]
    assert probes.linear_probe(told, y, told, y).l2 < 0.01


def test_the_fitted_probe_takes_features_as_they_are():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 6)) * [1, 10, 0.1, 1, 1, 0] + 3  # scaled, shifted, and one constant
    y = np.array([2, 5, 9])[(x[:, 0] > 3).astype(int) + (x[:, 1] > 3)]
    found = probes.linear_probe(x[:200], y[:200], x[200:], y[200:])
    logits = x[200:] @ found.model.weight.numpy() + found.model.bias.numpy()
    assert (found.classes[logits.argmax(1)] == y[200:]).mean() == pytest.approx(found.accuracy)
    assert found.classes.tolist() == [2, 5, 9] and found.accuracy > 0.6


def test_knn_matches_a_double_loop():
    train_x, train_y, test_x, test_y = blobs()
    right = 0
    for query, truth in zip(test_x.astype(np.float64), test_y, strict=True):
        cosine = [query @ x / np.linalg.norm(query) / np.linalg.norm(x) for x in train_x.astype(np.float64)]
        votes = [0.0] * 4
        for i in sorted(range(len(train_x)), key=lambda i: -cosine[i])[:15]:
            votes[train_y[i]] += np.exp(cosine[i] / 0.1)
        right += max(range(4), key=lambda c: votes[c]) == truth
    assert knn(train_x, train_y, test_x, test_y, k=15) == right / len(test_x)
    assert knn(train_x, train_y, test_x, test_y, k=15, temperature=None) != right / len(test_x)


@pytest.mark.parametrize("k", [1, 6, 25])
def test_knn_without_temperature_matches_scikit_learn(k: int):
    train_x, train_y, test_x, test_y = blobs(spread=2.0)
    reference = KNeighborsClassifier(k, metric="cosine", algorithm="brute").fit(train_x, train_y)
    assert knn(train_x, train_y, test_x, test_y, k=k, temperature=None) == reference.score(test_x, test_y)


def test_equal_neighbours_share_the_places_that_are_left_and_of_equal_votes_the_smallest_class_wins():
    train_x, test_x = np.ones((40, 3)), np.ones((1, 3))
    train_y = np.array([2] * 3 + [1] * 20 + [0] * 17)
    for k in (1, 5, 39, 40):  # all are equally near, so the largest class wins, wherever it stands
        for order in (slice(None), slice(None, None, -1)):
            assert knn(train_x, train_y[order], test_x, np.array([1]), k=k) == 1
    even = np.array([2] * 20 + [1] * 20)
    assert knn(train_x, even, test_x, np.array([1]), k=7) == 1
    # one neighbour is nearer; the ten others share one place, eight of them 0.8 of it, which is less than the one
    around, y = np.array([[1.0, 0.0]] + [[1.0, 1.0]] * 10), np.array([1] + [0] * 8 + [2] * 2)
    assert knn(around, y, np.array([[1.0, 0.0]]), np.array([1]), k=2, temperature=None) == 1


@pytest.mark.parametrize("temperature", [None, 0.1])
def test_neighbours_tied_at_the_last_place_are_heard_in_part(temperature: float | None):
    """Whole numbers, so that many are tied; against votes counted one by one."""
    rng = np.random.default_rng(3)
    train_x, test_x = (rng.integers(0, 3, (n, 2)).astype(np.float32) for n in (60, 30))
    train_y, k = rng.integers(0, 3, 60), 9
    right = []
    for query in test_x.astype(np.float64):
        norms = np.linalg.norm(query) * np.linalg.norm(train_x.astype(np.float64), axis=1)
        cosine = np.divide(train_x @ query, norms, out=np.zeros(60), where=norms > 0).round(6)
        bar = np.sort(cosine)[-k]
        share = (k - (cosine > bar).sum()) / (cosine == bar).sum()
        votes = np.zeros(3)
        for c, y in zip(cosine, train_y, strict=True):
            votes[y] += ((c > bar) + (c == bar) * share) * (1 if temperature is None else np.exp(c / temperature))
        right.append(int(votes.argmax()) if np.diff(np.sort(votes))[-1] > 1e-6 else -1)
    answers = np.array(right)
    clear = answers >= 0  # of equal votes rounding decides
    assert clear.sum() > 15
    answers = answers[clear]
    assert knn(train_x, train_y, test_x[clear], answers, k=k, temperature=temperature) == 1
    turned = train_x[::-1].copy(), train_y[::-1].copy(), test_x[clear], answers
    assert knn(*turned, k=k, temperature=temperature) == 1


# Edges


def test_sparse_and_dense_features_give_the_same():
    train_x, train_y, test_x, test_y = blobs()
    train_x, test_x = train_x.clip(0), test_x.clip(0)
    thin = sparse.csr_array(train_x), train_y, sparse.csr_array(test_x), test_y
    assert linear_probe(*thin) == linear_probe(train_x, train_y, test_x, test_y)
    assert knn(*thin) == knn(train_x, train_y, test_x, test_y)


def test_neighbours_are_found_in_chunks(monkeypatch: pytest.MonkeyPatch):
    data = blobs(n=600)
    whole = knn(*data, k=9)
    monkeypatch.setattr(probes, "CHUNK", 3000)  # 400 training samples: seven test samples at a time
    assert knn(*data, k=9) == whole


def test_default_k_grows_with_the_training_set():
    assert [default_k(n) for n in (1, 2, 1347, 50_000)] == [1, 1, 37, 200]
    data = blobs()
    assert knn(*data) == knn(*data, k=14)
    assert knn(*data, k=10**6) == knn(*data, k=200)  # all there are


def test_small_temperatures_do_not_overflow():
    data = blobs()
    assert knn(*data, k=5, temperature=1e-6) == knn(*data, k=1)  # only the nearest is heard


def test_rows_of_zeros_are_no_nearer_to_anything():
    train_x, train_y = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([0, 1])
    assert knn(train_x, train_y, np.zeros((1, 2)), np.array([0])) == 1  # equal votes: the smallest class


def test_constant_features_are_ignored():
    train_x, train_y, test_x, test_y = blobs()
    constant = np.full((len(train_x), 1), 0.1, dtype=np.float32)
    constant[::2] = np.nextafter(constant[::2], np.float32(1))  # up to rounding
    changed = np.full((len(test_x), 1), 1e6, dtype=np.float32)  # was never seen to vary, so it must not matter
    wider = linear_probe(np.hstack([train_x, constant]), train_y, np.hstack([test_x, changed]), test_y)
    assert wider == linear_probe(train_x, train_y, test_x, test_y)


def test_a_class_never_trained_on_is_never_right():
    train_x, train_y, test_x, test_y = blobs(spread=0.01)
    assert linear_probe(train_x, train_y, test_x, test_y + 10).accuracy == 0
    assert knn(train_x, train_y, test_x, test_y + 10) == 0


def test_labels_may_skip_numbers():
    train_x, train_y, test_x, test_y = blobs()
    wide = linear_probe(train_x, 50 * train_y + 3, test_x, 50 * test_y + 3)
    assert wide == linear_probe(train_x, train_y, test_x, test_y)


def test_a_class_with_one_sample_is_kept_to_fit_on():
    train_x, train_y, test_x, test_y = blobs(spread=0.01)
    rare = linear_probe(np.vstack([train_x, 9 * np.ones((1, 8))]), np.append(train_y, 7), test_x, test_y)
    assert rare.validation_accuracy == 1


def test_too_few_steps_are_reported():
    x, y = (torch.from_numpy(a) for a in blobs()[:2])
    assert not logistic(x, y, classes=4, l2=1e-4, max_steps=2).converged


def test_the_probe_is_a_function_of_its_seed_and_leaves_the_thread_count():
    torch.set_num_threads(2)
    data, state = blobs(spread=2.0), torch.get_rng_state()
    assert linear_probe(*data, seed=3) == linear_probe(*data, seed=3)
    assert len({linear_probe(*data, seed=s).validation_accuracy for s in range(5)}) > 1
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.get_rng_state(), state)


def test_probe_result_is_made_of_plain_values():
    result = linear_probe(*blobs())
    assert isinstance(result, ProbeResult)
    kinds = (type(result.accuracy), type(result.l2), type(result.validation_accuracy), type(result.converged))
    assert kinds == (float, float, float, bool)


def without_labels(data: Split) -> tuple:
    return data[0], None, *data[2:]


@pytest.mark.parametrize("probe", [linear_probe, knn])
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (without_labels, "training data have no labels"),
        (lambda d: (d[0], d[1], d[2], None), "test data have no labels"),
        (lambda d: (d[0], 0 * d[1], d[2], d[3]), "two classes"),
        (lambda d: (d[0], d[1] - 1, d[2], d[3]), "whole numbers from 0"),
        (lambda d: (d[0], d[1] / 2, d[2], d[3]), "whole numbers from 0"),
        (lambda d: (d[0], d[1][:-1], d[2], d[3]), "one label per sample"),
        (lambda d: (np.where(d[0] > 2, np.nan, d[0]), *d[1:]), "training features hold NaN"),
        (lambda d: (d[0], d[1], np.full_like(d[2], np.inf), d[3]), "test features hold NaN"),
        (lambda d: (d[0], d[1], d[2][:, :3], d[3]), "use one model"),
        (lambda d: (d[0], d[1], d[2][:0], d[3][:0]), "one row per sample"),
        (lambda d: (d[0][0], *d[1:]), "one row per sample"),
    ],
)
def test_what_cannot_be_probed_is_refused_in_one_sentence(probe, spoil, says: str):
    with pytest.raises(BadInput, match=says):
        probe(*spoil(blobs()))


def test_knobs_are_checked():
    with pytest.raises(BadInput, match="temperature"):
        knn(*blobs(), temperature=0)
    with pytest.raises(BadInput, match="k of 1 or more"):
        knn(*blobs(), k=0)
    with pytest.raises(BadInput, match="two training samples"):
        linear_probe(np.eye(3), np.arange(3), np.eye(3), np.arange(3))
