"""The figures of experiments and analyses as a PNG, one function a figure, drawn from their stored lines.

Nothing is computed here. The plots of one run are in plots.py.
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from nonneg.canvas import (
    DPI,
    GHOST,
    INK,
    MUTED,
    NONNEG_RUNS,
    RULE,
    SIGNED_RUNS,
    dress,
    png_bytes,
)

CL, NCL = SIGNED_RUNS[0], NONNEG_RUNS[0]
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "maps": "digits",
    "wide": "CIFAR-100, 2,048 features",
    "sprites": "sprites",
}


def _panels(
    columns: int, rows: int = 1, *, width: int = 460, height: int = 330, dpi: int = DPI
) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(width * columns / 100, height * rows / 100), dpi=dpi, facecolor="white", layout="tight")
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat:
        dress(axes)
        axes.grid(color=RULE, linewidth=0.6)
    return figure, [list(row) for row in grid]


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="lower right")


def _legend_below(figure: Figure, lines: Mapping[str, tuple[Any, str, float]], *, columns: int) -> None:
    """One legend for all panels, below them: text -> line style, colour, width."""
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    handles = [Line2D([], [], linestyle=s, color=colour, linewidth=w) for s, colour, w in lines.values()]
    figure.legend(handles, list(lines), loc="outside lower center", ncols=columns, fontsize=7, frameon=False,
                  labelcolor=INK, handlelength=3.6)  # fmt: skip


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=9.5, color=INK, loc="left", fontweight="bold")


RIVALS = (  # run, way to shorten, its text, colour, line, width
    ("NCL", "activations", "NCL, each image's largest activations", NCL, "-", 2.4),
    ("NCL", "pca, 1 bit", "NCL, principal axes, 1 bit", NCL, "--", 1.2),
    ("NCL", "features, 8 bits", "NCL, most used features, 8 bits", NCL, ":", 1.4),
    ("CL", "pca, 8 bits", "CL, principal axes, 8 bits", CL, "-", 1.4),
    ("CL", "pca, 1 bit", "CL, principal axes, 1 bit", CL, "--", 1.4),
    ("CL", "features, 4 bits", "CL, features, 4 bits", INK, "-", 1.2),
    ("CL", "features, 1 bit", "CL, features, 1 bit", CL, "-.", 1.2),
    ("CL", "features, 8 bits", "CL, features cut, 8 bits", CL, ":", 1.4),
    ("CL", "projection, 1 bit", "CL, random directions, 1 bit", MUTED, "--", 1.0),
    ("CL", "activations", "CL, each image's largest |activations|", MUTED, ":", 1.2),
)


NAMED_SIZE = 16  # bytes at which NCL and the best that CL has are named in the picture
NAMED = {  # run -> way to shorten ("" for any), its words, their colour, and where they stand, as shares of the axes
    "NCL": ("activations", "NCL in {} bytes: {:.1f}", NCL, (0.6, 0.98)),
    "CL": ("", "the best of CL\nin {} bytes: {:.1f}", CL, (0.88, 0.6)),
}


def _name_the_best(axes: Axes, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Rings around NCL's largest activations and the best that CL has, at one size, with their precision."""
    axes.margins(y=0.12)
    for run, (way, text, colour, place) in NAMED.items():
        here = [p["precision"] for p in curves.get(run, ()) if p["bytes"] == NAMED_SIZE and p["method"].startswith(way)]
        if here:
            at = NAMED_SIZE, 100 * max(here)
            axes.plot(*at, "o", markersize=9, markerfacecolor="none", markeredgecolor=colour)
            thread = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkB": 5}
            axes.annotate(text.format(*at), at, place, "data", "axes fraction", color=colour, ha="center", va="top",
                          fontsize=8.5, fontweight="bold", arrowprops=thread)  # fmt: skip


