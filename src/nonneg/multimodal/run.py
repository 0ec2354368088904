"""PairRun: everything a training on images and their texts depends on."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from torch import Tensor, nn

from nonneg import augment, backbones, losses, names, optim, pairs
from nonneg.errors import BadInput
from nonneg.multimodal import texts
from nonneg.pairs import Pairs
from nonneg.run import DIGITS, ROLES, Training, takes_labels, try_knobs

SETS = names.Role("set of pairs", pairs, ("split", "root", "captions", "image_size", "strict"))
TEXTS = names.Role("text encoder", texts, ("captions",))


@dataclass(frozen=True)
class PairRun(Training):
    """Two encoders, of images and of texts, trained to give an image and its text the same features."""

    verb: ClassVar[str] = "train-pairs"
    trains: ClassVar[str] = "pairs"
    roles: ClassVar[dict[str, names.Role]] = {**ROLES, "data": SETS, "text": TEXTS}
    data: Annotated[Callable[..., Pairs], tyro.conf.Suppress] = pairs.folder  # pyright: ignore[reportIncompatibleMethodOverride]
    """Which pairs: digits, emoji, folder."""
    captions: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """What is said of the images of a folder: a .csv, .tsv or .jsonl file of ids and captions."""
    loss: Annotated[Callable[[Tensor, Tensor], Tensor], names.flag(ROLES["loss"])] = losses.clip
    """clip (symmetric InfoNCE) or spectral (the paper's asymmetric loss), with knobs as in clip:temperature=0.1."""
    text: Annotated[Callable[[list[str]], nn.Module], names.flag(TEXTS)] = texts.bag
    """bag (of subwords) or transformer, learned here; frozen: sentences:MODEL or vectors:path=E.npy,of=C.csv."""
    learn_temperature: bool = True
    """Learn the temperature where the loss allows it (clip does, info_nce does not), from the value it is given on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try_knobs(self.loss)
        if takes_labels(self.loss):
            name = self.to_json()["loss"]
            raise BadInput(f"--loss {name} needs labels, and pairs have texts instead; give clip or spectral")

    def load_pairs(self, split: str) -> Pairs:
        """One split of this run's pairs."""
        where = {"root": self.data_root, "captions": self.captions, "image_size": self.image_size}
        return self.data(split=split, **where, strict=self.strict)

    def first_temperature(self) -> float | None:
        """Where a temperature that is learned begins; None where the loss has none, or it is not learned."""
        taken = inspect.signature(self.loss).parameters.get("temperature")
        if not self.learn_temperature or taken is None or "Tensor" not in str(taken.annotation):
            return None
        return float(taken.default)


EMOJI = PairRun(
    data=pairs.emoji,
    backbone=partial(backbones.small_net, width=24),
    projector=(512, 256),
    text=partial(texts.bag, width=512),
    augment=partial(augment.simclr, min_scale=0.4, jitter=0.2, gray_p=0.0, blur_p=0.1, flip_p=0.0),  # names say left
    optimizer=optim.adamw,
    lr=2e-3,
    weight_decay=0.05,
    epochs=25,
    warmup_epochs=2,
)
PAIR_RECIPES = {  # the starting point for each set of pairs; every field can be changed on the command line
    "digits": replace(
        EMOJI,
        data=pairs.digits,
        projector=DIGITS.projector,
        augment=augment.gentle,
        text=texts.bag,
        epochs=20,
        batch_size=128,
        lr=4e-3,
    ),
    "emoji": EMOJI,
    "folder": replace(
        EMOJI, data=pairs.folder, backbone=backbones.resnet18, augment=augment.simclr, lr=1e-3, epochs=50
    ),
}
