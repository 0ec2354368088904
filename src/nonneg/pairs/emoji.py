"""Emoji of two vendors and their names: about 7,500 pictures of 1,900 things.

From the npm packages emoji-datasource-google and emoji-datasource-twitter, version 16.0.0.
"""

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nonneg import files
from nonneg.data import Dataset
from nonneg.data.folder import Picture, decode, refuse
from nonneg.data.pictures import strictly_sized
from nonneg.data.splits import check, hold_out
from nonneg.errors import BadInput
from nonneg.pairs.dataset import Pairs, paired
from nonneg.progress import say

SIZE = 32
PACKAGE = "emoji-datasource-{}"
VERSION = "16.0.0"
VENDORS = {  # and the sha256 of the archive
    "google": "fb5fd131b362aab7a55542d2a147a79708cce0a8b1c1bbacd470172708b5c438",
    "twitter": "f64a530c63bca463bd8317fdc4615ce63a53a0c65018e4ce2d848aaba7a28877",
}
TONES = {
    "1F3FB": "light skin tone",
    "1F3FC": "medium light skin tone",
    "1F3FD": "medium skin tone",
    "1F3FE": "medium dark skin tone",
    "1F3FF": "dark skin tone",
}


@dataclass(frozen=True)
class Emoji:
    """One picture's file name, the emoji that it is a variation of, what it is called, and its category."""

    image: str
    base: str
    names: tuple[str, ...]
    category: str


def emoji(
    *,
    split: str = "train",
    root: Path | None = None,
    captions: Path | None = None,
    image_size: int | None = None,
    strict: bool = False,
) -> Pairs:
    """Emoji with their names, 32 x 32 unless `image_size` says otherwise; a fifth of the base emoji is test.

    Both vendors' pictures and all skin tones of one emoji are on the same side. `root` holds emoji.json, google/ and
    twitter/, or the folder emoji/ that does; without it npm fetches the packages once into `~/.cache/nonneg` (or
    $NONNEG_DATA). Labels are the categories, which nothing trains on.
    """
    check(split, image_size)
    if captions is not None:
        raise BadInput(f"emoji have their own names; --captions {captions} is for a folder of images")
    table, places = _cached() if root is None else _found(Path(root).expanduser())
    known = parse(files.read_json(table), table)
    bases = sorted({e.base for e in known})
    here = {bases[i] for i in hold_out(bases, split)}
    mine = {
        f"{vendor}/{e.image}": (place / e.image, e) for e in known if e.base in here for vendor, place in places.items()
    }
    pictures = [Picture(path, name, None) for name, (path, _) in mine.items()]
    with strictly_sized():
        images, good, skipped = decode(pictures, image_size or SIZE, table.parent, strict=strict)
    refuse(skipped if strict else [], table.parent)
    if not good:
        raise BadInput(f"emoji: none of {len(pictures)} pictures can be read (first {skipped[0]})")
    found = [mine[p.id][1] for p in good]
    classes = sorted({e.category for e in known})
    labels = torch.tensor([classes.index(e.category) for e in found])
    data = Dataset("emoji", images, labels, classes, [p.id for p in good], skipped)
    return paired(data, [e.names for e in found])


def parse(entries: Any, where: Path) -> list[Emoji]:
    """Every picture that emoji.json lists: each emoji, then its skin tones."""
    found = []
    try:
        for entry in entries:
            names = tuple(dict.fromkeys(_said(name) for name in (entry["name"], *entry["short_names"])))
            found.append(Emoji(entry["image"], entry["unified"], names, entry["category"]))
            for tones, variation in entry.get("skin_variations", {}).items():
                tone = " and ".join(TONES[t] for t in tones.split("-"))
                toned = tuple(f"{name}, {tone}" for name in names)
                found.append(Emoji(variation["image"], entry["unified"], toned, entry["category"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{where} is not emoji-datasource's emoji.json ({error!r})") from None
    if not found:
        raise BadInput(f"{where} lists no emoji")
    return found


def _said(name: str) -> str:
    """A name as people say it: `woman-running` and WOMAN_RUNNING are "woman running"."""
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


def _found(root: Path) -> tuple[Path, dict[str, Path]]:
    """emoji.json and the folder of each vendor's pictures."""
    for place in (root, root / "emoji"):
        if (place / "emoji.json").is_file():
            lacking = [vendor for vendor in VENDORS if not (place / vendor).is_dir()]
            if lacking:
                raise BadInput(f"emoji: {place} has emoji.json but no folder {lacking[0]}/ with its pictures; add it")
            return place / "emoji.json", {vendor: place / vendor for vendor in VENDORS}
    raise BadInput(
        f"emoji: {root} has no emoji.json; pass the folder that holds it beside google/ and twitter/ (the packages "
        "emoji-datasource-google and -twitter of npm, their img/VENDOR/64), or leave --data-root out to download them"
    )


def _cached() -> tuple[Path, dict[str, Path]]:
    """The same from the cache, fetched and checked first if it is not there."""
    cache = Path(os.environ.get("NONNEG_DATA") or "~/.cache/nonneg").expanduser()
    for vendor in VENDORS:
        if not (cache / f"emoji-{vendor}" / "package" / "img" / vendor / "64").is_dir():
            _fetch(vendor, cache / f"emoji-{vendor}")
    places = {vendor: cache / f"emoji-{vendor}" / "package" for vendor in VENDORS}
    return places["google"] / "emoji.json", {vendor: place / "img" / vendor / "64" for vendor, place in places.items()}


def _fetch(vendor: str, into: Path) -> None:
    """Unpack a vendor's emoji.json and pictures into a folder that is there only when all of it is."""
    package = PACKAGE.format(vendor)
    instead = f"unpack {' and '.join(PACKAGE.format(v) for v in VENDORS)} {VERSION} and pass --data-root (root=), a "
    instead += "folder with emoji.json, google/ and twitter/ (their img/VENDOR/64)"
    npm = shutil.which("npm")
    if npm is None:
        raise BadInput(f"emoji: their pictures are packages of npm, which is not installed; install it, or {instead}")
    wanted = ("package/emoji.json", f"package/img/{vendor}/64/")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=into.parent, prefix=f".{into.name}.") as folder:
            say(f"npm fetches {package} {VERSION}, tens of MB")
            words = [npm, "pack", f"{package}@{VERSION}", "--silent", "--pack-destination", folder]
            subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
            (archive,) = Path(folder).glob("*.tgz")
            with archive.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != VENDORS[vendor]:
                raise BadInput(
                    f"emoji: {package} {VERSION} has another checksum than expected; try again, or {instead}"
                )
            with tarfile.open(archive) as tar:
                some = [member for member in tar if member.name.startswith(wanted)]
                tar.extractall(Path(folder) / "done", members=some, filter="data")
            shutil.rmtree(into, ignore_errors=True)  # half of it, from an older version
            (Path(folder) / "done").rename(into)
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip() or "no word").splitlines()[-1]
        raise BadInput(f"emoji: npm could not fetch {package} ({said}); try again, or {instead}") from None
    except (OSError, ValueError, tarfile.TarError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"emoji: cannot unpack {package} into {into} ({error}); {instead}") from error
