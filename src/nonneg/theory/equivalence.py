"""NCL is NMF, and what a rotation does to either. N samples, C latent classes, k features; f is N x k."""

import inspect
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from nonneg import losses
from nonneg.theory import worlds as make
from nonneg.theory.objective import SOLVED, constant, factorisation_objective, population_loss, room_to_rotate
from nonneg.theory.row import EXACT, Row
from nonneg.theory.worlds import World, joint

BATCHES = (32, 128, 512)  # pairs a batch, for the rate at which the sampled loss approaches its expectation


def equivalence(world: World, *, seed: int = 0, k: int = 5, draws: int = 10) -> list[Row]:
    """L_NCL = |A_bar - F F^T|^2 - |A_bar|^2 for any f >= 0, of one modality and of two."""
    rng = np.random.default_rng(seed)
    other = make.translated(world)
    rows = []
    for theorem, second in (("NCL is symmetric NMF", None), ("multi-modal NCL is asymmetric NMF", other)):
        table = world.joint if second is None else joint(world, second)
        worst = 0.0
        for _ in range(draws):
            f = rng.exponential(size=(world.samples, k))
            g = f if second is None else rng.exponential(size=(second.samples, k))
            loss, objective = population_loss(f, g, table), factorisation_objective(f, g, table)
            worst = max(worst, abs(loss - (objective - constant(table))) / max(1.0, abs(objective)))
        claim = "the spectral loss equals |A_bar - F F'|^2 minus |A_bar|^2, for random f >= 0"
        rows.append(Row(theorem, claim, f"largest difference {worst:.1e} of {draws}", worst < EXACT))
    return rows


def monte_carlo(world: World, *, seed: int = 0, k: int = 3, repeats: int = 300) -> list[Row]:
    """losses.spectral on sampled pairs has the population loss as its mean, and its error falls as n^(-1/2)."""
    rng = np.random.default_rng(seed)
    f = rng.random((world.samples, k))
    features, exact = torch.from_numpy(f), population_loss(f, f, world.joint)
    error = np.empty((len(BATCHES), repeats))
    for i, n in enumerate(BATCHES):
        for j in range(repeats):
            first, second = world.pairs(n, rng)
            error[i, j] = losses.spectral(features[first], features[second]).item() - exact
    spread = np.sqrt(np.square(error).mean(axis=1))
    slope = float(np.polyfit(np.log(BATCHES), np.log(spread), 1)[0])
    bias = np.abs(error.mean(axis=1)) / (error.std(axis=1) / math.sqrt(repeats))
    theorem = "NCL is symmetric NMF"
    return [
        Row(
            theorem,
            "the loss used in training is an unbiased estimate of it",
            f"bias at most {bias.max():.1f} standard errors, {repeats} batches each of {', '.join(map(str, BATCHES))}",
            bool(bias.max() < 4),
        ),
        Row(
            theorem,
            "its error falls at the Monte-Carlo rate, n^-0.5",
            f"n^{slope:.2f}; {spread[0]:.3f} at n = {BATCHES[0]}, {spread[-1]:.3f} at n = {BATCHES[-1]}",
            abs(slope + 0.5) < 0.1,
        ),
    ]


# Symmetry


def pairwise_losses() -> list[Callable[[Tensor, Tensor], Tensor]]:
    """The losses that see features through inner products of two views alone: all of `losses` that take z1 and z2."""
    found = [f for f in vars(losses).values() if inspect.isfunction(f) and f.__module__ == losses.__name__]
    return [
        f
        for f in found
        if [p.name for p in inspect.signature(f).parameters.values() if p.default is p.empty] == ["z1", "z2"]
    ]


def symmetry(world: World, *, seed: int = 0, draws: int = 100) -> list[Row]:
    """A loss of inner products does not see a rotation; the constraint f >= 0 does."""
    rng = np.random.default_rng(seed)
    theorem, c = "rotation symmetry", world.classes
    first, second = (torch.from_numpy(rng.normal(size=(64, c))) for _ in range(2))
    turn = torch.from_numpy(random_rotation(c, rng))
    rows = []
    for loss in pairwise_losses():
        change = abs((loss(first @ turn, second @ turn) - loss(first, second)).item())
        rows.append(
            Row(theorem, f"{loss.__name__} is the same after a random rotation", f"change {change:.1e}", change < EXACT)
        )
    rotations = [random_rotation(c, rng) for _ in range(draws)]
    loss = max(abs(factorisation_objective(world.phi @ r, world.phi @ r, world.joint)) for r in rotations)
    rows.append(
        Row(theorem, "without f >= 0 every rotation of phi is optimal too", f"objective {loss:.1e}", loss < EXACT)
    )
    if c > 1:
        allowed = sum(bool((world.phi @ r > -1e-9).all()) for r in rotations)
        cut = [np.maximum(world.phi @ r, 0) for r in rotations]
        least = min(factorisation_objective(f, f, world.joint) for f in cut)
        rows.append(
            Row(
                theorem,
                "f >= 0 breaks it: random rotations of phi have negative entries, and cutting them off costs",
                f"{allowed} of {draws} stay non-negative; objective after the cut {least:.2g} at least",
                allowed == 0 and least > SOLVED,
            )
        )
        angle = room_to_rotate(world.phi)
        rows.append(
            Row(
                "unique solution",
                "no pair of columns of phi can be turned at all and stay non-negative",
                f"room to turn {angle:.2f} degrees",
                angle < 1e-9,
            )
        )
    return rows


def random_rotation(k: int, rng: np.random.Generator) -> np.ndarray:
    """A random orthogonal k x k matrix, uniform over all."""
    q, r = np.linalg.qr(rng.normal(size=(k, k)))
    return q * np.sign(np.diag(r))
