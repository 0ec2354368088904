"""The command line: parsing, printing and exit codes, nothing else."""

import contextlib
import functools
import inspect
import io
import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Column, Table
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction

import nonneg
from nonneg import reproduce, rundir, workflow
from nonneg.errors import BadInput, unknown
from nonneg.run import RECIPES, Run
from nonneg.train import Interrupted, train

HELP = """nonneg: features you can read, by non-negative contrastive learning.

usage: nonneg VERB ...

  demo       train CL and NCL on digits, measure both, write a report   nonneg demo
  train      train on digits, cifar10, cifar100, sprites, folder, arrays  nonneg train folder --data-root photos/
  evaluate   measure a trained run; --all for every measure             nonneg evaluate runs/demo/ncl --all
  features   write the features of every image                          nonneg features runs/folder-rep_relu-s0
  select     shorter vectors, and what was lost                         nonneg select runs/demo/ncl --bytes 16
  compare    two runs (or more) side by side                            nonneg compare runs/demo/cl runs/demo/ncl
  reproduce  the paper's tables: paper, ours, difference                nonneg reproduce cifar10 --report-only
  theory     the paper's theorems as numbers, on solvable worlds        nonneg theory
  report     one HTML page of pictures for one run or several           nonneg report runs/demo/ncl

nonneg VERB --help shows every flag with examples. --json prints results for machines, on stdout; progress goes to
stderr. --debug shows a traceback where an error is otherwise one sentence."""

screen = Console()
WIDEST = 24  # characters of a column
PLAIN = ("sepin", "monosemanticity", "identifiability", "mig", "sap", "dci")  # measures that are not shares


@dataclass(frozen=True)
class _Train:
    """Train on DATA and save the model in a run folder.

    Examples:
      nonneg train digits --epochs 20 --map identity
      nonneg train cifar10 --data-root data/ --seed 1 --precision bf16
      nonneg train folder --data-root photos/ --image-size 96 --out runs/photos
      nonneg train digits --loss info_nce:temperature=0.1 --optimizer lars
    """

    run: OmitArgPrefixes[Run]
    out: Path | None = None
    """The run folder; left out, runs/DATA-MAP-sSEED."""
    resume: bool = False
    """Continue the run in that folder, exactly where its last checkpoint was."""
    previous: bool = False
    """With --resume: from the checkpoint before the last."""
    overwrite: bool = False
    """Replace the run in that folder."""
    json: bool = False
    """Print the outcome as JSON."""

    def folder(self) -> Path:
        about = self.run.to_json()
        return self.out or Path("runs") / f"{about['data']}-{about['map']}-s{self.run.seed}".replace(":", "-")


def _train(args: list[str]) -> None:
    if not args or args[0] in ("-h", "--help"):
        name, rest = "digits", ["--help"]
    else:
        name, rest = args[0], args[1:]
    if name not in RECIPES:
        raise (
            unknown("data set", name, RECIPES)
            if not name.startswith("-")
            else BadInput(f"name a data set first ({', '.join(RECIPES)}), as in: nonneg train digits --epochs 20")
        )

    def parse(run: Run) -> _Train:
        return _parse(_Train, rest, f"nonneg train {name}", default=_Train(run))

    chosen = parse(RECIPES[name])
    folder = chosen.folder()
    if chosen.resume and (folder / "run.json").exists():  # flags left out keep what the run was begun with
        begun = rundir.read_run(folder)[0]
        if (stored := begun.to_json()["data"]) != name:
            raise BadInput(f"{folder} was begun on {stored}, not {name}: nonneg train {stored} --out {folder} --resume")
        chosen = parse(begun)
    train(chosen.run, folder, resume=chosen.resume, previous=chosen.previous, overwrite=chosen.overwrite)
    log = rundir.read_log(folder)
    if chosen.json:
        _print_json({"run": str(folder), **log[-1]})
    else:
        screen.print(
            f"trained: {folder} ({log[-1]['seconds']:.0f} s). Measure it with: nonneg evaluate {folder}", soft_wrap=True
        )


