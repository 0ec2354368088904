"""Evaluated runs side by side in one self-contained HTML file: what each feature looks at, and the numbers.

N images, D features. Every section is one function of the runs; a new one is added to SECTIONS.
"""

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import resources
from pathlib import Path

import jinja2
import numpy as np

from nonneg import figures, files, metrics, progress
from nonneg.errors import BadInput
from nonneg.figures import EPS, Column

__all__ = ["Column", "write"]

ROWS, IMAGES, SAMPLES, CORRELATED, WIDEST = 12, 10, 60, 20, 512

# key, what people call it, how it is printed, the key of its chance level
HEADLINE = (
    ("test_accuracy", "The classifier itself", "share", "chance"),
    ("sparsity", "Sparsity", "share", None),
    ("class_consistency", "Class consistency", "share", "chance"),
    ("top10_consistency", "Top-10 class consistency", "share", "top10_chance"),
    ("linear_probe", "Linear probe, backbone h", "share", "chance"),
    ("knn", "k-NN, backbone h", "share", "chance"),
    ("linear_probe_z", "Linear probe, features z", "share", "chance"),
    ("knn_z", "k-NN, features z", "share", "chance"),
    ("live_features", "Live features", "count", None),
    ("effective_rank", "Effective rank", "number", None),
    ("zero_rows", "Images with all features zero", "count", None),
)
SHARES = {key for key, _, kind, _ in HEADLINE if kind == "share"}
SHARES |= {
    "class_consistency_weighted",
    "chance",
    "top10_chance",
    "expected_activation_top",
    "dead_weights",
    "active_under_20",
}
PROBES = {"linear_probe": "linear, h", "knn": "k-NN, h", "linear_probe_z": "linear, z", "knn_z": "k-NN, z"}


@dataclass(frozen=True)
class View:
    """A run and what several sections need of it."""

    column: Column
    colour: str
    width: int  # of its panels, in CSS pixels

    @cached_property
    def consistency(self) -> np.ndarray:
        """Class consistency of the live features, the largest first; empty without labels."""
        if self.column.test.labels is None:
            return np.empty(0)
        each = metrics.per_feature_consistency(self.column.test.z, self.column.test.labels, eps=EPS)
        return np.sort(each[np.isfinite(each)])[::-1]

    def value(self, key: str) -> float | None:
        """A metric's value, or None where it was not measured or is not a number."""
        value = self.column.metrics.get(key, {}).get("value")
        return value if figures.finite(value) else None


@dataclass(frozen=True)
class Strip:
    """One feature: its images, and what there is to say about them."""

    picture: str
    name: str  # its majority class, or its number where there are no labels
    number: str  # of the feature, where it is not the name
    about: str
    ids: str
    words: tuple[tuple[str, float], ...] = ()  # that switch it on, where there are texts, and how much of the largest
    balance: float | None = None  # 1 where only images switch it on, 0 where only texts do
    is_text: bool = False  # the name is a caption, which takes several lines


@dataclass(frozen=True)
class Panel:
    """What one run shows in a section: a picture, strips of images, or only a note."""

    note: str
    picture: str | None = None
    alt: str = ""
    strips: list[Strip] = field(default_factory=list)


@dataclass(frozen=True)
class Section:
    """A title, a panel a run (or, with `shared`, charts that hold all runs), and one sentence on what to see."""

    key: str
    title: str
    see: str
    panels: list[Panel]
    shared: bool = False
    scale: str | None = None  # what the colours from -1 to 1 mean, where there are any


