"""SupCon: two images of one class are to be alike. CL against NCL, by the ordinary loss and by the multi-positive one.

Claim: with the C classes as latent classes, NCL's largest expected activations fill about C features and then fall,
while CL's hardly differ from one feature to the next; eigenvalues of E[z z^T] fall after C with NCL, and earlier with
CL. The paper shows both as curves, without numbers.
Cost: digits, 12 runs of about half a minute on one CPU core (--only digits); CIFAR-10, four runs of 200 epochs, about 4
minutes each on one H200 (--only cl-s0 ncl-s0 for the paper's pair), not run yet; the pair with a narrow net for 15
epochs, half an hour each on one CPU core (--only narrow).
Run: nonneg reproduce supcon

cl and ncl are the paper's way: pairs of one class (`--positives class`), InfoNCE. The others take two views of an
image, and all images of its class in the batch as positives (`--loss supcon`, Khosla et al. 2020).

The narrow net is trained by AdamW, from random crops and flips alone: by LARS at 0.4 its loss had hardly fallen after
six epochs, and from the paper's views it would take many more to tell classes.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nonneg import augment, charts, losses, maps, measures, metrics, optim
from nonneg.experiments import Experiment, cifar10
from nonneg.measures import Features
from nonneg.run import CIFAR, DIGITS, Run

SHOWN = 50  # values of each curve, as in the paper
WAYS = {"": "pairs of a class", "-multi": "multi-positive"}
MAPS = {"cl": maps.identity, "ncl": maps.rep_relu}


def both_ways(base: Run) -> dict[str, Run]:
    """CL and NCL, by pairs of one class and by the multi-positive loss; the pairs first."""
    pairs = {name: replace(base, map=map, positives="class") for name, map in MAPS.items()}
    return pairs | {f"{name}-multi": replace(base, map=map, loss=losses.supcon) for name, map in MAPS.items()}


def spectra(train: Features, test: Features) -> dict[str, Any]:
    """The measures of the spectrum group, and the curves: expected activations, and eigenvalues as shares."""
    found = {name: entry["value"] for name, entry in measures.spectrum(train, test).items()}
    used = metrics.activation_spectrum(train.z, absolute=True)[:SHOWN]
    values = metrics.eigenvalues(test.z, normalise=True)[:SHOWN]
    return found | {"activations": [_short(v) for v in used], "eigenvalues": [_short(v) for v in values]}


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def draw(lines: Mapping[str, dict[str, Any]]) -> bytes | None:
    """The curves of the first seed, a row of panels for each data set."""
    panels: dict[str, dict[str, Any]] = {}
    for name, title in PLACES.items():
        mine = {
            f"{method.upper()}, {text}": lines[run]["measures"]
            for method in MAPS
            for way, text in WAYS.items()
            if (run := f"{name}{method}{way}-s0") in lines
        }
        panels |= {title: mine} if mine else {}
    return charts.class_spectra(panels, classes=10) if panels else None


PLACES = {"digits-": "digits", "": "CIFAR-10", "narrow-": "CIFAR-10, narrow net"}
NARROW = replace(cifar10.NARROW, augment=augment.crop_flip, optimizer=optim.adamw, lr=2e-3, warmup_epochs=1)
ON_DIGITS = {
    f"digits-{k}-s{seed}": replace(run, seed=seed) for seed in range(3) for k, run in both_ways(DIGITS).items()
}
ON_CIFAR = {f"{k}-s0": run for k, run in both_ways(CIFAR).items()}
ON_NARROW = {f"narrow-{k}-s0": run for k, run in both_ways(NARROW).items() if k in MAPS}  # the paper's way alone
EXPERIMENT = Experiment(
    runs=ON_CIFAR | ON_DIGITS | ON_NARROW,
    methods={
        f"{place}{method}{way}": f"{method.upper()}, {text}, {title}"
        for place, title in PLACES.items()
        for way, text in WAYS.items()
        for method in MAPS
        if not (place == "narrow-" and way)
    },
    table=(
        "linear_probe",
        "knn_z",
        "sparsity",
        "class_consistency",
        "live_features",
        "activation_fall",
        "expected_activation_top",
        "activations_90",
        "eigenvalues_90",
    ),
    paper={},
    probe=None,
    tune=None,
    also=spectra,
    draw=draw,
)
