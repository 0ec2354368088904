"""The 15 corruptions of Hendrycks & Dietterich (2019) at 5 severities, for whole batches where the images are.

N images, C channels (1 or 3), H x W pixels. Each corruption is one function of float images in [0, 1] and a generator;
TABLE holds the parameters: those of CIFAR-10-C for images of up to SMALL pixels a side, those of ImageNet-C beyond.
Every image has a draw of its own. What differs from the published images: values are rounded, not truncated, to 8 bits;
frost is drawn, not photographed; a defocused image keeps its brightness (the original's two largest disks weigh 1.01).
"""

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from nonneg.errors import BadInput, unknown

SEVERITIES = (1, 2, 3, 4, 5)
SMALL = 64  # pixels a side up to which the parameters of CIFAR-10-C hold
PART = {"cpu": 400_000, "cuda": 2**24}  # values worked on at a time: a core's cache; a little of a GPU's memory


def corrupt(images: Tensor, name: str, severity: int, *, generator: Generator) -> Tensor:
    """uint8 images N x C x H x W corrupted by `name` (one of NAMES) at `severity` 1 to 5: the same shape and type."""
    if name not in TABLE:
        raise unknown("corruption", name, NAMES)
    if severity not in SEVERITIES:
        raise BadInput(f"the severity of {name} is {severity!r}: give a whole number from 1 to 5")
    _check(images, generator)
    entry = TABLE[name]
    columns = entry.small if max(images.shape[2:]) <= SMALL else entry.large
    values = {parameter: five[SEVERITIES.index(severity)] for parameter, five in columns.items()}
    part = max(1, PART.get(images.device.type, PART["cuda"]) // images[0].numel())
    with torch.autocast(images.device.type, enabled=False):  # the steps of bfloat16 are as coarse as a pixel's
        parts = [
            _bytes(entry.function(x.float().div_(255), generator, **values)) for x in images.contiguous().split(part)
        ]
    return torch.cat(parts)


def _bytes(x: Tensor) -> Tensor:
    return x.mul(255).round_().clamp_(0, 255).to(torch.uint8)


def _check(images: Tensor, generator: Generator) -> None:
    if images.dtype != torch.uint8:
        raise BadInput(f"images to corrupt are {images.dtype}: give torch.uint8 (0 to 255)")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or images.numel() == 0:
        shape = tuple(images.shape)
        raise BadInput(f"images to corrupt have shape {shape}: give N x C x H x W, at least one, with C 1 or 3")
    if generator.device.type != images.device.type:
        where = f"on {generator.device} and images on {images.device}"
        raise BadInput(f"the generator is {where}: make the generator where the images are")


# Noise


def gaussian_noise(x: Tensor, generator: Generator, std: float) -> Tensor:
    """x + std e, e ~ N(0, 1) for each value."""
    return x + std * torch.randn(x.shape, generator=generator, device=x.device)


def shot_noise(x: Tensor, generator: Generator, photons: float) -> Tensor:
    """Poisson(photons x) / photons for each value."""
    return torch.poisson(x * photons, generator=generator) / photons


def impulse_noise(x: Tensor, generator: Generator, share: float) -> Tensor:
    """A `share` of the values becomes 0 or 1, half of them either."""
    u = torch.rand(x.shape, generator=generator, device=x.device)
    return torch.where(u < share, (u < share / 2).float(), x)


# Blur


def defocus_blur(x: Tensor, _: Generator, radius: float, soften: float) -> Tensor:
    """x convolved with a disk, itself softened by a Gaussian of `soften` pixels; mirrored at the edge."""
    kernel = _disk(radius, soften).to(x)
    reach = kernel.shape[-1] // 2
    rows, columns = (_mirror(torch.arange(-reach, n + reach), n).to(x.device) for n in x.shape[2:])
    wide = x.index_select(2, rows).index_select(3, columns)
    return F.conv2d(wide.flatten(0, 1).unsqueeze(1), kernel[None, None]).view_as(x)


def glass_blur(x: Tensor, generator: Generator, sigma: float, reach: int, passes: int) -> Tensor:
    """Blur, let each pixel in turn take the value of one nearby (up to `reach` away), blur again.

    The original means to swap the two pixels, but its assignment between two views of an array only copies; the
    published images are made that way, and so are ours.
    """
    n, channels, height, width = x.shape
    source = torch.arange(height * width, device=x.device).repeat(n, 1)
    for _ in range(passes):
        dy, dx = (torch.randint(-reach, reach, source.shape, generator=generator, device=x.device) for _ in "yx")
        take_nearby(source, dy * width + dx, width, reach)
    shuffled = _gaussian(x, sigma).flatten(2).gather(2, source.unsqueeze(1).expand(-1, channels, -1))
    return _gaussian(shuffled.view_as(x), sigma)


def take_nearby(source: Tensor, offset: Tensor, width: int, reach: int) -> None:
    """source_p = source_{p + offset_p} in each row of `source` (N x HW), for one pixel p after the other, in place.

    From the bottom right to the top left, all but a margin of `reach`. Exactly the result of that loop, though a step
    does many pixels: with offsets in [-reach, reach), pixels reach + 1 columns apart on successive rows neither read
    each other nor anything that should have changed in between. They are one strided slice of the image.
    """
    height, apart = source.shape[1] // width, reach + 1
    rows, columns, stride = height - 2 * reach, width - 2 * reach, width - apart
    if rows < 1 or columns < 1:
        return
    pixel = torch.arange(source.shape[1], device=source.device)
    for step in range(columns + apart * (rows - 1)):
        first, last = max(0, -((columns - 1 - step) // apart)), min(rows - 1, step // apart)
        if first <= last:
            corner = (height - reach) * width + width - reach - step
            here = slice(corner - last * stride, corner - first * stride + 1, stride)
            source[:, here] = source.gather(1, pixel[here] + offset[:, here])


def motion_blur(x: Tensor, generator: Generator, radius: int, sigma: float) -> Tensor:
    """Each image drawn out along a line at a random angle within 45 degrees of the horizontal."""
    return streak(x, _uniform(-45, 45, generator, len(x)), radius, sigma)


def streak(x: Tensor, degrees: Tensor, radius: int, sigma: float) -> Tensor:
    """sum_i w_i x(p + i (cos a, sin a)), w_i ~ exp(-i^2 / 2 sigma^2), i = 0 .. 2 radius: ImageMagick's one-sided line.

    An angle for each image; steps are rounded to whole pixels and the edge is repeated. Weights past 4 sigma are left
    out: together they are 6e-5.
    """
    n, channels, height, width = x.shape
    taps = min(2 * radius, math.ceil(4 * sigma)) + 1
    weights = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(taps)]
    sin, cos = degrees.deg2rad().sin().unsqueeze(1), degrees.deg2rad().cos().unsqueeze(1)
    row, column = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    flat, out = x.flatten(2), torch.zeros_like(x).flatten(2)
    for i, weight in enumerate(weights):
        rows = (row + (i * sin - 0.5).ceil().long()).clamp_(0, height - 1)  # N x H
        columns = (column + (i * cos - 0.5).ceil().long()).clamp_(0, width - 1)  # N x W
        index = (rows.unsqueeze(2) * width + columns.unsqueeze(1)).view(n, 1, -1).expand(-1, channels, -1)
        out.add_(flat.gather(2, index), alpha=weight / sum(weights))
    return out.view_as(x)


def zoom_blur(x: Tensor, _: Generator, step: float, zooms: int) -> Tensor:
    """The mean of x and of x enlarged about its centre by 1 + step k, k = 0 .. zooms - 1."""
    return sum((zoom(x, 1 + step * k) for k in range(zooms)), start=x) / (zooms + 1)


def zoom(x: Tensor, factor: float) -> Tensor:
    """The central 1 / factor of x, bilinear, at x's size; corners stay corners before the overhang is trimmed."""
    crop = [math.ceil(n / factor) for n in x.shape[2:]]
    top, left = ((n - c) // 2 for n, c in zip(x.shape[2:], crop, strict=True))
    size = [int(c * factor + 0.5) for c in crop]
    large = F.interpolate(
        x[:, :, top : top + crop[0], left : left + crop[1]], size=size, mode="bilinear", align_corners=True
    )
    top, left = ((s - n) // 2 for n, s in zip(x.shape[2:], size, strict=True))
    return large[:, :, top : top + x.shape[2], left : left + x.shape[3]]


# Weather


def snow(
    x: Tensor,
    generator: Generator,
    mean: float,
    std: float,
    flake: float,
    threshold: float,
    radius: int,
    sigma: float,
    keep: float,
) -> Tensor:
    """keep x + (1 - keep) max(x, 1.5 grey + 0.5), and flakes on it: normal noise, enlarged, thresholded, falling."""
    noise = mean + std * torch.randn(len(x), 1, *x.shape[2:], generator=generator, device=x.device)
    flakes = zoom(noise, flake)
    flakes = torch.where(flakes < threshold, 0.0, flakes.clamp(0, 1))
    flakes = streak(flakes, _uniform(-135, -45, generator, len(x)), radius, sigma)
    pale = keep * x + (1 - keep) * torch.maximum(x, 1.5 * _grey(x) + 0.5)
    return pale + flakes + flakes.flip(2, 3)  # turned by half, too: flakes then come from both sides


def frost(x: Tensor, generator: Generator, keep: float, add: float, relief: float, needle: float) -> Tensor:
    """keep x + add ice, ice a drawn texture with the colour and contrast of one of five photographs (SHEETS)."""
    sheets = torch.tensor(SHEETS, device=x.device)
    red, green, blue, std = sheets[torch.randint(len(SHEETS), (len(x),), generator=generator, device=x.device)].T
    colour = torch.stack([red, green, blue], 1).view(-1, 3, 1, 1)
    colour = colour if x.shape[1] == 3 else _grey(colour)
    ice = colour + relief * std.view(-1, 1, 1, 1) * _ice(len(x), x.shape[2], x.shape[3], needle, generator)
    return keep * x + add * ice.clamp_(0, 1)


# Mean red, green and blue, and the standard deviation of grey within a crop, of the pictures that the original adds.
SHEETS = (
    (0.31, 0.58, 0.65, 0.06),
    (0.79, 0.80, 0.84, 0.08),
    (0.79, 0.80, 0.84, 0.08),  # the original's second and third picture are the same
    (0.54, 0.60, 0.65, 0.10),
    (0.44, 0.48, 0.53, 0.14),
)


def _ice(n: int, height: int, width: int, needle: float, generator: Generator) -> Tensor:
    """N x 1 x H x W of mean 0 and variance 1: needles of some length in three random directions on a cloud."""
    needles = torch.zeros(n, 1, height, width, device=generator.device)
    for _ in range(3):
        seeds = (torch.rand(needles.shape, generator=generator, device=generator.device) < 0.2 / needle).float()
        for edge in (0, -1):
            seeds[:, :, edge], seeds[..., edge] = 0, 0  # a seed there would be repeated beyond the edge, as a wedge
        needles += streak(seeds, _uniform(0, 360, generator, n), int(2 * needle), needle)
    cloud = plasma(n, max(height, width), 2.0, generator)[:, :, :height, :width]
    return _standard(_standard(_gaussian(needles, 0.6)) + 0.7 * _standard(cloud))


def _standard(x: Tensor) -> Tensor:
    return (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), correction=0, keepdim=True).clamp(min=1e-6)


def fog(x: Tensor, generator: Generator, thickness: float, decay: float) -> Tensor:
    """(x + thickness plasma) m / (m + thickness), m the image's largest value, which nothing exceeds."""
    cloud = plasma(len(x), max(x.shape[2:]), decay, generator)[:, :, : x.shape[2], : x.shape[3]]
    largest = x.amax((1, 2, 3), keepdim=True)
    return (x + thickness * cloud) * largest / (largest + thickness)


def plasma(n: int, size: int, decay: float, generator: Generator) -> Tensor:
    """n diamond-square height maps from 0 to 1, N x 1 x S x S, S the power of two from `size` up; edges wrap.

    Each new point is the mean of its four neighbours and a uniform draw in +-w, w shrinking by decay^2 when the grid
    is halved (the original multiplies a draw in +-wibble by wibble).
    """
    step = side = 1 << (size - 1).bit_length()
    heights = torch.zeros(n, side, side, device=generator.device)
    reach = 1.0  # the first w is 10^4 in the original; the scale goes with the range
    while step > 1:
        half = step // 2
        corner, centre = heights[:, ::step, ::step], heights[:, half::step, half::step]
        pairs = corner + corner.roll(-1, 1)
        centre.copy_((pairs + pairs.roll(-1, 2)) / 4 + _uniform(-reach, reach, generator, *corner.shape))
        top = (centre + centre.roll(1, 1) + corner + corner.roll(-1, 2)) / 4
        left = (centre + centre.roll(1, 2) + corner + corner.roll(-1, 1)) / 4
        heights[:, ::step, half::step] = top + _uniform(-reach, reach, generator, *corner.shape)
        heights[:, half::step, ::step] = left + _uniform(-reach, reach, generator, *corner.shape)
        step, reach = half, reach / decay**2
    low, high = heights.amin((1, 2), keepdim=True), heights.amax((1, 2), keepdim=True)
    return ((heights - low) / (high - low).clamp(min=1e-12)).unsqueeze(1)


def brightness(x: Tensor, _: Generator, add: float) -> Tensor:
    """HSV's value v raised to min(1, v + add), hue and saturation kept: x v' / v, and grey v' where v is 0."""
    value = x.amax(1, keepdim=True)
    raised = (value + add).clamp(max=1)
    return torch.where(value > 0, x * (raised / value.clamp(min=1e-6)), raised)


# Digital


def contrast(x: Tensor, _: Generator, factor: float) -> Tensor:
    """m + factor (x - m), m the mean of each channel."""
    return torch.lerp(x.mean((2, 3), keepdim=True), x, factor)


def elastic_transform(x: Tensor, generator: Generator, bend: float, sigma: float, shift: float) -> Tensor:
    """A random affine map, then a random smooth displacement; all three parameters in shares of the longer side.

    The affine map moves three points a third of a side from the centre by up to `shift`; the displacement is uniform
    noise in +-1, blurred by `sigma`, times `bend`.
    """
    side = max(x.shape[2:])
    rows, columns = _affine(x, shift * side, generator)
    x = _sample(x, rows, columns, edge="centre")
    dy, dx = displacement(x, bend * side, sigma * side, generator)
    row, column = torch.arange(x.shape[2], device=x.device).view(-1, 1), torch.arange(x.shape[3], device=x.device)
    return _sample(x, row + dy, column + dx, edge="border")


def _affine(x: Tensor, shift: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Where each pixel comes from (rows and columns, N x H x W) when three points move by up to `shift` pixels.

    With E the two edges of the triangle before and G after, p comes from b + (p - b') G^-1 E, b and b' the corner.
    """
    height, width = x.shape[2:]
    arm = max(1, min(height, width) // 3)
    centre = torch.tensor([width // 2, height // 2], device=x.device)
    points = centre + torch.tensor([[arm, -arm], [arm, arm], [-arm, -arm]], device=x.device)  # (column, row), b first
    moved = points + _uniform(-shift, shift, generator, len(x), 3, 2)
    (ax, ay), (bx, by) = ((moved[:, k] - moved[:, 0]).T for k in (1, 2))
    area = ax * by - ay * bx
    area = torch.where(area.abs() < 1e-2, 1e-2, area).view(-1, 1, 1)  # three points in a line have no inverse
    column = torch.arange(width, device=x.device).view(1, 1, -1) - moved[:, 0, 0].view(-1, 1, 1)
    row = torch.arange(height, device=x.device).view(1, -1, 1) - moved[:, 0, 1].view(-1, 1, 1)
    ax, ay, bx, by = (v.view(-1, 1, 1) for v in (ax, ay, bx, by))
    along_a, along_b = (by * column - bx * row) / area, (ax * row - ay * column) / area
    (ex, ey), (fx, fy) = points[1] - points[0], points[2] - points[0]
    return points[0, 1] + along_a * ey + along_b * fy, points[0, 0] + along_a * ex + along_b * fx


def displacement(x: Tensor, bend: float, sigma: float, generator: Generator) -> tuple[Tensor, Tensor]:
    """Blurred uniform noise times `bend` for each image, in pixels: dy and dx, N x H x W."""
    noise = _uniform(-1, 1, generator, len(x), 2, *x.shape[2:])
    dy, dx = (bend * _gaussian(noise, sigma, truncate=3.0, edge="reflect")).unbind(1)
    return dy, dx


def _sample(x: Tensor, rows: Tensor, columns: Tensor, *, edge: Literal["centre", "border"]) -> Tensor:
    """x at real-valued rows and columns (N x H x W), bilinear, mirrored about the edge pixels' centres or borders."""
    corners = edge == "centre"
    height, width = x.shape[2:]
    if corners:
        grid = (columns * 2 / max(width - 1, 1) - 1, rows * 2 / max(height - 1, 1) - 1)
    else:
        grid = ((columns * 2 + 1) / width - 1, (rows * 2 + 1) / height - 1)
    return F.grid_sample(x, torch.stack(grid, 3), mode="bilinear", padding_mode="reflection", align_corners=corners)


def pixelate(x: Tensor, _: Generator, share: float) -> Tensor:
    """Fewer pixels, share times a side, each the mean of those whose centre lies in it; then enlarged to x's size."""
    rows, columns = (_pixelated(n, max(1, int(n * share))).to(x) for n in x.shape[2:])
    return rows @ x @ columns.T


def _pixelated(n: int, fewer: int) -> Tensor:
    """n x n: Pillow's BOX from n pixels to `fewer`, then BOX back, which takes the nearest."""
    scale = n / fewer
    pixel, block = (torch.arange(k, dtype=torch.float64) + 0.5 for k in (n, fewer))
    position = (pixel - block.view(-1, 1) * scale) / scale
    down = ((position > -0.5) & (position <= 0.5)).double()
    back = (pixel / scale).long().clamp(max=fewer - 1)
    return (down / down.sum(1, keepdim=True))[back]


def jpeg_compression(x: Tensor, _: Generator, quality: int) -> Tensor:
    """The picture after JPEG at `quality`: 8 x 8 DCT, rounded in units of the standard tables, chroma at half size."""
    height, width = x.shape[2:]
    planes = _to_ycc(x)
    planes = F.pad(planes, (0, -width % 16, 0, -height % 16), mode="replicate") - 128
    half = (height + 1) // 2, (width + 1) // 2
    y = _quantised(planes[:, :1], _table(LUMA, quality).to(x))[:, :, :height, :width]
    if x.shape[1] == 1:
        return y / 255
    ties = torch.tensor([0.25, 0.5], device=x.device).repeat(planes.shape[3] // 4)  # down and up in turn, as libjpeg
    chroma = _quantised((F.avg_pool2d(planes[:, 1:], 2) + ties).floor_(), _table(CHROMA, quality).to(x))
    chroma = chroma[:, :, : half[0], : half[1]]
    chroma = F.interpolate(chroma, scale_factor=2, mode="bilinear", align_corners=False)[:, :, :height, :width].round()
    return _from_ycc(torch.cat([y, chroma], 1))


# The tables of the JPEG standard (annex K): the units of the 64 coefficients at quality 50.
LUMA = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMA = (
    (17, 18, 24, 47, 99, 99, 99, 99),
    (18, 21, 26, 66, 99, 99, 99, 99),
    (24, 26, 56, 99, 99, 99, 99, 99),
    (47, 66, 99, 99, 99, 99, 99, 99),
    *((99,) * 8,) * 4,
)


def _table(at_50: tuple[tuple[int, ...], ...], quality: int) -> Tensor:
    """64 units: the table times 50 / quality below 50, times 2 - quality / 50 above, in whole numbers 1 to 255."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return ((torch.tensor(at_50) * percent + 50) // 100).clamp(1, 255).flatten()


def _quantised(planes: Tensor, units: Tensor) -> Tensor:
    """Planes around 0 (N x P x H x W, sides multiples of 8) through DCT, rounding and back: 0 to 255, whole."""
    n, p, height, width = planes.shape
    blocks = planes.view(n, p, height // 8, 8, width // 8, 8).transpose(3, 4).reshape(-1, 64)
    k = torch.arange(8, dtype=torch.float64)
    dct = ((2 * k + 1) * k.view(-1, 1) * math.pi / 16).cos() * torch.where(k == 0, 0.5**1.5, 0.5).view(-1, 1)
    dct = torch.kron(dct, dct).to(planes)  # 64 x 64, orthonormal
    blocks = ((blocks @ dct.T) / units).round_().mul_(units) @ dct
    planes = blocks.view(n, p, height // 8, width // 8, 8, 8).transpose(3, 4).reshape(n, p, height, width)
    return (planes + 128).round_().clamp_(0, 255)


def _to_ycc(x: Tensor) -> Tensor:
    """Luma and two colour differences around 128, 0 to 255, whole; one channel is luma."""
    x = x * 255
    if x.shape[1] == 1:
        return x
    y, blue, red = _grey(x), x[:, 2:3], x[:, 0:1]
    return torch.cat([y, (blue - y) / 1.772 + 128, (red - y) / 1.402 + 128], 1).round_()


def _from_ycc(planes: Tensor) -> Tensor:
    y, blue, red = planes.split(1, 1)
    blue, red = blue - 128, red - 128
    green = y - (0.114 * 1.772 * blue + 0.299 * 1.402 * red) / 0.587
    return torch.cat([y + 1.402 * red, green, y + 1.772 * blue], 1) / 255


# What several share


def _uniform(low: float, high: float, generator: Generator, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator, device=generator.device)


def _grey(x: Tensor) -> Tensor:
    """0.299 r + 0.587 g + 0.114 b, N x 1 x H x W; one channel: itself."""
    return x if x.shape[1] == 1 else 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _mirror(index: Tensor, n: int) -> Tensor:
    """Indices outside 0 .. n - 1 mirrored about the first and last pixel's centre, as often as it takes."""
    index = index.abs() % max(1, 2 * n - 2)
    return torch.minimum(index, 2 * n - 2 - index)


def _disk(radius: float, soften: float) -> Tensor:
    """A disk of whole pixels convolved with a Gaussian of 3 taps (5 for radii above 8), of sum 1."""
    taps = 1 if radius <= 8 else 2
    reach = math.floor(radius) + taps
    i = torch.arange(-reach, reach + 1, dtype=torch.float64)
    disk = (i.square() + i.square().view(-1, 1) <= radius**2).double()
    blur = _gaussian_matrix(len(i), soften, taps, "nearest")
    return blur @ (disk / disk.sum()) @ blur.T


def _gaussian(
    x: Tensor, sigma: float, *, truncate: float = 4.0, edge: Literal["nearest", "reflect"] = "nearest"
) -> Tensor:
    """scipy's gaussian_filter over rows and columns, cut at `truncate` sigma."""
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return x
    rows, columns = (_gaussian_matrix(n, sigma, reach, edge).to(x) for n in x.shape[2:])
    return rows @ x @ columns.T


def _gaussian_matrix(n: int, sigma: float, reach: int, edge: Literal["nearest", "reflect"]) -> Tensor:
    """n x n: row i holds the weights of a Gaussian about i; beyond the edge the last pixel repeats, or all mirror."""
    distance = torch.arange(-reach, reach + 1)
    weights = (-distance.double().square() / (2 * sigma**2)).exp()
    index = torch.arange(n).view(-1, 1) + distance
    if edge == "nearest":
        index = index.clamp(0, n - 1)
    else:
        index = index % (2 * n)
        index = torch.minimum(index, 2 * n - 1 - index)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, index, (weights / weights.sum()).expand(n, -1))


# The parameters


class Corruption(NamedTuple):
    """A function and, for each of its parameters, the values at severity 1 to 5."""

    function: Callable[..., Tensor]
    small: dict[str, tuple[float, ...]]  # CIFAR-10-C, up to SMALL pixels
    large: dict[str, tuple[float, ...]]  # ImageNet-C


def _of_side(*shares: float) -> tuple[float, ...]:
    """ImageNet-C writes the elastic transform's parameters as shares of 244 where images have 224 pixels."""
    return tuple(share * 244 / 224 for share in shares)


TABLE = {
    "gaussian_noise": Corruption(
        gaussian_noise,
        small={"std": (0.04, 0.06, 0.08, 0.09, 0.10)},
        large={"std": (0.08, 0.12, 0.18, 0.26, 0.38)},
    ),
    "shot_noise": Corruption(
        shot_noise,
        small={"photons": (500, 250, 100, 75, 50)},
        large={"photons": (60, 25, 12, 5, 3)},
    ),
    "impulse_noise": Corruption(
        impulse_noise,
        small={"share": (0.01, 0.02, 0.03, 0.05, 0.07)},
        large={"share": (0.03, 0.06, 0.09, 0.17, 0.27)},
    ),
    "defocus_blur": Corruption(
        defocus_blur,
        small={"radius": (0.3, 0.4, 0.5, 1, 1.5), "soften": (0.4, 0.5, 0.6, 0.2, 0.1)},
        large={"radius": (3, 4, 6, 8, 10), "soften": (0.1, 0.5, 0.5, 0.5, 0.5)},
    ),
    "glass_blur": Corruption(
        glass_blur,
        small={"sigma": (0.05, 0.25, 0.4, 0.25, 0.4), "reach": (1, 1, 1, 1, 1), "passes": (1, 1, 1, 2, 2)},
        large={"sigma": (0.7, 0.9, 1, 1.1, 1.5), "reach": (1, 2, 2, 3, 4), "passes": (2, 1, 3, 2, 2)},
    ),
    "motion_blur": Corruption(
        motion_blur,
        small={"radius": (6, 6, 6, 8, 9), "sigma": (1, 1.5, 2, 2, 2.5)},
        large={"radius": (10, 15, 15, 15, 20), "sigma": (3, 5, 8, 12, 15)},
    ),
    "zoom_blur": Corruption(
        zoom_blur,
        small={"step": (0.01, 0.01, 0.01, 0.01, 0.01), "zooms": (7, 12, 16, 21, 26)},
        large={"step": (0.01, 0.01, 0.02, 0.02, 0.03), "zooms": (12, 16, 11, 13, 11)},
    ),
    "snow": Corruption(
        snow,
        small={
            "mean": (0.1, 0.1, 0.15, 0.25, 0.3),
            "std": (0.2, 0.2, 0.3, 0.3, 0.3),
            "flake": (1, 1, 1.75, 2.25, 1.25),
            "threshold": (0.6, 0.5, 0.55, 0.6, 0.65),
            "radius": (8, 10, 10, 12, 14),
            "sigma": (3, 4, 4, 6, 12),
            "keep": (0.95, 0.9, 0.9, 0.85, 0.8),
        },
        large={
            "mean": (0.1, 0.2, 0.55, 0.55, 0.55),
            "std": (0.3, 0.3, 0.3, 0.3, 0.3),
            "flake": (3, 2, 4, 4.5, 2.5),
            "threshold": (0.5, 0.5, 0.9, 0.85, 0.85),
            "radius": (10, 12, 12, 12, 12),
            "sigma": (4, 4, 8, 8, 12),
            "keep": (0.8, 0.7, 0.7, 0.65, 0.55),
        },
    ),
    "frost": Corruption(  # CIFAR-10-C shrinks the pictures to a fifth, which leaves two thirds of their contrast
        frost,
        small={
            "keep": (1, 1, 0.9, 0.85, 0.75),
            "add": (0.2, 0.3, 0.4, 0.4, 0.45),
            "relief": (0.65, 0.65, 0.65, 0.65, 0.65),
            "needle": (2, 2, 2, 2, 2),
        },
        large={
            "keep": (1, 0.8, 0.7, 0.65, 0.6),
            "add": (0.4, 0.6, 0.7, 0.7, 0.75),
            "relief": (1, 1, 1, 1, 1),
            "needle": (10, 10, 10, 10, 10),
        },
    ),
    "fog": Corruption(
        fog,
        small={"thickness": (0.2, 0.5, 0.75, 1, 1.5), "decay": (3, 3, 2.5, 2, 1.75)},
        large={"thickness": (1.5, 2, 2.5, 2.5, 3), "decay": (2, 2, 1.7, 1.5, 1.4)},
    ),
    "brightness": Corruption(
        brightness,
        small={"add": (0.05, 0.1, 0.15, 0.2, 0.3)},
        large={"add": (0.1, 0.2, 0.3, 0.4, 0.5)},
    ),
    "contrast": Corruption(
        contrast,
        small={"factor": (0.75, 0.5, 0.4, 0.3, 0.15)},
        large={"factor": (0.4, 0.3, 0.2, 0.1, 0.05)},
    ),
    "elastic_transform": Corruption(
        elastic_transform,
        small={
            "bend": (0, 0.05, 0.08, 0.1, 0.1),
            "sigma": (0, 0.2, 0.06, 0.04, 0.03),
            "shift": (0.08, 0.07, 0.06, 0.05, 0.03),
        },
        large={
            "bend": _of_side(2, 2, 0.05, 0.07, 0.12),
            "sigma": _of_side(0.7, 0.08, 0.01, 0.01, 0.01),
            "shift": _of_side(0.1, 0.2, 0.02, 0.02, 0.02),
        },
    ),
    "pixelate": Corruption(
        pixelate,
        small={"share": (0.95, 0.9, 0.85, 0.75, 0.65)},
        large={"share": (0.6, 0.5, 0.4, 0.3, 0.25)},
    ),
    "jpeg_compression": Corruption(
        jpeg_compression,
        small={"quality": (80, 65, 58, 50, 40)},
        large={"quality": (25, 18, 15, 10, 7)},
    ),
}
NAMES = tuple(TABLE)  # noise (3), blur (4), weather (4), digital (4), as the paper orders them
