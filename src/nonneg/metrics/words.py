"""Which words switch a feature on? T texts, D features, W words; z is T x D, one row a text."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics.sparsity import Matrix, unit_rows


@dataclass(frozen=True)
class Words:
    """W words in alphabetical order, in how many texts each occurs, and each feature's score for it, W x D."""

    words: list[str]
    counts: np.ndarray
    scores: np.ndarray

    def top(self, feature: int, k: int) -> list[tuple[str, float]]:
        """The k words of largest |score|, largest first, those of score zero left out."""
        column = self.scores[:, feature]
        order = np.argsort(-np.abs(column), kind="stable")[:k]
        return [(self.words[i], float(column[i])) for i in order if column[i] != 0]


def word_scores(
    z: Matrix,
    words: Sequence[Collection[str]],
    *,
    least: int = 3,
    times: Sequence[int] | np.ndarray | None = None,
    zeros: float = 3.0,
) -> Words:
    """score(w, d) = sum of z_td / |z_t| over the n texts t that hold w, / (n + zeros), for words of `least` texts.

    It is the mean as if `zeros` more texts with the word had not switched the feature on, so that a word of one text,
    which may have been learned by heart, does not stand before one that does the same in many. A word counts once in a
    text, however often it stands there. With `times` a text counts so often towards `least`, as often as it was given
    to an image, say; the sum is over texts all the same.
    """
    if least < 1:
        raise BadInput(f"words are scored from {least} texts on; give 1 or more")
    z = unit_rows(z)
    if len(words) != z.shape[0]:
        raise BadInput(
            f"there are {z.shape[0]} rows of features for the words of {len(words)} texts; give one for each"
        )
    counts = Counter(word for text in words for word in set(text))
    often = Counter()
    for text, n in zip(words, [1] * len(words) if times is None else times, strict=True):
        often.update(dict.fromkeys(text, int(n)))
    kept = sorted(word for word in counts if often[word] >= least)
    place = {word: i for i, word in enumerate(kept)}
    held = [(place[word], t) for t, text in enumerate(words) for word in set(text) if word in place]
    many = np.array([counts[word] for word in kept], dtype=np.int64)
    if not held:
        return Words(kept, many, np.zeros((len(kept), z.shape[1])))
    row, column = np.array(held).T
    share = sparse.csr_array((1 / (many[row] + zeros), (row, column)), shape=(len(kept), z.shape[0]))
    return Words(kept, many, (share @ z).toarray())
