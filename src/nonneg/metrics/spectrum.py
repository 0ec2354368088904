"""How many directions, and how many features, carry the data? N images, D features; z is N x D. Nothing is centred.

`effective_rank` sums a spectrum of singular values up in one number; here are the curves.
"""

import numpy as np

from nonneg.errors import BadInput
from nonneg.metrics.activation import expected_activation
from nonneg.metrics.correlation import gram
from nonneg.metrics.sparsity import Matrix, as_csr


def eigenvalues(z: Matrix, *, normalise: bool = False) -> np.ndarray:
    """The D eigenvalues of E[z z^T] = (1/N) sum_n z_n z_n^T, largest first; with `normalise`, they sum to 1.

    All are at least 0 (what rounding left below is 0); when N < D, at most N are more than 0.
    """
    z = as_csr(z)
    n, d = z.shape
    _check_size(n, d)
    small = z.T.tocsr() if n < d else z  # the same eigenvalues, but for zeros, from the smaller matrix
    found = np.zeros(d)
    found[: min(n, d)] = np.linalg.eigvalsh(gram(small))[::-1].clip(min=0) / n
    return _shares(found) if normalise else found


def activation_spectrum(z: Matrix, *, absolute: bool = False, normalise: bool = False) -> np.ndarray:
    """The D expected activations EA_d = mean_n z_nd / |z_n|, largest first; with `normalise`, they sum to 1.

    Take it on training features; `absolute` takes |z|, for signed features, whose shares could otherwise not be formed.
    """
    z = as_csr(z)
    _check_size(*z.shape)
    if normalise and not absolute and (z.data < 0).any():
        raise BadInput("shares of expected activations need non-negative features: give absolute=True for signed ones")
    found = np.sort(expected_activation(z, absolute=absolute))[::-1]
    return _shares(found) if normalise else found


def fall_after(spectrum: np.ndarray, k: int) -> float:
    """1 - s_2k / s_k of a spectrum, largest first: what of the k-th value is gone at the 2k-th; 0 is level, 1 a cliff.

    nan where there are fewer than 2k values, or the k-th is 0 already.
    """
    if k < 1:
        raise BadInput(f"a fall is measured after the first feature or a later one, not after {k}")
    if len(spectrum) < 2 * k or not spectrum[k - 1] > 0:
        return float("nan")
    return float(1 - spectrum[2 * k - 1] / spectrum[k - 1])


def _shares(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    if not total > 0:
        raise BadInput("every feature is zero on every image: the spectrum has no shares")
    return values / total


def _check_size(n: int, d: int) -> None:
    if not n or not d:
        raise BadInput(f"features have shape {(n, d)}: a spectrum needs at least one image and one feature")
