"""Random views of a batch of images, computed where the batch is; every image has its own parameters.

N images, C channels (1 or 3), H x W pixels, S the output size. Images are uint8, or float in [0, 1]; views are
float32 in [0, 1] and not normalised: that is the encoder's work.

A pipeline is a pure function of the images and of uniform noise (N x NOISE). The noise is an argument, and not the
generator, because torch.compile cannot trace a generator; on CUDA nothing here waits for the device or has a shape
that depends on data, so a pipeline can be compiled whole and captured in a CUDA graph.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from nonneg.errors import BadInput

RATIO = (3 / 4, 4 / 3)  # width / height of a crop
SIGMA = (0.1, 2.0)  # blur
TRIES = 10  # attempts at a crop that fits, before the central one

# Which column of the noise decides what. The columns are the same for all pipelines, so one draw serves any of them.
AREA, ASPECT, ORDER, FACTOR = slice(0, TRIES), slice(TRIES, 2 * TRIES), slice(20, 24), slice(24, 28)
TOP, LEFT, FLIP, JITTER, GRAY, BLUR, BLUR_SIGMA = range(28, 35)
NOISE = 35

# Freeing one block of just under 32 MiB, never touched, tells glibc to keep freed memory. Otherwise it returns every
# temporary to the system, and the page faults of the next one cost more than the arithmetic (measured: up to twice).
torch.empty(2**23 - 2**12)
PART = 400_000  # values that fit a core's cache together with a few temporaries: 128 images of 3 x 32 x 32


def draw_noise(n: int, *, generator: torch.Generator) -> Tensor:
    """N x NOISE uniforms in [0, 1) on the generator's device: all the randomness of one view of n images."""
    return torch.rand(n, NOISE, generator=generator, device=generator.device)


# Pipelines


def simclr(
    images: Tensor,
    noise: Tensor,
    *,
    size: int | None = None,
    min_scale: float = 0.08,
    jitter: float = 0.8,
    jitter_p: float = 0.8,
    gray_p: float = 0.2,
    blur_p: float = 0.5,
    flip_p: float = 0.5,
) -> Tensor:
    """The paper's view: resized crop, colour jitter (hue: jitter / 4), grayscale, Gaussian blur, horizontal flip."""
    strength = (jitter, jitter, jitter, jitter / 4)
    return _view(images, noise, size, min_scale, strength, jitter_p, gray_p, blur_p, flip_p)


def gentle(
    images: Tensor,
    noise: Tensor,
    *,
    size: int | None = None,
    min_scale: float = 0.5,
    jitter: float = 0.4,
    jitter_p: float = 0.8,
    blur_p: float = 0.3,
) -> Tensor:
    """A view for digits and other marks that a flip or a small crop would change: crop, brightness, contrast, blur."""
    return _view(images, noise, size, min_scale, (jitter, jitter, 0.0, 0.0), jitter_p, 0.0, blur_p, 0.0)


