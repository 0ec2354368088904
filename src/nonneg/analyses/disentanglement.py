"""Does one feature say what the others do not (SEPIN), and stand for one factor (MIG, with DCI and SAP, on sprites)?

Claim: SEPIN@1 / 10 / 100 / all of 0.88 / 0.79 / 0.69 / 0.47 (CL) against 7.43 / 5.93 / 3.87 / 0.48 (NCL), x 100, on
ImageNet-100 with 2,048 features; MIG 0.037 against 0.065 on dSprites.
Cost: about four minutes a run of ResNet-18 on one CPU core, most of it for the views.
Run: nonneg reproduce disentanglement --data-root DIR

SEPIN by the paper's appendix: temperature 1, negatives weigh 1/M, rows of unit length that are not normalised again;
two augmented views of 5,000 test images drawn at random, in evaluation mode.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nonneg import charts, metrics, on_images
from nonneg.analyses import Analysis, Line, Subject, first_seeds
from nonneg.data.sprites import factors_of

IMAGES = 5000
AT = (1, 10, 100)


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """SEPIN of every feature; on sprites also what single features know of the factors."""
    (subject,) = subjects
    data = on_images.sampled(subject.run.load("test"), IMAGES, seed=0)
    first, second = on_images.two_views(subject.model, data, subject.run.augment, seed=0, device=subject.device)
    values = metrics.sepin(first.z, second.z, temperature=1.0)
    out: dict[str, Any] = {f"sepin_{k}": metrics.sepin_at(values, k) for k in AT if k <= len(values)}
    out |= {"sepin_all": metrics.sepin_at(values, len(values)), "images": len(data)}
    out["sepin"] = [round(float(v), 6) for v in np.sort(values)[::-1]]
    if data.name == "sprites":
        test = subject.features("test")
        factors = factors_of(test.ids)
        found = metrics.mig(test.z, factors), metrics.dci(test.z, factors), metrics.sap(test.z, factors)
        out |= {"mig": found[0].score, "sap": found[2].score}
        out |= {"dci_disentanglement": found[1].disentanglement, "dci_completeness": found[1].completeness}
        out["dci_informativeness"] = found[1].informativeness
    return out


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """SEPIN of the features, largest first, CL and NCL; one panel a data set."""
    panels = {of: {run: m["sepin"] for run, m in runs.items()} for of, runs in first_seeds(lines).items()}
    return charts.sepin(panels) if panels else None


ANALYSIS = Analysis(
    of=("cifar10", "cifar100", "wide", "sprites"),
    ask=ask,
    table={
        **{f"sepin_{k}": (f"SEPIN@{k}, x 1,000", 1000.0) for k in AT},
        "sepin_all": ("SEPIN@all, x 1,000", 1000.0),
        "mig": ("MIG, x 100", 100.0),
        "dci_disentanglement": ("DCI disentanglement, x 100", 100.0),
        "dci_completeness": ("DCI completeness, x 100", 100.0),
        "dci_informativeness": ("DCI informativeness, x 100", 100.0),
        "sap": ("SAP, x 100", 100.0),
    },
    draw=draw,
    paper={("mig", "sprites-cl"): 3.7, ("mig", "sprites-ncl"): 6.5},
)
