"""LARS against the authors' rule written out one parameter at a time; the schedule against its formula."""

import math

import pytest
import torch
from torch import nn

from nonneg import names, optim
from nonneg.run import ROLES


def lars_by_hand(p, g, buffer, *, lr, weight_decay, momentum=0.9, trust=0.02):
    if p.ndim > 1:
        p_norm, g_norm = p.norm().item(), g.norm().item()
        if p_norm > 0 and g_norm > 0:
            scale = min(trust * p_norm / (g_norm + weight_decay * p_norm + 1e-8) / lr, 1.0)
            g = (g + weight_decay * p) * scale
    buffer = momentum * buffer + g
    return p - lr * buffer, buffer


@pytest.mark.parametrize("lr", [0.001, 0.4])
def test_lars_matches_the_rule_one_parameter_at_a_time(lr: float) -> None:
    g = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (7,), (2, 3, 3, 3), (5, 5)]
    params = [nn.Parameter(torch.randn(s, generator=g, dtype=torch.float64)) for s in shapes]
    params[3].data.zero_()  # a matrix at zero is not scaled
    still = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))  # one whose gradient is zero is not decayed either
    params.append(still)
    ours = optim.lars(params, lr=torch.tensor(lr, dtype=torch.float64), weight_decay=0.2)
    want = [(p.detach().clone(), torch.zeros_like(p)) for p in params]
    for _ in range(4):
        for i, p in enumerate(params):
            p.grad = torch.randn(p.shape, generator=g, dtype=torch.float64) * (
                0.0 if p is still else 0.01 if i == 0 else 1
            )
            want[i] = lars_by_hand(*(want[i][0], p.grad, want[i][1]), lr=lr, weight_decay=0.2)
        ours.step()
    for p, (w, _) in zip(params, want, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=1e-9, atol=1e-12)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    ours = optim.lars([a, b], lr=torch.tensor(0.1), weight_decay=0.1)
    a.grad = torch.ones(2, 2)
    ours.step()
    assert not torch.equal(a, torch.ones(2, 2)) and torch.equal(b, torch.ones(2, 2))


@pytest.mark.parametrize("name", ["lars", "sgd", "adamw"])
def test_every_optimizer_follows_a_learning_rate_that_is_a_tensor(name: str) -> None:
    p, lr = nn.Parameter(torch.ones(3, 3)), torch.tensor(0.0)
    ours = names.find(name, ROLES["optimizer"])([p], lr=lr, weight_decay=0.0)
    p.grad = torch.ones(3, 3)
    ours.step()
    assert torch.equal(p, torch.ones(3, 3))
    lr.fill_(0.1)
    ours.step()
    assert (p < 1).all()


def test_sgd_and_adamw_match_torch_with_a_plain_number() -> None:
    for name, plain in (
        ("sgd", lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.01)),
        ("adamw", lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.01)),
    ):
        a, b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        ours, theirs = names.find(name, ROLES["optimizer"])([a], lr=torch.tensor(0.1), weight_decay=0.01), plain([b])
        for k in range(3):
            a.grad, b.grad = torch.full((3,), k + 1.0), torch.full((3,), k + 1.0)
            ours.step()
            theirs.step()
        torch.testing.assert_close(a, b)


def test_warm_up_then_cosine_to_zero() -> None:
    def at(t: int) -> float:
        return optim.warmup_cosine(torch.tensor(t), peak=0.4, warmup=10, total=110).item()

    assert at(0) == pytest.approx(3e-5)
    assert at(5) == pytest.approx(3e-5 + (0.4 - 3e-5) / 2)
    assert at(10) == pytest.approx(0.4)
    assert at(60) == pytest.approx(0.2)
    assert at(85) == pytest.approx(0.2 * (1 + math.cos(0.75 * math.pi)))
    assert at(110) == at(150) == pytest.approx(0, abs=1e-7)
    assert optim.warmup_cosine(torch.tensor(0), peak=1.0, warmup=0, total=10).item() == pytest.approx(1.0)


def test_no_warm_up_begins_above_a_small_peak() -> None:
    steps = torch.arange(10)
    assert optim.warmup_cosine(steps, peak=1e-6, warmup=4, total=10).max().item() == pytest.approx(1e-6)
