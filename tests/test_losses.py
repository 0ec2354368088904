"""Losses against loops anyone can check."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nonneg import losses
from nonneg.errors import BadInput


def views(n: int, d: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=g, dtype=torch.float64), torch.randn(n, d, generator=g, dtype=torch.float64)


def info_nce_by_loops(z1: torch.Tensor, z2: torch.Tensor, temperature: float) -> float:
    z = torch.cat([z1, z2]).detach().double()
    n, total = len(z1), 0.0
    for i in range(2 * n):
        denominator = 0.0
        for j in range(2 * n):
            if j != i:
                denominator += math.exp(float(z[i] @ z[j] / z[i].norm() / z[j].norm()) / temperature)
        p = (i + n) % (2 * n)
        total -= math.log(math.exp(float(z[i] @ z[p] / z[i].norm() / z[p].norm()) / temperature) / denominator)
    return total / (2 * n)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 7), d=st.integers(2, 9), seed=st.integers(0, 99), temperature=st.sampled_from([0.05, 0.2, 1.0]))
def test_info_nce_matches_a_double_loop(n: int, d: int, seed: int, temperature: float) -> None:
    z1, z2 = views(n, d, seed)
    got = losses.info_nce(z1, z2, temperature=temperature).item()
    assert got == pytest.approx(info_nce_by_loops(z1, z2, temperature), rel=1e-9, abs=1e-9)


def test_info_nce_is_unchanged_by_rotation_scale_and_swapping_views() -> None:
    z1, z2 = views(6, 5)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    base = losses.info_nce(z1, z2)
    for other in (
        losses.info_nce(z1 @ rotation, z2 @ rotation),
        losses.info_nce(3 * z1, 3 * z2),
        losses.info_nce(z2, z1),
    ):
        torch.testing.assert_close(other, base, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("temperature", [0.05, 0.2])
def test_info_nce_is_stable_in_bfloat16(temperature: float) -> None:
    z1, z2 = (z.bfloat16() for z in views(64, 32))
    half = losses.info_nce(z1, z2, temperature=temperature)
    full = losses.info_nce(z1.double(), z2.double(), temperature=temperature)
    torch.testing.assert_close(half.double(), full.double(), rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        under = losses.info_nce(z1, z2, temperature=temperature)
    torch.testing.assert_close(under, half)


def test_info_nce_gradient_matches_numerical() -> None:
    z1, z2 = views(4, 3)
    z1.requires_grad_()
    (got,) = torch.autograd.grad(losses.info_nce(z1, z2), z1)
    for i, j in ((0, 0), (2, 1), (3, 2)):
        step = torch.zeros_like(z1)
        step[i, j] = 1e-4
        numeric = (info_nce_by_loops(z1 + step, z2, 0.2) - info_nce_by_loops(z1 - step, z2, 0.2)) / 2e-4
        assert got[i, j].item() == pytest.approx(numeric, abs=1e-6)


def test_all_zero_rows_and_all_zero_batches_stay_finite() -> None:
    z1, z2 = (z.float().relu() for z in views(5, 4))
    z1[0] = 0
    for a, b in ((z1, z2), (torch.zeros(5, 4), torch.zeros(5, 4))):
        a = a.clone().requires_grad_()
        loss = losses.info_nce(a, b, temperature=0.05)
        loss.backward()
        assert loss.isfinite() and a.grad is not None and a.grad.isfinite().all()


def test_a_row_below_the_floor_passes_a_bounded_gradient_and_concerns_no_other() -> None:
    z = torch.tensor([[0.0, 0.0], [0.01, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    floor = 0.01 * (0.01 + 5 + 1) / 4
    (slope,) = torch.autograd.grad(losses.unit_rows(z)[:2].sum(), z)
    want = torch.tensor([[1 / floor] * 2, [1 / floor] * 2, [0, 0], [0, 0]], dtype=torch.float64)
    torch.testing.assert_close(slope, want)
    nothing = torch.zeros(4, 2, requires_grad=True)  # no length to take a share of
    (slope,) = torch.autograd.grad(losses.unit_rows(nothing).sum(), nothing)
    torch.testing.assert_close(slope, torch.full((4, 2), 1e4))


def test_identical_rows_are_worth_the_log_of_the_number_of_others() -> None:
    z = torch.ones(4, 3)
    assert losses.info_nce(z, z).item() == pytest.approx(math.log(7))


def supcon_by_loops(z1: torch.Tensor, z2: torch.Tensor, labels: list[int], temperature: float) -> float:
    z, y, total = torch.cat([z1, z2]).double(), labels + labels, 0.0
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        weight = {j: math.exp(float(z[i] @ z[j] / z[i].norm() / z[j].norm()) / temperature) for j in others}
        alike = [j for j in others if y[j] == y[i]]
        total -= sum(math.log(weight[p] / sum(weight.values())) for p in alike) / len(alike)
    return total / len(z)


@settings(max_examples=15, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=7),
    d=st.integers(2, 9),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
)
@example(labels=[5, 5, 5], d=3, seed=0, temperature=0.2)
def test_supcon_matches_a_double_loop(labels: list[int], d: int, seed: int, temperature: float) -> None:
    z1, z2 = views(len(labels), d, seed)
    got = losses.supcon(z1, z2, torch.tensor(labels), temperature=temperature).item()
    assert got == pytest.approx(supcon_by_loops(z1, z2, labels, temperature), rel=1e-9, abs=1e-9)


def test_supcon_is_info_nce_where_every_image_is_a_class_of_its_own() -> None:
    z1, z2 = views(6, 5)
    torch.testing.assert_close(losses.supcon(z1, z2, torch.arange(6) * 7), losses.info_nce(z1, z2))


def test_supcon_is_unchanged_by_rotation_scale_swapping_views_and_renaming_classes() -> None:
    z1, z2 = views(6, 5)
    y = torch.tensor([0, 0, 1, 2, 2, 2])
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    base = losses.supcon(z1, z2, y)
    for other in (
        losses.supcon(z1 @ rotation, z2 @ rotation, y),
        losses.supcon(3 * z1, 3 * z2, y),
        losses.supcon(z2, z1, y),
        losses.supcon(z1, z2, 9 - y),
    ):
        torch.testing.assert_close(other, base, rtol=1e-9, atol=1e-9)
    assert abs(losses.supcon(z1, z2, y.flip(0)) - base) > 1e-3


def test_supcon_is_least_where_classes_are_orthogonal_and_one_direction_each() -> None:
    y = torch.tensor([0, 0, 1, 1, 2, 2])
    best = torch.eye(3, dtype=torch.float64)[y]
    assert losses.supcon(best, best, y) < losses.supcon(best, best, y.roll(1)) - 1
    z1, z2 = views(6, 3)
    assert losses.supcon(best, best, y) < losses.supcon(z1.abs(), z2.abs(), y)


def test_supcon_has_a_bounded_gradient_with_zero_rows_and_in_bfloat16() -> None:
    z1, z2 = views(8, 4)
    z1[0] = 0
    y = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3])
    z1.requires_grad_()
    losses.supcon(z1, z2, y).backward()
    assert z1.grad is not None and z1.grad.isfinite().all() and z1.grad.norm(dim=1).max() < 100
    half = losses.supcon(z1.detach().bfloat16(), z2.bfloat16(), y)
    assert half.dtype == torch.float32 and half.item() == pytest.approx(
        losses.supcon(z1.detach().bfloat16().double(), z2.bfloat16().double(), y).item(), rel=1e-5
    )
    with pytest.raises(BadInput, match="supcon: temperature is 0"):
        losses.supcon(z1, z2, y, temperature=0)


def spectral_by_loops(z1: torch.Tensor, z2: torch.Tensor, l1: float) -> float:
    n, total = len(z1), 0.0
    for i in range(n):
        total -= 2 * float(z1[i] @ z2[i]) / n
        total += l1 * float(z1[i].abs().sum() + z2[i].abs().sum()) / (2 * n)
        for j in range(n):
            if j != i:
                total += float(z1[i] @ z2[j]) ** 2 / (n * (n - 1))
    return total


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 7), d=st.integers(1, 9), seed=st.integers(0, 99), l1=st.sampled_from([0.0, 0.01, 2.0]))
@example(n=6, d=1, seed=46, l1=0.0)  # a row shorter than the floor
def test_spectral_matches_a_double_loop(n: int, d: int, seed: int, l1: float) -> None:
    z1, z2 = views(n, d, seed)
    assert losses.spectral(z1, z2, l1=l1).item() == pytest.approx(spectral_by_loops(z1, z2, l1), rel=1e-9, abs=1e-9)
    unit = []  # rows of length 1, but for those under a hundredth of the mean length: see unit_rows
    for z in (z1, z2):
        least = 0.01 * sum(float(row.norm()) for row in z) / n
        unit.append(torch.stack([row / max(float(row.norm()), least) for row in z]))
    assert losses.spectral(z1, z2, normalise=True).item() == pytest.approx(spectral_by_loops(*unit, 0.0), abs=1e-9)


@pytest.mark.parametrize("mu", [0.5, 4.0, 1e6])
def test_spectral_cuts_rows_that_are_longer_than_the_root_of_mu(mu: float) -> None:
    z1, z2 = views(7, 5)
    cut = [torch.stack([row if row.norm() <= mu**0.5 else row / row.norm() * mu**0.5 for row in z]) for z in (z1, z2)]
    assert losses.spectral(z1, z2, mu=mu).item() == pytest.approx(spectral_by_loops(*cut, 0.0), rel=1e-9, abs=1e-9)
    z1 = torch.cat([torch.zeros(1, 5, dtype=z1.dtype), z1[1:]]).requires_grad_()  # every unit of a row off
    losses.spectral(z1, z2, mu=mu).backward()
    assert z1.grad is not None and z1.grad.isfinite().all()


def test_spectral_is_unchanged_by_rotation_but_l1_is_not() -> None:
    z1, z2 = views(6, 5)
    rotation, _ = torch.linalg.qr(torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    turned = z1 @ rotation, z2 @ rotation
    torch.testing.assert_close(losses.spectral(*turned), losses.spectral(z1, z2), rtol=1e-9, atol=1e-9)
    assert abs(losses.spectral(*turned, l1=1.0) - losses.spectral(z1, z2, l1=1.0)) > 1e-3


def test_spectral_is_an_unbiased_estimate_of_the_population_loss() -> None:
    """Three images, two views each with equal chance, fixed features: the mean over all batches of two is the loss."""
    g = torch.Generator().manual_seed(0)
    f = torch.randn(3, 2, 4, generator=g, dtype=torch.float64)  # image, view, feature
    positive = sum(f[i, a] @ f[i, b] for i in range(3) for a in range(2) for b in range(2)) / 12
    flat = f.reshape(6, 4)
    population = -2 * positive + (flat @ flat.T).square().mean()
    batches = [
        losses.spectral(f[[i, j], [a, b]], f[[i, j], [c, e]])
        for i in range(3)
        for j in range(3)
        for a in range(2)
        for b in range(2)
        for c in range(2)
        for e in range(2)
    ]  # images are drawn independently, so one image may come twice
    torch.testing.assert_close(torch.stack(batches).mean(), population, rtol=1e-9, atol=1e-9)


def test_spectral_refuses_what_it_cannot_compute() -> None:
    z1, z2 = views(1, 3)
    with pytest.raises(BadInput, match="two images at least"):
        losses.spectral(z1, z2)
    with pytest.raises(BadInput, match="must not be negative"):
        losses.spectral(*views(3, 3), l1=-1.0)
    with pytest.raises(BadInput, match=r"mu is 0.0; it must be positive"):
        losses.spectral(*views(3, 3), mu=0.0)


# Between images and texts


def clip_by_loops(z1: torch.Tensor, z2: torch.Tensor, temperature: float) -> float:
    a, b = z1.detach().double(), z2.detach().double()

    def cosine(i: int, j: int) -> float:
        return float(a[i] @ b[j] / a[i].norm() / b[j].norm())

    n, total = len(a), 0.0
    for i in range(n):
        row = sum(math.exp(cosine(i, j) / temperature) for j in range(n))
        column = sum(math.exp(cosine(j, i) / temperature) for j in range(n))
        total -= 2 * cosine(i, i) / temperature - math.log(row) - math.log(column)
    return total / (2 * n)


@settings(max_examples=15, deadline=None)
@given(
    n=st.integers(1, 7),
    d=st.integers(2, 9),
    seed=st.integers(0, 99),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
    relu=st.booleans(),
)
def test_clip_matches_a_double_loop(n: int, d: int, seed: int, temperature: float, relu: bool) -> None:
    z1, z2 = (z.relu() + 0.1 if relu else z for z in views(n, d, seed))
    got = losses.clip(z1, z2, temperature=temperature).item()
    assert got == pytest.approx(clip_by_loops(z1, z2, temperature), rel=1e-9, abs=1e-9)
    learned = torch.tensor(temperature, dtype=torch.float64)
    assert losses.clip(z1, z2, temperature=learned).item() == pytest.approx(got, rel=1e-9)


def test_clip_is_the_same_with_images_and_texts_swapped_but_not_paired_otherwise() -> None:
    z1, z2 = views(6, 5)
    torch.testing.assert_close(losses.clip(z1, z2), losses.clip(z2, z1))
    assert not torch.isclose(losses.clip(z1, z2), losses.clip(z1, z2.roll(1, 0)))
    assert losses.clip(z1, z2).item() == pytest.approx(clip_by_loops(z1, z2, 0.07))  # where CLIP begins


def test_the_temperature_of_clip_has_the_gradient_of_a_difference() -> None:
    z1, z2 = views(5, 4)
    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    losses.clip(z1, z2, temperature=t).backward()
    higher, lower = (losses.clip(z1, z2, temperature=0.3 + step).item() for step in (1e-6, -1e-6))
    assert t.grad is not None and t.grad.item() == pytest.approx((higher - lower) / 2e-6, rel=1e-5)


def test_clip_is_stable_in_bfloat16_and_where_a_row_is_zero() -> None:
    z1, z2 = (z.bfloat16() for z in views(64, 32))
    with torch.autocast("cpu", torch.bfloat16):
        half = losses.clip(z1, z2, temperature=0.01)
    torch.testing.assert_close(
        half.double(), losses.clip(z1.double(), z2.double(), temperature=0.01), rtol=1e-5, atol=1e-5
    )
    z1, z2 = views(6, 4)
    z1 = z1.clone()
    z1[2] = 0
    z1.requires_grad_()
    losses.clip(z1, z2).backward()
    assert z1.grad is not None and z1.grad.isfinite().all() and z1.grad.abs().max() < 1e4


def test_clip_refuses_a_temperature_that_is_not_positive() -> None:
    with pytest.raises(BadInput, match="clip: temperature is 0"):
        losses.clip(*views(3, 3), temperature=0.0)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(2, 7), d=st.integers(2, 9), seed=st.integers(0, 99), relu=st.booleans())
def test_spectral_is_the_papers_asymmetric_loss_of_images_and_texts(n: int, d: int, seed: int, relu: bool) -> None:
    """-2 E_{v,l} f_V(v).f_L(l) + E_{v-,l-} (f_V(v-).f_L(l-))^2, the negatives being other pairs' images and texts."""
    images, texts = (z.relu() if relu else z for z in views(n, d, seed))
    pull = sum(float(images[i] @ texts[i]) for i in range(n)) / n
    push = [float(images[i] @ texts[j]) ** 2 for i in range(n) for j in range(n) if i != j]
    assert losses.spectral(images, texts).item() == pytest.approx(-2 * pull + sum(push) / len(push), rel=1e-9, abs=1e-9)


