"""CIFAR-100, CL: what of our recipe, where it is not the authors', makes the linear probe better than theirs.

Claim to be tested: our probe is 2 points above the paper's (60.7 against 58.6) because of the stem, padded by 1 where
theirs is padded by 2 (maps of 34 pixels, with a rim of zeros), or because batch-norm statistics are taken over both
views where theirs are each view's own. One of the two, or both together, should give about 58.6; if none does, the
difference is elsewhere.
Cost: three runs of 200 epochs, estimated at 4 to 5 minutes each on one H200 with their probes; not run yet. Ours is the
run cl-s0 of cifar100, not trained again. One seed tells 2 points from nothing, not half a point.
Run: nonneg reproduce recipe
"""

from dataclasses import replace
from functools import partial

from nonneg import backbones
from nonneg.experiments import Experiment, cifar100
from nonneg.run import Run

OURS = cifar100.RUNS["cl-s0"]
assert isinstance(OURS, Run)
PAD = replace(OURS, backbone=partial(backbones.resnet18, pad=2))
METHODS = {
    "ours": ("padded by 1, statistics of both views", OURS),
    "pad": ("padded by 2", PAD),
    "views": ("statistics of each view", replace(OURS, batch_norm="per_view")),
    "both": ("padded by 2, statistics of each view", replace(PAD, batch_norm="per_view")),
}
EXPERIMENT = Experiment(
    runs={f"{name}-s0": run for name, (_, run) in METHODS.items()},
    methods={name: text for name, (text, _) in METHODS.items()},
    table=("probe_h", "probe_z", "linear_probe", "linear_probe_z", "knn", "knn_z"),
    paper={(key, "both"): cifar100.PAPER[key, "cl"] for key in ("probe_h", "probe_z")},
    tune=None,
    borrowed={"ours-s0": ("cifar100", "cl-s0")},
)
