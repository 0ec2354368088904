"""How short may features be: precision against bytes, and what a share of the features is worth."""

import math
from typing import Any

import numpy as np
import torch

from nonneg import metrics, probes, selection
from nonneg.errors import BadInput
from nonneg.measures.entry import ALL_ZERO, Entry, Features, all_zero, entry, numbers, why_no_probe
from nonneg.metrics.sparsity import as_csr

BYTES = (2, 4, 8, 16, 32, 64, 128)  # per vector
BYTES_SHOWN = (4, 16, 64)
BYTES_BY = (  # ways to shorten, bits of a value
    (("features",), (32, 8, 4, 1)),
    (("pca",), (8, 1)),
    (("projection",), (8, 1)),
    (("activations",), ()),
)
KEPT = (1 / 8, 1 / 4, 1)  # of the features


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
    if all_zero(test.z):  # every order of neighbours would be as good
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
        {"method": row.method, "bytes": row.bytes, "precision": numbers([row.precision])[0]} for row in rows
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
                "precision": numbers([retrieved["precision"]])[0],
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
