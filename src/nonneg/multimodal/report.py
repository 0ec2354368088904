"""The report of runs on images and their texts: each feature with its top images and its top words.

N images, T texts, D features. The page is report.py's; the sections that know of texts are here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from nonneg import figures, metrics, report, rundir
from nonneg.canvas import INK, MUTED, dress, in_percent, one_panel, png_bytes
from nonneg.errors import BadInput
from nonneg.figures import EPS, Column
from nonneg.metrics import Words
from nonneg.metrics.sparsity import unit_rows
from nonneg.multimodal import encoder
from nonneg.multimodal.measure import KS, LEAST, PairFeatures, extract, measure
from nonneg.multimodal.run import PairRun
from nonneg.report import Panel, Section, Strip, View

WORDS, ASKED, FOUND = 5, 8, 8  # words of a feature; texts that are asked, and images shown for each
HEADLINE = (
    *((f"image_to_text@{k}", f"Image to text, recall@{k}", "share", "chance") for k in KS),
    *((f"text_to_image@{k}", f"Text to image, recall@{k}", "share", "chance") for k in KS),
    ("sparsity_images", "Sparsity, images", "share", None),
    ("sparsity_texts", "Sparsity, texts", "share", None),
    ("pair_agreement", "Image and text agree on a feature", "number", None),
    ("shared_features", "Features that belong to both", "share", None),
    ("class_consistency", "Class consistency, images", "share", "chance"),
    ("live_features", "Live features", "count", None),
)


@dataclass(frozen=True)
class PairColumn:
    """One run: its images as a column of the report, its texts, and which words switch each feature on."""

    column: Column
    test: PairFeatures
    words: Words  # of the training texts
    balance: np.ndarray  # D, on test images and texts
    agreement: np.ndarray  # D, on test pairs

    def agreed(self, n: int) -> np.ndarray:
        """The n features on which test images and their texts agree most."""
        order = np.argsort(-np.nan_to_num(self.agreement, nan=-2.0), kind="stable")
        return order[np.isfinite(self.agreement[order])][:n]

    def strips(self, v: View, chosen: np.ndarray) -> Panel:
        """The images, words and balance of some features."""
        panel = report.strips(v, chosen)
        said = [self._said(strip, int(d)) for strip, d in zip(panel.strips, chosen, strict=False)]
        return replace(panel, strips=said)

    def _said(self, strip: Strip, feature: int) -> Strip:
        top = self.words.top(feature, WORDS)
        strongest = max((abs(score) for _, score in top), default=1.0)
        words = tuple((word if score > 0 else f"−{word}", abs(score) / strongest) for word, score in top)
        kind = self.balance[feature]
        balance = None if np.isnan(kind) else float(kind)
        on = strip.about.rpartition(" · ")[2]  # the share of images; what class they are of, the words say
        alike = self.agreement[feature]
        about = on if np.isnan(alike) else f"{on} · agree {alike:.2f}".replace("-", "−")
        return replace(strip, name=f"feature {feature}", number="", about=about, words=words, balance=balance)


def column(folder: Path, title: str, data_root: Path | None = None) -> PairColumn:
    """All that a report shows of one run; it is measured now."""
    run, model = finished(folder, data_root)
    device = run.torch_device()
    data = {split: run.load_pairs(split) for split in ("train", "test")}
    made = {split: extract(model, part, device=device) for split, part in data.items()}
    about, test = run.to_json(), data["test"].named(made["test"].images.ids)
    measured = {k: {n: v for n, v in e.items() if n != "each"} for k, e in measure(made["test"]).items()}
    images = Column(
        title=title,
        subtitle=f"{about['data']}, map {about['map']}, loss {about['loss']}",
        train=made["train"].images,
        test=made["test"].images,
        metrics=measured,
        images=test.images.images,
        classes=test.images.classes,
        skipped=sorted({*data["train"].skipped, *data["test"].skipped, *rundir.read_skipped(folder)}),
        log=rundir.read_log(folder),
    )
    balance = metrics.modality_balance(made["test"].images.z, made["test"].texts.z)
    agreement, _ = metrics.pair_agreement(made["test"].images.z, made["test"].texts.z, made["test"].pairs)
    return PairColumn(images, made["test"], made["train"].words(), balance, agreement)


def finished(folder: Path, data_root: Path | None = None) -> tuple[PairRun, encoder.PairEncoder]:
    """The run of a folder whose training is over, with the copy of the data that is here, and its model."""
    run, _ = rundir.read_run(folder, PairRun)
    captions = run.captions
    if captions is not None and data_root is not None and (data_root / captions.name).exists():
        captions = data_root / captions.name  # moved along with the images
    if captions is not None and not captions.exists():
        raise BadInput(
            f"the captions that {folder} was trained with are not at {captions} any more; put them back, or beside the "
            "images and name that folder with --data-root"
        )
    run = replace(run, device="auto", data_root=data_root or run.data_root, captions=captions)
    if not (folder / "model.safetensors").exists():
        raise BadInput(f"{folder} has no model yet; finish it with: {rundir.resume_words(run, folder)}")
    return run, encoder.load(folder)


def write(columns: Sequence[PairColumn], path: Path, *, title: str, intro: str, seed: int = 0) -> None:
    """Write the report of runs side by side."""
    sections = (
        partial(said_features, columns),
        partial(random_features, columns),
        partial(asked, columns),
        partial(balance, columns),
        partial(active_in_texts, columns),
        report.activations,
        report.correlation,
        report.expected_activation,
        report.training,
    )
    report.write(
        [c.column for c in columns], path, title=title, intro=intro, seed=seed, sections=sections, headline=HEADLINE
    )


def said_features(columns: Sequence[PairColumn], views: list[View], seed: int) -> Section:  # noqa: ARG001
    """The features on which images and texts agree: what they look at, and what they are called."""
    return Section(
        "features",
        "What each feature looks at, and what it is called",
        f"Each row is one feature: the {report.IMAGES} test images on which it is largest, and the words on which it "
        "is largest. A word's score is the mean of the feature over the distinct training texts that hold the word and "
        "three more as if they did not switch it on (a word of one text would lead by luck), each text's features at "
        f"length 1, for words in the texts of {LEAST} images or more; the paler, the smaller. "
        "The mark on the bar is the modality balance: in the middle images and texts switch the feature on alike, at "
        "the right end only images do, at the left only texts. Shown are the features on which test images and their "
        "texts agree most (the cosine over pairs): features that belong to one kind alone have no such cosine and are "
        "among those drawn at random."
        + report.signed_note(views)
        + " Beside a word, − does." * report.any_signed(views),
        [c.strips(v, c.agreed(report.ROWS)) for c, v in zip(columns, views, strict=True)],
    )


def random_features(columns: Sequence[PairColumn], views: list[View], seed: int) -> Section:
    """The same for live features that nobody chose."""
    return Section(
        "random",
        "Features drawn at random",
        f"The same for live features drawn at random (seed {seed}), so that nothing here is picked by hand."
        + report.signed_note(views),
        [c.strips(v, figures.draw_live(c.column, report.ROWS, seed)) for c, v in zip(columns, views, strict=True)],
    )


def asked(columns: Sequence[PairColumn], views: list[View], seed: int) -> Section:  # noqa: ARG001
    """Some test texts and the test images nearest to each."""
    panels = []
    for c in columns:
        texts = np.sort(np.random.default_rng(seed).permutation(len(c.test.texts.ids))[:ASKED])
        right = {(int(i), int(t)) for i, t in c.test.pairs}
        strips = []
        for t, found in zip(texts, nearest(c.test, texts, FOUND), strict=True):
            hits = [(int(i), int(t)) in right for i in found]
            picture = figures.png(_row(c.column, found, hits))
            names = ", ".join(c.test.images.ids[i] for i in found)
            said = f"{sum(hits)} of {len(found)} are its images"
            strips.append(Strip(report.uri(picture), c.test.texts.ids[t], "", said, names, is_text=True))
        panels.append(Panel("", strips=strips))
    return Section(
        "asked",
        "Asked in words",
        f"Texts of test images drawn at random (seed {seed}) and the {FOUND} test images of largest cosine, nearest "
        "first. A line below an image says that the text is one of its captions.",
        panels,
    )


def nearest(test: PairFeatures, texts: np.ndarray, k: int) -> list[np.ndarray]:
    """The k images of largest cosine to each of the texts, nearest first."""
    a, b = (unit_rows(z).toarray() for z in (test.images.z, test.texts.z[texts]))
    return [np.argsort(-row, kind="stable")[:k] for row in b @ a.T]


def _row(column: Column, images: np.ndarray, marked: Sequence[bool]) -> Image.Image:
    """Thumbnails side by side, a line below those that are marked."""
    cells = [figures.thumbnail(column.images[int(i)][None], figures.THUMBNAIL) for i in images]
    gap, width, height = 4, cells[0].width, cells[0].height
    canvas = Image.new("RGB", (len(cells) * (width + gap) - gap, height + 5), "white")
    draw = ImageDraw.Draw(canvas)
    for place, (cell, mark) in enumerate(zip(cells, marked, strict=True)):
        canvas.paste(cell, (place * (width + gap), 0))
        if mark:
            left = place * (width + gap)
            draw.rectangle((left, height + 2, left + width - 1, height + 4), fill=figures.POSITIVE)
    return canvas


def balance(columns: Sequence[PairColumn], views: list[View], seed: int) -> Section:  # noqa: ARG001
    """How many features belong to images, to texts, to both."""
    panels = []
    for c, v in zip(columns, views, strict=True):
        live = live_balance(c)
        if not len(live):
            panels.append(Panel("No live feature."))
            continue
        shared = v.value("shared_features")
        note = f"{len(live)} live features; {figures.percent(shared or 0)} of them from 0.25 to 0.75."
        picture = balance_histogram(live, colour=v.colour, width=v.width)
        panels.append(Panel(note, report.uri(picture), "Histogram of modality balance"))
    return Section(
        "balance",
        "Modality balance",
        "E z_image / (E z_image + E z_text) of each live feature, on test images and distinct test texts, rows at "
        "length 1. Features in the middle speak of what image and text share; those at the ends tell the two kinds "
        "apart, which no pair needs."
        + (" Signed features are taken by their absolute values." if report.any_signed(views) else ""),
        panels,
    )


def live_balance(c: PairColumn) -> np.ndarray:
    """The balance of features that some test image or text switches on."""
    live = metrics.live(c.test.images.z, eps=EPS) | metrics.live(c.test.texts.z, eps=EPS)
    return c.balance[live & np.isfinite(c.balance)]


def balance_histogram(values: np.ndarray, *, colour: str, width: int) -> bytes:
    """Shares of features by modality balance, from texts only (0) to images only (1)."""
    figure, axes = one_panel(width, 250)
    axes.hist(values, bins=np.linspace(0, 1, 21).tolist(), weights=np.full(len(values), 1 / len(values)), color=colour)
    axes.axvline(0.5, color=INK, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(0, 1)
    _ends(axes)
    in_percent(axes)
    axes.set_ylabel("share of live features")
    return png_bytes(figure)


def _ends(axes: Axes) -> None:
    axes.set_xticks([0, 0.5, 1], ["only texts", "both", "only images"])
    for text, side in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
        text.set(ha=side)


def active_in_texts(columns: Sequence[PairColumn], views: list[View], seed: int) -> Section:
    """How many features fire on an image, and on a text."""
    section, panels = report.active(views, seed), []
    for c, panel in zip(columns, section.panels, strict=True):
        images, texts = (metrics.active_per_sample(f.z, eps=EPS).mean() for f in (c.test.images, c.test.texts))
        _, d = figures.shape(c.test.images)
        note = f"On average {images:.1f} of {d} features fire on an image, {texts:.1f} on a text."
        panels.append(replace(panel, note=note))
    return replace(section, panels=panels)


def picture(columns: Sequence[PairColumn], *, rows: int = 6, images: int = 7) -> bytes:
    """The findings' picture: features with their images and words, a column a run, and each run's balance below.

    One pixel of the bitmap a CSS pixel, for pictures in colour are large and results are kept in a repository.
    """
    wide, top, thumb = 420, 52, 32
    high = rows * (thumb + 4)
    figure = Figure(figsize=(wide * len(columns) / 100, (top + high + 130) / 100), dpi=100, facecolor="white")
    across, down = figure.get_size_inches() * 100
    for i, (c, colour) in enumerate(zip(columns, figures.colours([c.column for c in columns]), strict=True)):
        left, values = i * wide + 12, live_balance(c)
        write = partial(figures.write_text, figure, left)
        write(20, c.column.title, size=11, weight="bold", color=colour)
        asked = " / ".join(f"{100 * c.column.metrics[f'text_to_image@{k}']['value']:.0f}" for k in KS)
        zeros = figures.percent(c.column.metrics["sparsity_images"]["value"], 0)
        write(38, f"{zeros} zeros; recall@1/5/10 of texts: {asked} %", size=8, color=MUTED)
        chosen = c.agreed(rows)
        grid = figures.feature_grid(c.column, chosen, images, size=thumb)
        figure.figimage(np.asarray(grid), left, round(down) - top - grid.height, origin="upper")
        beside = partial(figures.write_text, figure, left + grid.width + 8)
        for row, d in enumerate(chosen):
            words = [word if score > 0 else f"−{word}" for word, score in c.words.top(int(d), 4)]
            middle = top + grid.height * (row + 0.5) / len(chosen)
            beside(middle - 2, " ".join(words[:2]), size=8, color=INK, limit=24)
            beside(middle + 11, " ".join(words[2:]), size=8, color=INK, limit=24)
        write(top + high + 20, f"modality balance of {len(values)} live features", size=8, color=MUTED)
        axes = figure.add_axes((left / across, 24 / down, (wide - 30) / across, 76 / down))
        dress(axes)
        axes.hist(values, bins=np.linspace(0, 1, 41).tolist(), color=colour)
        axes.axvline(0.5, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.set_xlim(0, 1)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        _ends(axes)
    return png_bytes(figure)
