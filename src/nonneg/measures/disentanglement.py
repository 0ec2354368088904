"""Does a feature say what the others do not (SEPIN), and does it stand for one factor (MIG, SAP, DCI)?"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nonneg import metrics
from nonneg.measures.entry import Entry, entry, numbers

SEPIN_AT = (1, 10, 100)


def sepin(
    f: Any, g: Any, *, views: str, seed: int, temperature: float | None = None, few: int = 1000
) -> dict[str, Entry]:
    """SEPIN@1, @10, @100 and all, of the features f and g (N x D) of two views of the same images.

    `views` and `seed` say how these were made. Beside it, at the temperature of training, and with rows of length 1
    again after a feature is dropped, which is slow and taken on `few` of the images. What asks for more features than
    there are has no value, nor has what asks for the temperature of a loss without one.
    """
    some = np.sort(np.random.default_rng(seed).permutation(f.shape[0])[:few])
    made = {"views": views, "seed": seed}
    return {
        **_sepin("sepin", f, g, temperature=1.0, **made),
        **_sepin("sepin_training", f, g, temperature=temperature, **made),
        **_sepin("sepin_renormalised", f[some], g[some], temperature=1.0, renormalise=True, **made),
    }


def _sepin(
    name: str,
    f: Any,
    g: Any,
    *,
    temperature: float | None,
    renormalise: bool = False,
    **made: Any,
) -> dict[str, Entry]:
    images, width = f.shape
    rows = f"unit length, {'and' if renormalise else 'not'} again after a feature is dropped"
    how = {"images": images, **made, "weights": "mean", "rows": rows}
    at = "the temperature of training"
    values, why = np.zeros(0), "the loss of this run has no temperature"
    if temperature is not None:
        values = metrics.sepin(f, g, temperature=temperature, weights="mean", renormalise=renormalise)
        at, why, how["temperature"] = f"temperature {temperature:g}", f"there are {width} features", temperature
    loss = (
        f"rise of the contrastive loss between two views of {images} test images when the feature is dropped, in nats; "
        f"at {at}; negatives: all other images of the second view; rows: {rows}"
    )

    def mean(most: int, which: str, **more: Any) -> Entry:
        value = metrics.sepin_at(values, most) if most <= len(values) else math.nan
        return entry(value, f"mean {which} of: {loss}", why=why, **more, **how)

    return {
        **{f"{name}@{k}": mean(k, f"of the {k} largest", k=k) for k in SEPIN_AT},
        f"{name}@all": mean(width, "over all features") | {"each": numbers(values)},
    }


def factors(z: Any, table: np.ndarray, *, names: Sequence[str], seed: int = 0) -> dict[str, Entry]:
    """MIG, SAP and DCI of test features against the known factors of their images, N x F, but for constant ones."""
    mig, sap, dci = metrics.mig(z, table), metrics.sap(z, table, seed=seed), metrics.dci(z, table, seed=seed)
    constant = [names[i] for i in mig.constant]
    left_out: dict[str, Any] = {"left_out_as_constant": constant} if constant else {}
    over = f"mean over factors but {', '.join(constant)} (constant)" if constant else "mean over factors"

    def by(values: np.ndarray) -> dict[str, float | None]:
        return dict(zip((names[i] for i in mig.used), numbers(values), strict=True))

    gap = f"between the two best features for a factor, {over}"
    forests = "in forests that tell each factor from all features"
    return {
        "mig": entry(mig.score, f"gap of mutual information / entropy {gap}", bins=20, binning="width", **left_out)
        | {"each": by(mig.gaps)},
        "sap": entry(sap.score, f"gap of accuracy {gap}", bins=20, binning="width", seed=seed, **left_out)
        | {"each": by(sap.gaps)},
        "dci_disentanglement": entry(
            dci.disentanglement,
            f"how much a feature's importance {forests} is for one factor, mean over features by importance",
            seed=seed,
            **left_out,
        ),
        "dci_completeness": entry(
            dci.completeness,
            f"how much a factor's importance {forests} is in one feature, {over}",
            seed=seed,
            **left_out,
        )
        | {"each": by(dci.completeness_by_factor)},
        "dci_informativeness": entry(
            dci.informativeness,
            f"accuracy of these forests on held-out test samples, {over}",
            chance=float(dci.chance_by_factor.mean()),
            seed=seed,
            **left_out,
        )
        | {"each": by(dci.accuracy_by_factor)},
    }
