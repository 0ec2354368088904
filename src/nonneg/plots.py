"""The plots of `nonneg evaluate` as a PNG, one function a plot, each from the entries of metrics.json alone.

Nothing is computed here; a plot of what was not measured is None.
"""

from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

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
from nonneg.figures import bars

SHADES = {"features": SIGNED_RUNS[0], "pca": NONNEG_RUNS[1], "projection": MUTED}
DASHES = {"float32": "-", "8 bits": "--", "4 bits": "-.", "1 bit": ":"}


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
    long = 4.5  # enough for dashes to be told apart
    axes.legend(fontsize=7, frameon=False, labelcolor=INK, loc="lower right", handlelength=long)
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
    axes.set_xlabel(f"{len(scores)} live features: |cosine| with the match, mean over other runs (0 in one without)")
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
    figure, axes = one_panel(566, 330, right=24)
    axes.scatter(*points.T, s=16, color=colour, alpha=0.6, linewidths=0, clip_on=False, zorder=3)
    axes.axvline(measured["chance"]["value"], color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)
    level = measured["monosemanticity_baseline"]["value"]
    axes.axhline(level, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.8)
    axes.set_xlim(0, 1)
    axes.set_ylim(min(0.0, float(points[:, 1].min())) - 0.05, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
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
    accuracy = f"{percent(entry['value'])} over all, {percent(entry['clean'])} undamaged"
    said = f"test accuracy in %, {entry['images']} images: {accuracy}"
    figure.text(128 / 566, 1 - 18 / 460, said, fontsize=8, color=MUTED)
    return png_bytes(figure)


def shifted_bars(measured: dict[str, dict], colour: str) -> bytes | None:
    """The clean-trained probe on the test images, on each other folder, and under corruptions."""
    elsewhere = {name.removeprefix("ood_"): e for name, e in measured.items() if name.startswith("ood_")}
    if not elsewhere:
        return None
    values = {"test images": next(iter(elsewhere.values()))["clean"]}
    values |= {printable(name, 16): e["value"] for name, e in elsewhere.items()}
    if corrupted := measured.get("corruption_accuracy"):
        tried = f"\non {corrupted['images']} images" * ("subset" in corrupted)
        values[f"corruptions{tried}"] = corrupted["value"]
    return bars(values, colour=colour, width=566, level=_value(measured, "chance"))


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
