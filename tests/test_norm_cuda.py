"""The fused kernels against torch's batch norm, addition and ReLU: on a GPU, or in Triton's interpreter."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nonneg import backbones, norm_cuda

DEVICE = "cpu" if norm_cuda.INTERPRETED or not torch.cuda.is_available() else "cuda"
TYPES = [torch.float32] if norm_cuda.INTERPRETED else [torch.float32, torch.bfloat16]
kernel = pytest.mark.skipif(
    not norm_cuda.serves(torch.zeros(2, 64, 1, 1, device=DEVICE), nn.BatchNorm2d(64)),  # one row has no variance
    reason="needs Triton, and a GPU or TRITON_INTERPRET=1",
)


def images(n: int, width: int, side: int, *, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, side, side, generator=g) * 2 + torch.arange(width).view(1, -1, 1, 1) / width
    return x.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last)


def norm(width: int, *, seed: int) -> nn.BatchNorm2d:
    g, bn = torch.Generator().manual_seed(seed), nn.BatchNorm2d(width)
    with torch.no_grad():
        bn.weight.copy_(torch.rand(width, generator=g) + 0.5)
        bn.bias.copy_(torch.randn(width, generator=g))
    return bn.to(DEVICE)


def plainly(x: Tensor, bn: nn.BatchNorm2d, other: Tensor | None, other_bn: nn.BatchNorm2d | None) -> Tensor:
    """In double precision, from the same values."""
    y = bn(x.double())
    if other is not None:
        y = y + (other_bn(other.double()) if other_bn else other.double())
    return F.relu(y)


@kernel
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["plain", "shortcut", "projected"])
@pytest.mark.parametrize(("n", "width", "side"), [(3, 64, 5), (40, 128, 8), (2, 256, 3)])
@pytest.mark.parametrize("readers", [1, 2])
def test_values_gradients_and_statistics_are_torchs(
    n: int, width: int, side: int, kind: str, dtype: torch.dtype, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUM_FORWARD", "APPLY_FORWARD", "SUM_BACKWARD", "APPLY_BACKWARD"):
        few = getattr(norm_cuda, name)._replace(programs=6, rows=64)
        monkeypatch.setattr(norm_cuda, name, few)  # so that programs take several tiles, and some fewer than others
    x = images(n, width, side, seed=0, dtype=dtype).requires_grad_()
    other = images(n, width, side, seed=1, dtype=dtype).requires_grad_() if kind != "plain" else None
    bn, bn2 = norm(width, seed=2), norm(width, seed=3) if kind == "projected" else None
    slow, slow2 = copy.deepcopy(bn).double(), copy.deepcopy(bn2).double() if bn2 else None
    weigh = [images(n, width, side, seed=4 + i, dtype=dtype) for i in range(2)]

    first, second = norm_cuda.norm_relu(x, bn, other, bn2)
    ours = (first * weigh[0]).sum() + ((second * weigh[1]).sum() if readers == 2 else 0)
    leaves = [t for t in (x, other) if t is not None]
    params = [p for m in (bn, bn2) if m for p in m.parameters()]
    got = torch.autograd.grad(ours, leaves + params)

    y = plainly(x, slow, other, slow2)
    theirs = (y * weigh[0].double()).sum() + ((y * weigh[1].double()).sum() if readers == 2 else 0)
    want = torch.autograd.grad(theirs, leaves + [p for m in (slow, slow2) if m for p in m.parameters()])

    close = 1e-4 if dtype == torch.float32 else 2e-2
    assert first.dtype == dtype and torch.equal(first, second)
    torch.testing.assert_close(first.double(), y, rtol=close, atol=close)
    for a, b in zip(got, want, strict=True):
        scale = float(b.abs().max())
        bad = (a.double() - b.double()).abs() > close * scale
        assert bad.double().mean() <= (0 if dtype == torch.float32 else 1e-3)  # a cut at zero may fall either way
    for ours_bn, slow_bn in ((bn, slow), (bn2, slow2)):
        if ours_bn is None or slow_bn is None:
            continue
        for name, buffer in ours_bn.named_buffers():
            torch.testing.assert_close(
                buffer.double(), slow_bn.get_buffer(name).double(), rtol=1e-4, atol=1e-5, msg=name
            )


@kernel
def test_far_from_zero_the_variance_is_still_right() -> None:
    x, bn = images(8, 64, 8, seed=0) + 1000, norm(64, seed=1)
    want = F.relu(F.batch_norm(x.double(), None, None, bn.weight.double(), bn.bias.double(), True))
    torch.testing.assert_close(norm_cuda.norm_relu(x, bn)[0].double(), want, rtol=1e-3, atol=1e-3)


@kernel
def test_the_same_input_gives_the_same_bits() -> None:
    x = images(50, 64, 8, seed=0).requires_grad_()
    first, second = (norm_cuda.norm_relu(x, norm(64, seed=1))[0] for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (first, second)))


@kernel
@pytest.mark.parametrize(("pad", "width"), [(1, 64), (2, 64), (1, 16)])  # of 16, the kernels serve the last two stages
def test_a_network_learns_the_same_from_both(pad: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    net = backbones.resnet18(3, pad=pad, width=width).to(DEVICE)
    twin = copy.deepcopy(net)
    x = images(16, 3, 16, seed=0)
    net(x).square().sum().backward()
    monkeypatch.setattr(norm_cuda, "serves", lambda *_: False)
    twin(x).square().sum().backward()
    for (name, a), (_, b) in zip(net.named_parameters(), twin.named_parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        error = float((a.grad - b.grad).norm() / b.grad.norm())
        assert error < 1e-2, f"{name}: {error}"
    for (name, a), (_, b) in zip(net.named_buffers(), twin.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, msg=name)


def test_elsewhere_it_is_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm_cuda, "serves", lambda *_: False)
    x, bn, bn2 = torch.randn(2, 64, 3, 3), nn.BatchNorm2d(64).eval(), nn.BatchNorm2d(64).eval()
    y, again = norm_cuda.norm_relu(x, bn, x, bn2)
    assert y is again
    torch.testing.assert_close(y, F.relu(bn(x) + bn2(x)))
    torch.testing.assert_close(norm_cuda.norm_relu(x, bn)[0], F.relu(bn(x)))


def test_in_evaluation_and_on_odd_widths_torch_serves() -> None:
    x = torch.zeros(1, 64, 2, 2, device=DEVICE)
    assert not norm_cuda.serves(x, nn.BatchNorm2d(64).eval())
    assert not norm_cuda.serves(x, nn.BatchNorm2d(24))
    assert not norm_cuda.serves(x, nn.BatchNorm2d(64, momentum=None))
