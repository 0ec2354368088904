"""Sprites whose factors are known: a white square, ellipse or heart on black, on the published grid of dSprites.

N images, S x S pixels. A sprite is five whole numbers (shape, scale, orientation, x, y), or its place on the grid. That
place is its id, so whatever carries ids carries factors.
"""

import itertools
import math
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nonneg.data.dataset import Dataset
from nonneg.data.splits import check
from nonneg.errors import BadInput
from nonneg.progress import bar

FACTORS = {"shape": 3, "scale": 6, "orientation": 40, "x": 32, "y": 32}  # y runs fastest
SHAPES = ("square", "ellipse", "heart")
GRID = math.prod(FACTORS.values())  # 737,280
TRAIN, TEST = 50_000, 10_000  # how many of them a split is
SAMPLE_SEED = 0

SIDE = 64
REACH = 16  # pixels from a sprite's centre to its farthest point, at most; 64 = 16 + 32 positions + 16
SQUARE = 11.0  # half the side at scale 1, in pixels
ELLIPSE = (15.5, 8.9)  # half its axes
HEART = 10.9  # length of the curve's unit
CENTRE = (0.31, 0.17)  # right of and above a pixel's: on it, turns of a small square would give equal pixels

ORIGINAL = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
CHUNK = 256  # images worked on at a time: what stays in a cache


