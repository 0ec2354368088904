"""Recall, balance and words against loops over queries, features and texts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from nonneg import metrics
from nonneg.errors import BadInput


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    if not a.any() or not b.any():
        return 0.0
    return round(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)), 6)


def slow_recall(images: np.ndarray, texts: np.ndarray, pairs: np.ndarray, k: int) -> tuple[float, float]:
    """For each query all candidates sorted by falling cosine, of equals the wrong ones first; is a right one in k?"""
    mine = {(int(i), int(t)) for i, t in pairs}

    def found(query: np.ndarray, candidates: list[tuple[np.ndarray, bool]]) -> bool:
        order = sorted(candidates, key=lambda c: (-cosine(query, c[0]), c[1]))
        return any(right for _, right in order[:k])

    a, b = images.astype(float), texts.astype(float)
    forth = [found(x, [(y, (i, t) in mine) for t, y in enumerate(b)]) for i, x in enumerate(a)]
    back = [found(y, [(x, (i, t) in mine) for i, x in enumerate(a)]) for t, y in enumerate(b)]
    return float(np.mean(forth)), float(np.mean(back))


def example(seed: int, n: int = 9, d: int = 5) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sparse whole numbers (many equal cosines), one to three texts an image, some texts said of several images."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 3, (n, d)) * (rng.random((n, d)) < 0.5)
    owner = np.repeat(np.arange(n), rng.integers(1, 4, n))
    _, text = np.unique(rng.integers(0, 2 * n, len(owner)), return_inverse=True)
    texts = rng.integers(0, 3, (text.max() + 1, d)) * (rng.random((text.max() + 1, d)) < 0.5)
    return images.astype(np.float32), texts.astype(np.float32), np.stack([owner, text], 1)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), dense=st.booleans())
def test_recall_is_what_sorting_finds(seed: int, k: int, dense: bool) -> None:
    images, texts, pairs = example(seed)
    give = np.asarray if dense else sparse.csr_array
    got = metrics.recall(give(images), give(texts), pairs, ks=(k,))
    forth, back = slow_recall(images, texts, pairs, k)
    assert got["image_to_text"]["recall"][k] == pytest.approx(forth)
    assert got["text_to_image"]["recall"][k] == pytest.approx(back)


def test_recall_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    images, texts, pairs = example(1)
    whole = metrics.recall(images, texts, pairs)
    monkeypatch.setattr("nonneg.metrics.cross_modal.CHUNK", 2 * len(texts))
    assert metrics.recall(images, texts, pairs) == whole


def test_recall_by_hand() -> None:
    """Text 0 is said of images 0 and 1, text 1 of image 0, text 2 of image 2."""
    images = np.eye(3)
    texts = np.array([[0.6, 0.8, 0], [0, 0, 1.0], [0, 0.9, 0.1]])
    got = metrics.recall(images, texts, np.array([[0, 0], [0, 1], [1, 0], [2, 2], [2, 2]]), ks=(1, 2))
    # images: 0 -> text 0, right; 1 -> text 2 is nearest, wrong, then 0; 2 -> text 1, wrong, then 2
    assert got["image_to_text"]["recall"] == {1: pytest.approx(1 / 3), 2: 1.0}
    # texts: 0 -> image 1, right; 1 -> image 2, wrong, then 0 and 1 with cosine 0, of which 1 is wrong and goes first;
    # 2 -> image 1, wrong, then image 2
    assert got["text_to_image"]["recall"] == {1: pytest.approx(1 / 3), 2: pytest.approx(2 / 3)}
    assert got["text_to_image"]["median_rank"] == 2 and got["image_to_text"]["candidates"] == 3


def one_to_one(n: int) -> np.ndarray:
    return np.stack([np.arange(n), np.arange(n)], 1)


def test_features_that_are_all_alike_find_nothing() -> None:
    got = metrics.recall(np.ones((6, 3)), np.ones((6, 3)), one_to_one(6), ks=(1, 5))
    assert got["image_to_text"]["recall"] == {1: 0.0, 5: 0.0} == got["text_to_image"]["recall"]


def test_perfect_features_find_all_and_length_does_not_matter() -> None:
    z = np.eye(5) * np.array([1e-30, 1, 2, 1e10, 3])[:, None]
    got = metrics.recall(z, np.eye(5), one_to_one(5), ks=(1,))
    assert got["image_to_text"]["recall"][1] == 1 == got["text_to_image"]["recall"][1]
    assert got["image_to_text"]["median_rank"] == 1


@pytest.mark.parametrize("k", [1, 3, 8, 20])
def test_chance_is_what_random_orders_give(k: int) -> None:
    _, texts, pairs = example(3)
    rng = np.random.default_rng(0)
    got = metrics.recall(np.zeros((9, 5)), texts, pairs, ks=(k,))["image_to_text"]["chance"][k]
    hits = []
    for _ in range(4000):
        drawn = rng.permutation(len(texts))[:k]
        hits.append(bool(set(drawn.tolist()) & set(pairs[pairs[:, 0] == rng.integers(9), 1].tolist())))
    assert got == pytest.approx(float(np.mean(hits)), abs=0.03)


def test_where_every_answer_is_right_chance_is_one() -> None:
    got = metrics.recall(np.zeros((1, 5)), np.eye(4, 5), np.array([[0, t] for t in range(4)]), ks=(1, 9))
    assert got["image_to_text"]["chance"] == {1: 1.0, 9: 1.0} == got["image_to_text"]["recall"]


def test_recall_refuses_what_does_not_fit() -> None:
    images, texts, pairs = example(0)
    for change, message in (
        ({"texts": texts[:, :3]}, "share one space"),
        ({"pairs": pairs[:, 0]}, "rows of an image's and a text's number"),
        ({"pairs": pairs + 0.5}, "rows of an image's and a text's number"),
        ({"pairs": pairs + 1}, "9 images: each must be in a pair"),
        ({"pairs": pairs * np.array([1, 0])}, "texts: each must be in a pair"),
        ({"pairs": pairs[:0]}, "each must be in a pair"),
        ({"ks": (0,)}, "1 or more"),
        ({"ks": ()}, "1 or more"),
    ):
        given = {"images": images, "texts": texts, "pairs": pairs, **change}
        with pytest.raises(BadInput, match=message):
            metrics.recall(**given)


# Modality balance


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), signed=st.booleans())
def test_balance_is_the_ratio_of_means(seed: int, signed: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-2 if signed else 0, 3, (n, 4)).astype(float) for n in (5, 8))
    a[:, 2] = b[:, 2] = 0
    a[1] = 0
    got = metrics.modality_balance(sparse.csr_array(a), b)
    for d in range(4):
        means = []
        for z in (a, b):
            total = 0.0
            for row in z:
                total += abs(row[d]) / math.sqrt(row @ row) if row.any() else 0.0
            means.append(total / len(z))
        if sum(means) == 0:
            assert math.isnan(got[d])
        else:
            assert got[d] == pytest.approx(means[0] / sum(means))


def test_balance_of_features_of_one_kind() -> None:
    images, captions = np.array([[1.0, 0, 1, 0]]), np.array([[0, 1.0, 1, 0]])
    np.testing.assert_allclose(metrics.modality_balance(images, captions), [1, 0, 0.5, np.nan])
    with pytest.raises(BadInput, match="share one space"):
        metrics.modality_balance(images, captions[:, :2])


# Agreement


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), signed=st.booleans())
def test_agreement_is_the_cosine_over_pairs(seed: int, signed: bool) -> None:
    images, texts, pairs = example(seed)
    if signed:
        images, texts = images - 1, texts - 1
    images[:, 3] = 0
    got, chance = metrics.pair_agreement(sparse.csr_array(images), texts, np.concatenate([pairs, pairs[:2]]))
    unit = [z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-30) for z in (images, texts)]
    each = sorted({(int(i), int(t)) for i, t in pairs})
    for d in range(images.shape[1]):
        a, b = ([float(z[p[side], d]) for p in each] for side, z in enumerate(unit))
        norm = math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
        if norm == 0:
            assert math.isnan(got[d]) and math.isnan(chance[d])
            continue
        assert got[d] == pytest.approx(sum(x * y for x, y in zip(a, b, strict=True)) / norm, abs=1e-6)
        every = [x * y for x in a for y in b]  # each with each: the mean over all pairings
        assert chance[d] == pytest.approx(len(a) * sum(every) / len(every) / norm, abs=1e-6)


def test_agreement_is_one_where_both_are_the_same() -> None:
    z = np.random.default_rng(0).random((6, 3))
    got, chance = metrics.pair_agreement(z, 2 * z, one_to_one(6))
    np.testing.assert_allclose(got, 1)
    assert (chance < 1).all()


# Words


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), least=st.integers(1, 4))
def test_a_words_score_is_the_damped_mean_over_the_texts_that_hold_it(seed: int, least: int) -> None:
    rng = np.random.default_rng(seed)
    texts = [["abcdef"[i] for i in rng.integers(0, 6, rng.integers(1, 5))] for _ in range(9)]
    z = rng.integers(0, 3, (9, 4)).astype(float)
    zeros = float(rng.integers(0, 4))
    got = metrics.word_scores(sparse.csr_array(z), texts, least=least, zeros=zeros)
    counts = {w: sum(w in text for text in texts) for w in "abcdef"}
    assert got.words == [w for w in "abcdef" if counts[w] >= least]
    for w, n, scores in zip(got.words, got.counts, got.scores, strict=True):
        assert n == counts[w]
        for d in range(4):
            held = [z[t, d] / math.sqrt(z[t] @ z[t]) if z[t].any() else 0.0 for t in range(9) if w in texts[t]]
            assert scores[d] == pytest.approx(sum(held) / (len(held) + zeros))


def test_a_word_may_count_by_the_images_that_it_was_given_to() -> None:
    z, texts = np.eye(3), [["red"], ["green"], ["blue"]]
    assert metrics.word_scores(z, texts, least=3).words == []
    got = metrics.word_scores(z, texts, least=3, times=[3, 2, 5])
    assert got.words == ["blue", "red"] and got.counts.tolist() == [1, 1]
    assert got.top(0, 3) == [("red", 0.25)] and got.top(1, 3) == []


def test_a_word_of_many_texts_comes_before_a_word_of_one() -> None:
    z = sparse.csr_array([[1.0, 0.0]] * 7 + [[0.8, 0.6]])  # seven smiles, one of them crying, and something else
    texts = [["smile"]] * 6 + [["smile", "tears"], ["other"]]
    got = metrics.word_scores(z, texts, least=1)
    assert [word for word, _ in got.top(0, 3)] == ["smile", "tears", "other"]
    assert dict(got.top(0, 3))["smile"] == pytest.approx(7 / 10)
    assert dict(metrics.word_scores(z, texts, least=1, zeros=0).top(0, 2)) == pytest.approx({"smile": 1, "tears": 1})


def test_the_top_words_of_a_feature() -> None:
    z = np.array([[1.0, 0], [1, 0], [0, 1], [3, 4]])
    got = metrics.word_scores(z, [["cat"], ["cat", "cat"], ["dog"], ["dog", "cat"]], least=2, zeros=0)
    assert got.words == ["cat", "dog"] and got.counts.tolist() == [3, 2]
    assert got.top(0, 5) == [("cat", pytest.approx(2.6 / 3)), ("dog", pytest.approx(0.3))]
    assert got.top(1, 1) == [("dog", pytest.approx(0.9))]
    assert metrics.word_scores(z, [["a"], ["b"], ["c"], ["d"]], least=2).words == []
    with pytest.raises(BadInput, match="words of 1 texts"):
        metrics.word_scores(z, [["a"]])
    with pytest.raises(BadInput, match="1 or more"):
        metrics.word_scores(z, [["a"]] * 4, least=0)
