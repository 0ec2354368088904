"""The command line: parsing, printing and exit codes, nothing else."""

import contextlib
import functools
import inspect
import io
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Column, Table
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, UseAppendAction, arg

import nonneg
from nonneg import (
    comparison,
    engine,
    explain,
    files,
    multimodal,
    progress,
    reproduce,
    rundir,
    supervised,
    tables,
    workflow,
)
from nonneg import evaluate as evaluating
from nonneg.errors import BadInput, unknown
from nonneg.loop import Interrupted
from nonneg.multimodal import PAIR_RECIPES, PairRun
from nonneg.multimodal import verbs as pair_verbs
from nonneg.run import CLASSIFIERS, RECIPES, ClassifierRun, Run, SomeRun, Training, recipe
from nonneg.train import train

HELP = """nonneg: features you can read, by non-negative contrastive learning.

usage: nonneg VERB ...

  demo       train CL and NCL on digits, measure both, write a report   nonneg demo
  train      train on digits, cifar10, cifar100, sprites, folder, arrays  nonneg train folder --data-root photos/
  train-classifier  with labels, by (non-negative) cross entropy        nonneg train-classifier digits
  explain    which features voted for a classifier's prediction         nonneg explain runs/digits-classifier-relu-s0
  train-pairs  images and their texts in one space of features          nonneg train-pairs folder --captions c.csv ...
  evaluate   measure a trained run; --all for every measure             nonneg evaluate runs/demo/ncl --all
  features   write the features of every image                          nonneg features runs/folder-rep_relu-s0
  select     shorter vectors, and what was lost                         nonneg select runs/demo/ncl --bytes 16
  compare    two runs (or more) side by side                            nonneg compare runs/demo/cl runs/demo/ncl
  reproduce  the paper's tables: paper, ours, difference                nonneg reproduce cifar10 --report-only
  theory     the paper's theorems as numbers, on solvable worlds        nonneg theory
  report     one HTML page of pictures for one run or several           nonneg report runs/demo/ncl

nonneg VERB --help shows every flag with examples. --json prints results for machines, on stdout; progress goes to
stderr. --debug shows a traceback where an error is otherwise one sentence."""


OneRun = Annotated[Positional[Path], arg(metavar="RUN")]  # as --help shows them
Runs = Annotated[Positional[tuple[Path, ...]], arg(metavar="RUN [RUN ...]")]
MaybePath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
MaybeInt = Annotated[int | None, arg(metavar="INT", help_behavior_hint="")]
Switch = FlagCreatePairsOff[bool]
MaybeText = Annotated[str | None, arg(metavar="STR", help_behavior_hint="")]


@dataclass(frozen=True, kw_only=True)
class _Into:
    """Where a training is kept, and whether it is begun or continued."""

    out: MaybePath = None
    """The run folder; left out, runs/DATA-MAP-sSEED, with what else is unusual in it: DATA-spectral-MAP-sSEED."""
    resume: Switch = False
    """Continue the run in that folder, exactly where its last checkpoint was."""
    previous: Switch = False
    """With --resume: from the checkpoint before the last."""
    overwrite: Switch = False
    """Replace the run in that folder."""
    json: Switch = False
    """Print the outcome as JSON."""

    def folder(self, run: Training, *kind: str) -> Path:
        """Where it is kept: named by the data, the `kind` of run, what sets it apart from the usual, map and seed."""
        about, usual = run.to_json(), type(run)().to_json()
        apart = [about[k] for k in ("loss", "positives") if about.get(k) != usual.get(k)]
        begun = ["tuned"] if about.get("pretrained") else []
        name = "-".join([about["data"], *kind, *begun, *apart, about["map"], f"s{run.seed}"])
        return self.out or Path("runs") / re.sub(r"[:=,/]", "-", name)

    def how(self) -> dict[str, Any]:
        """How a training takes up its folder."""
        return {"resume": self.resume, "previous": self.previous, "overwrite": self.overwrite}

    def tell(self, folder: Path, following: str, found: str = "") -> None:
        """That the training in a folder is over, what was `found` and what to do next; or its log's last line."""
        last = rundir.read_log(folder)[-1]
        if self.json:
            tables.as_json({"run": str(folder), **last})
            return
        said = f"trained: {folder} ({last['seconds']:.0f} s){found}. {following} {rundir.quoted(folder)}"
        tables.screen.print(said, soft_wrap=True)


