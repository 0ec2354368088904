"""The views of `augment`, each computed by one program of one Triton kernel: no temporaries, a single launch.

B images of C channels (1 or 3), H x W pixels, V views of S x S pixels, all sides at most LIMIT. The results are
`augment`'s on the same noise within 2e-5; where `supported` is false, `augment` is the way to compute them.

An image lives in registers as three planes r, g, b; with one channel the last two are copies that nobody stores.
Planes have powers of two as sides, as Triton asks: what lies beyond an image's edge is finite, and has no weight in
anything that is stored.
"""

from __future__ import annotations  # tl.constexpr below is read by Triton alone

import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nonneg import augment
from nonneg.errors import BadInput

HAVE_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = HAVE_TRITON and os.environ.get("TRITON_INTERPRET") == "1"  # Triton's own switch: kernels run on the CPU
if HAVE_TRITON or TYPE_CHECKING:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

LIMIT = 64  # pixels a side; also the side up to which `augment` blurs with matrices, as this does
WARPS = 4  # of 32 threads, for each view; sides above 32 take twice as many


def supported(images: Tensor, size: int | None = None) -> bool:
    """Whether `fused` can make views of these images here; a shape or device decides, so it may be asked anywhere."""
    return _fits(images, size) and (INTERPRETED or _triton_serves(images.device.index))


def _triton_serves(gpu: int) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(gpu) >= (8, 0) and _builds()


@cache
def _builds() -> bool:
    """Whether Triton can build a kernel: it needs a C compiler at run time, as its driver does, which is tried once."""
    try:
        triton.runtime.driver.active.get_current_target()
    except Exception:  # whatever it is, the answer is to go on without kernels; engine.choose says that it is slower
        return False
    return True


if HAVE_TRITON:  # elsewhere nobody asks, and the import behind this takes seconds
    # torch.compile cannot trace the question, but may keep the answer
    _triton_serves = torch.compiler.assume_constant_result(_triton_serves)


def _fits(images: Tensor, size: int | None) -> bool:
    """Whether the images are uint8 with 1 or 3 channels, small, and where a kernel can run."""
    if not HAVE_TRITON or not (images.is_cuda or INTERPRETED):
        return False
    if images.ndim != 4 or images.dtype != torch.uint8 or images.shape[1] not in (1, 3):
        return False
    height, width = images.shape[2:]
    square = size is not None or height == width
    return square and all(1 <= n <= LIMIT for n in (height, width, height if size is None else size))


