"""Questions asked of trained runs, one file each: what is measured, what the paper printed, a figure.

A file here that defines ANALYSIS is offered as `nonneg reproduce NAME`. Nothing is trained; what is asked of each group
of runs is one line in RESULTS/NAME.jsonl.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nonneg import embedding, experiments, kept_features
from nonneg.encoder import Encoder
from nonneg.errors import unknown
from nonneg.experiments import method_of
from nonneg.features import Features
from nonneg.run import RECIPES, Run, Training

Line = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A trained run that is asked: METHOD-sSEED of an experiment, in its folder, or what was kept of it."""

    experiment: str
    name: str
    folder: Path
    data_root: Path | None
    on: str = "auto"  # device
    kept: Path | None = None  # its test features, where the run folder is gone

    @cached_property
    def run(self) -> Training:
        if self.kept is not None:
            return replace(experiments.find(self.experiment).runs[self.name], data_root=self.data_root, device=self.on)
        return replace(embedding.finished_run(self.folder, self.data_root), device=self.on)

    @cached_property
    def model(self) -> Encoder:
        return embedding.load_model(self.folder, self.run).to(self.device)

    @property
    def device(self) -> torch.device:
        return self.run.torch_device()

    def features(
        self, split: str, data: str | None = None, *, map: Callable[[Tensor], Tensor] | None = None
    ) -> Features:
        """Of the run's own images, or of another data set's, under the run's map or another; made once and kept."""
        if self.kept is not None:
            assert (split, data, map) == ("test", None, None), (
                "an analysis with `test_alone` asks for no other features"
            )
            found = kept_features.load(self.kept)
            return Features(np.zeros((found.z.shape[0], 0), np.float32), found.z, found.labels, [])
        run = self.run if data is None else Run(data=RECIPES[data].data, data_root=self.run.data_root)
        return embedding.embed(self.folder, run.load(split), split, self.run, map=map)


def each_alone(names: Sequence[str]) -> dict[str, list[str]]:
    """Every run is a group of its own."""
    return {name: [name] for name in names}


def by_method(names: Sequence[str]) -> dict[str, list[str]]:
    """All seeds of a method together, where there are two or more."""
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        groups.setdefault(method_of(name), []).append(name)
    return {method: group for method, group in groups.items() if len(group) > 1}


def first_seeds(lines: Mapping[str, Line]) -> dict[str, dict[str, dict[str, Any]]]:
    """What was measured of the first seed there is of CL and of NCL: experiment -> "CL" or "NCL" -> numbers."""
    panels: dict[str, dict[str, dict[str, Any]]] = {}
    for name in sorted(lines):
        experiment, _, run_name = name.partition("-")
        if (method := method_of(run_name)) in ("cl", "ncl"):
            panels.setdefault(experiment, {}).setdefault(method.upper(), lines[name]["measures"])
    return panels


@dataclass(frozen=True)
class Analysis:
    """`ask` of each group of runs gives numbers by name: those of `table` are shown, lists are for `draw`."""

    of: tuple[str, ...]  # experiments
    ask: Callable[[Sequence[Subject]], dict[str, Any]]
    table: dict[str, tuple[str, float]]  # number -> its text, and what it is multiplied by
    draw: Callable[[Mapping[str, Line]], bytes | None]  # from the lines by name, EXPERIMENT-GROUP
    group: Callable[[Sequence[str]], dict[str, list[str]]] = each_alone
    test_alone: bool = False  # asks for test features and nothing else, so that those kept beside the results will do
    paper: dict[tuple[str, str], float] = field(default_factory=dict)  # (number, EXPERIMENT-METHOD)


def names() -> list[str]:
    """Every analysis there is."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def find(name: str) -> Analysis:
    """The analysis declared in the file of that name."""
    if name not in names():
        raise unknown("analysis", name, names())
    return importlib.import_module(f"nonneg.analyses.{name}").ANALYSIS
