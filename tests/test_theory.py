"""The theory against loops over samples, known answers and other solvers. N samples, C latent classes, k features."""

import html
import inspect
import io
import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.decomposition import NMF
from threadpoolctl import threadpool_info
from torch import Tensor

from nonneg import losses, maps, theory
from nonneg.errors import BadInput
from nonneg.theory import bounds, equivalence, generalisation, identifiability, optimum, report
from nonneg.theory import objective as ob
from nonneg.theory.worlds import drawn, joint


def by_hand() -> theory.World:
    """Two classes, three samples: the middle one is shared."""
    return theory.World(np.array([0.25, 0.75]), np.array([[0.6, 0.4, 0.0], [0.0, 0.2, 0.8]]), np.array([0, 1]))


def some_worlds() -> list[theory.World]:
    plain = theory.random_world(seed=3, classes=4, overlap=0.4)
    return [by_hand(), theory.one_hot(classes=3), plain, theory.leaking(plain, 0.3), theory.every_image(images=4)]


# Worlds


@pytest.mark.parametrize("world", some_worlds())
def test_everything_follows_from_prior_and_conditional_by_loops(world: theory.World) -> None:
    c_all, n_all = range(world.classes), range(world.samples)
    p, q = world.prior, world.conditional
    marginal = [sum(p[c] * q[c, x] for c in c_all) for x in n_all]
    for x, y in itertools.product(n_all, n_all):
        both = sum(p[c] * q[c, x] * q[c, y] for c in c_all)
        assert world.joint[x, y] == pytest.approx(both, abs=1e-15)
        assert world.co_occurrence[x, y] == pytest.approx(both / (marginal[x] * marginal[y]) ** 0.5, abs=1e-14)
    for x, c in itertools.product(n_all, c_all):
        assert world.posterior[x, c] == pytest.approx(p[c] * q[c, x] / marginal[x])
        assert world.phi[x, c] == pytest.approx(p[c] ** 0.5 * q[c, x] / marginal[x])
    shared = [
        sum(marginal[x] * world.posterior[x, i] * world.posterior[x, j] for x in n_all)
        for i, j in itertools.permutations(c_all, 2)
    ]
    assert world.overlap == pytest.approx(max(shared), abs=1e-15)
    assert world.joint.sum() == pytest.approx(1) and world.label_posterior.sum(axis=1) == pytest.approx(1)


def test_a_world_by_hand() -> None:
    world = by_hand()
    assert world.marginal == pytest.approx([0.15, 0.25, 0.6])
    assert world.posterior == pytest.approx(np.array([[1, 0], [0.4, 0.6], [0, 1]]))
    assert world.overlap == pytest.approx(0.25 * 0.4 * 0.6)
    assert world.unique.tolist() == [True, True]


def test_kinds_of_worlds_are_what_they_say() -> None:
    assert theory.one_hot().overlap == 0 and ((theory.one_hot().posterior > 0).sum(axis=1) == 1).all()
    ring = theory.overlapping(classes=5, per_class=2, overlap=0.3)
    assert ring.samples == 15 and ring.unique.all()
    assert ring.conditional[:, 10:].sum(axis=1) == pytest.approx(0.3)
    assert not theory.overlapping(overlap=1.0).unique.any()
    assert not theory.leaking(ring, 0.01).unique.any() and (theory.leaking(ring, 0.01).posterior > 0).all()
    chain = theory.chained(ring, 0.1)
    assert not chain.unique.any() and (chain.posterior == 0).any()
    images = theory.every_image(images=5, views=2, overlap=0.1)
    assert images.prior == pytest.approx(0.2) and images.posterior[-1] == pytest.approx(0.2)
    assert images.unique.all() and images.samples == 11
    a, b = theory.random_world(seed=4), theory.random_world(seed=4)
    assert (a.conditional == b.conditional).all() and (a.prior != theory.random_world(seed=5).prior).any()
    assert a.prior.min() >= 0.5 / a.classes


def test_drawn_pairs_follow_the_joint_distribution() -> None:
    world, n = by_hand(), 200_000
    first, second = world.pairs(n, np.random.default_rng(0))
    counted = np.zeros((3, 3))
    np.add.at(counted, (first, second), 1 / n)
    assert counted == pytest.approx(world.joint, abs=5 * 0.5 / n**0.5)
    x, y = world.labelled(n, np.random.default_rng(1))
    for sample in range(3):
        assert (y[x == sample] == 1).mean() == pytest.approx(world.label_posterior[sample, 1], abs=0.02)


