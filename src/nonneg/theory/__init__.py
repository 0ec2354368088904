"""The paper's theory, executable: worlds small enough to solve exactly, where every theorem is a number."""

from nonneg.theory.identifiability import Point
from nonneg.theory.report import write_report
from nonneg.theory.row import Row
from nonneg.theory.studies import Study, run_all, study
from nonneg.theory.worlds import (
    World,
    chained,
    every_image,
    leaking,
    one_hot,
    overlapping,
    parse,
    random_world,
    translated,
)

__all__ = [
    "Point",
    "Row",
    "Study",
    "World",
    "chained",
    "every_image",
    "leaking",
    "one_hot",
    "overlapping",
    "parse",
    "random_world",
    "run_all",
    "study",
    "translated",
    "write_report",
]
