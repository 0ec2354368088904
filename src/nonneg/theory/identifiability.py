"""Is what is found phi? Over many random worlds: by kind of world, by overlap, by the number of features.

N samples, C latent classes, k features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nonneg import maps
from nonneg.theory import worlds as make
from nonneg.theory.objective import (
    RECOVERED,
    SOLVED,
    factorisation_objective,
    fit,
    matched,
    merged,
    polished,
    recovery_error,
)
from nonneg.theory.row import Row
from nonneg.theory.worlds import World


@dataclass(frozen=True)
class Point:
    """How often phi was recovered, over many random worlds, at x: shares of starts, and of worlds (the best start).

    descent: starts where gradient descent alone ends at phi; the others are taken after bounded L-BFGS has gone on from
    there. solved: starts with an objective below 1e-10; single, best: starts and worlds at phi; single_merged,
    best_merged: the same after parallel columns were made one; columns: the share of columns, merged and matched, of
    the best start that are columns of phi.
    """

    x: float | str
    descent: float
    solved: float
    single: float
    best: float
    single_merged: float
    best_merged: float
    columns: float


def recovery(
    worlds: Sequence[World], *, x: float | str, k: int | None = None, starts: int = 8, steps: int = 700, seed: int = 0
) -> Point:
    """How often rep_relu, and bounded L-BFGS after it, end at phi in these worlds, which have one size."""
    found = fit(
        worlds, k=worlds[0].classes if k is None else k, map=maps.rep_relu, starts=starts, steps=steps, seed=seed
    )
    raw, gap, plain, joined, columns = (np.empty((len(worlds), starts)) for _ in range(5))
    for w, world in enumerate(worlds):
        for s in range(starts):
            f = polished(found.f[w, s], world)
            gap[w, s] = factorisation_objective(f, f, world.joint)
            raw[w, s], plain[w, s] = recovery_error(found.f[w, s], world.phi), recovery_error(f, world.phi)
            f = merged(f)
            joined[w, s], columns[w, s] = recovery_error(f, world.phi), columns_found(f, world.phi)
    chosen = np.arange(len(worlds)), gap.argmin(axis=1)
    raw, plain, joined = raw < RECOVERED, plain < RECOVERED, joined < RECOVERED
    shares = (raw, gap < SOLVED, plain, plain[chosen], joined, joined[chosen], columns[chosen])
    return Point(x, *(float(share.mean()) for share in shares))


def columns_found(f: np.ndarray, phi: np.ndarray) -> float:
    """The share of matched columns (as many as the narrower has) that are columns of phi, to 1e-3."""
    partner = matched(f, phi)
    both = np.flatnonzero(partner >= 0)
    return float((np.abs(f[:, partner[both]] - phi[:, both]).max(axis=0) < RECOVERED).mean()) if len(both) else 0.0


def by_kind(*, seed: int = 0, count: int = 6) -> list[Point]:
    """Worlds with unique samples; with none, but with zeros in P(c|x); with none and every sample in every class."""
    plain = _random_worlds(count, seed=seed)
    kinds = {
        "unique samples": plain,
        "none unique, two or three classes a sample": [make.chained(w, 0.2) for w in plain],
        "none unique, all classes in every sample": [make.leaking(w, 0.2) for w in plain],
    }
    return [recovery(some, x=name, seed=seed) for name, some in kinds.items()]


def by_overlap(*, seed: int = 0, count: int = 4, overlaps: Sequence[float] = (0.1, 0.3, 0.5, 0.7, 0.9)) -> list[Point]:
    """Unique samples throughout, ever rarer."""
    return [recovery(_random_worlds(count, seed=seed, overlap=o), x=o, seed=seed) for o in overlaps]


def by_width(*, seed: int = 0, count: int = 6, classes: int = 6) -> list[Point]:
    """k below, at and above the number of latent classes."""
    some = _random_worlds(count, seed=seed, classes=classes)
    return [recovery(some, x=k, k=k, seed=seed) for k in (classes - 2, classes - 1, classes, classes + 2, 2 * classes)]


def of_width(world: World, *, k: int, seed: int = 0) -> list[Row]:
    """What k features find in one world: nothing exact below the number of classes, phi at it, phi in parts above."""
    found, c = recovery([world], x=k, k=k, seed=seed), world.classes
    if k < c:
        claim, holds = f"with k = {k}, below the {c} classes, objective 0 is out of reach", found.solved == 0
        measured = f"{found.solved:.0%} of starts reach 0, {found.columns:.0%} of columns are phi's"
    else:
        claim = f"with k = {k}, " + (f"above the {c} classes, parallel columns merge to phi" if k > c else "it is phi")
        holds = found.best_merged == 1 and found.solved > 0
        measured = (
            f"{found.solved:.0%} of starts reach objective 0, {found.single:.0%} at phi before merging, "
            f"{found.single_merged:.0%} after; the best by loss is {'' if found.best_merged else 'not '}phi"
        )
    return [Row("unique solution", claim, measured, holds)]


def _random_worlds(count: int, *, seed: int, overlap: float = 0.3, classes: int = 6) -> list[World]:
    return [make.random_world(seed=1000 * seed + i, overlap=overlap, classes=classes) for i in range(count)]


def identifiability(kinds: list[Point], overlaps: list[Point], widths: list[Point], *, classes: int = 6) -> list[Row]:
    """What the three sweeps say about the uniqueness theorem."""
    unique, chained, dense = kinds
    at = next(p for p in widths if p.x == classes)
    below, above = ([p for p in widths if (float(p.x) - classes) * side > 0] for side in (-1, 1))
    theorem = "unique solution"
    return [
        Row(
            theorem,
            "with a unique sample for every class, what is found is phi",
            f"{unique.best:.0%} of random worlds by the best start; single starts {unique.descent:.0%}",
            unique.best == 1,
        ),
        Row(
            theorem,
            "without, and every class in every sample, other solutions are as good",
            f"{dense.solved:.0%} of starts reach objective 0, {dense.single:.0%} at phi",
            dense.solved > 0.5 and dense.single < 0.1,
        ),
        Row(
            theorem,
            "without, zeros of P(c|x) alone do not make up for it: there are isolated other solutions",
            f"two or three classes a sample: {chained.solved:.0%} reach objective 0, {chained.single:.0%} at phi",
            chained.solved > 0.5 and chained.single < 0.9,
        ),
        Row(
            theorem,
            "overlap does not matter as long as unique samples exist",
            "; ".join(f"overlap {p.x}: {p.best:.0%} (single starts {p.descent:.0%})" for p in overlaps),
            all(p.best == 1 for p in overlaps),
        ),
        Row(
            theorem,
            "with k below the number of classes objective 0 is out of reach, and most columns are none of phi's",
            "; ".join(f"k = {p.x}: {p.solved:.0%} reach 0, {p.columns:.0%} of columns are phi's" for p in below),
            all(p.solved == 0 and p.columns < 0.5 for p in below),
        ),
        Row(
            theorem,
            "with k at the number of classes they are",
            f"k = {at.x}: {at.best:.0%} (single starts {at.descent:.0%})",
            at.best == 1,
        ),
        Row(
            theorem,
            "with k above, a class may split into parallel columns at no loss; merged, they are phi again",
            "; ".join(f"k = {p.x}: {p.best:.0%} before merging, {p.best_merged:.0%} after" for p in above),
            all(p.best_merged == 1 and p.best < 1 for p in above),
        ),
    ]