@pytest.mark.parametrize(
    ("prior", "conditional", "labels", "says"),
    [
        ([0.5, 0.6], [[1.0], [1.0]], [0, 1], r"P\(c\) sums to 1.1, not to 1"),
        ([0.0, 1.0], [[1.0], [1.0]], [0, 1], "latent class 0 has probability 0: leave it out"),
        ([-0.5, 1.5], [[1.0], [1.0]], [0, 1], "negative or not finite"),
        ([np.nan, 1.0], [[1.0], [1.0]], [0, 1], "negative or not finite"),
        ([], np.zeros((0, 1)), [], "one probability for every latent class"),
        ([0.5, 0.5], [[0.5, 0.5], [0.5, 0.4]], [0, 1], r"latent class 1 sums to 0.9, not to 1"),
        ([0.5, 0.5], [[1.5, -0.5], [0.5, 0.5]], [0, 1], "negative or not finite"),
        ([0.5, 0.5], [[0.5, 0.5]], [0, 1], "give 2 rows"),
        ([0.5, 0.5], [[1.0, 0.0], [1.0, 0.0]], [0, 1], "sample 1 has probability 0"),
        ([0.5, 0.5], [[1.0], [1.0]], [0], "labels must be 2 whole numbers"),
        ([0.5, 0.5], [[1.0], [1.0]], [0, -1], "labels must be 2 whole numbers"),
        ([0.5, 0.5], [[1.0], [1.0]], [0.0, 1.0], "labels must be 2 whole numbers"),
    ],
)
def test_an_impossible_world_gets_one_sentence(prior: list, conditional: list, labels: list, says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        theory.World(np.array(prior), np.array(conditional), np.array(labels))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("overlap=1.2", "an overlap of 1.2 is impossible"),
        ("overlap=-0.1", "an overlap of -0.1 is impossible"),
        ("overlap=nan", "an overlap of nan is impossible"),
        ("classes=1,overlap=0.2", "impossible with one class"),
        ("classes=0", "classes is 0"),
        ("per_class=0", "per_class is 0"),
        ("labels=9", "9 labels for 6 latent classes"),
        ("leak=1", "leak is 1.0"),
        ("classes=1,overlap=0,leak=0.1", "no other class"),
        ("overlapp=0.1", "did you mean 'overlap'"),
        ("overlap", "is not name=number"),
        ("classes=two", "classes='two' should be a whole number"),
        ("classes=2.5", "should be a whole number"),
        ("overlap=much", "should be a number"),
        ("classes=3,classes=4", "classes is given twice"),
        ("seed=-1", "the seed must be 0 or more"),
        ("k=0", "k is 0: give 1 feature or more"),
        ("classes=1000000", "classes = 1000000 takes too long to solve: give 16 at most"),
        ("per_class=40", "samples = 246 takes too long"),
        ("k=999", "k = 999 takes too long"),
        ("", "the world is empty"),
        (" , ", "the world is empty"),
        ("nowhere.json", "nowhere.json does not exist"),
    ],
)
def test_a_bad_description_gets_one_sentence(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=re.escape(says)):
        theory.parse(text)


def test_a_description_is_parsed() -> None:
    world = theory.parse("overlap=0.2, classes=8")
    same = theory.overlapping(classes=8, overlap=0.2)
    assert (world.conditional == same.conditional).all() and world.classes == 8
    assert theory.parse("k=3").k == 3 and theory.parse("leak=0.1,k=9").k == 9 and world.k is None
    assert (theory.parse("seed=7").prior == theory.random_world(seed=7, overlap=0.2).prior).all()
    assert not theory.parse("leak=0.1").unique.any()
    assert theory.parse("classes=1,overlap=0").classes == 1


def test_a_world_is_read_from_a_file(tmp_path: Path) -> None:
    path, world = tmp_path / "mine.json", by_hand()
    given = {"prior": world.prior.tolist(), "conditional": world.conditional.tolist(), "labels": [0, 1], "k": 3}
    path.write_text(json.dumps(given))
    found = theory.parse(str(path))
    assert (found.conditional == world.conditional).all() and (found.prior == world.prior).all() and found.k == 3
    assert found.labels.tolist() == [0, 1]
    for change, says in (
        ({"prior": [0.5, 0.6]}, r"P\(c\) sums to 1.1, not to 1"),
        ({"prior": [0, 1]}, "latent class 0 has probability 0: leave it out"),
        ({"conditional": [[1.0], [0.9]]}, "latent class 1 sums to 0.9, not to 1"),
        ({"conditional": [[1.0], [0.5, 0.5]]}, "all of one length"),
        ({"prior": "half"}, "prior is a list of numbers"),
        ({"labels": [0.5, 1]}, "labels must be 2 whole numbers"),
        ({"labels": "ab"}, "labels must be 2 whole numbers"),
        ({"k": 0}, "k is 0: give 1 feature or more"),
        ({"k": 2.5}, "k is 2.5; give a whole number"),
        ({"prio": []}, "unknown entry .*did you mean 'prior'"),
    ):
        path.write_text(json.dumps(given | change))
        with pytest.raises(BadInput, match=says) as caught:
            theory.parse(str(path))
        assert "mine.json" in str(caught.value) and "\n" not in str(caught.value)
    for text in ("[1]", "{}"):
        path.write_text(text)
        with pytest.raises(BadInput, match="a JSON object of prior, conditional and labels"):
            theory.parse(str(path))


