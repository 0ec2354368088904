"""2,048 features, as many as the paper has on ImageNet-100, CL against NCL: on CIFAR-100 and on digits.

Claim: with so many features most are hardly used by NCL, and a quarter of them keeps all of the accuracy, retrieval and
transfer, while CL loses with each: `nonneg reproduce selection` asks that of these runs.
Cost: digits, six runs of a minute and a half on one CPU core (--only digits). CIFAR-100, the paper's projector
(512-16384-2048), two runs of 100 epochs on one H200, half of the other CIFAR runs: the question is what selection
loses, not how good the features can become. CIFAR-100 is not run yet.
Run: nonneg reproduce wide
"""

from dataclasses import replace

from nonneg import maps
from nonneg.experiments import Experiment, cifar100
from nonneg.run import CIFAR, DIGITS

MAPS = {"cl": maps.identity, "ncl": maps.relu}
LARGE = replace(CIFAR, data=cifar100.RUNS["ncl-s0"].data, projector=(16384, 2048), epochs=100)
SMALL = replace(DIGITS, projector=(2048, 2048))
EXPERIMENT = Experiment(
    runs={f"{name}-s0": replace(LARGE, map=map) for name, map in MAPS.items()}
    | {f"digits-{name}-s{s}": replace(SMALL, map=map, seed=s) for s in range(3) for name, map in MAPS.items()},
    methods={"cl": "CL", "ncl": "NCL (relu)", "digits-cl": "CL, digits", "digits-ncl": "NCL (relu), digits"},
    table=("linear_probe", "linear_probe_z", "knn", "knn_z", "sparsity", "class_consistency", "live_features"),
    paper={},
    probe=None,
    tune=None,
    show=("cl-s0", "ncl-s0"),
)
