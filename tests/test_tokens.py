"""Subword tokens against a learner that recounts everything after every merge."""

import json
import re
import string
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nonneg.errors import BadInput
from nonneg.multimodal import tokens
from nonneg.multimodal.tokens import PIECE, Tokenizer

RHYME = [
    "the cat sat on the mat",
    "the rat sat on the cat",
    "that cat, the fat cat, ate the rat!",
    "a hat; a hat on a cat",
]


def slow_learn(texts: list[str], size: int) -> list[tuple[int, int]]:
    """Merge the most frequent pair, all pieces spelled and counted anew each time."""
    merges: list[tuple[int, int]] = []
    words = [[1 + b for b in piece.encode()] for text in texts for piece in PIECE.findall(f" {tokens.normalise(text)}")]
    while 257 + len(merges) < size:
        counts = Counter((a, b) for word in words for a, b in pairwise(word))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        if counts[best] < 2:
            break
        merges.append(best)
        words = [slow_merge(word, best, 256 + len(merges)) for word in words]
    return merges


def slow_merge(word: list[int], pair: tuple[int, int], new: int) -> list[int]:
    for i in range(len(word) - 1):
        if (word[i], word[i + 1]) == pair:
            return [*word[:i], new, *slow_merge(word[i + 2 :], pair, new)]
    return word


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text("abc ,", min_size=1, max_size=30), min_size=1, max_size=8), st.integers(257, 300))
def test_learning_is_the_slow_learner(texts: list[str], size: int) -> None:
    assert list(tokens.learn(texts, size=size).merges) == slow_learn(texts, size)


def test_learning_is_the_slow_learner_on_a_rhyme() -> None:
    known = tokens.learn(RHYME, size=290)
    assert list(known.merges) == slow_learn(RHYME, 290) and len(known.merges) == 15


def test_the_order_of_texts_does_not_matter() -> None:
    assert tokens.learn(RHYME, size=300) == tokens.learn(RHYME[::-1], size=300)


def test_frequent_words_become_one_token() -> None:
    known = tokens.learn(RHYME * 3, size=400)
    assert len(known.tokens("the cat")) == 2
    assert [known.decode([t]) for t in known.tokens("the cat")] == ["the", "cat"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_no_text_is_unknown(text: str) -> None:
    known = tokens.learn(RHYME, size=300)
    assert known.decode(known.tokens(text)) == tokens.normalise(text)


def test_characters_that_were_never_seen_survive_as_bytes() -> None:
    known = tokens.learn(RHYME, size=300)
    assert known.decode(known.tokens("Zoë's 猫 🐱!")) == "zoë's 猫 🐱!"
    assert known.tokens("猫")[-3:] == [1 + b for b in "猫".encode()]


def test_rows_are_filled_up_and_cut_and_the_cut_are_counted() -> None:
    known = tokens.learn(RHYME, size=400, length=4)
    rows, cut = known.encode(["the cat", "the cat sat on the mat", "!"])
    assert rows.shape == (3, 4) and rows.dtype == torch.int64 and cut == 1
    assert rows[0].tolist() == [*known.tokens("the cat"), 0, 0]
    assert rows[1].tolist() == known.tokens("the cat sat on the mat")[:4]


def test_a_tokenizer_is_the_same_after_json() -> None:
    known = tokens.learn(RHYME, size=300, length=7)
    again = tokens.from_json(json.loads(json.dumps(known.to_json())), "here")
    assert again == known and again.encode(RHYME)[0].equal(known.encode(RHYME)[0])


@pytest.mark.parametrize("text", [*RHYME, string.printable])
def test_tokens_are_those_that_merging_in_order_gives(text: str) -> None:
    """Each merge in the order it was learned, over the whole piece, as in the definition."""
    known = tokens.learn(RHYME, size=300)
    expected = []
    for piece in PIECE.findall(f" {tokens.normalise(text)}"):
        word = [1 + b for b in piece.encode()]
        for i, pair in enumerate(known.merges):
            word = slow_merge(word, pair, 257 + i)
        expected += word
    assert known.tokens(text) == expected


def test_words_are_what_people_see() -> None:
    assert tokens.words("Man: Blond-hair,  2 cats!") == ["man", "blond", "hair", "2", "cats"]


@pytest.mark.parametrize(
    "text", ["हिन्दी भाषा", "தமிழ் மொழி", "שָׁלוֹם עוֹלָם", "العَرَبِيَّة لُغَة", "ที่นี่ ภาษา", "ọ̀rọ̀ ẹ̀kọ́", "𞤆𞤵𞤤𞤢𞥄𞤪 𞤍𞤢𞤥"]
)
def test_a_word_keeps_the_marks_on_its_letters(text: str) -> None:
    assert tokens.words(text) == tokens.normalise(text).split()
    assert PIECE.findall(f" {tokens.normalise(text)}") == [f" {word}" for word in tokens.words(text)]


@pytest.mark.parametrize("text", ["Zoë's naïve café, 2 x 3!", "1️⃣ ❤️ ℹ️ 👩🏽‍🚀 🏴󠁧󠁢󠁥󠁮󠁧󠁿 #️⃣x", string.printable])
def test_latin_letters_and_emoji_are_cut_as_ever(text: str) -> None:
    plain = tokens.normalise(text)
    assert PIECE.findall(f" {plain}") == re.findall(r" ?\w+| ?[^\w\s]+", f" {plain}")
    assert tokens.words(text) == re.findall(r"\w+", plain)


def test_bad_vocabularies_are_refused() -> None:
    with pytest.raises(BadInput, match="no room for the 256 bytes"):
        tokens.learn(RHYME, size=256)
    with pytest.raises(BadInput, match="at least 1 token"):
        tokens.learn(RHYME, length=0)
    with pytest.raises(BadInput, match="two tokens that come before it"):
        Tokenizer(((1, 300),), 8)
    for bad in ({}, {"length": 3}, {"length": 3, "merges": [[1]]}, {"length": 3, "merges": [["a", 2]]}, []):
        with pytest.raises(BadInput, match="tokenizer"):
            tokens.from_json(bad, "text.json")
