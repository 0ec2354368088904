"""A captions file, CSV, TSV or JSON lines: which image, what is said of it. Pairs are made by id, never by order."""

import csv
import json
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nonneg.errors import BadInput

IDS = ("id", "image", "image_id", "file", "file_name", "filename", "path")
TEXTS = ("caption", "captions", "text")
LONGEST = 2**31 - 1  # letters in a field: a long caption is cut where it is read, not refused here


@dataclass(frozen=True)
class Caption:
    """One caption of the image that `id` names (none, if it is empty); `place` says where in the file it stands."""

    place: str
    id: str
    text: str


def read(path: Path) -> list[Caption]:
    """All captions of a file, in its order, empty ones too."""
    path = path.expanduser()
    kind = path.suffix.lower()
    csv.field_size_limit(LONGEST)
    if kind not in (".csv", ".tsv", ".jsonl"):
        raise BadInput(f"{path}: captions are read from .csv, .tsv and .jsonl files")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = (
                _json_rows(path, file) if kind == ".jsonl" else _csv_rows(path, file, "\t" if kind == ".tsv" else ",")
            )
            found = [caption for line, row in rows for caption in _captions(path, line, row)]
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; pass --captions, a .csv, .tsv or .jsonl file") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, csv.Error) as error:
        raise BadInput(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not found:
        raise BadInput(f"{path} holds no captions; give lines with an id and a caption")
    return found


def _csv_rows(path: Path, file: Any, between: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.DictReader(file, delimiter=between, strict=True)
    _column(path, reader.fieldnames or (), IDS)  # a file that lacks them says so even where it has no rows
    _column(path, reader.fieldnames or (), TEXTS)
    while True:
        begins = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise BadInput(
                f"{path}: the row that begins in line {begins} cannot be read ({_visible(error)}); a "
                'caption in "quotes" must be closed, and a quotation mark inside it written twice ("")'
            ) from None
        wanted, too_few = len(reader.fieldnames or ()), sum(value is None for value in row.values())
        if None in row or too_few:  # one caption cut in two at a comma would be a silent loss
            has = wanted - too_few + len(row.get(None) or ())  # pyright: ignore[reportArgumentType, reportCallIssue]
            hint = "write the separator before an empty field, too"
            if not too_few:
                hint = 'put a caption that holds a separator in "quotes"'
            raise BadInput(f"{path}: line {reader.line_num} has {has} fields where the header has {wanted}; {hint}")
        yield reader.line_num, row


def _visible(error: csv.Error) -> str:
    """What the reader of CSV says, with a separator that can be seen."""
    return str(error).replace("\t", "a tab").replace("'a tab'", "a tab")


def _json_rows(path: Path, file: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # the latter where it is nested too deeply
            raise BadInput(f"{path}: line {number} is not JSON ({getattr(error, 'msg', error)})") from None
        if not isinstance(row, dict):
            raise BadInput(f'{path}: line {number} is not an object such as {{"id": "cat.png", "caption": "a cat"}}')
        yield number, row


def _captions(path: Path, line: int, row: dict[str, Any]) -> Iterator[Caption]:
    name, texts = row[_column(path, row, IDS, line)], row[_column(path, row, TEXTS, line)]
    if isinstance(name, bool) or not isinstance(name, (str, int, type(None))):
        raise BadInput(f"{path}: line {line} names no image (its id is {name!r}); give a file name or a number")
    for text in texts if isinstance(texts, list) else [texts]:
        if text is not None and not isinstance(text, str):
            raise BadInput(f"{path}: line {line} has the caption {text!r}; give text, or a list of texts")
        if any("\ud800" <= c <= "\udfff" for c in f"{name}{text or ''}"):
            raise BadInput(f"{path}: line {line} holds half of a character (such as \\ud83d alone); mend or remove it")
        id = "" if name is None else str(name).strip()
        yield Caption(f"{path.name} line {line}", id, (text or "").strip())


def _column(path: Path, columns: Any, names: Sequence[str], line: int | None = None) -> str:
    """The column of `columns` that one of `names` names, whatever its case."""
    found = [c for c in columns if isinstance(c, str) and c.strip().lower() in names]
    if len(found) != 1:
        where = path if line is None else f"{path}: line {line}"
        what = "image" if names is IDS else "caption"
        has, one = ", ".join(map(str, columns)) or "none", "only one" if found else "one"
        other = next((c for c in ";\t|" if len(columns) == 1 and c in has), None)
        hint = f"; {'a tab' if other == chr(9) else repr(other)} does not separate columns here" if other else ""
        raise BadInput(f"{where} has the columns {has}; it needs {one} for the {what}: {' or '.join(names)}{hint}")
    return found[0]


WAYS = (str, lambda path: str(path.with_suffix("")), lambda path: path.name, lambda path: path.stem)


class Places:
    """Which image an id means: its path below `root`, with or without the ending, or else its file name alone.

    Only where nothing fits so, upper and lower case may differ.
    """

    def __init__(self, names: Sequence[str], root: Path) -> None:
        self.names, self.root = names, _path(str(root.absolute()))
        paths = [_path(name) for name in names]
        self.by = [(case, _places([case(way(path)) for path in paths])) for case in (str, str.casefold) for way in WAYS]

    def find(self, caption: Caption) -> int | None:
        """The place of the image, None where there is none; an id that fits two images is refused."""
        path = _path(caption.id)
        wanted = str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)
        for case, known in self.by:
            if found := known.get(case(wanted)):
                if len(found) > 1:
                    two = " and ".join(self.names[i] for i in found[:2])
                    raise BadInput(
                        f"{caption.place}: the id {caption.id!r} fits {len(found)} images ({two}); write their paths"
                    )
                return found[0]
        return None


def _path(text: str) -> PurePosixPath:
    """A path with whole letters and forward slashes, whatever system wrote it."""
    return PurePosixPath(unicodedata.normalize("NFC", text.replace("\\", "/")))


def _places(keys: Sequence[str]) -> dict[str, list[int]]:
    """Where each key stands."""
    found: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        found.setdefault(key, []).append(i)
    return found