def crop_flip(
    images: Tensor, noise: Tensor, *, size: int | None = None, min_scale: float = 0.08, flip_p: float = 0.5
) -> Tensor:
    """Resized crop and horizontal flip only: what a linear probe trains on."""
    return _view(images, noise, size, min_scale, (0.0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.0, flip_p)


def none(images: Tensor, noise: Tensor, *, size: int | None = None) -> Tensor:
    """The image itself, as float; resized as a whole where `size` differs from its own."""
    x, (height, width) = _checked(images, noise, size)
    if (height, width) == x.shape[2:]:
        return x.clone() if x is images else x
    whole = torch.zeros(len(x), 4, device=x.device)
    whole[:, 2], whole[:, 3] = x.shape[2], x.shape[3]
    return _crop_resize(x, whole, height, width, None)


def _view(
    images: Tensor,
    noise: Tensor,
    size: int | None,
    min_scale: float,
    strength: tuple[float, float, float, float],
    jitter_p: float,
    gray_p: float,
    blur_p: float,
    flip_p: float,
) -> Tensor:
    """Crop, jitter (`strength` in the order of OPERATIONS), grayscale, blur; the flip is folded into the crop."""
    for name, p in {"jitter_p": jitter_p, "gray_p": gray_p, "blur_p": blur_p, "flip_p": flip_p}.items():
        if not 0 <= p <= 1:
            raise BadInput(f"{name} is {p}: give a probability between 0 and 1")
    if not (min(strength) >= 0 and strength[0] <= 2 and strength[3] <= 0.5):
        raise BadInput(f"jitter is {strength[0]}: give a strength between 0 and 2")
    if images.is_cuda and augment_cuda.supported(images, size):  # the same in one kernel
        index = torch.arange(len(images), device=images.device)
        return augment_cuda.fused(
            images,
            index,
            noise,
            size=size,
            min_scale=min_scale,
            strength=strength,
            jitter_p=jitter_p,
            gray_p=gray_p,
            blur_p=blur_p,
            flip_p=flip_p,
        )
    x, (height, width) = _checked(images, noise, size)
    box = crop_box(noise, x.shape[2], x.shape[3], min_scale=min_scale)
    # The flip comes last in the reference pipeline. It commutes with all that lies between (pixelwise colour and a
    # symmetric blur), so it costs nothing here: the crop reads its columns in reverse.
    x = _crop_resize(x, box, height, width, noise[:, FLIP] < flip_p)
    if jitter_p > 0:
        x = _jitter(x, noise, strength, jitter_p)
    if gray_p > 0 and x.shape[1] == 3:
        x = _on_rows(x, noise[:, GRAY] < gray_p, grayscale)
    if blur_p > 0:
        sigma = SIGMA[0] + (SIGMA[1] - SIGMA[0]) * noise[:, BLUR_SIGMA]
        x = _on_rows(x, noise[:, BLUR] < blur_p, _small_blur, sigma)
    return x


def _jitter(x: Tensor, noise: Tensor, strength: tuple[float, float, float, float], p: float) -> Tensor:
    """The four colour operations with random factors, in an order of its own for each image."""
    used = [k for k, s in enumerate(strength) if s > 0 and (k < 2 or x.shape[1] == 3)]  # the others are identities
    if not used:
        return x
    chosen = noise[:, JITTER] < p
    order = torch.stack([noise[:, ORDER][:, k] for k in used], 1).argsort(1)  # N x used
    factor = [_between(noise[:, FACTOR][:, k], *_factor_range(k, strength[k])) for k in used]
    for turn in range(len(used)):
        for i, k in enumerate(used):
            x = _on_rows(x, chosen & (order[:, turn] == i), OPERATIONS[k], factor[i])
    return x


def _factor_range(k: int, strength: float) -> tuple[float, float]:
    return (-strength, strength) if OPERATIONS[k] is hue else (max(0.0, 1 - strength), 1 + strength)


def _select_rows(x: Tensor) -> bool:
    """Whether to work on chosen rows alone: less work, but how many they are must be known, so only on the CPU."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _on_rows(x: Tensor, mask: Tensor, operation: Callable[..., Tensor], *parameters: Tensor) -> Tensor:
    """`operation(x, *parameters)` for the images where `mask` (N) holds, `x` for the others; may overwrite `x`."""
    if not _select_rows(x):
        return torch.where(_per_image(mask), operation(x, *parameters), x)
    for rows in mask.nonzero().squeeze(1).split(_part(x)):
        y = operation(x.index_select(0, rows), *(p.index_select(0, rows) for p in parameters))
        x.index_copy_(0, rows, y)
    return x


def _part(x: Tensor) -> int:
    """How many images to work on at a time."""
    return max(1, PART // x[0].numel()) if len(x) else 1


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return u * (high - low) + low


def _per_image(parameter: Tensor) -> Tensor:
    return parameter.view(-1, 1, 1, 1)


def _checked(images: Tensor, noise: Tensor, size: int | None) -> tuple[Tensor, tuple[int, int]]:
    """The images as float and the size of the views."""
    if images.ndim != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise BadInput(f"images have shape {tuple(images.shape)}: give N x C x H x W with 1 or 3 channels")
    if noise.shape != (len(images), NOISE) or noise.dtype != torch.float32:
        raise BadInput(
            f"noise is {tuple(noise.shape)} {noise.dtype}: give {len(images)} x {NOISE} float32 uniforms (draw_noise)"
        )
    if noise.device != images.device:
        raise BadInput(f"noise is on {noise.device} and images on {images.device}: draw the noise where the images are")
    if size is not None and size < 1:
        raise BadInput(f"size is {size}: give at least one pixel")
    if images.dtype == torch.uint8:
        x = images.float().div_(255)
    elif images.is_floating_point():
        x = images.float()
        if _select_rows(x) and x.numel() and not (x.amin() >= 0 and x.amax() <= 1):  # elsewhere looking would wait
            raise BadInput("float images leave [0, 1]: divide by 255, or give uint8")
    else:
        raise BadInput(f"images are {images.dtype}: give uint8, or float in [0, 1]")
    return x, (images.shape[2], images.shape[3]) if size is None else (size, size)


# Crop and resize


def crop_box(noise: Tensor, height: int, width: int, *, min_scale: float = 0.08) -> Tensor:
    """N x 4 boxes (top, left, height, width) of area U(min_scale, 1) and log-uniform ratio, in whole pixels.

    As torchvision's RandomResizedCrop: the first of TRIES shapes that fits, else the largest central one.
    """
    if not 0 < min_scale <= 1:
        raise BadInput(f"min_scale is {min_scale}: give a share of the image's area, above 0 and at most 1")
    area = _between(noise[:, AREA], min_scale, 1) * (height * width)  # N x TRIES
    aspect = _between(noise[:, ASPECT], math.log(RATIO[0]), math.log(RATIO[1])).exp()
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)
    w, h, fits = w.gather(1, first).squeeze(1), h.gather(1, first).squeeze(1), fits.any(1)
    central_w, central_h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    w, h = torch.where(fits, w, central_w), torch.where(fits, h, central_h)
    # The minimum: in float32, u * k can round up to k.
    top = torch.minimum((noise[:, TOP] * (height - h + 1)).floor(), height - h)
    left = torch.minimum((noise[:, LEFT] * (width - w + 1)).floor(), width - w)
    top = torch.where(fits, top, (height - central_h) // 2)
    left = torch.where(fits, left, (width - central_w) // 2)
    return torch.stack([top, left, h, w], 1)


def crop_resize(x: Tensor, box: Tensor, size: int, flip: Tensor | None = None) -> Tensor:
    """Cut `box` (N x 4: top, left, height, width, in pixels) out of each image and resize it to S x S, bicubic.

    Pillow's crop and resize(BICUBIC): antialiased, blind outside the box; `flip` (N bool) mirrors left and right.
    Tolerance to Pillow 1.5 / 255, the rounding of its two passes. Where the height shrinks, Pillow 13 may run the
    vertical pass first, which differs only where bicubic overshoots black or white.
    """
    if x.ndim != 4 or box.shape != (len(x), 4):
        raise BadInput(f"box is {tuple(box.shape)} for images {tuple(x.shape)}: give N x 4 and N x C x H x W")
    if size < 1:
        raise BadInput(f"size is {size}: give at least one pixel")
    box = box.float()
    if _select_rows(x):
        (top, left, height, width), (h, w) = box.unbind(1), x.shape[2:]
        inside = (top >= 0) & (left >= 0) & (height >= 1) & (width >= 1) & (top + height <= h) & (left + width <= w)
        if not inside.all():
            raise BadInput(f"box {box[~inside][0].tolist()} is not inside an image of {h} x {w} pixels")
    return _crop_resize(x, box, size, size, flip)


def _crop_resize(x: Tensor, box: Tensor, height: int, width: int, flip: Tensor | None) -> Tensor:
    n = _part(x)
    if _select_rows(x) and len(x) > n:
        flips = (None,) * len(x) if flip is None else flip.split(n)
        parts = zip(x.split(n), box.split(n), flips, strict=False)
        return torch.cat([_crop_resize(part, b, height, width, f) for part, b, f in parts])
    top, left, h, w = box.unbind(1)
    wy = _resize_weights(top, h, x.shape[2], height, None)
    wx = _resize_weights(left, w, x.shape[3], width, flip)
    return _mix_rows(wy, _mix_columns(x, wx).clamp_(0, 1)).clamp_(0, 1)  # Pillow, too, clips after either pass


def _resize_weights(start: Tensor, length: Tensor, n: int, size: int, flip: Tensor | None) -> Tensor:
    """N x S x n: the share of each of n pixels in each of S outputs, w_ip = k((p - centre_i) / max(scale, 1)) / sum_p.

    With p = max(0, 2 - |t|) and q = max(0, 1 - |t|) the cubic kernel (a = -1/2) is k = p^2 (p - 1) / 2 + q^2 (1 - 2 q).
    """
    out = torch.arange(size, device=start.device) + 0.5
    pixel = torch.arange(n, device=start.device) + 0.5
    scale = (length / size).unsqueeze(1)
    out = out if flip is None else torch.where(flip.unsqueeze(1), size - out, out)
    inverse = 1 / scale.clamp(min=1)
    centre = (start.unsqueeze(1) + out * scale) * inverse  # N x S, in units of the kernel, as the pixels below
    t = ((pixel * inverse).unsqueeze(1) - centre.unsqueeze(2)).abs_()
    p = (2 - t).clamp_(min=0)
    q = t.neg_().add_(1).clamp_(min=0)
    k = (p - 1).mul_(p).mul_(p)
    k.addcmul_(q * q, 1 - 2 * q, value=2)  # 2 k; the factor leaves with the sum
    inside = (pixel > start.unsqueeze(1)) & (pixel < (start + length).unsqueeze(1))  # N x n
    k.mul_(inside.unsqueeze(1))
    return k.div_(k.sum(2, keepdim=True))


def _mix_columns(x: Tensor, weights: Tensor) -> Tensor:
    """x weights^T, image by image: N x C x H x W with N x S x W gives N x C x H x S."""
    n, c, h, w = x.shape
    return _product(x.reshape(n, c * h, w), weights.mT).view(n, c, h, weights.shape[1])


def _mix_rows(weights: Tensor, x: Tensor) -> Tensor:
    """weights x, image by image: N x S x H with N x C x H x W gives N x C x S x W."""
    return _product(weights.unsqueeze(1), x)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a b in float32 even under autocast: the steps of bfloat16 are as coarse as a pixel's."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def flip(x: Tensor, mask: Tensor) -> Tensor:
    """Mirror left and right the images where `mask` (N bool) holds; exactly Pillow's FLIP_LEFT_RIGHT."""
    return torch.where(_per_image(mask), x.flip(3), x)


# Colour: brightness, contrast and saturation are x f + (1 - f) reference, clamped to [0, 1], with f >= 0


def brightness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with black, min(1, f x), f per image. Tolerance to Pillow 1.01 / 255: it truncates."""
    return (x * _per_image(factor)).clamp_(max=1)


def contrast(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the mean of the grey image, f per image. Tolerance to Pillow 2 / 255: it rounds that mean."""
    f = _per_image(factor)
    mean = _luma(x.mean((2, 3), keepdim=True))  # of the grey image, since luma is linear
    return (x * f).add_(mean * (1 - f)).clamp_(0, 1)


def saturation(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with the grey image, f per image; one channel: identity. Tolerance to Pillow 1.5 / 255."""
    return torch.lerp(_luma(x), x, _per_image(factor)).clamp_(0, 1) if x.shape[1] == 3 else x.clone()


def hue(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the colour wheel by `shift` turns (in [-1/2, 1/2], per image), keeping HSV's saturation and value.

    With v the largest channel and c = v - the smallest, a channel n at hue h (in turns) is
    v - c clamp(2 - 6 |w_n|, 0, 1), w_n = h + (1/2, 1/6, -1/6)_n wrapped to [-1/2, 1/2].
    One channel: identity. Tolerance to Pillow 12 / 255 (1.3 root mean square): it keeps hue and saturation in 8 bits.
    """
    if x.shape[1] == 1:
        return x.clone()
    r, g, b = x.unbind(1)
    top, bottom = torch.maximum(torch.maximum(r, g), b), torch.minimum(torch.minimum(r, g), b)
    chroma = top - bottom
    # How far the hue lies from red, in sixths of a turn, is 1 + (g + b - r - bottom) / chroma in all six sectors.
    h = (g + b).sub_(r).sub_(bottom).div_(chroma.clamp(min=1e-12)).add_(1).div_(6)
    h = torch.copysign(h, g - b).add_(shift.view(-1, 1, 1))
    w = h.unsqueeze(1) + (0.5 - torch.arange(3, device=x.device) / 3).view(3, 1, 1)
    w = w.sub_(w.round()).abs_().clamp_(1 / 6, 1 / 3)
    return w.mul_(chroma.mul(6).unsqueeze(1)).add_(top.sub_(chroma, alpha=2).unsqueeze(1)).clamp_(0, 1)


def grayscale(x: Tensor) -> Tensor:
    """ITU-R 601-2 luma, 0.299 r + 0.587 g + 0.114 b, in every channel; one channel: identity.

    Tolerance to Pillow 0.51 / 255.
    """
    return _luma(x).expand_as(x).contiguous()


def _luma(x: Tensor) -> Tensor:
    """N x 1 x ..., the grey value."""
    if x.shape[1] == 1:
        return x
    return (x[:, 0:1] * 0.299).add_(x[:, 1:2], alpha=0.587).add_(x[:, 2:3], alpha=0.114)


OPERATIONS = (brightness, contrast, saturation, hue)  # in the order of the columns of ORDER and FACTOR


# Blur

DENSE = 64  # pixels up to which a matrix product beats sliding over the image


def blur(x: Tensor, sigma: Tensor, *, max_sigma: float | None = None) -> Tensor:
    """Pillow's GaussianBlur, sigma per image: three box blurs of fractional radius r, the edge repeated at each.

    A pass weighs distance d by clamp(r + 1 - d, 0, 1) / (2 r + 1). Tolerance to Pillow 3 / 255, the rounding of its
    six passes (1 root mean square). Where no sigma exceeds `max_sigma`, saying so makes large images cheaper.
    """
    r = _box_radius(sigma).view(-1, 1)
    if max_sigma is not None and max(x.shape[2:]) > DENSE:
        reach = math.floor((math.sqrt(4 * max_sigma**2 + 1) - 1) / 2) + 1
        return _blur_sliding(x, r, reach)
    ky = _blur_weights(r, x.shape[2])
    kx = ky if x.shape[2] == x.shape[3] else _blur_weights(r, x.shape[3])
    return _mix_rows(ky, _mix_columns(x, kx)).clamp_(0, 1)  # the clamp: rounding may pass 1 by a hair


def _small_blur(x: Tensor, sigma: Tensor) -> Tensor:
    return blur(x, sigma, max_sigma=SIGMA[1])


def _box_radius(sigma: Tensor) -> Tensor:
    """The radius r = l + a, l whole, of the box whose three passes have the variance sigma^2."""
    var = sigma.float().square() / 3
    whole = (((12 * var + 1).sqrt() - 1) / 2).floor()
    return whole + (2 * whole + 1) * (whole * (whole + 1) - 3 * var) / (6 * (var - (whole + 1) ** 2))


def _blur_weights(r: Tensor, n: int) -> Tensor:
    """N x n x n: three passes as one matrix; what falls off the image counts for the pixel at its edge."""
    i = torch.arange(n, device=r.device)
    once = (r.unsqueeze(2) + 1 - (i.unsqueeze(1) - i).abs()).clamp_(0, 1)
    once[:, :, 0] += (r - i).clamp(min=0)  # sum over d > i of clamp(r + 1 - d, 0, 1)
    once[:, :, -1] += (r - (n - 1 - i)).clamp(min=0)
    once /= (2 * r + 1).unsqueeze(2)
    return _product(_product(once, once), once)


def _blur_sliding(x: Tensor, r: Tensor, reach: int) -> Tensor:
    """The same for radii up to `reach`, as weighted sums of shifted images."""
    weights = [((r + 1 - d).clamp(0, 1) / (2 * r + 1)).view(-1, 1, 1, 1) for d in range(reach + 1)]
    for dim in (3, 2):
        n = x.shape[dim]
        for _ in range(3):
            wide = F.pad(x, (reach, reach, 0, 0) if dim == 3 else (0, 0, reach, reach), mode="replicate")
            x = x * weights[0]
            for d in range(1, reach + 1):
                both = wide.narrow(dim, reach - d, n) + wide.narrow(dim, reach + d, n)
                x.addcmul_(both, weights[d])
    return x.clamp_(0, 1)


from nonneg import augment_cuda  # noqa: E402 (at the end: it reads the columns of the noise from here)
