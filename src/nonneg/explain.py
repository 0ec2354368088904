"""Why a classifier says what it says: the features that voted for a prediction, how much, and what they look at.

N images, D features, C classes. Votes are exactly additive: those that are named and the rest sum to the logit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from nonneg import classifier, embedding, figures
from nonneg.canvas import DPI, GHOST, INK, MUTED, png_bytes
from nonneg.classifier import Classifier
from nonneg.data.pictures import planes, strictly_sized, try_read
from nonneg.errors import BadInput
from nonneg.features import Features
from nonneg.figures import NEGATIVE, POSITIVE, Column

MISTAKES, RIGHT = 3, 3  # test images that are shown when none is named
BATCH = 500


@dataclass(frozen=True)
class Explained:
    """One prediction and its votes; `against` are the same features' votes for the runner-up."""

    name: str
    said: str
    runner_up: str
    truth: str | None
    probability: float
    logit: float
    runner_up_logit: float
    features: list[int]  # largest |vote| first
    votes: list[float]
    against: list[float]
    rest: float  # of all other features: sum(votes) + rest = logit
    rest_against: float


def explain(model: Classifier, images: Tensor, labels: Tensor | None, ids: Sequence[str], k: int) -> list[Explained]:
    """The k features that voted most for the prediction of each image (uint8, N x channels x S x S)."""
    k = min(k, model.encoder.dim)
    with torch.inference_mode():
        z = model.encoder(images.float() / 255)
        logits = model.head(z)
        first, second = logits.topk(2).indices.T
        found = model.head.explain(z, k, of=first)
        other = model.head.votes(z, second)
        against, chances = other.gather(1, found.features), logits.softmax(1)
        others = other.scatter(1, found.features, 0.0).sum(1)
    out = []
    for i, name in enumerate(ids):
        a, b = int(first[i]), int(second[i])
        out.append(
            Explained(
                name=name,
                said=model.classes[a],
                runner_up=model.classes[b],
                truth=None if labels is None else model.classes[int(labels[i])],
                probability=float(chances[i, a]),
                logit=float(found.logits[i]),
                runner_up_logit=float(against[i].sum() + others[i]),
                features=found.features[i].tolist(),
                votes=found.votes[i].tolist(),
                against=against[i].tolist(),
                rest=float(found.rest[i]),
                rest_against=float(others[i]),
            )
        )
    return out


def explain_run(
    folder: Path,
    *,
    indices: Sequence[int] = (),
    pictures: Sequence[Path] = (),
    k: int = 5,
    data_root: Path | None = None,
) -> tuple[list[Explained], bytes]:
    """Test images by index, or picture files, or a few telling test images; what is said of them, and a PNG of it."""
    if k < 1:
        raise BadInput(f"--top is {k}: ask for at least 1 feature")
    if indices and pictures:
        raise BadInput("--index names test images and --image files: give one of them")
    run = embedding.finished_run(folder, data_root)
    model, test = classifier.load(folder), run.load("test")
    made = embedding.embed(folder, test, "test", run)
    if pictures:
        images, labels = _read(pictures, test.image_size, test.channels), None
        ids = [str(path) for path in pictures]
    else:
        number = test.numbers_among(model.classes, "the data")
        chosen = _checked(indices, len(test)) if indices else _telling(model, made, number)
        if not indices:  # those are rows of the features, which images that cannot be read have none of
            chosen = test.places([made.ids[row] for row in chosen])
        some = test.subset(chosen)
        images, ids = some.images[:], [f"{i} ({test.ids[i]})" for i in chosen]
        labels = None if some.labels is None else number[some.labels]
    found = explain(model, images, labels, ids, k)
    shown = test.named(made.ids)
    return found, draw(found, images, Column("", "", made, made, {}, shown.images, shown.classes, [], []))


def _read(paths: Sequence[Path], size: int, channels: int) -> Tensor:
    """Pictures as the model takes them: squared to `size` pixels, grey if it was trained on grey ones."""
    out = []
    with strictly_sized():
        for path in paths:
            pixels = try_read(Path(path), size)
            if isinstance(pixels, str):
                raise BadInput(f"--image {path}: {pixels}")
            if channels == 1:
                pixels = planes(Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0))).convert("L"))
            out.append(torch.from_numpy(np.ascontiguousarray(pixels)))
    return torch.stack(out)


def _checked(indices: Sequence[int], n: int) -> list[int]:
    for i in indices:
        if not 0 <= i < n:
            raise BadInput(f"--index {i}: the test images are numbered 0 to {n - 1}")
    return list(indices)


