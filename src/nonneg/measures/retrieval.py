"""Are a sample's nearest neighbours of its class?"""

import math

import numpy as np
import torch

from nonneg import metrics
from nonneg.measures.entry import ALL_ZERO, Entry, Features, all_zero, entry, numbers


def retrieval(
    train: Features, test: Features, *, k: int = 10, device: str | torch.device | None = None
) -> dict[str, Entry]:
    """Precision@k and mAP@k of z by cosine, each test sample against all others, and precision by prefix of features.

    k is at most the number of other samples. Prefixes hold the features of largest expected activation on training
    data: 1, 2, 4 and so on, and all.
    """
    d, k = test.z.shape[1], min(k, test.z.shape[0] - 1)
    order = np.argsort(-metrics.expected_activation(train.z, absolute=True), kind="stable")
    sizes = [2**i for i in range(d.bit_length()) if 2**i < d] + [d]
    sweep = metrics.retrieval_by_prefix(test.z, test.labels, order, sizes, k=k, device=device)
    whole = sweep[-1]
    how = {"k": k, "queries": whole["queries"], "left_out": whole["left_out"]}
    precision = f"share of the {k} nearest test samples by cosine of z that have the query's class, mean over queries"
    average = "mean average precision of the same, by "
    by = {
        "": (whole["map_min"], "min(k, R), R the other samples of the query's class"),
        "_hits": (whole["map_hits"], "the right ones among the k nearest"),
        "_relevant": (whole["map_relevant"], "R, the other samples of the query's class"),
    }
    chance = entry(
        _chance_of_a_pair(test.labels), "share of right answers among random test samples, mean over queries"
    )
    each = {"features": sizes, "precision": numbers([s["precision"] for s in sweep])}
    known = math.nan if all_zero(test.z) else 1.0  # where all samples are alike any is nearest
    how["why"] = ALL_ZERO.format("test")
    return {
        f"precision@{k}": entry(known * whole["precision"], precision, **how) | {"each": each},
        **{f"map@{k}{name}": entry(known * value, average + text, **how) for name, (value, text) in by.items()},
        "precision_chance": chance,
    }


def _chance_of_a_pair(labels: np.ndarray | None) -> float:
    """How often another sample, drawn at random, has the query's class; over queries that have another one."""
    assert labels is not None
    sizes = np.unique(labels, return_counts=True)[1]
    sizes = sizes[sizes > 1]
    return float((sizes * (sizes - 1)).sum() / (sizes.sum() * (len(labels) - 1)))