@dataclass(frozen=True, kw_only=True)
class _Train(_Into):
    """Train on DATA and save the model in a run folder.

    Examples:
      nonneg train digits --epochs 20 --map identity
      nonneg train cifar10 --data-root data/ --seed 1 --precision bf16
      nonneg train folder --data-root photos/ --image-size 96 --out runs/photos
      nonneg train digits --loss info_nce:temperature=0.1 --optimizer lars
      nonneg train folder --data-root photos/ --positives class
      nonneg train digits --loss supcon
      nonneg train digits --loss spectral
    """

    run: OmitArgPrefixes[Run]


@dataclass(frozen=True, kw_only=True)
class _TrainClassifier(_Into):
    """Train a classifier on labelled DATA and save it in a run folder; its test accuracy is in the log, by epoch.

    relu on features and class weights (as it is) is non-negative cross entropy; identity on both is cross entropy.

    Examples:
      nonneg train-classifier digits
      nonneg train-classifier digits --map identity --weight-map identity
      nonneg train-classifier cifar100 --data-root data/ --projector 16384 2048
      nonneg train-classifier folder --data-root photos/ --from runs/folder-rep_relu-s0 --epochs 50
    """

    run: OmitArgPrefixes[ClassifierRun]


@dataclass(frozen=True, kw_only=True)
class _TrainPairs(_Into):
    """Train an encoder of images and one of their texts, into the same features, and save both in a run folder.

    Pairs are made by id: a captions file has a column that names the image (id, file_name, ...) and one that says what
    is on it (caption, text); an image may have several captions. What cannot be paired is counted and listed.

    Examples:
      nonneg train-pairs digits
      nonneg train-pairs folder --data-root photos/ --captions captions.csv --image-size 64
      nonneg train-pairs emoji --loss spectral --map identity
      nonneg train-pairs folder --data-root photos/ --captions captions.jsonl --text sentences:all-MiniLM-L6-v2
    """

    run: OmitArgPrefixes[PairRun]


def _train(args: list[str]) -> None:
    name, rest = _data_first(args, "train", RECIPES)

    def parse(run: Run) -> _Train:
        return _parse(_Train, rest, f"nonneg train {name}", default=_Train(run=run))

    chosen = parse(RECIPES[name])
    folder = chosen.folder(chosen.run)
    if chosen.resume and (folder / "run.json").exists():  # flags left out keep what the run was begun with
        chosen = parse(_begun(folder, name, Run))
    elif (wanted := recipe(name, chosen.run.loss)) != replace(RECIPES[name], loss=wanted.loss):
        as_wanted = parse(wanted)
        if as_wanted.run.optimizer is wanted.optimizer:  # an optimiser that was named keeps the learning rate it had
            chosen, about = as_wanted, as_wanted.run.to_json()
            by = f"{about['optimizer']} at lr {about['lr']}"
            progress.say(f"--loss {about['loss']} is trained by {by}; --optimizer and --lr name another")
    train(chosen.run, folder, **chosen.how())
    chosen.tell(folder, "Measure it with: nonneg evaluate")


def _train_classifier(args: list[str]) -> None:
    name, rest = _data_first(args, "train-classifier", CLASSIFIERS)

    def parse(run: ClassifierRun) -> _TrainClassifier:
        return _parse(_TrainClassifier, rest, f"nonneg train-classifier {name}", default=_TrainClassifier(run=run))

    chosen = parse(CLASSIFIERS[name])
    if chosen.run.pretrained is not None:  # flags left out are those of the run that it begins with
        chosen = parse(supervised.begin_with(chosen.run.pretrained, CLASSIFIERS[name]))
    folder = chosen.folder(chosen.run, "classifier")
    if chosen.resume and (folder / "run.json").exists():
        chosen = parse(_begun(folder, name, ClassifierRun))
    supervised.train_classifier(chosen.run, folder, **chosen.how())
    where = "held-out" if chosen.run.validation else "test"
    right = rundir.read_log(folder)[-1]["test_accuracy"]
    chosen.tell(folder, "See why with: nonneg explain", f", {right:.1%} of the {where} images right")


