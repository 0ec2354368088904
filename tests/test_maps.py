"""The method's maps: values, gradients, and the row that is all zero."""

import pytest
import torch
import torch.nn.functional as F

from nonneg import losses, maps, names
from nonneg.encoder import MAP

NON_NEGATIVE = ["relu", "rep_relu", "softplus", "sigmoid", "exp"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rep_relu_is_relu_forward_gelu_backward(dtype: torch.dtype) -> None:
    z = (torch.randn(5000, generator=torch.Generator().manual_seed(0)) * 4).to(dtype).requires_grad_()
    out = maps.rep_relu(z)
    assert torch.equal(out, F.relu(z))
    (got,) = torch.autograd.grad(out.sum(), z)
    (want,) = torch.autograd.grad(F.gelu(z).sum(), z)
    assert torch.equal(got, want)


def test_the_paper_s_unbracketed_line_is_not_exactly_relu() -> None:
    z = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(F.relu(z) + F.gelu(z) - F.gelu(z), F.relu(z))  # why the brackets are there


@pytest.mark.parametrize("name", NON_NEGATIVE)
def test_non_negative_and_finite_with_finite_gradient(name: str) -> None:
    z = torch.linspace(-200, 200, 4001).requires_grad_()
    out = names.find(name, MAP)(z)
    out.sum().backward()
    assert (out >= 0).all() and out.isfinite().all() and out.square().sum().isfinite()
    assert z.grad is not None and z.grad.isfinite().all()


def test_only_the_relus_give_exact_zeros() -> None:
    z = torch.linspace(-3, 3, 100)
    zeros = {n: int((names.find(n, MAP)(z) == 0).sum()) for n in ["identity", *NON_NEGATIVE]}
    assert zeros == {"identity": 0, "relu": 50, "rep_relu": 50, "softplus": 0, "sigmoid": 0, "exp": 0}


def test_every_map_is_found_by_name() -> None:
    assert set(MAP.functions()) == {"identity", *NON_NEGATIVE}


@pytest.mark.parametrize("name", ["relu", "rep_relu"])
def test_gradient_is_bounded_when_a_row_is_all_zero(name: str) -> None:
    """F.normalize would multiply this row's gradient by 1e12."""
    pre = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    pre[3] = -pre[3].abs() - 0.1  # every unit of sample 3 is off
    pre.requires_grad_()
    z = names.find(name, MAP)(pre)
    assert (z[3] == 0).all()
    loss = losses.info_nce(z[:4], z[4:], temperature=0.05)
    (gradient,) = torch.autograd.grad(loss, pre)
    assert loss.isfinite() and gradient.isfinite().all()
    others = torch.cat([gradient[:3], gradient[4:]]).norm(dim=1).max()
    assert gradient[3].norm() <= 200 * others
    assert (gradient[3] != 0).any() == (name == "rep_relu")  # the off row learns only with GELU's gradient