def write(
    columns: list[Column],
    path: Path,
    *,
    title: str,
    intro: str,
    seed: int = 0,
    sections: "Sequence[Build] | None" = None,
    headline: Sequence[tuple[str, str, str, str | None]] = HEADLINE,
) -> None:
    """Write the report; `seed` draws the random features and the images of the activation matrix.

    `sections` and `headline` are those of a run of images, unless said otherwise.
    """
    _check(columns)
    width = {1: 760, 2: 566}.get(len(columns), 370)
    views = [View(c, colour, width) for c, colour in zip(columns, figures.colours(columns), strict=True)]
    built, builds = [], SECTIONS if sections is None else sections
    with progress.bar("report", len(builds)) as advance:
        for build in builds:
            built.append(build(views, seed))
            advance()
    template = resources.files("nonneg").joinpath("report.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    rows = _headline(views, headline)
    html = environment.from_string(template).render(
        title=title,
        intro=intro,
        views=views,
        any_non_negative=not all(figures.signed(c) for c in columns),
        headline=rows,
        chance=any(row["chance"] for row in rows),
        sections=[section for section in built if section],
        skipped=[(v, v.column.skipped) for v in views if v.column.skipped],
        definitions=_definitions(views, headline),
        stops=figures.STOPS,
    )
    # a file name may hold bytes that are not UTF-8: they are printed as escapes
    files.write_text(path, html.encode("utf-8", "backslashreplace").decode("utf-8"))


def top_features(views: list[View], seed: int) -> Section:  # noqa: ARG001 (every section has the same signature)
    """Rows of images for the most used features: the paper's Figure 1."""
    labelled = any(v.column.test.labels is not None for v in views)
    beside = "the most frequent class among these images, the feature's number" if labelled else "the feature's number"
    return Section(
        "features",
        "What each feature looks at",
        f"Each row is one feature and the {IMAGES} test images on which it is largest; shown are the features of "
        "largest expected activation. A row of one kind of image means that the feature has one meaning; a mixed row "
        f"means that it has none the eye can find. Beside it: {beside}, and the share of all test images on which it "
        "is on." + _stable_note(views) + signed_note(views),
        [strips(v, v.column.live[:ROWS]) for v in views],
    )


def random_features(views: list[View], seed: int) -> Section:
    """The same for live features that nobody chose."""
    return Section(
        "random",
        "Features drawn at random",
        f"The same for live features drawn at random (seed {seed}), so that nothing here is picked by hand."
        + signed_note(views),
        [strips(v, figures.draw_live(v.column, ROWS, seed)) for v in views],
    )


def matched(views: list[View], seed: int) -> Section | None:
    """The features of the first run beside their matches in the others: for runs of one kind on the same images."""
    if len(views) < 2 or len({figures.signed(v.column) for v in views}) > 1:  # CL has nothing to find in NCL
        return None
    first, *others = views
    if any(v.column.test.ids != first.column.test.ids for v in views):
        return None
    found = figures.counterparts([v.column for v in views], ROWS)
    if found is None:
        return None
    means = [metrics.match_features(first.column.test.z, v.column.test.z, eps=EPS).mean for v in others]
    nulls = [metrics.rotated_null(first.column.test.z, v.column.test.z, eps=EPS, draws=1, seed=seed) for v in others]
    text = "; ".join(
        f"{v.column.title}: mean |cosine| {mean:.2f}, {null.mean:.2f} after a random rotation"
        for v, mean, null in zip(others, means, nulls, strict=True)
    )
    return Section(
        "matched",
        "The same features in another run?",
        "Features matched one to one by the Hungarian algorithm on |cosine| over the test images, from the most alike "
        f"to the least, evenly spaced. Rows across belong together. {text}.",
        [_scored(strips(v, features), alike) for v, features, alike in zip(views, *found, strict=True)],
    )


def _scored(panel: Panel, alike: np.ndarray) -> Panel:
    """The same strips, each with how alike its feature and the matched one are."""
    strips = [replace(s, about=f"{s.about} · alike {a:.2f}") for s, a in zip(panel.strips, alike, strict=True)]
    return replace(panel, strips=strips)


def activations(views: list[View], seed: int) -> Section:
    """A heat map of some test images over all features."""
    panels = []
    for v in views:
        test, order = v.column.test, v.column.order
        shown = order[:WIDEST]
        rows = figures.sample_rows(test.labels, SAMPLES, total=figures.shape(test)[0], seed=seed)
        names = None if test.labels is None else [figures.class_name(v.column, int(y)) for y in test.labels[rows]]
        every = len(shown) == len(order)
        xlabel = "features, most used first" if every else f"the {WIDEST} most used of {len(order)} features"
        values = figures.scaled_rows(v.column, rows, shown)
        picture = figures.activation_matrix(values, names, width=v.width, xlabel=xlabel)
        zeros = figures.percent(metrics.sparsity(test.z[rows], eps=EPS))
        note = (
            f"{_count(len(rows), 'image')} × {_count(len(shown), 'feature')}; {zeros} of these images' values are zero."
        )
        panels.append(Panel(note, uri(picture), "Heat map of activations, images by features"))
    return Section(
        "activations",
        "Activation matrix",
        "One line an image, one column a feature"
        + (", images sorted by class" if _labelled(views) else "")
        + ". White "
        "is zero. A readable code is mostly white, with images of one kind sharing the same few columns.",
        panels,
        scale="activation ÷ the image's largest absolute activation",
    )


def active(views: list[View], seed: int) -> Section:  # noqa: ARG001
    """How many features fire on an image."""
    top = max(figures.shape(v.column.test)[1] for v in views)
    panels = []
    for v in views:
        counts, d = metrics.active_per_sample(v.column.test.z, eps=EPS), figures.shape(v.column.test)[1]
        picture = figures.histogram(counts, top=top, colour=v.colour, width=v.width)
        zeros = figures.percent(metrics.sparsity(v.column.test.z, eps=EPS))
        note = f"On average {counts.mean():.1f} of {d} features fire; sparsity {zeros}."
        panels.append(Panel(note, uri(picture), "Histogram of active features per image"))
    return Section(
        "active",
        "Sparsity: active features per image",
        f"A feature is active where |z| ≥ {EPS:.5f}. The further left the bars, the fewer features it takes to "
        "describe an image.",
        panels,
    )


def consistency(views: list[View], seed: int) -> Section | None:  # noqa: ARG001
    """Each feature's class consistency as a sorted curve; nothing without labels."""
    if not _labelled(views):
        return None
    xmax = max(len(v.consistency) for v in views)
    panels = []
    for v in views:
        labels = v.column.test.labels
        if labels is None or not len(v.consistency):
            panels.append(Panel("No labels." if labels is None else "No live feature."))
            continue
        picture = figures.curves(
            v.consistency,
            [o.consistency for o in views if o is not v],
            colour=v.colour,
            width=v.width,
            xmax=xmax,
            ymax=1,
            xlabel="live features, most consistent first",
            ylabel="class consistency",
            shares=True,
            level=metrics.chance(labels),
        )
        note = f"Mean {figures.percent(float(v.consistency.mean()))} over {_count(len(v.consistency), 'live feature')}."
        panels.append(Panel(note, uri(picture), "Sorted class consistency of the features, chance level dashed"))
    return Section(
        "consistency",
        "Class consistency of each feature",
        "Of the images on which a feature fires, the share that belongs to its most frequent class. A feature that "
        "always fires scores chance (dashed), the share of the largest class; one that fires on a handful of images "
        "can score high by luck." + _ghost_note(views),
        panels,
    )


def correlation(views: list[View], seed: int) -> Section:
    """Cosines between some live features."""
    panels = []
    for v in views:
        chosen = figures.draw_live(v.column, CORRELATED, seed)
        if not len(chosen):
            panels.append(Panel("No live feature."))
            continue
        cosine = metrics.correlation(v.column.test.z, features=chosen, eps=EPS)
        off = np.abs(cosine[~np.eye(len(cosine), dtype=bool)])
        note = f"Mean |cosine| between different features shown: {off.mean():.3f}." if len(off) else "One live feature."
        picture = figures.correlation_matrix(cosine, chosen, width=v.width)
        panels.append(Panel(note, uri(picture), "Heat map of cosines between features"))
    return Section(
        "correlation",
        "Correlation between features",
        f"Cosines between the columns of up to {CORRELATED} live features drawn at random (seed {seed}), on test "
        "images. White off the diagonal means that features do not repeat each other.",
        panels,
        scale="cosine",
    )


def expected_activation(views: list[View], seed: int) -> Section:  # noqa: ARG001
    """How much each feature is used, sorted."""
    sorted_ = [v.column.activation[v.column.order] for v in views]
    panels = []
    for v, mine in zip(views, sorted_, strict=True):
        picture = figures.curves(
            mine,
            [o for o in sorted_ if o is not mine],
            colour=v.colour,
            width=v.width,
            xmax=max(map(len, sorted_)),
            ymax=max(float(s.max(initial=0)) for s in sorted_),
            xlabel="features, most used first",
            ylabel="expected activation",
        )
        live = int(metrics.live(v.column.train.z, eps=EPS).sum())
        note = f"On the training images {live} of {_count(len(mine), 'feature')} are live, {len(mine) - live} dead."
        panels.append(Panel(note, uri(picture), "Sorted expected activation of the features"))
    return Section(
        "usage",
        "Expected activation",
        "How much each feature is used: its mean activation over the training images, each image scaled to length 1"
        + (" (absolute values where features are signed)" if any_signed(views) else "")
        + ". A steep curve means that few features do most of the work and the rest can be dropped."
        + _ghost_note(views),
        panels,
    )


def probes(views: list[View], seed: int) -> Section | None:  # noqa: ARG001
    """Accuracy of the probes as bars; nothing where no probe was run."""
    if all(v.value(key) is None for v in views for key in PROBES):
        return None
    panels = []
    for v in views:
        values = {name: v.value(key) for key, name in PROBES.items()}
        picture = figures.bars(values, colour=v.colour, width=v.width, level=v.value("chance"))
        panels.append(Panel("", uri(picture), "Bars of probe and k-NN accuracy, chance level dashed"))
    return Section(
        "probes",
        "Linear probe and k-NN accuracy",
        "What a linear classifier and the nearest neighbours read from the backbone's output h and from the features "
        "z: bars of equal height mean that readable features cost no accuracy.",
        panels,
    )


def training(views: list[View], seed: int) -> Section | None:  # noqa: ARG001
    """Loss, zeros and live features over the epochs, all runs in each chart; nothing without a log."""
    charts = (("loss", "training loss", False), ("zeros", "zeros in z", True), ("alive", "features alive", False))
    panels = []
    for key, label, shares in charts:
        picture = figures.training(
            [v.column.log for v in views],
            key,
            colours=[v.colour for v in views],
            width=370,
            ylabel=label,
            shares=shares,
        )
        if picture:
            panels.append(Panel("", uri(picture), f"{label} over the epochs"))
    if not panels:
        return None
    return Section(
        "training",
        "Training",
        "Loss, share of zeros and features alive by epoch, on augmented training images. Zeros should rise while "
        "features stay alive; a loss that still falls at the end asks for more epochs.",
        panels,
        shared=True,
    )


Build = Callable[[list[View], int], Section | None]
SECTIONS: tuple[Build, ...] = (
    top_features,
    random_features,
    matched,
    activations,
    active,
    consistency,
    correlation,
    expected_activation,
    probes,
    training,
)


def strips(v: View, features: np.ndarray) -> Panel:
    """A strip of images for each feature."""
    if not len(features):
        return Panel("No feature fires on any test image.")
    column, n = v.column, figures.shape(v.column.test)[0]
    fires = np.bincount(
        column.test.z.indices[np.abs(column.test.z.data) >= EPS], minlength=figures.shape(column.test)[1]
    )
    colours = 256 if min(column.images.shape[-2:]) > 32 else None  # of photographs
    strips = []
    for feature, images in zip(features, figures.top_images(column, features, IMAGES), strict=True):
        majority = figures.majority(column, images)
        name, count = majority if majority else (f"feature {feature}", None)
        picture = figures.png(figures.feature_grid(column, [int(feature)], IMAGES), colours=colours)
        said = f"{count} of {len(images)} · " * bool(count) + f"on {figures.percent(int(fires[feature]) / n, 0)}"
        stable = column.stability[feature] if column.stability else None
        said += "" if stable is None else f" · stable {stable:.2f}"
        ids = f"feature {feature}: " + ", ".join(column.test.ids[i] for i in images)
        strips.append(Strip(uri(picture), name, f"#{feature}" if count else "", said, ids))
    return Panel("", strips=strips)


def _headline(views: list[View], headline: Sequence[tuple[str, str, str, str | None]]) -> list[dict]:
    """Rows of the table on top: a measure, a value a run, and the chance level."""
    rows = []
    for key, name, kind, chance in headline:
        if all(key not in v.column.metrics for v in views):
            continue
        of = {
            "live_features": lambda v: v.value("features"),
            "zero_rows": lambda v: figures.shape(v.column.test)[0],
        }.get(key)
        values = []
        for v in views:
            text, total = _print(v.value(key), kind), of(v) if of else None
            values.append(text if total is None or v.value(key) is None else f"{text} of {total:.0f}")
        levels = list(dict.fromkeys(_print(_chance(v, key, chance), "share") for v in views)) if chance else []
        rows.append(
            {"name": name, "values": values, "chance": " / ".join(levels), "definition": _definition(views, key)}
        )
    return rows


def _chance(v: View, key: str, chance: str) -> float | None:
    """The chance level of a measure: an entry of that name, or what its own entry says."""
    own = v.column.metrics.get(key, {}).get("chance")
    return own if figures.finite(own) else v.value(chance)


def _definitions(views: list[View], headline: Sequence[tuple[str, str, str, str | None]]) -> list[dict]:
    """Rows of the table at the end: every metric any run has, in order."""
    names = {key: name for key, name, _, _ in headline}
    shares = SHARES | {key for key, _, kind, _ in headline if kind == "share"}
    rows = []
    for key in dict.fromkeys(key for v in views for key in v.column.metrics):
        knobs = list(dict.fromkeys(_knobs(v.column.metrics[key]) for v in views if key in v.column.metrics))
        rows.append({
            "key": key,
            "name": names.get(key, key.replace("_", " ").capitalize()),
            "values": [_print(v.value(key), "share" if key in shares else "number") for v in views],
            "definition": _definition(views, key),
            "knobs": " / ".join(k for k in knobs if k),
        })  # fmt: skip
    return rows


def _definition(views: list[View], key: str) -> str:
    said = (v.column.metrics.get(key, {}).get("definition") for v in views)
    return next((str(text) for text in said if text), "")


def _knobs(metric: dict) -> str:
    """What a metric was measured with, as in "threshold 1e-05, k 10"."""
    knobs = {k: v for k, v in metric.items() if k not in ("value", "definition", "data") and v is not None}
    return ", ".join(f"{k.replace('_', ' ')} {_knob(v)}" for k, v in knobs.items())


def _knob(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}" if np.isfinite(value) else "–"
    return str(value)


def _print(value: float | None, kind: str) -> str:
    if value is None:
        return "–"
    if kind == "share":
        return figures.percent(value)
    if kind == "count" or float(value).is_integer():
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.3f}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _labelled(views: list[View]) -> bool:
    return any(v.column.test.labels is not None for v in views)


