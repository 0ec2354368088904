"""Batch norm, addition and ReLU of a residual network in two kernels forward and two backward, at memory speed.

R = N H W rows of C channels, images channels last. Per pass over a tensor this is the least traffic there is: forward,
the moments read x, the second kernel reads x (and the shortcut) and writes y; backward, the sums read the gradient and
x, the second kernel reads both again and writes the gradient of x. Two more passes go where torch adds the gradients of
a tensor with two readers: `norm_relu` hands out its result twice, and its backward adds the two itself.

Sums are taken in parts, one for each program's share of the rows, and added in one order: the result of a step does not
depend on which program was faster. Elsewhere than on a GPU with Triton, `norm_relu` is torch's own operations.
"""

from __future__ import annotations  # tl.constexpr below is read by Triton alone

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nonneg.augment_cuda import HAVE_TRITON, INTERPRETED, _triton_serves

if HAVE_TRITON or TYPE_CHECKING:
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

CHANNELS = 64  # a program's share of the channels: 128 bytes of a row


class Launch(NamedTuple):
    """How a kernel is spread: programs in all (an H200 has 132 processors), warps of each, rows of a tile."""

    programs: int
    warps: int
    rows: int


SUM_FORWARD, APPLY_FORWARD = Launch(128, 16, 256), Launch(256, 8, 128)  # the fastest tried on an H200: docs/speed.md
SUM_BACKWARD, APPLY_BACKWARD = Launch(128, 8, 128), Launch(256, 8, 64)
PLAIN, SHORTCUT, PROJECTED = 0, 1, 2  # what is added before the ReLU: nothing, a tensor, a tensor's own batch norm


def norm_relu(
    x: Tensor, bn: nn.BatchNorm2d, other: Tensor | None = None, other_bn: nn.BatchNorm2d | None = None
) -> tuple[Tensor, Tensor]:
    """relu(bn(x)), relu(bn(x) + other) or relu(bn(x) + other_bn(other)): the same values twice, for two readers."""
    if serves(x, bn) and (other_bn is None or (serves(x, other_bn) and _alike(bn, other_bn))):
        second = other_bn or bn
        return _NormReLU.apply(x, bn.weight, bn.bias, bn, other, second.weight, second.bias, other_bn)  # pyright: ignore[reportReturnType]
    y = bn(x)
    if other is not None:
        y = y + (other_bn(other) if other_bn else other)
    y = F.relu(y)
    return y, y


def serves(x: Tensor, bn: nn.BatchNorm2d) -> bool:
    """Whether the kernels serve: in training, on a GPU with Triton, where the channels come in whole blocks."""
    if not HAVE_TRITON or not (x.is_cuda or INTERPRETED) or not bn.training:
        return False
    whole = (
        bn.num_features % CHANNELS == 0
        and bn.num_features < x.numel() < 2**31
        and bn.track_running_stats
        and bn.momentum is not None
    )
    return whole and (INTERPRETED or _triton_serves(x.device.index))


def _alike(bn: nn.BatchNorm2d, other: nn.BatchNorm2d) -> bool:
    return bn.eps == other.eps and bn.momentum == other.momentum


