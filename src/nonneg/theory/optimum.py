"""What is optimal, and what descent finds: phi up to a permutation, or without f >= 0 any rotation of it.

N samples, C latent classes, k features; f is N x k.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from nonneg import maps
from nonneg.theory import worlds as make
from nonneg.theory.objective import (
    RECOVERED,
    SOLVED,
    Fit,
    factorisation_objective,
    fit,
    fit_pair,
    matched,
    pair_error,
    recovery_error,
)
from nonneg.theory.row import EXACT, Row
from nonneg.theory.worlds import World, joint

ROUNDS = 8  # of starts, where none has got there yet


def optimum(world: World, *, seed: int = 0, starts: int = 16, steps: int = 1000) -> list[Row]:
    """phi is optimal; descent with relu and rep_relu finds it, from the loss alone."""
    phi, k = world.phi, world.classes
    value = factorisation_objective(phi, phi, world.joint)
    rows = [Row("optimal features", "phi(x) = P(c|x) / sqrt(P(c)) has objective 0", f"{value:.1e}", value < EXACT)]
    for map in (maps.relu, maps.rep_relu):
        rows += _found(_solved(world, map, starts=starts, steps=steps, seed=seed), world, map.__name__)
    off = {
        map.__name__: fit([world], k=k, map=map, starts=starts, steps=steps, seed=seed, signed=True)
        for map in (maps.relu, maps.rep_relu)
    }
    rate = {name: float((found.gap < SOLVED).mean()) for name, found in off.items()}
    rows.append(
        Row(
            "rep_relu",
            "from starts with half of all entries off, rep_relu brings them back and relu cannot",
            f"starts that reach the optimum: rep_relu {rate['rep_relu']:.0%}, relu {rate['relu']:.0%}",
            rate["rep_relu"] > rate["relu"],
        )
    )
    return rows


def _solved(world: World, map: Callable[[Tensor], Tensor], *, starts: int, steps: int, seed: int) -> Fit:
    """So many starts, and as many again, up to eight times, until one reaches objective 0: with many classes few do."""
    found = fit([world], k=world.classes, map=map, starts=starts, steps=steps, seed=seed)
    for again in range(1, ROUNDS):
        if found.gap.min() < SOLVED:
            break
        more = fit([world], k=world.classes, map=map, starts=starts, steps=steps, seed=seed + 1000 * again)
        found = Fit(np.concatenate([found.f, more.f], 1), None, np.concatenate([found.gap, more.gap], 1))
    return found


def _found(found: Fit, world: World, name: str) -> list[Row]:
    gap, best = float(found.gap.min()), found.best()
    single = float((found.gap < SOLVED).mean())
    error = recovery_error(found.f[0, best], world.phi)
    return [
        Row(
            "optimal features",
            f"gradient descent with {name} reaches objective 0",
            f"gap {gap:.1e}, the best of {found.gap.shape[1]} starts; {single:.0%} of single starts",
            gap < SOLVED,
        ),
        Row(
            "unique solution",
            f"what {name} finds is phi, up to a permutation",
            f"largest difference {error:.1e}, the start chosen by loss alone",
            error < RECOVERED,
        ),
    ]


def smooth_maps(world: World, *, seed: int = 0, starts: int = 8, steps: int = 1000) -> list[Row]:
    """softplus, exp and sigmoid have no zeros, and sigmoid no value above 1: phi is out of reach."""
    rows = []
    off = world.phi == 0
    above = bool(world.phi.max() >= 1)
    for map in (maps.softplus, maps.exp, maps.sigmoid):
        if not (off.any() or (above and map is maps.sigmoid)):  # phi is within its reach
            continue
        early, late = (
            fit([world], k=world.classes, map=map, starts=starts, steps=n, seed=seed) for n in (steps, 3 * steps)
        )
        f = late.f[0, late.best()]
        f = f[:, matched(f, world.phi)]
        least, error = float(f.min()), float(np.abs(f - world.phi).max())
        creeps = map is maps.sigmoid or late.gap.min() < early.gap.min()
        where = f"largest feature where phi is 0: {f[off].max():.2g}; " if off.any() else ""
        why = f"features stay below 1, phi goes to {world.phi.max():.2f}; " if map is maps.sigmoid else ""
        rows.append(
            Row(
                "choice of the map",
                f"{map.__name__} stays away from phi: its features are never 0"
                + (" and never above 1" if map is maps.sigmoid else ", it only creeps closer"),
                f"{why}{where}smallest feature {least:.1e}; largest difference from phi {error:.2g}; "
                f"gap {early.gap.min():.2g} after {steps} steps, {late.gap.min():.2g} after {3 * steps}",
                bool(least > 0 and late.gap.min() > SOLVED and error > RECOVERED and creeps),
            )
        )
    return rows


def unconstrained(world: World, *, seed: int = 0, steps: int = 3000) -> list[Row]:
    """Without f >= 0 the optimum is the span of the top eigenvectors of A_bar, in an arbitrary basis."""
    values, vectors = np.linalg.eigh(world.co_occurrence)
    values, vectors = values[::-1], vectors[:, ::-1]
    jump = values[:-1] - values[1:]
    c = world.classes
    cut = int(jump[: c - 1].argmax()) + 1 if c > 1 else c
    k = cut if jump[cut - 1 : cut].sum() > 0.02 else c  # fewer features than classes where the spectrum has a gap
    found = fit([world], k=k, map=maps.identity, starts=4, steps=steps, seed=seed, signed=True)
    weighted = np.sqrt(world.marginal)[:, None] * found.f[0, found.best()]
    basis = np.linalg.qr(weighted)[0]
    apart = float(np.linalg.norm(basis @ basis.T - vectors[:, :k] @ vectors[:, :k].T, 2))
    excess = float(found.gap.min() - np.square(values[k:]).sum())
    full = fit([world], k=c, map=maps.identity, starts=4, steps=steps, seed=seed, signed=True)
    f = full.f[0, full.best()]
    turn = np.linalg.lstsq(world.phi, f, rcond=None)[0]
    skew, left = float(np.abs(turn.T @ turn - np.eye(c)).max()), float(np.abs(world.phi @ turn - f).max())
    off_axis = recovery_error(f, world.phi)
    rows = [
        Row(
            "CL is matrix factorisation",
            f"without f >= 0, k = {k} features span the top {k} eigenvectors of A_bar",
            f"sine of the largest angle {apart:.1e}; objective {excess:.1e} above the rest of the spectrum",
            apart < RECOVERED and abs(excess) < 1e-8,
        ),
        Row(
            "rotation symmetry",
            "without f >= 0, descent reaches objective 0 at a rotation of phi",
            f"gap {full.gap.min():.1e}; f = phi T to {left:.1e} with T'T = I to {skew:.1e}",
            bool(full.gap.min() < SOLVED and skew < RECOVERED and left < RECOVERED),
        ),
    ]
    if c > 1:
        rows.append(
            Row(
                "rotation symmetry",
                "and that rotation is arbitrary: the features are not phi's, and of both signs",
                f"largest difference from phi {off_axis:.2f}; {float((f < -1e-6).mean()):.0%} of entries negative",
                off_axis > RECOVERED and bool((f < -1e-6).any()),
            )
        )
    return rows


def two_modalities(world: World, *, seed: int = 0) -> list[Row]:
    """phi_V, phi_L are optimal, and found up to a permutation and a scale that one side gains and the other loses."""
    other = make.translated(world)
    table = joint(world, other)
    value = factorisation_objective(world.phi, other.phi, table)
    found = fit_pair(table, k=world.classes, map=maps.rep_relu, seed=seed, steps=1500)
    assert found.g is not None
    best = found.best()
    error = pair_error(found.f[0, best], found.g[0, best], world.phi, other.phi)
    gap, single = float(found.gap.min()), float((found.gap < SOLVED).mean())
    theorem = "multi-modal NCL"
    return [
        Row(theorem, "phi_V, phi_L have objective 0", f"{value:.1e}", value < EXACT),
        Row(
            theorem,
            "descent with rep_relu reaches objective 0",
            f"gap {gap:.1e}, the best of {found.gap.shape[1]} starts; {single:.0%} of single starts",
            gap < SOLVED,
        ),
        Row(
            theorem,
            "what it finds is phi_V, phi_L, up to a permutation and paired scaling",
            f"largest difference {error:.1e}",
            error < RECOVERED,
        ),
    ]


def independent_solver(world: World, *, seed: int = 0, starts: int = 8) -> list[Row]:
    """scikit-learn's NMF of A_bar, W H with no tie between W and H, finds the same columns up to scale."""
    best, error = math.inf, math.inf
    root = np.sqrt(world.marginal)[:, None]
    for start in range(starts):
        solver = NMF(
            n_components=world.classes,  # pyright: ignore[reportArgumentType]
            init="random",
            tol=1e-12,
            max_iter=4000,
            random_state=seed + start,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # how far it came is what is measured
            left = solver.fit_transform(world.co_occurrence)
        gap = float(np.square(world.co_occurrence - left @ solver.components_).sum())
        if gap < best:
            best = gap
            error = pair_error(left / root, solver.components_.T / root, world.phi, world.phi)
    return [
        Row(
            "an independent solver",
            "scikit-learn's NMF of A_bar finds phi's columns, up to order and scale",
            f"gap {best:.1e}, the best of {starts} starts; largest difference {error:.1e}",
            best < SOLVED and error < RECOVERED,
        )
    ]


@dataclass(frozen=True)
class Rotation:
    """What descent finds with and without f >= 0 (N x C, columns as phi's), and what turning two columns of phi costs.

    cost is the least objective over all pairs of columns, turned by each of `degrees` and cut at zero.
    """

    phi: np.ndarray
    nonnegative: np.ndarray
    signed: np.ndarray
    degrees: np.ndarray
    cost: np.ndarray


def rotation(world: World, *, seed: int = 0, steps: int = 700) -> Rotation:
    """For the picture: phi found, phi rotated, and the price of a rotation that has to stay non-negative."""
    found = []
    for map, signed in ((maps.rep_relu, False), (maps.identity, True)):
        fitted = fit([world], k=world.classes, map=map, starts=8, steps=steps, seed=seed, signed=signed)
        f = fitted.f[0, fitted.best()]
        found.append(f[:, matched(f, world.phi)])
    degrees = np.linspace(0, 45, 46)
    return Rotation(world.phi, found[0], found[1], degrees, np.array([_cost(world, np.radians(d)) for d in degrees]))


def _cost(world: World, angle: float) -> float:
    """The least objective after turning one column of phi towards another and cutting both at zero."""
    least, phi, joint = math.inf, world.phi, world.joint
    for i, j in permutations(range(world.classes), 2):
        f = phi.copy()
        f[:, i], f[:, j] = (
            np.cos(angle) * phi[:, i] - np.sin(angle) * phi[:, j],
            np.sin(angle) * phi[:, i] + np.cos(angle) * phi[:, j],
        )
        least = min(least, factorisation_objective(np.maximum(f, 0), np.maximum(f, 0), joint))
    return least
