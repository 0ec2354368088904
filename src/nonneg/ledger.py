"""What was measured, kept: a line of JSON for each run or group of runs, in RESULTS/NAME.jsonl."""

import json
import tempfile
from pathlib import Path
from typing import Any

from nonneg import files
from nonneg.errors import BadInput
from nonneg.experiments import Experiment


def of(name: str, experiment: Experiment, results: Path) -> dict[str, dict[str, Any]]:
    """The result of each declared run that has one, its own or borrowed; the last where there are several."""
    lines = read(results / f"{name}.jsonl")
    for run_name, (other, twin) in experiment.borrowed.items():
        if run_name not in lines and twin in (theirs := read(results / f"{other}.jsonl")):
            lines[run_name] = theirs[twin]
    return {run_name: lines[run_name] for run_name in experiment.runs if run_name in lines}


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The lines of a file by their names; none where there is no file."""
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read as lines of text ({error}); mend or remove it") from None
    out = {}
    for i, line in enumerate(text.splitlines()):
        try:
            value = json.loads(line, parse_constant=_no_number)
            out[value["name"]] = {**value, "measures": dict(value["measures"])}
            if any(isinstance(v, str) for v in value["measures"].values()):
                raise ValueError("a text where a number belongs")
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadInput(f"{path}: line {i + 1} is not a result; mend or remove that line") from None
    return out


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def check_writable(results: Path) -> None:
    """Refuse a place where no results can be put."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise BadInput(f"--results {results} is no folder to write to ({error.strerror}); name another") from None


def put(path: Path, line: dict[str, Any]) -> None:
    """The file again with this run's line, new or in place of its old one, so that it is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(path.parent):  # another reproduction may add to the same file
        lines = {**read(path), line["name"]: line}
        files.write_text(path, "".join(f"{json.dumps(value, allow_nan=False)}\n" for value in lines.values()))
