"""CIFAR-10 and CIFAR-100 in the official binary layout, read in place or downloaded and checked.

N images of C x H x W = 3 x 32 x 32. A record is one or two label bytes, then 3072 pixels, channel by channel.
"""

import gzip
import os
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
import requests
import torch

from nonneg.data.dataset import Dataset
from nonneg.data.pictures import resize
from nonneg.data.splits import check
from nonneg.errors import BadInput
from nonneg.progress import bar, say_once

PIXELS = 3 * 32 * 32
MEGABYTE = 1 << 20
PUBLISHED = {"train": 50_000, "test": 10_000}  # images, in both sets


@dataclass(frozen=True)
class Source:
    """Where one set is published and how its files are named; the last of the label bytes is the one to use."""

    name: str
    url: str
    md5: str
    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    class_names: str
    label_bytes: int

    @property
    def archive(self) -> str:
        return self.url.rsplit("/", 1)[-1]


CIFAR10 = Source(
    name="cifar10",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    test=("test_batch.bin",),
    class_names="batches.meta.txt",
    label_bytes=1,
)
CIFAR100 = Source(
    name="cifar100",
    url="https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    train=("train.bin",),
    test=("test.bin",),
    class_names="fine_label_names.txt",
    label_bytes=2,  # coarse, then fine
)


