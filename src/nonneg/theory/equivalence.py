"""NCL is NMF, and what a rotation does to either. N samples, C latent classes, k features; f is N x k."""

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from nonneg import losses, names
from nonneg.theory import worlds as make
from nonneg.theory.objective import SOLVED, constant, factorisation_objective, population_loss, room_to_rotate
from nonneg.theory.row import EXACT, Row
from nonneg.theory.worlds import World, drawn, joint

SYMMETRIC, ASYMMETRIC = "NCL is symmetric NMF", "multi-modal NCL is asymmetric NMF"
SMALL = (2, 4, 8)  # pairs a batch, where a bias of the sampled loss would be largest
LIMIT = 6  # standard errors of a bias that are still chance: of two pairs the loss has a long tail
LARGE = (32, 128, 512)  # pairs a batch, for the rate at which it approaches its expectation


def equivalence(world: World, *, seed: int = 0, k: int = 5, draws: int = 10) -> list[Row]:
    """L_NCL = |A_bar - F F^T|^2 - |A_bar|^2 for any f >= 0, of one modality and of two."""
    rng = np.random.default_rng(seed)
    other = make.translated(world)
    rows = []
    for theorem, second in ((SYMMETRIC, None), (ASYMMETRIC, other)):
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


def monte_carlo(world: World, *, seed: int = 0, repeats: int = 300) -> list[Row]:
    """losses.spectral on sampled pairs has the population loss as its mean, and its error falls as n^(-1/2)."""
    rows = []
    for theorem, second in ((SYMMETRIC, world), (ASYMMETRIC, make.translated(world))):
        if world.samples > 1 or second.samples > 1:  # else there is one pair to draw, and no error
            rows += [
                _unbiased(theorem, world, second, repeats=5 * repeats, seed=seed),
                _converging(theorem, world, second, repeats=repeats, seed=seed),
            ]
    return rows


def _unbiased(theorem: str, world: World, second: World, *, repeats: int, seed: int) -> Row:
    """With features near phi, pairs of one class are as unlike other pairs as they can be: a pair in the wrong term
    shows, most of all in batches of two. Rows are stretched a little, or one class alone would leave no error."""
    rng = np.random.default_rng(seed)
    f, g = (w.phi * rng.uniform(0.9, 1.1, size=(w.samples, 1)) for w in (world, second))
    error = _errors(world, second, f, f if second is world else g, batches=SMALL, repeats=repeats, rng=rng)
    bias = float((np.abs(error.mean(axis=1)) / (error.std(axis=1) / math.sqrt(repeats))).max())
    return Row(
        theorem,
        "the loss used in training is an unbiased estimate of it, for f near phi",
        f"bias at most {bias:.1f} standard errors; {repeats:,} batches each of {', '.join(map(str, SMALL))} pairs",
        bias < LIMIT,
    )


def _converging(theorem: str, world: World, second: World, *, repeats: int, seed: int, k: int = 3) -> Row:
    """With any features; near phi the part of the variance that falls as n^-2 is large, and takes long to vanish."""
    rng = np.random.default_rng(seed)
    f, g = (rng.random((w.samples, k)) for w in (world, second))
    error = _errors(world, second, f, f if second is world else g, batches=LARGE, repeats=repeats, rng=rng)
    spread = np.sqrt(np.square(error).mean(axis=1))
    slope = float(np.polyfit(np.log(LARGE), np.log(spread), 1)[0])
    return Row(
        theorem,
        "its error falls at the Monte-Carlo rate, n^-0.5, for random f >= 0",
        f"n^{slope:.2f}; {spread[0]:.3f} at n = {LARGE[0]}, {spread[-1]:.3f} at n = {LARGE[-1]}",
        abs(slope + 0.5) < 0.1,
    )


def _errors(
    world: World,
    second: World,
    f: np.ndarray,
    g: np.ndarray,
    *,
    batches: Sequence[int],
    repeats: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Sampled minus population loss, for batches of each size, so many times: sizes x repeats."""
    first, other = torch.from_numpy(f), torch.from_numpy(g)
    error = np.empty((len(batches), repeats))
    for i, j in np.ndindex(error.shape):
        x, y = drawn(world, second, batches[i], rng)
        error[i, j] = losses.spectral(first[x], other[y]).item()
    return error - population_loss(f, g, joint(world, second))


# Symmetry


def pairwise_losses(labels: Tensor) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """All losses of two views by name, which see features through inner products alone; `labels` go to those of them
    that take labels."""
    found = names.Role("loss", losses, ("z1", "z2")).functions()
    return {
        name: partial(loss, labels=labels) if "labels" in inspect.signature(loss).parameters else loss
        for name, loss in found.items()
    }


def symmetry(world: World, *, seed: int = 0, draws: int = 100) -> list[Row]:
    """A loss of inner products does not see a rotation; the constraint f >= 0 does."""
    rng = np.random.default_rng(seed)
    theorem, c = "rotation symmetry", world.classes
    first, second = (torch.from_numpy(rng.normal(size=(64, c))) for _ in range(2))
    turn = torch.from_numpy(random_rotation(c, rng))
    rows = []
    for name, loss in pairwise_losses(torch.from_numpy(world.labelled(64, rng)[1])).items():
        change = abs((loss(first @ turn, second @ turn) - loss(first, second)).item())
        rows.append(Row(theorem, f"{name} is the same after a random rotation", f"change {change:.1e}", change < EXACT))
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
