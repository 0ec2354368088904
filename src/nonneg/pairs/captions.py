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
        if None in row or None in row.values():  # one caption cut in two at a comma would be a silent loss
            has = sum(1 for v in row.values() if v is not None) - (None in row) + len(row.get(None) or ())  # pyright: ignore
            raise BadInput(
                f"{path}: line {reader.line_num} has {has} fields where the header has {len(reader.fieldnames or ())}; "
                'put a caption that holds a separator in "quotes"'
            )
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
        raise BadInput(f"{where} has the columns {has}; it needs {one} for the {what}: {' or '.join(names)}")
    return found[0]


class Places:
    """Which image an id means: its path in the folder, with or without the ending, or else its file name alone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        ways = (lambda p: str(p), lambda p: str(p.with_suffix("")), lambda p: p.name, lambda p: p.stem)
        self.by: list[dict[str, list[int]]] = [{} for _ in ways]
        for i, name in enumerate(names):
            path = PurePosixPath(unicodedata.normalize("NFC", name))
            for known, way in zip(self.by, ways, strict=True):
                known.setdefault(way(path), []).append(i)

    def find(self, caption: Caption) -> int | None:
        """The place of the image, None where there is none; an id that fits two images is refused."""
        wanted = str(PurePosixPath(unicodedata.normalize("NFC", caption.id.replace("\\", "/"))))
        for known in self.by:
            if found := known.get(wanted):
                if len(found) > 1:
                    two = " and ".join(self.names[i] for i in found[:2])
                    raise BadInput(
                        f"{caption.place}: the id {caption.id!r} fits {len(found)} images ({two}); write their paths"
                    )
                return found[0]
        return None
