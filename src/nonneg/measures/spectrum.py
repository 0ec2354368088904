"""How many directions and how many features are in use?"""

import math

import numpy as np

from nonneg import metrics
from nonneg.measures.entry import ALL_ZERO, NO_LABELS, Entry, Features, entry, numbers, share_of_largest, shares


def spectrum(train: Features, test: Features) -> dict[str, Entry]:
    """How many directions and how many features carry the data; no value where every feature is zero."""
    values = metrics.eigenvalues(test.z)
    used = metrics.activation_spectrum(train.z, absolute=True)
    found = {
        "eigenvalues_top": entry(
            share_of_largest(values, 10),
            "share of the 10 largest eigenvalues of the mean of z z^T over test samples, not centred, in their sum",
            why=ALL_ZERO.format("test"),
            largest=10,
        )
        | {"each": numbers(shares(values))},
        "eigenvalues_90": entry(
            _how_many(values, 0.9),
            "how many of the largest eigenvalues hold 90 % of their sum",
            why=ALL_ZERO.format("test"),
        ),
        "activations_90": entry(
            _how_many(used, 0.9),
            "how many of the most used features hold 90 % of the total expected activation (training samples)",
            why=ALL_ZERO.format("training"),
        )
        | {"each": numbers(shares(used))},
    }
    fall = (
        "1 - EA_2C / EA_C, EA_i the i-th largest expected activation (training samples), C the number of classes: "
        "0 where features are used alike, 1 where C of them are used and no more"
    )
    if train.labels is None:
        return found | {"activation_fall": entry(math.nan, fall, why=NO_LABELS.format("training"))}
    classes = len(np.unique(train.labels))
    found["activation_fall"] = entry(
        metrics.fall_after(used, classes),
        fall,
        why=f"there are {len(used)} features, and 2C is {2 * classes}"
        if len(used) < 2 * classes
        else f"fewer than C = {classes} features are used at all",
        classes=classes,
    )
    return found


def _how_many(values: np.ndarray, share: float) -> float:
    """How many of the largest values it takes to reach a share of their sum; nan where that is zero."""
    reached = np.cumsum(np.sort(values)[::-1])
    return int(np.searchsorted(reached, share * reached[-1]) + 1) if reached[-1] > 0 else math.nan
