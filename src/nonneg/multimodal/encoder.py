"""Two encoders, one of images and one of texts, into the same D non-negative features.

Saved, the image side is an ordinary encoder (`nonneg.load` reads it alone), the text side lies beside it.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nonneg import encoder, files, maps, names
from nonneg.encoder import MAP, Encoder, mlp
from nonneg.errors import BadInput
from nonneg.multimodal import texts

MOST_SCALE = math.log(100)  # logits are at most 100 cosines, as CLIP has it
TEXT, TEXT_WEIGHTS = "text.json", "text.safetensors"


class TextEncoder(nn.Module):
    """`forward(rows)` is z = map(projector(h)), h = backbone(rows), where `backbone.read(texts)` made the rows."""

    def __init__(
        self,
        backbone: nn.Module,
        *,
        projector: Sequence[int] = (2048, 256),
        map: Callable[[Tensor], Tensor] = maps.rep_relu,
    ) -> None:
        super().__init__()
        if not isinstance(getattr(backbone, "dim", None), int) or not callable(getattr(backbone, "read", None)):
            raise BadInput(
                f"the text encoder {type(backbone).__name__} needs .dim, an integer, and .read(texts), which gives a "
                "tensor with a row for each text and how many texts were cut"
            )
        self.backbone = backbone
        self.projector = mlp([backbone.dim, *projector])  # pyright: ignore[reportArgumentType]
        self.map = map
        self.dim = int(projector[-1] if projector else backbone.dim)  # pyright: ignore[reportArgumentType]
        self.about = {"projector": list(projector), "map": names.spell_or_custom(map, MAP)}

    def read(self, captions: Sequence[str]) -> tuple[Tensor, int]:
        """What `forward` takes, one row a text, and how many texts were too long and are cut."""
        return self.backbone.read(captions)  # pyright: ignore[reportCallIssue]

    def features(self, rows: Tensor) -> Tensor:
        """h, N x backbone.dim."""
        return self.backbone(rows)

    def forward(self, rows: Tensor) -> Tensor:
        return self.map(self.projector(self.features(rows)))


class PairEncoder(nn.Module):
    """f_V of images and f_L of texts, both N x D; with a `temperature`, one that is learned as log(1 / T)."""

    log_scale: nn.Parameter | None

    def __init__(self, image: Encoder, text: TextEncoder, *, temperature: float | None = None) -> None:
        super().__init__()
        if image.dim != text.dim:
            raise BadInput(
                f"the image encoder gives {image.dim} features and the text encoder {text.dim}, but they share one "
                "space; end both projectors with the same width, as one --projector does, or make both encoders so wide"
            )
        if temperature is not None and not math.exp(-MOST_SCALE) <= temperature <= 1:
            raise BadInput(f"a temperature that is learned begins between 0.01 and 1, not at {temperature}")
        self.image, self.text, self.dim = image, text, image.dim
        start = None if temperature is None else nn.Parameter(torch.tensor(-math.log(temperature)))
        self.register_parameter("log_scale", start)

    def forward(self, images: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.image(images), self.text(rows)

    def temperature(self) -> Tensor:
        """T = exp(-log_scale)."""
        assert self.log_scale is not None
        return torch.exp(-self.log_scale)

    @torch.no_grad()
    def keep_in_bounds(self) -> None:
        """Clip log_scale to [0, log 100], as CLIP does after each update: beyond, training becomes unstable."""
        if self.log_scale is not None:
            self.log_scale.clamp_(0, MOST_SCALE)

    def groups(self) -> list[dict[str, Any]]:
        """Parameters for an optimiser: the temperature is learned, but not decayed."""
        others = [p for name, p in self.named_parameters() if name != "log_scale"]
        alone = [] if self.log_scale is None else [{"params": [self.log_scale], "weight_decay": 0.0}]
        return [{"params": others}, *alone]


def save(model: PairEncoder, folder: Path) -> None:
    """Write the text side, then the image side as `encoder.save` does: its weights are the sign that all is there."""
    backbone: Any = model.text.backbone
    own = not isinstance(backbone, tuple(texts.KINDS.values()))
    about = {**model.text.about, "backbone": {"kind": names.CUSTOM} if own else backbone.about()}
    tensors = model.text.state_dict()
    if model.log_scale is not None:
        tensors["log_scale"] = model.log_scale
    files.write_json(folder / TEXT, about)
    files.write_tensors(folder / TEXT_WEIGHTS, tensors, {})
    encoder.save(model.image, folder)


def load(
    folder: Path | str,
    *,
    backbone: nn.Module | Callable[[int], nn.Module] | None = None,
    map: Callable[[Tensor], Tensor] | None = None,
    text: nn.Module | None = None,
) -> PairEncoder:
    """Both encoders of a run folder, in evaluation mode; a backbone, map or text encoder of one's own is passed in."""
    folder = Path(folder)
    about = files.read_json(folder / TEXT)
    if not isinstance(about, dict) or not {"backbone", "projector", "map"} <= about.keys():
        raise BadInput(f"{folder / TEXT} is damaged: it does not describe a text encoder")
    for part, given, kind in (("map", map, about["map"]), ("text encoder", text, about["backbone"])):
        if given is None and kind in (names.CUSTOM, {"kind": names.CUSTOM}):
            raise BadInput(
                f"{folder}: the {part} is not one of nonneg's, so pass it: load(folder, {part.split()[0]}=...)"
            )
    reader = text or texts.from_json(about["backbone"], folder / TEXT)
    tensors, _ = files.read_tensors(folder / TEXT_WEIGHTS)
    scale = tensors.pop("log_scale", None)
    try:
        side = TextEncoder(reader, projector=about["projector"], map=map or names.find(about["map"], MAP))
        side.load_state_dict(tensors)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{folder}: {TEXT_WEIGHTS} does not fit {TEXT} ({' '.join(str(error).split())})") from None
    image = encoder.load(folder, backbone=backbone, map=map)
    model = PairEncoder(image, side, temperature=None if scale is None else 1.0)
    if model.log_scale is not None and scale is not None:
        model.log_scale.data.copy_(scale)
    return model.eval()
