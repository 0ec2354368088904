"""Everything we measure about features, each number with its definition. N images, D features, d backbone outputs.

Measures come in groups: `measure` is the basic one, the functions below it are the others that need features alone, and
`on_images` holds those that need the model. An entry is its value, its definition and its parameters; `each` holds what
the value sums up (one number a feature, a prefix, a factor), for the plots.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

import numpy as np
import torch

from nonneg import metrics, probes
from nonneg.errors import BadInput
from nonneg.metrics.identifiability import Similarity
from nonneg.progress import track

Entry = dict[str, Any]
LIGHT = ("basic", "sepin", "retrieval", "spectrum", "monosemanticity", "identifiability", "factors", "ood")
HEAVY = ("probe", "tune", "corruptions")
SEPIN_AT = (1, 10, 100)


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


def why_no_probe(labels: np.ndarray | None) -> str:
    """Why no probe can learn from these labels, or nothing: it takes two classes, and two samples of one of them."""
    if labels is None:
        return "the training data have no labels"
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
        return "the training data have a single class"
    return "" if counts.max() > 1 else "no class has two training samples"


def sepin(f: Any, g: Any, *, views: str, seed: int) -> dict[str, Entry]:
    """SEPIN@1, @10, @100 and all, of the features f and g (N x D) of two views of the same images.

    `views` and `seed` say how these were made. What asks for more features than there are has no value.
    """
    values = metrics.sepin(f, g, temperature=1.0, weights="mean")
    how = {"images": f.shape[0], "views": views, "seed": seed}
    how |= {"temperature": 1.0, "weights": "mean", "rows": "unit length, not again after a feature is dropped"}
    loss = "rise of the contrastive loss between two views of the test images when the feature is dropped, in nats"
    found = {
        f"sepin@{k}": entry(
            metrics.sepin_at(values, k) if k <= len(values) else math.nan,
            f"mean of the {k} largest of: {loss}",
            k=k,
            **how,
        )
        for k in SEPIN_AT
    }
    all_of_them = entry(metrics.sepin_at(values, len(values)), f"mean over all features of: {loss}", **how)
    return found | {"sepin@all": all_of_them | {"each": _numbers(values)}}


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
    each = {"features": sizes, "precision": _numbers([s["precision"] for s in sweep])}
    return {
        f"precision@{k}": entry(whole["precision"], precision, **how) | {"each": each},
        **{f"map@{k}{name}": entry(value, average + text, **how) for name, (value, text) in by.items()},
        "precision_chance": chance,
    }


def spectrum(train: Features, test: Features) -> dict[str, Entry]:
    """How many directions and how many features carry the data; no value where every feature is zero."""
    values = metrics.eigenvalues(test.z)
    used = metrics.activation_spectrum(train.z, absolute=True)
    found = {
        "eigenvalues_top": entry(
            _share_of_largest(values, 10),
            "share of the 10 largest eigenvalues of the mean of z z^T over test samples, not centred, in their sum",
            largest=10,
        )
        | {"each": _numbers(_shares(values))},
        "eigenvalues_90": entry(_how_many(values, 0.9), "how many of the largest eigenvalues hold 90 % of their sum"),
        "activations_90": entry(
            _how_many(used, 0.9),
            "how many of the most used features hold 90 % of the total expected activation (training samples)",
        )
        | {"each": _numbers(_shares(used))},
    }
    if train.labels is not None:
        classes = len(np.unique(train.labels))
        found["activation_fall"] = entry(
            metrics.fall_after(used, classes),
            "1 - EA_2C / EA_C, EA_i the i-th largest expected activation (training samples), C the number of classes: "
            "0 where features are used alike, 1 where C of them are used and no more",
            classes=classes,
        )
    return found


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
            **how,
            **counts,
        )
        | {"each": _numbers(found.per_feature)},
        "monosemanticity_baseline": entry(
            found.baseline, "the same of a feature equally active on all test images", **how
        ),
    }


def identifiability(zs: Sequence[Any], *, names: Sequence[str], eps: float = 1e-5, seed: int = 0) -> dict[str, Entry]:
    """Whether runs find the same features: zs are features of the same images, those of the run measured first.

    Beside each mean stand what shuffled images and what rotated features score.
    """
    found: dict[str, Entry] = {}
    for similarity in get_args(Similarity):
        what = f"|{similarity}|"
        stable = metrics.stability(zs, similarity=similarity, threshold=0.5, eps=eps, seed=seed)
        how = {"runs": list(names), "threshold": eps, "seed": seed}
        key = f"identifiability_{similarity}"
        mean = f"{what} of matched features (one to one, live ones only), mean over features and pairs of runs"
        found |= {
            key: entry(stable.mean, mean, deviation_over_pairs=stable.std, **how)
            | {"each": _numbers(stable.scores[0])},
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


def factors(z: Any, table: np.ndarray, *, names: Sequence[str], seed: int = 0) -> dict[str, Entry]:
    """MIG, SAP and DCI of test features against the known factors of their images, N x F, but for constant ones."""
    mig, sap, dci = metrics.mig(z, table), metrics.sap(z, table, seed=seed), metrics.dci(z, table, seed=seed)
    constant = [names[i] for i in mig.constant]
    left_out = {"left_out_as_constant": constant} if constant else {}

    def by(values: np.ndarray) -> dict[str, float | None]:
        return dict(zip((names[i] for i in mig.used), _numbers(values), strict=True))

    gap = "between the two best features for a factor, mean over factors"
    forests = "in forests that tell each factor from all features"
    return {
        "mig": entry(mig.score, f"gap of mutual information / entropy {gap}", bins=20, binning="width", **left_out)
        | {"each": by(mig.gaps)},
        "sap": entry(sap.score, f"gap of accuracy {gap}", bins=20, binning="width", seed=seed, **left_out)
        | {"each": by(sap.gaps)},
        "dci_disentanglement": entry(
            dci.disentanglement, f"how much a feature's importance {forests} is for one factor", seed=seed, **left_out
        ),
        "dci_completeness": entry(
            dci.completeness, f"how much a factor's importance {forests} is in one feature", seed=seed, **left_out
        )
        | {"each": by(dci.completeness_by_factor)},
        "dci_informativeness": entry(
            dci.informativeness,
            "accuracy of these forests on held-out test samples, mean over factors",
            chance=float(dci.chance_by_factor.mean()),
            seed=seed,
            **left_out,
        )
        | {"each": by(dci.accuracy_by_factor)},
    }


def _unlabelled(train: Features, test: Features, *, eps: float) -> dict[str, Callable[[], Entry]]:
    z, at = test.z, {"threshold": eps}
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
        "orthogonality": lambda: entry(
            metrics.orthogonality(z, eps=eps),
            "mean |cosine| between the columns of different live features, not centred; 0 when orthogonal",
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
        ),
        "expected_activation_top": lambda: entry(
            _share_of_largest(metrics.expected_activation(train.z, absolute=True), 10),
            "share of the total expected activation held by the 10 largest; expected activation is the mean over "
            "training samples of |z| / length of z",
            largest=10,
        ),
    }


def _labelled(z: Any, labels: np.ndarray, *, eps: float, k: int) -> dict[str, Callable[[], Entry]]:
    at = {"threshold": eps}
    return {
        "class_consistency": lambda: entry(
            metrics.class_consistency(z, labels, eps=eps),
            "share of the most frequent class among the samples a feature is active on, mean over live features",
            **at,
        ),
        "class_consistency_weighted": lambda: entry(
            metrics.class_consistency(z, labels, eps=eps, weighted=True),
            "class consistency, features weighted by the number of samples they are active on",
            **at,
        ),
        "chance": lambda: entry(
            metrics.chance(labels), "share of the largest class: the class consistency of a feature that always fires"
        ),
        "top10_consistency": lambda: entry(
            metrics.top10_consistency(z, labels, k=k, eps=eps),
            "share of the most frequent class among the k samples of largest |z| (all active ones where fewer), "
            "mean over live features",
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

    return {
        "linear_probe": lambda: linear(train.h, test.h, "the backbone outputs h"),
        "knn": lambda: nearest(train.h, test.h, "the backbone outputs h"),
        "linear_probe_z": lambda: linear(train.z, test.z, "the features z"),
        "knn_z": lambda: nearest(train.z, test.z, "the features z"),
    }


def entry(value: float, definition: str, **parameters: Any) -> Entry:
    undefined = isinstance(value, float) and not math.isfinite(value)  # JSON has no nan
    return {"value": None if undefined else value, "definition": definition, **parameters}


def _numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Numbers for JSON, six digits of each; None where there is none."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values]


def _chance_of_a_pair(labels: np.ndarray | None) -> float:
    """How often another sample, drawn at random, has the query's class; over queries that have another one."""
    assert labels is not None
    sizes = np.unique(labels, return_counts=True)[1]
    sizes = sizes[sizes > 1]
    return float((sizes * (sizes - 1)).sum() / (sizes.sum() * (len(labels) - 1)))


def _shares(values: np.ndarray) -> np.ndarray:
    total = values.sum()
    return values / total if total > 0 else values


def _how_many(values: np.ndarray, share: float) -> float:
    """How many of the largest values it takes to reach a share of their sum; nan where that is zero."""
    reached = np.cumsum(np.sort(values)[::-1])
    return int(np.searchsorted(reached, share * reached[-1]) + 1) if reached[-1] > 0 else math.nan


def _mean(counts: np.ndarray) -> float:
    return float(counts.mean()) if len(counts) else math.nan


def _median(counts: np.ndarray) -> float:
    return float(np.median(counts)) if len(counts) else math.nan


def _share_of_largest(values: np.ndarray, n: int) -> float:
    total = values.sum()
    return float(np.sort(values)[-n:].sum() / total) if total > 0 else math.nan