def precision_by_bytes(panels: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> bytes:
    """Precision@10 over bytes per vector, one panel a data set; dense CL in floats is the dashed level."""
    figure, (row,) = _panels(len(panels), width=620, height=430)
    for axes, (name, curves) in zip(row, panels.items(), strict=True):
        for run, way, text, colour, line, width in RIVALS:
            points = sorted({(p["bytes"], p["precision"]) for p in curves.get(run, ()) if p["method"].startswith(way)})
            if points:
                x, y = np.array(points).T
                axes.plot(x, 100 * y, line, color=colour, linewidth=width, label=text, marker="o", markersize=2.5)
        whole = [p for p in curves.get("CL", ()) if p["method"] == "features, float32"]
        if whole:
            level = 100 * max(whole, key=lambda p: p["bytes"])["precision"]
            axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.annotate(f"dense CL, all floats: {level:.1f}", (1, level), (0, 4), color=INK,
                          textcoords="offset points", fontsize=7.5)  # fmt: skip
        _name_the_best(axes, curves)
        axes.set_xscale("log", base=2)
        axes.set_xticks([2**i for i in range(11)], [f"{2**i:,}" for i in range(11)])
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        axes.set_xlabel("bytes per vector")
        axes.set_ylabel("precision@10, test set, %")
        _title(axes, NAMES.get(name, name))
    _legend_below(figure, {text: (line, colour, width) for _, _, text, colour, line, width in RIVALS}, columns=4)
    return png_bytes(figure)


WAYS = {  # (by, ReLU in ranking, ReLU in features) -> text, line
    ("activation", True, True): ("most used first, ReLU in ranking and features", "-"),
    ("activation", False, False): ("most used first, no ReLU", (0, (6, 2))),
    ("activation", True, False): ("most used first, ReLU in the ranking", (0, (3, 1.5))),
    ("activation", False, True): ("most used first, ReLU in the features", (0, (6, 2, 1, 2))),
    ("random", False, True): ("random order, ReLU in the features", (0, (1, 1.2))),
    ("random", False, False): ("random order, no ReLU", (0, (1, 3))),
}
OWN = {"CL": ("activation", False, False), "NCL": ("activation", True, True)}  # the features as they are


def kept_features(panels: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> bytes:
    """Linear probe, transfer and precision over the number of kept features, one row of panels a data set."""
    texts = {"probe": "linear probe of z, %", "transfer": "probe on the other CIFAR, %", "precision": "precision@10, %"}
    figure, grid = _panels(len(texts), len(panels), width=400, height=330, dpi=130)
    for line_of_axes, (name, runs) in zip(grid, panels.items(), strict=True):
        for axes, (key, text) in zip(line_of_axes, texts.items(), strict=True):
            if any(row[key] is None for rows in runs.values() for row in rows):  # digits are transferred to nothing
                axes.set_axis_off()
                continue
            for run, rows in runs.items():
                for way, (_, dash) in WAYS.items():
                    mine = [r for r in rows if (r["by"], r["relu_in_ranking"], r["relu_in_features"]) == way]
                    x, y = [r["kept"] for r in mine], [100 * r[key] for r in mine]
                    width, colour = 2.6 if way == OWN[run] else 1.0, NCL if run == "NCL" else CL
                    axes.plot(x, y, linestyle=dash, color=colour, linewidth=width)
            axes.set_xlabel("features kept")
            axes.set_ylabel(text)
            _title(axes, NAMES.get(name, name))
    runs = {
        f"{run}, its own features (thick)": (WAYS[way][1], NCL if run == "NCL" else CL, 2.6) for run, way in OWN.items()
    }
    _legend_below(figure, runs | {text: (dash, INK, 1.0) for text, dash in WAYS.values()}, columns=4)
    return png_bytes(figure)


def stability(panels: Mapping[str, Mapping[str, Any]]) -> bytes:
    """How stable each live feature is across seeds: a histogram a method, the mean of all pairs, and both nulls."""
    across = min(3, len(panels))
    figure, grid = _panels(across, -(-len(panels) // across), width=300, height=210, dpi=110)
    flat = [axes for row in grid for axes in row]
    for axes in flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, found) in zip(flat, panels.items(), strict=False):
        scores = np.concatenate([np.asarray(s) for s in found["scores"]])
        axes.hist(scores, bins=np.linspace(0, 1, 26).tolist(), weights=np.full(len(scores), 100 / len(scores)),
                  color=CL if found["signed"] else NCL)  # fmt: skip
        axes.axvline(found["cosine"], color=INK, linewidth=1)
        axes.axvline(found["cosine_rotated"], color=INK, linewidth=1, linestyle=(0, (4, 3)))
        axes.axvline(found["cosine_shuffled"], color=GHOST, linewidth=1.2)
        axes.set_xlim(0, 1)
        axes.set_ylim(top=axes.get_ylim()[1] * 1.35)  # room for the text
        axes.set_xlabel("|cosine| to its match, mean over other seeds")
        axes.set_ylabel("features, %")
        _title(axes, title)
        axes.annotate(f"mean {found['cosine']:.2f}; after a rotation {found['cosine_rotated']:.2f} (dashed);\nshuffled "
                      f"{found['cosine_shuffled']:.2f} (grey)", (0.02, 0.96), xycoords="axes fraction", va="top",
                      fontsize=7, color=INK, zorder=5,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5})  # fmt: skip
    return png_bytes(figure)


def sepin(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> bytes:
    """SEPIN of every feature, largest first, one panel a data set."""
    figure, (row,) = _panels(len(panels), width=420, height=320)
    for axes, (name, runs) in zip(row, panels.items(), strict=True):
        for run, values in runs.items():
            x = np.arange(1, len(values) + 1)
            axes.plot(x, 1000 * np.asarray(values), color=NCL if run == "NCL" else CL, linewidth=1.8, label=run)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_xlabel("features, largest first")
        axes.set_ylabel("SEPIN, nats x 1,000")
        _title(axes, NAMES.get(name, name))
        axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="upper right")
    return png_bytes(figure)


def class_spectra(panels: Mapping[str, Mapping[str, Mapping[str, Any]]], *, classes: int) -> bytes:
    """The largest expected activations and eigenvalues, a row of panels for each data set; the dotted line is at C."""
    texts = {
        "activations": ("features", "expected |activation|"),
        "eigenvalues": ("directions", "share of eigenvalues"),
    }
    figure, grid = _panels(2, len(panels), width=325, height=210)
    for row, (name, runs) in zip(grid, panels.items(), strict=True):
        for axes, (key, (over, text)) in zip(row, texts.items(), strict=True):
            for run, found in runs.items():
                y = np.asarray(found[key], float)
                y = np.where(y > 1e-5, y, np.nan) if key == "eigenvalues" else y  # below lies rounding
                dash = (0, (4, 2)) if "multi" in run else "-"
                colour = NCL if run.startswith("NCL") else CL
                axes.plot(np.arange(1, len(y) + 1), y, linestyle=dash, color=colour, linewidth=1.6, label=run)
            axes.axvline(classes + 0.5, color=INK, linewidth=0.9, linestyle=":")
            axes.set_xlim(0, 50)
            axes.set_ylabel(text)
            _title(axes, name)
            if row is grid[-1]:
                axes.set_xlabel(f"{over}, largest first; dotted: after {classes}")
        row[0].set_ylim(0, 1.3 * row[0].get_ylim()[1])  # room for the legend
        row[1].set_yscale("log")
        row[1].set_ylim(1e-5, 1)
        row[1].minorticks_off()
    grid[0][0].legend(fontsize=6.5, frameon=False, labelcolor=INK, loc="upper right")
    return png_bytes(figure)


def robustness(panels: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> bytes:
    """Accuracy under each corruption, mean over severities, with the clean accuracy as a line; one panel a data set."""
    figure, grid = _panels(1, len(panels), width=860, height=330)
    for (axes,), (name, runs) in zip(grid, panels.items(), strict=True):
        for i, (run, found) in enumerate(runs.items()):
            colour, values = NCL if run == "NCL" else CL, {k: 100 * np.mean(v) for k, v in found["each"].items()}
            place = np.arange(len(values)) + 0.4 * (i - (len(runs) - 1) / 2)
            axes.bar(place, list(values.values()), width=0.38, color=colour, label=run)
            axes.axhline(100 * found["clean"], color=colour, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.set_xticks(range(len(values)), [k.replace("_", "\n") for k in values], fontsize=6.5)
        axes.set_ylabel("accuracy, %")
        images = " and ".join(f"{n:,}" for n in sorted({found["images"] for found in runs.values()}))
        clean = ", ".join(f"{run} {100 * found['clean']:.1f}" for run, found in runs.items())
        _title(axes, f"{NAMES.get(name, name)}, {images} test images; dashed: clean ({clean})")
        axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        axes.set_ylim(0, 100)
    return png_bytes(figure)


LOSSES = {
    "ce": ("CE", CL, "-"),
    "nce": ("NCE", NCL, "-"),
    "ce_mlp": ("CE + MLP", CL, "--"),
    "nce_mlp": ("NCE + MLP", NCL, "--"),
}
SEARCH_POINTS = 15  # below the best accuracy of a search; what lies under that did not learn


def learning(panels: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Test accuracy by epoch, CE against NCE, one column a place; under it what the search found at each learning rate.

    A panel holds `curves` (loss -> one list of (epoch, accuracy) a seed) and `search` (loss -> (rate, accuracy,
    cross entropy)); the rate of least cross entropy, which is the one taken, has a ring.
    """
    figure, grid = _panels(len(panels), 2, width=340, height=240, dpi=110)  # lines only, four columns of them
    for above, below, (title, found) in zip(*grid, panels.items(), strict=True):
        below.set_xscale("log")
        below.minorticks_off()
        rates, best, least = set(), 0.0, 100.0
        for loss, (text, colour, dash) in LOSSES.items():
            seeds = [np.array(curve, dtype=float) for curve in found["curves"].get(loss, ())]
            if seeds:
                mean = np.mean(seeds, axis=0)
                dot = "o" if len(mean) == 1 else None  # one epoch has no line
                above.plot(mean[:, 0], 100 * mean[:, 1], dash, color=colour, linewidth=1.4, label=text, marker=dot)
            if points := sorted(found["search"].get(loss, ())):
                x, y, entropy = np.array(points).T
                below.plot(x, 100 * y, dash, color=colour, linewidth=1.2, marker="o", markersize=3)
                taken = int(entropy.argmin())
                below.plot(x[taken], 100 * y[taken], "o", color=colour, markersize=8, markerfacecolor="none")
                rates, best, least = rates | {*x.tolist()}, max(best, 100 * y.max()), min(least, 100 * y.min())
        if rates:
            below.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
            below.set_ylim(bottom=max(least - 1, best - SEARCH_POINTS), top=best + 1)
        above.set_xlabel("epoch")
        above.set_ylabel("test accuracy, %")
        below.set_xlabel("learning rate in the search; a ring: taken (least loss)")
        below.set_ylabel("held-out accuracy, %")
        _title(above, title)
    _legend(grid[0][0])
    return png_bytes(figure)


HEADS = {
    "probe": "trained",
    "least_squares": "least\nsquares",
    "counted": "counted",
    "one_class": "one label\na feature",
}
CLUSTERS = {
    "argmax_purity": "largest\nfeature",
    "kmeans_many_purity": "k-means,\nas many",
    "kmeans_purity": "k-means,\nclasses",
    "spectral_purity": "spectral,\nclasses",
}


def practice(panels: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> bytes:
    """NCL's features as probabilities: their sums, their reliability; then heads and clusters, CL beside NCL."""
    figure, grid = _panels(2, 2, width=370, height=200)
    (sums, reliable), (heads, clusters) = grid
    reliable.plot([0, 100], [0, 100], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    sums.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    for i, (name, runs) in enumerate((n, r) for n, r in panels.items() if "row_sums" in r.get("NCL", {})):
        found, colour = runs["NCL"], NONNEG_RUNS[i % len(NONNEG_RUNS)]
        style = "-" if i < len(NONNEG_RUNS) else "--"
        edges, share = (np.array(found["row_sums"][k]) for k in ("edges", "share"))
        sums.plot((edges[1:] + edges[:-1]) / 2, 100 * share, style, color=colour, linewidth=1.4, label=name)
        bins = found["reliability"]
        at = [
            (c, a) for c, a, n in zip(*(bins[k] for k in ("confidence", "accuracy", "share")), strict=True) if n >= 0.01
        ]
        reliable.plot(*(100 * np.array(at).T), style, color=colour, linewidth=1.4, marker="o", markersize=3, label=name)
    for axes, title, x, y in (
        (sums, "P(c|x): do they sum to 1?", "sum over latent classes (2 or more at 2)", "test images, %"),
        (reliable, "P(y|x): right as often as it says?", "P(y|x) of the likeliest label, %", "right, %"),
    ):
        _title(axes, title)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    for axes, title, texts in (
        (heads, "Heads on z, accuracy, %", HEADS),
        (clusters, "Clusters of z, purity, %", CLUSTERS),
    ):
        for row, (name, method) in enumerate((n, m) for n, runs in panels.items() for m in runs):
            found = panels[name][method]
            place = [i for i, key in enumerate(texts) if key in found]
            marker = "osD^vP"[list(panels).index(name) % 6]
            axes.plot(place, [100 * found[list(texts)[i]] for i in place], marker, color=NCL if method == "NCL" else CL,
                      markersize=5, label=f"{method}, {name}", zorder=3 + row)  # fmt: skip
        axes.set_xticks(range(len(texts)), list(texts.values()))
        axes.set_xlim(-0.5, len(texts) - 0.5)
        axes.set_ylim(0, 103)
        _title(axes, title)
    for axes, of in ((reliable, sums), (clusters, heads)):  # of both panels of a row, beside them
        axes.legend(*of.get_legend_handles_labels(), fontsize=7, frameon=False, labelcolor=INK, loc="upper left",
                    bbox_to_anchor=(1.0, 1.02))  # fmt: skip
    return png_bytes(figure)


def ways(runs: Mapping[str, Mapping[str, Any]], texts: Mapping[str, str]) -> bytes:
    """Accuracy of one encoder probed in several ways, a group of bars for each run; no bar for what was not asked."""
    figure, ((axes,),) = _panels(1, width=680, height=110 + 105 * len(runs))
    step = 0.84 / len(texts)
    for i, ((key, text), colour) in enumerate(zip(texts.items(), (*NONNEG_RUNS, *SIGNED_RUNS), strict=False)):
        asked = {place: 100 * found[key] for place, found in enumerate(runs.values()) if key in found}
        place = np.array([*asked], float) + step * (i - (len(texts) - 1) / 2)
        bars = axes.barh(place, [*asked.values()], height=0.9 * step, color=colour, label=text)
        axes.bar_label(bars, fmt=" %.1f", fontsize=7, color=INK)
    axes.set_yticks(range(len(runs)), [textwrap.fill(name, 28) for name in runs], fontsize=7)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_xlabel("test accuracy of a linear classifier on h, %")
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return png_bytes(figure)
