"""Every theorem as a number: each check returns rows of theorem, claim, what was measured, and whether it holds.

Shapes: N samples, C latent classes, k features; f is N x k. A row's claim is the theorem's, whatever world is given: in
a world that breaks an assumption the row says that it does not hold.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from sklearn.decomposition import NMF
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from nonneg import losses, maps
from nonneg.errors import BadInput
from nonneg.progress import bar
from nonneg.theory import worlds as make
from nonneg.theory.objective import (
    RECOVERED,
    SOLVED,
    Fit,
    constant,
    factorisation_objective,
    fit,
    fit_pair,
    matched,
    merged,
    pair_error,
    polished,
    population_loss,
    recovery_error,
    room_to_rotate,
)
from nonneg.theory.worlds import World, joint

EXACT = 1e-10  # what two ways to compute one number may differ by
BATCHES = (32, 128, 512)  # pairs a batch, for the rate at which the sampled loss approaches its expectation
PAIRWISE = (losses.info_nce, losses.spectral, losses.clip)  # the losses that see features through inner products alone
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """One line of the table: which theorem, what it claims, what was measured, whether that agrees."""

    theorem: str
    claim: str
    measured: str
    holds: bool


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


@dataclass(frozen=True)
class Study:
    """The rows, and the curves behind some: recovery by kind of world, overlap and width; (labels, accuracy)."""

    rows: list[Row]
    by_kind: list[Point]
    by_overlap: list[Point]
    by_width: list[Point]
    by_labels: list[tuple[int, float]]


# Equivalence


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


def symmetry(world: World, *, seed: int = 0, draws: int = 100) -> list[Row]:
    """A loss of inner products does not see a rotation; the constraint f >= 0 does."""
    rng = np.random.default_rng(seed)
    theorem, c = "rotation symmetry", world.classes
    first, second = (torch.from_numpy(rng.normal(size=(64, c))) for _ in range(2))
    turn = torch.from_numpy(random_rotation(c, rng))
    rows = []
    for loss in PAIRWISE:
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


# Optimum


def optimum(world: World, *, seed: int = 0, starts: int = 16, steps: int = 1000) -> list[Row]:
    """phi is optimal; descent with relu and rep_relu finds it, from the loss alone."""
    phi, k = world.phi, world.classes
    value = factorisation_objective(phi, phi, world.joint)
    rows = [Row("optimal features", "phi(x) = P(c|x) / sqrt(P(c)) has objective 0", f"{value:.1e}", value < EXACT)]
    for map in (maps.relu, maps.rep_relu):
        found = fit([world], k=k, map=map, starts=starts, steps=steps, seed=seed)
        rows += _found(found, world, map.__name__)
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
    for map in (maps.softplus, maps.exp, maps.sigmoid) if off.any() else (maps.sigmoid,):  # without zeros two reach it
        early, late = (
            fit([world], k=world.classes, map=map, starts=starts, steps=n, seed=seed) for n in (steps, 3 * steps)
        )
        f = late.f[0, late.best()]
        f = f[:, matched(f, world.phi)]
        least = float(f.min())
        where = f"largest feature where phi is 0: {f[off].max():.2g}; " if off.any() else ""
        why = f"features stay below 1, phi goes to {world.phi.max():.2f}; " if map is maps.sigmoid else ""
        rows.append(
            Row(
                "choice of the map",
                f"{map.__name__} stays away from phi: its features are never 0"
                + (" and never above 1" if map is maps.sigmoid else ", it only creeps closer"),
                f"{why}{where}smallest feature {least:.1e}; "
                f"gap {early.gap.min():.2g} after {steps} steps, {late.gap.min():.2g} after {3 * steps}",
                bool(least > 0 and late.gap.min() > SOLVED),
            )
        )
    return rows


def unconstrained(world: World, *, seed: int = 0, steps: int = 1500) -> list[Row]:
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
    return [
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
        Row(
            "rotation symmetry",
            "and that rotation is arbitrary: the features are not phi's, and of both signs",
            f"largest difference from phi {off_axis:.2f}; {float((f < -1e-6).mean()):.0%} of entries negative",
            off_axis > RECOVERED and bool((f < -1e-6).any()),
        ),
    ]


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


# Orthogonality and sparsity


def one_hot_features(world: World) -> list[Row]:
    """One class a sample: phi(x) is one-hot / sqrt(P(c)), one feature active, E phi phi' = I (the paper's proof)."""
    active = (world.phi > 0).sum(axis=1)
    second = (world.phi.T * world.marginal) @ world.phi
    away = float(np.abs(second - np.eye(world.classes)).max())
    unscaled = (world.posterior.T * world.marginal) @ world.posterior
    printed = float(np.abs(unscaled - np.eye(world.classes)).max())
    theorem = "one-hot latent classes"
    return [
        Row(theorem, "exactly one feature is active a sample", f"{active.max()} at most", bool((active == 1).all())),
        Row(
            theorem,
            "E phi phi' = I, phi the one-hot vector over sqrt(P(c)) (the theorem's text leaves the root out)",
            f"largest difference {away:.1e}; without the root it would be {printed:.2f}",
            away < EXACT,
        ),
    ]


def orthogonality(world: World) -> list[Row]:
    """E phi_i phi_j <= epsilon / min P(c), epsilon = max E P(c_i|x) P(c_j|x)."""
    if world.classes < 2:
        return []
    second = (world.phi.T * world.marginal) @ world.phi
    largest = float((second - np.diag(second.diagonal())).max())
    bound = world.overlap / float(world.prior.min())
    return [
        Row(
            "orthogonality",
            "different features: E phi_i phi_j <= epsilon / min P(c)",
            f"{largest:.4f} <= {bound:.4f}, slack {bound - largest:.4f}; epsilon {world.overlap:.4f}",
            largest <= bound + EXACT,
        )
    ]


def sparsity(world: World) -> list[Row]:
    """1 - E sum_c P(c|x)^2 <= C (C - 1) epsilon; the number of active features is that of x's classes."""
    c = world.classes
    spread = 1 - float(world.marginal @ np.square(world.posterior).sum(axis=1))
    bound = c * (c - 1) * world.overlap
    rows = [
        Row(
            "sparsity",
            "E_x (1 - sum_c P(c|x)^2) <= C (C - 1) epsilon: little overlap leaves x to one class",
            f"{spread:.4f} <= {bound:.4f}, slack {bound - spread:.4f}",
            spread <= bound + EXACT,
        )
    ]
    if c > 1:
        thin = make.leaking(world, 1e-3)
        active = float(thin.marginal @ (thin.phi > 0).sum(axis=1))
        fewer = float(world.marginal @ (world.phi > 0).sum(axis=1))
        rows.append(
            Row(
                "sparsity",
                "but no epsilon > 0 bounds the number of active features: a leak of 0.001 turns all on",
                f"active features a sample {fewer:.2f} before, {active:.2f} after; epsilon {thin.overlap:.4f}",
                bool((thin.phi > 0).all()),
            )
        )
    return rows


