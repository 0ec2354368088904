"""Losses are pure functions of two views' features, `(z1, z2, *, knobs) -> scalar`.

Shapes: z1, z2 are N x D; row i of both comes from the same image.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nonneg.errors import BadInput


def unit_rows(z: Tensor, *, floor: float = 0.01) -> Tensor:
    """Each row divided by its length, or by `floor` times the mean length of all rows where it is shorter than that.

    The floor is for rows that are zero (every unit off): they stay zero, and the gradient they pass is bounded by
    1 / (floor x mean length) instead of 1e12 times everyone else's.
    """
    length = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    least = (floor * length.detach().mean()).clamp_min(1e-4)
    return z / torch.maximum(length, least)


def info_nce(z1: Tensor, z2: Tensor, *, temperature: float = 0.2) -> Tensor:
    """NT-Xent: -mean_i log( exp(s_ip / T) / sum_{j != i} exp(s_ij / T) ) over all 2N views, s the cosine, p i's twin.

    Computed in float32 at least: at T = 0.05 a bfloat16 logit would be off by 0.06.
    """
    if not temperature > 0:
        raise BadInput(f"info_nce: temperature is {temperature}; it must be positive")
    with torch.autocast(z1.device.type, enabled=False):
        z = torch.cat([z1, z2])
        z = unit_rows(z.to(torch.promote_types(z.dtype, torch.float32)))
        logits = z @ z.T / temperature
        itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
        twin = torch.arange(len(z), device=z.device).roll(len(z1))
        return F.cross_entropy(logits.masked_fill(itself, -torch.inf), twin)
