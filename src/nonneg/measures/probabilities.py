"""Are features the probabilities of latent classes that the theory says they are?"""

import math
from typing import Any

import numpy as np

from nonneg import metrics
from nonneg.measures.entry import NO_LABELS, Entry, Features, entry, numbers, shares


def probabilities(train: Features, test: Features, *, scaled: bool, bins: int = 10) -> dict[str, Entry]:
    """Non-negative features read as P(c_j) and P(c_j|x), and how far these are from summing to 1; with labels, P(y|x).

    `scaled` says that the loss fixes the length of features; else rows are scaled so that the P(c_j) sum to 1, and
    everything is a heuristic.
    """
    a, b = (train.z, test.z) if scaled else (metrics.on_scale(z, train.z) for z in (train.z, test.z))
    prior = metrics.latent_prior(a)
    posterior = metrics.latent_posterior(b, prior)
    rows = np.asarray(posterior.sum(axis=1)).ravel()
    how: dict[str, Any] = {"scale": "the loss's" if scaled else "rows of one length, by which the P(c) sum to 1"}
    said = "" if scaled else "heuristic, since the loss leaves the length of features open: "
    share = shares(prior[prior > 0])
    edges = np.linspace(0, 2, 41)
    shown = np.histogram(rows.clip(0, 2), edges)[0] / len(rows)
    found = {
        "latent_total": entry(
            float(prior.sum()),
            f"{said}sum of P(c) = (mean of z)^2 over features, training samples; 1 {'in theory' if scaled else 'so'}",
            **how,
        )
        | {"each": numbers(prior)},
        "latent_row_sum": entry(
            float(rows.mean()),
            said + "sum of P(c|x) = z sqrt(P(c)) over features, mean over test samples; 1 for each of them in theory",
            deviation=float(rows.std()),
            **how,
        )
        | {"each": {"edges": numbers(edges), "share": numbers(shown)}},
        "latent_row_off": entry(
            float(np.abs(rows - 1).mean()), said + "|sum of P(c|x) - 1|, mean over test samples; 0 in theory", **how
        ),
        "latent_above_one": entry(
            float((posterior.data > 1 + 1e-6).mean()) if posterior.nnz else math.nan,
            said + "share of the P(c|x) other than zero that are above 1 (by more than 1e-6), which no probability is",
            why="every P(c|x) is zero",
            **how,
        ),
        "latent_classes": entry(
            float(np.exp(-(share * np.log(share)).sum())) if len(share) else math.nan,
            said + "how many latent classes there are in effect: exp of the entropy of P(c)",
            why="every P(c) is zero",
            **how,
        ),
    }
    return found | {
        "latent_calibration_error": _calibrated(a, train.labels, b, test.labels, said=said, bins=bins, **how)
    }


def _calibrated(
    a: Any, y: np.ndarray | None, b: Any, answer: np.ndarray | None, *, said: str, bins: int, **how: Any
) -> Entry:
    text = (
        f"{said}|accuracy - confidence|, mean over test samples in equal bins of confidence, the largest of P(y|x) = "
        "sum of P(c|x) over the features whose most frequent label on training samples, by activation, is y; scaled to "
        "sum to 1 over labels"
    )
    if y is None or answer is None:
        return entry(math.nan, text, why=NO_LABELS.format("training" if y is None else "test"), **how)
    classes = 1 + int(max(y.max(), answer.max()))
    whole = np.asarray(b @ metrics.one_class_head(metrics.counted_head(a, y, classes)))
    total = whole.sum(axis=1, keepdims=True)
    shares = np.where(total > 0, whole / np.where(total > 0, total, 1), 1 / classes)
    found = metrics.calibration(shares, answer, bins=bins)
    each = {"confidence": found.confidence, "accuracy": found.accuracy, "share": found.share}
    return entry(
        found.error,
        text,
        accuracy=float((shares.argmax(axis=1) == answer).mean()),
        confidence=float(shares.max(axis=1).mean()),
        unscaled=metrics.calibration(whole, answer, bins=bins).error,
        bins=bins,
        **how,
    ) | {"each": {name: numbers(values) for name, values in each.items()}}