# Generalisation


def head(world: World) -> np.ndarray:
    """W*_cy = sqrt(P(c)) where latent class c belongs to label y, else 0: C x labels."""
    return np.sqrt(world.prior)[:, None] * np.eye(int(world.labels.max()) + 1)[world.labels]


def accuracy(world: World, scores: np.ndarray) -> float:
    """The probability that argmax_y scores(x) is the label of x: sum_x P(x) P(y = argmax|x), exactly."""
    return float(world.marginal @ world.label_posterior[np.arange(world.samples), scores.argmax(axis=1)])


def probe_curve(
    world: World,
    f: np.ndarray,
    *,
    seed: int = 0,
    sizes: Sequence[int] = (10, 30, 100, 300, 1000, 10_000),
    draws: int = 20,
) -> list[tuple[int, float]]:
    """(labels used, accuracy) of a linear head by least squares on one-hot labels, the mean of some draws.

    E[one-hot y | x] = P(y|x) is linear in phi(x), so with enough labels least squares finds W* itself.
    """
    rng = np.random.default_rng(seed)
    one_hot = np.eye(int(world.labels.max()) + 1)
    curve = []
    for n in sizes:
        scores = []
        for _ in range(draws):
            x, y = world.labelled(n, rng)
            scores.append(accuracy(world, f @ np.linalg.lstsq(f[x], one_hot[y], rcond=None)[0]))
        curve.append((n, float(np.mean(scores))))
    return curve


