"""What every set of pairs is: images, and for each of them one caption or several.

N images, C captions.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nonneg.data import Dataset
from nonneg.errors import BadInput


@dataclass(frozen=True, eq=False)
class Pairs:
    """N images and C captions; those of image 0 come first, `counts[i]` of them belong to image i."""

    images: Dataset
    captions: list[str] = field(repr=False)
    counts: Tensor = field(repr=False)  # int64, N, each at least 1

    def __post_init__(self) -> None:
        name, n = self.images.name, len(self.images)
        if self.counts.dtype != torch.int64 or self.counts.shape != (n,):
            raise BadInput(f"{name}: counts must be torch.int64, how many captions each of the {n} images has")
        if int(self.counts.min()) < 1:
            raise BadInput(f"{name}: image {int(self.counts.argmin())} has no caption; leave it out")
        if int(self.counts.sum()) != len(self.captions):
            raise BadInput(f"{name}: {len(self.captions)} captions but counts add up to {int(self.counts.sum())}")
        empty = next((i for i, text in enumerate(self.captions) if not text.strip()), None)
        if empty is not None:
            raise BadInput(f"{name}: caption {empty} is empty; leave it out")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def name(self) -> str:
        return self.images.name

    @property
    def skipped(self) -> list[str]:
        """What could not be used, as "name: reason"."""
        return self.images.skipped

    @property
    def first(self) -> Tensor:
        """N, the place of each image's first caption."""
        return self.counts.cumsum(0) - self.counts

    @property
    def owner(self) -> Tensor:
        """C, the image that each caption belongs to."""
        return torch.repeat_interleave(torch.arange(len(self)), self.counts)

    def fingerprint(self) -> str:
        """The first 16 hex digits of sha256(images, counts, captions)."""
        digest = hashlib.sha256(f"{self.images.fingerprint()} {self.counts.tolist()}".encode())
        digest.update("\0".join(self.captions).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:16]

    def subset(self, indices: Tensor | Sequence[int]) -> "Pairs":
        """The images at `indices`, in that order, with all their captions."""
        images = self.images.subset(indices)
        chosen = torch.as_tensor(indices).tolist()
        first, counts = self.first.tolist(), self.counts.tolist()
        captions = [text for i in chosen for text in self.captions[first[i] : first[i] + counts[i]]]
        return Pairs(images, captions, self.counts[torch.as_tensor(chosen)])

    def named(self, ids: Sequence[str]) -> "Pairs":
        """The images of these ids, in that order, with all their captions."""
        return self if ids == self.images.ids else self.subset(self.images.places(ids))


def paired(images: Dataset, captions: Sequence[Sequence[str]]) -> Pairs:
    """Images and the captions of each (a list of texts for each image), in the same order."""
    if (bare := next((i for i, texts in enumerate(captions) if isinstance(texts, str)), None)) is not None:
        raise BadInput(
            f"{images.name}: the captions of image {bare} are a text, {captions[bare]!r}; give a list of texts"
        )
    counts = torch.tensor([len(texts) for texts in captions], dtype=torch.int64)
    return Pairs(images, [text for texts in captions for text in texts], counts)
