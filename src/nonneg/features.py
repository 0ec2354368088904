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
from nonneg.data.stream import in_order
from nonneg.encoder import Encoder, in_parts
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
            np.savez(f, allow_pickle=False, **arrays)  # floats hardly compress, and it takes ten times as long


def load(path: Path) -> Features:
    """Features that `save` wrote."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as f:
            z = sp.csr_array((f["z_data"], f["z_indices"], f["z_indptr"]), shape=tuple(f["z_shape"]))
            found = Features(f["h"], z, f.get("labels", None), [str(i) for i in f["ids"]])
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist; make it with: nonneg features RUN") from None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path} is damaged or not a features file ({error})") from None
    check_finite(found, str(path))
    return found


def check_finite(made: Features, of: str) -> None:
    """Stop where a model gave something else than numbers."""
    for name, values in (("h", made.h), ("z", made.z.data)):
        if not np.isfinite(values).all():
            bad = f"the features of {of} hold NaN or infinite values in {name}"
            raise BadInput(f"{bad}: the model diverged; train it again with a smaller --lr")


@torch.inference_mode()
def extract(
    encoder: Encoder,
    data: Dataset,
    *,
    device: torch.device | str = "cpu",
    batch_size: int = 500,
    map: Callable[[Tensor], Tensor] | None = None,
) -> Features:
    """h and z of every image, unaugmented, in evaluation mode; `map=maps.identity` gives the signed projector output.

    Images on disk that cannot be read any more have no row; how many, and the first of them, is said.
    """
    if data.channels != encoder.about["channels"]:
        raise BadInput(
            f"the model takes images of {encoder.about['channels']} channels; {data.name} has {data.channels}"
        )
    tell_skipped(data)
    device = torch.device(device)
    encoder = encoder.to(device, memory_format=torch.channels_last).eval()  # pyright: ignore[reportCallIssue]
    apply = map or encoder.map

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        h = encoder.features((x.float() / 255).contiguous(memory_format=torch.channels_last))  # up to twice as fast
        return h, apply(encoder.projector(h))

    hs, zs, missing = [], [], []
    with progress.bar(f"features of {data.name}", len(data)) as advance:
        at = 0
        for x, bad in in_order(data.images, batch_size=batch_size, device=device):
            h, z = in_parts(both, x.to(device, non_blocking=True))
            hs.append(h.float().cpu().numpy())
            zs.append(sp.csr_array(z.float().cpu().numpy()))
            missing += [(at + row, why) for row, why in sorted(bad.items())]
            at += len(x)
            advance(len(x))
    labels = None if data.labels is None else data.labels.numpy()
    made = Features(np.concatenate(hs), sp.csr_array(sp.vstack(zs)), labels, data.ids)
    check_finite(made, data.name)
    return _without(made, missing) if missing else made


def tell_skipped(data: Dataset) -> None:
    """Say once how many inputs of a data set could not be used, and the first of them."""
    if data.skipped:
        progress.say_once(
            f"{data.name}: {len(data.skipped)} inputs skipped beside {len(data)}, first {data.skipped[0]}"
        )


def _without(f: Features, missing: list[tuple[int, str]]) -> Features:
    """The features without the rows of images that could not be read, said in one line."""
    first, why = missing[0]
    gone = f"{len(missing)} of {len(f.ids)} images cannot be read, first {f.ids[first]}: {why}"
    if len(missing) == len(f.ids):
        raise BadInput(f"{gone}; is the disk there?")
    progress.say(f"{gone}; they have no features")
    kept = np.delete(np.arange(len(f.ids)), [row for row, _ in missing])
    labels = None if f.labels is None else f.labels[kept]
    return Features(f.h[kept], f.z[kept], labels, [f.ids[i] for i in kept])
