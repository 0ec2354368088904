"""Is a sample's largest feature its cluster?"""

import math
from typing import Any

import numpy as np

from nonneg import metrics
from nonneg.errors import BadInput
from nonneg.measures.entry import ALL_ZERO, Entry, Features, all_zero, entry


def clusters(test: Features, *, most: int = 10_000, seed: int = 0) -> dict[str, Entry]:
    """Each sample's largest feature as its cluster, beside k-means and spectral clustering of the same features.

    At most so many test samples are taken, drawn at random; k-means also with as many clusters as there are largest
    features, since purity rises with their number.
    """
    assert test.labels is not None
    n = test.z.shape[0]
    chosen = np.sort(np.random.default_rng(seed).permutation(n)[:most])
    z, labels = test.z[chosen], test.labels[chosen]
    classes = len(np.unique(labels))
    if classes < 2:
        raise BadInput("the test data have a single class: no clusters are to be told apart")
    largest = metrics.by_largest(z)
    kinds = len(np.unique(largest))
    enough = 2 * classes < len(labels)  # else a cluster is about a sample, and there are too few eigenvectors
    ways = {
        "argmax": ("the largest feature as the cluster", largest),
        "kmeans": (
            f"k-means of unit rows, {classes} clusters as there are classes",
            metrics.k_means(z, classes, seed=seed) if enough else None,
        ),
        "kmeans_many": (
            f"k-means of unit rows, {kinds} clusters as there are largest features",
            metrics.k_means(z, kinds, seed=seed),
        ),
        "spectral": (
            f"spectral clustering of 10 nearest by cosine, {classes} clusters",
            metrics.spectral_clustering(z, classes, seed=seed) if enough else None,
        ),
    }
    found = {}
    zero = all_zero(z)
    known = math.nan if zero else 1.0  # where all samples are alike there are no clusters
    why = (
        ALL_ZERO.format("test") if zero else f"{classes} classes of {len(labels)} test samples leave a cluster too few"
    )
    unknown = metrics.Agreement(classes, math.nan, math.nan, math.nan)
    for name, (text, cluster) in ways.items():
        agrees = unknown if cluster is None else metrics.agreement(cluster, labels)
        how: dict[str, Any] = {"clusters": agrees.clusters, "samples": len(labels), "seed": seed, "why": why}
        found |= {
            f"{name}_nmi": entry(
                known * agrees.nmi, f"normalised mutual information of class and cluster: {text}", **how
            ),
            f"{name}_purity": entry(
                known * agrees.purity, f"share of test samples of their cluster's most frequent class: {text}", **how
            ),
            f"{name}_accuracy": entry(
                known * agrees.accuracy,
                f"share of right samples, clusters matched to classes one to one: {text}",
                **how,
            ),
        }
    return found
