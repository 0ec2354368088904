"""One function per question about features; each docstring is the definition, each threshold an argument."""

from nonneg.metrics.activation import expected_activation
from nonneg.metrics.clusters import Agreement, agreement, by_largest, k_means, spectral_clustering
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
from nonneg.metrics.probabilities import (
    Calibration,
    calibration,
    counted_head,
    latent_posterior,
    latent_prior,
    least_squares_head,
    on_scale,
    one_class_head,
)
from nonneg.metrics.retrieval import neighbour_overlap, neighbours, retrieval, retrieval_by_prefix, tie_order
from nonneg.metrics.sparsity import active_per_sample, live, live_features, sparsity, zero_rows
from nonneg.metrics.spectrum import activation_spectrum, eigenvalues, fall_after
from nonneg.metrics.words import Words, word_scores

__all__ = [
    "Agreement",
    "Calibration",
    "Matching",
    "Monosemanticity",
    "Null",
    "Side",
    "Stability",
    "Words",
    "activation_spectrum",
    "active_per_sample",
    "agreement",
    "by_largest",
    "calibration",
    "chance",
    "class_consistency",
    "correlation",
    "counted_head",
    "dci",
    "effective_rank",
    "eigenvalues",
    "expected_activation",
    "fall_after",
    "k_means",
    "latent_posterior",
    "latent_prior",
    "least_squares_head",
    "live",
    "live_features",
    "match_features",
    "mig",
    "modality_balance",
    "monosemanticity",
    "neighbour_overlap",
    "neighbours",
    "on_scale",
    "one_class_head",
    "orthogonality",
    "pair_agreement",
    "per_feature_consistency",
    "recall",
    "retrieval",
    "retrieval_by_prefix",
    "rotated_null",
    "sap",
    "sepin",
    "sepin_at",
    "shuffled_null",
    "sparsity",
    "spectral_clustering",
    "stability",
    "tie_order",
    "top10_consistency",
    "top_k_chance",
    "word_scores",
    "zero_rows",
]
