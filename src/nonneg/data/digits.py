"""The 1797 handwritten digits that come with scikit-learn: the set that needs no download."""

from pathlib import Path

import numpy as np
import torch

from nonneg.data.dataset import Dataset
from nonneg.data.pictures import resize
from nonneg.data.splits import check

SIZE = 16  # twice the 8 x 8 originals, so that crops and small networks have something to work on
SPLIT_SEED = 0


def digits(
    *, split: str = "train", root: Path | None = None, image_size: int | None = None, strict: bool = False
) -> Dataset:
    """Digits 0 to 9, one channel, 16 x 16 unless `image_size` says otherwise; a quarter is test, stratified.

    `root` and `strict` change nothing: the images come with scikit-learn and all of them are good.
    """
    from sklearn.datasets import load_digits  # imported here: it costs a second that no other set needs
    from sklearn.model_selection import train_test_split

    del root, strict
    check(split, image_size)
    pixels, labels = load_digits(return_X_y=True)  # N x 64 with values 0 to 16
    halves = train_test_split(np.arange(len(labels)), test_size=0.25, stratify=labels, random_state=SPLIT_SEED)
    chosen = np.sort(halves[0 if split == "train" else 1])
    images = np.round(pixels[chosen] * (255 / 16)).astype(np.uint8).reshape(-1, 1, 8, 8)
    return Dataset(
        name="digits",
        images=torch.from_numpy(resize(images, image_size or SIZE)),
        labels=torch.from_numpy(labels[chosen].astype(np.int64)),
        classes=[str(d) for d in range(10)],
        ids=[str(i) for i in chosen],
    )
