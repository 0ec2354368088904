"""Orthogonality and sparsity of phi, and the bounds that small overlap puts on both. C latent classes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nonneg.theory import worlds as make
from nonneg.theory.row import EXACT, Row
from nonneg.theory.worlds import World

LEAK = 1e-3  # so small a part of every class's samples, taken from all classes
MOVES = 2 * LEAK  # epsilon at most: sum over c, x of |change of P(c, x)|, for its derivatives are between -1 and 1


@dataclass(frozen=True)
class Bound:
    """What is bounded and its bound, in one world: the largest E phi_i phi_j, i != j, and E (1 - sum_c P(c|x)^2)."""

    overlap: float  # the world's knob
    product: float
    product_bound: float
    spread: float
    spread_bound: float


def bound(world: World, *, overlap: float = 0.0) -> Bound:
    """max E phi_i phi_j <= epsilon / min P(c), and E (1 - sum_c P(c|x)^2) <= C (C - 1) epsilon."""
    second, c = (world.phi.T * world.marginal) @ world.phi, world.classes
    return Bound(
        overlap,
        float(np.max(second - np.diag(second.diagonal()), initial=0.0)),
        world.overlap / float(world.prior.min()),
        1 - float(world.marginal @ np.square(world.posterior).sum(axis=1)),
        c * (c - 1) * world.overlap,
    )


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
    found = bound(world)
    return [
        Row(
            "orthogonality",
            "different features: E phi_i phi_j <= epsilon / min P(c)",
            f"{found.product:.4f} <= {found.product_bound:.4f}, slack {found.product_bound - found.product:.4f}; "
            f"epsilon {world.overlap:.4f}",
            found.product <= found.product_bound + EXACT,
        )
    ]


def sparsity(world: World) -> list[Row]:
    """1 - E sum_c P(c|x)^2 <= C (C - 1) epsilon; the number of active features is that of x's classes."""
    found = bound(world)
    rows = [
        Row(
            "sparsity",
            "E_x (1 - sum_c P(c|x)^2) <= C (C - 1) epsilon: little overlap leaves x to one class",
            f"{found.spread:.4f} <= {found.spread_bound:.4f}, slack {found.spread_bound - found.spread:.4f}",
            found.spread <= found.spread_bound + EXACT,
        )
    ]
    if (world.phi == 0).any():  # else all features are on already
        thin = make.leaking(world, LEAK)
        fewer, active = (float(w.marginal @ (w.phi > 0).sum(axis=1)) for w in (world, thin))
        moved = abs(thin.overlap - world.overlap)
        rows.append(
            Row(
                "sparsity",
                f"but no epsilon > 0 bounds the number of active features: a leak of {LEAK} turns all on and moves "
                f"epsilon by {MOVES} at most",
                f"active features a sample {fewer:.2f} before, {active:.2f} after; epsilon {world.overlap:.4f} before, "
                f"{thin.overlap:.4f} after",
                fewer < active and bool((thin.phi > 0).all()) and moved <= MOVES,
            )
        )
    return rows


def by_world(
    *, seed: int = 0, count: int = 6, overlaps: Sequence[float] = tuple(i / 10 for i in range(1, 11))
) -> list[Bound]:
    """Both bounds in random worlds of 3 to 8 classes, from little overlap to all of it."""
    rng = np.random.default_rng(seed)
    return [
        bound(make.random_world(classes=int(rng.integers(3, 9)), overlap=o, seed=int(rng.integers(2**31))), overlap=o)
        for o in overlaps
        for _ in range(count)
    ]


def in_many_worlds(found: Sequence[Bound]) -> list[Row]:
    """Whether the bounds hold in all these worlds, and how near they are to what they bound."""
    rows = []
    for theorem, pairs in (
        ("orthogonality", [(b.product, b.product_bound) for b in found]),
        ("sparsity", [(b.spread, b.spread_bound) for b in found]),
    ):
        value, limit = np.array(pairs).T
        kept, used = int((value <= limit + EXACT).sum()), value / limit
        rows.append(
            Row(
                theorem,
                "the bound holds in random worlds of any overlap",
                f"in {kept} of {len(found)}; {used.mean():.0%} of it is used on average, {used.max():.0%} at most",
                kept == len(found),
            )
        )
    return rows
