"""Everything a training run depends on, as one frozen value: a Run of an encoder, a ClassifierRun (and a PairRun, in
multimodal). They hold functions; text is for files only."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
import tyro
from torch import Tensor, nn
from torch.optim import Optimizer

from nonneg import augment, backbones, data, engine, losses, maps, names, optim, progress
from nonneg.data import Dataset
from nonneg.encoder import BACKBONE, MAP, Encoder
from nonneg.errors import BadInput, unknown

ROLES = {
    "data": names.Role("data set", data, ("split", "root", "image_size", "strict")),
    "map": MAP,
    "weight_map": MAP,
    "loss": names.Role("loss", losses, ("z1", "z2")),
    "backbone": BACKBONE,
    "augment": names.Role("augmentation", augment, ("images", "noise")),
    "optimizer": names.Role("optimizer", optim, ("params", "lr", "weight_decay")),
}
PATHS = ("data_root", "pretrained", "captions")


@dataclass(frozen=True)
class Training:
    """What every training depends on, with labels or without; on a CPU equal ones give the same model, bit for bit."""

    verb: ClassVar[str]
    trains: ClassVar[str]  # what run.json says was trained
    roles: ClassVar[dict[str, names.Role]] = ROLES  # of the fields that hold functions
    data: Annotated[Callable[..., Dataset], tyro.conf.Suppress] = data.cifar10
    """Which images: digits, cifar10, cifar100, sprites, folder, arrays."""
    data_root: Annotated[Path | None, tyro.conf.arg(metavar="PATH", help_behavior_hint="")] = None
    """Where they are: a folder of images, a .npy/.npz file, or a folder that holds the CIFAR binaries."""
    image_size: Annotated[int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="")] = None
    """Side in pixels images are brought to; left out, the data set's own."""
    strict: bool = False
    """Stop at the first unreadable image instead of skipping and listing it."""

    map: Annotated[Callable[[Tensor], Tensor], names.flag(ROLES["map"])] = maps.rep_relu
    """identity leaves features as they are (CL, CE); relu, rep_relu, softplus, sigmoid, exp make them non-negative."""
    backbone: Annotated[Callable[[int], nn.Module], names.flag(ROLES["backbone"])] = backbones.resnet18
    """resnet18, resnet34, resnet50 (knobs stem=small|imagenet, pad=1|2, width=64), small_net, or timm:NAME."""
    projector: tuple[int, ...] = (2048, 256)
    """Widths of the projector's layers; the last is the number of features."""
    augment: Annotated[Callable[[Tensor, Tensor], Tensor], names.flag(ROLES["augment"])] = augment.simclr
    """How views are made: simclr (the paper's), gentle (for digits), crop_flip (for classifiers), none."""

    optimizer: Annotated[Callable[..., Optimizer], names.flag(ROLES["optimizer"])] = optim.lars
    """lars (the paper's), sgd or adamw."""
    lr: float = 0.4
    """Peak learning rate for a batch of 256; scaled in proportion to the batch."""
    weight_decay: float = 1e-4
    epochs: int = 200
    warmup_epochs: int = 10
    batch_size: int = 256
    seed: int = 0

    precision: engine.Precision = "auto"
    """bf16 runs convolutions and matrix products in bfloat16, weights and the loss staying in float32; auto is bf16 on
    a GPU, fp32 on a CPU."""
    mode: engine.Mode = "auto"
    """How a step is executed: eager, compiled (torch.compile), captured (in one CUDA graph), or graph (compiled and
    captured); auto is graph on a GPU, eager on a CPU."""
    device: str = "auto"
    """auto takes a GPU if there is one; or cpu, cuda, cuda:1."""
    checkpoint_seconds: float = 60.0
    """At most this much work is lost to a kill."""
    tensorboard: bool = False
    """Also write the log for TensorBoard (needs the tensorboard package)."""

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch_size", 2), ("warmup_epochs", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise BadInput(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least {least}")
        if self.seed >= 2**63:
            raise BadInput(f"--seed is {self.seed}; it must be below 2^63")
        if not 0 < self.lr < math.inf or not 0 <= self.weight_decay < math.inf:
            raise BadInput(
                f"--lr must be positive and --weight-decay not negative (got {self.lr}, {self.weight_decay})"
            )
        if not 0 <= self.checkpoint_seconds < math.inf:
            raise BadInput(f"--checkpoint-seconds is {self.checkpoint_seconds}; give a number of seconds, 0 or more")
        if any(width < 1 for width in self.projector):
            raise BadInput(f"--projector widths must be at least 1 (got {self.projector})")
        if (spelled := names.spell_or_custom(self.augment, ROLES["augment"])) != names.CUSTOM:
            _try_view(spelled)

    def load(self, split: str) -> Dataset:
        """One split of this run's data."""
        return self.data(split=split, root=self.data_root, image_size=self.image_size, strict=self.strict)

    def encoder(self, images: Dataset, *, normalised_as: Encoder | None = None) -> Encoder:
        """The encoder before the first step; it normalises by mean and deviation of `images`, or as another does."""
        if normalised_as is None:
            mean, std = ([round(v, 4) for v in values.tolist()] for values in images.mean_and_deviation())
        else:
            mean, std = normalised_as.about["mean"], normalised_as.about["std"]
        net = {"projector": self.projector, "map": self.map, "channels": images.channels}
        return Encoder(self.backbone, **net, mean=mean, std=std)

    def rate(self, steps_per_epoch: int) -> Callable[[Tensor], Tensor]:
        """The learning rate at a step: up to the peak, which is in proportion to the batch, then half a cosine."""
        warmup = min(self.warmup_epochs, self.epochs - 1) * steps_per_epoch
        peak = self.lr * self.batch_size / 256
        return partial(optim.warmup_cosine, peak=peak, warmup=warmup, total=self.epochs * steps_per_epoch)

    def torch_device(self) -> torch.device:
        """The device that `device` names, or the best there is."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
        except RuntimeError:
            device = None
        if device is None or device.type not in ("cpu", "cuda"):
            raise unknown("device", self.device, ("auto", "cpu", "cuda"))
        if device.type == "cuda" and not torch.cuda.is_available():
            progress.say_once(f"--device {self.device}: there is no GPU here; computing on the CPU, which is slower")
            return torch.device("cpu")
        if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
            raise BadInput(f"--device {self.device}: the GPUs here are cuda:0 to cuda:{count - 1}; name one of them")
        return device

    def to_json(self) -> dict[str, Any]:
        """Plain values, functions by name."""

        def plain(name: str, value: Any) -> Any:
            if name in self.roles:
                return names.spell_or_custom(value, self.roles[name])
            return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value

        return {f.name: plain(f.name, getattr(self, f.name)) for f in fields(self)}


@cache
def _try_view(spelled: str) -> None:
    """Make one view, so that a knob out of range is told before anything is written."""
    names.find(spelled, ROLES["augment"])(torch.zeros(1, 3, 8, 8), augment.draw_noise(1, generator=torch.Generator()))


def to_calm(loss: Callable[..., Tensor]) -> str:
    """What to try when training by a loss ends in numbers that are not finite."""
    warmer = "temperature" in inspect.signature(loss).parameters
    return "Start anew with a lower --lr" + ", or a higher temperature of the loss" * warmer


def takes_labels(loss: Callable[..., Tensor]) -> bool:
    """Whether a loss is one of (z1, z2, labels)."""
    return "labels" in inspect.signature(loss).parameters


def try_knobs(loss: Callable[..., Tensor]) -> None:
    """Call a loss of the package once, on two rows, so that a knob out of range is told before anything is written."""
    if names.spell_or_custom(loss, ROLES["loss"]) != names.CUSTOM:
        z = torch.ones(2, 1)
        loss(z, z, *((torch.arange(2),) if takes_labels(loss) else ()))


@dataclass(frozen=True)
class Run(Training):
    """An encoder trained from two views: of one image or, with labels, of two images of one class."""

    verb: ClassVar[str] = "train"  # of the command line
    trains: ClassVar[str] = "encoder"
    loss: Annotated[Callable[..., Tensor], names.flag(ROLES["loss"])] = losses.info_nce
    """The loss and its knobs, as in info_nce:temperature=0.05; supcon needs labels."""
    positives: Literal["views", "class"] = "views"
    """What is to be alike: two views of one image, or views of two images of one class (needs labels)."""
    batch_norm: Literal["joint", "per_view"] = "joint"
    """Batch-norm statistics over both views at once (one forward pass), or each view's own (the authors')."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try_knobs(self.loss)

    @property
    def loss_takes_labels(self) -> bool:
        """Whether the loss is one of (z1, z2, labels): its signature says so."""
        return takes_labels(self.loss)