def test_the_asymmetric_spectral_loss_is_matrix_factorisation() -> None:
    """On a world of 4 images and 3 texts: |A - F_V F_L^T|^2 - const = L, with expectations taken exactly."""
    g = torch.Generator().manual_seed(0)
    joint = torch.rand(4, 3, generator=g, dtype=torch.float64)
    joint /= joint.sum()
    p, q = joint.sum(1), joint.sum(0)
    f, h = (torch.rand(n, 5, generator=g, dtype=torch.float64) for n in (4, 3))
    gram = f @ h.T
    loss = -2 * (joint * gram).sum() + (p[:, None] * q * gram.square()).sum()
    target = joint / (p[:, None] * q).sqrt()
    left, right = p.sqrt()[:, None] * f, q.sqrt()[:, None] * h
    assert loss.item() == pytest.approx(((target - left @ right.T) ** 2).sum().item() - target.square().sum().item())
    # a batch drawn from that world: the loss of the code estimates it
    drawn = torch.multinomial(joint.flatten(), 40_000, replacement=True, generator=g)
    estimate = torch.stack([losses.spectral(f[part // 3], h[part % 3]) for part in drawn.split(400)]).mean()
    assert estimate.item() == pytest.approx(loss.item(), abs=0.02)


def test_features_that_do_not_fit_are_refused_and_not_broadcast() -> None:
    z1, z2 = views(8, 4)
    labels = torch.arange(8) % 3
    for loss in (losses.info_nce, losses.clip, losses.spectral):
        for a, b in ((z1, z2[:6]), (z1[:6], z2), (z1, z2[:, :3]), (z1[0], z2[0]), (z1, z2[:1])):
            with pytest.raises(BadInput, match="both must be N x D"):
                loss(a, b)
    with pytest.raises(BadInput, match="both must be N x D"):
        losses.supcon(z1, z2[:6], labels)
    for wrong in (labels[:, None], labels[:6], labels[None]):
        with pytest.raises(BadInput, match="one for each of the 8 rows"):
            losses.supcon(z1, z2, wrong)
