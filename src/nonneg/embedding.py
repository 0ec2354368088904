"""A finished run, its model, and its features of any data, kept in its folder while they are that model's."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nonneg import encoder, features, names, progress, rundir
from nonneg.data import Dataset
from nonneg.errors import BadInput
from nonneg.features import Features
from nonneg.run import ROLES, Training

Map = Callable[[Tensor], Tensor]
SAMPLED = 8  # images by which stored features are told from another model's


def path_of(folder: Path, data: Dataset, split: str, map: Map | None = None) -> Path:
    """Where features are kept; those under another map than the model's have its name in theirs."""
    under = "" if map is None else "-" + names.spell(map, ROLES["map"])
    return folder / "features" / f"{data.name}-{split}{under}-{data.fingerprint()}.npz"


def embed(folder: Path, data: Dataset, split: str, run: Training, map: Map | None = None) -> Features:
    """Features of `data` under the run's model, kept in the run folder and reused for the same images and model.

    `map` takes the place of the model's own: `maps.identity` gives the projector's signed output.
    """
    map = None if map is run.map else map
    features.tell_skipped(data)
    return stored(folder, data, split, run, map) or extracted(folder, data, split, run, map)


def stored(folder: Path, data: Dataset, split: str, run: Training, map: Map | None = None) -> Features | None:
    """The features in the run folder, if they are those of these images (by the name) and this model (by a sample)."""
    path = path_of(folder, data, split, map)
    if not path.exists():
        return None
    try:
        found = features.load(path)
    except BadInput as error:  # a cache: made again
        progress.say(f"{error}; making it again")
        return None
    if _made_by(load_model(folder, run), found, data, map):
        return found
    progress.say(f"{path} was not made by this model; making it again")
    return None


def extracted(folder: Path, data: Dataset, split: str, run: Training, map: Map | None = None) -> Features:
    """Features made anew, and kept in the run folder."""
    model = load_model(folder, run)
    try:
        made = features.extract(model, data, device=run.torch_device(), map=map)
    except BadInput as error:  # images of other channels, a model that diverged: of several runs, which
        raise BadInput(f"{folder}: {error}") from None
    made.save(path_of(folder, data, split, map))
    return made


@torch.inference_mode()
def _made_by(model: encoder.Encoder, found: Features, data: Dataset, map: Map | None) -> bool:
    """Whether the model gives a few of these images the h and z that are stored, up to a device's rounding."""
    rows = np.unique(np.linspace(0, len(found.ids) - 1, SAMPLED).astype(int))
    place = {name: i for i, name in enumerate(data.ids)}
    if not all(found.ids[row] in place for row in rows) or data.channels != model.about["channels"]:
        return False
    try:
        x = data.images[torch.tensor([place[found.ids[row]] for row in rows])]
    except BadInput:  # an image on disk that cannot be read any more: it must not have features
        return False
    h = model.features(x.float() / 255)
    pairs = ((h, found.h[rows]), ((map or model.map)(model.projector(h)), found.z[rows].toarray()))
    return all(
        new.shape == old.shape
        and np.allclose(new.numpy(), old, rtol=0, atol=0.02 * max(float(np.abs(old).max()), 1e-6))
        for new, old in pairs
    )


def load_model(folder: Path, run: Training) -> encoder.Encoder:
    """The run's model; where its file is damaged but the checkpoint is not, the sentence says how to rebuild it."""
    try:
        return encoder.load(folder)
    except BadInput as error:
        if (at := rundir.checkpoint_step(folder)) is None:
            raise
        again = rundir.resume_words(run, folder)
        raise BadInput(f"{error}; rebuild it from the checkpoint of step {at} with: {again}") from None


def finished_run(folder: Path, data_root: Path | None = None) -> Training:
    """The run of a folder whose training is over, with the device and the copy of the data that are here."""
    run, _ = rundir.read_any(folder)
    run = replace(run, device="auto", data_root=data_root or run.data_root)
    if not (folder / "model.safetensors").exists():
        raise BadInput(f"{folder} has no model yet; finish it with: {rundir.resume_words(run, folder)}")
    return run
