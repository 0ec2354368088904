"""What every loader checks, and which images it holds out when a data set comes without a test set."""

import hashlib
from collections.abc import Sequence

from nonneg.errors import BadInput, unknown

SPLITS = ("train", "test")
HELD_OUT = 0.2
LARGEST = 4096  # pixels a side; beyond it a typing error would fill the memory


def check(split: str, image_size: int | None) -> None:
    """Refuse a split or an image size that no loader knows."""
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    if image_size is not None and not 1 <= image_size <= LARGEST:
        raise BadInput(f"image_size is {image_size}, but must be a number of pixels from 1 to {LARGEST}")


def hold_out(keys: Sequence[str], split: str) -> list[int]:
    """Indices of `split`: the fifth of `keys` (at least one of two) that sha256 sorts first is test, the rest train.

    The hash makes the choice depend on the names alone: not on their order, the machine or a seed.
    """
    order = sorted(range(len(keys)), key=lambda i: (hashlib.sha256(keys[i].encode()).digest(), i))
    count = max(round(HELD_OUT * len(keys)), 1) if len(keys) >= 2 else 0
    return sorted(order[:count] if split == "test" else order[count:])
