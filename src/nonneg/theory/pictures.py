"""The figures of a study, each from its numbers to a PNG. C latent classes, k features."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nonneg.canvas import (
    DPI,
    GHOST,
    INK,
    MUTED,
    NONNEG_RUNS,
    RULE,
    SIGNED_RUNS,
    dress,
    in_percent,
    one_panel,
    png_bytes,
)
from nonneg.theory.bounds import Bound
from nonneg.theory.identifiability import Point
from nonneg.theory.optimum import Rotation

CL, NCL = SIGNED_RUNS[0], NONNEG_RUNS[0]
SCALE = LinearSegmentedColormap.from_list("signed", ("#1f5582", "#86aac8", "#ffffff", "#f0a871", "#b5480f"), N=257)
DASHED = (0, (4, 3))


def by_kind(points: Sequence[Point]) -> bytes:
    """With and without unique samples: how many starts reach objective 0, and how many of these phi."""
    figure, axes = one_panel(760, 240, left=250, top=36)
    shown = (("solved", "objective 0", GHOST), ("single", "at phi", NCL))
    for i, (key, text, colour) in enumerate(shown):
        places = np.arange(len(points)) + 0.36 * i - 0.18
        axes.barh(places, [getattr(p, key) for p in points], height=0.32, color=colour, label=text)
        for y, point in zip(places, points, strict=True):
            share = getattr(point, key)
            axes.annotate(f"{share:.0%}", (share, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_yticks(range(len(points)), [str(p.x) for p in points], color=INK)
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, 1.08)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("share of starts")
    _legend_above(axes)
    return png_bytes(figure)


def by_overlap(points: Sequence[Point]) -> bytes:
    """As classes share ever more, unique samples kept: how often phi is recovered."""
    lines = (
        ("best", "the best of 8 starts", GHOST, "-", 5),
        ("single", "one start, then bounded L-BFGS", NCL, "-", 1.8),
        ("descent", "one start, descent alone", CL, "-", 1.8),
    )
    return _lines(points, lines, "overlap: the share of a class that lies on shared samples")


def by_width(points: Sequence[Point], *, classes: int = 6) -> bytes:
    """With fewer and with more features than latent classes: objective 0, phi, and phi after merging."""
    lines = (
        ("solved", "objective 0", GHOST, "-", 5),
        ("best", "at phi", CL, "-", 1.8),
        ("best_merged", "at phi, parallel columns merged", NCL, "-", 1.8),
        ("columns", "columns that are phi's, merged", NCL, ":", 1.8),
    )
    return _lines(points, lines, f"features k ({classes} latent classes)", level=classes)


def rotations(found: Sequence[Rotation], *, unique: bool) -> bytes:
    """phi, what descent finds with f >= 0, and without; and what it costs to turn phi and stay non-negative."""
    figure = Figure(figsize=(9.0, 3.0), dpi=DPI, facecolor="white")
    first = found[0]
    largest = max(float(np.abs(f).max()) for f in (first.phi, first.signed))
    tables = (("phi", first.phi), ("found, f ≥ 0", first.nonnegative), ("found, any sign", first.signed))
    for i, (title, f) in enumerate(tables):
        axes = figure.add_axes((0.045 + 0.155 * i, 0.13, 0.13, 0.72))
        axes.imshow(f, cmap=SCALE, vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
        dress(axes)
        axes.set_xticks(range(f.shape[1]), [str(c + 1) for c in range(f.shape[1])])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
        axes.set_title(title, fontsize=8.5, color=INK)
        axes.set_xlabel("feature")
        if not i:
            axes.set_ylabel("samples")
    axes = figure.add_axes((0.6, 0.16, 0.385, 0.69))
    dress(axes)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.plot(first.degrees, np.zeros(len(first.degrees)), color=CL, linewidth=1.8, label="any sign: no cost at all")
    names = ("f ≥ 0, unique samples", "f ≥ 0, none unique") if unique else ("f ≥ 0, in this world",)
    for rotation, text, line in zip(found, names, ("-", "--"), strict=False):
        axes.plot(rotation.degrees, rotation.cost, line, color=NCL, linewidth=1.8, label=text)
    axes.set_xlim(0, 45)
    axes.set_xlabel("two columns of phi turned by, degrees")
    axes.set_title("objective, the cheapest pair of columns", fontsize=8.5, color=INK, loc="left")
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="upper left")
    return png_bytes(figure)


def bounds(found: Sequence[Bound]) -> bytes:
    """What is bounded against its bound, a dot a world: all below the line, the distance to it the slack."""
    figure = Figure(figsize=(7.6, 3.1), dpi=DPI, facecolor="white")
    panels = (
        ("orthogonality", "largest E phi_i phi_j", "epsilon / min P(c)", [(b.product_bound, b.product) for b in found]),
        ("sparsity", "E (1 - sum of P(c|x)²)", "C (C - 1) epsilon", [(b.spread_bound, b.spread) for b in found]),
    )
    shades = LinearSegmentedColormap.from_list("overlap", ("#f0c8a8", NCL, "#5a2a08"))
    for i, (title, what, limit, points) in enumerate(panels):
        axes = figure.add_axes((0.08 + 0.455 * i, 0.16, 0.355, 0.72))
        dress(axes)
        x, y = np.array(points).T
        top = 1.05 * float(x.max())
        axes.plot([0, top], [0, top], color=INK, linewidth=0.9, linestyle=DASHED)
        dots = axes.scatter(x, y, s=12, c=[b.overlap for b in found], cmap=shades, vmin=0, vmax=1)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        axes.set_xlabel(f"the bound, {limit}")
        axes.set_ylabel(what)
        axes.set_title(title, fontsize=9, color=INK, loc="left", fontweight="bold")
        if i:
            bar = figure.colorbar(dots, cax=figure.add_axes((0.915, 0.16, 0.012, 0.72)))
            bar.set_label("overlap", fontsize=8)
            bar.ax.tick_params(labelsize=7)
    return png_bytes(figure)


def by_labels(curves: dict[str, list[tuple[int, float]]], bayes: float, *, width: int = 566) -> bytes:
    """Accuracy against the number of labels used, each way to learn from them; the best there is dashed."""
    figure, axes = one_panel(width, 250)
    for (name, points), colour in zip(curves.items(), (NCL, NONNEG_RUNS[1], CL, MUTED), strict=True):
        x, y = np.array(points).T
        axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=3, label=name)
    axes.axhline(bayes, color=INK, linewidth=0.9, linestyle=DASHED)
    axes.annotate(f"Bayes {bayes:.1%}", (1, bayes), (0, 4), xycoords=("axes fraction", "data"), color=INK, fontsize=7.5,
                  textcoords="offset points", ha="right")  # fmt: skip
    axes.set_xscale("log")
    axes.minorticks_off()
    sizes = [n for n, _ in next(iter(curves.values()))]
    axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
    in_percent(axes)
    lowest = min(y for points in curves.values() for _, y in points)
    axes.set_ylim(math.floor(10 * lowest) / 10, min(1, bayes + 0.05))
    axes.set_yticks(np.arange(math.floor(10 * lowest) / 10, min(1, bayes + 0.05), 0.1))
    axes.set_xlabel("labels used")
    axes.set_ylabel("accuracy, exact")
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="center right")
    return png_bytes(figure)


def _lines(
    points: Sequence[Point],
    lines: Sequence[tuple[str, str, str, str, float]],
    xlabel: str,
    *,
    level: float | None = None,
) -> bytes:
    figure, axes = one_panel(566, 280, top=52)
    x = np.array([float(p.x) for p in points])
    for key, text, colour, line, wide in lines:
        y = [getattr(p, key) for p in points]
        axes.plot(
            x, y, line, color=colour, linewidth=wide, marker="o", markersize=wide + 1.5, label=text, clip_on=False
        )
    in_percent(axes)
    axes.set_xticks(x, [f"{v:g}" for v in x])
    if level is not None:
        axes.axvline(level, color=INK, linewidth=0.9, linestyle=DASHED, zorder=1)
    axes.set_xlabel(xlabel)
    _legend_above(axes)
    return png_bytes(figure)


def _legend_above(axes: Axes) -> None:
    axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
