"""The paper's tables, one file each: which runs, what the paper printed, and by which protocol they are probed.

A file here that defines EXPERIMENT is offered as `nonneg reproduce NAME`.
"""

import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from nonneg import finetune
from nonneg.errors import BadInput, unknown
from nonneg.finetune import ProbeRun
from nonneg.measures import Features
from nonneg.multimodal.run import PairRun
from nonneg.run import ClassifierRun, Run

AnyRun: TypeAlias = Run | ClassifierRun | PairRun
POINTS, COUNT = 100.0, 1.0  # shares are shown as percentages, in points; counts as they are
ACCURACIES = (30, 40, 50, 60, 70, 80, 90, 95)  # in percent; of each the first epoch that reached it is measured
MEASURES = {  # what a table may show: its text, and what the stored number is multiplied by
    "probe_h": ("linear probe", POINTS),
    "tune_h": ("fine-tune", POINTS),
    "probe_z": ("linear probe, projector", POINTS),
    "tune_z": ("fine-tune, projector", POINTS),
    "linear_probe": ("logistic regression", POINTS),
    "linear_probe_z": ("logistic regression, projector", POINTS),
    "counted_probe_z": ("closed-form head, projector", POINTS),
    "knn": ("k-NN", POINTS),
    "knn_z": ("k-NN, projector", POINTS),
    "sparsity": ("sparsity", POINTS),
    "class_consistency": ("class consistency", POINTS),
    "top10_consistency": ("top-10 consistency", POINTS),
    "orthogonality": ("mean |cosine| between features, x 100", POINTS),
    "live_features": ("live features", COUNT),
    "dead_features": ("dead features", COUNT),
    "effective_rank": ("effective rank", COUNT),
    "activation_fall": ("fall of expected activation from the C-th feature to the 2C-th", POINTS),
    "expected_activation_top": ("expected activation in the 10 largest features", POINTS),
    "activations_90": ("features that hold 90 % of expected activation", COUNT),
    "eigenvalues_90": ("eigenvalues that hold 90 % of their sum", COUNT),
    "active_per_sample_median": ("active features per sample, median", COUNT),
    "active_least": ("active features per sample, least", COUNT),
    "active_under_20": ("samples with under 20 active features", POINTS),
    "test_accuracy": ("test accuracy", POINTS),
    "lr": ("learning rate that the search chose", COUNT),
    **{f"epochs_to_{n}": (f"epochs to {n} % test accuracy", COUNT) for n in ACCURACIES},
    "dead_weights": ("class weights that no gradient reaches", POINTS),
    "zero_weights": ("class weights under 1e-5", POINTS),
    "image_to_text@1": ("image to text, recall@1", POINTS),
    "image_to_text@5": ("image to text, recall@5", POINTS),
    "image_to_text@10": ("image to text, recall@10", POINTS),
    "text_to_image@1": ("text to image, recall@1", POINTS),
    "text_to_image@5": ("text to image, recall@5", POINTS),
    "text_to_image@10": ("text to image, recall@10", POINTS),
    "sparsity_images": ("sparsity, images", POINTS),
    "sparsity_texts": ("sparsity, texts", POINTS),
    "pair_agreement": ("agreement of image and text on a feature, x 100", POINTS),
    "shared_features": ("features of modality balance 0.25 to 0.75", POINTS),
    "ood_stylized": ("linear probe, Stylized", POINTS),
    "ood_corruption": ("linear probe, Corruption", POINTS),
    "ood_sketch": ("linear probe, Sketch", POINTS),
}

PROBE = partial(finetune.probe, epochs=50)
TUNE = partial(finetune.probe, tune=True, epochs=30)


@dataclass(frozen=True)
class Found:
    """Where an experiment's data lie, their classes if those are chosen, and which measures of `more` they allow."""

    root: Path | None
    classes: list[str] | None = None
    more: tuple[str, ...] = ()


def as_given(data_root: Path | None, work: Path, classes: Path | None) -> Found:  # noqa: ARG001
    """The data where the user said they are."""
    if classes is not None:
        raise BadInput("--classes chooses among the folders of imagenet100; this experiment's classes are fixed")
    return Found(data_root)


def nothing_more(probed: Mapping[str, ProbeRun], run: Run) -> dict[str, float]:  # noqa: ARG001
    """No measure beyond those that every experiment takes."""
    return {}


def nothing_also(train: Features, test: Features) -> dict[str, Any]:  # noqa: ARG001
    """No measure of the features beyond those that every experiment takes."""
    return {}


def as_declared(name: str, run: AnyRun, lines: Mapping[str, dict[str, Any]]) -> AnyRun:  # noqa: ARG001
    """Every setting is in the declaration; none waits for another run's result."""
    return run