@dataclass(frozen=True)
class ClassifierRun(Training):
    """A classifier trained with labels: NCE with relu on features and class weights, CE with identity on both."""

    verb: ClassVar[str] = "train-classifier"
    trains: ClassVar[str] = "classifier"
    map: Annotated[Callable[[Tensor], Tensor], names.flag(ROLES["map"])] = maps.relu
    """On the features that the classifier reads: relu (NCE) or identity (CE); rep_relu, softplus, sigmoid, exp too."""
    weight_map: Annotated[Callable[[Tensor], Tensor], names.flag(ROLES["weight_map"])] = maps.relu
    """On the class weights: relu (NCE) or identity (CE); rep_relu, softplus, sigmoid, exp too."""
    projector: tuple[int, ...] = ()
    """Widths of the layers between backbone and classifier (the paper's MLP: 16384 2048); left out, none."""
    augment: Annotated[Callable[[Tensor, Tensor], Tensor], names.flag(ROLES["augment"])] = augment.crop_flip
    """How training images are varied: crop_flip (the paper's), gentle (for digits), simclr, none."""
    epochs: int = 100
    pretrained: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RUN", help_behavior_hint="")] = None
    """Begin with the backbone of this run folder; left out, from scratch."""
    validation: bool = False
    """Hold a fifth of the training images out and test on them, not on the test images: for choosing settings."""
    test_every: int = 1
    """Epochs between two measurements of the test accuracy; the last epoch is always measured."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.test_every < 1:
            raise BadInput(f"--test-every is {self.test_every}; it must be at least 1")


SomeRun = TypeVar("SomeRun", bound=Training)


def anywhere(run: SomeRun) -> SomeRun:
    """The same run with absolute paths, `~` resolved, so that run.json means the same from any folder."""
    given = {name: path for name in PATHS if (path := getattr(run, name, None)) is not None}
    return replace(run, **{name: path.expanduser().absolute() for name, path in given.items()})


def from_json(values: dict[str, Any], where: Path, kind: type[SomeRun] = Run) -> SomeRun:
    """The run that `to_json` described; names outside the package are refused."""
    known, roles = {f.name for f in fields(kind)}, kind.roles
    given: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise BadInput(f"{where}: {name!r} is no field of a run; was it written by another version?")
        if name in roles:
            if value == names.CUSTOM:
                raise BadInput(f"{where}: the {roles[name].kind} is not one of nonneg's; start it from Python again")
            if not isinstance(value, str):
                raise BadInput(f"{where}: {name} must be a name, not {value!r}")
            try:
                given[name] = names.find(value, roles[name])
            except BadInput as error:
                raise BadInput(f"{where}: {error}") from None
        elif name in PATHS:
            given[name] = None if value is None else Path(value)
        else:
            given[name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**given)
    except TypeError as error:
        raise BadInput(f"{where} is damaged: {error}") from None


CIFAR = Run()
DIGITS = Run(
    data=data.digits,
    backbone=partial(backbones.small_net, width=24),
    projector=(256, 64),
    augment=augment.gentle,
    lr=2.0,  # few steps: the paper's 0.4 leaves half the features dead
    epochs=50,
    warmup_epochs=5,
    batch_size=128,
)
FOLDER = replace(CIFAR, data=data.folder, optimizer=optim.adamw, lr=1e-3, epochs=100, warmup_epochs=5)
RECIPES = {  # the starting point for each data set; every field can be changed on the command line
    "digits": DIGITS,
    "cifar10": CIFAR,
    "cifar100": replace(CIFAR, data=data.cifar100),
    "sprites": replace(DIGITS, data=data.sprites, image_size=32, epochs=10),
    "folder": FOLDER,
    "arrays": replace(FOLDER, data=data.arrays),
}
SPECTRAL_RECIPES = {  # the same for the spectral loss, whose features LARS drives to zero
    name: replace(
        run, loss=losses.spectral, optimizer=optim.adamw, lr=5e-4 if run.backbone is backbones.resnet18 else 3e-3
    )
    for name, run in RECIPES.items()
}


def recipe(name: str, loss: Callable[..., Tensor] = losses.info_nce) -> Run:
    """The starting point for a data set and a loss with its knobs."""
    if name not in RECIPES:
        raise unknown("data set", name, RECIPES)
    suited = SPECTRAL_RECIPES if getattr(loss, "func", loss) is losses.spectral else RECIPES
    return replace(suited[name], loss=loss)


def classifier_of(run: Run, **changes: Any) -> ClassifierRun:
    """A classifier on the data of a run, with its network and optimiser."""
    same = {f.name: getattr(run, f.name) for f in fields(Training) if f.name not in ("map", "projector", "augment")}
    return ClassifierRun(**{**same, "epochs": 100, **changes})


CLASSIFIERS = {  # the starting point for each data set, as above
    name: classifier_of(run) if run.optimizer is optim.lars else classifier_of(run, epochs=50)
    for name, run in RECIPES.items()
} | {
    name: classifier_of(RECIPES[name], augment=augment.gentle, epochs=epochs, warmup_epochs=2)
    for name, epochs in (("digits", 30), ("sprites", 5))
}
