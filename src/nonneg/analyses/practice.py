"""How far trained networks are from the theory: features as probabilities, as clusters, and as a classifier.

Claim: the theory's optimum is P(c|x) / sqrt(P(c)), so features tell P(c) and P(c|x), which sum to 1; a linear head in
closed form is Bayes optimal; and with one latent class an image, the largest feature is the image's cluster.
Cost: seconds a run of digits, two or three minutes a run of CIFAR on one CPU core, given its features.
Run: nonneg reproduce practice --data-root DIR

Probabilities are the theorem's only for the spectral loss, which fixes the scale of features (experiment spectral); for
InfoNCE they are a heuristic. k-means has as many clusters as there are classes, or as there are largest features.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nonneg import charts, evaluate, experiments, measures
from nonneg.analyses import Analysis, Line, Subject
from nonneg.experiments import AnyRun, method_of

ASKED = ("cl", "ncl", "small-cl", "small-ncl", "digits-cl", "digits-ncl", "digits-identity", "digits-rep_relu")
DATA = {"digits": "digits", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}  # in the order of the panels
PANELS = 6  # at most


def ask(subjects: Sequence[Subject]) -> dict[str, Any]:
    """The values of the groups `clusters` and `probabilities`, and the heads beside the trained probe."""
    (subject,) = subjects
    train, test = subject.features("train"), subject.features("test")
    basic = measures.basic(train, test, device=subject.device)
    counted, probe = basic["counted_probe_z"](), basic["linear_probe_z"]()
    out: dict[str, Any] = {"probe": probe["value"], "counted": counted["value"]}
    out |= {"one_class": counted["one_class"], "least_squares": counted["least_squares"]}
    signed = any(bool((f.z.data < 0).any()) for f in (train, test))
    found = measures.clusters(test)
    if not signed:
        found |= measures.probabilities(train, test, scaled=evaluate.fixes_scale(subject.run))
        out["row_sums"] = found["latent_row_sum"]["each"]
        out["row_sum_deviation"] = found["latent_row_sum"]["deviation"]
        calibrated = found["latent_calibration_error"]
        out |= {"reliability": calibrated["each"], "confidence": calibrated["confidence"]}
        out["latent_accuracy"] = calibrated["accuracy"]
    out["many"] = found["argmax_nmi"]["clusters"]
    return out | {name: e["value"] for name, e in found.items()}


def each_asked(names: Sequence[str]) -> dict[str, list[str]]:
    """Every run of CL and NCL alone, no other maps."""
    return {name: [name] for name in names if method_of(name) in ASKED}


def shown_as(run: AnyRun) -> str:
    """What a run is called in the figure: its data, its loss where the theorem applies, its net where it is small."""
    about = run.to_json()
    small = about["data"] != "digits" and about["backbone"].startswith("small_net")
    return DATA[about["data"]] + ", spectral" * evaluate.fixes_scale(run) + ", small net" * small


def draw(lines: Mapping[str, Line]) -> bytes | None:
    """Sums and reliability of NCL's probabilities; accuracy of each head and purity of clusters, CL beside NCL."""
    panels: dict[str, dict[str, dict[str, Any]]] = {}
    for of in ("spectral", "maps", "cifar10", "cifar100"):
        for run_name, run in experiments.find(of).runs.items():
            if (line := lines.get(f"{of}-{run_name}")) is not None:
                method = "NCL" if method_of(run_name).endswith(("ncl", "rep_relu")) else "CL"
                panels.setdefault(shown_as(run), {}).setdefault(method, line["measures"])  # the first seed
    ordered = sorted(panels, key=lambda text: list(DATA.values()).index(text.partition(",")[0]))
    return charts.practice({text: panels[text] for text in ordered[:PANELS]}) if panels else None


ANALYSIS = Analysis(
    of=("cifar10", "cifar100", "spectral", "maps"),
    ask=ask,
    group=each_asked,
    table={
        "latent_total": ("sum of P(c), x 100", 100.0),
        "latent_row_sum": ("sum of P(c|x), mean, x 100", 100.0),
        "row_sum_deviation": ("sum of P(c|x), deviation over images, x 100", 100.0),
        "latent_classes": ("latent classes in effect", 1.0),
        "latent_accuracy": ("P(y|x) from the latent classes: accuracy", 100.0),
        "confidence": ("P(y|x) from the latent classes: confidence", 100.0),
        "latent_calibration_error": ("P(y|x) from the latent classes: calibration error", 100.0),
        "probe": ("logistic regression on z", 100.0),
        "least_squares": ("head by least squares", 100.0),
        "counted": ("head counted in one pass", 100.0),
        "one_class": ("head of the theorem, one label a feature", 100.0),
        "many": ("largest features that occur", 1.0),
        "argmax_purity": ("largest feature as cluster, purity", 100.0),
        "kmeans_many_purity": ("k-means, as many clusters, purity", 100.0),
        "argmax_nmi": ("largest feature as cluster, NMI", 100.0),
        "kmeans_many_nmi": ("k-means, as many clusters, NMI", 100.0),
        "kmeans_nmi": ("k-means, a cluster a class, NMI", 100.0),
        "kmeans_accuracy": ("k-means, a cluster a class, accuracy", 100.0),
        "spectral_nmi": ("spectral clustering, NMI", 100.0),
        "spectral_accuracy": ("spectral clustering, accuracy", 100.0),
    },
    draw=draw,
)