def any_signed(views: list[View]) -> bool:
    return any(figures.signed(v.column) for v in views)


def signed_note(views: list[View]) -> str:
    return (
        " Signed features are ranked by absolute value; a blue line marks a negative one." if any_signed(views) else ""
    )


def _stable_note(views: list[View]) -> str:
    said = " Stable: its |cosine| with the matched feature of other runs, their mean; 1 is the same feature again."
    return said if any(v.column.stability for v in views) else ""


def _ghost_note(views: list[View]) -> str:
    return " Grey: the other runs." if len(views) > 2 else " Grey: the other run." if len(views) == 2 else ""


def uri(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode("ascii")


def _check(columns: list[Column]) -> None:
    """Stop with one sentence where a run's parts do not belong together."""
    if not columns:
        raise BadInput("a report needs at least one evaluated run")
    for c in columns:
        n = figures.shape(c.test)[0]
        if not n or not figures.shape(c.train)[0]:
            raise BadInput(
                f"{c.title}: there are no {'test' if not n else 'training'} images, so there is nothing to report"
            )
        if c.images.ndim != 4 or str(c.images.dtype) != "torch.uint8":
            raise BadInput(
                f"{c.title}: images must be uint8, N x C x H x W, not {c.images.dtype} {tuple(c.images.shape)}"
            )
        for name, length in (
            ("images", len(c.images)),
            ("ids", len(c.test.ids)),
            ("labels", _length(c.test.labels, n)),
        ):
            if length != n:
                raise BadInput(f"{c.title}: {n} rows of test features but {length} {name}; extract the features again")
        before, after = figures.shape(c.train)[1], figures.shape(c.test)[1]
        if before != after:
            raise BadInput(
                f"{c.title}: {before} training features but {after} test features; extract both with one model"
            )


def _length(labels: np.ndarray | None, otherwise: int) -> int:
    return otherwise if labels is None else len(labels)