def sprites(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """A fixed random sample of the grid, 50,000 train and 10,000 test, one channel, 64 x 64; the label is the shape.

    Without `root` they are rendered here: dSprites' factors, not its pixels. `root` is the original file or its folder,
    of which only `imgs` and `latents_classes` are read (a part of the grid will do: a sixth of it is test). Another
    `image_size` is an area mean. `factors_of(ids)` gives the factors. `strict` changes nothing.
    """
    del strict
    check(split, image_size)
    if root is None:
        index = torch.from_numpy(sample(GRID, split))
        images = render(to_factors(index))
    else:
        images, index = read_original(Path(root).expanduser(), split)
    return Dataset(
        name="sprites",
        images=area_mean(images, image_size or SIDE),
        labels=to_factors(index)[:, 0].contiguous(),
        classes=list(SHAPES),
        ids=[str(i) for i in index.tolist()],
    )


def factors_of(ids: Sequence[str]) -> np.ndarray:
    """The five factors of each image of `sprites`, in the order of FACTORS, from its id: int64 N x 5."""
    strange = [i for i in ids if not (i.isascii() and i.isdigit() and int(i) < GRID)]
    if strange:
        raise BadInput(f"{strange[0]!r} is no place on the grid of sprites: only images of that data set have factors")
    return to_factors(torch.tensor([int(i) for i in ids], dtype=torch.int64)).numpy()


def to_factors(index: Tensor) -> Tensor:
    """Factors N x 5 of places on the grid N, the last factor running fastest."""
    columns = []
    for size in reversed(FACTORS.values()):
        columns.append(index % size)
        index = index // size
    return torch.stack(columns[::-1], dim=1)


def to_index(factors: Tensor) -> Tensor:
    """Places on the grid N of factors N x 5."""
    index = torch.zeros_like(factors[:, 0])
    for column, size in zip(factors.unbind(1), FACTORS.values(), strict=True):
        index = index * size + column
    return index


def render(factors: Tensor, *, image_size: int = SIDE) -> Tensor:
    """uint8 images N x 1 x S x S of factors N x 5, on the device of the factors: 255 where a pixel's centre is inside.

    Scale 0.5 to 1, orientation 0 to 2 pi counter-clockwise (so the first and the last of the 40 look the same), the
    centre at pixel (16 + x, 16 + y) from the left and the top: no sprite is cut off.
    """
    if factors.ndim != 2 or factors.shape[1] != len(FACTORS) or factors.is_floating_point():
        raise BadInput(
            f"sprites need whole numbers N x {len(FACTORS)} ({', '.join(FACTORS)}), not {factors.dtype} of "
            f"shape {tuple(factors.shape)}"
        )
    sizes = torch.tensor(list(FACTORS.values()), device=factors.device)
    if bool(((factors < 0) | (factors >= sizes)).any()):
        most = ", ".join(f"{name} {size - 1}" for name, size in FACTORS.items())
        raise BadInput(f"a factor is off the grid: each runs from 0 to at most {most}")
    shape, scale, orientation, x, y = factors.long().unbind(1)
    which = (shape * FACTORS["scale"] + scale) * FACTORS["orientation"] + orientation
    images = _windows(factors.device)[which, FACTORS["y"] - 1 - y, FACTORS["x"] - 1 - x]
    return area_mean(images[:, None], image_size)


@cache
def _windows(device: torch.device) -> Tensor:
    """The whole set as a view of 6 MB, 720 x 32 x 32 x 64 x 64: moving a sprite is looking through another window."""
    margin = FACTORS["x"] - 1
    padded = F.pad(_sprites_in_the_middle().to(device), (margin, margin, margin, margin))
    return padded.unfold(1, SIDE, 1).unfold(2, SIDE, 1)


def _sprites_in_the_middle() -> Tensor:
    """uint8 720 x 33 x 33: every shape, scale and orientation."""
    offset = torch.arange(-REACH, REACH + 1, dtype=torch.float64)
    up, right = torch.meshgrid(-offset - CENTRE[1], offset - CENTRE[0], indexing="ij")
    steps = FACTORS["orientation"] - 1
    angle = torch.arange(steps + 1, dtype=torch.float64) % steps * (2 * math.pi / steps)  # 2 pi is exactly 0
    scale = torch.linspace(0.5, 1, FACTORS["scale"], dtype=torch.float64)
    cos, sin, scale = angle.cos()[:, None, None], angle.sin()[:, None, None], scale[:, None, None, None]
    u, v = (right * cos + up * sin) / scale, (up * cos - right * sin) / scale  # the sprite's own axes
    inside = torch.stack([_in_square(u, v), _in_ellipse(u, v), _in_heart(u, v)])
    return inside.flatten(0, 2).to(torch.uint8) * 255


def _in_square(u: Tensor, v: Tensor) -> Tensor:
    return torch.maximum(u.abs(), v.abs()) <= SQUARE


def _in_ellipse(u: Tensor, v: Tensor) -> Tensor:
    return (u / ELLIPSE[0]) ** 2 + (v / ELLIPSE[1]) ** 2 <= 1


def _in_heart(u: Tensor, v: Tensor) -> Tensor:
    """(u^2 + v^2 - 1)^3 <= u^2 v^3."""
    u, v = u / HEART, v / HEART
    return (u**2 + v**2 - 1) ** 3 <= u**2 * v**3


def area_mean(images: Tensor, size: int) -> Tensor:
    """uint8 N x 1 x S x S, each pixel the mean of the area it covers; as it is where the size is right."""
    if images.shape[-1] == size:
        return images
    parts = [F.interpolate(part.float(), size=(size, size), mode="area") for part in images.split(CHUNK)]
    return torch.cat([part.round().to(torch.uint8) for part in parts])


def sample(n: int, split: str) -> np.ndarray:
    """Which of n images are `split`, in random order, so that the first few are a fair sample too."""
    order = np.random.RandomState(SAMPLE_SEED).permutation(n)  # this generator's stream is frozen, newer ones' is not
    test = min(TEST, n // 6)
    return order[n - test :] if split == "test" else order[: min(TRAIN, n - test)]


def read_original(root: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images N x 1 x 64 x 64 (0 and 255) and places on the grid N, of one split of the original file."""
    path = root / ORIGINAL if root.is_dir() else root
    if not path.is_file():
        raise BadInput(f"sprites: there is no file {path}; pass {ORIGINAL} or its folder, or no root to render sprites")
    damage = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, MemoryError, NotImplementedError)
    try:
        with zipfile.ZipFile(path) as archive:
            index = read_places(archive, path)
            chosen = sample(len(index), split)
            images = read_images(archive, path, len(index), chosen)
    except BadInput:
        raise
    except KeyError as error:
        raise BadInput(f"sprites: {path} lacks an array ({error.args[0]}); pass the original {ORIGINAL}") from None
    except (*damage, RuntimeError) as error:  # zipfile's word for an encrypted file is RuntimeError
        raise BadInput(f"sprites: {path} is damaged or not an .npz file ({error}); download it again") from error
    return torch.from_numpy(images), torch.from_numpy(index[chosen])


def read_places(archive: zipfile.ZipFile, path: Path) -> np.ndarray:
    """The place on the grid of every image in the file, from the array `latents_classes`, N x 6 (the first is colour).

    The file also holds `metadata`, a pickle, which is never opened.
    """
    with archive.open("latents_classes.npy") as file:
        latents = np.lib.format.read_array(file, allow_pickle=False)
    sizes = [1, *FACTORS.values()]
    good = latents.ndim == 2 and latents.shape[1] == len(sizes) and latents.dtype.kind in "iu"
    if not good or (latents < 0).any() or (latents >= sizes).any():
        raise BadInput(
            f"sprites: latents_classes in {path} must be whole numbers N x 6 below {sizes}; download it again"
        )
    if len(latents) < 6:
        raise BadInput(
            f"sprites: {path} holds {len(latents)} images; 6 or more are needed, a sixth of them for testing"
        )
    index = to_index(torch.from_numpy(latents[:, 1:].astype(np.int64))).numpy()
    if len(np.unique(index)) < len(index):
        raise BadInput(f"sprites: latents_classes in {path} has two images with the same factors; download it again")
    return index


def read_images(archive: zipfile.ZipFile, path: Path, n: int, chosen: np.ndarray) -> np.ndarray:
    """The `chosen` of the n images, 0 or 255: N x 1 x 64 x 64, unpacked in passing, for all together fill 3 GB."""
    row = np.full(n, -1)
    row[chosen] = np.arange(len(chosen))
    out = np.empty((len(chosen), 1, SIDE, SIDE), np.uint8)
    with archive.open("imgs.npy") as file, bar(f"reading {path.name}", n) as advance:
        shape, fortran, dtype = read_header(file)
        if shape != (n, SIDE, SIDE) or dtype != np.uint8 or fortran:
            raise BadInput(
                f"sprites: imgs in {path} is {dtype} {shape}, but must be uint8 {n} x 64 x 64; download it again"
            )
        for start, end in itertools.pairwise([*range(0, n, CHUNK), n]):
            raw = file.read((end - start) * SIDE * SIDE)
            if len(raw) < (end - start) * SIDE * SIDE:
                raise EOFError("imgs ends early")
            here = row[start:end]
            pixels = np.frombuffer(raw, np.uint8).reshape(-1, 1, SIDE, SIDE)[here >= 0]
            if pixels.max(initial=0) > 1:
                raise BadInput(f"sprites: imgs in {path} has pixels other than 0 and 1; download it again")
            out[here[here >= 0]] = pixels * 255
            advance(end - start)
    return out


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, order and type of the array whose bytes follow."""
    if np.lib.format.read_magic(file) == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)
