"""Losses are pure functions of two views' features, `(z1, z2, *, knobs) -> scalar`; those of (z1, z2, labels) are
given the labels too.

Shapes: z1, z2 are N x D; row i of both comes from the same image (or, by choice, from two of one class; or z1 from an
image and z2 from its text); labels are N.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nonneg.errors import BadInput


def unit_rows(z: Tensor, *, floor: float = 0.01) -> Tensor:
    """Each row divided by its length, or by `floor` times the mean length of all rows where it is shorter than that.

    The floor is for rows that are zero (every unit off): they stay zero, and the gradient they pass is bounded by
    1 / (floor x mean length) instead of 1e12 times everyone else's. It is at least 1e-4, where all rows are short.
    """
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    least = (floor * length.detach().mean()).clamp_min(1e-4)
    return z / torch.maximum(length, least)


def cut_rows(z: Tensor, length: float) -> Tensor:
    """Each row as it is, or brought to `length` where it is longer."""
    return z * (length / torch.linalg.vector_norm(z, dim=1, keepdim=True).clamp_min(length))


def _check_views(z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> None:
    """Refuse what would broadcast into a wrong number: features of other rows or columns, labels of another shape."""
    if z1.ndim != 2 or z1.shape != z2.shape:
        shapes = f"{tuple(z1.shape)} and {tuple(z2.shape)}"
        raise BadInput(
            f"z1 and z2 have the shapes {shapes}; both must be N x D, row i of one beside row i of the other"
        )
    if labels is not None and labels.shape != z1.shape[:1]:
        raise BadInput(f"labels have the shape {tuple(labels.shape)}; give one for each of the {len(z1)} rows")


def info_nce(z1: Tensor, z2: Tensor, *, temperature: float = 0.2) -> Tensor:
    """NT-Xent: -mean_i log( exp(s_ip / T) / sum_{j != i} exp(s_ij / T) ) over all 2N views, s the cosine, p i's twin.

    Computed in float32 at least: at T = 0.05 a bfloat16 logit would be off by 0.06.
    """
    if not temperature > 0:
        raise BadInput(f"info_nce: temperature is {temperature}; it must be positive")
    _check_views(z1, z2)
    with torch.autocast(z1.device.type, enabled=False):
        z = torch.cat([z1, z2])
        z = unit_rows(z.to(torch.promote_types(z.dtype, torch.float32)))
        logits = z @ z.T / temperature
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        twin = torch.arange(len(z), device=z.device).roll(len(z1))
        return F.cross_entropy(logits.masked_fill(itself, -torch.inf), twin)


def supcon(z1: Tensor, z2: Tensor, labels: Tensor, *, temperature: float = 0.2) -> Tensor:
    """-mean_i mean_{p in P(i)} log( exp(s_ip / T) / sum_{j != i} exp(s_ij / T) ) over all 2N views, s the cosine.

    P(i) are all other views of i's class (Khosla et al. 2020, the sum outside the logarithm); where every image is a
    class of its own, this is info_nce. Computed in float32 at least.
    """
    if not temperature > 0:
        raise BadInput(f"supcon: temperature is {temperature}; it must be positive")
    _check_views(z1, z2, labels)
    with torch.autocast(z1.device.type, enabled=False):
        z = torch.cat([z1, z2])
        z = unit_rows(z.to(torch.promote_types(z.dtype, torch.float32)))
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        y = torch.cat([labels, labels])
        positive = (y[:, None] == y) & ~itself
        log_share = (z @ z.T / temperature).masked_fill(itself, -torch.inf).log_softmax(dim=1)
        return -(log_share.masked_fill(~positive, 0).sum(dim=1) / positive.sum(dim=1)).mean()


def clip(z1: Tensor, z2: Tensor, *, temperature: float | Tensor = 0.07) -> Tensor:
    """-1/2 mean_i [ log softmax_j(s_ij / T)_i + log softmax_j(s_ji / T)_i ], s_ij the cosine of z1_i and z2_j.

    Radford et al.'s symmetric InfoNCE between two kinds of data, images and texts: a row is told from the rows of the
    other kind, never from its own. T may be a tensor that is learned.
    """
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise BadInput(f"clip: temperature is {temperature}; it must be positive")
    _check_views(z1, z2)
    with torch.autocast(z1.device.type, enabled=False):
        kind = torch.promote_types(z1.dtype, torch.float32)
        logits = unit_rows(z1.to(kind)) @ unit_rows(z2.to(kind)).T / temperature
        twin = torch.arange(len(z1), device=z1.device)
        return (F.cross_entropy(logits, twin) + F.cross_entropy(logits.T, twin)) / 2


def spectral(z1: Tensor, z2: Tensor, *, l1: float = 0.0, normalise: bool = False, mu: float = math.inf) -> Tensor:
    """-2 mean_i z1_i.z2_i + mean_{i != j} (z1_i.z2_j)^2 + l1 mean_i |z_i|_1: HaoChen et al.'s loss, and a penalty.

    Pairs of one image are left out of the second term, so that it is an unbiased estimate of E_x E_x' (f(x).f(x'))^2.
    The length of features has a meaning here (it estimates probabilities), so rows are normalised only if asked; for
    the same reason it wants AdamW (`run.recipe`): with LARS at info_nce's rates non-negative features collapse. `mu`
    cuts rows to the length sqrt(mu), as HaoChen et al.'s code does (1 on CIFAR-10, 10 on ImageNet): without it many of
    the non-negative features die (docs/scenarios.md).
    With z1 of images and z2 of their texts it is the paper's asymmetric loss, by which the two sides factorise
    P(image, text).
    """
    if not l1 >= 0:
        raise BadInput(f"spectral: l1 is {l1}; it must not be negative")
    if not mu > 0:
        raise BadInput(f"spectral: mu is {mu}; it must be positive")
    _check_views(z1, z2)
    if len(z1) < 2:
        raise BadInput(f"spectral needs two images at least in a batch, to compare one with another; it has {len(z1)}")
    with torch.autocast(z1.device.type, enabled=False):
        kind = torch.promote_types(z1.dtype, torch.float32)
        z1, z2 = (unit_rows(z.to(kind)) if normalise else z.to(kind) for z in (z1, z2))
        z1, z2 = (cut_rows(z, math.sqrt(mu)) if mu < math.inf else z for z in (z1, z2))
        gram, n = z1 @ z2.T, len(z1)
        own = gram.diagonal()
        others = (gram.square().sum() - own.square().sum()) / (n * (n - 1))
        loss = others - 2 * own.mean()
        return loss + l1 * (z1.abs().sum() + z2.abs().sum()) / (2 * n) if l1 else loss
