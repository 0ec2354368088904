"""Images that are already NumPy arrays, in a `.npy` or `.npz` file.

N images, C channels (1 or 3), H height, W width.
"""

import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch

from nonneg.data.dataset import Dataset
from nonneg.data.pictures import resize
from nonneg.data.splits import check, hold_out
from nonneg.errors import BadInput

LABELS = ("labels", "train_labels", "test_labels")
KEYS = ("images", "train_images", "test_images", *LABELS, "classes")


def arrays(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """`root` is a `.npy` of images, or a `.npz` with `images`, or `train_images` and `test_images`, and their labels.

    Images are N x H x W, N x H x W x C or N x C x H x W (channels last where both would do), uint8 or float in [0, 1].
    `labels` are whole numbers from 0, `classes` their names. Without test images a fifth, chosen by a hash of the
    index, is test. Images that are not square need `image_size`. With `strict` an array that is not used is an error.
    """
    check(split, image_size)
    path = existing_file(root)
    tables, key, has_test, skipped = read(path, split)
    images = as_pixels(tables[key], f"arrays: {key!r} in {path}")
    labels, classes = as_labels(tables, key.replace("images", "labels"), len(images), path)
    if labels is None and "classes" in tables:
        skipped = [*skipped, "classes: there are no labels for them to name"]
    if strict and skipped:
        raise BadInput(f"arrays: {path}: {skipped[0]}; remove it, or load without strict")
    height, width = images.shape[2:]
    if height != width and image_size is None:
        raise BadInput(f"arrays: {path} has images of {height} x {width}; pass image_size to have them made square")
    ids = [str(i) for i in range(len(images))]
    chosen = list(range(len(images))) if has_test else hold_out(ids, split)
    if not chosen:
        raise BadInput(f"arrays: {path} holds one image, which leaves none for the test split; add more images")
    return Dataset(
        name="arrays",
        images=torch.from_numpy(resize(np.ascontiguousarray(images[chosen]), image_size)),
        labels=None if labels is None else torch.from_numpy(labels[chosen]),
        classes=classes,
        ids=[ids[i] for i in chosen],
        skipped=skipped,
    )


def existing_file(root: Path | None) -> Path:
    if root is None:
        raise BadInput("arrays: no root given; pass --data-root (root=), a .npy or .npz file")
    root = Path(root).expanduser()
    if not root.is_file():
        problem = "is not a file" if root.exists() else "does not exist"
        raise BadInput(f"arrays: {root} {problem}; pass --data-root (root=), a .npy or .npz file")
    return root


def read(path: Path, split: str) -> tuple[dict[str, np.ndarray], str, bool, list[str]]:
    """The arrays that `split` needs, which of them holds its images, if there are test images, and what is not used."""
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return {"images": loaded}, "images", False, []
            names = loaded.files
            key = images_key(names, split, path)
            wanted = [name for name in names if name == key or name in (*LABELS, "classes")]
            unused = [f"{name}: not an array this loader knows" for name in names if name not in KEYS]
            return {name: loaded[name] for name in wanted}, key, "test_images" in names, unused
    except BadInput:
        raise
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        if "Object arrays" in str(error):
            problem = "holds Python objects (a pickle), which are never loaded: save plain uint8 and int64 arrays"
        elif "pickled" in str(error):
            problem = "is neither .npy nor .npz (pickles are never loaded): save it with numpy.save or numpy.savez"
        else:
            problem = f"is damaged ({error}): save it again with numpy.save or numpy.savez"
        raise BadInput(f"arrays: {path} {problem}") from error


def images_key(names: Collection[str], split: str, path: Path) -> str:
    """Which array holds the images of `split`: without test images one array holds both splits."""
    train = [name for name in ("images", "train_images") if name in names]
    if len(train) != 1:
        problem = "both images and train_images" if train else "neither images nor train_images"
        raise BadInput(f"arrays: {path} has {problem} (it has {', '.join(names) or 'nothing'}); give exactly one")
    return "test_images" if split == "test" and "test_images" in names else train[0]


def as_pixels(images: np.ndarray, where: str) -> np.ndarray:
    """uint8 N x C x H x W from any layout and type that this loader reads."""
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise BadInput(f"{where} is {images.dtype}; save it as uint8 (0 to 255) or as float from 0 to 1")
    if images.ndim == 3:
        images = images[:, None]
    elif images.ndim == 4 and images.shape[3] in (1, 3):
        images = images.transpose(0, 3, 1, 2)
    elif images.ndim != 4 or images.shape[1] not in (1, 3):
        vectors = "these are vectors, and what learns here reads images; " if images.ndim == 2 else ""
        raise BadInput(
            f"{where} has shape {images.shape}; {vectors}give N x H x W, N x H x W x C or N x C x H x W, C 1 or 3"
        )
    if images.size == 0:
        raise BadInput(f"{where} has no pixels (shape {images.shape}); give at least one image")
    return images if images.dtype == np.uint8 else from_float(images, where)


def from_float(images: np.ndarray, where: str) -> np.ndarray:
    """round(255 v) for v in [0, 1]; anything else is refused, since its scale would be a guess."""
    wrong = ~np.isfinite(images)
    if wrong.any():
        n, c, row, column = np.unravel_index(int(wrong.argmax()), wrong.shape)
        raise BadInput(
            f"{where} has {wrong.sum()} NaN or infinite pixels, the first in image {n} "
            f"(channel {c}, row {row}, column {column}); mend or remove those images"
        )
    low, high = images.min(), images.max()
    if low < 0 or high > 1:
        raise BadInput(f"{where} has values from {low:g} to {high:g}; floats must be from 0 to 1, or save it as uint8")
    return np.round(images.astype(np.float32) * 255).astype(np.uint8)


def as_labels(
    tables: dict[str, np.ndarray], key: str, n: int, path: Path
) -> tuple[np.ndarray | None, list[str] | None]:
    """int64 labels N of one split and the names of the classes, which both splits share."""
    found = {name: tables[name] for name in LABELS if name in tables}
    for name, labels in found.items():
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise BadInput(
                f"arrays: {name!r} in {path} is {labels.dtype} of shape {labels.shape}; give one whole number per image"
            )
        if len(labels) and labels.min() < 0:
            raise BadInput(f"arrays: {name!r} in {path} has {labels.min()}; number the classes from 0")
    if key not in found:
        return None, None
    labels = found[key]
    if len(labels) != n:
        raise BadInput(f"arrays: {key!r} in {path} has {len(labels)} labels for {n} images; give one per image")
    if "classes" not in tables:  # name each number that occurs in either split by itself
        values = np.unique(np.concatenate(list(found.values())))
        return np.searchsorted(values, labels).astype(np.int64), [str(v) for v in values]
    names = tables["classes"]
    if names.ndim != 1 or names.dtype.kind != "U":
        raise BadInput(f"arrays: 'classes' in {path} is {names.dtype} of shape {names.shape}; give a list of names")
    if labels.max() >= len(names):
        raise BadInput(f"arrays: {key!r} in {path} has {labels.max()}, but there are {len(names)} classes, from 0")
    return labels.astype(np.int64), names.tolist()
