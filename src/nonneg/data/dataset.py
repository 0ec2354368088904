"""What every data set is: uint8 images, in memory or on disk, labels if there are any, and a name for each image.

N images, C channels, H height, W width.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from nonneg.data.stream import Files
from nonneg.errors import BadInput, listed

HOW_TO_LABEL = "sort the images into one folder a class, or put 'labels' beside 'images' in the .npz file"
REASONS = 5  # for which inputs were skipped that are told at most
SAMPLE = 2000  # images from which mean and deviation are taken


@dataclass(frozen=True, eq=False)
class Dataset:
    """Square uint8 images N x C x H x W with optional labels; `skipped` says what could not be used, and why."""

    name: str
    images: Tensor | Files = field(repr=False)  # uint8, N x C x H x W, C is 1 or 3, H = W
    labels: Tensor | None = field(repr=False)  # int64, N
    classes: list[str] | None
    ids: list[str] = field(repr=False)  # a path relative to the root, or the index as text
    skipped: list[str] = field(default_factory=list)  # "name: reason"
    lengths: list[int] | None = field(default=None, repr=False)  # bytes of each file, of a set too large to be hashed

    def __post_init__(self) -> None:
        check_images(self.name, self.images)
        if len(self.ids) != len(self.images):
            raise BadInput(f"{self.name}: {len(self.ids)} ids for {len(self.images)} images; give one id per image")
        check_labels(self.name, self.labels, self.classes, len(self.images))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        return self.images.shape[-1]

    def said_skipped(self) -> str:
        """How many inputs were skipped for which reason, as in "2 inputs skipped: 2 x no caption (first: cat.png)"."""
        why = [line.rpartition(": ")[2] for line in self.skipped]
        first = {reason: line.rpartition(": ")[0] for reason, line in reversed([*zip(why, self.skipped, strict=True)])}
        each = [f"{n} x {reason} (first: {first[reason]})" for reason, n in Counter(why).most_common(REASONS)]
        more = ["and other reasons"] * (len(first) > REASONS)
        return f"{len(why)} inputs skipped: {'; '.join(each + more)}"

    def fingerprint(self) -> str:
        """The first 16 hex digits of sha256(shape, images, labels); of many files only names and lengths count."""
        digest = hashlib.sha256(f"{tuple(self.images.shape)}".encode())
        lengths = self.images.lengths if isinstance(self.images, Files) else self.lengths
        if lengths is not None:
            digest.update(f"{list(zip(self.ids, lengths, strict=True))}".encode())
        else:
            assert isinstance(self.images, Tensor)
            digest.update(self.images.cpu().contiguous().numpy().data)
        if self.labels is not None:
            digest.update(b"labels")
            digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def numbers_among(self, known: Sequence[str], where: str) -> Tensor:
        """The number that each class has in a run whose classes are `known`: by name, or its own where it has none."""
        number = {c: i for i, c in enumerate(known)}
        last = -1 if self.labels is None else int(self.labels.max())
        mine = self.classes or [*known, *(str(i) for i in range(len(known), last + 1))]
        if stray := [c for c in mine if c not in number]:
            missing = listed([c for c in known if c not in mine]) or "none"
            raise BadInput(
                f"class names do not match: only in {where}: {listed(stray)}; only in the run: {missing}; rename them, "
                "or take out those the run does not know"
            )
        return torch.tensor([number[c] for c in mine])

    def mean_and_deviation(self) -> tuple[Tensor, Tensor]:
        """Of each channel, as shares of 255, over at most SAMPLE images evenly spread."""
        which = torch.arange(0, len(self), -(-len(self) // SAMPLE))
        if isinstance(self.images, Files):
            x, bad = self.images.read(which.tolist(), "mean of the colours")
            x = x[[row for row in range(len(x)) if row not in bad] or [0]]
        else:
            x = self.images[which.to(self.images.device)]
        x = x.float() / 255
        return x.mean(dim=(0, 2, 3)), x.std(dim=(0, 2, 3)).clamp_min(1e-3)

    def subset(self, indices: Tensor | Sequence[int]) -> "Dataset":
        """The images at `indices`, in that order, with their labels and ids."""
        chosen = torch.as_tensor(indices, device="cpu")
        if chosen.ndim != 1 or len(chosen) == 0 or chosen.dtype.is_floating_point or chosen.dtype == torch.bool:
            raise BadInput(f"{self.name}: a subset needs a non-empty list of whole numbers, one per image to keep")
        low, high = int(chosen.min()), int(chosen.max())
        if low < 0 or high >= len(self):
            raise BadInput(f"{self.name}: a subset asks for images {low} to {high}, but there are 0 to {len(self) - 1}")
        chosen = chosen.long()
        images, which = self.images, chosen.tolist()
        return replace(
            self,
            images=images.subset(which) if isinstance(images, Files) else images[chosen.to(images.device)],
            labels=None if self.labels is None else self.labels[chosen.to(self.labels.device)],
            ids=[self.ids[i] for i in which],
            lengths=self.lengths and [self.lengths[i] for i in which],
        )

    def places(self, ids: Sequence[str]) -> list[int]:
        """Where the images of these ids are: what has features may lack images that could not be read."""
        place = {name: i for i, name in enumerate(self.ids)}
        return [place[name] for name in ids]

    def named(self, ids: Sequence[str]) -> "Dataset":
        """The images of these ids, in that order."""
        return self if ids == self.ids else self.subset(self.places(ids))


def check_images(name: str, images: Tensor | Files) -> None:
    if images.dtype != torch.uint8:
        raise BadInput(f"{name}: images are {images.dtype}, but must be torch.uint8 (0 to 255)")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        raise BadInput(f"{name}: images have shape {tuple(images.shape)}, but must be N x C x H x W with C 1 or 3")
    n, _, height, width = images.shape
    if n == 0 or height == 0:
        raise BadInput(f"{name}: no images (shape {tuple(images.shape)}); give at least one")
    if height != width:
        raise BadInput(f"{name}: images are {height} x {width}, but must be square; crop or resize them")


def check_labels(name: str, labels: Tensor | None, classes: list[str] | None, n: int) -> None:
    if classes is not None and len(set(classes)) != len(classes):
        raise BadInput(f"{name}: two classes share a name; give each class its own")
    if labels is None:
        if classes is not None:
            raise BadInput(f"{name}: {len(classes)} classes but no labels; give both or neither")
        return
    if labels.dtype != torch.int64 or labels.shape != (n,):
        found = f"{labels.dtype} of shape {tuple(labels.shape)}"
        raise BadInput(f"{name}: labels are {found}, but must be torch.int64, one for each of the {n} images")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= len(classes)):
        allowed = "at least 0" if classes is None else f"0 to {len(classes) - 1}"
        raise BadInput(f"{name}: labels run from {low} to {high}, but must be {allowed}")