def _train_pairs(args: list[str]) -> None:
    name, rest = _data_first(args, "train-pairs", PAIR_RECIPES)

    def parse(run: PairRun) -> _TrainPairs:
        return _parse(_TrainPairs, rest, f"nonneg train-pairs {name}", default=_TrainPairs(run=run))

    chosen = parse(PAIR_RECIPES[name])
    folder = chosen.folder(chosen.run, "pairs")
    if chosen.resume and (folder / "run.json").exists():
        chosen = parse(_begun(folder, name, PairRun))
    multimodal.train_pairs(chosen.run, folder, **chosen.how())
    chosen.tell(folder, "Look at it with: nonneg report")


def _data_first(args: list[str], verb: str, recipes: Iterable[str]) -> tuple[str, list[str]]:
    """The data set that a training verb names first, and its flags."""
    known = list(recipes)
    if not args or args[0] in ("-h", "--help"):
        print(f"nonneg {verb} DATA, where DATA is one of {', '.join(known)}; what follows is for digits.\n")
        return "digits", ["--help"]
    if args[0].startswith("-"):
        raise BadInput(f"name a data set first ({', '.join(known)}), as in: nonneg {verb} digits --epochs 20")
    if args[0] not in known:
        raise unknown("data set", args[0], known)
    return args[0], args[1:]


def _begun(folder: Path, name: str, kind: type[SomeRun]) -> SomeRun:
    """The run that was begun in a folder, if on this data set."""
    begun = rundir.read_run(folder, kind)[0]
    if (stored := begun.to_json()["data"]) != name:
        raise BadInput(f"{folder} was begun on {stored}, not {name}: {rundir.resume_words(begun, folder)}")
    return begun


