"""A folder of pictures: one sub-folder per class, or flat and unlabelled.

N images, C = 3 channels, S the side of the square they are brought to.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nonneg.data.dataset import Dataset
from nonneg.data.memory import free_bytes
from nonneg.data.pictures import EXTENSIONS, strictly_sized, try_read
from nonneg.data.splits import check, hold_out
from nonneg.data.stream import Files, number
from nonneg.errors import BadInput
from nonneg.progress import track

SIZE = 64
HASHED_GB = 2.0  # GiB of pixels that are always held in memory, and known by their bytes; more, by their files' lengths
TRAIN_NAMES = ("train",)
TEST_NAMES = ("test", "val", "valid", "validation")  # the first of these that is there is the test split


@dataclass(frozen=True)
class Picture:
    """A file that by its name is an image; `label` is its class, None in a flat folder."""

    path: Path
    id: str
    label: str | None


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, the classes it has sub-folders for, and what in it is not usable."""

    pictures: list[Picture]
    classes: list[str]
    skipped: list[str]


def folder(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """The images below `root`, as RGB, shorter side `image_size` (64), cropped to a square about the centre.

    `train/` beside `test/` (or `val/`, `valid/`, `validation/`) are the splits; otherwise a fifth of the files, chosen
    by a hash of their paths, is test. What cannot be used is listed in `skipped`; with `strict` it is an error.

    A split whose pixels take more than 2 GiB and than half of the free memory (or than $NONNEG_RESIDENT_GB) stays on
    disk, as `Files`: its pictures are only opened here, and decoded anew each time they are used.
    """
    check(split, image_size)
    root = existing_folder(root)
    parts, skipped = list_splits(root)
    refuse(skipped if strict else [], root)
    size, other = image_size or SIZE, "test" if split == "train" else "train"
    pixels = len(parts[split].pictures) * 3 * size**2
    read = decode if pixels <= resident_bytes() else inspect
    with strictly_sized():
        images, good, bad = read(parts[split].pictures, size, root, strict=strict)
        usable = {p.label for p in good}
        classes, empty = [], []
        for name in sorted({*parts["train"].classes, *parts["test"].classes}):
            elsewhere = (p.path for p in parts[other].pictures if p.label == name)  # both splits number classes alike
            found = name in usable or any(not isinstance(try_read(path, size), str) for path in elsewhere)
            (classes if found else empty).append(name)
    skipped = [*skipped, *bad, *(f"class {name!r}: no images" for name in empty)]
    refuse(skipped if strict else [], root)
    if not good:
        raise BadInput(nothing_usable(root, split, sum(len(p.pictures) for p in parts.values()), skipped))
    index = {name: i for i, name in enumerate(classes)}
    labels = [index[p.label] for p in good if p.label is not None]
    return Dataset(
        name="folder",
        images=images,
        labels=torch.tensor(labels) if labels else None,
        classes=classes if labels else None,
        ids=[p.id for p in good],
        skipped=skipped,
        lengths=[p.path.stat().st_size for p in good] if pixels > HASHED_GB * 2**30 else None,
    )


def existing_folder(root: Path | None) -> Path:
    if root is None:
        raise BadInput("folder: no root given; pass --data-root (root=), a folder of images")
    root = Path(root).expanduser()
    if not root.exists():
        raise BadInput(f"folder: {root} does not exist; pass --data-root (root=), a folder of images")
    if not root.is_dir():
        raise BadInput(f"folder: {root} is a file; pass the folder that holds the images")
    return root


def refuse(skipped: list[str], root: Path) -> None:
    if skipped:
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise BadInput(f"folder: {root}: {skipped[0]}{more}; mend or remove it, or load without strict")


def nothing_usable(root: Path, split: str, count: int, skipped: list[str]) -> str:
    if count == 1 and split == "test":
        return f"folder: {root} holds one image, which leaves none for the test split; add more images"
    first = f" ({len(skipped)} things skipped, first {skipped[0]})" if skipped else ""
    return f"folder: {root} has no usable images for split {split!r}{first}; it reads {', '.join(EXTENSIONS)}"


def visible(path: Path) -> list[Path]:
    """What is in a folder, in the order of the names, hidden things left out."""
    try:
        return sorted((p for p in path.iterdir() if not p.name.startswith(".")), key=lambda p: p.name)
    except OSError as error:
        raise BadInput(f"folder: cannot read {path} ({error.strerror}); check its permissions") from error


def walk(path: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Every file below a folder; links are followed, except back into a folder that we are already in."""
    here = path.resolve()
    if here in above:
        return
    for child in visible(path):
        if child.is_dir():
            yield from walk(child, above | {here})
        else:
            yield child


def is_picture(path: Path) -> bool:
    return path.suffix.lower().removeprefix(".") in EXTENSIONS


def relative(path: Path, root: Path) -> str:
    """The path below `root` as text that can always be written, whatever bytes the file's name has."""
    return path.relative_to(root).as_posix().encode("utf-8", "backslashreplace").decode()


def list_folder(path: Path, root: Path) -> Listing:
    """Labelled by sub-folder if any of them holds a picture, else flat."""
    children = visible(path)
    below = {child.name: list(walk(child)) for child in children if child.is_dir()}
    labelled = any(is_picture(file) for files in below.values() for file in files)
    pictures: list[Picture] = []
    skipped: list[str] = []
    for label, files in [*below.items(), (None, [child for child in children if not child.is_dir()])]:
        for file in files:
            name = relative(file, root)
            if not is_picture(file):
                skipped.append(f"{name}: not an image")
            elif label is None and labelled:
                skipped.append(f"{name}: beside the class folders, so it has no class")
            else:
                pictures.append(Picture(file, name, None if label is None else relative(path / label, path)))
    return Listing(pictures, [relative(path / label, path) for label in below], skipped)


def split_folders(root: Path) -> tuple[Path, Path] | None:
    """`train/` and `test/` (or what else the test split may be called), None where the folder is not split."""
    folders = {child.name.lower(): child for child in visible(root) if child.is_dir()}
    train = next((folders[name] for name in TRAIN_NAMES if name in folders), None)
    test = next((folders[name] for name in TEST_NAMES if name in folders), None)
    if train and test:
        return train, test
    if folders and set(folders) <= {*TRAIN_NAMES, *TEST_NAMES}:
        only = next(iter(folders.values()))
        lacking = "test" if train else "train"
        raise BadInput(f"folder: {root} has {only.name}/ but no {lacking}/; add it, or pass {only} to hold out a fifth")
    return None


def list_splits(root: Path) -> tuple[dict[str, Listing], list[str]]:
    """The pictures of both splits, and what is unusable in either."""
    if both := split_folders(root):
        train, test = both
        parts = {"train": list_folder(train, root), "test": list_folder(test, root)}
        unused = [child for child in visible(root) if child not in both]
        beside = [f"{relative(child, root)}: beside {train.name}/ and {test.name}/, so in no split" for child in unused]
        return parts, [*beside, *parts["train"].skipped, *parts["test"].skipped]
    whole = list_folder(root, root)
    keys = [p.id for p in whole.pictures]
    parts = {s: Listing([whole.pictures[i] for i in hold_out(keys, s)], whole.classes, []) for s in ("train", "test")}
    return parts, whole.skipped


def resident_bytes() -> float:
    """How many bytes of pixels are held in memory at most."""
    return number("NONNEG_RESIDENT_GB", max(HASHED_GB, free_bytes() / 2 / 2**30)) * 2**30


def decode(pictures: list[Picture], size: int, root: Path, *, strict: bool) -> tuple[Tensor, list[Picture], list[str]]:
    """Images N x 3 x S x S of those that can be read, which ones these are, and why the others cannot."""
    images = np.empty((len(pictures), 3, size, size), np.uint8)
    refuse_in = root if strict else None
    good, bad = sift(pictures, lambda p: try_read(p.path, size), images.__setitem__, refuse_in, "reading images")
    return torch.from_numpy(images[: len(good)]), good, bad


def inspect(pictures: list[Picture], size: int, root: Path, *, strict: bool) -> tuple[Files, list[Picture], list[str]]:
    """The same with the images left on disk: what begins like a picture counts as one that can be read."""
    lengths: list[int] = []
    refuse_in = root if strict else None
    good, bad = sift(pictures, lambda p: try_open(p.path), lengths.insert, refuse_in, "inspecting images")
    return Files([str(p.path) for p in good], lengths, size), good, bad


def sift(
    pictures: list[Picture],
    attempt: Callable[[Picture], Any],
    keep: Callable[[int, Any], object],
    refuse_in: Path | None,
    title: str,
) -> tuple[list[Picture], list[str]]:
    """The pictures on which `attempt` succeeds, its k-th success given to `keep`, and why it fails on the others."""
    good: list[Picture] = []
    bad: list[str] = []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # Pillow works outside Python's lock
        results = track(pool.map(attempt, pictures), title, len(pictures))
        try:
            for picture, result in zip(pictures, results, strict=True):
                if isinstance(result, str):
                    bad.append(f"{picture.id}: {result}")
                    if refuse_in is not None:
                        refuse(bad, refuse_in)
                else:
                    keep(len(good), result)
                    good.append(picture)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error the rest is not worth waiting for
    return good, bad


def try_open(path: Path) -> int | str:
    """The length in bytes of a file that begins like a picture, or the reason why it is none."""
    with suppress(Exception):  # whatever it was, `try_read` has the words for it
        if path.is_file() and path.stat().st_size:  # opening a pipe would wait for ever
            with Image.open(path) as image:
                if image.mode != "F":
                    return path.stat().st_size
    result = try_read(path, 1)
    return result if isinstance(result, str) else path.stat().st_size
