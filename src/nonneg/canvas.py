"""How every chart looks: colours, axes at fixed margins, text that the font can draw, PNG bytes.

Widths and heights are CSS pixels.
"""

import io
from functools import cache

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

DPI = 200
INK, MUTED, RULE, GHOST = "#22262b", "#69717a", "#e4e7ea", "#c9ced4"
SIGNED_RUNS = ("#56789a", "#8a7ca8", "#8b959f")
NONNEG_RUNS = ("#d9702b", "#1c8a7e", "#b04a72", "#7f8a1f")


def percent(share: float, digits: int = 1) -> str:
    """0.954 as 95.4 %."""
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def finite(value: object) -> bool:
    """Whether a value is a number that can be drawn or printed."""
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value))


def printable(text: str, limit: int) -> str:
    """Text that the chart font can draw: unknown characters become boxes, long text ends in an ellipsis."""
    known = "".join(c if ord(c) in _glyphs() and (c.isprintable() or c == "\N{NO-BREAK SPACE}") else "□" for c in text)
    return known if len(known) <= limit else known[: limit - 1] + "…"


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap())


def one_panel(
    width: int, height: int, *, left: int = 64, right: int = 14, top: int = 12, bottom: int = 44
) -> tuple[Figure, Axes]:
    """A chart whose axes sit at fixed margins, so that the panels of two runs line up."""
    figure = Figure(figsize=(width / 100, height / 100), dpi=DPI, facecolor="white")
    box = (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    axes = figure.add_axes(box)
    dress(axes)
    return figure, axes


def dress(axes: Axes) -> None:
    axes.tick_params(colors=MUTED, labelsize=7.5, width=0.6, length=3)
    axes.xaxis.label.set(color=MUTED, fontsize=8)
    axes.yaxis.label.set(color=MUTED, fontsize=8)
    for name, spine in axes.spines.items():
        spine.set(color=GHOST, linewidth=0.6, visible=name in ("left", "bottom"))
    axes.set_axisbelow(True)


def in_percent(axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.grid(axis="y", color=RULE, linewidth=0.6)


def level_line(axes: Axes, level: float) -> None:
    axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)  # behind a curve at chance
    axes.annotate(f"chance {percent(level)}", (1, level), (0, 4), xycoords=("axes fraction", "data"),
                  textcoords="offset points", ha="right", color=INK, fontsize=7.5)  # fmt: skip


def draw_line(axes: Axes, x: np.ndarray, y: np.ndarray, colour: str, *, zorder: float = 2) -> None:
    dots = "o" if len(y) < 3 else ""  # a line of one point would be invisible
    axes.plot(x, y, color=colour, linewidth=1.8, marker=dots, markersize=3.5, zorder=zorder, clip_on=False)


def png_bytes(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()
