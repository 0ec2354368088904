"""Worlds small enough to solve exactly: latent classes, what each of them shows, and what follows from that.

Shapes: N samples x, C latent classes c. prior is P(c), C numbers; conditional is P(x|c), C x N; labels say which
observed label each latent class belongs to, C whole numbers from 0. Two views of a thing are two samples of one class.
k features are learned in a world, as many as there are classes unless a number is asked about.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nonneg import files
from nonneg.errors import BadInput, unknown

SUM_TOLERANCE = 1e-9  # how far probabilities may be from summing to 1
LARGEST = {"classes": 16, "samples": 128, "k": 32}  # that are studied, in a minute or two
TAKE = 2 / 3  # of what a class shares, on the sample it shares with the next class; the rest with the one before


@dataclass(frozen=True, eq=False)
class World:
    """P(c), P(x|c) and the label of every latent class; everything else is computed from these, exactly."""

    prior: np.ndarray
    conditional: np.ndarray
    labels: np.ndarray
    k: int | None = None

    def __post_init__(self) -> None:
        prior, conditional = (np.asarray(v, dtype=np.float64) for v in (self.prior, self.conditional))
        labels = np.asarray(self.labels)
        _check_prior(prior)
        _check_conditional(conditional, len(prior))
        if labels.shape != prior.shape or labels.dtype.kind not in "iu" or labels.min() < 0:
            raise BadInput(f"labels must be {len(prior)} whole numbers from 0: one for every latent class")
        if self.k is not None and self.k < 1:
            raise BadInput(f"k is {self.k}: give 1 feature or more")
        for name, value in (("prior", prior), ("conditional", conditional), ("labels", labels)):
            value = value.copy()
            value.flags.writeable = False  # the cached quantities below rest on it
            object.__setattr__(self, name, value)

    @property
    def classes(self) -> int:
        """C, the number of latent classes (the paper's m)."""
        return len(self.prior)

    @property
    def samples(self) -> int:
        """N, the number of different samples."""
        return self.conditional.shape[1]

    @cached_property
    def marginal(self) -> np.ndarray:
        """P(x) = sum_c P(c) P(x|c): N."""
        return self.prior @ self.conditional

    @cached_property
    def joint(self) -> np.ndarray:
        """P(x, x') = sum_c P(c) P(x|c) P(x'|c), how often x and x' are two views of one thing: N x N."""
        return joint(self, self)

    @cached_property
    def co_occurrence(self) -> np.ndarray:
        """A_bar = P(x, x') / sqrt(P(x) P(x')), the matrix that contrastive learning factorises: N x N."""
        return normalised(self.joint)

    @cached_property
    def posterior(self) -> np.ndarray:
        """P(c|x) = P(c) P(x|c) / P(x): N x C, rows sum to 1."""
        return (self.conditional * self.prior[:, None]).T / self.marginal[:, None]

    @cached_property
    def phi(self) -> np.ndarray:
        """phi_c(x) = P(c|x) / sqrt(P(c)), the optimal non-negative features: N x C."""
        return self.posterior / np.sqrt(self.prior)

    @cached_property
    def label_posterior(self) -> np.ndarray:
        """P(y|x) = sum of P(c|x) over the latent classes c of label y: N x labels."""
        return self.posterior @ np.eye(int(self.labels.max()) + 1)[self.labels]

    @cached_property
    def overlap(self) -> float:
        """The paper's epsilon, max_{i != j} E_x P(c_i|x) P(c_j|x); 0 where every sample has one class."""
        shared = (self.posterior.T * self.marginal) @ self.posterior
        return float(np.max(shared - np.diag(shared.diagonal()), initial=0.0))

    @cached_property
    def unique(self) -> np.ndarray:
        """For every class, whether it has a sample that belongs to it alone, P(c|x) = 1: C booleans."""
        alone = (self.posterior > 0).sum(axis=1) == 1
        return np.asarray((self.posterior[alone] > 0).any(axis=0))

    def pairs(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """n positive pairs: a class from P(c), then x and x+ from P(x|c), independently; two arrays of indices."""
        return drawn(self, self, n, rng)

    def labelled(self, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """n samples with the label of the class that made them; two arrays of whole numbers."""
        classes = rng.choice(self.classes, size=n, p=self.prior)
        return self._draw(classes, rng), self.labels[classes]

    def _draw(self, classes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One sample from P(x|c) for every entry of `classes`, by inverting the cumulative sums."""
        steps = self.conditional.cumsum(axis=1)
        steps /= steps[:, -1:]  # ends at exactly 1, so no draw falls behind the last sample
        return (steps[classes] <= rng.random(len(classes))[:, None]).sum(axis=1)


def joint(world: World, other: World) -> np.ndarray:
    """P(x, x') = sum_c P(c) P(x|c) P(x'|c), x of one world and x' of another with the same P(c): two modalities."""
    if world.prior.shape != other.prior.shape or not np.allclose(world.prior, other.prior, rtol=0, atol=1e-12):
        raise BadInput("the two modalities have different P(c): give worlds with the same latent classes")
    return (world.conditional.T * world.prior) @ other.conditional


def drawn(world: World, other: World, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """n pairs (x, x') from `joint`: a class from P(c), then x of one world and x' of the other, independently."""
    classes = rng.choice(world.classes, size=n, p=world.prior)
    return world._draw(classes, rng), other._draw(classes, rng)


def normalised(joint: np.ndarray) -> np.ndarray:
    """P(x, x') / sqrt(P(x) P(x'))."""
    return joint / np.sqrt(joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True))


# Constructors


def one_hot(*, classes: int = 6, per_class: int = 3, labels: int = 2) -> World:
    """Every sample belongs to one class; the classes have different P(c)."""
    return overlapping(classes=classes, per_class=per_class, overlap=0.0, labels=labels)


def overlapping(*, classes: int = 6, per_class: int = 3, overlap: float = 0.2, labels: int = 2) -> World:
    """Every class has `per_class` samples of its own and puts the share `overlap` of its probability on shared ones.

    Class c shares one sample with the next class and one with the class before, in a ring. With overlap 1 no class has
    a sample of its own. P(c) grows from the first class to twice as much at the last.
    """
    _check_sizes(classes=classes, per_class=per_class, labels=labels)
    prior = np.linspace(1, 2, classes)
    own = np.full((classes, per_class), 1 / per_class)
    return _ring(prior / prior.sum(), own, overlap=overlap, labels=labels)


def every_image(*, images: int = 6, views: int = 3, overlap: float = 0.2) -> World:
    """Every natural image is its own latent class and label: `views` crops that show it alone, one that all can give.

    P(image) = 1/images; the common crop (a patch of sky) comes with probability `overlap`.
    """
    _check_sizes(images=images, views=views)
    _check_overlap(overlap, images)
    own = np.kron(np.eye(images), np.full((1, views), (1 - overlap) / views))
    conditional = np.concatenate([own, np.full((images, 1), overlap)], axis=1)
    return _occurring(np.full(images, 1 / images), conditional, np.arange(images))


def random_world(
    *, classes: int = 6, per_class: int = 3, overlap: float = 0.3, labels: int = 2, seed: int = 0
) -> World:
    """As `overlapping`, with P(c) and the shares of a class's own samples drawn at random, and neighbours shuffled."""
    _check_sizes(classes=classes, per_class=per_class, labels=labels)
    rng = np.random.default_rng(seed)
    prior = 0.5 / classes + 0.5 * rng.dirichlet(np.full(classes, 2.0))  # no class rarer than half its equal share
    own = 0.5 / per_class + 0.5 * rng.dirichlet(np.full(per_class, 2.0), size=classes)
    world = _ring(prior, own, overlap=overlap, labels=labels)
    return World(world.prior, world.conditional, rng.permutation(world.labels))


def leaking(world: World, leak: float) -> World:
    """Every class takes the share `leak` of its samples from all classes alike, so no sample is unique any more."""
    return _mixed(world, np.full((world.classes, world.classes), 1 / world.classes), leak)


def chained(world: World, leak: float) -> World:
    """Every class takes the share `leak` of its samples from the next class: none is unique, yet P(c|x) keeps zeros."""
    return _mixed(world, np.roll(np.eye(world.classes), 1, axis=1), leak)


def translated(world: World, *, per_class: int = 2, overlap: float = 0.2) -> World:
    """Another modality (texts) of the same latent classes: other samples, the same P(c)."""
    own = np.full((world.classes, per_class), 1 / per_class)
    ring = _ring(world.prior, own, overlap=overlap if world.classes > 1 else 0.0, labels=1)
    return World(world.prior, ring.conditional, world.labels)


NUMBERS: dict[str, Callable[[str], int | float]] = {
    "classes": int,
    "per_class": int,
    "overlap": float,
    "leak": float,
    "labels": int,
    "k": int,
    "seed": int,
}


def read(path: Path) -> World:
    """The world in a JSON file: an object of prior, conditional (a row for every class), labels and, if given, k."""
    found = files.read_json(path)
    if not isinstance(found, dict) or not {"prior", "conditional", "labels"} <= found.keys():
        raise BadInput(f"{path} should hold a JSON object of prior, conditional and labels, and k if it is asked about")
    for name in found.keys() - {"prior", "conditional", "labels", "k"}:
        raise unknown(f"entry of {path}", name, ("prior", "conditional", "labels", "k"))
    if not isinstance(k := found.get("k"), int | None) or isinstance(k, bool):
        raise BadInput(f"{path}: k is {k!r}; give a whole number")
    try:
        prior, conditional = (np.array(found[name], dtype=np.float64) for name in ("prior", "conditional"))
        return World(prior, conditional, np.array(found["labels"]), k)
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from None
    except (TypeError, ValueError):
        raise BadInput(
            f"{path}: prior is a list of numbers and conditional a list of such lists, all of one length"
        ) from None


def check_solvable(classes: int, samples: int, k: int | None) -> None:
    """Refuse to study a world that is too large to be solved in a minute or two."""
    for name, value in (("classes", classes), ("samples", samples), ("k", k or 1)):
        if value > LARGEST[name]:
            raise BadInput(f"a world of {name} = {value} takes too long to solve: give {LARGEST[name]} at most")


def parse(text: str) -> World:
    """The world in a .json file, or the one that "overlap=0.2,classes=8" describes.

    That is `overlapping` (with a seed `random_world`), then `leaking`.
    """
    if text.endswith(".json"):
        return read(Path(text))
    if not text.strip(" ,"):
        raise BadInput("the world is empty: give knobs, as in overlap=0.2,classes=8, or a .json file")
    given: dict[str, int | float] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (s.strip() for s in part.partition("="))
        if not equals:
            raise BadInput(f"world {text!r}: {part!r} is not name=number, as in overlap=0.2,classes=8")
        if name not in NUMBERS:
            raise unknown("knob of a world", name, NUMBERS)
        if name in given:
            raise BadInput(f"world {text!r}: {name} is given twice")
        try:
            given[name] = NUMBERS[name](value)
        except ValueError:
            kind = "a whole number" if NUMBERS[name] is int else "a number"
            raise BadInput(f"world {text!r}: {name}={value!r} should be {kind}") from None
    leak = float(given.pop("leak", 0.0))
    classes, per_class = int(given.get("classes", 6)), int(given.get("per_class", 3))
    overlap, labels = float(given.get("overlap", 0.2)), int(given.get("labels", min(2, max(classes, 1))))
    k = int(given["k"]) if "k" in given else None
    if classes > 0 and per_class > 0:
        check_solvable(classes, classes * (per_class + 1), k)  # before it is made
    if "seed" not in given:
        world = overlapping(classes=classes, per_class=per_class, overlap=overlap, labels=labels)
    elif given["seed"] < 0:
        raise BadInput(f"world {text!r}: the seed must be 0 or more")
    else:
        world = random_world(
            classes=classes, per_class=per_class, overlap=overlap, labels=labels, seed=int(given["seed"])
        )
    return replace(leaking(world, leak) if leak else world, k=k)


# How they are made


def _ring(prior: np.ndarray, own: np.ndarray, *, overlap: float, labels: int) -> World:
    """own is C x per_class, rows sum to 1; neighbouring classes go to the same label as far as that is possible."""
    classes, per_class = own.shape
    _check_overlap(overlap, classes)
    if labels > classes:
        raise BadInput(f"there are {labels} labels for {classes} latent classes: every label needs a class of its own")
    alone = np.kron(np.eye(classes), np.ones((1, per_class))) * (1 - overlap) * own.reshape(1, -1)
    shared = overlap * (TAKE * np.eye(classes) + (1 - TAKE) * np.roll(np.eye(classes), -1, axis=1))
    return _occurring(prior, np.concatenate([alone, shared], axis=1), np.arange(classes) * labels // classes)


def _occurring(prior: np.ndarray, conditional: np.ndarray, labels: np.ndarray) -> World:
    """The world without the samples that no class shows."""
    return World(prior, conditional[:, conditional.any(axis=0)], labels)


def _mixed(world: World, source: np.ndarray, leak: float) -> World:
    if not 0 <= leak < 1:
        raise BadInput(f"leak is {leak}: give the share that a class takes from others, from 0 to less than 1")
    if world.classes < 2 and leak:
        raise BadInput("a world of one class has no other class to take samples from: leave leak at 0")
    conditional = (1 - leak) * world.conditional + leak * source @ world.conditional
    return replace(world, conditional=conditional)


def _check_sizes(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise BadInput(f"{name} is {value}: a world needs 1 at least")


def _check_overlap(overlap: float, classes: int) -> None:
    if not 0 <= overlap <= 1:
        raise BadInput(f"an overlap of {overlap} is impossible: it is the share of a class that others share, 0 to 1")
    if classes < 2 and overlap:
        raise BadInput(f"an overlap of {overlap} is impossible with one class: give classes=2 or more")


def _check_prior(prior: np.ndarray) -> None:
    if prior.ndim != 1 or not prior.size:
        raise BadInput(f"P(c) has shape {prior.shape}: give one probability for every latent class")
    if not np.isfinite(prior).all() or prior.min() < 0:
        raise BadInput("P(c) holds a number that is negative or not finite: give probabilities")
    if prior.min() == 0:
        raise BadInput(f"latent class {int(prior.argmin())} has probability 0: leave it out")
    if abs(prior.sum() - 1) > SUM_TOLERANCE:
        raise BadInput(f"P(c) sums to {prior.sum():.6g}, not to 1")


def _check_conditional(conditional: np.ndarray, classes: int) -> None:
    if conditional.ndim != 2 or conditional.shape[0] != classes or not conditional.size:
        raise BadInput(f"P(x|c) has shape {conditional.shape}: give {classes} rows, one for every latent class")
    if not np.isfinite(conditional).all() or conditional.min() < 0:
        raise BadInput("P(x|c) holds a number that is negative or not finite: give probabilities")
    total = conditional.sum(axis=1)
    worst = int(np.abs(total - 1).argmax())
    if abs(total[worst] - 1) > SUM_TOLERANCE:
        raise BadInput(f"P(x|c) of latent class {worst} sums to {total[worst]:.6g}, not to 1")
    if not conditional.any(axis=0).all():
        never = int(conditional.any(axis=0).argmin())
        raise BadInput(f"sample {never} has probability 0 in every latent class: leave it out")
