"""Precision against bytes per vector: dense CL whole, cut, quantised, projected; NCL by features and by activations.

Claim (ours, of a first sketch): NCL with 4 activations a sample (8 bytes) comes within half a point of dense CL with
256 floats (1 KB), and with 8 (16 bytes) passes it. On CIFAR-10 the first is just missed (0.54), the second confirmed;
on CIFAR-100 the first is missed (1.5 points), and 8 activations have the precision of dense CL, not more.
Cost: two or three minutes a run on one CPU core, given its features.
Run: nonneg reproduce bytes --data-root DIR
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from nonneg import charts, figures, selection
from nonneg.analyses import Analysis, Line, Subject, first_seeds
from nonneg.progress import track

BUDGETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHOWN = {2: "1 activation", 4: "2 activations", 8: "4 activations", 16: "8 activations", 32: "16 activations"}


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Precision@10 and mAP@10 of the run's test set at every size, by every way to shorten."""
    (subject,) = subjects
    train, test = subject.features("train"), subject.features("test")
    assert test.labels is not None
    _, width = figures.shape(test)
    rows = []
    for way in track(selection.REDUCTIONS, f"{subject.name}: shortening", len(selection.REDUCTIONS)):
        rows += selection.curve(
            train.z,
            test.z,
            test.labels,
            budgets=BUDGETS,
            reductions=(way,),
            rng=np.random.default_rng(0),
            device=subject.device,
        )
    out: dict[str, Any] = {"curve": [{k: _short(v) for k, v in asdict(row).items()} for row in rows]}
    for row in rows:
        if row.method.startswith("activations") and row.bytes in SHOWN:
            out[f"top_{row.bytes}"] = row.precision
        if row.method == "features, float32" and row.kept == width:
            out["whole"] = row.precision
        if row.method == "features, 8 bits" and row.kept == width:
            out["whole_8bit"] = row.precision
    return out


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """One panel a data set."""
    panels = {of: {run: m["curve"] for run, m in runs.items()} for of, runs in first_seeds(lines).items()}
    return charts.precision_by_bytes(panels) if panels else None


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


ANALYSIS = Analysis(
    of=("cifar10", "cifar100"),
    ask=ask,
    table={
        "whole": ("precision@10, all features, floats", 100.0),
        "whole_8bit": ("precision@10, all features, 8 bits", 100.0),
        **{f"top_{size}": (f"precision@10, {text} a sample ({size} bytes)", 100.0) for size, text in SHOWN.items()},
    },
    draw=draw,
)
