"""What another run says of a feature: whether its images look alike to it, and whether it has the same feature."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from nonneg import metrics
from nonneg.measures.entry import Entry, entry, numbers
from nonneg.metrics.identifiability import Similarity


def monosemanticity(z: Any, judge: np.ndarray, *, name: str, eps: float = 1e-5) -> dict[str, Entry]:
    """Whether a feature's images look alike to another run's backbone; `judge` is its h of the same images."""
    found = metrics.monosemanticity(z, judge, centred=True, eps=eps)
    how = {"judge": name, "centred": True, "threshold": eps}
    counts = {"measured": found.measured, "single": found.single, "dead": found.dead}
    return {
        "monosemanticity": entry(
            found.mean,
            "cosine in the judge's backbone between two images of a feature, weighted by both activations, mean over "
            "features active on two images or more",
            why="no feature is active on two test samples",
            **how,
            **counts,
        )
        | {"each": numbers(found.per_feature)},
        "monosemanticity_baseline": entry(
            found.baseline,
            "the same of a feature equally active on all test images",
            why="the judge sees no two test images",
            **how,
        ),
    }


def identifiability(zs: Sequence[Any], *, names: Sequence[str], eps: float = 1e-5, seed: int = 0) -> dict[str, Entry]:
    """Whether runs find the same features: zs are features of the same images, those of the run measured first.

    `names` are those of the others. Beside each mean stand what shuffled images and what rotated features score.
    """
    found: dict[str, Entry] = {}
    called = ["the run measured", *names]
    for similarity in get_args(Similarity):
        what = f"|{similarity}|"
        stable = metrics.stability(zs, similarity=similarity, threshold=0.5, eps=eps, seed=seed, names=called)
        how = {"runs": list(names), "threshold": eps, "seed": seed}
        key = f"identifiability_{similarity}"
        mean = f"{what} of matched features (one to one, live ones only), mean over features and pairs of runs"
        found |= {
            key: entry(stable.mean, mean, deviation_over_pairs=stable.std, **how) | {"each": numbers(stable.scores[0])},
            f"{key}_shuffled": entry(stable.shuffled.mean, "the same when one run's images are in random order", **how),
            f"{key}_rotated": entry(
                stable.rotated.mean, "the same when one run's features are randomly rotated", **how
            ),
            f"{key}_share": entry(
                stable.share,
                f"share of matched features with {what} above 0.5",
                shuffled=stable.shuffled.share,
                rotated=stable.rotated.share,
                **how,
            ),
        }
    return found
