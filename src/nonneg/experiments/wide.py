"""2,048 features, as many as the paper has on ImageNet-100, CL against NCL: on CIFAR-100 and on digits.

Claim: with so many features most are hardly used by NCL, and a quarter of them keeps all of the accuracy, retrieval and
transfer, while CL loses with each: `nonneg reproduce selection` asks that of these runs.
Cost: digits, six runs of a minute and a half on one CPU core (--only digits). CIFAR-100, the paper's projector
(512-16384-2048), two runs of 100 epochs, some two minutes each on one H200, half of the other CIFAR runs: the question
is what selection loses, not how good the features can become. CIFAR-100 with a narrow net and a smaller projector, 12
epochs, half an hour each on one CPU core that has bfloat16 (--only narrow).
Run: nonneg reproduce wide
"""

from dataclasses import replace

from nonneg import maps
from nonneg.experiments import Experiment, cifar10, cifar100
from nonneg.run import CIFAR, DIGITS

MAPS = {"cl": maps.identity, "ncl": maps.relu}
LARGE = replace(CIFAR, data=cifar100.RUNS["ncl-s0"].data, projector=(16384, 2048), epochs=100)
NARROW = replace(cifar10.NARROW, data=LARGE.data, projector=(2048, 2048), epochs=12)
SMALL = replace(DIGITS, projector=(2048, 2048))
EXPERIMENT = Experiment(
    runs={f"{name}-s0": replace(LARGE, map=map) for name, map in MAPS.items()}
    | {f"narrow-{name}-s0": replace(NARROW, map=map) for name, map in MAPS.items()}
    | {f"digits-{name}-s{s}": replace(SMALL, map=map, seed=s) for s in range(3) for name, map in MAPS.items()},
    methods={
        f"{place}{name}": f"{called}{title}"
        for place, title in {"": "", "narrow-": ", narrow net", "digits-": ", digits"}.items()
        for name, called in {"cl": "CL", "ncl": "NCL (relu)"}.items()
    },
    table=("linear_probe", "linear_probe_z", "knn", "knn_z", "sparsity", "class_consistency", "live_features"),
    paper={},
    probe=None,
    tune=None,
    show=("cl-s0", "ncl-s0"),
)
