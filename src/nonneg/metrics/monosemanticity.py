"""Do the images of a feature look alike to another model? No labels. N images, D features, d dimensions of the
embedding; z is N x D, e is N x d, row n of both the same image.

A feature's images count by their activation a = max(z, 0), and pairs of images by the product of both. Of a signed
feature only the positive side is read, since its two ends may mean two things: give -z or abs(z) to read it otherwise.
The embedding e should come from elsewhere (the backbone of another run), or the features are judged by themselves.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics.sparsity import Matrix, active, as_csr

SPARSE = 0.05  # share of values other than zero below which a sparse product is faster than dense blocks
ROWS = 4096  # samples made dense at once


@dataclass(frozen=True)
class Monosemanticity:
    """`per_feature`: D similarities, nan for a feature with no pair of images; `mean` over the others, nan if none.

    `baseline` is what a feature equally active on all images scores. `dead` features never fire, `single` ones fire on
    one image only, `measured` is how many are left: the three add up to D.
    """

    per_feature: np.ndarray
    mean: float
    baseline: float
    measured: int
    single: int
    dead: int


def monosemanticity(z: Matrix, e: Matrix, *, centred: bool = False, eps: float = 1e-5) -> Monosemanticity:
    """M_i = sum_{n != m} a_ni a_mi cos(e_n, e_m) / sum_{n != m} a_ni a_mi, a = max(z, 0), off below eps, for each i.

    `centred` subtracts the mean of e first, which puts the baseline near 0. A row of e that is zero has cosine 0 with
    everything.
    """
    a = _positive(z, eps=eps)
    unit = _unit_rows(e, centred=centred)
    n, d = a.shape
    if unit.shape[0] != n:
        raise BadInput(f"there are features of {n} images, embeddings of {unit.shape[0]}: give the same images to both")
    if n < 2:
        raise BadInput(f"there are {n} images: a pair needs two or more")
    count = np.bincount(a.indices, minlength=d)
    score = np.full(d, np.nan)
    paired = np.flatnonzero(count > 1)
    if len(paired):
        score[paired] = _scores(a[:, paired], unit)
    return Monosemanticity(
        per_feature=score,
        mean=float(score[paired].mean()) if len(paired) else float("nan"),
        baseline=float(_scores(sparse.csr_array(np.ones((n, 1))), unit)[0]),
        measured=len(paired),
        single=int((count == 1).sum()),
        dead=int((count == 0).sum()),
    )


def _scores(a: Matrix, unit: np.ndarray) -> np.ndarray:
    """M of each column of a, all of which have two or more values; all pairs at once from sums over images.

    With s = sum_n a_n e_n, sum_{n != m} a_n a_m cos = |s|^2 - sum_n a_n^2 |e_n|^2. The largest activation, scaled to 1,
    is kept out of the sums and its pairs are added: where it dwarfs the others, the difference would lose them.
    """
    first, rest = _largest_apart(a)
    sums = _sums(rest, unit)  # d_features x d
    r = rest.sum(axis=0)
    squares = rest.multiply(rest).tocsr()
    weight = 2 * r + (r * r - squares.sum(axis=0))
    length = np.einsum("nd,nd->n", unit, unit)  # 1, or 0 for a row of zeros
    found = 2 * np.einsum("id,id->i", unit[first], sums)
    found += np.einsum("id,id->i", sums, sums) - squares.T @ length
    return np.clip(found / weight, -1, 1)


def _largest_apart(a: Matrix) -> tuple[np.ndarray, Matrix]:
    """The image each feature is most active on, and the other activations divided by that largest one: D, N x D."""
    columns = a.tocsc().astype(np.float64)
    first = columns.argmax(axis=0).ravel()
    most = columns.max(axis=0).toarray().ravel()
    feature = np.repeat(np.arange(columns.shape[1]), np.diff(columns.indptr))
    columns.data = np.where(columns.indices == first[feature], 0.0, columns.data / most[feature])
    return first, columns.tocsr()


def _sums(a: Matrix, unit: np.ndarray) -> np.ndarray:
    """a^T unit: D x d."""
    if a.nnz < SPARSE * a.shape[0] * a.shape[1]:
        return a.T @ unit
    total = np.zeros((a.shape[1], unit.shape[1]))
    for rows in (slice(at, at + ROWS) for at in range(0, a.shape[0], ROWS)):
        total += a[rows].toarray().T @ unit[rows]
    return total


def _positive(z: Matrix, *, eps: float) -> Matrix:
    """max(z, 0) where it reaches eps, and nothing else."""
    return active(as_csr(z).maximum(0), eps=eps)


def _unit_rows(e: Matrix, *, centred: bool) -> np.ndarray:
    """Rows of length 1, rows of zeros left zero, in float64."""
    e = as_csr(e).astype(np.float64).toarray()
    if not e.size:
        raise BadInput(f"the embedding has shape {e.shape}: give one row per image and at least one column")
    most = np.abs(e).max()
    if centred:
        e -= e.mean(axis=0)
    largest = np.abs(e).max(axis=1, keepdims=True)
    none = largest <= (1e-10 * most if centred else 0)  # of a row that is the mean, only rounding is left
    if none.all():
        raise BadInput(f"the embedding is {'the same' if centred else 'zero'} for all images: it can tell none apart")
    e = np.where(none, 0, e / np.where(none, 1, largest))  # first by the largest entry, so that no square vanishes
    return e / np.where(none, 1, np.linalg.norm(e, axis=1, keepdims=True))