class _NormReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        bn: nn.BatchNorm2d,
        other: Tensor | None,
        weight2: Tensor,
        bias2: Tensor,
        bn2: nn.BatchNorm2d | None,
    ) -> tuple[Tensor, Tensor]:
        kind = PLAIN if other is None else SHORTCUT if bn2 is None else PROJECTED
        x = _last(x)
        other = x if other is None else _last(other)
        y = torch.empty_like(x)
        saved = torch.empty(2, 2, x.shape[1], dtype=torch.float32, device=x.device)  # of each norm: mean, 1/deviation
        second = bn2 or bn
        partial = [_moments(t) for t in ((x, other) if kind == PROJECTED else (x,))]
        grid, rows, width = _grid(x, APPLY_FORWARD)
        _apply_forward[grid](  # pyright: ignore[reportIndexIssue]
            y,
            *(x, weight, bias, partial[0], saved[0], bn.running_mean, bn.running_var, bn.num_batches_tracked),
            *(other, weight2, bias2, partial[-1], saved[1]),
            *(second.running_mean, second.running_var, second.num_batches_tracked),
            *(bn.momentum, bn.eps, rows, width, *_parts(partial[0]), kind, APPLY_FORWARD.rows, CHANNELS),
            num_warps=APPLY_FORWARD.warps,
        )
        ctx.save_for_backward(x, weight, bias, other, weight2, bias2, y, saved)
        ctx.kind = kind
        ctx.set_materialize_grads(False)
        return y, y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight, bias, other, weight2, bias2, y, saved = ctx.saved_tensors
        kind, given = ctx.kind, [_last(g.to(x.dtype)) for g in grads if g is not None]
        if not given:
            return (None,) * 8
        dx, dy = torch.empty_like(x), torch.empty_like(x) if kind == SHORTCUT else x
        dx2 = torch.empty_like(x) if kind == PROJECTED else x
        norms = (x, weight, bias, saved[0], other, weight2, bias2, saved[1])
        how, both = (given[0], given[-1]), len(given) == 2
        grid, rows, width = _grid(x, SUM_BACKWARD)
        partial = torch.empty(grid[0], 3, width, dtype=torch.float32, device=x.device)
        found = torch.empty(4, width, dtype=torch.float32, device=x.device)  # gradients of both weights and biases
        _sum_backward[grid](  # pyright: ignore[reportIndexIssue]
            *(*how, y, dy, *norms, partial, rows, width, kind, both, _fold(SUM_BACKWARD), SUM_BACKWARD.rows, CHANNELS),
            num_warps=SUM_BACKWARD.warps,
        )
        grid, rows, width = _grid(x, APPLY_BACKWARD)
        _apply_backward[grid](  # pyright: ignore[reportIndexIssue]
            *(*how, dy, *norms, partial, dx, dx2, found, rows, width, *_parts(partial)),
            *(kind, both, APPLY_BACKWARD.rows, CHANNELS),
            num_warps=APPLY_BACKWARD.warps,
        )
        if kind == PROJECTED:
            return dx, found[0], found[1], None, dx2, found[2], found[3], None
        return dx, found[0], found[1], None, dy if kind == SHORTCUT else None, None, None, None


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _grid(x: Tensor, launch: Launch) -> tuple[tuple[int, int], int, int]:
    """Programs (parts of the rows, blocks of the channels), rows, channels."""
    rows, width = x.numel() // x.shape[1], x.shape[1]
    blocks = width // CHANNELS
    return (max(1, min(launch.programs // blocks, -(-rows // launch.rows))), blocks), rows, width


def _fold(launch: Launch) -> int:
    """Rows of a tile that one thread holds, 8 channels each (16 bytes in half precision)."""
    return max(1, launch.rows * CHANNELS // (8 * 32 * launch.warps))


def _parts(partial: Tensor) -> tuple[int, int]:
    """How many parts there are to add, and the power of two that holds them."""
    return len(partial), triton.next_power_of_2(len(partial))


def _moments(x: Tensor) -> Tensor:
    """Sums of x - x[0] and of its square, over the rows of each part: parts x 2 x C."""
    grid, rows, width = _grid(x, SUM_FORWARD)
    partial = torch.empty(grid[0], 2, width, dtype=torch.float32, device=x.device)
    _sum_forward[grid](  # pyright: ignore[reportIndexIssue]
        *(x, partial, rows, width, _fold(SUM_FORWARD), SUM_FORWARD.rows, CHANNELS), num_warps=SUM_FORWARD.warps
    )
    return partial


if HAVE_TRITON:

    @triton.jit
    def _tile(x, r, c, rows, width):
        """Rows r and channels c of x, zero beyond the last row."""
        return tl.load(x + r[:, None] * width + c[None, :], mask=r[:, None] < rows, other=0.0)

    @triton.jit
    def _put(x, r, c, rows, width, value):
        tl.store(x + r[:, None] * width + c[None, :], value, mask=r[:, None] < rows)

    @triton.jit
    def _folded(v, S: tl.constexpr):
        """R x C to R/S x C: the sum of the S rows that a thread holds, without leaving its registers."""
        return tl.sum(tl.reshape(v, [S, v.shape[0] // S, v.shape[1]]), axis=0)

    @triton.jit
    def _part(partial, which, many: tl.constexpr, width, c, parts, P: tl.constexpr):
        """partial[:, which, c], P x C, zero beyond the last part; its sum over the parts is what was asked for."""
        p = tl.arange(0, P)
        return tl.load(partial + (p[:, None] * many + which) * width + c[None, :], mask=p[:, None] < parts, other=0.0)

    # In all four the next tile is asked for before this one is used (and the first before anything else): memory is
    # then never idle for long.

    @triton.jit
    def _sum_forward(x, partial, rows, width, S: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
        part, stride = tl.program_id(0), tl.num_programs(0) * R
        r, c = part * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
        v = _tile(x, r, c, rows, width)
        pivot = tl.load(x + c).to(tl.float32)  # any value near the others keeps the squares small
        total, squares = tl.zeros([R // S, C], tl.float32), tl.zeros([R // S, C], tl.float32)
        for _ in range(part * R, rows, stride):
            following = _tile(x, r + stride, c, rows, width)
            d = tl.where(r[:, None] < rows, v.to(tl.float32) - pivot[None, :], 0.0)
            total += _folded(d, S)
            squares += _folded(d * d, S)
            v = following
            r += stride
        tl.store(partial + (part * 2) * width + c, tl.sum(total, axis=0))
        tl.store(partial + (part * 2 + 1) * width + c, tl.sum(squares, axis=0))

    @triton.jit
    def _scale_shift(
        x, weight, bias, partial, saved, average, spread, count, momentum, eps, rows, width, c, parts, P: tl.constexpr
    ):
        """scale, shift of the norm of channels c; the first part keeps what backward and evaluation need."""
        total, squares = _part(partial, 0, 2, width, c, parts, P), _part(partial, 1, 2, width, c, parts, P)
        pivot, weight, bias = tl.load(x + c).to(tl.float32), tl.load(weight + c), tl.load(bias + c)
        off = tl.sum(total, axis=0) / rows
        var = tl.maximum(tl.sum(squares, axis=0) / rows - off * off, 0.0)
        mean = pivot + off
        inverse = 1.0 / tl.sqrt(var + eps)
        if tl.program_id(0) == 0:
            tl.store(saved + c, mean)
            tl.store(saved + width + c, inverse)
            tl.store(average + c, (1.0 - momentum) * tl.load(average + c) + momentum * mean)
            unbiased = var * (rows / (rows - 1.0))
            tl.store(spread + c, (1.0 - momentum) * tl.load(spread + c) + momentum * unbiased)
            if tl.program_id(1) == 0:
                tl.store(count, tl.load(count) + 1)
        scale = weight * inverse
        return scale, bias - mean * scale

    @triton.jit
    def _apply_forward(
        y,
        x,
        weight,
        bias,
        partial,
        saved,
        average,
        spread,
        count,
        x2,
        weight2,
        bias2,
        partial2,
        saved2,
        average2,
        spread2,
        count2,
        momentum,
        eps,
        rows,
        width,
        parts,
        P: tl.constexpr,
        KIND: tl.constexpr,
        R: tl.constexpr,
        C: tl.constexpr,
    ):
        first, stride = tl.program_id(0) * R, tl.num_programs(0) * R
        r, c = first + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
        a = _tile(x, r, c, rows, width)
        b = a
        if KIND > 0:
            b = _tile(x2, r, c, rows, width)
        scale, shift = _scale_shift(
            x, weight, bias, partial, saved, average, spread, count, momentum, eps, rows, width, c, parts, P
        )
        scale2 = scale
        if KIND == 2:
            scale2, shift2 = _scale_shift(
                x2, weight2, bias2, partial2, saved2, average2, spread2, count2, momentum, eps, rows, width, c, parts, P
            )
            shift += shift2
        for _ in range(first, rows, stride):
            next_a = _tile(x, r + stride, c, rows, width)
            next_b = next_a
            if KIND > 0:
                next_b = _tile(x2, r + stride, c, rows, width)
            v = a.to(tl.float32) * scale[None, :] + shift[None, :]
            if KIND == 1:
                v += b.to(tl.float32)
            if KIND == 2:
                v += b.to(tl.float32) * scale2[None, :]
            _put(y, r, c, rows, width, tl.maximum(v, 0.0))
            a, b = next_a, next_b
            r += stride

    @triton.jit
    def _norm(weight, bias, saved, width, c):
        """mean, 1/deviation, scale, shift of channels c, as they were forward."""
        mean, inverse = tl.load(saved + c), tl.load(saved + width + c)
        scale = tl.load(weight + c) * inverse
        return mean, inverse, scale, tl.load(bias + c) - mean * scale

    @triton.jit
    def _sum_backward(
        g,
        g2,
        y,
        dy,
        x,
        weight,
        bias,
        saved,
        x2,
        weight2,
        bias2,
        saved2,
        partial,
        rows,
        width,
        KIND: tl.constexpr,
        BOTH: tl.constexpr,
        S: tl.constexpr,
        R: tl.constexpr,
        C: tl.constexpr,
    ):
        part, stride = tl.program_id(0), tl.num_programs(0) * R
        r, c = part * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
        more = y if KIND == 1 else x2  # what else is read: with a plain shortcut y tells where it was cut
        u, a = _tile(g, r, c, rows, width), _tile(x, r, c, rows, width)
        u2, b = u, a
        if BOTH:
            u2 = _tile(g2, r, c, rows, width)
        if KIND > 0:
            b = _tile(more, r, c, rows, width)
        mean, inverse, scale, shift = _norm(weight, bias, saved, width, c)
        mean2, inverse2, scale2 = mean, inverse, scale
        if KIND == 2:
            mean2, inverse2, scale2, shift2 = _norm(weight2, bias2, saved2, width, c)
            shift += shift2
        total, with_x = tl.zeros([R // S, C], tl.float32), tl.zeros([R // S, C], tl.float32)
        with_x2 = total
        for _ in range(part * R, rows, stride):
            next_u, next_a = _tile(g, r + stride, c, rows, width), _tile(x, r + stride, c, rows, width)
            next_u2, next_b = next_u, next_a
            if BOTH:
                next_u2 = _tile(g2, r + stride, c, rows, width)
            if KIND > 0:
                next_b = _tile(more, r + stride, c, rows, width)
            v, d = u.to(tl.float32), a.to(tl.float32)
            if BOTH:
                v += u2.to(tl.float32)
            if KIND == 0:
                v = tl.where(d * scale[None, :] + shift[None, :] > 0, v, 0.0)
            if KIND == 1:
                v = tl.where(b.to(tl.float32) > 0, v, 0.0)
                _put(dy, r, c, rows, width, v)
            if KIND == 2:
                e = b.to(tl.float32)
                v = tl.where(d * scale[None, :] + shift[None, :] + e * scale2[None, :] > 0, v, 0.0)
                with_x2 += _folded(v * (e - mean2[None, :]), S)
            total += _folded(v, S)  # rows that are not there have no gradient
            with_x += _folded(v * (d - mean[None, :]), S)
            u, u2, a, b = next_u, next_u2, next_a, next_b
            r += stride
        tl.store(partial + (part * 3) * width + c, tl.sum(total, axis=0))
        tl.store(partial + (part * 3 + 1) * width + c, tl.sum(with_x, axis=0) * inverse)
        if KIND == 2:
            tl.store(partial + (part * 3 + 2) * width + c, tl.sum(with_x2, axis=0) * inverse2)

    @triton.jit
    def _apply_backward(
        g,
        g2,
        dy,
        x,
        weight,
        bias,
        saved,
        x2,
        weight2,
        bias2,
        saved2,
        partial,
        dx,
        dx2,
        found,
        rows,
        width,
        parts,
        P: tl.constexpr,
        KIND: tl.constexpr,
        BOTH: tl.constexpr,
        R: tl.constexpr,
        C: tl.constexpr,
    ):
        part, stride = tl.program_id(0), tl.num_programs(0) * R
        r, c = part * R + tl.arange(0, R), tl.program_id(1) * C + tl.arange(0, C)
        from_y = dy if KIND == 1 else g  # with a plain shortcut the sums left the gradient behind the ReLU
        u, a = _tile(from_y, r, c, rows, width), _tile(x, r, c, rows, width)
        u2, b = u, a
        if BOTH and KIND != 1:
            u2 = _tile(g2, r, c, rows, width)
        if KIND == 2:
            b = _tile(x2, r, c, rows, width)
        sums, products = _part(partial, 0, 3, width, c, parts, P), _part(partial, 1, 3, width, c, parts, P)
        mean, inverse, scale, shift = _norm(weight, bias, saved, width, c)
        total, with_x = tl.sum(sums, axis=0), tl.sum(products, axis=0)
        mean2, inverse2, scale2, with_x2 = mean, inverse, scale, with_x
        if KIND == 2:
            with_x2 = tl.sum(_part(partial, 2, 3, width, c, parts, P), axis=0)
            mean2, inverse2, scale2, shift2 = _norm(weight2, bias2, saved2, width, c)
            shift += shift2
        if part == 0:
            tl.store(found + c, with_x)
            tl.store(found + width + c, total)
            if KIND == 2:
                tl.store(found + 2 * width + c, with_x2)
                tl.store(found + 3 * width + c, total)
        # dx = scale (dy - total/R - xhat with_x/R) = scale dy + slope x + offset
        slope = -scale * inverse * with_x / rows
        offset = -scale * total / rows - slope * mean
        slope2 = -scale2 * inverse2 * with_x2 / rows
        offset2 = -scale2 * total / rows - slope2 * mean2
        for _ in range(part * R, rows, stride):
            next_u, next_a = _tile(from_y, r + stride, c, rows, width), _tile(x, r + stride, c, rows, width)
            next_u2, next_b = next_u, next_a
            if BOTH and KIND != 1:
                next_u2 = _tile(g2, r + stride, c, rows, width)
            if KIND == 2:
                next_b = _tile(x2, r + stride, c, rows, width)
            v, d = u.to(tl.float32), a.to(tl.float32)
            if BOTH and KIND != 1:
                v += u2.to(tl.float32)
            if KIND == 0:
                v = tl.where(d * scale[None, :] + shift[None, :] > 0, v, 0.0)
            if KIND == 2:
                e = b.to(tl.float32)
                v = tl.where(d * scale[None, :] + shift[None, :] + e * scale2[None, :] > 0, v, 0.0)
                _put(dx2, r, c, rows, width, scale2[None, :] * v + slope2[None, :] * e + offset2[None, :])
            _put(dx, r, c, rows, width, scale[None, :] * v + slope[None, :] * d + offset[None, :])
            u, u2, a, b = next_u, next_u2, next_a, next_b
            r += stride
