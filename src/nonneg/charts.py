"""Stored numbers as a PNG, one function a figure: the plots of `nonneg evaluate` and the figures of the analyses.

Nothing is computed here; the analyses draw from their rows, the plots of one run from its metrics.json.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from nonneg.canvas import (
    DPI,
    GHOST,
    INK,
    MUTED,
    NONNEG_RUNS,
    RULE,
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
from nonneg.figures import bars

CL, NCL = SIGNED_RUNS[0], NONNEG_RUNS[0]
NAMES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "maps": "digits",
    "wide": "CIFAR-100, 2,048 features",
    "sprites": "sprites",
}


# The figures of the analyses and experiments


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
        axes.set_xscale("log", base=2)
        axes.set_xticks([2**i for i in range(11)], [f"{2**i:,}" for i in range(11)])
        axes.set_ylim(bottom=max(0, axes.get_ylim()[0]))
        axes.set_xlabel("bytes per vector")
        axes.set_ylabel("precision@10, test set, %")
        _title(axes, NAMES.get(name, name))
    _legend_below(figure, {text: (line, colour, width) for _, _, text, colour, line, width in RIVALS}, columns=4)
    return png_bytes(figure)


SHADES = {"features": CL, "pca": NONNEG_RUNS[1], "projection": MUTED}
DASHES = {"float32": "-", "8 bits": "--", "4 bits": "-.", "1 bit": ":"}
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
    figure, grid = _panels(len(texts), len(panels), width=400, height=330)
    for line_of_axes, (name, runs) in zip(grid, panels.items(), strict=True):
        for axes, (key, text) in zip(line_of_axes, texts.items(), strict=True):
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
    """How stable each feature is across seeds: a histogram a method, its mean, and what a random rotation gives."""
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
        axes.set_xlabel("|cosine| to the matched feature of another seed")
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
            axes.plot(x, 100 * np.asarray(values), color=NCL if run == "NCL" else CL, linewidth=1.8, label=run)
        axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
        axes.set_xlabel("features, largest first")
        axes.set_ylabel("SEPIN, nats x 100")
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
        _title(axes, f"{NAMES.get(name, name)}, {images} test images; dashed: clean")
        axes.legend(fontsize=7.5, frameon=False, labelcolor=INK, loc="upper right", ncols=2)
        axes.set_ylim(top=115)
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

    A panel holds `curves` (loss -> one list of (epoch, accuracy) a seed) and `search` (loss -> (rate, accuracy)).
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
                above.plot(mean[:, 0], 100 * mean[:, 1], dash, color=colour, linewidth=1.4, label=text)
            if points := sorted(found["search"].get(loss, ())):
                x, y = np.array(points).T
                below.plot(x, 100 * y, dash, color=colour, linewidth=1.2, marker="o", markersize=3)
                rates, best, least = rates | {*x.tolist()}, max(best, 100 * y.max()), min(least, 100 * y.min())
        if rates:
            below.set_xticks(sorted(rates), [f"{rate:g}" for rate in sorted(rates)])
            below.set_ylim(bottom=max(least - 1, best - SEARCH_POINTS), top=best + 1)
        above.set_xlabel("epoch")
        above.set_ylabel("test accuracy, %")
        below.set_xlabel("learning rate, 20 epochs")
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


# The plots of one run's measures, each from the entries of metrics.json alone; None where they were not taken


def spectra(measured: dict[str, dict], colour: str) -> bytes | None:
    """Shares of the eigenvalues and of the expected activations, largest first, on a logarithmic scale."""
    panels = {"eigenvalues_top": ("eigenvalue", "directions"), "activations_90": ("expected activation", "features")}
    if not all(_each(measured, key) for key in panels):
        return None
    figure = Figure(figsize=(7.6, 2.6), dpi=DPI, facecolor="white")
    for i, (key, (what, over)) in enumerate(panels.items()):
        axes = figure.add_axes((0.085 + 0.5 * i, 0.18, 0.4, 0.72))
        dress(axes)
        share = np.array(_each(measured, key))
        shown = share[share > 1e-6]  # what is left below is rounding, or dead
        draw_line(axes, np.arange(1, len(shown) + 1), shown, colour)
        axes.set_yscale("log")
        axes.set_ylim(1e-6, 1)  # the same for every run
        axes.minorticks_off()
        axes.set_xlim(0, len(share) * 1.02 + 0.5)
        axes.set_xlabel(f"{over}, largest first ({len(shown)} of {len(share)} above 0.0001 %)")
        axes.set_ylabel(f"share of all {what}s")
    return png_bytes(figure)


def precision_by_prefix(measured: dict[str, dict], colour: str) -> bytes | None:
    """Precision of the nearest neighbours by the first features of largest expected activation, chance dashed."""
    key = next((name for name in measured if name.startswith("precision@")), "")
    if not (each := _each(measured, key)):
        return None
    figure, axes = one_panel(566, 250)
    axes.set_xscale("log", base=2)
    axes.set_xticks(each["features"], [str(n) for n in each["features"]])
    axes.minorticks_off()
    draw_line(axes, np.array(each["features"]), np.array(each["precision"]), colour)
    in_percent(axes)
    level_line(axes, measured["precision_chance"]["value"])
    axes.set_xlabel("features kept, largest expected activation first")
    axes.set_ylabel(f"{key}, test images")
    return png_bytes(figure)


def precision_by_bytes_of_run(measured: dict[str, dict], colour: str) -> bytes | None:
    """Precision over bytes per vector, each way to shorten a line, the largest activations bold; in floats, dashed."""
    if not (points := _each(measured, "precision_bytes_whole")):
        return None
    ways: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        ways.setdefault(point["method"], []).append((point["bytes"], point["precision"]))
    figure, axes = one_panel(760, 400)
    for way, line in ways.items():
        bold = way.startswith("activations")
        shade = colour if bold else SHADES[way.partition(",")[0]]
        dash = "-" if bold else DASHES[way.partition(", ")[2]]
        x, y = np.array(sorted(line)).T
        axes.plot(x, y, linestyle=dash, color=shade, linewidth=2.4 if bold else 1.2, marker="o", markersize=2.5,
                  label="each image's largest activations" if bold else way)  # fmt: skip
    axes.set_xscale("log", base=2)
    sizes = sorted({point["bytes"] for point in points})
    at = [2**i for i in range(sizes[-1].bit_length()) if 2**i >= sizes[0]]
    axes.set_xticks(at, [f"{size:,}" for size in at])
    axes.minorticks_off()
    in_percent(axes)
    axes.set_ylim(0, 1)
    axes.axhline(measured["precision_bytes_whole"]["value"], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlabel("bytes per vector (dashed level: all features in floats)")
    axes.set_ylabel(f"precision@{measured['precision_bytes_whole']['k']}, test images")
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="lower right")
    return png_bytes(figure)


def sepin_by_feature(measured: dict[str, dict], colour: str) -> bytes | None:
    """SEPIN of each feature, largest first."""
    if not (each := _each(measured, "sepin@all")):
        return None
    values = np.sort(each)[::-1]
    figure, axes = one_panel(566, 250, left=72)
    axes.axhline(0, color=GHOST, linewidth=0.8, zorder=1)
    draw_line(axes, np.arange(1, len(values) + 1), values, colour)
    axes.set_xlim(0, len(values) * 1.02 + 0.5)
    axes.set_xlabel("features, largest first")
    axes.set_ylabel("SEPIN (nats)")
    return png_bytes(figure)


def stability_histogram(measured: dict[str, dict], colour: str) -> bytes | None:
    """How many features find how similar a partner in other runs, beside what both nulls find on average."""
    key = "identifiability_cosine"
    if not (each := _each(measured, key)):
        return None
    scores = np.array([v for v in each if v is not None])
    figure, axes = one_panel(566, 250, top=30)
    axes.hist(scores, bins=np.linspace(0, 1, 21).tolist(), color=colour)
    axes.set_xlim(0, 1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    for name, dashes in (("shuffled", (4, 3)), ("rotated", (1, 2))):
        level = measured[f"{key}_{name}"]["value"]
        axes.axvline(level, color=INK, linewidth=0.9, linestyle=(0, dashes))
        axes.annotate(f"{name} {level:.2f}", (level, 1.03), xycoords=("data", "axes fraction"), color=INK,
                      fontsize=7.5, ha="center")  # fmt: skip
    axes.set_xlabel(f"stability: |cosine| with the partner, mean over other runs ({len(scores)} live features)")
    axes.set_ylabel("features")
    return png_bytes(figure)


def monosemanticity_by_feature(measured: dict[str, dict], colour: str) -> bytes | None:
    """Monosemanticity of each feature, largest first, the baseline dashed."""
    values = np.sort([v for v in _each(measured, "monosemanticity") or () if v is not None])[::-1]
    if not len(values):
        return None
    figure, axes = one_panel(566, 250)
    level = measured["monosemanticity_baseline"]["value"]
    axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)
    said = f"equally on for all images {round(level, 2) + 0.0:.2f}"  # no -0.00
    axes.annotate(said, (1, level), (0, 4), xycoords=("axes fraction", "data"), textcoords="offset points",
                  ha="right", color=INK, fontsize=7.5)  # fmt: skip
    draw_line(axes, np.arange(1, len(values) + 1), values, colour)
    axes.set_xlim(0, len(values) * 1.02 + 0.5)
    axes.set_ylim(min(0.0, float(values.min())) - 0.05, 1)
    axes.set_xlabel("features, largest first")
    axes.set_ylabel("cosine of a feature's images")
    return png_bytes(figure)


def monosemanticity_by_consistency(measured: dict[str, dict], colour: str) -> bytes | None:
    """Monosemanticity against class consistency, one dot a feature: do looks and labels agree?"""
    looks, classes = _each(measured, "monosemanticity"), _each(measured, "class_consistency")
    if not looks or not classes or len(looks) != len(classes):
        return None
    points = np.array([(c, m) for c, m in zip(classes, looks, strict=True) if c is not None and m is not None])
    if not len(points):
        return None
    figure, axes = one_panel(566, 330)
    axes.scatter(*points.T, s=16, color=colour, alpha=0.6, linewidths=0, clip_on=False, zorder=3)
    axes.axvline(measured["chance"]["value"], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)
    level = measured["monosemanticity_baseline"]["value"]
    axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(min(0.0, float(points[:, 1].min())) - 0.05, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_xlabel(
        f"class consistency of a feature ({len(points)} features; dashed: chance, equally on for all images)"
    )
    axes.set_ylabel("cosine of a feature's images")
    return png_bytes(figure)


def factor_bars(measured: dict[str, dict], colour: str) -> bytes | None:
    """MIG and SAP gaps of each factor, side by side."""
    mig, sap = _each(measured, "mig"), _each(measured, "sap")
    if not mig or not sap:
        return None
    figure, axes = one_panel(566, 250, top=30)
    for i, (name, gaps, shade) in enumerate((("MIG", mig, colour), ("SAP", sap, GHOST))):
        places = np.arange(len(gaps)) + 0.38 * i - 0.19
        axes.bar(places, list(gaps.values()), width=0.34, color=shade, label=name)
        for x, gap in zip(places, gaps.values(), strict=True):
            axes.annotate(f"{gap:.3f}", (x, gap), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(mig)), list(mig))
    axes.tick_params(axis="x", length=0)
    axes.margins(y=0.12)
    axes.set_ylabel("gap between the two best features")
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return png_bytes(figure)


def corruption_matrix(measured: dict[str, dict], colour: str) -> bytes | None:
    """Accuracy under each corruption (rows) at each severity (columns), and its mean: darker is better."""
    if not (each := _each(measured, "corruption_accuracy")):
        return None
    entry = measured["corruption_accuracy"]
    values = np.array([[*row["severity"], row["mean"]] for row in each.values()])
    scale = LinearSegmentedColormap.from_list("run", ("#ffffff", colour))
    figure, axes = one_panel(566, 460, left=128, top=52, bottom=12)
    axes.imshow(values, cmap=scale, vmin=0, vmax=1.4, aspect="auto", interpolation="nearest")  # light, to be read
    for (row, column), value in np.ndenumerate(values):
        weight = "bold" if column == values.shape[1] - 1 else "normal"
        axes.annotate(
            f"{100 * value:.1f}", (column, row), ha="center", va="center", fontsize=7.5, color=INK, fontweight=weight
        )
    axes.axvline(values.shape[1] - 1.5, color="white", linewidth=4)
    axes.set_xticks(range(values.shape[1]), [*(f"severity {s}" for s in range(1, values.shape[1])), "mean"])
    axes.xaxis.tick_top()
    axes.set_yticks(range(len(each)), [name.replace("_", " ") for name in each])
    axes.tick_params(length=0, labelsize=7.5)
    for spine in axes.spines.values():
        spine.set_visible(False)
    said = f"test accuracy in %: {percent(entry['value'])} over all, {percent(entry['clean'])} on clean images"
    figure.text(128 / 566, 1 - 18 / 460, said, fontsize=8, color=MUTED)
    return png_bytes(figure)


def shifted_bars(measured: dict[str, dict], colour: str) -> bytes | None:
    """The clean-trained probe on the test images, on each other folder, and under corruptions."""
    elsewhere = {name.removeprefix("ood_"): e for name, e in measured.items() if name.startswith("ood_")}
    if not elsewhere:
        return None
    values = {"test images": next(iter(elsewhere.values()))["clean"]}
    values |= {printable(name, 16): e["value"] for name, e in elsewhere.items()}
    corrupted, chance = (measured.get(key, {}).get("value") for key in ("corruption_accuracy", "chance"))
    if corrupted is not None:
        values["corruptions"] = corrupted
    return bars(values, colour=colour, width=566, level=chance)


def probabilities(measured: dict[str, dict], colour: str) -> bytes | None:
    """Whether the latent classes' probabilities sum to 1, and whether what is said to be likely is as often right."""
    sums, bins = _each(measured, "latent_row_sum"), _each(measured, "latent_calibration_error")
    if not sums:
        return None
    figure = Figure(figsize=(7.6, 3.0), dpi=DPI, facecolor="white")
    left, right = (figure.add_axes((0.085 + 0.5 * i, 0.16, 0.4, 0.68)) for i in range(2))
    for axes in (left, right):
        dress(axes)
    edges, entry = np.array(sums["edges"]), measured["latent_row_sum"]
    left.bar(edges[:-1], sums["share"], width=np.diff(edges), align="edge", color=colour)
    left.axvline(1, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    left.set_xlim(edges[0], edges[-1])
    left.set_xlabel("sum of P(c|x) over the latent classes (2 and more at 2)")
    left.set_ylabel("share of test images")
    left.set_title(f"{entry['value']:.2f} ± {entry['deviation']:.2f}; 1 in theory", fontsize=8, color=INK, loc="left")
    if bins is None:
        right.set_axis_off()
    else:
        found = measured["latent_calibration_error"]
        at = [(c, a, n) for c, a, n in zip(*(bins[k] for k in ("confidence", "accuracy", "share")), strict=True) if n]
        sure, share_right, weight = np.array(at).T
        right.plot([0, 1], [0, 1], color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
        right.plot(sure, share_right, color=colour, linewidth=1.4)
        right.scatter(sure, share_right, s=8 + 250 * weight, color=colour, zorder=3, clip_on=False)
        in_percent(right)
        right.set_xlim(0, 1)
        right.set_xlabel("P(y|x) of the likeliest label (area: images)")
        right.set_ylabel("how often it is right")
        said = (
            f"right {percent(found['accuracy'])}, sure {percent(found['confidence'])}, apart {percent(found['value'])}"
        )
        right.set_title(said, fontsize=8, color=INK, loc="left")
    if measured["latent_row_sum"]["definition"].startswith("heuristic"):
        figure.text(0.085, 0.955, "heuristic: the loss leaves the length of features open", fontsize=8, color=MUTED)
    return png_bytes(figure)


def cluster_bars(measured: dict[str, dict], colour: str) -> bytes | None:
    """Purity and NMI of the largest feature as cluster, beside k-means and spectral clustering of the same features."""
    ways = [
        way for way in ("argmax", "kmeans_many", "kmeans", "spectral") if _value(measured, f"{way}_nmi") is not None
    ]
    if not ways:
        return None
    names = {"argmax": "largest feature", "kmeans_many": "k-means", "kmeans": "k-means", "spectral": "spectral"}
    figure, axes = one_panel(566, 250, top=30)
    for i, (key, text, shade) in enumerate((("purity", "purity", colour), ("nmi", "NMI", GHOST))):
        values = [measured[f"{way}_{key}"]["value"] for way in ways]
        places = np.arange(len(ways)) + 0.38 * i - 0.19
        axes.bar(places, values, width=0.34, color=shade, label=text)
        for x, value in zip(places, values, strict=True):
            axes.annotate(f"{100 * value:.1f}", (x, value), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(ways)), [f"{names[way]}\n{measured[f'{way}_nmi']['clusters']} clusters" for way in ways])
    axes.tick_params(axis="x", length=0)
    in_percent(axes)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return png_bytes(figure)


PLOTS = {
    "spectra": spectra,
    "retrieval": precision_by_prefix,
    "bytes": precision_by_bytes_of_run,
    "sepin": sepin_by_feature,
    "probabilities": probabilities,
    "clusters": cluster_bars,
    "stability": stability_histogram,
    "monosemanticity": monosemanticity_by_feature,
    "monosemanticity_by_consistency": monosemanticity_by_consistency,
    "factors": factor_bars,
    "corruptions": corruption_matrix,
    "shifts": shifted_bars,
}


def _value(measured: dict[str, dict], key: str) -> float | None:
    return measured.get(key, {}).get("value")


def _each(measured: dict[str, dict], key: str) -> Any:
    """What an entry's value sums up; nothing where it was not measured, or has no value."""
    entry = measured.get(key, {})
    return entry.get("each") if finite(entry.get("value")) else None
