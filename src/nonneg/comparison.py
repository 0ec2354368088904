"""Tables of results: a row sets the paper's number beside ours."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nonneg.errors import BadInput

NOT_RUN, NOT_REACHED = "not run", "not reached"  # the second where a run, or one of its seeds, has no such epoch


@dataclass(frozen=True)
class Row:
    """One cell of the paper beside ours: mean and standard deviation over `seeds` runs; None if not run or reached."""

    measure: str
    method: str
    paper: float | None
    ours: float | None
    std: float | None
    seeds: int

    @property
    def difference(self) -> float | None:
        return None if self.paper is None or self.ours is None else self.ours - self.paper

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Measure, method, paper, ours, difference, seeds, as text: one decimal, where there is 0.03 % two digits."""
        closely = _small(self.paper) or _small(self.ours)

        def text(value: float, sign: str = "") -> str:
            return f"{value:{sign}.2g}" if closely and _small(value) else f"{value:{sign}.1f}"

        spread = "" if self.std is None else f" ± {text(self.std)}"
        none = NOT_REACHED if self.seeds else NOT_RUN
        exact = isinstance(self.ours, int)  # a count
        ours = none if self.ours is None else str(self.ours) if exact else f"{text(self.ours)}{spread}"
        paper = "" if self.paper is None else text(self.paper)
        difference = "" if self.difference is None else text(self.difference, "+")
        return self.measure, self.method, paper, ours, difference, str(self.seeds)


def _small(value: float | None) -> bool:
    """Whether one decimal would show next to nothing of what is there."""
    return value is not None and 0 < abs(value) < 0.1


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The rows as plain values, percentages in points."""
    return [{k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(row).items()} for row in rows]


def number(value: Any, what: str) -> float | None:
    """What a results file holds where the table has a number."""
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value
    raise BadInput(f"{what} is {value!r}, not a number; mend or remove that line of the results")


HEADER = ("measure", "method", "paper", "ours", "difference", "seeds")


def as_markdown(rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