def test_a_world_too_large_to_solve_is_refused_before_it_is_tried() -> None:
    with pytest.raises(BadInput, match="classes = 30 takes too long"):
        theory.study(theory.one_hot(classes=30))


def test_a_world_cannot_be_changed() -> None:
    given = np.array([0.25, 0.75])
    world = theory.World(given, by_hand().conditional, np.array([0, 1]))
    given[0] = 9
    assert world.prior[0] == 0.25
    with pytest.raises(ValueError, match="read-only"):
        world.prior[0] = 0.5


# Equivalence


@pytest.mark.parametrize("world", some_worlds())
def test_the_loss_is_an_expectation_and_a_factorisation(world: theory.World) -> None:
    rng = np.random.default_rng(0)
    other = theory.translated(world)
    table = joint(world, other)
    f, g = rng.exponential(size=(world.samples, 3)), rng.exponential(size=(other.samples, 3))
    slow = nmf = 0.0
    for x, y in itertools.product(range(world.samples), range(other.samples)):
        inner, p, q = float(f[x] @ g[y]), world.marginal[x], other.marginal[y]
        slow += -2 * table[x, y] * inner + p * q * inner**2
        nmf += (table[x, y] / (p * q) ** 0.5 - (p * q) ** 0.5 * inner) ** 2
    assert ob.population_loss(f, g, table) == pytest.approx(slow, abs=1e-10)
    assert ob.factorisation_objective(f, g, table) == pytest.approx(nmf, abs=1e-10)
    assert slow == pytest.approx(nmf - ob.constant(table), abs=1e-10)
    assert all(row.holds for row in equivalence.equivalence(world))


def test_the_training_loss_averages_to_the_population_loss() -> None:
    """All ordered batches of two pairs, each with its probability: exact, no sampling."""
    world = by_hand()
    f = torch.rand(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = list(itertools.product(range(3), range(3)))
    mean = 0.0
    for (a, b), (c, d) in itertools.product(pairs, pairs):
        weight = world.joint[a, b] * world.joint[c, d]
        mean += weight * losses.spectral(f[[a, c]], f[[b, d]]).item()
    assert mean == pytest.approx(ob.population_loss(f.numpy(), f.numpy(), world.joint), abs=1e-12)


def positives_kept(z1: Tensor, z2: Tensor) -> Tensor:
    gram = z1 @ z2.T
    return gram.square().mean() - 2 * gram.diagonal().mean()


def one_side_alone(z1: Tensor, z2: Tensor) -> Tensor:
    gram = z1 @ z1.T
    apart = gram.square().sum() - gram.diagonal().square().sum()
    return apart / (len(z1) * (len(z1) - 1)) - 2 * (z1 * z2).sum(1).mean()


@pytest.mark.parametrize(
    ("wrong", "biased"), [(losses.spectral, [0, 0]), (positives_kept, [1, 1]), (one_side_alone, [0, 1])]
)
def test_the_monte_carlo_check_notices_a_biased_loss(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[Tensor, Tensor], Tensor], biased: list[int]
) -> None:
    """Positives in the second term bias both cases; images compared with images alone, that of two modalities."""
    monkeypatch.setattr(losses, "spectral", wrong)
    rows = equivalence.monte_carlo(theory.random_world(seed=0, overlap=0.8), repeats=150)
    assert [row.theorem for row in rows[::2]] == ["NCL is symmetric NMF", "multi-modal NCL is asymmetric NMF"]
    assert [not row.holds for row in rows[::2]] == biased  # the other rows are about the rate
    if not any(biased):
        assert all(row.holds for row in rows)