def explain_predictions(
    run: OneRun,
    index: tuple[int, ...] = (),
    image: tuple[Path, ...] = (),
    top: int = 5,
    out: MaybePath = None,
    data_root: MaybePath = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Which features voted for a classifier's predictions, how much, and what they look at; as text and as a picture.

    Votes are exactly additive: those of all features sum to the logit of the class.

    Examples:
      nonneg explain runs/digits-classifier-relu-s0
      nonneg explain runs/digits-classifier-relu-s0 --index 3 17 --top 8
      nonneg explain runs/photos --image new.jpg --out why.png

    Args:
        run: The run folder of a classifier.
        index: Test images by number; left out (and without --image), the surest mistakes and some right answers.
        image: Pictures in files.
        top: How many features are named; the votes of the others are summed up.
        out: The picture to write; left out, RUN/votes.png, which is replaced.
        data_root: Where the data are now, if they were moved since training.
        overwrite: Replace the file that --out names if it exists.
        json: Print the votes as JSON.
    """
    path = out or run / "votes.png"
    if out is not None and out.exists() and not overwrite:
        raise BadInput(f"{out} already exists; add --overwrite to replace it")
    found, picture = explain.explain_run(run, indices=index, pictures=image, k=top, data_root=data_root)
    with files.atomic(path) as temporary:
        temporary.write_bytes(picture)
    if json:
        tables.as_json({"picture": str(path), "predictions": [asdict(e) for e in found]})
        return
    for e in found:
        truth = "" if e.truth is None else ", right" if e.truth == e.said else f", but it is {e.truth}"
        table = Table("feature", f"vote for {e.said}", f"for {e.runner_up}",
                      title=f"image {e.name}: {e.said} ({e.probability:.1%}){truth}")  # fmt: skip
        for j, vote, other in zip(e.features, e.votes, e.against, strict=True):
            table.add_row(str(j), f"{vote:.3f}", f"{other:.3f}")
        table.add_row("all others", f"{e.rest:.3f}", f"{e.rest_against:.3f}", end_section=True)
        table.add_row("sum (logit)", f"{e.logit:.3f}", f"{e.runner_up_logit:.3f}")
        tables.screen.print(table)
    tables.screen.print(f"drawn: {path}", soft_wrap=True)


def demo(
    out: Path = Path("runs/demo"), seed: int = 0, epochs: MaybeInt = None, overwrite: bool = False, json: bool = False
) -> None:
    """Train CL and NCL on scikit-learn's handwritten digits, measure both, and write a report.

    Examples:
      nonneg demo
      nonneg demo --seed 3 --out runs/demo-s3
      nonneg demo --json

    Args:
        out: The folder for both runs and report.html.
        seed: CL and NCL start from the same weights and see the same images.
        epochs: How long; left out, long enough to convince.
        overwrite: Replace an earlier demo in that folder.
        json: Print the measures as JSON.
    """
    result = workflow.demo(out, seed=seed, epochs=epochs, overwrite=overwrite)
    if json:
        tables.as_json(result)
        return
    tables.side_by_side({"CL": result["cl"], "NCL": result["ncl"], "chance": result["chance"]})
    tables.screen.print(f"{result['seconds']:.0f} s. Now look: open {out / 'report.html'}", soft_wrap=True)


def evaluate(
    run: OneRun,
    all: bool = False,
    only: str = "",
    heavy: bool = False,
    subset: MaybeInt = None,
    judge: MaybePath = None,
    against: tuple[Path, ...] = (),
    ood: UseAppendAction[tuple[str, ...]] = (),
    data_root: MaybePath = None,
    json: bool = False,
) -> None:
    """Measure a trained run; each number with its definition in RUN/metrics.json, plots in RUN/plots.

    Groups: basic (sparsity, consistency, probes; what is measured without flags), sepin, retrieval, selection,
    spectrum, probabilities, clusters, monosemanticity, identifiability, factors, ood, and heavy ones: probe, tune,
    corruptions.

    Examples:
      nonneg evaluate runs/demo/ncl
      nonneg evaluate runs/demo/ncl --all --judge runs/demo/cl
      nonneg evaluate runs/a --only sepin,retrieval --json
      nonneg evaluate runs/a --only identifiability --against runs/b runs/c
      nonneg evaluate runs/a --all --heavy --subset 1000 --ood sketch=sketches/ --ood style=stylized/

    Args:
        run: The run folder.
        all: Every group that the data allow; the others are named, with the reason.
        only: Only these groups, with commas between them.
        heavy: Also the augmented probe (50 epochs), fine-tuning (30) and 15 corruptions at 5 severities.
        subset: So many training and test images for the heavy groups, to try them on a CPU.
        judge: For monosemanticity: another run, whose backbone judges what looks alike.
        against: For identifiability: other runs on the same data. (Features of other runs are kept in their folders.)
        ood: NAME=FOLDER, one sub-folder a class, named as the run's; may be given several times.
        data_root: Where the data are now, if they were moved since training.
        json: Print the values as JSON.
    """
    if _of_pairs(run):
        if all or only or heavy or subset or judge or against or ood:
            raise BadInput(f"{run} is of images and texts, of which all is measured at once: leave the flags out")
        entries = pair_verbs.evaluate(run, data_root)
        tables.as_json(workflow.values(entries)) if json else tables.measured(run, entries)
        return
    groups = tuple(name.strip() for name in only.split(",") if name.strip())
    if only and not groups:
        raise BadInput(f"--only {only} names no group of measures, as in --only sepin,retrieval")
    asked = evaluating.Asked(
        all=all, only=groups, heavy=heavy, subset=subset, judge=judge, against=against, ood=ood
    )  # fmt: skip
    found = evaluating.evaluate(run, data_root, asked)
    if json:
        always = dict.fromkeys(workflow.HEADLINE) if not only else {}
        plots = [str(path) for path in found.plots]
        none = tables.without_value(found.measured)
        said = {"no_value": none, "skipped": found.skipped, "plots": plots}
        tables.as_json({**always, **workflow.values(found.measured), **said})
        return
    tables.measured(run, found.measured)
    for group, why in found.skipped.items():
        tables.say(f"not measured: {group} ({why})")
    if found.plots:
        tables.screen.print(f"plots: {run / 'plots'}", soft_wrap=True)


def features(
    run: OneRun,
    data: MaybeText = None,
    data_root: MaybePath = None,
    image_size: MaybeInt = None,
    out: MaybePath = None,
    json: bool = False,
) -> None:
    """Write the features of every image: h (backbone) dense and z (projector, mapped) sparse, in .npz files.

    Examples:
      nonneg features runs/demo/ncl
      nonneg features runs/cifar10-rep_relu-s0 --data folder --data-root photos/ --out photos-features/

    Args:
        run: The run folder.
        data: Another data set than the run's own: digits, cifar10, cifar100, sprites, folder, arrays.
        data_root: Where that data set is.
        image_size: Side in pixels; left out, what the model was trained on.
        out: The folder to write to; left out, RUN/features.
        json: Print the file names as JSON.
    """
    if _of_pairs(run):
        if data or image_size:
            raise BadInput(f"{run} is of images and texts: leave --data and --image-size out, for its own pairs")
        made = pair_verbs.write_features(run, data_root=data_root, out=out)
        if json:
            tables.as_json({split: [str(path) for path in paths] for split, paths in made.items()})
            return
        for split, paths in made.items():
            tables.screen.print(f"{split}: {', '.join(map(str, paths))}", soft_wrap=True)
        return
    written = workflow.write_features(run, data=data, data_root=data_root, image_size=image_size, out=out)
    if json:
        tables.as_json(written)
        return
    for split, path in written.items():
        tables.screen.print(f"{split}: {path}", soft_wrap=True)


def select(
    run: OneRun,
    bytes: MaybeInt = None,
    features: MaybeInt = None,
    top: MaybeInt = None,
    data_root: MaybePath = None,
    json: bool = False,
) -> None:
    """Write shortened codes of a run's features to RUN/codes, and say what was lost; give exactly one of the lengths.

    Examples:
      nonneg select runs/demo/ncl --bytes 16
      nonneg select runs/demo/ncl --top 4
      nonneg select runs/demo/ncl --features 32 --json

    Args:
        run: The run folder.
        bytes: So many bytes a vector: features or activations, whichever comes closer to the whole (mean cosine).
        features: So many features, the same for all samples: those of largest expected activation.
        top: So many activations of each sample, its largest.
        data_root: Where the data are now, if they were moved since training.
        json: Print what was kept and lost as JSON.
    """
    result = workflow.select(run, budget=bytes, features=features, top=top, data_root=data_root)
    if json:
        tables.as_json(result)
        return
    table = Table("measure", "before", "after", "lost", title=f"{run}: {result['kept']}")
    for name, entry in result.items():
        if isinstance(entry, dict) and "before" in entry:
            before, after = entry["before"], entry["after"]
            numbers = (before, after, before - after)
            shown = (f"{round(x, 3) + 0.0:.1%}" if isinstance(before, float) else str(x) for x in numbers)  # no -0.0%
            table.add_row(name.replace("_", " "), *shown)
    tables.screen.print(table)
    if any(name.startswith("map@") for name in result):
        tables.screen.print("map: average precision over min(k, R), R the other images of the query's class")
    for split, path in result["files"].items():
        tables.screen.print(f"{split}: {path}", soft_wrap=True)


def compare(
    runs: Runs,
    out: MaybePath = None,
    data_root: MaybePath = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Two runs or more, side by side: the basic measures, and whatever else nonneg evaluate has measured of them.

    "-" is what was not measured, "none" what has no value, with the reason below; a number in brackets refers to what
    it was measured with: a subset, another run.

    Examples:
      nonneg compare runs/demo/cl runs/demo/ncl
      nonneg compare runs/a runs/b --out comparison.html

    Args:
        runs: The run folders.
        out: Also write the report with pictures to this file.
        data_root: Where the data are now, if they were moved since training.
        overwrite: Replace that file if it exists.
        json: Print the values as JSON.
    """
    if len(runs) < 2:
        raise BadInput("compare needs two run folders or more, as in: nonneg compare runs/demo/cl runs/demo/ncl")
    pairs = _of_pairs(*runs)
    verbs, measured_of = (pair_verbs if pairs else workflow), (pair_verbs if pairs else evaluating).measured_of
    measured = {run: measured_of(run, data_root) for run in runs}
    if out is not None:
        verbs.write_report(list(runs), out, overwrite=overwrite, data_root=data_root)
    if json:
        tables.as_json({str(run): workflow.values(entries) for run, entries in measured.items()})
        return
    short = len({run.name for run in measured}) == len(measured)
    columns = {run.name if short else str(run): entries for run, entries in measured.items()}
    more = (name for entries in measured.values() for name, e in entries.items() if "group" in e)
    tables.compared(columns, more, headline=("test_accuracy", *verbs.HEADLINE))  # the first of classifiers alone
    if out is not None:
        tables.screen.print(f"written: {out}", soft_wrap=True)


def make_report(
    runs: Runs,
    out: MaybePath = None,
    data_root: MaybePath = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """One self-contained HTML page of pictures for one run or several side by side.

    Examples:
      nonneg report runs/demo/ncl
      nonneg report runs/demo/cl runs/demo/ncl --out both.html

    Args:
        runs: The run folders.
        out: The file to write; left out, report.html in the first run's folder.
        data_root: Where the data are now, if they were moved since training.
        overwrite: Replace that file if it exists.
        json: Print the file's name as JSON.
    """
    if not runs:
        raise BadInput("name a run folder, as in: nonneg report runs/demo/ncl")
    path = out or runs[0] / "report.html"
    verbs = pair_verbs if _of_pairs(*runs) else workflow
    verbs.write_report(list(runs), path, overwrite=overwrite, data_root=data_root)
    if json:
        tables.as_json({"report": str(path)})
        return
    tables.screen.print(f"written: {path}", soft_wrap=True)


def theory(
    world: MaybeText = None,
    seed: int = 0,
    out: Path = Path("runs/theory.html"),
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """The paper's theorems as numbers, on worlds small enough to solve exactly: claim, measured, whether it holds.

    Also written is one HTML page with the table and the figures.

    Examples:
      nonneg theory
      nonneg theory --world overlap=0.2,classes=8 --out mine.html
      nonneg theory --world leak=0.2 --json --overwrite
      nonneg theory --world mine.json --out mine.html

    Args:
        world: A world of your own, by its knobs: classes, per_class, overlap, leak, labels, k, seed; or a .json file
            with prior, conditional, labels and k. Where it breaks an assumption, the theorems that need it do not hold.
        seed: Of the worlds and starts.
        out: The page to write.
        overwrite: Replace that file if it exists.
        json: Print the rows as JSON.
    """
    from nonneg import theory as room  # it brings a solver along, which no other verb needs

    if out.exists() and not overwrite:
        raise BadInput(f"{out} already exists; add --overwrite to replace it, or --out for another file")
    study = room.study(None if world is None else room.parse(world), seed=seed)
    room.write_report(study, out)
    if json:
        tables.as_json([asdict(row) for row in study.rows])
        return
    table = Table("theorem", "claim", "measured", "holds")
    for row in study.rows:
        table.add_row(row.theorem, row.claim, row.measured, "yes" if row.holds else "NO")
    tables.screen.print(table)
    tables.screen.print(
        f"{sum(row.holds for row in study.rows)} of {len(study.rows)} hold; figures: {out}", soft_wrap=True
    )


def make_reproduction(
    experiment: Annotated[Positional[str], arg(metavar="NAME")],
    data_root: MaybePath = None,
    only: tuple[str, ...] = (),
    seeds: MaybeInt = None,
    report_only: bool = False,
    epochs: MaybeInt = None,
    batch_size: MaybeInt = None,
    classes: MaybePath = None,
    device: str = "auto",
    results: Path = Path("experiments/results"),
    runs: Path = Path("runs"),
    json: bool = False,
) -> None:
    """Run a declared experiment of the paper, skipping what the results already hold, and print its table.

    Examples:
      nonneg reproduce cifar10 --data-root data/
      nonneg reproduce cifar100 --only ncl-s1 cl-s1
      nonneg reproduce cifar10 --report-only
      nonneg reproduce cifar10 --report-only --data-root data/
      nonneg reproduce maps --only digits
      nonneg reproduce supervised --only digits-scratch
      nonneg reproduce bytes --only cifar10
      nonneg reproduce imagenet100 --data-root imagenet/ --classes classes.txt

    Args:
        experiment: cifar10, cifar100, recipe, maps, spectral, supcon, supervised, multimodal, sprites, wide or
            imagenet100; or, asked of their runs: bytes, selection, disentanglement, robustness, identifiability,
            practice or protocol.
        data_root: Where the data are; left out, CIFAR is downloaded.
        only: Only these runs, by name or by what stands before a dash in it (cl, ncl-s1); the table is of them alone.
        seeds: How many seeds to run, the first of those declared; the table is of all that were run.
        report_only: Train nothing; print the table of what was measured, and with --data-root draw its figures.
        epochs: Try everything shortened; kept apart from the real results.
        batch_size: Try it in other batches (for a GPU or a data set that is small); kept apart likewise.
        classes: imagenet100 only: a text file that names the classes, one a line.
        device: auto, cpu, cuda, cuda:1.
        results: Where results are kept.
        runs: Where models are kept.
        json: Print the rows as JSON.
    """
    rows = reproduce.reproduce(
        experiment,
        data_root=data_root,
        results=results,
        runs=runs,
        only=only,
        seeds=seeds,
        report_only=report_only,
        epochs=epochs,
        batch_size=batch_size,
        classes=classes,
        device=device,
    )
    if json:
        tables.as_json(comparison.as_json(rows))
        return
    columns = [Column(name, overflow="fold") for name in comparison.HEADER]
    table = Table(*columns, title=reproduce.kept_as(experiment, epochs=epochs, batch_size=batch_size))
    for row in rows:
        table.add_row(*row.cells())
    tables.screen.print(table)


def _parse(f: Any, args: list[str], prog: str, **more: Any) -> Any:
    about = inspect.cleandoc(f.__doc__).partition("\nArgs:")[0]  # given whole, or tyro would drop the examples
    said = io.StringIO()
    # a run that is resumed may have a flag on already, and then is given the same command again: both ways are known
    config = () if isinstance(f, type) else (FlagCreatePairsOff,)
    try:
        with contextlib.redirect_stderr(said):
            flags = tyro.cli(_arguments(f), args=args, prog=prog, description=about, config=config, **more)
    except SystemExit as stop:
        if stop.code:
            raise BadInput(f"{_sentence(said.getvalue())} ({prog} --help shows every flag)") from None
        raise
    return flags


def _arguments(f: Any) -> Any:
    """`f`, or for a verb the same signature returning the call, so that parsing is over before work begins."""
    if isinstance(f, type):
        return f

    @functools.wraps(f)
    def later(*args: Any, **more: Any) -> Callable[[], None]:
        return functools.partial(f, *args, **more)

    return later


def _sentence(box: str) -> str:
    """What the parser's box of text says, in one line: the part below its title, and the flag it thinks was meant."""
    parts = [" ".join(part.split()) for part in re.split(r"[─-]{4,}", re.sub("[│╭╮╰╯|]", " ", box))]
    _, first, *rest = [part.strip("─ ") for part in parts if part.strip("─ ")] + ["the command line could not be read"]
    meant = next((part.split()[3] for part in rest if part.startswith("Perhaps you meant: --")), None)
    return re.sub(r"^Error parsing run: ", "", first) + (f"; did you mean {meant}?" if meant else "")


TRAINING = {"train": _train, "train-classifier": _train_classifier, "train-pairs": _train_pairs}
VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "explain": explain_predictions,
    "evaluate": evaluate,
    "features": features,
    "select": select,
    "compare": compare,
    "report": make_report,
    "reproduce": make_reproduction,
    "theory": theory,
}


def main(argv: list[str] | None = None) -> None:
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [a for a in args if a != "--debug"]
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP)
        sys.exit(0)
    if args[0] == "--version":
        print(nonneg.__version__)
        sys.exit(0)
    try:
        verb, rest = args[0], args[1:]
        if verb in TRAINING:
            TRAINING[verb](rest)
        elif verb in VERBS:
            _parse(VERBS[verb], rest, f"nonneg {verb}")()
        else:
            raise unknown("verb", verb, [*TRAINING, *VERBS])
    except BadInput as error:
        if debug:
            traceback.print_exc()
        print(f"nonneg: {error}", file=sys.stderr)
        sys.exit(130 if isinstance(error, Interrupted) else 1)
    except BrokenPipeError:  # the reader of our output has seen enough
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("nonneg: stopped", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        if need := engine.lack_of_memory(error):
            print(f"nonneg: {need}; end what else uses the GPU, and give the same command again", file=sys.stderr)
            sys.exit(1)
        print(f"nonneg: unexpected {type(error).__name__}: {error} (add --debug for the traceback)", file=sys.stderr)
        sys.exit(1)


def _of_pairs(*runs: Path) -> bool:
    """Whether these runs are of images and texts; both kinds at once have nothing to compare."""
    for run in runs:
        rundir.check_there(run)
    kinds = {rundir.trained(run) == PairRun.trains for run in runs}
    if len(kinds) > 1:
        raise BadInput("some of these runs are of images alone and some of images with texts: name runs of one kind")
    return kinds == {True}
