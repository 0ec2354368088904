"""One function per network: `(channels, *, knobs) -> nn.Module` whose `.dim` is the width of its pooled output.

A backbone of your own is any `nn.Module` with `.dim` that turns N x C x H x W images into N x dim features.
"""

import itertools
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg.errors import BadInput
from nonneg.norm_cuda import HAVE_TRITON, norm_relu, serves

Stem = Literal["small", "imagenet"]
Pair = tuple[Tensor, Tensor]  # the same values twice, one for each of a block's two paths: see norm_relu


class _Conv(nn.Conv2d):
    """A convolution without bias that takes its weights rounded, where that was done for all of them at once."""

    rounded: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:  # torch's name for it
        return self._conv_forward(input, self.weight if self.rounded is None else self.rounded, None)


class _Rounded(torch.autograd.Function):
    """Weights in half precision and their gradients back, each by one kernel for the whole list, not one a tensor."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        out = [torch.empty_like(w, dtype=dtype) for w in weights]
        torch._foreach_copy_(out, weights)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ARG004
        out = [torch.empty_like(g, dtype=torch.float32) for g in grads]
        torch._foreach_copy_(out, grads)
        return None, *out


class _Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    expansion = 1

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Conv(width_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Conv(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(width_in, width, stride)

    @property
    def last(self) -> nn.BatchNorm2d:
        return self.bn2

    def forward(self, pair: Pair) -> Pair:
        x, again = pair
        out, _ = norm_relu(self.conv1(x), self.bn1)
        return norm_relu(self.conv2(out), self.bn2, *_reached(self.downsample, again))


class _Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a shortcut; the stride sits in the 3x3."""

    expansion = 4

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _Conv(width_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _Conv(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _Conv(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _shortcut(width_in, 4 * width, stride)

    @property
    def last(self) -> nn.BatchNorm2d:
        return self.bn3

    def forward(self, pair: Pair) -> Pair:
        x, again = pair
        out, _ = norm_relu(self.conv1(x), self.bn1)
        out, _ = norm_relu(self.conv2(out), self.bn2)
        return norm_relu(self.conv3(out), self.bn3, *_reached(self.downsample, again))


def _reached(shortcut: nn.Module, x: Tensor) -> tuple[Tensor, nn.BatchNorm2d | None]:
    """What a shortcut adds: x itself, or its convolution and the batch norm that is still to be taken."""
    if isinstance(shortcut, nn.Sequential):
        conv, bn = shortcut
        assert isinstance(bn, nn.BatchNorm2d)
        return conv(x), bn
    return x, None


def _shortcut(width_in: int, width: int, stride: int) -> nn.Module:
    if width_in == width and stride == 1:
        return nn.Identity()
    return nn.Sequential(_Conv(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))


class _ResNet(nn.Module):
    """He et al. 2016, with parameter names as everywhere (conv1, layer1.0.conv1, ...) so that known weights load."""

    def __init__(
        self,
        block: type[_Basic] | type[_Bottleneck],
        depths: list[int],
        channels: int,
        stem: Stem,
        pad: int,
        width: int,
    ):
        super().__init__()
        if pad < 0:
            raise BadInput(f"the stem's pad is {pad}; it must not be negative")
        if width < 1:
            raise BadInput(f"the stem's width is {width}; it must be at least 1")
        small = stem == "small"
        self.conv1 = _Conv(channels, width, 3 if small else 7, 1 if small else 2, pad if small else 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        width_in = width
        for i, depth in enumerate(depths):
            blocks = []
            for j in range(depth):
                blocks.append(block(width_in, width * 2**i, 2 if i and j == 0 else 1))
                width_in = width * 2**i * block.expansion
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.layers = [f"layer{i + 1}" for i in range(len(depths))]
        self.dim = width_in
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = stem_product(x, self.conv1) if x.is_cuda and self.conv1.kernel_size == (3, 3) else self.conv1(x)
        widest = getattr(self, self.layers[-1])[-1].last  # in a narrow net the kernels may serve the wide layers alone
        x = self._as_it_is(x) if serves(x, widest) else self._trunk(x)  # pyright: ignore
        return x.mean(dim=(2, 3))

    def _as_it_is(self, x: Tensor) -> Tensor:
        convs = [m for m in self.modules() if isinstance(m, _Conv) and m is not self.conv1]
        if torch.is_autocast_enabled(x.device.type):
            rounded = _Rounded.apply(torch.get_autocast_dtype(x.device.type), *(conv.weight for conv in convs))
            for conv, weight in zip(convs, rounded, strict=True):
                conv.rounded = weight
        try:
            return self._trunk(x)
        finally:
            for conv in convs:
                conv.rounded = None

    if HAVE_TRITON:  # else it is not reached, and this would load the compiler, which takes a second
        # convolutions and kernels of our own: nothing in there for a compiler to improve
        _as_it_is = torch.compiler.disable(_as_it_is)  # pyright: ignore[reportAssignmentType]

    def _trunk(self, x: Tensor) -> Tensor:
        pair = norm_relu(x, self.bn1)
        if not isinstance(self.maxpool, nn.Identity):
            pair = (pooled := self.maxpool(pair[0]), pooled)
        for name in self.layers:
            pair = getattr(self, name)(pair)
        return pair[0]


def stem_product(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """A 3x3 convolution of few channels as one matrix product of its 9 shifted inputs (columns padded to 16s).

    The convolution libraries' kernels want 8 input channels or more; with 3 they take four times as long as this.
    """
    pad = int(conv.padding[0])
    high, wide = (side + 2 * pad - 2 for side in x.shape[-2:])
    x = F.pad(x, (pad, pad, pad, pad))  # pyright: ignore[reportArgumentType]
    columns = torch.cat([x[:, :, i : i + high, j : j + wide] for i in range(3) for j in range(3)], dim=1)
    weight = conv.weight.permute(0, 2, 3, 1).flatten(1)  # in the columns' order: row, column, channel
    spare = -weight.shape[1] % 16
    columns, weight = F.pad(columns.permute(0, 2, 3, 1), (0, spare)), F.pad(weight, (0, spare))
    return F.linear(columns, weight).permute(0, 3, 1, 2)


def resnet18(channels: int, *, stem: Stem = "small", pad: int = 1, width: int = 64) -> nn.Module:
    """ResNet-18; stem "small" is 3x3 stride 1 without pooling (padding 1, or 2 as the authors'), "imagenet" 7x7.

    `width` is the stem's; the stages have 1, 2, 4 and 8 times as much. 16 takes a sixteenth of the work: for a CPU.
    """
    return _ResNet(_Basic, [2, 2, 2, 2], channels, stem, pad, width)


def resnet34(channels: int, *, stem: Stem = "small", pad: int = 1, width: int = 64) -> nn.Module:
    """ResNet-34, stems as in resnet18."""
    return _ResNet(_Basic, [3, 4, 6, 3], channels, stem, pad, width)


def resnet50(channels: int, *, stem: Stem = "small", pad: int = 1, width: int = 64) -> nn.Module:
    """ResNet-50, stems as in resnet18."""
    return _ResNet(_Bottleneck, [3, 4, 6, 3], channels, stem, pad, width)


class _SmallNet(nn.Module):
    def __init__(self, channels: int, width: int):
        super().__init__()
        if width < 1:
            raise BadInput(f"small_net: width is {width}; it must be at least 1")
        widths = [channels, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(a, b, 3, 1 if i == 0 else 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
                )
                for i, (a, b) in enumerate(itertools.pairwise(widths))
            )
        )
        self.dim = 4 * width

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).mean(dim=(2, 3))


def small_net(channels: int, *, width: int = 32) -> nn.Module:
    """Three 3x3 convolutions (width, 2x, 4x) and mean pooling: enough for digits, trains in seconds on a CPU."""
    return _SmallNet(channels, width)


class _Timm(nn.Module):
    def __init__(self, channels: int, name: str):
        super().__init__()
        try:
            import timm  # pyright: ignore[reportMissingImports]
        except (ImportError, RuntimeError) as error:  # the second where its torchvision does not fit this torch
            raise BadInput(
                f"backbone timm:{name} needs the timm package ({error}): pip install 'nonneg[timm]'"
            ) from None
        if not timm.is_model(name):
            near = timm.list_models(f"*{name[:6]}*")[:5]
            raise BadInput(f"timm has no model {name!r}" + (f"; near: {', '.join(near)}" if near else ""))
        self.net = timm.create_model(name, in_chans=channels, num_classes=0, pretrained=False)
        self.dim = int(self.net.num_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def timm(channels: int, *, name: str) -> nn.Module:
    """Any network of the timm package by name (`timm:resnet50`), from random weights; imported only when asked for."""
    return _Timm(channels, name)


def output_width(backbone: nn.Module, channels: int) -> int:
    """`backbone.dim`, checked: a module without it cannot be followed by a projector."""
    dim = getattr(backbone, "dim", None)
    if not isinstance(dim, int) or isinstance(dim, torch.Tensor):
        raise BadInput(f"backbone {type(backbone).__name__} for {channels} channels has no integer .dim (output width)")
    return dim
