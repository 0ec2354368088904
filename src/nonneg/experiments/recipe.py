"""CIFAR-100, CL: what of our recipe, where it is not the authors', makes the linear probe better than theirs.

Claim to be tested: our probe is 2 points above the paper's (60.7 against 58.6) because of the stem, padded by 1 where
theirs is padded by 2 (maps of 34 pixels, with a rim of zeros), or because batch-norm statistics are taken over both
views where theirs are each view's own. One of the two, or both together, should give about 58.6; if none does, the
difference is elsewhere.
Cost: three runs of 200 epochs, six minutes each on one H200 with their probes. Ours is the run cl-s0 of cifar100, not
trained again. One seed tells 2 points from nothing, not half a point. The same four with a narrow net for 15 epochs,
and CIFAR-10 for comparison, three quarters of an hour each on one CPU core (--only narrow).
Outcome: both together give 61.4, so neither is the reason; the other two are not needed to know that.
Run: nonneg reproduce recipe

What the authors' probe does otherwise is asked of trained runs: nonneg reproduce protocol
"""

from dataclasses import replace
from functools import partial

from nonneg.experiments import Experiment, cifar10, cifar100
from nonneg.run import CIFAR, Run

OURS = cifar100.RUNS["cl-s0"]
assert isinstance(OURS, Run)
NARROW = replace(cifar10.NARROW, data=OURS.data, map=OURS.map)


def one_by_one(base: Run) -> dict[str, tuple[str, Run]]:
    """A run, the same with each of the two things as the authors have it, and with both."""
    net = base.backbone if isinstance(base.backbone, partial) else partial(base.backbone)
    pad = replace(base, backbone=partial(net, pad=2))
    return {
        "ours": ("padded by 1, statistics of both views", base),
        "pad": ("padded by 2", pad),
        "views": ("statistics of each view", replace(base, batch_norm="per_view")),
        "both": ("padded by 2, statistics of each view", replace(pad, batch_norm="per_view")),
    }


METHODS = one_by_one(OURS) | {f"narrow-{k}": (f"{text}, narrow", run) for k, (text, run) in one_by_one(NARROW).items()}
METHODS["narrow-cifar10"] = ("CIFAR-10, as ours, narrow", replace(NARROW, data=CIFAR.data))
EXPERIMENT = Experiment(
    runs={f"{name}-s0": run for name, (_, run) in METHODS.items()},
    methods={name: text for name, (text, _) in METHODS.items()},
    table=("probe_h", "probe_z", "linear_probe", "linear_probe_z", "knn", "knn_z"),
    paper={(key, "both"): cifar100.PAPER[key, "cl"] for key in ("probe_h", "probe_z")},
    tune=None,
    unprobed=("narrow",),
    rows=lambda measure, method: not (measure.startswith("probe_") and method.startswith("narrow")),
    borrowed={"ours-s0": ("cifar100", "cl-s0")},
)