def test_two_modalities_are_drawn_from_a_shared_class() -> None:
    world, n = by_hand(), 200_000
    other = theory.translated(world)
    counted = np.zeros((world.samples, other.samples))
    np.add.at(counted, drawn(world, other, n, np.random.default_rng(0)), 1 / n)
    assert counted == pytest.approx(joint(world, other), abs=5 * 0.5 / n**0.5)


def test_a_world_of_one_pair_has_no_sampling_error_to_measure() -> None:
    rows = equivalence.monte_carlo(theory.parse("classes=1,overlap=0,per_class=1"), repeats=20)
    assert {row.theorem for row in rows} == {"multi-modal NCL is asymmetric NMF"}


# Symmetry


def test_every_loss_of_the_package_is_in_the_symmetry_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(equivalence.pairwise_losses(torch.zeros(2))) == {"info_nce", "supcon", "clip", "spectral"}
    rows = [row for row in equivalence.symmetry(by_hand()) if "after a random rotation" in row.claim]
    assert [row.claim.split()[0] for row in rows] == ["info_nce", "supcon", "clip", "spectral"]
    assert all(row.holds for row in rows)

    def supcon(z1: Tensor, z2: Tensor, labels: Tensor) -> Tensor:
        assert len(labels.unique()) == 2  # the world's
        return z1[labels == 0, 0].sum() + z2.sum()

    supcon.__module__ = losses.__name__
    monkeypatch.setattr(losses, "supcon", supcon)
    assert [row.holds for row in equivalence.symmetry(by_hand())[:4]] == [True, False, True, True]


def test_rotations_leave_losses_alone_and_the_l1_penalty_does_not() -> None:
    rng = np.random.default_rng(1)
    turn = equivalence.random_rotation(4, rng)
    assert turn.T @ turn == pytest.approx(np.eye(4), abs=1e-12)
    a, b, r = (torch.from_numpy(v) for v in (rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), turn))
    assert losses.spectral(a @ r, b @ r).item() == pytest.approx(losses.spectral(a, b).item())
    assert abs(losses.spectral(a @ r, b @ r, l1=1.0) - losses.spectral(a, b, l1=1.0)) > 1e-3
    assert all(row.holds for row in equivalence.symmetry(theory.random_world(seed=2)))


def test_room_to_rotate_by_hand() -> None:
    phi = np.array([[2.0, 1.0], [1.0, 2.0]])
    assert ob.room_to_rotate(phi) == pytest.approx(np.degrees(np.arctan(0.5)))
    angle = np.arctan(0.5)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    assert (phi @ turn).min() == pytest.approx(0, abs=1e-12)  # just allowed
    assert ob.room_to_rotate(np.eye(3)) == 0


# Optimum and uniqueness


@pytest.mark.parametrize("world", some_worlds())
def test_phi_has_objective_zero_in_every_world(world: theory.World) -> None:
    assert ob.factorisation_objective(world.phi, world.phi, world.joint) < 1e-25
    other = theory.translated(world)
    assert ob.factorisation_objective(world.phi, other.phi, joint(world, other)) < 1e-25


@pytest.mark.parametrize("map", [maps.relu, maps.rep_relu])
def test_descent_finds_phi_where_samples_are_unique(map: Callable[[Tensor], Tensor]) -> None:
    world = theory.random_world(seed=0, classes=4)
    found = ob.fit([world], k=4, map=map, steps=700)
    assert found.gap.min() < ob.SOLVED
    assert ob.recovery_error(found.f[0, found.best()], world.phi) < ob.RECOVERED
    assert (found.f >= 0).all()


def test_without_unique_samples_the_same_loss_is_reached_elsewhere() -> None:
    world = theory.leaking(theory.random_world(seed=0, classes=4), 0.3)
    found = ob.fit([world], k=4, map=maps.rep_relu)
    assert found.gap.min() < ob.SOLVED
    assert ob.recovery_error(found.f[0, found.best()], world.phi) > 0.01
    failed = [row for row in equivalence.symmetry(world) if not row.holds]
    assert [row.theorem for row in failed] == ["unique solution"]


def test_the_solver_solves_each_world_as_if_alone() -> None:
    some = [theory.random_world(seed=s, classes=3) for s in range(2)]
    both = ob.fit(some, k=3, map=maps.rep_relu, starts=6, steps=600)
    for i, world in enumerate(some):
        assert both.gap[i].min() < ob.SOLVED
        assert ob.recovery_error(both.f[i, both.best(i)], world.phi) < ob.RECOVERED


