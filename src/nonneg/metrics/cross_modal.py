"""Do images and texts find each other, and does a feature belong to both? N images, C captions, D features.

`owner[c]` is the image that caption c belongs to. Equal captions are one text: `text[c]` numbers it, and every image
that has the text among its captions is a right answer to it.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nonneg.errors import BadInput
from nonneg.metrics.activation import expected_activation
from nonneg.metrics.sparsity import Matrix, as_csr

CHUNK = 2**24  # cosines held at once


def recall(
    images: Matrix, captions: Matrix, owner: np.ndarray, text: np.ndarray, *, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, dict[str, Any]]:
    """Recall@k both ways: the share of images with a right text among the k of largest cosine, and of texts likewise.

    `image_to_text` asks every image for texts (each once, however many images have it), `text_to_image` every text for
    images. A wrong answer with the same cosine as the best right one is counted before it, so that features that are
    all alike find nothing. `median_rank` is that of the best right answer, 1 the best; `chance` is what a random order
    gives, the mean over queries of 1 - C(M - r, k) / C(M, k), for M candidates of which r are right.
    """
    a, b = (_unit_rows(z) for z in (images, captions))
    if a.shape[1] != b.shape[1]:
        raise BadInput(f"images have {a.shape[1]} features and captions {b.shape[1]}; they must share one space")
    owner, text = np.asarray(owner), np.asarray(text)
    if owner.shape != (b.shape[0],) or text.shape != owner.shape:
        raise BadInput(f"there are {b.shape[0]} captions: give each its image and its text")
    if not len(owner) or owner.min() < 0 or owner.max() >= a.shape[0] or len(np.unique(owner)) < a.shape[0]:
        raise BadInput(f"captions must belong to images 0 to {a.shape[0] - 1}, and every image have one")
    if not ks or min(ks) < 1:
        raise BadInput(f"recall is asked at {list(ks)}; give numbers of 1 or more")
    _, first, number = np.unique(text, return_index=True, return_inverse=True)
    b = b[first]  # every text once
    pairs = np.unique(np.stack([owner, number], 1), axis=0)
    return {
        "image_to_text": _answers(a, b, pairs, ks),
        "text_to_image": _answers(b, a, pairs[:, ::-1], ks),
    }


def _answers(queries: Matrix, candidates: Matrix, pairs: np.ndarray, ks: Sequence[int]) -> dict[str, Any]:
    """Recall and median rank of right answers, `pairs` being (query, right candidate), each once."""
    n, many = queries.shape[0], candidates.shape[0]
    rank = np.empty(n, dtype=np.int64)
    for at, cosine in _cosines(queries, candidates):
        mine = pairs[(pairs[:, 0] >= at) & (pairs[:, 0] < at + len(cosine))]
        row, column = mine[:, 0] - at, mine[:, 1]
        best = np.full(len(cosine), -np.inf, dtype=np.float32)
        np.maximum.at(best, row, cosine[row, column])
        cosine[row, column] = -np.inf
        rank[at : at + len(cosine)] = 1 + (cosine >= best[:, None]).sum(1)
    right = np.bincount(pairs[:, 0], minlength=n)
    return {
        "recall": {k: float((rank <= k).mean()) for k in ks},
        "chance": {k: float(_chance(many, right, k)) for k in ks},
        "median_rank": float(np.median(rank)),
        "queries": n,
        "candidates": many,
    }


def _chance(many: int, right: np.ndarray, k: int) -> float:
    """mean of 1 - C(M - r, k) / C(M, k) = 1 - prod_{i < k} (M - r - i) / (M - i)."""
    i = np.arange(min(k, many))
    missed = np.clip((many - right[:, None] - i) / (many - i), 0, None).prod(axis=1)
    return float((1 - missed).mean())


def _cosines(a: Matrix, b: Matrix) -> Iterator[tuple[int, np.ndarray]]:
    """Rows of cosines from row `at` on, in float32, so that equal cosines are equal."""
    step = max(1, CHUNK // b.shape[0])
    for at in range(0, a.shape[0], step):
        yield at, (a[at : at + step] @ b.T).toarray().astype(np.float32)


def _unit_rows(z: Matrix) -> Matrix:
    z = as_csr(z).astype(np.float64)
    sample = np.repeat(np.arange(z.shape[0]), np.diff(z.indptr))
    largest = np.zeros(z.shape[0])
    np.maximum.at(largest, sample, np.abs(z.data))
    z.data /= np.where(largest > 0, largest, 1)[sample]  # first, so that squares of small numbers do not vanish
    norm = np.sqrt(np.bincount(sample, weights=z.data**2, minlength=z.shape[0]))
    z.data /= np.where(norm > 0, norm, 1)[sample]
    return z


def modality_balance(images: Matrix, captions: Matrix) -> np.ndarray:
    """E z_image / (E z_image + E z_text) of each feature, rows at length 1: 1/2 belongs to both, 0 and 1 to one kind.

    nan for a feature that is zero everywhere. Signed features are taken by their absolute values.
    """
    signed = any(bool((as_csr(z).data < 0).any()) for z in (images, captions))
    a, b = (expected_activation(z, absolute=signed) for z in (images, captions))
    if len(a) != len(b):
        raise BadInput(f"images have {len(a)} features and captions {len(b)}; they must share one space")
    return np.divide(a, a + b, out=np.full(len(a), np.nan), where=a + b > 0)
