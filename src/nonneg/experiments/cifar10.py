"""CIFAR-10, CL against NCL, three seeds of each.

Claim: NCL keeps CL's accuracy (linear probe 87.8 against 87.6, fine-tuned 92.6 against 92.3) while about nine tenths
of its features are exactly zero, and each of the others speaks of few classes.
Cost: six runs of 200 epochs, about 4 minutes each on one H200, and 70 seconds of evaluation.
Run: nonneg reproduce cifar10

Yardstick, one earlier seed on one H200, CL / NCL: linear probe 87.5 / 87.4, projector 85.9 / 86.0; 200-NN 85.9 / 85.5,
projector 85.4 / 84.7; sparsity 0 / 95.4 %; class consistency 10.0 / 57.0 %; live features 256 / 224.
"""

from dataclasses import replace
from functools import partial

from nonneg import backbones, maps
from nonneg.experiments import Experiment
from nonneg.run import CIFAR

NARROW = replace(  # for a CPU, of whatever uses it: a sixteenth of the work a step, and a thirteenth of the steps
    CIFAR, backbone=partial(backbones.resnet18, width=16), epochs=15, warmup_epochs=2, precision="bf16"
)
SEEDS = range(3)
METHODS = {"cl": replace(CIFAR, map=maps.identity), "ncl": replace(CIFAR, map=maps.rep_relu)}
RUNS = {f"{name}-s{seed}": replace(run, seed=seed) for seed in SEEDS for name, run in METHODS.items()}
TABLE = (
    "probe_h",
    "tune_h",
    "probe_z",
    "tune_z",
    "knn",
    "knn_z",
    "sparsity",
    "class_consistency",
    "orthogonality",
    "live_features",
    "active_per_sample_median",
    "active_least",
    "active_under_20",
)
PAPER = {
    ("probe_h", "cl"): 87.6,
    ("probe_h", "ncl"): 87.8,
    ("tune_h", "cl"): 92.3,
    ("tune_h", "ncl"): 92.6,
    ("probe_z", "cl"): 85.6,
    ("probe_z", "ncl"): 85.4,
    ("tune_z", "cl"): 92.1,
    ("tune_z", "ncl"): 92.4,
    ("sparsity", "cl"): 0.0,
    ("sparsity", "ncl"): 90.0,  # "about"
    ("active_least", "cl"): 256.0,
    ("active_least", "ncl"): 2.0,
    ("active_under_20", "cl"): 0.0,
    ("active_under_20", "ncl"): 70.0,
}
EXPERIMENT = Experiment(
    runs=RUNS, methods={"cl": "CL", "ncl": "NCL"}, table=TABLE, paper=PAPER, show=("cl-s0", "ncl-s0")
)
