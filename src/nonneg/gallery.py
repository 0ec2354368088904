"""The pictures of an experiment: its runs side by side, and the features that two seeds have in common."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from nonneg import figures, files, kept_features, ledger, multimodal, progress, report, workflow
from nonneg.errors import BadInput
from nonneg.experiments import Experiment, method_of
from nonneg.features import Features
from nonneg.figures import Column
from nonneg.multimodal import PairRun

CHART, PHOTOGRAPHS = 64, 256  # colours


def draw(
    name: str,
    experiment: Experiment,
    *,
    results: Path,
    runs: Path,
    data_root: Path | None = None,
    anew: bool = False,
) -> list[Path]:
    """The runs that an experiment shows, side by side: RESULTS/figures/NAME.png, NAME-features.png, and a report.

    Runs of several data sets or nets have a figure each, NAME-DATA-NET.png. They are drawn where one is missing or
    older than a run it shows; `anew`, always, and then runs whose folders are gone are drawn from the features that
    were kept of them, if `data_root` has their images, and so are the features that two seeds of a method have in
    common, NAME-METHOD-seeds.png. A picture of more runs than can be drawn is left as it is.
    """
    folders = {n: runs / name / n for n in experiment.show if (runs / name / n / "metrics.json").exists()}
    if any(isinstance(experiment.runs[n], PairRun) for n in experiment.show):
        return _write_pair_figures(name, experiment, results, folders, data_root, anew)
    place, written = results / "figures", []
    for suffix, show in experiment.side_by_side().items():
        page, mine = runs / name / f"report{suffix}.html", {n: folders[n] for n in show if n in folders}
        columns, gone = [], [n for n in show if n in ledger.of(name, experiment, results) and n not in mine]
        pictures = {place / f"{name}{suffix}.png": (partial(figures.hero, rows=6, thumb=26), PHOTOGRAPHS)}
        pictures |= {place / f"{name}{suffix}-features.png": (figures.overview, CHART)}
        if mine and (anew or _stale((page, *pictures), mine)):
            columns = [workflow.column(f, experiment.methods[method_of(n)], data_root) for n, f in mine.items()]
            intro = f"nonneg reproduce {name}: {', '.join(c.title for c in columns)}, from the same seed."
            report.write(columns, page, title=f"{name}{suffix}: what the features look at", intro=intro)
        elif anew and data_root is not None:
            gone = [n for n in gone if not kept_features.path_of(name, n, results).exists()]
            columns = list(_kept_columns(name, experiment, show, results, data_root))
        if columns and gone and all(path.exists() for path in pictures):
            files_left = " and ".join(path.name for path in pictures)
            progress.say(
                f"{files_left} are left as they are: {' and '.join(gone)}, which they may show, cannot be drawn"
            )
            columns = []
        for path, (draw, colours) in pictures.items() if columns else ():
            written.append(path)
            write(path, draw(columns), colours=colours)
    if anew and data_root is not None:
        for method, seeds in _seeds_kept(name, experiment, results).items():
            again = list(_kept_columns(name, experiment, seeds, results, data_root))
            if picture := figures.same_features(
                [replace(c, title=f"{c.title}, {n}") for n, c in zip(seeds, again, strict=True)]
            ):
                written.append(place / f"{name}-{method}-seeds.png")
                write(written[-1], picture, colours=PHOTOGRAPHS)
    return written


def _stale(made: Sequence[Path], folders: Mapping[str, Path]) -> bool:
    """Whether one of these files is missing, or older than what was measured in one of these run folders."""
    newest = max((folder / "metrics.json").stat().st_mtime for folder in folders.values())
    return any(not path.exists() or path.stat().st_mtime < newest for path in made)


def _write_pair_figures(
    name: str, experiment: Experiment, results: Path, folders: dict[str, Path], data_root: Path | None, anew: bool
) -> list[Path]:
    """For each data set the runs that an experiment shows of it: RESULTS/figures/NAME-DATA.png and a report."""
    by_data: dict[str, dict[str, Path]] = {}
    for n, folder in folders.items():
        by_data.setdefault(experiment.runs[n].to_json()["data"], {})[n] = folder
    written = []
    for data, mine in by_data.items():
        page = next(iter(mine.values())).parent / f"report-{data}.html"
        picture = results / "figures" / f"{name}-{data}.png"
        shown = [n for n in experiment.show if experiment.runs[n].to_json()["data"] == data]
        gone = [n for n in shown if n in ledger.of(name, experiment, results) and n not in mine]
        if gone and picture.exists():
            progress.say(f"{picture.name} is left as it is: {' and '.join(gone)}, which it may show, cannot be drawn")
        elif anew or _stale((page, picture), mine):
            columns = [
                multimodal.report.column(f, experiment.methods[method_of(n)], data_root) for n, f in mine.items()
            ]
            intro = f"nonneg reproduce {name}: {', '.join(c.column.title for c in columns)}, from the same seed."
            multimodal.report.write(columns, page, title=f"{name}: images and words of each feature", intro=intro)
            written.append(picture)
            write(picture, multimodal.report.picture(columns), colours=PHOTOGRAPHS)
    return written


def write(path: Path, picture: bytes, *, colours: int) -> None:
    """A PNG in a palette of CHART or PHOTOGRAPHS, a fraction of the size: results are kept in a repository."""
    with Image.open(io.BytesIO(picture)) as opened, files.atomic(path) as temporary:
        temporary.write_bytes(figures.png(opened.convert("RGB"), colours=colours))


def _seeds_kept(name: str, experiment: Experiment, results: Path) -> dict[str, list[str]]:
    """The first two runs of each method of which features were kept, where there are two."""
    found: dict[str, list[str]] = {}
    for run_name in ledger.of(name, experiment, results):
        if kept_features.path_of(name, run_name, results).exists():
            found.setdefault(method_of(run_name), []).append(run_name)
    return {method: kept[:2] for method, kept in found.items() if len(kept) > 1}


def _kept_columns(
    name: str, experiment: Experiment, chosen: Sequence[str], results: Path, data_root: Path
) -> Iterator[Column]:
    """What can be shown of runs of which only the test features are left; those stand for the training features too."""
    lines = ledger.of(name, experiment, results)
    for run_name in chosen:
        line, path = lines.get(run_name), kept_features.path_of(name, run_name, results)
        if line is None or not path.exists():
            progress.say(f"{run_name} is not drawn: {'it is not run' if line is None else f'there is no {path}'}")
            continue
        run, kept = replace(experiment.runs[run_name], data_root=data_root), kept_features.load(path)
        data, about = run.load("test"), run.to_json()
        fit = kept.z.shape[0] == len(data)
        if kept.labels is not None and data.labels is not None:
            fit = fit and np.array_equal(kept.labels, data.labels.numpy())
        if not fit:
            raise BadInput(
                f"{path} holds features of {kept.z.shape[0]} images, and those of {data.name} in {data_root} are "
                f"{len(data)} others: name the data that the run was tested on with --data-root"
            )
        made = Features(np.zeros((len(data), 0), np.float32), kept.z, kept.labels, data.ids)
        yield Column(
            title=line["method"],
            subtitle=f"{about['data']}, map {about['map']}",
            train=made,
            test=made,
            metrics={},
            images=data.images,
            classes=data.classes,
            skipped=[],
            log=[],
        )
