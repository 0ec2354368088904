"""How much each feature is used. N images, D features; z is N x D."""

import numpy as np

from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows


def expected_activation(z: Matrix, *, absolute: bool = False) -> np.ndarray:
    """EA_d = mean over samples of z_nd / |z_n|, for each of the D features; take it on training features.

    Rows of zeros stay zero and count as samples; `absolute` takes |z|, to rank signed features; nan without samples.
    """
    z = as_csr(z)
    if not z.shape[0]:
        return np.full(z.shape[1], np.nan)
    unit = unit_rows(z).data
    return np.bincount(z.indices, weights=np.abs(unit) if absolute else unit, minlength=z.shape[1]) / z.shape[0]
