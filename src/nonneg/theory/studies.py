"""All checks, on a world or on many: rows for the table, and what the figures show."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from threadpoolctl import threadpool_limits

from nonneg.errors import BadInput
from nonneg.progress import bar
from nonneg.theory import bounds, equivalence, generalisation, identifiability, optimum
from nonneg.theory import worlds as make
from nonneg.theory.bounds import Bound
from nonneg.theory.identifiability import Point
from nonneg.theory.optimum import Rotation
from nonneg.theory.row import Row
from nonneg.theory.worlds import World

LEAK = 0.2  # of the world beside the main one in which no sample is unique
Check = Callable[[], list[Row]]


@dataclass
class Study:
    """The rows, and the numbers behind some; of a world of one's own there are no sweeps over random ones.

    by_kind, by_overlap, by_width: how often phi was recovered; by_labels: (labels used, accuracy) by way of learning;
    bounds: in many worlds; rotations: of the world, and of one like it without unique samples.
    """

    world: World
    seed: int
    rows: list[Row] = field(default_factory=list)
    by_kind: list[Point] = field(default_factory=list)
    by_overlap: list[Point] = field(default_factory=list)
    by_width: list[Point] = field(default_factory=list)
    by_labels: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    bounds: list[Bound] = field(default_factory=list)
    rotations: list[Rotation] = field(default_factory=list)


def study(world: World | None = None, *, seed: int = 0) -> Study:
    """Every check: on `world`, or on a random one, a one-hot one, one with every image its own class, and sweeps."""
    if seed < 0:
        raise BadInput(f"the seed is {seed}: give 0 or more")
    result = Study(make.random_world(seed=seed, labels=3) if world is None else world, seed)
    make.check_solvable(result.world.classes, result.world.samples, result.world.k)
    checks = _on_one_world(result)
    if world is None:
        checks += _on_many_worlds(result)
    else:
        checks.append(("one-hot", partial(bounds.one_hot_features, world)))
        if world.k is not None:
            checks.append(("width", partial(identifiability.of_width, world, k=world.k, seed=seed)))
    with _one_thread(), bar("theory", len(checks)) as advance:
        for name, check in checks:
            advance(0, name)
            result.rows.extend(check())
            advance(1)
    return result


def run_all(world: World | None = None, *, seed: int = 0) -> list[Row]:
    """The rows of `study`."""
    return study(world, seed=seed).rows


def _on_one_world(result: Study) -> list[tuple[str, Check]]:
    world, seed = result.world, result.seed

    def learned() -> list[Row]:
        for name, learn in generalisation.learners(world, seed=seed).items():
            result.by_labels[name] = generalisation.curve(world, learn, seed=seed)
        return generalisation.generalisation(world, result.by_labels, seed=seed)

    def turned() -> list[Row]:
        if world.classes > 1:
            others = [] if not world.unique.all() else [make.leaking(world, LEAK)]
            result.rotations.extend(optimum.rotation(w, seed=seed) for w in (world, *others))
        return []

    return [
        ("equivalence", partial(equivalence.equivalence, world, seed=seed)),
        ("sampling", partial(equivalence.monte_carlo, world, seed=seed)),
        ("symmetry", partial(equivalence.symmetry, world, seed=seed)),
        ("optimum", partial(optimum.optimum, world, seed=seed)),
        ("smooth maps", partial(optimum.smooth_maps, world, seed=seed)),
        ("eigenvectors", partial(optimum.unconstrained, world, seed=seed)),
        ("two modalities", partial(optimum.two_modalities, world, seed=seed)),
        ("orthogonality", partial(bounds.orthogonality, world)),
        ("sparsity", partial(bounds.sparsity, world)),
        ("generalisation", learned),
        ("scikit-learn", partial(optimum.independent_solver, world, seed=seed)),
        ("rotations", turned),
    ]


def _on_many_worlds(result: Study) -> list[tuple[str, Check]]:
    seed = result.seed

    def bounded() -> list[Row]:
        result.bounds.extend(bounds.by_world(seed=seed))
        return bounds.in_many_worlds(result.bounds)

    def sweeps() -> list[Row]:
        result.by_kind.extend(identifiability.by_kind(seed=seed))
        result.by_overlap.extend(identifiability.by_overlap(seed=seed))
        result.by_width.extend(identifiability.by_width(seed=seed))
        return identifiability.identifiability(result.by_kind, result.by_overlap, result.by_width)

    def images() -> list[Row]:
        rows = optimum.optimum(make.every_image(), seed=seed)
        return [replace(r, claim=f"every image its own class: {r.claim}") for r in rows if r.theorem != "rep_relu"]

    return [
        ("bounds", bounded),
        ("one-hot", partial(bounds.one_hot_features, make.one_hot())),
        ("every image a class", images),
        ("identifiability", sweeps),
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """The tables are so small that threads, torch's or BLAS's, only wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