def test_bounded_descent_agrees_with_scikit_learn() -> None:
    world = theory.random_world(seed=1, classes=3)
    f = ob.polished(np.random.default_rng(0).random((world.samples, 3)), world)
    solver = NMF(
        n_components=3,  # pyright: ignore[reportArgumentType]
        init="random",
        tol=1e-12,
        max_iter=4000,
        random_state=0,
    )
    left = solver.fit_transform(world.co_occurrence)
    root = np.sqrt(world.marginal)[:, None]
    assert ob.pair_error(left / root, solver.components_.T / root, f, f) < 1e-4
    assert all(row.holds for row in optimum.independent_solver(world))


@pytest.mark.parametrize("knobs", [{"k": 0}, {"k": -1}, {"k": 2, "starts": 0}, {"k": 2, "steps": 0}])
def test_k_below_one_gets_one_sentence(knobs: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="give 1 or more"):
        ob.fit([by_hand()], map=maps.relu, **knobs)
    with pytest.raises(BadInput, match="give 1 or more"):
        ob.fit_pair(by_hand().joint, map=maps.relu, **knobs)


def test_worlds_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(BadInput, match="same number of samples"):
        ob.fit([by_hand(), theory.one_hot()], k=2, map=maps.relu)
    with pytest.raises(BadInput, match="same number of samples"):
        ob.fit([], k=2, map=maps.relu)
    with pytest.raises(BadInput, match="same latent classes"):
        joint(by_hand(), theory.one_hot())
    with pytest.raises(BadInput, match="the seed is -1"):
        theory.run_all(seed=-1)


# Worlds as oracles: every map and every loss of the package


def every_map() -> list[Callable[[Tensor], Tensor]]:
    return [f for f in vars(maps).values() if inspect.isfunction(f) and f.__module__ == maps.__name__]


def test_every_map_ends_where_the_theory_says_in_a_solvable_world() -> None:
    """phi has zeros and values above 1: which maps can reach it follows from their range alone."""
    world = theory.random_world(seed=0, classes=3)
    assert world.phi.min() == 0 and world.phi.max() > 1
    reach = torch.linspace(-60, 60, 2001, dtype=torch.float64)
    for map in every_map():
        values = map(reach)
        found = ob.fit([world], k=3, map=map, starts=8, steps=600, signed=map is maps.identity)
        f = found.f[0, found.best()]
        error = ob.recovery_error(f, world.phi)
        if values.min() < 0:  # any sign: the objective is reached, and phi only up to a rotation
            turn = np.linalg.lstsq(world.phi, f, rcond=None)[0]
            assert found.gap.min() < ob.SOLVED and error > 0.1
            assert turn.T @ turn == pytest.approx(np.eye(3), abs=1e-6)
        elif values.min() == 0 and values.max() > world.phi.max():  # zeros, and no ceiling: phi itself
            assert found.gap.min() < ob.SOLVED and error < ob.RECOVERED
        else:
            assert found.gap.min() > ob.SOLVED and error > ob.RECOVERED
        assert (f >= 0).all() or map is maps.identity
    assert {f.__name__ for f in every_map()} >= {"identity", "relu", "rep_relu", "softplus", "sigmoid", "exp"}


def expected(loss: str, world: theory.World, f: Tensor, *, pairs: int = 2) -> Tensor:
    """The mean of a loss over all batches of so many pairs, each with its probability: exact, no sampling."""
    labels = torch.from_numpy(world.label_posterior.argmax(axis=1))  # of a sample that belongs to one class
    all_pairs = [(x, y) for x, y in itertools.product(range(world.samples), repeat=2) if world.joint[x, y] > 0]
    total = torch.zeros((), dtype=torch.float64)
    for batch in itertools.product(all_pairs, repeat=pairs):
        weight = float(np.prod([world.joint[x, y] for x, y in batch]))
        first, second = ([pair[side] for pair in batch] for side in (0, 1))
        total = total + weight * equivalence.pairwise_losses(labels[first])[loss](f[first], f[second])
    return total


