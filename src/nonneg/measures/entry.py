"""What every measure is kept as: its value, its definition and its parameters, or why it has no value."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from nonneg import metrics

Entry = dict[str, Any]
ALL_ZERO = "every feature is zero on every {} sample"
NO_LABELS = "the {} data have no labels"
NO_LIVE = "no feature is live on the test samples"


class Features(Protocol):
    """What is measured: backbone outputs h (N x d), features z (N x D, sparse or dense), labels (N) where known."""

    @property
    def h(self) -> np.ndarray: ...
    @property
    def z(self) -> Any: ...
    @property
    def labels(self) -> np.ndarray | None: ...


def entry(value: float, definition: str, *, why: str = "the data have no samples", **parameters: Any) -> Entry:
    """A number as it is kept; `why` says why it is not one, where it is not finite (JSON has no nan)."""
    undefined = isinstance(value, float) and not math.isfinite(value)
    found = {"value": None if undefined else value, "definition": definition, **parameters}
    return found | {"why": why} if undefined else found


def numbers(values: Sequence[float] | np.ndarray, digits: int = 6) -> list[float | None]:
    """Numbers for JSON, so many digits of each; None where there is none."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]


def why_no_probe(labels: np.ndarray | None) -> str:
    """Why no probe can learn from these labels, or nothing: it takes two classes, and two samples of one of them."""
    if labels is None:
        return NO_LABELS.format("training")
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
        return "the training data have a single class"
    return "" if counts.max() > 1 else "no class has two training samples"


def all_zero(z: Any) -> bool:
    return metrics.zero_rows(z) == z.shape[0]


def shares(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    return values / total if total > 0 else values


def share_of_largest(values: np.ndarray, n: int) -> float:
    total = values.sum()
    return float(np.sort(values)[-n:].sum() / total) if total > 0 else math.nan
