"""Everything we measure about features, each number with its definition. N images, D features, d backbone outputs.

Measures come in groups: `measure` is the basic one, the functions below it are the others that need features alone, and
`on_images` holds those that need the model. An entry is its value, its definition and its parameters, and where it has
no value, `why`; `each` holds what the value sums up (one number a feature, a prefix, a factor), for the plots.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, get_args

import numpy as np
import torch

from nonneg import metrics, probes, selection
from nonneg.errors import BadInput
from nonneg.metrics.identifiability import Similarity
from nonneg.metrics.sparsity import as_csr
from nonneg.progress import track

Entry = dict[str, Any]
LIGHT = (
    "basic",
    "sepin",
    "retrieval",
    "selection",
    "spectrum",
    "probabilities",
    "clusters",
    "monosemanticity",
    "identifiability",
    "factors",
    "ood",
)
HEAVY = ("probe", "tune", "corruptions")
ALL_ZERO = "every feature is zero on every {} sample"
NO_LABELS = "the {} data have no labels"
NO_LIVE = "no feature is live on the test samples"
SEPIN_AT = (1, 10, 100)
BYTES = (2, 4, 8, 16, 32, 64, 128)  # per vector
BYTES_SHOWN = (4, 16, 64)
BYTES_BY = (  # ways to shorten, bits of a value
    (("features",), (32, 8, 4, 1)),
    (("pca",), (8, 1)),
    (("projection",), (8, 1)),
    (("activations",), ()),
)
KEPT = (1 / 8, 1 / 4, 1)  # of the features


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


def why_no_probe(labels: np.ndarray | None) -> str:
    """Why no probe can learn from these labels, or nothing: it takes two classes, and two samples of one of them."""
    if labels is None:
        return NO_LABELS.format("training")
    _, counts = np.unique(labels, return_counts=True)
    if len(counts) < 2:
        return "the training data have a single class"
    return "" if counts.max() > 1 else "no class has two training samples"


def sepin(
    f: Any, g: Any, *, views: str, seed: int, temperature: float | None = None, few: int = 1000
) -> dict[str, Entry]:
    """SEPIN@1, @10, @100 and all, of the features f and g (N x D) of two views of the same images.

    `views` and `seed` say how these were made. Beside it, at the temperature of training, and with rows of length 1
    again after a feature is dropped, which is slow and taken on `few` of the images. What asks for more features than
    there are has no value, nor has what asks for the temperature of a loss without one.
    """
    some = np.sort(np.random.default_rng(seed).permutation(f.shape[0])[:few])
    made = {"views": views, "seed": seed}
    return {
        **_sepin("sepin", f, g, temperature=1.0, **made),
        **_sepin("sepin_training", f, g, temperature=temperature, **made),
        **_sepin("sepin_renormalised", f[some], g[some], temperature=1.0, renormalise=True, **made),
    }


def _sepin(
    name: str,
    f: Any,
    g: Any,
    *,
    temperature: float | None,
    renormalise: bool = False,
    **made: Any,
) -> dict[str, Entry]:
    images, width = f.shape
    rows = f"unit length, {'and' if renormalise else 'not'} again after a feature is dropped"
    how = {"images": images, **made, "weights": "mean", "rows": rows}
    at = "the temperature of training"
    values, why = np.zeros(0), "the loss of this run has no temperature"
    if temperature is not None:
        values = metrics.sepin(f, g, temperature=temperature, weights="mean", renormalise=renormalise)
        at, why, how["temperature"] = f"temperature {temperature:g}", f"there are {width} features", temperature
    loss = (
        f"rise of the contrastive loss between two views of {images} test images when the feature is dropped, in nats; "
        f"at {at}; negatives: all other images of the second view; rows: {rows}"
    )

    def mean(most: int, which: str, **more: Any) -> Entry:
        value = metrics.sepin_at(values, most) if most <= len(values) else math.nan
        return entry(value, f"mean {which} of: {loss}", why=why, **more, **how)

    return {
        **{f"{name}@{k}": mean(k, f"of the {k} largest", k=k) for k in SEPIN_AT},
        f"{name}@all": mean(width, "over all features") | {"each": _numbers(values)},
    }


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
    known = math.nan if _all_zero(test.z) else 1.0  # where all samples are alike any is nearest
    how["why"] = ALL_ZERO.format("test")
    return {
        f"precision@{k}": entry(known * whole["precision"], precision, **how) | {"each": each},
        **{f"map@{k}{name}": entry(known * value, average + text, **how) for name, (value, text) in by.items()},
        "precision_chance": chance,
    }


def selected(
    train: Features,
    test: Features,
    *,
    k: int = 10,
    queries: int = 1000,
    samples: int = 5000,
    seed: int = 0,
    device: str | torch.device | None = None,
) -> dict[str, Entry]:
    """How short z may be: precision@k against bytes per vector, and probe and precision with a share of the features.

    At most so many test samples are queries, and at most so many training samples are learned from, drawn at random.
    """
    assert test.labels is not None
    if _all_zero(test.z):  # every order of neighbours would be as good
        raise BadInput(ALL_ZERO.format("test"))
    rng = np.random.default_rng(seed)
    asked, learned = (np.sort(rng.permutation(f.z.shape[0])[:most]) for f, most in ((test, queries), (train, samples)))
    z, k, width = train.z[learned], min(k, test.z.shape[0] - 1), test.z.shape[1]
    rows = [
        row
        for ways, bits in BYTES_BY
        for row in selection.curve(
            z,
            test.z,
            test.labels,
            budgets=BYTES,
            reductions=ways,
            bits=bits,
            k=k,
            queries=asked,
            rng=np.random.default_rng(seed),
            device=device,
        )
    ]
    how: dict[str, Any] = {"k": k, "queries": len(asked), "training_samples": len(learned), "seed": seed}
    text = f"precision@{k} (group retrieval) of {len(asked)} test samples as queries, drawn at random, with "
    whole = next(row for row in rows if row.kept == width and row.bytes == selection.bytes_per_vector(width, bits=32))
    found = {"precision_bytes_whole": entry(whole.precision, f"{text}all features in floats", bytes=whole.bytes, **how)}
    found["precision_bytes_whole"]["each"] = [
        {"method": row.method, "bytes": row.bytes, "precision": _numbers([row.precision])[0]} for row in rows
    ]
    largest = [row for row in rows if row.method.startswith("activations")]
    for size in BYTES_SHOWN:
        row = max((row for row in largest if row.bytes <= size), key=lambda row: row.bytes, default=None)
        found[f"precision_bytes_{size}"] = entry(
            row.precision if row else math.nan,
            f"{text}each sample's largest activations in {size} bytes: an index and 8 bits each, in steps taken from "
            f"{len(learned)} training samples",
            why=f"one activation of {width} features takes more",
            **({"kept": row.kept, "bytes": row.bytes} if row else {}),
            **how,
        )
    return found | _kept(train, test, asked, learned, k=k, how=how, seed=seed, device=device)


def _kept(
    train: Features,
    test: Features,
    asked: np.ndarray,
    learned: np.ndarray,
    *,
    k: int,
    how: dict[str, Any],
    seed: int,
    device: str | torch.device | None,
) -> dict[str, Entry]:
    """Probe and precision with the features of largest expected activation, and with as many at random."""
    assert test.labels is not None
    y, z, of_test = None if train.labels is None else train.labels[learned], as_csr(train.z)[learned], as_csr(test.z)
    width, relu = z.shape[1], not (z.data < 0).any()
    own = {"activation": ("activation", relu, relu), "random": ("random", False, relu)}
    sizes = sorted({max(1, round(share * width)) for share in KEPT})
    no_probe = why_no_probe(y)
    accuracy: dict[tuple[bool, tuple[int, ...]], float] = {}  # all features are the same whatever their order
    rows = []
    for by, in_ranking, in_features in own.values() if relu else selection.WAYS:
        order = selection.rank(z, by=by, relu=in_ranking, rng=np.random.default_rng(seed))
        here, there = (x.maximum(0) if in_features else x for x in (z, of_test))
        near = metrics.retrieval_by_prefix(there, test.labels, order, sizes, k=k, queries=asked, device=device)
        for size, retrieved in zip(sizes, near, strict=True):
            chosen = tuple(sorted(order[:size].tolist()))
            if y is not None and not no_probe and (in_features, chosen) not in accuracy:
                kept = (selection.keep_features(x, np.array(chosen)) for x in (here, there))
                probe = probes.linear_probe(next(kept), y, next(kept), test.labels, seed=seed, device=device)
                accuracy[in_features, chosen] = probe.accuracy
            rows.append({
                "by": by,
                "relu_in_ranking": in_ranking,
                "relu_in_features": in_features,
                "kept": size,
                "precision": _numbers([retrieved["precision"]])[0],
                "probe": accuracy.get((in_features, chosen)),
            })  # fmt: skip
    quarter = max(1, round(width / 4))
    shown = {
        row["by"]: row
        for row in rows
        if (row["kept"], row["by"], row["relu_in_ranking"], row["relu_in_features"]) == (quarter, *own[row["by"]])
    }
    said = "a quarter of the features, those of largest expected activation on training samples"
    texts = {
        "precision": f"precision@{k} (group retrieval) of {len(asked)} test samples as queries, with {said}",
        "probe": f"test accuracy of logistic regression on {said}, {len(learned)} of which it learns from",
    }
    return {
        f"kept_{key}": entry(
            math.nan if (value := shown["activation"][key]) is None else value,
            text,
            why=no_probe,
            kept=quarter,
            random=shown["random"][key],
            **how,
        )
        | {"each": [{n: v for n, v in row.items() if n not in texts or n == key} for row in rows]}
        for key, text in texts.items()
    }


def spectrum(train: Features, test: Features) -> dict[str, Entry]:
    """How many directions and how many features carry the data; no value where every feature is zero."""
    values = metrics.eigenvalues(test.z)
    used = metrics.activation_spectrum(train.z, absolute=True)
    found = {
        "eigenvalues_top": entry(
            _share_of_largest(values, 10),
            "share of the 10 largest eigenvalues of the mean of z z^T over test samples, not centred, in their sum",
            why=ALL_ZERO.format("test"),
            largest=10,
        )
        | {"each": _numbers(_shares(values))},
        "eigenvalues_90": entry(
            _how_many(values, 0.9),
            "how many of the largest eigenvalues hold 90 % of their sum",
            why=ALL_ZERO.format("test"),
        ),
        "activations_90": entry(
            _how_many(used, 0.9),
            "how many of the most used features hold 90 % of the total expected activation (training samples)",
            why=ALL_ZERO.format("training"),
        )
        | {"each": _numbers(_shares(used))},
    }
    fall = (
        "1 - EA_2C / EA_C, EA_i the i-th largest expected activation (training samples), C the number of classes: "
        "0 where features are used alike, 1 where C of them are used and no more"
    )
    if train.labels is None:
        return found | {"activation_fall": entry(math.nan, fall, why=NO_LABELS.format("training"))}
    classes = len(np.unique(train.labels))
    found["activation_fall"] = entry(
        metrics.fall_after(used, classes),
        fall,
        why=f"there are {len(used)} features, and 2C is {2 * classes}"
        if len(used) < 2 * classes
        else f"fewer than C = {classes} features are used at all",
        classes=classes,
    )
    return found


def probabilities(train: Features, test: Features, *, scaled: bool, bins: int = 10) -> dict[str, Entry]:
    """Non-negative features read as P(c_j) and P(c_j|x), and how far these are from summing to 1; with labels, P(y|x).

    `scaled` says that the loss fixes the length of features; else rows are scaled so that the P(c_j) sum to 1, and
    everything is a heuristic.
    """
    a, b = (train.z, test.z) if scaled else (metrics.on_scale(z, train.z) for z in (train.z, test.z))
    prior = metrics.latent_prior(a)
    posterior = metrics.latent_posterior(b, prior)
    rows = np.asarray(posterior.sum(axis=1)).ravel()
    how: dict[str, Any] = {"scale": "the loss's" if scaled else "rows of one length, by which the P(c) sum to 1"}
    said = "" if scaled else "heuristic, since the loss leaves the length of features open: "
    share = _shares(prior[prior > 0])
    edges = np.linspace(0, 2, 41)
    shown = np.histogram(rows.clip(0, 2), edges)[0] / len(rows)
    found = {
        "latent_total": entry(
            float(prior.sum()),
            f"{said}sum of P(c) = (mean of z)^2 over features, training samples; 1 {'in theory' if scaled else 'so'}",
            **how,
        )
        | {"each": _numbers(prior)},
        "latent_row_sum": entry(
            float(rows.mean()),
            said + "sum of P(c|x) = z sqrt(P(c)) over features, mean over test samples; 1 for each of them in theory",
            deviation=float(rows.std()),
            **how,
        )
        | {"each": {"edges": _numbers(edges), "share": _numbers(shown)}},
        "latent_row_off": entry(
            float(np.abs(rows - 1).mean()), said + "|sum of P(c|x) - 1|, mean over test samples; 0 in theory", **how
        ),
        "latent_above_one": entry(
            float((posterior.data > 1 + 1e-6).mean()) if posterior.nnz else math.nan,
            said + "share of the P(c|x) other than zero that are above 1 (by more than 1e-6), which no probability is",
            why="every P(c|x) is zero",
            **how,
        ),
        "latent_classes": entry(
            float(np.exp(-(share * np.log(share)).sum())) if len(share) else math.nan,
            said + "how many latent classes there are in effect: exp of the entropy of P(c)",
            why="every P(c) is zero",
            **how,
        ),
    }
    return found | {
        "latent_calibration_error": _calibrated(a, train.labels, b, test.labels, said=said, bins=bins, **how)
    }


def _calibrated(
    a: Any, y: np.ndarray | None, b: Any, answer: np.ndarray | None, *, said: str, bins: int, **how: Any
) -> Entry:
    text = (
        f"{said}|accuracy - confidence|, mean over test samples in equal bins of confidence, the largest of P(y|x) = "
        "sum of P(c|x) over the features whose most frequent label on training samples, by activation, is y; scaled to "
        "sum to 1 over labels"
    )
    if y is None or answer is None:
        return entry(math.nan, text, why=NO_LABELS.format("training" if y is None else "test"), **how)
    classes = 1 + int(max(y.max(), answer.max()))
    whole = np.asarray(b @ metrics.one_class_head(metrics.counted_head(a, y, classes)))
    total = whole.sum(axis=1, keepdims=True)
    shares = np.where(total > 0, whole / np.where(total > 0, total, 1), 1 / classes)
    found = metrics.calibration(shares, answer, bins=bins)
    each = {"confidence": found.confidence, "accuracy": found.accuracy, "share": found.share}
    return entry(
        found.error,
        text,
        accuracy=float((shares.argmax(axis=1) == answer).mean()),
        confidence=float(shares.max(axis=1).mean()),
        unscaled=metrics.calibration(whole, answer, bins=bins).error,
        bins=bins,
        **how,
    ) | {"each": {name: _numbers(values) for name, values in each.items()}}


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
    zero = _all_zero(z)
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
        | {"each": _numbers(found.per_feature)},
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
    left_out: dict[str, Any] = {"left_out_as_constant": constant} if constant else {}
    over = f"mean over factors but {', '.join(constant)} (constant)" if constant else "mean over factors"

    def by(values: np.ndarray) -> dict[str, float | None]:
        return dict(zip((names[i] for i in mig.used), _numbers(values), strict=True))

    gap = f"between the two best features for a factor, {over}"
    forests = "in forests that tell each factor from all features"
    return {
        "mig": entry(mig.score, f"gap of mutual information / entropy {gap}", bins=20, binning="width", **left_out)
        | {"each": by(mig.gaps)},
        "sap": entry(sap.score, f"gap of accuracy {gap}", bins=20, binning="width", seed=seed, **left_out)
        | {"each": by(sap.gaps)},
        "dci_disentanglement": entry(
            dci.disentanglement,
            f"how much a feature's importance {forests} is for one factor, mean over features by importance",
            seed=seed,
            **left_out,
        ),
        "dci_completeness": entry(
            dci.completeness,
            f"how much a factor's importance {forests} is in one feature, {over}",
            seed=seed,
            **left_out,
        )
        | {"each": by(dci.completeness_by_factor)},
        "dci_informativeness": entry(
            dci.informativeness,
            f"accuracy of these forests on held-out test samples, {over}",
            chance=float(dci.chance_by_factor.mean()),
            seed=seed,
            **left_out,
        )
        | {"each": by(dci.accuracy_by_factor)},
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
            _share_of_largest(metrics.expected_activation(train.z, absolute=True), 10),
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
            | {"each": _numbers(metrics.per_feature_consistency(z, labels, eps=eps), digits=4)}
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


def entry(value: float, definition: str, *, why: str = "the data have no samples", **parameters: Any) -> Entry:
    """A number as it is kept; `why` says why it is not one, where it is not finite (JSON has no nan)."""
    undefined = isinstance(value, float) and not math.isfinite(value)
    found = {"value": None if undefined else value, "definition": definition, **parameters}
    return found | {"why": why} if undefined else found


def _numbers(values: Sequence[float] | np.ndarray, digits: int = 6) -> list[float | None]:
    """Numbers for JSON, so many digits of each; None where there is none."""
    return [float(f"{v:.{digits}g}") if math.isfinite(v) else None for v in values]


def _all_zero(z: Any) -> bool:
    return metrics.zero_rows(z) == z.shape[0]


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


def _least(counts: np.ndarray) -> float:
    return int(counts.min()) if len(counts) else math.nan


def _median(counts: np.ndarray) -> float:
    return float(np.median(counts)) if len(counts) else math.nan


def _share_of_largest(values: np.ndarray, n: int) -> float:
    total = values.sum()
    return float(np.sort(values)[-n:].sum() / total) if total > 0 else math.nan
