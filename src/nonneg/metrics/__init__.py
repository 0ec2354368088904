"""One function per question about features; each docstring is the definition, each threshold an argument."""

from nonneg.metrics.activation import expected_activation
from nonneg.metrics.consistency import (
    chance,
    class_consistency,
    per_feature_consistency,
    top10_consistency,
    top_k_chance,
)
from nonneg.metrics.correlation import correlation, effective_rank, orthogonality
from nonneg.metrics.disentanglement import sepin, sepin_at
from nonneg.metrics.retrieval import neighbour_overlap, neighbours, retrieval, retrieval_by_prefix, score
from nonneg.metrics.sparsity import active_per_sample, live, live_features, sparsity, zero_rows

__all__ = [
    "active_per_sample",
    "chance",
    "class_consistency",
    "correlation",
    "effective_rank",
    "expected_activation",
    "live",
    "live_features",
    "neighbour_overlap",
    "neighbours",
    "orthogonality",
    "per_feature_consistency",
    "retrieval",
    "retrieval_by_prefix",
    "score",
    "sepin",
    "sepin_at",
    "sparsity",
    "top10_consistency",
    "top_k_chance",
    "zero_rows",
]
