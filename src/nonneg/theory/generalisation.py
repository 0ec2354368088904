"""The closed-form head on phi is Bayes optimal, and what is learned from labels approaches it."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from nonneg.theory.equivalence import random_rotation
from nonneg.theory.row import EXACT, Row
from nonneg.theory.worlds import World


def head(world: World) -> np.ndarray:
    """W*_cy = sqrt(P(c)) where latent class c belongs to label y, else 0: C x labels."""
    return np.sqrt(world.prior)[:, None] * np.eye(int(world.labels.max()) + 1)[world.labels]


def accuracy(world: World, scores: np.ndarray) -> float:
    """The probability that argmax_y scores(x) is the label of x: sum_x P(x) P(y = argmax|x), exactly."""
    return float(world.marginal @ world.label_posterior[np.arange(world.samples), scores.argmax(axis=1)])


Learner = Callable[[np.ndarray, np.ndarray], np.ndarray]  # labelled samples x, y -> scores of every sample, N x labels
COUNTED, TURNED = "phi, labels counted", "a rotation of phi, labels counted"
SIZES = (5, 10, 20, 50, 100, 300, 1000, 10_000)


def least_squares(world: World, f: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A linear head by least squares on one-hot labels.

    E[one-hot y | x] = P(y|x) is linear in phi(x), so with enough labels it finds W* itself.
    """
    return f @ np.linalg.lstsq(f[x], _one_hot(world)[y], rcond=None)[0]


def counting(world: World, f: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """W* where f = phi: labels only tell with which of them a feature is most active; sqrt(P(c)) = E f_c needs none."""
    active = f[x].T @ _one_hot(world)[y]
    mine = (active.argmax(axis=1)[:, None] == np.arange(active.shape[1])) & active.any(axis=1, keepdims=True)
    return f @ ((world.marginal @ f)[:, None] * mine)


def remembering(world: World, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """No features: the labels seen with each sample, and where it was not seen those of all."""
    seen = np.eye(world.samples)[x].T @ _one_hot(world)[y]
    return seen + 1e-6 * seen.sum(axis=0)


def learners(world: World, *, seed: int = 0) -> dict[str, Learner]:
    """Ways to learn from labels, by their names in the figure; none where there is one label, and nothing to learn."""
    if np.ptp(world.labels) == 0:
        return {}
    turned = world.phi @ random_rotation(world.classes, np.random.default_rng(seed))
    return {
        COUNTED: partial(counting, world, world.phi),
        "phi or a rotation, least squares": partial(least_squares, world, world.phi),
        "no features": partial(remembering, world),
        TURNED: partial(counting, world, turned),
    }


def curve(
    world: World, learn: Learner, *, seed: int = 0, sizes: Sequence[int] = SIZES, draws: int = 40
) -> list[tuple[int, float]]:
    """(labels used, accuracy), the mean over some draws of labelled samples."""
    rng = np.random.default_rng(seed)
    return [(n, float(np.mean([accuracy(world, learn(*world.labelled(n, rng))) for _ in range(draws)]))) for n in sizes]


def generalisation(world: World, curves: dict[str, list[tuple[int, float]]], *, seed: int = 0) -> list[Row]:
    """W*' phi(x) = P(y|x), so its argmax is Bayes optimal; a learned head approaches it."""
    away = float(np.abs(world.phi @ head(world) - world.label_posterior).max())
    bayes, reached = (accuracy(world, s) for s in (world.label_posterior, world.phi @ head(world)))
    x, y = world.labelled(200_000, np.random.default_rng(seed))
    counted = float((world.label_posterior[x].argmax(axis=1) == y).mean())
    theorem = "downstream generalisation"
    rows = [
        Row(theorem, "the closed-form head gives W*' phi(x) = P(y|x)", f"largest difference {away:.1e}", away < EXACT),
        Row(
            theorem,
            "so it is Bayes optimal",
            f"accuracy {reached:.4f}, Bayes {bayes:.4f} (counted on 200,000 draws: {counted:.4f})",
            abs(reached - bayes) < EXACT and abs(counted - bayes) < 0.005,
        ),
    ]
    for name, found in curves.items():
        (few, low), (many, high) = found[0], found[-1]
        near = high > bayes - 0.005 and high >= low
        rows.append(
            Row(
                theorem,
                f"counting labels takes phi itself: {name}, does not approach it"
                if name == TURNED
                else f"what is learned from labelled samples approaches it: {name}",
                f"accuracy {low:.4f} with {few} labels, {high:.4f} with {many}",
                near != (name == TURNED),
            )
        )
    return rows


def _one_hot(world: World) -> np.ndarray:
    return np.eye(int(world.labels.max()) + 1)