@pytest.mark.parametrize("loss", equivalence.pairwise_losses(torch.zeros(2)))
def test_every_loss_is_least_at_one_hot_features_where_samples_have_one_class(loss: str) -> None:
    """Equal classes, no overlap, f >= 0: phi is the best there is, for any loss that pulls pairs and pushes others."""
    world = theory.World(np.array([0.5, 0.5]), np.kron(np.eye(2), np.full((1, 2), 0.5)), np.array([0, 1]))
    best = expected(loss, world, torch.from_numpy(world.phi)).item()
    rng = np.random.default_rng(0)
    for _ in range(10):  # nothing non-negative nearby or far away is better
        far, near = rng.exponential(size=(4, 2)), np.abs(world.phi + 0.1 * rng.normal(size=(4, 2)))
        assert min(expected(loss, world, torch.from_numpy(f)).item() for f in (far, near)) > best - 1e-12
    z = torch.from_numpy(rng.random((4, 2))).requires_grad_()
    optimizer = torch.optim.Adam([z], lr=0.1)
    for step in range(80):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / 80)
        optimizer.zero_grad()
        expected(loss, world, maps.rep_relu(z)).backward()
        optimizer.step()
    f = maps.rep_relu(z).detach().numpy()
    assert expected(loss, world, torch.from_numpy(f)).item() == pytest.approx(best, abs=1e-3)
    unit = f / np.linalg.norm(f, axis=1, keepdims=True)
    near = 0.12 if loss == "clip" else 0.05  # at T = 0.07 a cosine of 0.1 costs next to nothing
    assert ob.recovery_error(unit, world.posterior) < near  # one-hot, up to order and, for cosines, scale


# Matching and merging


def test_matching_sees_through_a_permutation_and_nothing_else() -> None:
    truth = np.random.default_rng(0).random((7, 4))
    order = np.array([2, 0, 3, 1])
    assert ob.recovery_error(truth[:, order], truth) == 0
    assert order[ob.matched(truth[:, order], truth)].tolist() == [0, 1, 2, 3]
    assert ob.recovery_error(2 * truth[:, order], truth) == pytest.approx(truth.max(), rel=0.2)
    assert ob.recovery_error(np.pad(truth, ((0, 0), (0, 2))), truth) == 0
    assert ob.recovery_error(truth[:, :3], truth) == pytest.approx(truth[:, 3].max())
    assert sorted(ob.matched(truth[:, :3], truth).tolist()) == [-1, 0, 1, 2]
    assert identifiability.columns_found(truth[:, :3], truth) == 1
    assert identifiability.columns_found(np.stack([truth[:, 0], truth[:, 1] + 1], 1), truth) == 0.5


def test_split_columns_merge_to_what_they_were() -> None:
    world = theory.random_world(seed=0)
    share = np.array([0.6, 0.8])  # squares sum to 1
    split = np.concatenate([world.phi[:, :1] * share, world.phi[:, 1:], np.zeros((world.samples, 1))], axis=1)
    assert ob.factorisation_objective(split, split, world.joint) < 1e-25
    assert ob.recovery_error(split, world.phi) > 0.1
    assert ob.merged(split).shape == world.phi.shape
    assert ob.recovery_error(ob.merged(split), world.phi) < 1e-12
    assert ob.merged(np.zeros((3, 2))).shape == (3, 0)


def test_paired_scaling_is_undone_and_unpaired_scaling_is_not() -> None:
    f, g = np.random.default_rng(0).random((2, 6, 3))
    scale, order = np.array([0.5, 2.0, 7.0]), [1, 2, 0]
    assert ob.pair_error((f * scale)[:, order], (g / scale)[:, order], f, g) < 1e-12
    assert ob.pair_error(f * scale, g * scale, f, g) > 0.1


def test_recovery_before_and_after_merging() -> None:
    some = [theory.random_world(seed=s, classes=3) for s in range(2)]
    at, above = (identifiability.recovery(some, x=k, k=k, starts=4, steps=500) for k in (3, 5))
    below = identifiability.recovery(some, x=2, k=2, starts=4, steps=500)
    assert at.best == at.best_merged == at.columns == 1
    assert above.best < 1 and above.best_merged == 1 and above.solved == 1
    assert below.solved == below.best == 0


# Bounds and generalisation


@pytest.mark.parametrize("world", some_worlds())
def test_bounds_hold_and_the_head_is_bayes_optimal(world: theory.World) -> None:
    assert all(row.holds for row in bounds.orthogonality(world) + bounds.sparsity(world))
    assert world.phi @ generalisation.head(world) == pytest.approx(world.label_posterior, abs=1e-12)
    best = sum(p * max(row) for p, row in zip(world.marginal, world.label_posterior, strict=True))
    assert generalisation.accuracy(world, world.phi @ generalisation.head(world)) == pytest.approx(best)


def test_bayes_accuracy_by_hand_and_learners_that_reach_it() -> None:
    world = by_hand()
    assert generalisation.accuracy(world, world.label_posterior) == pytest.approx(0.15 + 0.25 * 0.6 + 0.6)
    curves = {
        name: generalisation.curve(world, learn, sizes=(3, 3000), draws=5)
        for name, learn in generalisation.learners(world).items()
    }
    *near, turned = (found[-1][1] for found in curves.values())
    assert near == pytest.approx([0.9, 0.9, 0.9]) and turned < 0.9
    assert all(row.holds for row in generalisation.generalisation(world, curves))
    blind = partial(generalisation.least_squares, world, np.ones((3, 1)))
    curves["phi, labels counted"] = generalisation.curve(world, blind, sizes=(3, 3000), draws=2)
    assert curves["phi, labels counted"][-1][1] == pytest.approx(0.75)
    assert not all(row.holds for row in generalisation.generalisation(world, curves))


