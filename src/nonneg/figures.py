"""The report's pictures of features: image grids with Pillow, charts with matplotlib, all as PNG.

N images, D features, C channels, H W height and width; widths and heights of charts are CSS pixels.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw
from torch import Tensor

from nonneg import metrics
from nonneg.canvas import (
    DPI,
    GHOST,
    INK,
    MUTED,
    NONNEG_RUNS,
    SIGNED_RUNS,
    draw_line,
    dress,
    finite,
    in_percent,
    level_line,
    one_panel,
    percent,
    png_bytes,
    printable,
)
from nonneg.data import Files
from nonneg.features import Features

EPS = 1e-5  # a feature is active on an image where |z| >= EPS, as in nonneg.metrics
THUMBNAIL = 48
BLANK = "#f1f2f4"
NEGATIVE, POSITIVE = "#1f5582", "#b5480f"
STOPS = (NEGATIVE, "#86aac8", "#ffffff", "#f0a871", POSITIVE)  # -1 .. 0 .. 1, the same colours in every picture
SCALE = LinearSegmentedColormap.from_list("signed", STOPS, N=257)  # odd, so that zero is exactly white


@dataclass(frozen=True)
class Column:
    """One evaluated run, as a column of the report; row i of `images` belongs to row i of `test`."""

    title: str
    subtitle: str
    train: Features
    test: Features
    metrics: dict[str, dict]
    images: Tensor | Files  # uint8, N x C x H x W
    classes: list[str] | None
    skipped: list[str]
    log: list[dict]
    stability: list[float | None] | None = None  # of each feature across runs, where that was measured

    @cached_property
    def activation(self) -> np.ndarray:
        """D, expected |activation| on the training features."""
        return metrics.expected_activation(self.train.z, absolute=True)

    @cached_property
    def order(self) -> np.ndarray:
        """All D features, the largest expected |activation| first."""
        return np.argsort(-self.activation, kind="stable")

    @cached_property
    def live(self) -> np.ndarray:
        """The features that fire on some test image, in that order."""
        return self.order[metrics.live(self.test.z, eps=EPS)[self.order]]


def shape(features: Features) -> tuple[int, int]:
    """N and D."""
    n, d = features.z.shape  # pyright: ignore[reportGeneralTypeIssues] (scipy does not say what its shape is)
    return n, d


def signed(column: Column) -> bool:
    """Whether any feature takes a negative value."""
    return any(bool((f.z.data < 0).any()) for f in (column.train, column.test))


def colours(columns: Sequence[Column]) -> list[str]:
    """One colour a run: cool greys for signed features, warm and green ones for non-negative features."""
    taken = {True: 0, False: 0}
    chosen = []
    for column in columns:
        kind = signed(column)
        palette = SIGNED_RUNS if kind else NONNEG_RUNS
        chosen.append(palette[taken[kind] % len(palette)])
        taken[kind] += 1
    return chosen


def draw_live(column: Column, n: int, seed: int) -> np.ndarray:
    """Up to n live features at random, in ascending order."""
    return np.sort(np.random.default_rng(seed).choice(np.sort(column.live), min(n, len(column.live)), replace=False))


def spread_live(column: Column, n: int) -> np.ndarray:
    """n of the features that fire on some test image, evenly spaced from the most used to the least.

    Each is the middle one of an n-th of them, ranked by expected activation; where there are no more than n, all are.
    """
    live = column.live
    n = min(n, len(live))
    return live[(2 * np.arange(n) + 1) * len(live) // (2 * max(n, 1))]


def top_images(column: Column, features: Sequence[int] | np.ndarray, k: int = 10) -> list[np.ndarray]:
    """For each feature its k test images of largest |z|, fewer where fewer are active; of equals the first first."""
    columns = column.test.z[:, np.asarray(features, dtype=np.int64)].tocsc()
    columns.sort_indices()
    chosen = []
    for start, end in zip(columns.indptr[:-1], columns.indptr[1:], strict=True):
        size = np.abs(columns.data[start:end])
        order = np.argsort(-size, kind="stable")[:k]
        chosen.append(columns.indices[start:end][order[size[order] >= EPS]])
    return chosen


def class_name(column: Column, label: int) -> str:
    """The name of a class, or its number when it has none."""
    named = column.classes is not None and 0 <= label < len(column.classes)
    return column.classes[label] if named and column.classes else str(label)


def majority(column: Column, images: np.ndarray) -> tuple[str, int] | None:
    """The most frequent class among `images` and how many belong to it; None without labels or images."""
    if column.test.labels is None or not len(images):
        return None
    values, counts = np.unique(column.test.labels[images], return_counts=True)
    return class_name(column, int(values[counts.argmax()])), int(counts.max())


def feature_grid(column: Column, features: Sequence[int] | np.ndarray, k: int = 10, *, size: int = 0) -> Image.Image:
    """One row a feature: its k test images of largest |z|; a blue line marks a negative value, grey an empty place.

    Images under 24 pixels are enlarged by whole factors, so that single pixels stay visible; `size` 0 keeps others
    as they are up to 48 pixels.
    """
    longest = max(column.images.shape[-2:])
    size = size or (THUMBNAIL if longest < 24 else min(longest, THUMBNAIL))
    gap = max(4, size // 12)
    width, height = thumbnail(column.images[:1], size).size
    canvas = Image.new("RGB", (k * (width + gap) - gap, max(1, len(features)) * (height + gap)), "white")
    draw = ImageDraw.Draw(canvas)
    for row, (feature, images) in enumerate(zip(features, top_images(column, features, k), strict=True)):
        values = column.test.z[images, :][:, [int(feature)]].toarray().ravel()
        for place in range(k):
            x, y = place * (width + gap), row * (height + gap)
            if place >= len(images):
                draw.rectangle((x, y, x + width - 1, y + height - 1), fill=BLANK)
                continue
            canvas.paste(thumbnail(column.images[int(images[place])][None], size), (x, y))
            if values[place] < 0:
                mark = y + height + gap // 4
                draw.rectangle((x, mark, x + width - 1, mark + 1), fill=NEGATIVE)
    return canvas


def thumbnail(image: Tensor, size: int) -> Image.Image:
    """A 1 x C x H x W uint8 image as RGB, its longest side `size` (a whole multiple under 24 pixels)."""
    pixels = image[0, :3] if image.shape[1] >= 3 else image[0, :1].expand(3, -1, -1)
    picture = Image.fromarray(np.ascontiguousarray(pixels.permute(1, 2, 0).cpu().numpy()))
    width, height = picture.size
    longest = max(width, height)
    if longest < 24:
        factor = max(1, size // longest)
        return picture.resize((width * factor, height * factor), Image.Resampling.NEAREST)
    if longest == size:
        return picture
    scale = size / longest
    return picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), Image.Resampling.LANCZOS)


def png(picture: Image.Image, *, colours: int | None = None) -> bytes:
    """PNG bytes, in a palette of so many colours: with 256 photographs take a third of the size."""
    out = io.BytesIO()
    (picture.quantize(colours) if colours else picture).save(out, "PNG", optimize=True)
    return out.getvalue()


def sample_rows(labels: np.ndarray | None, n: int, *, total: int, seed: int) -> np.ndarray:
    """n of `total` rows drawn at random, as equally over the classes as can be, sorted by class."""
    drawn = np.random.default_rng(seed).permutation(total)
    if labels is None:
        return np.sort(drawn[:n])
    order = drawn[np.argsort(labels[drawn], kind="stable")]  # classes one after the other, shuffled inside
    sizes = np.unique(labels, return_counts=True)[1]
    turn = np.concatenate([np.arange(s) for s in sizes])
    kept = np.sort(np.argsort(turn, kind="stable")[:n])  # every class's first, then every class's second, ...
    return order[kept]


def scaled_rows(column: Column, rows: np.ndarray, features: np.ndarray) -> np.ndarray:
    """z of some images and features, each row divided by its largest |z| over all features; zero rows stay zero."""
    z = column.test.z[rows]
    largest = np.abs(z.toarray()).max(axis=1, initial=0, keepdims=True)
    return z[:, features].toarray() / np.where(largest > 0, largest, 1)


def activation_matrix(values: np.ndarray, names: list[str] | None, *, width: int, xlabel: str) -> bytes:
    """Images x features in colour from -1 over white to 1; `names` gives each row's class, in order."""
    longest = max((len(name) for name in names), default=0) if names else 2
    figure, axes = one_panel(width, 390, left=20 + 7 * min(longest, 12), bottom=46)
    _matrix(axes, values, names)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("" if names else "test images")
    return png_bytes(figure)


