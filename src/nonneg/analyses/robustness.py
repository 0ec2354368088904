"""Out of distribution: a probe trained on clean images, tested on the standard 15 corruptions at 5 severities.

Claim: NCL is ahead under every shift (ImageNet-100 with corruptions: 36.1 against 34.5); of CIFAR the paper is silent.
Cost: seconds a run on a GPU; on a CPU, where 500 of the test images are taken, a quarter of an hour.
Run: nonneg reproduce robustness --data-root DIR
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nonneg import charts, on_images
from nonneg.analyses import Analysis, Line, Subject, first_seeds
from nonneg.corruptions import NAMES

ON_CPU = 500  # images


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Accuracy of logistic regression on h, clean and corrupted; each number is a mean over severities."""
    (subject,) = subjects
    data = subject.run.load("test")
    if subject.device.type == "cpu":
        data = on_images.sampled(data, ON_CPU, seed=0)
    probe = on_images.clean_probe(subject.features("train"), subject.features("test"), device=subject.device)
    found = on_images.corrupted(subject.model, probe, data, seed=0, device=subject.device)
    whole = found["corruption_accuracy"]
    out = {"clean": whole["clean"], "images": whole["images"]}
    out |= {name: entry["value"] for name, entry in found.items()}
    out["lost"] = whole["clean"] - whole["value"]
    return out | {"each": {name: whole["each"][name]["severity"] for name in NAMES}}


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """Accuracy by corruption, CL beside NCL, one panel a data set."""
    panels = first_seeds(lines)
    return charts.robustness(panels) if panels else None


ANALYSIS = Analysis(
    of=("cifar10", "cifar100"),
    ask=ask,
    table={
        "images": ("test images", 1),
        "clean": ("clean, on these", 100.0),
        "corruption_accuracy": ("corrupted, mean of 15 x 5", 100.0),
        "lost": ("lost by corruption", 100.0),
        "corruption_noise": ("noise", 100.0),
        "corruption_blur": ("blur", 100.0),
        "corruption_weather": ("weather", 100.0),
        "corruption_digital": ("digital", 100.0),
    },
    draw=draw,
)
