"""Non-negative features read as probabilities of latent classes. N images, D features, C labels; z is N x D.

The paper's optimum of the spectral loss is phi_j(x) = P(c_j|x) / sqrt(P(c_j)), a feature for each latent class c_j. So
E phi_j = sqrt(P(c_j)); P(c_j) and P(c_j|x) can be read off features alone, and must sum to 1. By the theorem on
generalisation the head W*, sqrt(P(c_j)) where c_j belongs to label l, else 0, gives phi W* = P(l|x). Which label that
is can be counted: E phi y' = E phi phi' W*, y the one-hot label, and E phi phi' is near the identity.
"""

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from nonneg.errors import BadInput
from nonneg.metrics.correlation import gram
from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows


@dataclass(frozen=True)
class Calibration:
    """Images by how sure the answer was, in equal bins from 0 to 1 (above 1 in the last): B numbers each, and `error`.

    confidence and accuracy are means over a bin's images, nan where there are none; error = sum_b share_b
    |accuracy_b - confidence_b|.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    share: np.ndarray
    error: float


def latent_prior(z: Matrix) -> np.ndarray:
    """P(c_j) = (E phi_j)^2, for each of the D features."""
    return np.square(_mean(_non_negative(z)))


def latent_posterior(z: Matrix, prior: np.ndarray) -> Matrix:
    """P(c_j|x) = phi_j(x) sqrt(P(c_j)): N x D, zero where the feature is."""
    return sparse.csr_array(_non_negative(z) * np.sqrt(prior)[None, :])


def counted_head(z: Matrix, labels: np.ndarray, classes: int) -> np.ndarray:
    """W_jl = mean_n z_nj 1[y_n = l], D x C: in which classes a feature is active, counted in one pass.

    In theory it is E phi phi' W*: the optimal head where latent classes do not overlap, a blurred one where they do.
    Nothing here asks for non-negative features.
    """
    z = as_csr(z)
    if z.shape[0] != len(labels) or not len(labels):
        raise BadInput(f"there are {z.shape[0]} samples and {len(labels)} labels: give one label per sample")
    if labels.min() < 0 or labels.max() >= classes:
        raise BadInput(
            f"labels run from {labels.min()} to {labels.max()}: with {classes} classes give 0 to {classes - 1}"
        )
    member = sparse.csr_array((np.ones(len(labels)), (np.arange(len(labels)), labels)), shape=(len(labels), classes))
    return np.asarray((z.astype(np.float64).T @ member).todense()) / len(labels)


def one_class_head(head: np.ndarray) -> np.ndarray:
    """The counted head in the theorem's form: a latent class belongs to its most frequent label, with sqrt(P(c_j))."""
    best = head.argmax(axis=1)
    return head.sum(axis=1, keepdims=True) * (best[:, None] == np.arange(head.shape[1]))


def least_squares_head(z: Matrix, head: np.ndarray) -> np.ndarray:
    """(E z z')^-1 W, W the counted head: least squares on one-hot labels, and W* itself however much classes overlap.

    Directions that the features do not use get no weight.
    """
    z = as_csr(z)
    return np.linalg.pinv(gram(z) / z.shape[0], rcond=1e-9, hermitian=True) @ head


def on_scale(z: Matrix, train: Matrix) -> Matrix:
    """z with rows of one length, the one by which the P(c) of the training features, likewise, sum to 1.

    A loss of cosines leaves the length of features open. This is a convention to read them by, not a theorem.
    """
    length = np.linalg.norm(_mean(unit_rows(_non_negative(train))))
    if not length > 0:
        raise BadInput("every training feature is zero: there is nothing to read as a probability")
    return sparse.csr_array(unit_rows(_non_negative(z)) / length)


def calibration(probability: np.ndarray, labels: np.ndarray, *, bins: int = 10) -> Calibration:
    """How often the likeliest label is right, by how likely it was said to be; probability is N x C."""
    if bins < 1 or len(probability) != len(labels) or not len(labels):
        raise BadInput(
            f"{len(probability)} rows for {len(labels)} labels in {bins} bins: give a row a label, 1 bin or more"
        )
    sure, right = probability.max(axis=1), probability.argmax(axis=1) == labels
    place = np.clip((sure * bins).astype(np.int64), 0, bins - 1)
    count = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):  # an empty bin has no mean
        confidence, accuracy = (np.bincount(place, weights=v, minlength=bins) / count for v in (sure, right))
    share = count / len(labels)
    error = float((share * np.abs(accuracy - confidence))[count > 0].sum())
    return Calibration(confidence, accuracy, share, error)


def _mean(z: Matrix) -> np.ndarray:
    if not z.shape[0]:
        raise BadInput("there are no samples: a probability is a mean over some")
    return np.asarray(z.astype(np.float64).mean(axis=0)).ravel()


def _non_negative(z: Matrix) -> Matrix:
    z = as_csr(z)
    if (z.data < 0).any():
        raise BadInput("some features are negative, and probabilities are not: train with a map such as rep_relu")
    return z
