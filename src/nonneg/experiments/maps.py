"""The maps compared: identity, relu, rep_relu, softplus, sigmoid, exp.

Claim: only relu and rep_relu give exact zeros; of the two, rep_relu leaves fewer features dead.
Cost: digits, 18 runs of about half a minute on one CPU core (--only digits); CIFAR-10, one run of 200 epochs and five
of 50, about 9 minutes on one H200 (--only cifar10). rep_relu at 200 epochs is the run ncl-s0 of cifar10, not trained
again; rep_relu at 50 is there so that the maps at 50 epochs have something to be compared with. CL and NCL on CIFAR-10
with a small net for 15 epochs, 40 minutes each on one busy CPU core (--only small).
Run: nonneg reproduce maps

All are probed by logistic regression on cached features: the paper's probe flips and crops, which digits do not bear.
"""

from dataclasses import replace
from functools import partial

from nonneg import backbones, maps
from nonneg.experiments import Experiment, method_of
from nonneg.run import CIFAR, DIGITS

MAPS = (maps.identity, maps.relu, maps.rep_relu, maps.softplus, maps.sigmoid, maps.exp)
SHORT = 50
ON_DIGITS = {f"digits-{m.__name__}-s{seed}": replace(DIGITS, map=m, seed=seed) for seed in range(3) for m in MAPS}
LONG = {f"cifar10-{m.__name__}-s0": replace(CIFAR, map=m) for m in (maps.relu, maps.rep_relu)}
BRIEF = {f"cifar10-{SHORT}-{m.__name__}-s0": replace(CIFAR, map=m, epochs=SHORT) for m in MAPS if m is not maps.relu}
ON_CPU = replace(CIFAR, backbone=partial(backbones.small_net, width=24), epochs=15, warmup_epochs=2)
SMALL = {f"small-{m.__name__}-s0": replace(ON_CPU, map=m) for m in (maps.identity, maps.rep_relu)}
METHODS = {
    **{f"digits-{m.__name__}": f"{m.__name__}, digits" for m in MAPS},
    **{f"cifar10-{m.__name__}": f"{m.__name__}, CIFAR-10" for m in (maps.relu, maps.rep_relu)},
    **{f"cifar10-{SHORT}-{m.__name__}": f"{m.__name__}, CIFAR-10, 50 epochs" for m in MAPS if m is not maps.relu},
    **{method_of(name): f"{name.split('-')[1]}, CIFAR-10, small net" for name in SMALL},
}
EXPERIMENT = Experiment(
    runs=ON_DIGITS | LONG | BRIEF | SMALL,
    methods=METHODS,
    table=("linear_probe", "linear_probe_z", "knn_z", "sparsity", "class_consistency", "dead_features"),
    paper={},
    probe=None,
    tune=None,
    show=("digits-identity-s0", "digits-relu-s0", "digits-rep_relu-s0"),
    borrowed={"cifar10-rep_relu-s0": ("cifar10", "ncl-s0")},
)