def best_rate(
    name: str,
    lines: Mapping[str, dict[str, Any]],
    search: Mapping[str, AnyRun],
    loss: Callable[[dict[str, Any]], float],
    command: str,
) -> float:
    """The learning rate of the run of a search with the least loss, once all of them have a result's line.

    Rates with which training diverged are out of it.
    """
    if missing := [run_name for run_name in search if run_name not in lines]:
        raise BadInput(
            f"{name} takes the learning rate that did best in a search, and {len(missing)} of its {len(search)} runs "
            f"are not done: make them with nonneg reproduce {command}"
        )
    finite = {run_name: run for run_name, run in search.items() if "diverged" not in lines[run_name]}
    if not finite:
        raise BadInput(
            f"{name} takes the learning rate that did best in a search, and with none of its rates it trains"
        )
    return min((loss(lines[run_name]), run.lr) for run_name, run in finite.items())[1]


def every_row(measure: str, method: str) -> bool:  # noqa: ARG001
    """Each measure of the table is taken of each method."""
    return True


@dataclass(frozen=True)
class Experiment:
    """One table. A run is named METHOD-sSEED; `paper` is in the table's units, by measure and method."""

    runs: Mapping[str, AnyRun]
    methods: dict[str, str]  # method -> what the table calls it
    table: tuple[str, ...]  # measures, in order
    paper: dict[tuple[str, str], float]
    probe: partial[dict[str, ProbeRun]] | None = PROBE
    tune: partial[dict[str, ProbeRun]] | None = TUNE
    unprobed: tuple[str, ...] = ()  # beginnings of names of runs that are neither probed nor tuned
    show: tuple[str, ...] = ()  # runs that the report and the figure put side by side
    borrowed: dict[str, tuple[str, str]] = field(default_factory=dict)  # run -> (experiment, run) that is the same
    prepare: Callable[[Path | None, Path, Path | None], Found] = as_given  # (data root, work, classes) -> data
    more: Callable[[Mapping[str, ProbeRun], Run], dict[str, float]] = nothing_more  # from the frozen probes
    also: Callable[[Features, Features], dict[str, Any]] = nothing_also  # from the features; lists are for `draw`
    seeds: int | None = None  # so many unless more are asked for; None for all that are declared
    starts: dict[str, tuple[str, str]] = field(default_factory=dict)  # run -> (experiment, run) whose backbone it takes
    settle: Callable[[str, AnyRun, Mapping[str, dict[str, Any]]], AnyRun] = as_declared  # by results there are
    rows: Callable[[str, str], bool] = every_row  # whether the table has a row for a measure and a method
    draw: Callable[[Mapping[str, dict[str, Any]]], bytes | None] | None = None  # the figure, from the results' lines

    def __post_init__(self) -> None:
        stray = [name for name in self.runs if method_of(name) not in self.methods]
        assert not stray, f"runs without a method: {stray}"
        assert all(k in self.table and m in self.methods for k, m in self.paper), "a paper cell outside the table"
        assert {*self.show, *self.borrowed, *self.starts} <= self.runs.keys() and MEASURES.keys() >= set(self.table)

    def side_by_side(self) -> dict[str, tuple[str, ...]]:
        """Runs that are shown in one figure, by what its name ends with: one figure for each data set and net."""
        about = {name: self.runs[name].to_json() for name in self.show}
        place = {name: (a["data"], a["backbone"].partition(":")[0]) for name, a in about.items()}
        together: dict[tuple[str, str], tuple[str, ...]] = {}
        for name, where in place.items():
            together[where] = (*together.get(where, ()), name)
        if len(together) < 2:
            return dict.fromkeys([""], self.show)
        nets = Counter(data for data, _ in together)
        return {f"-{data}" + f"-{net}" * (nets[data] > 1): names for (data, net), names in together.items()}


def begins(name: str, wanted: str) -> bool:
    """Whether a run is named `wanted`, or its name begins with that word."""
    return name == wanted or name.startswith(f"{wanted}-")


def method_of(name: str) -> str:
    """METHOD of METHOD-sSEED; a name without a seed is itself."""
    return re.sub(r"-s\d+$", "", name)


def is_search(name: str) -> bool:
    """Whether a run or method is there to find a learning rate; of such a run only line and log are kept."""
    return "-search-" in name


def names() -> list[str]:
    """Every experiment there is."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Experiment:
    """The experiment declared in the file of that name."""
    if name not in names():
        raise unknown("experiment", name, names())
    return importlib.import_module(f"nonneg.experiments.{name}").EXPERIMENT
