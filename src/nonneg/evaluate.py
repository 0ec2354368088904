"""Everything we measure about features, each number with its definition. N images, D features, d backbone outputs."""

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from nonneg import metrics, probes
from nonneg.errors import BadInput
from nonneg.progress import track

Entry = dict[str, Any]


class Features(Protocol):
    """What is measured: backbone outputs h (N x d), features z (N x D, sparse or dense), labels (N) where known."""

    @property
    def h(self) -> np.ndarray: ...
    @property
    def z(self) -> Any: ...
    @property
    def labels(self) -> np.ndarray | None: ...


def measure(
    train: Features,
    test: Features,
    *,
    eps: float = 1e-5,
    k: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> dict[str, Entry]:
    """Every measurement by name: its value (None where it is not defined), its definition and its parameters.

    All are taken on the test features, but for expected activation and what the probes learn from. What needs labels
    is left out where there are none; the probes also where the training data have a single class, or single samples.
    """
    if train.z.shape[1] != test.z.shape[1]:
        raise BadInput(f"training z has {train.z.shape[1]} features, test z {test.z.shape[1]}: use one model for both")
    todo = _unlabelled(train, test, eps=eps)
    if test.labels is not None:
        todo |= _labelled(test.z, test.labels, eps=eps, k=k)
        if train.labels is not None and _can_probe(train.labels):
            todo |= _probed(train, test, seed=seed, device=device)
    return {name: take() for name, take in track(todo.items(), "measuring", len(todo))}


def _can_probe(labels: np.ndarray) -> bool:
    """Whether a probe has something to learn and something to hold out: two classes, one of them with two samples."""
    _, counts = np.unique(labels, return_counts=True)
    return len(counts) > 1 and counts.max() > 1


def _unlabelled(train: Features, test: Features, *, eps: float) -> dict[str, Callable[[], Entry]]:
    z, at = test.z, {"threshold": eps}
    width = z.shape[1]
    return {
        "sparsity": lambda: _entry(
            metrics.sparsity(z, eps=eps), "share of features with |z| below the threshold, mean over test samples", **at
        ),
        "active_per_sample": lambda: _entry(
            _mean(metrics.active_per_sample(z, eps=eps)),
            "number of features with |z| at or above the threshold, mean over test samples",
            **at,
        ),
        "active_per_sample_median": lambda: _entry(
            _median(metrics.active_per_sample(z, eps=eps)),
            "number of features with |z| at or above the threshold, median over test samples",
            **at,
        ),
        "orthogonality": lambda: _entry(
            metrics.orthogonality(z, eps=eps),
            "mean |cosine| between the columns of different live features, not centred; 0 when orthogonal",
            **at,
        ),
        "features": lambda: _entry(width, "number of features, the columns of z"),
        "live_features": lambda: _entry(
            metrics.live_features(z, eps=eps),
            "number of features with |z| at or above the threshold on at least one test sample",
            **at,
        ),
        "dead_features": lambda: _entry(
            width - metrics.live_features(z, eps=eps),
            "number of features with |z| below the threshold on every test sample",
            **at,
        ),
        "zero_rows": lambda: _entry(metrics.zero_rows(z), "number of test samples whose features are all exactly zero"),
        "effective_rank": lambda: _entry(
            metrics.effective_rank(z),
            "exp of the entropy of the singular values of z, scaled to sum to 1; not centred (Roy & Vetterli 2007)",
        ),
        "expected_activation_top": lambda: _entry(
            _share_of_largest(metrics.expected_activation(train.z, absolute=True), 10),
            "share of the total expected activation held by the 10 largest; expected activation is the mean over "
            "training samples of |z| / length of z",
            largest=10,
        ),
    }


def _labelled(z: Any, labels: np.ndarray, *, eps: float, k: int) -> dict[str, Callable[[], Entry]]:
    at = {"threshold": eps}
    return {
        "class_consistency": lambda: _entry(
            metrics.class_consistency(z, labels, eps=eps),
            "share of the most frequent class among the samples a feature is active on, mean over live features",
            **at,
        ),
        "class_consistency_weighted": lambda: _entry(
            metrics.class_consistency(z, labels, eps=eps, weighted=True),
            "class consistency, features weighted by the number of samples they are active on",
            **at,
        ),
        "chance": lambda: _entry(
            metrics.chance(labels), "share of the largest class: the class consistency of a feature that always fires"
        ),
        "top10_consistency": lambda: _entry(
            metrics.top10_consistency(z, labels, k=k, eps=eps),
            "share of the most frequent class among the k samples of largest |z| (all active ones where fewer), "
            "mean over live features",
            k=k,
            **at,
        ),
        "top10_chance": lambda: _entry(
            metrics.top_k_chance(labels, k), "expected share of the most frequent class among k random samples", k=k
        ),
    }


def _probed(
    train: Features, test: Features, *, seed: int, device: str | torch.device | None
) -> dict[str, Callable[[], Entry]]:
    y, answer = train.labels, test.labels
    assert y is not None and answer is not None

    def linear(train_x: Any, test_x: Any, what: str) -> Entry:
        found = probes.linear_probe(train_x, y, test_x, answer, seed=seed, device=device)
        return _entry(
            found.accuracy,
            f"test accuracy of logistic regression on {what}, standardised; l2 chosen on a fifth of the training data",
            l2=found.l2,
            validation_accuracy=found.validation_accuracy,
            converged=found.converged,
            seed=seed,
        )

    def nearest(train_x: Any, test_x: Any, what: str) -> Entry:
        neighbours, temperature = probes.default_k(len(y)), 0.1
        accuracy = probes.knn(train_x, y, test_x, answer, k=neighbours, temperature=temperature, device=device)
        return _entry(
            accuracy,
            f"test accuracy when the k nearest training samples by cosine of {what} vote with weight "
            "exp(cosine / temperature)",
            k=neighbours,
            temperature=temperature,
        )

    return {
        "linear_probe": lambda: linear(train.h, test.h, "the backbone outputs h"),
        "knn": lambda: nearest(train.h, test.h, "the backbone outputs h"),
        "linear_probe_z": lambda: linear(train.z, test.z, "the features z"),
        "knn_z": lambda: nearest(train.z, test.z, "the features z"),
    }


def _entry(value: float, definition: str, **parameters: Any) -> Entry:
    undefined = isinstance(value, float) and not math.isfinite(value)  # JSON has no nan
    return {"value": None if undefined else value, "definition": definition, **parameters}


def _mean(counts: np.ndarray) -> float:
    return float(counts.mean()) if len(counts) else math.nan


def _median(counts: np.ndarray) -> float:
    return float(np.median(counts)) if len(counts) else math.nan


def _share_of_largest(values: np.ndarray, n: int) -> float:
    total = values.sum()
    return float(np.sort(values)[-n:].sum() / total) if total > 0 else math.nan
