"""The method: what stands at the end of the projector. `identity` is contrastive learning (CL); every other map
makes the features non-negative (NCL)."""

import torch
import torch.nn.functional as F
from torch import Tensor

EXP_LIMIT = 40.0  # exp(40)^2 is still finite in float32, and the square of a row of up to 6,000 such features


def identity(z: Tensor) -> Tensor:
    """No constraint: the baseline, plain contrastive learning."""
    return z


def relu(z: Tensor) -> Tensor:
    """max(z, 0): exact zeros, but a unit that is off for every sample never learns again."""
    return F.relu(z)


def rep_relu(z: Tensor) -> Tensor:
    """ReLU forward, GELU backward: exact zeros, yet units that are off still learn."""
    smooth = F.gelu(z)
    return F.relu(z).detach() + (smooth - smooth.detach())  # the brackets keep the values exactly ReLU's


def softplus(z: Tensor) -> Tensor:
    """log(1 + exp(z)): positive everywhere, never exactly zero."""
    return F.softplus(z)


def sigmoid(z: Tensor) -> Tensor:
    """1 / (1 + exp(-z)): positive and at most one, never exactly zero."""
    return torch.sigmoid(z)


def exp(z: Tensor) -> Tensor:
    """exp(z), the argument cut at 40 so that the feature's square stays finite."""
    return torch.exp(z.clamp(max=EXP_LIMIT))
