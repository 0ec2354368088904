"""Features of every image, from any encoder and any data set: h dense, z sparse.

N images, d the backbone's width, D features.
"""

import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from nonneg import files, progress
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.errors import BadInput


@dataclass(frozen=True)
class Features:
    """h: N x d float32; z: N x D CSR, only exact zeros left out; labels: N or None; ids: one name per image."""

    h: np.ndarray
    z: sp.csr_array
    labels: np.ndarray | None
    ids: list[str]

    def save(self, path: Path) -> None:
        """One .npz file, no pickles in it."""
        arrays = {"h": self.h, "z_data": self.z.data, "z_indices": self.z.indices, "z_indptr": self.z.indptr}
        arrays |= {"z_shape": np.array(self.z.shape), "ids": np.array(self.ids, dtype=np.str_)}
        if self.labels is not None:
            arrays["labels"] = self.labels
        with files.atomic(path) as temporary, temporary.open("wb") as f:
            np.savez_compressed(f, allow_pickle=False, **arrays)


def load(path: Path) -> Features:
    """Features that `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as f:
            z = sp.csr_array((f["z_data"], f["z_indices"], f["z_indptr"]), shape=tuple(f["z_shape"]))
            return Features(f["h"], z, f["labels"] if "labels" in f else None, [str(i) for i in f["ids"]])
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; make it with: nonneg features RUN") from None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is damaged or not a features file ({error})") from None


@torch.inference_mode()
def extract(
    encoder: Encoder,
    data: Dataset,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 500,
    map: Callable[[Tensor], Tensor] | None = None,
) -> Features:
    """h and z of every image, unaugmented, in evaluation mode; `map=maps.identity` gives the signed projector output."""
    if data.channels != encoder.mean.shape[1] and encoder.mean.shape[1] != 1:
        raise BadInput(f"the model expects {encoder.mean.shape[1]} channels, {data.name} has {data.channels}")
    encoder = encoder.to(device).eval()
    apply = map or encoder.map
    hs, zs = [], []
    with progress.bar(f"features of {data.name}", len(data)) as advance:
        for i in range(0, len(data), batch_size):
            x = data.images[i : i + batch_size].to(device).float() / 255
            h = encoder.features(x)
            z = apply(encoder.projector(h))
            hs.append(h.float().cpu().numpy())
            zs.append(sp.csr_array(z.float().cpu().numpy()))
            advance(len(x))
    labels = None if data.labels is None else data.labels.numpy()
    return Features(np.concatenate(hs), sp.csr_array(sp.vstack(zs)), labels, data.ids)