@torch.inference_mode()
def _telling(model: Classifier, made: Features, number: Tensor) -> list[int]:
    """The surest mistakes among the test images, then the surest right answer of some classes; or the first images."""
    if made.labels is None:
        return list(range(min(MISTAKES + RIGHT, len(made.ids))))
    labels = number[made.labels].numpy()
    sure = np.zeros(len(made.ids))
    right = np.zeros(len(made.ids), dtype=bool)
    for start in range(0, len(made.ids), BATCH):
        part = slice(start, start + BATCH)
        chances = model.head(torch.from_numpy(made.z[part].toarray())).softmax(1)
        sure[part], said = (v.numpy() for v in chances.max(1))
        right[part] = said == labels[part]
    order = np.argsort(-sure, kind="stable")
    wrong = [int(i) for i in order if not right[i]][:MISTAKES]
    best: dict[int, int] = {}
    for i in order:
        if right[i]:
            best.setdefault(int(labels[i]), int(i))
    return [*wrong, *list(best.values())[: MISTAKES + RIGHT - len(wrong)]]


# The picture

WIDTH, THUMB, SHOWN, LEFT, BARS = 960, 30, 6, 226, 514  # CSS pixels; the bitmap is twice that


def draw(found: Sequence[Explained], images: Tensor, column: Column) -> bytes:
    """A block for each image: the image, and a row a feature: the test images it is largest on, and its two votes."""
    row = THUMB + 6
    heights = [58 + row * (len(e.features) + 1) for e in found]
    height = sum(heights) + 26
    figure = Figure(figsize=(WIDTH / 100, height / 100), dpi=DPI, facecolor="white")
    top = 26
    write = figures.write_text
    under = "; below an image on which a feature is negative, a blue line" if figures.signed(column) else ""
    write(figure, 14, 16, "Votes of features for the class that is predicted (dark), and of the same features for the "
          f"runner-up (pale){under}", size=8, limit=180)  # fmt: skip
    for e, image, tall in zip(found, images, heights, strict=True):
        _block(figure, e, image, column, top=top, row=row)
        top += tall
    return png_bytes(figure)


def _block(figure: Figure, e: Explained, image: Tensor, column: Column, *, top: int, row: int) -> None:
    width, height = figure.get_size_inches() * 100
    picture = figures.thumbnail(image[None], 2 * 96)
    figure.figimage(np.asarray(picture), 2 * 14, round(2 * (height - top - 42)) - picture.height, origin="upper")
    wrong = e.truth is not None and e.truth != e.said
    said = f"{figures.printable(e.said, 12)}  {figures.percent(e.probability)}"
    figures.write_text(figure, 14, top + 16, said, size=11, weight="bold", color=NEGATIVE if wrong else INK)
    truth = "" if e.truth is None else f"it is {figures.printable(e.truth, 12)}; " if wrong else "right; "
    figures.write_text(figure, 14, top + 32, f"{truth}image {e.name}", size=8, limit=34)
    figures.write_text(figure, LEFT, top + 16, f"logit {e.logit:.2f} = the sum of these votes", size=9, color=INK)
    figures.write_text(figure, LEFT, top + 32, f"runner-up: {e.runner_up}, {e.runner_up_logit:.2f}", size=8, limit=60)
    grid = figures.feature_grid(column, e.features, SHOWN, size=2 * THUMB)
    step = grid.height // len(e.features)
    for i in range(len(e.features)):
        strip = grid.crop((0, i * step, grid.width, (i + 1) * step))
        y = round(2 * (height - top - 44 - i * row)) - strip.height
        figure.figimage(np.asarray(strip), 2 * LEFT, y, origin="upper")
    rows = len(e.features) + 1
    box = (BARS / width, 1 - (top + 44 + rows * row) / height, (WIDTH - BARS - 20) / width, rows * row / height)
    axes = figure.add_axes(box)
    axes.set_axis_off()
    votes, against = [*e.votes, e.rest], [*e.against, e.rest_against]
    least, most = min(0.0, *votes, *against), max(0.0, *votes, *against)
    room = (most - least or 1.0) * 0.22  # for the numbers
    axes.set_xlim(least - (room if least < 0 else room * 0.05), most + room)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.axvline(0, color=GHOST, linewidth=0.8)
    names = [*(f"feature {j}" for j in e.features), f"all other {column.test.z.shape[1] - len(e.features)}"]  # pyright: ignore
    for i, (vote, other, name) in enumerate(zip(votes, against, names, strict=True)):
        colour = MUTED if i + 1 == rows else POSITIVE if vote >= 0 else NEGATIVE
        axes.barh(i - 0.14, vote, height=0.34, color=colour)
        axes.barh(i + 0.22, other, height=0.2, color=colour, alpha=0.35)
        axes.annotate(f"{vote:.2f}", (vote, i - 0.14), (4 if vote >= 0 else -4, 0), textcoords="offset points",
                      va="center", ha="left" if vote >= 0 else "right", fontsize=8, color=INK)  # fmt: skip
        figures.write_text(figure, BARS - 80, top + 44 + row * (i + 0.5) + 3, name, size=8, limit=14)
