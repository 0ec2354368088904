"""What is measured of every run: zeros, live features, one class a feature, probes. N samples, D features."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from nonneg import metrics, probes
from nonneg.errors import BadInput
from nonneg.measures.entry import ALL_ZERO, NO_LIVE, Entry, Features, entry, numbers, share_of_largest, why_no_probe
from nonneg.progress import track


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
    todo = basic(train, test, eps=eps, k=k, seed=seed, device=device)
    return {name: take() for name, take in track(todo.items(), "measuring", len(todo))}


def basic(
    train: Features,
    test: Features,
    *,
    eps: float = 1e-5,
    k: int = 10,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> dict[str, Callable[[], Entry]]:
    """What `measure` measures, each still to be taken."""
    if train.z.shape[1] != test.z.shape[1]:
        raise BadInput(f"training z has {train.z.shape[1]} features, test z {test.z.shape[1]}: use one model for both")
    todo = _unlabelled(train, test, eps=eps)
    if test.labels is not None:
        todo |= _labelled(test.z, test.labels, eps=eps, k=k)
        if not why_no_probe(train.labels):
            todo |= _probed(train, test, seed=seed, device=device)
    return todo


def classified(labels: np.ndarray | None, logits: np.ndarray, dead: np.ndarray, *, why: str) -> dict[str, Entry]:
    """What a classifier says by itself: its logits of the test samples (N x C), and which of its weights are dead.

    `why` says why there are no labels, where there are none.
    """
    right = math.nan if labels is None else float((logits.argmax(1) == labels).mean())
    return {
        "test_accuracy": entry(
            right,
            "share of test samples whose largest logit is that of their class: the classifier itself, not a probe",
            why=why,
        ),
        "dead_weights": entry(float(dead.mean()), "share of the C x D class weights that no gradient reaches any more"),
    }


def _unlabelled(train: Features, test: Features, *, eps: float) -> dict[str, Callable[[], Entry]]:
    z = test.z
    at: dict[str, Any] = {"threshold": eps}
    width = z.shape[1]
    return {
        "sparsity": lambda: entry(
            metrics.sparsity(z, eps=eps), "share of features with |z| below the threshold, mean over test samples", **at
        ),
        "active_per_sample": lambda: entry(
            _mean(metrics.active_per_sample(z, eps=eps)),
            "number of features with |z| at or above the threshold, mean over test samples",
            **at,
        ),
        "active_per_sample_median": lambda: entry(
            _median(metrics.active_per_sample(z, eps=eps)),
            "number of features with |z| at or above the threshold, median over test samples",
            **at,
        ),
        "active_least": lambda: entry(
            _least(metrics.active_per_sample(z, eps=eps)),
            "number of features with |z| at or above the threshold, on the test sample with the fewest",
            **at,
        ),
        "active_under_20": lambda: entry(
            _mean(metrics.active_per_sample(z, eps=eps) < 20),
            "share of test samples with fewer than 20 features at or above the threshold",
            **at,
        ),
        "orthogonality": lambda: entry(
            metrics.orthogonality(z, eps=eps),
            "mean |cosine| between the columns of different live features, not centred; 0 when orthogonal",
            why="fewer than two features are live on the test samples",
            **at,
        ),
        "features": lambda: entry(width, "number of features, the columns of z"),
        "live_features": lambda: entry(
            metrics.live_features(z, eps=eps),
            "number of features with |z| at or above the threshold on at least one test sample",
            **at,
        ),
        "dead_features": lambda: entry(
            width - metrics.live_features(z, eps=eps),
            "number of features with |z| below the threshold on every test sample",
            **at,
        ),
        "zero_rows": lambda: entry(metrics.zero_rows(z), "number of test samples whose features are all exactly zero"),
        "effective_rank": lambda: entry(
            metrics.effective_rank(z),
            "exp of the entropy of the singular values of z, scaled to sum to 1; not centred (Roy & Vetterli 2007)",
            why=ALL_ZERO.format("test"),
        ),
        "expected_activation_top": lambda: entry(
            share_of_largest(metrics.expected_activation(train.z, absolute=True), 10),
            "share of the total expected activation held by the 10 largest; expected activation is the mean over "
            "training samples of |z| / length of z",
            why=ALL_ZERO.format("training"),
            largest=10,
        ),
    }


def _labelled(z: Any, labels: np.ndarray, *, eps: float, k: int) -> dict[str, Callable[[], Entry]]:
    at: dict[str, Any] = {"threshold": eps}
    return {
        "class_consistency": lambda: (
            entry(
                metrics.class_consistency(z, labels, eps=eps),
                "share of the most frequent class among the samples a feature is active on, mean over live features",
                why=NO_LIVE,
                **at,
            )
            | {"each": numbers(metrics.per_feature_consistency(z, labels, eps=eps), digits=4)}
        ),
        "class_consistency_weighted": lambda: entry(
            metrics.class_consistency(z, labels, eps=eps, weighted=True),
            "class consistency, features weighted by the number of samples they are active on",
            why=NO_LIVE,
            **at,
        ),
        "chance": lambda: entry(
            metrics.chance(labels), "share of the largest class: the class consistency of a feature that always fires"
        ),
        "top10_consistency": lambda: entry(
            metrics.top10_consistency(z, labels, k=k, eps=eps),
            "share of the most frequent class among the k samples of largest |z| (all active ones where fewer), "
            "mean over live features",
            why=NO_LIVE,
            k=k,
            **at,
        ),
        "top10_chance": lambda: entry(
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
        return entry(
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
        return entry(
            accuracy,
            f"test accuracy when the k nearest training samples by cosine of {what} vote with weight "
            "exp(cosine / temperature)",
            k=neighbours,
            temperature=temperature,
        )

    def counted() -> Entry:
        classes = 1 + int(max(y.max(), answer.max()))
        head = metrics.counted_head(train.z, y, classes)
        heads = head, metrics.one_class_head(head), metrics.least_squares_head(train.z, head)
        right, one_class, least = (float(((test.z @ w).argmax(axis=1) == answer).mean()) for w in heads)
        return entry(
            right,
            "test accuracy of the largest z . w_y, w_y the mean over training samples of z where the class is y, of 0 "
            "elsewhere: the paper's closed-form head, counted in one pass",
            one_class=one_class,
            least_squares=least,
        )

    return {
        "linear_probe": lambda: linear(train.h, test.h, "the backbone outputs h"),
        "knn": lambda: nearest(train.h, test.h, "the backbone outputs h"),
        "linear_probe_z": lambda: linear(train.z, test.z, "the features z"),
        "knn_z": lambda: nearest(train.z, test.z, "the features z"),
        "counted_probe_z": counted,
    }


def _mean(counts: np.ndarray) -> float:
    return float(counts.mean()) if len(counts) else math.nan


def _least(counts: np.ndarray) -> float:
    return int(counts.min()) if len(counts) else math.nan


def _median(counts: np.ndarray) -> float:
    return float(np.median(counts)) if len(counts) else math.nan
