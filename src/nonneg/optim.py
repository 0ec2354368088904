"""Optimisers and the schedule, all without host synchronisation: learning rates are tensors on the device.

Every function `(params, *, lr, weight_decay, knobs) -> Optimizer` is a choice for `--optimizer`.
"""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nonneg.errors import BadInput


class LARS(Optimizer):
    """You et al. 2017 as the paper's authors run it: g <- trust x (g + wd p) for matrices, then heavy-ball momentum.

    trust = clip(0.02 |p| / (|g| + wd |p|) / lr, max 1), or 1 where p = 0; 1-D parameters (biases, batch norm) are
    neither scaled nor decayed, nor is a matrix whose gradient is zero.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], *, lr: Tensor, weight_decay: float, momentum: float, trust: float
    ):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "trust": trust})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            buffers = [self.state[p]["momentum_buffer"] for p in params]
            scaled = [i for i, p in enumerate(params) if p.ndim > 1]
            if scaled:
                p2, g2 = [params[i] for i in scaled], [grads[i] for i in scaled]
                decayed = torch._foreach_add(g2, p2, alpha=group["weight_decay"])
                torch._foreach_mul_(decayed, self._trust(p2, g2, group))
                for i, g in zip(scaled, decayed, strict=True):
                    grads[i] = g
            torch._foreach_mul_(buffers, group["momentum"])
            torch._foreach_add_(buffers, grads)
            torch._foreach_add_(params, torch._foreach_mul(buffers, -group["lr"]))

    @staticmethod
    def _trust(params: list[Tensor], grads: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """One ratio per parameter, by list operations only: compiled, they are one kernel."""
        length = torch._foreach_norm(params)
        slope = torch._foreach_norm(grads)
        below = torch._foreach_add(slope, length, alpha=group["weight_decay"])
        torch._foreach_add_(below, 1e-8)
        ratio = torch._foreach_div(length, below)
        torch._foreach_mul_(ratio, group["trust"] / group["lr"].clamp_min(1e-12))
        torch._foreach_clamp_max_(ratio, 1.0)
        at_zero = torch._foreach_neg(torch._foreach_sign(length))
        torch._foreach_add_(at_zero, 1.0)  # 1 where the parameter is all zero and there is no ratio; else 0
        torch._foreach_maximum_(ratio, at_zero)
        torch._foreach_mul_(ratio, torch._foreach_sign(slope))  # 0 where the gradient is: what is decayed is taken off
        return list(ratio)


def lars(
    params: Iterable[nn.Parameter], *, lr: Tensor, weight_decay: float, momentum: float = 0.9, trust: float = 0.02
) -> Optimizer:
    """LARS, the paper's choice."""
    if not (trust > 0 and 0 <= momentum < 1):
        raise BadInput(f"lars: trust must be positive and momentum in [0, 1); they are {trust} and {momentum}")
    return LARS(params, lr=lr, weight_decay=weight_decay, momentum=momentum, trust=trust)


def sgd(params: Iterable[nn.Parameter], *, lr: Tensor, weight_decay: float, momentum: float = 0.9) -> Optimizer:
    """Stochastic gradient descent with momentum."""
    if not momentum >= 0:
        raise BadInput(f"sgd: momentum is {momentum}; it must not be negative")
    return torch.optim.SGD(params, lr=lr, weight_decay=weight_decay, momentum=momentum, fused=True)  # pyright: ignore[reportArgumentType]


def adamw(params: Iterable[nn.Parameter], *, lr: Tensor, weight_decay: float) -> Optimizer:
    """AdamW, the quick one: good for small nets on a CPU."""
    on_gpu = lr.device.type == "cuda"  # there it counts its steps on the device, or a CUDA graph cannot record it
    return torch.optim.AdamW(params, lr=lr, weight_decay=weight_decay, fused=True, capturable=on_gpu)


def warmup_cosine(step: Tensor, *, peak: float, warmup: int, total: int, start: float = 3e-5) -> Tensor:
    """The learning rate at `step`: linear from `start` to `peak` over `warmup` steps, then half a cosine to 0.

    A peak below `start` is held from the first step: no warm-up begins above it.
    """
    start, t = min(start, peak), step.to(torch.float32)
    rising = start + (peak - start) * t / max(warmup, 1)
    falling = 0.5 * peak * (1 + torch.cos(math.pi * ((t - warmup) / max(total - warmup, 1)).clamp(0, 1)))
    return torch.where(t < warmup, rising, falling)