@pytest.mark.parametrize("world", some_worlds())
def test_counting_all_labels_is_the_closed_form_head(world: theory.World) -> None:
    x = np.repeat(np.arange(world.samples), 2)
    sure = world.label_posterior.argmax(axis=1)[x]  # every sample with its likeliest label
    scores = generalisation.counting(world, world.phi, x, sure)
    pure = np.array([np.ptp(sure[world.phi[x, c] > 0]) == 0 for c in range(world.classes)])
    if pure.all():
        assert scores == pytest.approx(world.phi @ generalisation.head(world))
    assert scores.sum(axis=1) == pytest.approx(1)  # sums of P(c|x), whatever label they went to


def test_remembering_knows_what_it_saw_and_guesses_the_rest() -> None:
    scores = generalisation.remembering(by_hand(), np.array([0, 2, 2]), np.array([0, 1, 1]))
    assert scores.argmax(axis=1).tolist() == [0, 1, 1]


def test_bounds_hold_in_many_worlds_and_a_broken_one_is_told() -> None:
    found = bounds.by_world(count=2)
    assert len(found) == 20 and all(row.holds for row in bounds.in_many_worlds(found))
    broken = bounds.Bound(0.5, product=0.2, product_bound=0.1, spread=0.1, spread_bound=0.2)
    assert [row.holds for row in bounds.in_many_worlds([*found, broken])] == [False, True]


def test_a_leak_turns_features_on_and_moves_epsilon_by_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        prior, conditional = rng.dirichlet(np.ones(3)), rng.dirichlet(np.full(4, 0.3), size=3)
        world, leak = theory.World(prior, conditional, np.arange(3)), float(rng.uniform(0, 0.9))
        assert abs(theory.leaking(world, leak).overlap - world.overlap) <= 2 * leak
    world = theory.random_world(seed=0)
    assert [row.holds for row in bounds.sparsity(world)] == [True, True]
    assert len(bounds.sparsity(theory.leaking(world, 0.1))) == 1  # all features are on already
    monkeypatch.setattr(bounds.make, "leaking", lambda world, _: world)
    assert [row.holds for row in bounds.sparsity(world)] == [True, False]
    monkeypatch.undo()
    monkeypatch.setattr(bounds.make, "leaking", lambda world, _, leaking=theory.leaking: leaking(world, 0.5))
    assert [row.holds for row in bounds.sparsity(world)] == [True, False]  # epsilon moves too far


def test_maps_that_reach_phi_are_told_from_those_that_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    world = theory.random_world(seed=0, classes=3)
    ask = partial(optimum.smooth_maps, world, starts=4, steps=60)
    assert [row.holds for row in ask()] == [True] * 3
    monkeypatch.setattr(optimum.maps, "exp", lambda z: maps.relu(z) + 1e-12)  # it has no zeros, and yet reaches phi
    monkeypatch.setattr(optimum.maps.exp, "__name__", "exp")
    assert [row.holds for row in optimum.smooth_maps(world, starts=8, steps=400)] == [True, False, True]
    monkeypatch.undo()
    right = optimum.fit

    def worse(*args: Any, steps: int, **more: Any) -> ob.Fit:
        found = right(*args, steps=steps, **more)
        return replace(found, gap=found.gap + steps)  # as if it went away from phi

    monkeypatch.setattr(optimum, "fit", worse)
    assert [row.holds for row in ask()] == [False, False, True]
    low = theory.leaking(theory.one_hot(classes=3, labels=1), 0.99)
    assert low.phi.min() > 0 and low.phi.max() < 1 and optimum.smooth_maps(low) == []  # all of them reach it


def test_an_unfinished_solver_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    world = theory.random_world(seed=1, classes=3)
    assert optimum.independent_solver(world)[0].holds
    monkeypatch.setattr(optimum, "NMF", lambda **how: NMF(**{**how, "max_iter": 5}))
    (row,) = optimum.independent_solver(world)
    gap, error = map(float, re.findall(r"\d\.\de-\d+", row.measured))
    assert not row.holds and ob.SOLVED < gap < 1e-6 and error < ob.RECOVERED  # near is not there


