"""CIFAR-100 with 2,048 features, the projector that the paper uses on ImageNet-100 (512-16384-2048): CL against NCL.

Claim: with so many features most are hardly used by NCL, and a quarter of them keeps all of the accuracy, retrieval and
transfer, while CL loses with each: `nonneg reproduce selection` asks that of these runs.
Cost: two runs of 100 epochs on one H200, half of the other CIFAR runs: the question is what selection loses, not how
good the features can become. Not run yet.
Run: nonneg reproduce wide
"""

from dataclasses import replace

from nonneg import maps
from nonneg.experiments import Experiment, cifar100
from nonneg.run import CIFAR

BASE = replace(CIFAR, data=cifar100.RUNS["ncl-s0"].data, projector=(16384, 2048), epochs=100)
EXPERIMENT = Experiment(
    runs={"cl-s0": replace(BASE, map=maps.identity), "ncl-s0": replace(BASE, map=maps.relu)},
    methods={"cl": "CL", "ncl": "NCL (relu)"},
    table=("linear_probe", "linear_probe_z", "knn", "knn_z", "sparsity", "class_consistency", "live_features"),
    paper={},
    probe=None,
    tune=None,
    show=("cl-s0", "ncl-s0"),
)
