"""The spectral loss as an exact expectation, and the matrix factorisation it is.

Shapes: f is N x k, one row of features for every sample of a world (leading dimensions are independent problems);
P(x, x') is N x N, or N x M for two modalities with features f (N x k) and g (M x k).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment, minimize
from torch import Tensor

from nonneg.errors import BadInput
from nonneg.theory.worlds import World, normalised

SOLVED = 1e-10  # an objective below this counts as 0
RECOVERED = 1e-3  # features closer than this to phi count as phi
PARALLEL = 1e-6  # columns with 1 - cosine below this are one direction
EMPTY = 1e-4  # a column shorter than this share of the longest is dead


# What is minimised


def population_loss(f: np.ndarray, g: np.ndarray, joint: np.ndarray) -> float:
    """-2 E_{x,x+} f(x).g(x+) + E_{x,x-} (f(x).g(x-))^2: pairs from P(x, x'), negatives from P(x) P(x')."""
    similarity = f @ g.T
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    return float(-2 * (joint * similarity).sum() + (independent * similarity**2).sum())


def factorisation_objective(f: np.ndarray, g: np.ndarray, joint: np.ndarray) -> float:
    """|A_bar - F G^T|^2, F = sqrt(P(x)) f(x), G = sqrt(P(x')) g(x')."""
    return float(
        np.square(normalised(joint) - _weighted(f, joint.sum(axis=1)) @ _weighted(g, joint.sum(axis=0)).T).sum()
    )


def constant(joint: np.ndarray) -> float:
    """|A_bar|^2, the difference of the two: objective = loss + constant."""
    return float(np.square(normalised(joint)).sum())


# How it is minimised


@dataclass(frozen=True)
class Fit:
    """W worlds from R starts each: f (W x R x N x k), g where there are two modalities, and the objectives (W x R)."""

    f: np.ndarray
    g: np.ndarray | None
    gap: np.ndarray

    def best(self, world: int = 0) -> int:
        """The start with the smallest objective; phi is not looked at."""
        return int(self.gap[world].argmin())


def fit(
    worlds: Sequence[World],
    *,
    k: int,
    map: Callable[[Tensor], Tensor],
    starts: int = 16,
    steps: int = 700,
    seed: int = 0,
    signed: bool = False,
) -> Fit:
    """Gradient descent on the population loss of f = map(z), z a free table, from random z >= 0 (or of any sign).

    Worlds of one size are solved together, all starts at once; nothing but P(x, x') is known to the solver.
    """
    _check(worlds, k=k, starts=starts, steps=steps)
    joints = torch.from_numpy(np.stack([w.joint for w in worlds]))[:, None]
    z = _start((len(worlds), starts, joints.shape[-1], k), seed=seed, signed=signed)

    def loss() -> Tensor:
        f = map(z)
        spread = f.mT @ (joints.sum(-1, keepdim=True) * f)  # E f f^T: k x k, and E (f.f')^2 is its squared length
        return (-2 * (f * (joints @ f)).sum((-2, -1)) + spread.square().sum((-2, -1))).sum()

    _descend([z], loss, steps=steps, rate=0.012 * math.sqrt(k))
    with torch.no_grad():
        f = map(z).numpy()
    return Fit(f, None, _gaps(f, f, [w.joint for w in worlds]))


def fit_pair(
    joint: np.ndarray, *, k: int, map: Callable[[Tensor], Tensor], starts: int = 16, steps: int = 700, seed: int = 0
) -> Fit:
    """The same for two modalities, f = map(z) and g = map(u), of one P(x, x') that need not be symmetric."""
    _check_numbers(k=k, starts=starts, steps=steps)
    table = torch.from_numpy(joint)
    z, u = (_start((1, starts, n, k), seed=seed + i, signed=False) for i, n in enumerate(joint.shape))

    def loss() -> Tensor:
        f, g = map(z), map(u)
        left, right = f.mT @ (table.sum(1)[:, None] * f), g.mT @ (table.sum(0)[:, None] * g)
        return ((left * right).sum((-2, -1)) - 2 * (f * (table @ g)).sum((-2, -1))).sum()

    _descend([z, u], loss, steps=steps, rate=0.012 * math.sqrt(k))
    with torch.no_grad():
        f, g = map(z).numpy(), map(u).numpy()
    return Fit(f, g, _gaps(f, g, [joint]))


def polished(f: np.ndarray, world: World) -> np.ndarray:
    """f moved on to the nearest minimum of |A_bar - F F^T|^2 over F >= 0, by bounded L-BFGS.

    With more features than classes the bottom is flat (a spare column matters only to fourth order), and plain descent
    takes forever to get there.
    """
    root, target = np.sqrt(world.marginal)[:, None], world.co_occurrence

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weighted = flat.reshape(f.shape)
        excess = weighted @ weighted.T - target
        return float(np.square(excess).sum()), (4 * excess @ weighted).ravel()

    found = minimize(
        value_and_gradient,
        (root * f).ravel(),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * f.size,
        options={"maxiter": 5000, "maxfun": 10_000, "ftol": 0, "gtol": 1e-14, "maxcor": 30},
    )
    return found.x.reshape(f.shape) / root


def _start(shape: tuple[int, ...], *, seed: int, signed: bool) -> Tensor:
    """Uniform and small: the loss itself then makes features grow to their size, 1/sqrt(P(c)), about sqrt(k)."""
    z = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return ((2 * z - 1 if signed else z) * 0.12 * math.sqrt(shape[-1])).requires_grad_()


def _descend(tables: list[Tensor], loss: Callable[[], Tensor], *, steps: int, rate: float) -> None:
    """Adam without momentum, which would carry entries past zero, where relu holds them for good.

    AMSGrad's step does not grow back as the gradient fades, so the end is plain descent and converges to rounding.
    """
    optimizer = torch.optim.Adam(tables, lr=rate, betas=(0.0, 0.99), amsgrad=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.3 ** (step / steps))
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()


def _gaps(f: np.ndarray, g: np.ndarray, joints: Sequence[np.ndarray]) -> np.ndarray:
    return np.array(
        [
            [factorisation_objective(a, b, joint) for a, b in zip(fs, gs, strict=True)]
            for fs, gs, joint in zip(f, g, joints, strict=True)
        ]
    )


# What was found


def matched(found: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """For every column of the truth (N x C) the column of `found` (N x k) that is it, one to one, -1 where k < C.

    The Hungarian assignment of least total |found_j - truth_c|^2.
    """
    distance = np.square(truth[:, :, None] - found[:, None, :]).sum(axis=0)
    rows, columns = linear_sum_assignment(distance)
    partner = np.full(truth.shape[1], -1)
    partner[rows] = columns
    return partner


def recovery_error(found: np.ndarray, truth: np.ndarray) -> float:
    """max |found - truth| up to a permutation of columns; the narrower of the two is filled up with zeros."""
    width = max(found.shape[1], truth.shape[1])
    found, truth = (np.pad(v, ((0, 0), (0, width - v.shape[1]))) for v in (found, truth))
    return float(np.abs(found[:, matched(found, truth)] - truth).max())


def merged(f: np.ndarray) -> np.ndarray:
    """f with parallel columns made one, sqrt(sum of squares) long (so F F^T stays), and dead ones left out."""
    length = np.linalg.norm(f, axis=0)
    rest = [j for j in np.argsort(-length) if length[j] > EMPTY * length.max()]
    columns = []
    while rest:
        first = rest[0]
        cosine = (f[:, first] @ f[:, rest]) / (length[first] * length[rest])
        group = [j for j, c in zip(rest, cosine, strict=True) if c > 1 - PARALLEL]
        columns.append(f[:, first] * np.linalg.norm(length[group]) / length[first])
        rest = [j for j in rest if j not in group]
    return np.stack(columns, axis=1) if columns else f[:, :0]


def pair_error(f: np.ndarray, g: np.ndarray, phi_f: np.ndarray, phi_g: np.ndarray) -> float:
    """max |f - phi_f|, |g - phi_g| up to a permutation and a scale that f gains and g loses, column by column."""
    unit = [v / np.maximum(np.linalg.norm(v, axis=0), 1e-300) for v in (f, phi_f)]
    order = matched(*unit)
    f, g = f[:, order], g[:, order]
    scale = (f * phi_f).sum(axis=0) / np.maximum(np.square(f).sum(axis=0), 1e-300)
    return float(max(np.abs(f * scale - phi_f).max(), np.abs(g / np.maximum(scale, 1e-300) - phi_g).max()))


def room_to_rotate(phi: np.ndarray) -> float:
    """The largest angle (degrees) by which a pair of columns can be turned while they stay non-negative.

    Turning i towards -j needs tan(angle) <= phi_i(x) / phi_j(x) wherever phi_j(x) > 0: a unique sample of j forbids it.
    """
    widest = 0.0
    for j in range(phi.shape[1]):
        on = phi[:, j] > 0
        ratio = (phi[on] / phi[on, j : j + 1]).min(axis=0)
        ratio[j] = 0
        widest = max(widest, float(np.degrees(np.arctan(ratio.max()))))
    return widest


def _weighted(f: np.ndarray, marginal: np.ndarray) -> np.ndarray:
    return np.sqrt(marginal)[:, None] * f


def _check(worlds: Sequence[World], *, k: int, starts: int, steps: int) -> None:
    _check_numbers(k=k, starts=starts, steps=steps)
    if not worlds or len({w.samples for w in worlds}) > 1:
        raise BadInput(f"{len(worlds)} worlds to solve at once: give one or more, all with the same number of samples")


def _check_numbers(**numbers: int) -> None:
    for name, value in numbers.items():
        if value < 1:
            raise BadInput(f"{name} is {value}: give 1 or more")