def generalisation(world: World, curve: list[tuple[int, float]], *, seed: int = 0) -> list[Row]:
    """W*' phi(x) = P(y|x), so its argmax is Bayes optimal; a learned head approaches it."""
    away = float(np.abs(world.phi @ head(world) - world.label_posterior).max())
    bayes, reached = (accuracy(world, s) for s in (world.label_posterior, world.phi @ head(world)))
    x, y = world.labelled(200_000, np.random.default_rng(seed))
    counted = float((world.label_posterior[x].argmax(axis=1) == y).mean())
    (few, low), (many, high) = curve[0], curve[-1]
    theorem = "downstream generalisation"
    return [
        Row(theorem, "the closed-form head gives W*' phi(x) = P(y|x)", f"largest difference {away:.1e}", away < EXACT),
        Row(
            theorem,
            "so it is Bayes optimal",
            f"accuracy {reached:.4f}, Bayes {bayes:.4f} (counted on 200,000 draws: {counted:.4f})",
            abs(reached - bayes) < EXACT and abs(counted - bayes) < 0.005,
        ),
        Row(
            theorem,
            "a linear head learned from labelled samples approaches it",
            f"accuracy {low:.4f} with {few} labels, {high:.4f} with {many}",
            high > bayes - 0.005 and high >= low,
        ),
    ]


# Identifiability, over many random worlds


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


# Another solver


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
            error < 0.01,
        )
    ]


# All of it

Check = Callable[[], list[Row]]


def study(world: World | None = None, *, seed: int = 0) -> Study:
    """Every check: on `world`, or on a random one, a one-hot one, one with every image its own class, and sweeps."""
    if seed < 0:
        raise BadInput(f"the seed is {seed}: give 0 or more")
    main = make.random_world(seed=seed, labels=3) if world is None else world
    result = Study([], [], [], [], [])
    checks = _on_one_world(main, result, seed=seed)
    if world is None:
        checks += _on_many_worlds(result, seed=seed)
    elif main.overlap == 0:
        checks.append(("one-hot", partial(one_hot_features, main)))
    with _one_thread(), bar("theory", len(checks)) as advance:
        for name, check in checks:
            advance(0, name)
            result.rows.extend(check())
            advance(1)
    return result


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tables are so small that threads only wait for each other, most of all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_all(world: World | None = None, *, seed: int = 0) -> list[Row]:
    """The rows of `study`."""
    return study(world, seed=seed).rows


def _on_one_world(world: World, result: Study, *, seed: int) -> list[tuple[str, Check]]:
    def probe() -> list[Row]:
        result.by_labels.extend(probe_curve(world, world.phi, seed=seed))
        return generalisation(world, result.by_labels, seed=seed)

    return [
        ("equivalence", partial(equivalence, world, seed=seed)),
        ("sampling", partial(monte_carlo, world, seed=seed)),
        ("symmetry", partial(symmetry, world, seed=seed)),
        ("optimum", partial(optimum, world, seed=seed)),
        ("smooth maps", partial(smooth_maps, world, seed=seed)),
        ("eigenvectors", partial(unconstrained, world, seed=seed)),
        ("two modalities", partial(two_modalities, world, seed=seed)),
        ("orthogonality", partial(orthogonality, world)),
        ("sparsity", partial(sparsity, world)),
        ("generalisation", probe),
        ("scikit-learn", partial(independent_solver, world, seed=seed)),
    ]


def _on_many_worlds(result: Study, *, seed: int) -> list[tuple[str, Check]]:
    def sweeps() -> list[Row]:
        result.by_kind.extend(by_kind(seed=seed))
        result.by_overlap.extend(by_overlap(seed=seed))
        result.by_width.extend(by_width(seed=seed))
        return identifiability(result.by_kind, result.by_overlap, result.by_width)

    def images() -> list[Row]:
        rows = optimum(make.every_image(), seed=seed)
        return [replace(r, claim=f"every image its own class: {r.claim}") for r in rows if r.theorem != "rep_relu"]

    return [
        ("one-hot", partial(one_hot_features, make.one_hot())),
        ("every image a class", images),
        ("identifiability", sweeps),
    ]
