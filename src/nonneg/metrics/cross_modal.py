"""Do images and texts find each other, and does a feature belong to both? N images, T texts, D features.

Equal captions are one text: an image with several captions belongs to several texts, a caption that several images have
is one text that belongs to all of them. `pairs` lists who belongs to whom, P x 2, as (image, text).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from nonneg.errors import BadInput
from nonneg.metrics.activation import expected_activation
from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows

CHUNK = 2**24  # cosines held at once


def recall(
    images: Matrix, texts: Matrix, pairs: np.ndarray, *, ks: Sequence[int] = (1, 5, 10)
) -> dict[str, dict[str, Any]]:
    """Recall@k both ways: the share of images with a text of theirs among the k of largest cosine, and vice versa.

    `image_to_text` asks every image for texts, `text_to_image` every text for images. A wrong answer with the same
    cosine as the best right one is counted before it, so that features that are all alike find nothing. `median_rank`
    is that of the best right answer, 1 the best; `chance` is what a random order gives, the mean over queries of
    1 - C(M - r, k) / C(M, k), for M candidates of which r are right.
    """
    a, b, pairs = _checked(images, texts, pairs)
    if not ks or min(ks) < 1:
        raise BadInput(f"recall is asked at {list(ks)}; give numbers of 1 or more")
    return {"image_to_text": _answers(a, b, pairs, ks), "text_to_image": _answers(b, a, pairs[:, ::-1], ks)}


def _checked(images: Matrix, texts: Matrix, pairs: np.ndarray) -> tuple[Matrix, Matrix, np.ndarray]:
    """Rows at length 1, and each pair once."""
    a, b = (unit_rows(z) for z in (images, texts))
    if a.shape[1] != b.shape[1]:
        raise BadInput(f"images have {a.shape[1]} features and texts {b.shape[1]}; they must share one space")
    pairs = np.asarray(pairs)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise BadInput(f"pairs are {pairs.dtype} of shape {pairs.shape}; give rows of an image's and a text's number")
    for kind, many, mine in (("image", a.shape[0], pairs[:, 0]), ("text", b.shape[0], pairs[:, 1])):
        if not np.array_equal(np.unique(mine), np.arange(many)):
            raise BadInput(f"there are {many} {kind}s: each must be in a pair, as one of 0 to {many - 1}")
    return a, b, np.unique(pairs, axis=0)


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


def modality_balance(images: Matrix, texts: Matrix) -> np.ndarray:
    """E z_image / (E z_image + E z_text) of each feature, rows at length 1: 1/2 belongs to both, 0 and 1 to one kind.

    nan for a feature that is zero everywhere. Signed features are taken by their absolute values.
    """
    signed = any(bool((as_csr(z).data < 0).any()) for z in (images, texts))
    a, b = (expected_activation(z, absolute=signed) for z in (images, texts))
    if len(a) != len(b):
        raise BadInput(f"images have {len(a)} features and texts {len(b)}; they must share one space")
    return np.divide(a, a + b, out=np.full(len(a), np.nan), where=a + b > 0)


def pair_agreement(images: Matrix, texts: Matrix, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each feature the cosine, over all pairs, between it on the image and it on the text; and what chance gives.

    sum_p a_pd b_pd / (|a_d| |b_d|), rows at length 1: 1 where an image switches the feature on exactly as much as its
    text does. Chance is the mean over all ways to pair the same rows anew, P mean(a_d) mean(b_d) / (|a_d| |b_d|). nan
    for a feature that is zero on all images or on all texts. Modality balance asks how much, this asks for what.
    """
    a, b, pairs = _checked(images, texts, pairs)
    a, b = a[pairs[:, 0]], b[pairs[:, 1]]
    together = np.asarray(a.multiply(b).sum(axis=0)).ravel()
    alone = np.asarray(a.sum(axis=0)).ravel() * np.asarray(b.sum(axis=0)).ravel() / len(pairs)
    norms = np.sqrt(np.asarray(a.multiply(a).sum(axis=0)).ravel() * np.asarray(b.multiply(b).sum(axis=0)).ravel())
    nothing = np.full(len(norms), np.nan)
    return tuple(np.divide(x, norms, out=nothing.copy(), where=norms > 0) for x in (together, alone))  # pyright: ignore