def cifar10(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """CIFAR-10: 50,000 and 10,000 photographs of ten things, 32 x 32 unless `image_size` says otherwise.

    `root` holds `cifar-10-batches-bin/` or its archive, or is that folder; without it the archive is downloaded
    once into `~/.cache/nonneg` (or $NONNEG_DATA). `strict` changes nothing: a damaged file is always refused.
    """
    del strict
    return load(CIFAR10, split=split, root=root, image_size=image_size)


def cifar100(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """CIFAR-100 with its 100 fine labels; `root`, `image_size` and `strict` as for `cifar10`."""
    del strict
    return load(CIFAR100, split=split, root=root, image_size=image_size)


def load(source: Source, *, split: str, root: Path | None, image_size: int | None) -> Dataset:
    """One split of `source`, from `root` or from the cache."""
    check(split, image_size)
    place = cached(source) if root is None else find(source, Path(root).expanduser())
    if place is None:
        raise BadInput(missing(source, root))
    files = source.train if split == "train" else source.test
    raw = read_members(source, place, (*files, source.class_names))
    classes = raw[source.class_names].decode("utf-8", "replace").split()
    parts = [parse(source, name, raw[name], len(classes)) for name in files]
    same_length(files, [len(labels) for _, labels in parts])
    images = np.concatenate([images for images, _ in parts])
    if len(images) != PUBLISHED[split]:
        say_once(f"{source.name}: {len(images)} {split} images, not the {PUBLISHED[split]} published; is a file cut?")
    labels = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return Dataset(
        name=source.name,
        images=torch.from_numpy(resize(images, image_size)),
        labels=torch.from_numpy(labels),
        classes=classes,
        ids=[str(i) for i in range(len(images))],
    )


def find(source: Source, root: Path) -> Path | None:
    """The folder with the binary files or their archive, at `root` or directly inside it."""
    for folder in (root, root / source.folder):
        if any((folder / name).is_file() for name in (*source.train, *source.test)):
            return folder
    if root.is_file():
        return root
    archive = root / source.archive
    return archive if archive.is_file() else None


def missing(source: Source, root: Path | None) -> str:
    return (
        f"{source.name}: found neither {source.folder}/ nor {source.archive} in {root}; pass the folder that holds one "
        f"of them (the binary version from {source.url}: the Python version is a pickle, which is never loaded)"
    )


def cached(source: Source) -> Path:
    """The set in the cache, downloaded and checked first if it is not there."""
    cache = Path(os.environ.get("NONNEG_DATA") or "~/.cache/nonneg").expanduser()
    found = find(source, cache)
    if found is not None and found.is_dir():
        return found
    elsewhere = f"or pass --data-root (root=) with a folder that holds {source.archive}"
    try:  # an archive that is already there is only checked
        kept = pooch.retrieve(
            source.url,
            known_hash=f"md5:{source.md5}",
            fname=source.archive,
            path=cache,
            downloader=download,  # pyright: ignore[reportArgumentType]  # pooch's protocol is that of its processors
        )
    except requests.RequestException as error:
        reason = f"the server answered {error.response.status_code}" if error.response is not None else "no connection"
        raise BadInput(f"{source.name}: cannot download {source.url} ({reason}); try again {elsewhere}") from error
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{source.name}: cannot write to {cache} ({reason}); set NONNEG_DATA {elsewhere}") from error
    except ValueError as error:
        raise BadInput(
            f"{source.name}: wrong checksum: {source.url} did not give the file expected (md5 {source.md5}); "
            f"try again {elsewhere}"
        ) from error
    return Path(kept)


def download(url: str, output_file: str, _: object) -> None:
    """Fetch `url` into a file behind a progress bar; pooch calls this and checks the result."""
    with requests.get(url, stream=True, timeout=30, headers={"Accept-Encoding": "identity"}) as reply:
        reply.raise_for_status()
        total = -(-int(reply.headers.get("content-length", 0)) // MEGABYTE)
        with Path(output_file).open("wb") as file, bar(f"downloading {url.rsplit('/', 1)[-1]} (MB)", total) as advance:
            for chunk in reply.iter_content(MEGABYTE):
                file.write(chunk)
                advance()


def read_members(source: Source, place: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    """The bytes of the named files, from a folder or straight from the archive: nothing is ever extracted to disk."""
    try:
        raw = read_folder(place, names) if place.is_dir() else read_archive(place, source.folder, names)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise BadInput(f"{source.name}: {place} is damaged or unreadable ({error}); download it again") from error
    absent = [name for name in names if name not in raw]
    if absent:
        raise BadInput(f"{source.name}: {place} lacks {', '.join(absent)}; download {source.url} again")
    return raw


def read_folder(folder: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names if (folder / name).is_file()}


def read_archive(archive: Path, folder: str, names: tuple[str, ...]) -> dict[str, bytes]:
    wanted = {f"{folder}/{name}": name for name in names}
    raw: dict[str, bytes] = {}
    with gzip.open(archive) as stream, tarfile.open(fileobj=stream) as tar:
        for member in tar:
            name = wanted.get(member.name.removeprefix("./"))
            content = tar.extractfile(member) if name and member.isfile() else None
            if name and content:
                raw[name] = content.read()
        while stream.read(MEGABYTE):  # gzip compares its checksum at the very end, behind the last member
            pass
    return raw


def parse(source: Source, name: str, raw: bytes, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images N x 3 x 32 x 32 and labels N of one file of records."""
    record = source.label_bytes + PIXELS
    if len(raw) == 0 or len(raw) % record:
        raise BadInput(
            f"{source.name}: {name} has {len(raw)} bytes, not a whole number of {record}-byte records; "
            f"it is truncated or of another format: download {source.url} again"
        )
    records = np.frombuffer(raw, np.uint8).reshape(-1, record)
    labels = records[:, source.label_bytes - 1]
    wrong = np.flatnonzero(labels >= n_classes)
    if len(wrong):
        raise BadInput(
            f"{source.name}: {name} has label {labels[wrong[0]]} in record {wrong[0]}, but {source.class_names} names "
            f"{n_classes} classes; download {source.url} again"
        )
    return records[:, source.label_bytes :].reshape(-1, 3, 32, 32), labels


def same_length(files: tuple[str, ...], counts: list[int]) -> None:
    """Refuse batches of different lengths: a file cut between two records shows in nothing else."""
    short = int(np.argmin(counts))
    if counts[short] < max(counts):
        raise BadInput(
            f"{files[short]} has {counts[short]} records where another batch has {max(counts)}; "
            "it is truncated: download the archive again"
        )