def test_one_label_is_nothing_to_learn() -> None:
    world = theory.parse("labels=1,classes=3")
    assert generalisation.learners(world) == {} and all(row.holds for row in generalisation.generalisation(world, {}))


@pytest.mark.parametrize(("k", "says"), [(2, "below the 3 classes"), (3, "it is phi"), (5, "merge to phi")])
def test_a_number_of_features_that_is_asked_about_has_its_row(k: int, says: str) -> None:
    world = theory.random_world(seed=0, classes=3)
    (row,) = identifiability.of_width(world, k=k)
    assert row.holds and f"k = {k}, " in row.claim and says in row.claim
    (row,) = identifiability.of_width(theory.leaking(world, 0.3), k=k)
    assert row.holds == (k < 3)


def test_one_hot_features_need_the_root() -> None:
    assert all(row.holds for row in bounds.one_hot_features(theory.one_hot()))
    assert not any(row.holds for row in bounds.one_hot_features(theory.overlapping()))


# All of it


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimum, "smooth_maps", partial(optimum.smooth_maps, steps=100))  # they stay away in any case
    monkeypatch.setattr(optimum, "optimum", partial(optimum.optimum, steps=500))
    monkeypatch.setattr(optimum, "unconstrained", partial(optimum.unconstrained, steps=800))
    monkeypatch.setattr(optimum, "independent_solver", partial(optimum.independent_solver, starts=2))


def _threads() -> dict[str, int]:
    return {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}


def test_a_study_of_a_given_world_has_rows_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick(monkeypatch)
    threads = torch.get_num_threads()
    blas = _threads()
    seen = {}
    sparsity = bounds.sparsity
    monkeypatch.setattr(bounds, "sparsity", lambda world: seen.update(_threads()) or sparsity(world))
    study = theory.study(theory.parse("classes=2,overlap=0.2,per_class=1,k=2"))
    rows = study.rows
    assert torch.get_num_threads() == threads and _threads() == blas and set(seen.values()) == {1}
    assert capsys.readouterr().out == ""  # the bar goes to stderr
    assert {"NCL is symmetric NMF", "rotation symmetry", "unique solution", "sparsity"} <= {r.theorem for r in rows}
    assert all(row.claim and row.measured and isinstance(row.holds, bool) for row in rows)
    broken = [row for row in rows if not row.holds]
    assert [row.theorem for row in broken] == ["one-hot latent classes"] * 2, broken  # for samples are shared

    theory.write_report(study, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 2  # rotations and labels; no sweeps over other worlds
    assert all(html.escape(row.claim) in page.replace("&#39;", "&#x27;") for row in rows)
    assert not re.search(r'(src|href)="(?!data:)', page) and f"{len(rows) - 2} of {len(rows)} come out" in page


def test_a_rotation_is_free_without_non_negativity_and_costs_with_it() -> None:
    world = theory.random_world(seed=0, classes=3)
    found = optimum.rotation(world, steps=500)
    assert np.abs(found.nonnegative - world.phi).max() < 1e-3 and np.abs(found.signed - world.phi).max() > 0.1
    assert found.cost[0] < 1e-20 and (np.diff(found.cost) > 0).all()
    leaking = optimum.rotation(theory.leaking(world, 0.3), steps=10)
    room = ob.room_to_rotate(theory.leaking(world, 0.3).phi)
    assert 1 < room < 45
    assert (leaking.cost[leaking.degrees < room] < 1e-20).all() and (leaking.cost[leaking.degrees > room] > 0).all()


def test_every_figure_is_drawn_from_numbers_alone(tmp_path: Path) -> None:
    points = [identifiability.Point(x, 0.5, 1.0, 0.7, 1.0, 0.8, 1.0, 0.9) for x in (4, 6, 8)]
    kinds = [replace(point, x=name) for point, name in zip(points, ("unique", "some", "none"), strict=True)]
    study = theory.Study(by_hand(), 0, by_kind=kinds, by_overlap=points, by_width=points)
    study.bounds, study.rotations = bounds.by_world(count=1), [optimum.rotation(by_hand(), steps=5)]
    study.by_labels = {name: [(5, 0.5), (10, 0.9)] for name in generalisation.learners(by_hand())}
    study.rows = [theory.Row("<b>bold</b>", "1 < 2", "no", False)]
    theory.write_report(study, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == 6 and "&lt;b&gt;" in page and "0 of 1 come out" in page
    for figure in report.figures(study):
        with Image.open(io.BytesIO(figure.picture)) as picture:
            assert picture.width == 2 * figure.width and len(picture.convert("RGB").getcolors(10**6) or ()) > 20