def _matrix(axes: Axes, values: np.ndarray, names: list[str] | None) -> None:
    n, d = values.shape
    axes.imshow(
        values, cmap=SCALE, vmin=-1, vmax=1, aspect="auto", interpolation="nearest", extent=(0.5, d + 0.5, n, 0)
    )
    axes.set_yticks([])
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    for spine in axes.spines.values():
        spine.set_visible(True)
    if not names:
        return
    edges = [0, *(i for i in range(1, n) if names[i] != names[i - 1]), n]
    axes.hlines(edges[1:-1], 0.5, d + 0.5, color=GHOST, linewidth=0.5)
    if len(edges) - 1 <= 20:  # more names than that would run into each other
        middles = [(a + b) / 2 for a, b in pairwise(edges)]
        axes.set_yticks(middles, [printable(names[a], 12) for a in edges[:-1]])
        axes.tick_params(axis="y", length=0)
        for text in axes.get_yticklabels():
            text.set_parse_math(False)


def histogram(counts: np.ndarray, *, top: int, colour: str, width: int) -> bytes:
    """The share of images with each number of active features, from 0 to `top`."""
    figure, axes = one_panel(width, 250)
    step = -(-(top + 1) // 44)  # whole numbers a bar, or bars would differ by how many they hold
    edges = np.arange(0, top + 1 + step, step) - 0.5
    axes.hist(counts, bins=edges.tolist(), weights=np.full(len(counts), 1 / len(counts)), color=colour)
    median = float(np.median(counts))
    axes.axvline(median, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    right, bar = median > 0.6 * top, int((median + 0.5) // step)
    beside = edges[bar] if right else edges[bar + 1]  # off the bar, which may be as high as the text
    axes.annotate(f"median {median:g}", (beside, 0.93), (-4 if right else 4, 0), textcoords="offset points", color=INK,
                  fontsize=7.5, ha="right" if right else "left")  # fmt: skip
    axes.set_xlim(-0.5 - 0.01 * top, edges[-1])
    in_percent(axes)
    axes.set_xlabel("active features of an image")
    axes.set_ylabel("share of test images")
    return png_bytes(figure)


def curves(
    mine: np.ndarray,
    others: Sequence[np.ndarray],
    *,
    colour: str,
    width: int,
    xmax: int,
    ymax: float,
    xlabel: str,
    ylabel: str,
    shares: bool = False,
    level: float | None = None,
) -> bytes:
    """One run's sorted values over the features' ranks, the other runs' in grey behind it, `level` dashed."""
    figure, axes = one_panel(width, 250)
    for y in others:
        draw_line(axes, np.arange(1, len(y) + 1), y, GHOST, zorder=1.5)
    draw_line(axes, np.arange(1, len(mine) + 1), mine, colour)
    axes.set_xlim(0, xmax * 1.02 + 0.5)
    axes.set_ylim(0, ymax * 1.05 if ymax > 0 else 1)
    if shares:
        in_percent(axes)
    if level is not None:
        level_line(axes, level)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return png_bytes(figure)


def correlation_matrix(cosine: np.ndarray, features: np.ndarray, *, width: int) -> bytes:
    """The cosines between some features, from -1 over white to 1."""
    side = min(width, 420)
    figure, axes = one_panel(
        width, side, left=44 + (width - side) // 2, right=14 + (width - side) // 2, bottom=44, top=8
    )
    axes.imshow(cosine, cmap=SCALE, vmin=-1, vmax=1, interpolation="nearest", aspect="auto")
    places = np.arange(len(features))
    axes.set_xticks(places, [str(f) for f in features], rotation=90)
    axes.set_yticks(places, [str(f) for f in features])
    axes.tick_params(length=0, labelsize=6)
    axes.set_xlabel("feature")
    for spine in axes.spines.values():
        spine.set_visible(True)
    return png_bytes(figure)


def bars(values: dict[str, float | None], *, colour: str, width: int, level: float | None) -> bytes:
    """Shares as bars from 0 to 100 %, `level` dashed; a value that is missing leaves its place empty."""
    figure, axes = one_panel(width, 250)
    for i, value in enumerate(values.values()):
        if value is None:
            axes.annotate("not measured", (i, 0.02), ha="center", fontsize=7, color=MUTED)
            continue
        axes.bar(i, value, width=0.62, color=colour)
        axes.annotate(
            percent(value), (i, value), (0, 3), textcoords="offset points", ha="center", color=INK, fontsize=8
        )
    axes.set_xticks(range(len(values)), list(values))
    room = 0 if level is None else 0.14 if width > 450 else 0.3  # beside each bar, for the name of the chance level
    axes.set_xlim(-0.6, len(values) - 0.4 + room * len(values))
    axes.tick_params(axis="x", length=0)
    in_percent(axes)
    axes.set_ylim(0, 1.08)
    if level is not None:
        level_line(axes, level)
    axes.set_ylabel("test accuracy")
    return png_bytes(figure)


def training(
    logs: Sequence[list[dict]], key: str, *, colours: Sequence[str], width: int, ylabel: str, shares: bool
) -> bytes | None:
    """One measure of every run over the epochs in one chart; None when no run has it."""
    figure, axes = one_panel(width, 230)
    low, high, last = 0.0, 0.0, 0.0
    for log, colour in zip(logs, colours, strict=True):
        points = [(e["epoch"], e[key]) for e in log if finite(e.get(key)) and finite(e.get("epoch"))]
        if points:
            x, y = np.array(points, dtype=float).T
            draw_line(axes, x, y, colour)
            low, high, last = min(low, y.min()), max(high, y.max()), max(last, x.max())
    if not axes.lines:
        return None
    axes.set_xlim(0, last * 1.02 + 0.5)
    axes.set_ylim(low * 1.05, high * 1.05 if high > low else low + 1)  # from zero, unless the loss is negative
    if shares:
        in_percent(axes)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch")
    axes.set_ylabel(ylabel)
    return png_bytes(figure)


def hero(columns: Sequence[Column], *, rows: int = 8, seed: int = 0, thumb: int = 36) -> bytes:
    """The README's picture: features of each run, chosen by no one, what they look at, and a strip of activations."""
    panel = 140 + 10 * thumb  # CSS pixels; the bitmap is twice that
    features = [spread_live(c, rows) for c in columns]
    grids = [feature_grid(c, f, size=2 * thumb) for c, f in zip(columns, features, strict=True)]
    high = max(g.height for g in grids) / 2
    figure = Figure(figsize=(panel * len(columns) / 100, round(high + 278) / 100), dpi=DPI, facecolor="white")
    for i, (column, colour) in enumerate(zip(columns, colours(columns), strict=True)):
        left = i * panel + 14
        write = partial(write_text, figure, left)
        write(26, column.title, size=15, weight="bold", color=colour)
        under = " (blue line: negative)" if signed(column) else ""
        write(46, column.subtitle, size=8)
        write(62, f"{len(features[i])} features, from the most to the least used{under}", size=8)
        _hero_grid(figure, column, features[i], grids[i], left=left, top=76)
        shown = column.order[:512]
        chosen = sample_rows(column.test.labels, 40, total=shape(column.test)[0], seed=seed)
        write(high + 102, f"{len(chosen)} images (rows) × {len(shown)} features (columns): white is zero", size=8)
        width, height = figure.get_size_inches() * 100
        axes = figure.add_axes((left / width, 1 - (high + 232) / height, (panel - 28) / width, 120 / height))
        dress(axes)
        _matrix(axes, scaled_rows(column, chosen, shown), None)
        axes.set_xticks([])
        zeros = percent(metrics.sparsity(column.test.z, eps=EPS))
        write(high + 254, f"{zeros} of all values are zero", size=10, color=INK)
    return png_bytes(figure)


def counterparts(columns: Sequence[Column], rows: int) -> tuple[list[np.ndarray], list[np.ndarray]] | None:
    """Features of the first run and their matches in each other, evenly spaced from the most alike to the least.

    Matched one to one by the Hungarian algorithm on |cosine| over the test images; the second list is how alike (of
    the first run: their mean). None where no feature has a match in every run.
    """
    first, *others = zs = [column.test.z for column in columns]
    if not all(metrics.live(z, eps=EPS).any() for z in zs):
        return None
    found = [metrics.match_features(first, z, eps=EPS).a for z in others]
    partners = np.array([m.partner for m in found])
    alike = np.array([np.nan_to_num(m.similarity) for m in found])
    whole = np.flatnonzero((partners >= 0).all(axis=0))
    if not len(whole):
        return None
    order = whole[np.argsort(-alike.mean(axis=0)[whole], kind="stable")]
    shown = order[np.unique(np.linspace(0, len(order) - 1, rows).round().astype(int))]
    return [shown, *partners[:, shown]], [alike.mean(axis=0)[shown], *alike[:, shown]]


def same_features(columns: Sequence[Column], *, rows: int = 6) -> bytes | None:
    """Features that runs have in common, matched ones in the same row, from the most alike to the least."""
    found = counterparts(columns, rows)
    if found is None:
        return None
    panel, thumb = 400, 26  # CSS pixels; the bitmap is twice that
    grids = [feature_grid(c, f, size=2 * thumb) for c, f in zip(columns, found[0], strict=True)]
    figure = Figure(figsize=(panel * len(columns) / 100, (grids[0].height / 2 + 76) / 100), dpi=DPI, facecolor="white")
    for i, (column, colour) in enumerate(zip(columns, colours(columns), strict=True)):
        left = i * panel + 14
        write_text(figure, left, 26, column.title, size=15, weight="bold", color=colour)
        about = "features, from the most alike to the least" if i == 0 else "their matches"
        write_text(figure, left, 46, f"{column.subtitle}: {about}", size=8)
        notes = [f"alike {value:.2f}" for value in found[1][i]]
        _hero_grid(figure, column, found[0][i], grids[i], left=left, top=60, notes=notes)
    return png_bytes(figure)


def overview(columns: Sequence[Column], *, seed: int = 0, width: int = 440, shown: int = 32) -> bytes:
    """What the paper draws of CL and NCL: active features per image, expected activation, cosines between features."""
    tints = colours(columns)
    used = [c.activation[c.order] for c in columns]
    top = max(shape(c.test)[1] for c in columns)
    rows: list[list[bytes]] = [[], [], []]
    for i, (column, colour) in enumerate(zip(columns, tints, strict=True)):
        z = column.test.z
        rows[0].append(histogram(metrics.active_per_sample(z, eps=EPS), top=top, colour=colour, width=width))
        rows[1].append(
            curves(
                used[i],
                [u for j, u in enumerate(used) if j != i],
                colour=colour,
                width=width,
                xmax=top,
                ymax=max(float(u.max(initial=0)) for u in used),
                xlabel="features, most used first (grey: the others)",
                ylabel="expected activation",
            )
        )
        chosen = draw_live(column, shown, seed)
        rows[2].append(correlation_matrix(metrics.correlation(z, features=chosen, eps=EPS), chosen, width=width))
    titles = [f"{c.title}: {c.subtitle}" for c in columns]
    return _sheet(titles, tints, rows, width=width)


def _sheet(titles: Sequence[str], tints: Sequence[str], rows: Sequence[Sequence[bytes]], *, width: int) -> bytes:
    """Panels in rows under the title of each column."""
    opened = [[Image.open(io.BytesIO(panel)).convert("RGB") for panel in row] for row in rows]
    scale, head = DPI // 100, 34
    high = [max(panel.height for panel in row) for row in opened]
    figure = Figure(figsize=(width * len(titles) / 100, (head + sum(high) / scale) / 100), dpi=DPI, facecolor="white")
    for i, (title, tint) in enumerate(zip(titles, tints, strict=True)):
        write_text(figure, i * width + 14, 22, title, size=11, weight="bold", color=tint)
    below = scale * head
    for row, tall in zip(opened, high, strict=True):
        for i, panel in enumerate(row):
            bottom = round(figure.get_size_inches()[1] * DPI) - below - panel.height
            figure.figimage(np.asarray(panel), scale * i * width, bottom, origin="upper")
        below += tall
    return png_bytes(figure)


def _hero_grid(
    figure: Figure,
    column: Column,
    features: np.ndarray,
    grid: Image.Image,
    *,
    left: int,
    top: int,
    notes: Sequence[str] = (),
) -> None:
    """A feature grid pixel by pixel; beside each row its majority class, and how large that is or the row's note."""
    from_below = round(figure.get_size_inches()[1] * DPI) - 2 * top - grid.height
    figure.figimage(np.asarray(grid), 2 * left, from_below, origin="upper")
    write = partial(write_text, figure, left + grid.width / 2 + 9)
    for row, images in enumerate(top_images(column, features)):
        middle, found = top + grid.height / 2 * (row + 0.5) / len(features), majority(column, images)
        name, under = found or (f"feature {features[row]}", 0)
        write(middle - 2, name, size=9, weight="bold" if found else "normal", color=INK if found else MUTED, limit=11)
        if found or notes:
            write(middle + 11, notes[row] if notes else f"{under} of {len(images)}", size=7)


def write_text(
    figure: Figure,
    x: float,
    y: float,
    text: str,
    *,
    size: float,
    color: str = MUTED,
    weight: str = "normal",
    limit: int = 90,
) -> None:
    """Text on a figure, its baseline at CSS pixels from the upper left."""
    width, height = figure.get_size_inches() * 100
    text = printable(text, limit)
    figure.text(x / width, 1 - y / height, text, fontsize=size, color=color, fontweight=weight, parse_math=False)
