"""Do two seeds find the same features? Hungarian matching of test features, against two nulls.

Claim: the paper's theorem says that non-negative features are unique up to permutation and scale, and that without
non-negativity any rotation is as good. Nobody has published how far that holds for trained networks.
Cost: seconds, given the features of two seeds or more; those kept beside the results will do.
Run: nonneg reproduce identifiability --data-root DIR

"Shuffled": the other run's images in random order. "Rotated": the other run's features under a random rotation, which
keeps all that is identifiable without non-negativity; only what exceeds it says that single features agree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nonneg import charts, experiments, metrics
from nonneg.analyses import Analysis, Line, Subject, by_method


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Mean matched similarity over all pairs of seeds, its nulls, and each feature's stability."""
    zs = [subject.features("test").z for subject in subjects]
    out: dict[str, Any] = {"signed": any(bool((z.data < 0).any()) for z in zs)}
    for similarity in ("cosine", "correlation"):
        found = metrics.stability(zs, similarity=similarity, names=[subject.name for subject in subjects])
        out |= {
            similarity: found.mean,
            f"{similarity}_std": found.std,
            f"{similarity}_share": found.share,
            f"{similarity}_shuffled": found.shuffled.mean,
            f"{similarity}_rotated": found.rotated.mean,
            f"{similarity}_rotated_share": found.rotated.share,
        }
        if similarity == "cosine":
            out["scores"] = [[round(float(v), 3) for v in s if np.isfinite(v)] for s in found.scores]
    return out


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """Histograms of the features' stability, CL and NCL."""
    panels = {}
    for of in ANALYSIS.of:
        for method, called in experiments.find(of).methods.items():
            if line := lines.get(f"{of}-{method}"):
                panels[called if of == "maps" else f"{called}, {charts.NAMES[of]}"] = line["measures"]
    return charts.stability(panels) if panels else None


ANALYSIS = Analysis(
    of=("cifar10", "cifar100", "sprites", "maps"),
    ask=ask,
    group=by_method,
    test_alone=True,
    table={
        "cosine": ("mean |cosine| of matched features, x 100", 100.0),
        "cosine_rotated": ("mean |cosine| after a random rotation, x 100", 100.0),
        "cosine_shuffled": ("mean |cosine| with shuffled images, x 100", 100.0),
        "cosine_share": ("features matched above 0.5", 100.0),
        "cosine_rotated_share": ("features above 0.5 after a random rotation", 100.0),
        "correlation": ("mean |correlation| of matched features, x 100", 100.0),
        "correlation_rotated": ("mean |correlation| after a random rotation, x 100", 100.0),
    },
    draw=draw,
)
