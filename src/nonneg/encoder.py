"""Encoder = backbone -> projector -> map. The map belongs to the model: what is saved, embedded and measured is
non-negative because the model is."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from nonneg import backbones, files, maps, names
from nonneg.errors import BadInput

MAP = names.Role("map", maps, ("z",))
BACKBONE = names.Role("backbone", backbones, ("channels",))


class Encoder(nn.Module):
    """`forward(x)` is z = map(projector(h)), h = backbone((x - mean) / std); x is N x C x H x W in [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: nn.Module | Callable[[int], nn.Module],
        *,
        projector: Sequence[int] = (2048, 256),
        map: Callable[[Tensor], Tensor] = maps.rep_relu,
        channels: int = 3,
        mean: Sequence[float] = (0.5,),
        std: Sequence[float] = (0.25,),
    ) -> None:
        super().__init__()
        own = isinstance(backbone, nn.Module)
        self.backbone = backbone if isinstance(backbone, nn.Module) else backbone(channels)
        self.projector = mlp([backbones.output_width(self.backbone, channels), *projector])
        self.map = map
        self.dim = projector[-1] if projector else backbones.output_width(self.backbone, channels)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        self.about = {
            "backbone": names.CUSTOM if own else names.spell_or_custom(backbone, BACKBONE),
            "channels": channels,
            "projector": list(projector),
            "map": names.spell_or_custom(map, MAP),
            "mean": list(mean),
            "std": list(std),
        }

    def features(self, x: Tensor) -> Tensor:
        """h, the backbone's pooled output, N x backbone.dim."""
        return self.backbone((x - self.mean) / self.std)

    def forward(self, x: Tensor) -> Tensor:
        return self.map(self.projector(self.features(x)))


def in_parts(f: Callable[[Tensor], tuple[Tensor, ...]], x: Tensor) -> tuple[Tensor, ...]:
    """f(x) row by row; where a GPU has too little memory for all rows at once, of one half and then of the other."""
    try:
        return f(x)
    except torch.OutOfMemoryError:
        if len(x) < 2:
            raise
    halves = [in_parts(f, half) for half in x.tensor_split(2)]  # not above, where the error holds what f had made
    return tuple(torch.cat(parts) for parts in zip(*halves, strict=True))


def mlp(widths: list[int]) -> nn.Sequential:
    """Linear-ReLU-...-Linear without batch norm; nothing at all for a single width."""
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(widths)):
        layers += [nn.ReLU(inplace=True)] * (i > 0) + [nn.Linear(a, b)]
    return nn.Sequential(*layers)


def save(encoder: Encoder, folder: Path) -> None:
    """Write model.safetensors and encoder.json, from which `load` rebuilds the exact model."""
    files.write_json(folder / "encoder.json", encoder.about)  # first: the weights are the sign that all is there
    files.write_tensors(folder / "model.safetensors", encoder.state_dict(), {"encoder": encoder.about})


def load(
    folder: Path | str,
    *,
    backbone: nn.Module | Callable[[int], nn.Module] | None = None,
    map: Callable[[Tensor], Tensor] | None = None,
) -> Encoder:
    """The saved model, map included, in evaluation mode; a backbone or map from outside the package is passed in."""
    folder = Path(folder)
    about = files.read_json(folder / "encoder.json")
    if not isinstance(about, dict):
        raise BadInput(f"{folder / 'encoder.json'} is damaged: it does not describe an encoder")
    for part, given in (("backbone", backbone), ("map", map)):
        if about.get(part) == names.CUSTOM and given is None:
            raise BadInput(f"{folder}: the {part} is not one of nonneg's, so pass it: load(folder, {part}=...)")
    try:
        encoder = Encoder(
            backbone or names.find(about["backbone"], BACKBONE),
            projector=about["projector"],
            map=map or names.find(about["map"], MAP),
            channels=about["channels"],
            mean=about["mean"],
            std=about["std"],
        )
    except (KeyError, TypeError) as error:
        raise BadInput(f"{folder / 'encoder.json'} is damaged: {error!r}") from None
    encoder.about = about
    tensors, _ = files.read_tensors(folder / "model.safetensors")
    try:
        encoder.load_state_dict(tensors)
    except RuntimeError as error:
        raise BadInput(
            f"{folder}: model.safetensors does not fit encoder.json ({' '.join(str(error).split())})"
        ) from None
    return encoder.eval()
