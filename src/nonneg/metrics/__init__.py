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
from nonneg.metrics.cross_modal import modality_balance, pair_agreement, recall
from nonneg.metrics.disentanglement import sepin, sepin_at
from nonneg.metrics.factors import dci, mig, sap
from nonneg.metrics.identifiability import (
    Matching,
    Null,
    Side,
    Stability,
    match_features,
    rotated_null,
    shuffled_null,
    stability,
)
from nonneg.metrics.monosemanticity import Monosemanticity, monosemanticity
from nonneg.metrics.retrieval import neighbour_overlap, neighbours, retrieval, retrieval_by_prefix, score
from nonneg.metrics.sparsity import active_per_sample, live, live_features, sparsity, zero_rows
from nonneg.metrics.spectrum import activation_spectrum, eigenvalues, fall_after
from nonneg.metrics.words import Words, word_scores

__all__ = [
    "Matching",
    "Monosemanticity",
    "Null",
    "Side",
    "Stability",
    "Words",
    "activation_spectrum",
    "active_per_sample",
    "chance",
    "class_consistency",
    "correlation",
    "dci",
    "effective_rank",
    "eigenvalues",
    "expected_activation",
    "fall_after",
    "live",
    "live_features",
    "match_features",
    "mig",
    "modality_balance",
    "monosemanticity",
    "neighbour_overlap",
    "neighbours",
    "orthogonality",
    "pair_agreement",
    "per_feature_consistency",
    "recall",
    "retrieval",
    "retrieval_by_prefix",
    "rotated_null",
    "sap",
    "score",
    "sepin",
    "sepin_at",
    "shuffled_null",
    "sparsity",
    "stability",
    "top10_consistency",
    "top_k_chance",
    "word_scores",
    "zero_rows",
]
