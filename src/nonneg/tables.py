"""Measured numbers as tables on the screen, as JSON, and what is said below them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from nonneg import workflow
from nonneg.measures import Entry

screen = Console(markup=False, emoji=False)  # names of classes, files and folders are shown as they are
WIDEST = 24  # characters of a column
BESIDE = {  # what an entry's value is to be read against, in the same units
    "chance": "by chance",
    "random": "as many at random:",
    "shuffled": "images shuffled:",
    "rotated": "features rotated:",
}
WITH = {"subset": "on {} (--subset)", "judge": "judged by {}", "runs": "against {}"}  # parameters to be told
IF_OTHER = {"temperature": "at temperature {}", "views": "views: {}", "images": "on {} images"}  # if runs differ in it
PLAIN = (
    "sepin",
    "monosemanticity",
    "identifiability",
    "mig",
    "sap",
    "dci",
    "modality_balance",
    "pair_agreement",
    "orthogonality",
)  # measures that are not shares


def as_json(value: Any) -> None:
    """For machines, on stdout."""
    print(json.dumps(value, indent=2))


def measured(run: Path, entries: dict[str, Entry]) -> None:
    """Every measure of a run with its definition, and why some have no value."""
    table = Table(Column("measure", overflow="fold"), "value", "definition", title=str(run))
    for name, entry in entries.items():
        beside = (f"; {said} {show(name, entry[key])}" for key, said in BESIDE.items() if entry.get(key) is not None)
        table.add_row(name, show(name, entry["value"]), entry["definition"] + "".join(beside))
    screen.print(table)
    for name, why in without_value(entries).items():
        say(f"no value: {name} ({why})")


def compared(columns: dict[str, dict[str, Entry]], more: Iterable[str], headline: Iterable[str]) -> None:
    """Runs side by side; a number in brackets leads to what a value was measured with."""
    notes = _notes(columns)
    numbers = {note: i for i, note in enumerate(dict.fromkeys(notes.values()), start=1)}
    values = {title: workflow.values(entries) for title, entries in columns.items()} | _chances(columns)
    marks = {cell: f" [{numbers[note]}]" for cell, note in notes.items()}
    shown = side_by_side(values, more, headline=headline, marks=marks)
    for note, number in numbers.items():
        say(f"[{number}] {note}")
    seen = {title: {str(e["data"]) for e in entries.values() if "data" in e} for title, entries in columns.items()}
    if len({frozenset(data) for data in seen.values() if data}) > 1:
        say("these runs were not measured on the same images, so a difference may be that of the images")
    for title, entries in columns.items():
        for name, why in without_value(entries).items():
            if name in shown:
                say(f"no value: {name}, {title} ({why})")


def _chances(columns: dict[str, dict[str, Entry]]) -> dict[str, dict[str, str]]:
    """One more column, where entries say what chance gives; two numbers where it is not the same in all runs."""
    levels: dict[str, list[str]] = {}
    for entries in columns.values():
        for name, e in entries.items():
            if e.get("chance") is not None and (level := show(name, e["chance"])) not in levels.setdefault(name, []):
                levels[name].append(level)
    return {"by chance": {name: " / ".join(each) for name, each in levels.items()}} if levels else {}


def say(text: str) -> None:
    """A line as it is, on stdout."""
    screen.print(text, soft_wrap=True, highlight=False, markup=False)


def without_value(entries: dict[str, Entry]) -> dict[str, str]:
    """Why each entry that has no value has none."""
    return {name: e.get("why", "not a number") for name, e in entries.items() if e["value"] is None}


def _notes(columns: dict[str, dict[str, Entry]]) -> dict[tuple[str, str], str]:
    """(run, measure) -> what it was measured with, where that is more than the run, or not the same in all runs."""
    found = {}
    for name in dict.fromkeys(name for entries in columns.values() for name in entries):
        mine = {title: entries[name] for title, entries in columns.items() if name in entries}
        differ = [k for k in IF_OTHER if len({str(e[k]) for e in mine.values() if k in e}) > 1]
        for title, e in mine.items():
            given = {k: ", ".join(v) if isinstance(v, list) else v for k, v in e.items() if k in WITH}
            told = [WITH[k].format(v) for k, v in given.items()] + [IF_OTHER[k].format(e[k]) for k in differ if k in e]
            if told:
                found[title, name] = "; ".join(told)
    return found


def side_by_side(
    columns: dict[str, dict[str, Any]],
    more: Iterable[str] = (),
    headline: Iterable[str] = workflow.HEADLINE,
    marks: Mapping[tuple[str, str], str] | None = None,
) -> list[str]:
    """The headline and `more`, a column a run; where a screen is too narrow for all runs, one table after the other.

    `marks` are added to the cells of (run, measure); returned are the measures shown.
    """
    marks = marks or {}
    names = [n for n in dict.fromkeys([*headline, *more]) if any(n in values for values in columns.values())]
    cells = {
        title: [show(n, values[n]) + marks.get((title, n), "") if n in values else "-" for n in names]
        for title, values in columns.items()
    }
    for some in _that_fit(cells, screen.width - max(map(len, names), default=0) - 4):
        table = Table("measure", *(Column(title, overflow="fold", max_width=WIDEST) for title in some))
        for i, name in enumerate(names):
            table.add_row(name.replace("_", " "), *(cells[title][i] for title in some))
        screen.print(table)
    return names


def _that_fit(cells: Mapping[str, Sequence[str]], room: int) -> list[list[str]]:
    """The titles of the columns, as many in each group as `room` characters hold, at least one."""
    groups, left = [], 0
    for title, column in cells.items():
        width = min(WIDEST, max(map(len, (title, *column)))) + 3
        if not groups or width > left:
            groups, left = [*groups, []], room
        groups[-1].append(title)
        left -= width
    return groups


def show(name: str, value: Any) -> str:
    """A value as people read it: a share in percent, a count, or a plain number, by what it is of."""
    if value is None:
        return "none"
    if isinstance(value, int | str):
        return str(value)
    if name.startswith(PLAIN) and not name.endswith("_share"):
        return f"{value:.4f}" if not value or abs(value) >= 0.1 else f"{value:.3g}"
    plain = name in ("effective_rank", "active_per_sample", "latent_classes") or name.endswith(
        ("_median", "_median_rank")
    )
    return f"{value:.1f}" if plain else f"{value:.1%}"