def demo(
    out: Path = Path("runs/demo"), seed: int = 0, epochs: int | None = None, overwrite: bool = False, json: bool = False
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
        _print_json(result)
        return
    _print_table({"CL": result["cl"], "NCL": result["ncl"], "chance": result["chance"]})
    screen.print(f"{result['seconds']:.0f} s. Now look: open {out / 'report.html'}", soft_wrap=True)


def evaluate(
    run: Positional[Path],
    all: bool = False,
    only: str = "",
    heavy: bool = False,
    subset: int | None = None,
    judge: Path | None = None,
    against: tuple[Path, ...] = (),
    ood: UseAppendAction[tuple[str, ...]] = (),
    data_root: Path | None = None,
    json: bool = False,
) -> None:
    """Measure a trained run; each number with its definition in RUN/metrics.json, plots in RUN/plots.

    Groups: basic (sparsity, consistency, probes; what is measured without flags), sepin, retrieval, spectrum,
    probabilities, clusters, monosemanticity, identifiability, factors, ood, and heavy ones: probe, tune, corruptions.

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
    groups = tuple(name.strip() for name in only.split(",") if name.strip())
    if only and not groups:
        raise BadInput(f"--only {only} names no group of measures, as in --only sepin,retrieval")
    asked = workflow.Asked(
        all=all, only=groups, heavy=heavy, subset=subset, judge=judge, against=against, ood=ood
    )  # fmt: skip
    found = workflow.evaluate(run, data_root, asked)
    if json:
        always = dict.fromkeys(workflow.HEADLINE) if not only else {}
        plots = [str(path) for path in found.plots]
        _print_json({**always, **workflow.values(found.measured), "skipped": found.skipped, "plots": plots})
        return
    table = Table(Column("measure", overflow="fold"), "value", "definition", title=str(run))
    for name, entry in found.measured.items():
        table.add_row(name, _show(name, entry["value"]), entry["definition"])
    screen.print(table)
    for group, why in found.skipped.items():
        screen.print(f"not measured: {group} ({why})", soft_wrap=True, highlight=False, markup=False)
    if found.plots:
        screen.print(f"plots: {run / 'plots'}", soft_wrap=True)


def features(
    run: Positional[Path],
    data: str | None = None,
    data_root: Path | None = None,
    image_size: int | None = None,
    out: Path | None = None,
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
    written = workflow.write_features(run, data=data, data_root=data_root, image_size=image_size, out=out)
    if json:
        _print_json(written)
        return
    for split, path in written.items():
        screen.print(f"{split}: {path}", soft_wrap=True)


def select(
    run: Positional[Path],
    bytes: int | None = None,
    features: int | None = None,
    top: int | None = None,
    json: bool = False,
) -> None:
    """Write shortened codes of a run's features to RUN/codes, and say what was lost; give exactly one of the lengths.

    Examples:
      nonneg select runs/demo/ncl --bytes 16
      nonneg select runs/demo/ncl --top 4
      nonneg select runs/demo/ncl --features 32 --json

    Args:
        run: The run folder.
        bytes: So many bytes a vector: features or activations, whichever keeps more.
        features: So many features, the same for all samples: those of largest expected activation.
        top: So many activations of each sample, its largest.
        json: Print what was kept and lost as JSON.
    """
    result = workflow.select(run, budget=bytes, features=features, top=top)
    if json:
        _print_json(result)
        return
    table = Table("measure", "before", "after", "lost", title=f"{run}: {result['kept']}")
    for name, entry in result.items():
        if isinstance(entry, dict) and "before" in entry:
            before, after = entry["before"], entry["after"]
            numbers = (before, after, before - after)
            shown = (f"{round(x, 3) + 0.0:.1%}" if isinstance(before, float) else str(x) for x in numbers)  # no -0.0%
            table.add_row(name.replace("_", " "), *shown)
    screen.print(table)
    for split, path in result["files"].items():
        screen.print(f"{split}: {path}", soft_wrap=True)


def compare(
    runs: Positional[tuple[Path, ...]],
    out: Path | None = None,
    data_root: Path | None = None,
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Two runs or more, side by side: the basic measures, and whatever else nonneg evaluate has measured of them.

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
    measured = {run: workflow.measures(run, data_root) for run in runs}
    if out is not None:
        workflow.write_report(list(runs), out, overwrite=overwrite, data_root=data_root)
    if json:
        _print_json({str(run): workflow.values(entries) for run, entries in measured.items()})
        return
    short = len({run.name for run in measured}) == len(measured)
    columns = {run.name if short else str(run): workflow.values(entries) for run, entries in measured.items()}
    _print_table(columns, (name for entries in measured.values() for name, e in entries.items() if "group" in e))


def make_report(
    runs: Positional[tuple[Path, ...]],
    out: Path | None = None,
    data_root: Path | None = None,
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
    workflow.write_report(list(runs), path, overwrite=overwrite, data_root=data_root)
    if json:
        _print_json({"report": str(path)})
        return
    screen.print(f"written: {path}", soft_wrap=True)


def theory(
    world: str | None = None,
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

    Args:
        world: A world of your own, by its knobs: classes, per_class, overlap, leak, labels, seed. Where it breaks an
            assumption, the theorems that need it do not hold.
        seed: Of the worlds and starts.
        out: The page to write.
        overwrite: Replace that file if it exists.
        json: Print the rows as JSON.
    """
    from nonneg import theory as room  # it brings a solver along, which no other verb needs

    if out.exists() and not overwrite:
        raise BadInput(f"{out} already exists; add --overwrite to replace it, or --out for another file")
    study = room.study(room.parse(world) if world else None, seed=seed)
    room.write_report(study, out)
    if json:
        _print_json([asdict(row) for row in study.rows])
        return
    table = Table("theorem", "claim", "measured", "holds")
    for row in study.rows:
        table.add_row(row.theorem, row.claim, row.measured, "yes" if row.holds else "NO")
    screen.print(table)
    screen.print(f"{sum(row.holds for row in study.rows)} of {len(study.rows)} hold; figures: {out}", soft_wrap=True)


def make_reproduction(
    experiment: Positional[str],
    data_root: Path | None = None,
    only: tuple[str, ...] = (),
    seeds: int | None = None,
    report_only: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    classes: Path | None = None,
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
      nonneg reproduce bytes --only cifar10
      nonneg reproduce imagenet100 --data-root imagenet/ --classes classes.txt

    Args:
        experiment: cifar10, cifar100, maps, spectral, sprites, wide or imagenet100; or, asked of their runs: bytes,
            selection, disentanglement, robustness, identifiability or practice.
        data_root: Where the data are; left out, CIFAR is downloaded.
        only: Only these runs, by name or beginning (cl, ncl-s1).
        seeds: Only this many seeds.
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
        _print_json(reproduce.rows_json(rows))
        return
    table = Table(*reproduce.HEADER, title=experiment)
    for row in rows:
        table.add_row(*row.cells())
    screen.print(table)


def _parse(f: Any, args: list[str], prog: str, **more: Any) -> Any:
    about = inspect.cleandoc(f.__doc__).partition("\nArgs:")[0]  # given whole, or tyro would drop the examples
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            flags = tyro.cli(
                _arguments(f), args=args, prog=prog, description=about, config=(tyro.conf.FlagCreatePairsOff,), **more
            )
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


VERBS: dict[str, Callable[..., None]] = {
    "demo": demo,
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
        if verb == "train":
            _train(rest)
        elif verb in VERBS:
            _parse(VERBS[verb], rest, f"nonneg {verb}")()
        else:
            raise unknown("verb", verb, ["train", *VERBS])
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
        print(f"nonneg: unexpected {type(error).__name__}: {error} (add --debug for the traceback)", file=sys.stderr)
        sys.exit(1)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _print_table(columns: dict[str, dict[str, Any]], more: Iterable[str] = ()) -> None:
    """The headline and `more`, a column a run; where a screen is too narrow for all runs, one table after the other."""
    names = list(dict.fromkeys([*workflow.HEADLINE, *more]))
    room = screen.width - max(map(len, names), default=0) - 4
    widest = max(min(WIDEST, max(map(len, columns))), 8) + 3
    runs, at_once = list(columns.items()), max(1, room // widest)
    for some in (runs[first : first + at_once] for first in range(0, len(runs), at_once)):
        table = Table("measure", *(Column(title, overflow="fold", max_width=WIDEST) for title, _ in some))
        for name in names:
            if any(name in values for _, values in some):
                table.add_row(name.replace("_", " "), *(_show(name, values.get(name)) for _, values in some))
        screen.print(table)


def _show(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if name.startswith(PLAIN) and not name.endswith("_share"):
        return f"{value:.4f}"
    return (
        f"{value:.1f}"
        if name in ("effective_rank", "active_per_sample", "active_per_sample_median", "latent_classes")
        else f"{value:.1%}"
    )