def fused(
    images: Tensor,
    index: Tensor,
    noise: Tensor,
    *,
    size: int | None = None,
    min_scale: float = 0.08,
    strength: Sequence[float] = (0.8, 0.8, 0.8, 0.2),
    jitter_p: float = 0.8,
    gray_p: float = 0.2,
    blur_p: float = 0.5,
    flip_p: float = 0.5,
    out_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """V x C x S x S views, channels last: view v is of images[index[v % B]], by row v of the noise (V x NOISE).

    The knobs are those of `augment`'s pipelines, `strength` that of each of augment.OPERATIONS. Nobody can look at
    `index` (B int64) without waiting for the device, so it must be right.
    """
    if not _fits(images, size):
        raise BadInput(
            f"images are {images.dtype} {tuple(images.shape)} on {images.device}: the kernel takes uint8 with 1 or 3"
            f" channels and sides up to {LIMIT}, square or with a size, on a GPU with Triton; use augment's functions"
        )
    if index.ndim != 1 or index.dtype != torch.int64 or not len(index):
        raise BadInput(f"index is {tuple(index.shape)} {index.dtype}: give the B int64 rows to take, at least one")
    if noise.ndim != 2 or noise.shape[1] != augment.NOISE or noise.dtype != torch.float32 or len(noise) % len(index):
        raise BadInput(
            f"noise is {tuple(noise.shape)} {noise.dtype} for {len(index)} images: give float32 uniforms (draw_noise),"
            f" {augment.NOISE} for each view, as many views of every image"
        )
    if not images.device == index.device == noise.device:
        raise BadInput(f"images are on {images.device}, index on {index.device}, noise on {noise.device}: give one")
    if not 0 < min_scale <= 1:
        raise BadInput(f"min_scale is {min_scale}: give a share of the image's area, above 0 and at most 1")
    for name, p in (("jitter_p", jitter_p), ("gray_p", gray_p), ("blur_p", blur_p), ("flip_p", flip_p)):
        if not 0 <= p <= 1:
            raise BadInput(f"{name} is {p}: give a probability between 0 and 1")
    if len(strength) != 4 or not (min(strength) >= 0 and strength[3] <= 0.5):
        raise BadInput(f"strength is {tuple(strength)}: give four of at least 0, the last (hue) at most 1/2")
    knobs = [float(k) for k in (min_scale, *strength, jitter_p, gray_p, blur_p, flip_p)]
    return _views(images, index, noise, images.shape[2] if size is None else size, knobs, out_dtype)


@torch.library.custom_op(
    "nonneg::views",
    mutates_args=(),
    schema="(Tensor images, Tensor index, Tensor noise, int size, float[] knobs, ScalarType out_dtype) -> Tensor",
)
def _views(
    images: Tensor, index: Tensor, noise: Tensor, size: int, knobs: Sequence[float], out_dtype: torch.dtype
) -> Tensor:
    """One launch of the kernel. An operator of its own, because torch.compile must not look inside."""
    out = _empty_views(images, index, noise, size, knobs, out_dtype)
    if not len(noise):
        return out
    channels, height, width = images.shape[1:]
    sides = [max(16, 1 << (n - 1).bit_length()) for n in (height, width, size)]  # 16: the least a product takes
    warps = WARPS if max(sides) <= 32 else 2 * WARPS
    with torch.cuda.device_of(images):  # Triton launches on the current device
        _kernel[(len(noise),)](
            images,
            *images.stride(),
            index.contiguous(),
            len(index),
            noise.contiguous(),
            out,
            *knobs,
            C=channels,
            H=height,
            W=width,
            S=size,
            CENTRAL_H=min(height, round(width / augment.RATIO[0])),
            CENTRAL_W=min(width, round(height * augment.RATIO[1])),
            HB=sides[0],
            WB=sides[1],
            SB=sides[2],
            num_warps=warps,
            maxnreg=min(255, 2**16 // (32 * warps)),  # all there are: left to itself, ptxas gives 64 pixels only 32
            num_stages=1,  # there is no loop over memory to overlap
        )
    return out


@_views.register_fake
def _empty_views(
    images: Tensor,
    index: Tensor,  # noqa: ARG001
    noise: Tensor,
    size: int,
    knobs: Sequence[float],  # noqa: ARG001
    out_dtype: torch.dtype,
) -> Tensor:
    shape = (noise.shape[0], images.shape[1], size, size)
    return torch.empty(shape, dtype=out_dtype, device=images.device, memory_format=torch.channels_last)


# The kernel. Triton compiles what follows: no lists, no early return, and a variable keeps its type in all branches.


def _jit(f: Callable[..., Any]) -> Any:
    return triton.jit(f) if HAVE_TRITON else f


def _constant(value: float | str) -> Any:
    """A global that a kernel may read."""
    return tl.constexpr(value) if HAVE_TRITON else value


TRIES, NOISE = _constant(augment.TRIES), _constant(augment.NOISE)
AREA, ASPECT = _constant(augment.AREA.start), _constant(augment.ASPECT.start)
ORDER, FACTOR = _constant(augment.ORDER.start), _constant(augment.FACTOR.start)
TOP, LEFT, FLIP = _constant(augment.TOP), _constant(augment.LEFT), _constant(augment.FLIP)
JITTER, GRAY = _constant(augment.JITTER), _constant(augment.GRAY)
BLUR, BLUR_SIGMA = _constant(augment.BLUR), _constant(augment.BLUR_SIGMA)
LOG_RATIO = _constant(torch.tensor(augment.RATIO[0], dtype=torch.float64).log().item())
LOG_RATIOS = _constant(torch.tensor(augment.RATIO[1] / augment.RATIO[0], dtype=torch.float64).log().item())
LEAST_SIGMA, SIGMAS = _constant(augment.SIGMA[0]), _constant(augment.SIGMA[1] - augment.SIGMA[0])
PRECISION = _constant("ieee")  # of products: full float32; tf32's steps are coarser than a pixel's


@_jit
def _kernel(
    images,
    stride_n,
    stride_c,
    stride_h,
    stride_w,
    index,
    count,
    noise,
    out,
    min_scale,
    brightness,
    contrast,
    saturation,
    hue,
    jitter_p,
    gray_p,
    blur_p,
    flip_p,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    S: tl.constexpr,
    CENTRAL_H: tl.constexpr,
    CENTRAL_W: tl.constexpr,
    HB: tl.constexpr,
    WB: tl.constexpr,
    SB: tl.constexpr,
):
    view = tl.program_id(0)
    u = noise + view.to(tl.int64) * NOISE
    source = images + tl.load(index + view % count) * stride_n

    # Crop and resize, and the flip with it, as in augment._view
    top, left, h, w = _crop_box(u, min_scale, H, W, CENTRAL_H, CENTRAL_W)
    wy = _resize_weights(top, h, 0.0, H, HB, S, SB)
    wx = tl.trans(_resize_weights(left, w, (tl.load(u + FLIP) < flip_p).to(tl.float32), W, WB, S, SB))
    r = _crop_resize(source, stride_h, stride_w, wy, wx, H, W, HB, WB)
    g, b = r, r
    if C == 3:
        g = _crop_resize(source + stride_c, stride_h, stride_w, wy, wx, H, W, HB, WB)
        b = _crop_resize(source + 2 * stride_c, stride_h, stride_w, wy, wx, H, W, HB, WB)

    # Colour: each operation's turn is its uniform's rank (ties keep their order), or -1 for never
    jitter = tl.load(u + JITTER) < jitter_p
    u0, u1, u2, u3 = tl.load(u + ORDER), tl.load(u + ORDER + 1), tl.load(u + ORDER + 2), tl.load(u + ORDER + 3)
    b01, b02, b03 = (u0 <= u1).to(tl.int32), (u0 <= u2).to(tl.int32), (u0 <= u3).to(tl.int32)  # 0 before 1, ...
    b12, b13, b23 = (u1 <= u2).to(tl.int32), (u1 <= u3).to(tl.int32), (u2 <= u3).to(tl.int32)
    turn0 = tl.where(jitter & (brightness > 0), 3 - b01 - b02 - b03, -1)
    turn1 = tl.where(jitter & (contrast > 0), 2 + b01 - b12 - b13, -1)
    turn2 = tl.where(jitter & (saturation > 0), 1 + b02 + b12 - b23, -1)
    turn3 = tl.where(jitter & (hue > 0), b03 + b13 + b23, -1)
    brightness_by = _factor(u + FACTOR, brightness)
    contrast_by = _factor(u + FACTOR + 1, contrast)
    saturation_by = _factor(u + FACTOR + 2, saturation)
    hue_by = (2 * tl.load(u + FACTOR + 3) - 1) * hue
    for turn in range(4):
        if turn0 == turn:
            r, g, b = _brightness(r, brightness_by), _brightness(g, brightness_by), _brightness(b, brightness_by)
        if turn1 == turn:
            grey = (1 - contrast_by) * _mean(_luma(r, g, b, C), S)
            r, g, b = _blend(r, contrast_by, grey), _blend(g, contrast_by, grey), _blend(b, contrast_by, grey)
        if C == 3:
            if turn2 == turn:
                grey = (1 - saturation_by) * _luma(r, g, b, C)
                r, g, b = _blend(r, saturation_by, grey), _blend(g, saturation_by, grey), _blend(b, saturation_by, grey)
            if turn3 == turn:
                r, g, b = _hue(r, g, b, hue_by)

    if C == 3:
        grayscale = tl.load(u + GRAY) < gray_p
        if grayscale:
            r = _luma(r, g, b, C)
            g = r
            b = r

    if tl.load(u + BLUR) < blur_p:
        k = _blur_weights(LEAST_SIGMA + SIGMAS * tl.load(u + BLUR_SIGMA), S, SB)
        kt = tl.trans(k)
        r = _unit(_product(k, _product(r, kt)))
        if C == 3:
            g = _unit(_product(k, _product(g, kt)))
            b = _unit(_product(k, _product(b, kt)))

    row, column = tl.arange(0, SB)[:, None], tl.arange(0, SB)[None, :]
    inside = (row < S) & (column < S)
    target = out + view.to(tl.int64) * (S * S * C) + (row * S + column) * C
    tl.store(target, r.to(out.dtype.element_ty), mask=inside)
    if C == 3:
        tl.store(target + 1, g.to(out.dtype.element_ty), mask=inside)
        tl.store(target + 2, b.to(out.dtype.element_ty), mask=inside)


@_jit
def _crop_box(
    u,
    min_scale,
    H: tl.constexpr,
    W: tl.constexpr,
    CENTRAL_H: tl.constexpr,
    CENTRAL_W: tl.constexpr,
):
    """augment.crop_box: top, left, height, width of the first shape that fits, else the central one."""
    t = tl.arange(0, 16)
    area = (tl.load(u + AREA + t, mask=t < TRIES, other=0.0) * (1 - min_scale) + min_scale) * (H * W)
    aspect = tl.exp(tl.load(u + ASPECT + t, mask=t < TRIES, other=0.0) * LOG_RATIOS + LOG_RATIO)
    w = _round(tl.sqrt_rn(area * aspect))
    h = _round(tl.sqrt_rn(tl.div_rn(area, aspect)))
    fits = (t < TRIES) & (w > 0) & (w <= W) & (h > 0) & (h <= H)
    first = tl.min(tl.where(fits, t, 16), axis=0)
    w = tl.sum(tl.where(t == first, w, 0.0), axis=0)
    h = tl.sum(tl.where(t == first, h, 0.0), axis=0)
    top = tl.minimum(tl.floor(tl.load(u + TOP) * (H - h + 1)), H - h)
    left = tl.minimum(tl.floor(tl.load(u + LEFT) * (W - w + 1)), W - w)
    top = tl.where(first < 16, top, (H - CENTRAL_H) // 2)
    left = tl.where(first < 16, left, (W - CENTRAL_W) // 2)
    return top, left, tl.where(first < 16, h, CENTRAL_H), tl.where(first < 16, w, CENTRAL_W)


@_jit
def _resize_weights(
    start,
    length,
    flip,
    N: tl.constexpr,
    NB: tl.constexpr,
    S: tl.constexpr,
    SB: tl.constexpr,
):
    """augment._resize_weights, S x n (SB x NB); `flip` is 1 or 0. Rows and columns beyond the edge are zero."""
    row, pixel = tl.arange(0, SB), tl.arange(0, NB) + 0.5
    scale = length / S
    inverse = 1 / tl.maximum(scale, 1.0)
    centre = (start + (flip * S + (1 - 2 * flip) * (row + 0.5)) * scale) * inverse
    t = tl.abs((pixel * inverse)[None, :] - centre[:, None])
    p = tl.maximum(2 - t, 0.0)
    q = tl.maximum(1 - t, 0.0)
    k = p * p * (p - 1) + 2 * q * q * (1 - 2 * q)
    inside = (pixel > start) & (pixel < start + length) & (pixel < N)
    k = tl.where(inside[None, :] & (row < S)[:, None], k, 0.0)
    total = tl.where(row < S, tl.sum(k, axis=1), 1.0)
    return k / total[:, None]


@_jit
def _crop_resize(
    plane,
    stride_h,
    stride_w,
    wy,
    wx,
    H: tl.constexpr,
    W: tl.constexpr,
    HB: tl.constexpr,
    WB: tl.constexpr,
):
    """wy x wx of one channel, clipped after either product."""
    row, column = tl.arange(0, HB)[:, None], tl.arange(0, WB)[None, :]
    x = tl.load(plane + row * stride_h + column * stride_w, mask=(row < H) & (column < W), other=0)
    return _unit(_product(wy, _unit(_product(x.to(tl.float32) / 255, wx))))


@_jit
def _blur_weights(sigma, S: tl.constexpr, SB: tl.constexpr):
    """augment._blur_weights, S x S (SB x SB): three box passes as one matrix, zero beyond the edge."""
    var = sigma * sigma / 3
    whole = tl.floor((tl.sqrt(12 * var + 1) - 1) / 2)
    r = whole + (2 * whole + 1) * (whole * (whole + 1) - 3 * var) / (6 * (var - (whole + 1) * (whole + 1)))
    i, j = tl.arange(0, SB)[:, None], tl.arange(0, SB)[None, :]
    once = _unit(r + 1 - tl.abs(i - j))
    once += tl.where(j == 0, tl.maximum(r - i, 0.0), 0.0)
    once += tl.where(j == S - 1, tl.maximum(r - (S - 1 - i), 0.0), 0.0)
    once = tl.where((i < S) & (j < S), once / (2 * r + 1), 0.0)
    return _product(_product(once, once), once)


@_jit
def _factor(u, strength):
    """Uniform between max(0, 1 - strength) and 1 + strength."""
    low = tl.maximum(1 - strength, 0.0)
    return low + tl.load(u) * (1 + strength - low)


@_jit
def _brightness(x, factor):
    return tl.minimum(x * factor, 1.0)


@_jit
def _blend(x, factor, rest):
    return _unit(x * factor + rest)


@_jit
def _hue(r, g, b, shift):
    """augment.hue; only the hue's distance from red needs care, the rest follows from it."""
    top = tl.maximum(tl.maximum(r, g), b)
    bottom = tl.minimum(tl.minimum(r, g), b)
    chroma = top - bottom
    h = tl.abs(((g + b - r - bottom) / tl.maximum(chroma, 1e-12) + 1) / 6)
    h = tl.where(g < b, -h, h) + shift
    base = top - 2 * chroma
    r = _hue_channel(h + 0.5, chroma, base)
    g = _hue_channel(h + 0.5 - 1 / 3, chroma, base)
    b = _hue_channel(h + 0.5 - 2 / 3, chroma, base)
    return r, g, b


@_jit
def _hue_channel(w, chroma, base):
    w = tl.minimum(tl.maximum(tl.abs(w - _round(w)), 1 / 6), 1 / 3)
    return _unit(w * 6 * chroma + base)


@_jit
def _luma(r, g, b, C: tl.constexpr):
    grey = r
    if C == 3:
        grey = r * 0.299 + g * 0.587 + b * 0.114
    return grey


@_jit
def _mean(x, S: tl.constexpr):
    """The mean of the S x S pixels; beyond the edge all is black until contrast, the only caller, has had its turn."""
    return tl.sum(tl.sum(x, axis=1), axis=0) / (S * S)


@_jit
def _product(a, b):
    return tl.dot(a, b, input_precision=PRECISION)


@_jit
def _unit(x):
    return tl.minimum(tl.maximum(x, 0.0), 1.0)


@_jit
def _round(x):
    """To the nearest whole number, halves to even as torch.round: 1.5 * 2^23 leaves no bits for the fraction."""
    return (x + 12582912.0) - 12582912.0
