"""Feature selection: keep the k features of largest expected activation, and measure probe, retrieval and transfer.

Claim: NCL loses almost nothing with a quarter of its features, CL loses much (ImageNet-100, 2,048 features, 512 kept).
So it is here with 2,048 features on CIFAR-100 and on digits, but for CL, which loses little. With 256 features on
CIFAR-100 it is the other way round: NCL loses half of its probe's accuracy, CL nothing.
Cost: two to seven minutes a run of CIFAR on one H200, with other work beside it; on one CPU core half an hour (256
features), digits a minute.
Run: nonneg reproduce selection --data-root DIR

z here is the projector's output before any map, signed for CL and NCL alike. Every row says where ReLU enters:
`relu_in_ranking`, by EA of max(z, 0) or of |z|; `relu_in_features`, what is kept is max(z, 0) or z itself. NCL's own
features are those with ReLU in both, CL's those without.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nonneg import charts, figures, maps, metrics, probes, selection
from nonneg.analyses import Analysis, Line, Subject, each_alone, first_seeds
from nonneg.experiments import method_of
from nonneg.features import Features
from nonneg.progress import track

OTHER = {"cifar10": "cifar100", "cifar100": "cifar10"}  # where features are transferred to
BESIDE = {  # EXPERIMENT-METHOD that have a panel beside those of the experiments' CL and NCL, and who is who in it
    "maps-small-identity": ("CIFAR-10, small net", "CL"),
    "maps-small-rep_relu": ("CIFAR-10, small net", "NCL"),
    "maps-cifar10-50-identity": ("CIFAR-10, 50 epochs", "CL"),
    "maps-cifar10-50-rep_relu": ("CIFAR-10, 50 epochs", "NCL"),
    "wide-narrow-cl": ("CIFAR-100, narrow net, 2,048 features", "CL"),
    "wide-narrow-ncl": ("CIFAR-100, narrow net, 2,048 features", "NCL"),
    "wide-digits-cl": ("digits, 2,048 features", "CL"),
    "wide-digits-ncl": ("digits, 2,048 features", "NCL"),
}
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)  # of the features
QUARTER = 2  # its place among them


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Accuracy of a linear probe on k kept features of z, here and on the other data set, and retrieval, by ranking."""
    (subject,) = subjects
    train, test = (subject.features(split, map=maps.identity) for split in ("train", "test"))
    other = OTHER.get(subject.run.to_json()["data"])
    away = [subject.features(split, other, map=maps.identity) for split in ("train", "test") if other]
    _, width = figures.shape(train)
    sizes = sorted({max(1, round(share * width)) for share in SHARES})
    rows = []
    for by, in_ranking, in_features in track(selection.WAYS, f"{subject.name}: selecting", len(selection.WAYS)):
        order = selection.rank(train.z, by=by, relu=in_ranking, rng=np.random.default_rng(0))
        here = _with(train, relu=in_features), _with(test, relu=in_features)
        there = [_with(f, relu=in_features) for f in away]
        found = metrics.retrieval_by_prefix(here[1].z, test.labels, order, sizes, device=subject.device)
        for k, retrieved in zip(sizes, found, strict=True):
            rows.append(
                {
                    "by": by,
                    "relu_in_ranking": in_ranking,
                    "relu_in_features": in_features,
                    "kept": k,
                    "probe": _probe(here, order[:k], subject),
                    "transfer": _probe(there, order[:k], subject) if there else None,
                    "precision": round(retrieved["precision"], 5),
                    "map": round(retrieved["map"], 5),
                    "map_relevant": round(retrieved["map_relevant"], 6),
                }
            )
    own = subject.run.map is not maps.identity
    way = ("activation", own, own)
    shown = {r["kept"]: r for r in rows if (r["by"], r["relu_in_ranking"], r["relu_in_features"]) == way}
    quarter = max(1, round(SHARES[QUARTER] * width))
    whole, cut = shown[width], shown[quarter]
    drawn = ("random", False, own, quarter)
    at_random = next(r for r in rows if (r["by"], r["relu_in_ranking"], r["relu_in_features"], r["kept"]) == drawn)
    return {
        "rows": rows,
        **{f"{key}_all": whole[key] for key in ("probe", "transfer", "precision")},
        **{f"{key}_quarter": cut[key] for key in ("probe", "transfer", "precision")},
        "probe_random": at_random["probe"],
        "precision_random": at_random["precision"],
    }


def _with(made: Features, *, relu: bool) -> Features:
    return Features(made.h, made.z.maximum(0).tocsr(), made.labels, made.ids) if relu else made


def _probe(made: Sequence[Features], chosen: np.ndarray, subject: Subject) -> float:
    train, test = made
    assert train.labels is not None and test.labels is not None
    kept = [selection.keep_features(f.z, chosen) for f in (train, test)]
    return probes.linear_probe(kept[0], train.labels, kept[1], test.labels, device=subject.device).accuracy


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """Probe, transfer and precision over the number of kept features, a row of panels for each data set."""
    found, beside = first_seeds(lines), {title: {} for title, _ in BESIDE.values()}
    for name in sorted(lines):
        if (method := method_of(name)) in BESIDE:
            title, who = BESIDE[method]
            beside[title].setdefault(who, lines[name]["measures"])
    found |= {title: pair for title, pair in beside.items() if len(pair) == 2}  # one alone says little
    panels = {of: {run: m["rows"] for run, m in runs.items()} for of, runs in found.items()}
    return charts.kept_features(panels) if panels else None


def group(names: Sequence[str]) -> dict[str, list[str]]:
    """Every run is a group of its own; of the maps only the pairs on CIFAR-10."""
    wanted = {"cl", "ncl", *(method.partition("-")[2] for method in BESIDE)}
    return each_alone([name for name in names if method_of(name) in wanted])


ANALYSIS = Analysis(
    of=("cifar10", "cifar100", "wide", "maps"),
    ask=ask,
    group=group,
    table={
        "probe_all": ("linear probe of z, all features", 100.0),
        "probe_quarter": ("linear probe of z, a quarter kept by expected activation", 100.0),
        "transfer_all": ("transfer to the other CIFAR, all features", 100.0),
        "transfer_quarter": ("transfer to the other CIFAR, a quarter kept", 100.0),
        "precision_all": ("precision@10, all features", 100.0),
        "precision_quarter": ("precision@10, a quarter kept", 100.0),
        "probe_random": ("linear probe of z, a quarter kept at random", 100.0),
        "precision_random": ("precision@10, a quarter kept at random", 100.0),
    },
    draw=draw,
)
