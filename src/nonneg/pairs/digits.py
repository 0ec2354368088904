"""Handwritten digits and their names: pairs that need no download."""

from pathlib import Path

from nonneg import data
from nonneg.errors import BadInput
from nonneg.pairs.dataset import Pairs, paired

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
SAYINGS = ("{}", "a handwritten {}", "the digit {}", "number {}")


def digits(
    *,
    split: str = "train",
    root: Path | None = None,
    captions: Path | None = None,
    image_size: int | None = None,
    strict: bool = False,
) -> Pairs:
    """The digits of `data.digits`, each called by its name in four ways ("three", "a handwritten three", ...)."""
    if captions is not None:
        raise BadInput(f"digits have their own captions; --captions {captions} is for a folder of images")
    images = data.digits(split=split, root=root, image_size=image_size, strict=strict)
    assert images.labels is not None
    return paired(images, [[saying.format(NAMES[y]) for saying in SAYINGS] for y in images.labels.tolist()])
