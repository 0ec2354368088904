"""The paper's tables again: train what is declared, evaluate it at once, write a line, and set paper beside ours.

N images, D features. Results are lines in RESULTS/EXPERIMENT.jsonl, one a run, so that later work adds to them; run
folders (large, not for a repository) are RUNS/EXPERIMENT/RUN. Whatever is there already is not done again.
"""

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nonneg import (
    analyses,
    asking,
    embedding,
    encoder,
    engine,
    experiments,
    files,
    finetune,
    gallery,
    kept_features,
    ledger,
    loop,
    metrics,
    multimodal,
    progress,
    provenance,
    rundir,
    supervised,
)
from nonneg.comparison import Row, as_markdown, number
from nonneg.data import Dataset
from nonneg.encoder import Encoder
from nonneg.errors import BadInput, unknown
from nonneg.evaluate import add_entries, fingerprints
from nonneg.experiments import ACCURACIES, MEASURES, AnyRun, Experiment, Found, begins, is_search, method_of
from nonneg.measures import measure
from nonneg.multimodal import PairRun
from nonneg.run import ClassifierRun, Run
from nonneg.train import describe, train

AGAIN = "remove {} and give the same command again"


def reproduce(
    name: str,
    *,
    data_root: Path | None = None,
    results: Path = Path("experiments/results"),
    runs: Path = Path("runs"),
    only: Sequence[str] = (),
    seeds: int | None = None,
    report_only: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    classes: Path | None = None,
    device: str = "auto",
    change: Callable[[Any], Any] | None = None,
) -> list[Row]:
    """Train and evaluate every declared run of an experiment that has no result yet, and return its table.

    `only` names runs or their beginnings (cl, ncl-s1), and the table is of them; `seeds` takes seeds below it.
    `report_only` reads the results and, given the data, draws the figures from the features that were kept. `epochs`
    and `batch_size` try everything shortened or in other batches, under a name of their own beside the real results.
    """
    provenance.commit()  # now: what is changed or committed meanwhile is not what runs
    if name in analyses.names():
        if any(given is not None for given in (epochs, batch_size, classes, seeds)):
            raise BadInput(
                f"{name} trains nothing: --epochs, --batch-size, --classes and --seeds are for what it looks at"
            )
        where = {"data_root": data_root, "results": results, "runs": runs, "device": device}
        return asking.analyse(name, **where, only=only, report_only=report_only)
    if name not in experiments.names():
        raise unknown("experiment", name, [*experiments.names(), *analyses.names()])
    declared = partial(_declared, epochs=epochs, batch_size=batch_size)
    name, experiment = declared(name)
    chosen = _chosen(experiment, only, seeds)
    before = ledger.of(name, experiment, results)
    prepare = partial(experiment.prepare, data_root, runs / name / "data", classes)
    found = prepare() if data_root is not None or classes is not None else Found(None)
    _check_classes(found, before)
    if not report_only:
        _check_seeds(experiment, only, chosen)
        todo = [n for n in chosen if not _done(n, before.get(n), experiment, found, runs / name / n)]
        if todo:  # what is wrong is said before data are fetched and a run is trained
            Run(device=device).torch_device()
            ledger.check_writable(results)
        found = found if found.root or not todo else prepare()  # which says what is wanted where data must be given
        for i, run_name in enumerate(todo):
            run = replace(experiment.runs[run_name], data_root=found.root, device=device)
            run = experiment.settle(run_name, run, ledger.of(name, experiment, results))
            run = change(run) if change else run
            progress.say(f"{name}: {run_name}, {i + 1} of {len(todo)} to do")
            folder = runs / name / run_name
            with loop.named(run_name):
                if isinstance(run, PairRun):
                    lines = _pair_one(name, run_name, experiment, run, folder)
                elif isinstance(run, ClassifierRun):
                    if run_name in experiment.starts:
                        run = replace(run, pretrained=_start(run, *experiment.starts[run_name], declared, runs, change))
                    lines = _classify_one(name, run_name, experiment, run, folder)
                else:
                    lines = _run_one(name, run_name, experiment, found, run, folder, results)
                try:
                    for line in lines:
                        ledger.put(results / f"{name}.jsonl", line)
                except loop.NotFinite as error:
                    if not is_search(run_name):
                        raise
                    why = str(error).partition("; ")[0]  # without what is kept, and what to try, of any other run
                    progress.say(f"{run_name} is out of the search: {why}")
                    ledger.put(results / f"{name}.jsonl", _diverged(name, run_name, run, why))
            if is_search(run_name):  # its line says what it was for, and weights take much room
                rundir.keep_the_log(folder)
        with loop.named(f"drawing {name}"):
            try:
                gallery.draw(name, experiment, results=results, runs=runs, data_root=found.root)
            except BadInput as error:  # the table does not need them
                progress.say(f"figures of {name} are not drawn: {error}")
    elif data_root is not None:
        for path in gallery.draw(name, experiment, results=results, runs=runs, data_root=found.root, anew=True):
            progress.say(f"drawn: {path}")
    made = table(name, experiment, results)
    if not any(row.seeds for row in made):
        progress.say(f"no results of {name} in {results.absolute()}; --results names another folder")
    if not report_only:
        files.write_text(results / f"{name}.md", as_markdown(made))
        if picture := experiment.draw and experiment.draw(ledger.of(name, experiment, results)):
            gallery.write(results / "figures" / f"{name}.png", picture, colours=gallery.CHART)
    return table(name, experiment, results, only) if only else made


def kept_as(name: str, *, epochs: int | None, batch_size: int | None) -> str:
    """The name under which an experiment's results are kept, shortened or in other batches."""
    shorter = "" if epochs is None else f"-{epochs}epochs"
    return name + shorter + ("" if batch_size is None else f"-batch{batch_size}")


def table(name: str, experiment: Experiment, results: Path, only: Sequence[str] = ()) -> list[Row]:
    """A row for every measure and method that is declared, from the results there are; or for `only` those runs."""
    asked = {n for n in experiment.runs if not only or any(begins(n, wanted) for wanted in only)}
    done, rows, methods = ledger.of(name, experiment, results), [], {method_of(n) for n in asked}
    for key in experiment.table:
        text, scale = MEASURES[key]
        for method, called in experiment.methods.items():
            if method not in methods or not experiment.rows(key, method):
                continue
            mine = [line["measures"] for n, line in done.items() if n in asked and method_of(n) == method]
            mine = [number(measures[key], f"{key} of {method} in {name}.jsonl") for measures in mine if key in measures]
            values = [scale * v for v in mine if v is not None]
            whole = len(values) == len(mine)  # else the mean would be of those seeds alone that came so far
            rows.append(
                Row(
                    measure=text,
                    method=called,
                    paper=experiment.paper.get((key, method)),
                    ours=statistics.fmean(values) if values and whole else None,
                    std=statistics.stdev(values) if len(values) > 1 and whole else None,
                    seeds=len(mine),
                )
            )
    return rows


# Which runs, and which are done


def _chosen(experiment: Experiment, only: Sequence[str], seeds: int | None) -> list[str]:
    """The runs that `only` and `seeds` leave, in the order of the declaration."""
    for wanted in only:
        if not any(begins(name, wanted) for name in experiment.runs):
            raise unknown("run", wanted, {*experiment.runs, *experiment.methods})
    if seeds is not None and seeds < 1:
        raise BadInput(f"--seeds is {seeds}: give at least 1")
    declared = 1 + max(run.seed for run in experiment.runs.values())
    if seeds is not None and seeds > declared:
        progress.say(f"--seeds is {seeds}, and {declared} are declared: seeds 0 to {declared - 1} are taken")
    seeds = experiment.seeds if seeds is None else seeds
    return [
        name
        for name, run in experiment.runs.items()
        if (not only or any(begins(name, wanted) for wanted in only)) and (seeds is None or run.seed < seeds)
    ]


def _check_seeds(experiment: Experiment, only: Sequence[str], chosen: Sequence[str]) -> None:
    """Refuse to leave out, for its seed, a run that `only` names."""
    for wanted in only:
        if not any(begins(name, wanted) for name in chosen):
            least = min(run.seed for name, run in experiment.runs.items() if begins(name, wanted))
            raise BadInput(f"--only {wanted} is of seed {least}, beyond those that are run: give --seeds {least + 1}")


def _declared(name: str, *, epochs: int | None, batch_size: int | None) -> tuple[str, Experiment]:
    """The experiment as it is asked for, and the name under which it is kept."""
    experiment = experiments.find(name)
    experiment = experiment if epochs is None else _shortened(experiment, epochs)
    experiment = experiment if batch_size is None else _in_batches(experiment, batch_size)
    return kept_as(name, epochs=epochs, batch_size=batch_size), experiment


def _shortened(experiment: Experiment, epochs: int) -> Experiment:
    """The same, every training and probe cut to `epochs`; nothing is borrowed, since nothing is the same."""
    if epochs < 1:
        raise BadInput(f"--epochs is {epochs}: give at least 1")

    def cut(probe: partial | None) -> partial | None:
        return probe and partial(probe, epochs=min(epochs, probe.keywords["epochs"]))

    shorter = {name: replace(run, epochs=epochs) for name, run in experiment.runs.items()}
    return replace(experiment, runs=shorter, borrowed={}, probe=cut(experiment.probe), tune=cut(experiment.tune))


def _in_batches(experiment: Experiment, size: int) -> Experiment:
    """The same in batches of `size`; learning rates are given for 256 and scale along."""
    if size < 2:
        raise BadInput(f"--batch-size is {size}: give at least 2")
    runs = {name: replace(run, batch_size=size) for name, run in experiment.runs.items()}
    probe, tune = (p and partial(p, batch_size=size) for p in (experiment.probe, experiment.tune))
    return replace(experiment, runs=runs, borrowed={}, probe=probe, tune=tune)


def _check_classes(found: Found, lines: Mapping[str, dict[str, Any]]) -> None:
    """Refuse other classes than those that the results are of."""
    for run_name, line in lines.items():
        theirs = line.get("classes")
        if found.classes and isinstance(theirs, list) and theirs != found.classes:
            other = sorted({*found.classes} ^ {*theirs})[0]
            raise BadInput(
                f"the result of {run_name} is of {len(theirs)} classes, and these are {len(found.classes)} ({other} is "
                "in one of them only): name the same --classes, or keep other --results and --runs"
            )


def _done(run_name: str, line: dict[str, Any] | None, experiment: Experiment, found: Found, folder: Path) -> bool:
    """Whether nothing is left to do: all is measured, or the model is gone and what there is must do, which is said."""
    if line is None or "diverged" in line:
        return line is not None
    missing = _missing(line["measures"], run_name, experiment, found)
    if not missing or (folder / "model.safetensors").exists():
        return not missing
    progress.say(
        f"{run_name} was not fully measured (no {', '.join(missing)}) and its model is gone; "
        "remove its line from the results to train it again"
    )
    return True


def _missing(numbers: Mapping[str, Any], run_name: str, experiment: Experiment, found: Found) -> list[str]:
    """Of each stage of a run's evaluation that these numbers lack, the measure by which it is told."""
    if not isinstance(experiment.runs[run_name], Run):
        return []  # measured at once, so a line is whole
    stages = ["sparsity"]
    if not any(begins(run_name, wanted) for wanted in experiment.unprobed):
        stages += ["probe_h", *found.more] if experiment.probe else []
        stages += ["tune_h", "tune_z"] if experiment.tune else []
    return [key for key in stages if key not in numbers]


# One run


def _run_one(
    name: str, run_name: str, experiment: Experiment, found: Found, run: Run, folder: Path, results: Path
) -> Iterator[dict[str, Any]]:
    """Train (or go on, or load), evaluate on the same device, keep what later measures need.

    Yields the result's line after each stage of the evaluation, cheapest first: an interruption loses one stage, and
    what the line holds already is not measured again.
    """
    data = run.load("train"), run.load("test")
    model = _trained(run, folder, data[0], f"training {run_name}")
    line = ledger.read(results / f"{name}.jsonl").get(run_name)
    nothing = {"measures": {}, "evaluate_seconds": 0.0, "kept": []}
    before = nothing | line if line and _same_run(line, run) else nothing
    began, kept = time.monotonic() - before["evaluate_seconds"], before["kept"]
    if "sparsity" in _missing(before["measures"], run_name, experiment, found):
        half = {k: v.bfloat16() if v.numel() > 10_000 else v for k, v in model.state_dict().items()}
        files.write_tensors(folder / "model.bf16.safetensors", half, {"encoder": model.about})
        if experiment.probe and not is_search(run_name):  # one of the paper's tables: later measures need its features
            test = embedding.embed(folder, data[1], "test", run)
            kept = kept_features.keep(kept_features.path_of(name, run_name, results), test, run.seed)
    mode, precision = engine.choose(run.mode, run.precision, run.torch_device())
    with rundir.alone(folder):  # the same command given twice would take each other's probes away
        for numbers in evaluate(experiment, found, run, folder, model, data, before["measures"]):
            line = _line(name, run_name, experiment, run, folder, numbers, began, data)
            classes = found.classes or line["classes"]  # those chosen, also where one has no image that can be read
            yield {**line, "classes": classes, "mode": mode, "precision": precision, "kept": kept}


def _same_run(line: dict[str, Any], run: Run) -> bool:
    """Whether a result's line is of a run with these settings; one that it does not name is the default."""
    now, then = run.to_json(), {**Run().to_json(), **line.get("run", {})}
    return all(then[k] == v for k, v in now.items() if k not in rundir.FREE)


def _classify_one(
    name: str, run_name: str, experiment: Experiment, run: ClassifierRun, folder: Path
) -> Iterator[dict[str, Any]]:
    """Train a classifier (or go on, or load), and measure it: its answers by epoch, its class weights, its features."""
    data = run.load("train"), run.load("test")
    model = supervised.trained(run, folder, data, f"training {run_name}")
    began = time.monotonic()
    log, test = rundir.read_log(folder), None if run.validation else data[1]
    found = supervised.measures(model, log, test, levels=ACCURACIES, device=run.torch_device())
    mode, precision = engine.choose(run.mode, run.precision, run.torch_device(), short=True)
    used = supervised.split(run, *data)
    line = _line(name, run_name, experiment, run, folder, {**found, "lr": run.lr}, began, used)
    line["run"].pop("pretrained")  # a place on this machine
    line["classes"] = len(model.classes)  # their names, in a hundred lines, would be most of the file
    start = "/".join(run.pretrained.parts[-2:]) if run.pretrained else None
    line |= {"mode": mode, "precision": precision, "start": start}
    if not run.validation:  # of a search, how it ended and when it came how far is enough
        line["by_epoch"] = [(e["epoch"], round(e["test_accuracy"], 5)) for e in log if "test_accuracy" in e]
    yield line


def _start(
    run: ClassifierRun,
    of: str,
    run_name: str,
    declared: Callable[[str], tuple[str, Experiment]],
    runs: Path,
    change: Callable[..., Any] | None,
) -> Path:
    """The folder of the run whose backbone a classifier begins with; it is trained first if it is not there."""
    of, experiment = declared(of)
    folder = runs / of / run_name
    if not (folder / "model.safetensors").exists():
        first = experiment.runs[run_name]
        assert isinstance(first, Run)
        first = replace(first, data_root=run.data_root, device=run.device)
        first = change(first) if change else first
        progress.say(f"the classifiers begin with {of}'s {run_name}, which is not there: training it")
        _trained(first, folder, first.load("train"), f"training {run_name}")
    return folder


def _pair_one(
    name: str, run_name: str, experiment: Experiment, run: PairRun, folder: Path
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Train on images and texts (or go on, or load), and measure both encoders together."""
    train_data, test_data = run.load_pairs("train"), run.load_pairs("test")
    model = multimodal.trained(run, folder, train_data, f"training {run_name}")
    began = time.monotonic()
    measured = multimodal.measure(multimodal.extract(model, test_data, device=run.torch_device()))
    add_entries(folder, measured)
    numbers = {k: entry["value"] for k, entry in measured.items()}
    images = train_data.images, test_data.images
    line = _line(name, run_name, experiment, run, folder, numbers, began, images)
    mode, precision = engine.choose(run.mode, run.precision, run.torch_device())
    texts = [len(set(data.captions)) for data in (train_data, test_data)]
    chance = {k: round(entry["chance"], 6) for k, entry in measured.items() if "chance" in entry}
    temperature = rundir.read_log(folder)[-1].get("temperature")
    more = {"texts": texts, "chance": chance, "temperature": temperature, "mode": mode, "precision": precision}
    yield {**line, **more}


def _diverged(name: str, run_name: str, run: AnyRun, why: str) -> dict[str, Any]:
    """What a result's line holds of a run of a search that ended in numbers that are none: it is not tried again."""
    return {
        "experiment": name,
        "name": run_name,
        "seed": run.seed,
        "measures": {},
        "diverged": why,
        **provenance.made(run.torch_device()),
        "run": {k: v for k, v in run.to_json().items() if k not in (*rundir.FREE, "pretrained")},
    }


def _line(
    name: str,
    run_name: str,
    experiment: Experiment,
    run: AnyRun,
    folder: Path,
    numbers: Mapping[str, Any],
    began: float,
    data: tuple[Dataset, Dataset],
) -> dict[str, Any]:
    """What a result's line holds of any run: the measures, and all that one needs to know of where they come from."""
    if not (log := rundir.read_log(folder)):
        raise BadInput(f"{folder / 'log.jsonl'} names no epoch; {AGAIN.format(folder)}")
    last, now = log[-1], provenance.made(run.torch_device())
    made = rundir.read_about(folder, run.trains).get("made", now)  # when training began, where that was written down
    later = {k: v for k, v in now.items() if k != "date" and v != made.get(k)}
    return {
        "experiment": name,
        "name": run_name,
        "method": experiment.methods[method_of(run_name)],
        "seed": run.seed,
        "epochs": run.epochs,
        "measures": {k: round(v, 6) if isinstance(v, float) else v for k, v in numbers.items()},
        "train_seconds": last["seconds"],
        "train_loss": last["loss"],
        "evaluate_seconds": round(time.monotonic() - began, 1),
        "batch_size": run.batch_size,
        "images": [len(d) for d in data],
        "classes": data[0].classes,
        **made,
        **({"evaluated": {**later, "date": now["date"]}} if later else {}),
        "run": {k: v for k, v in run.to_json().items() if k not in rundir.FREE},
    }


def _trained(run: Run, folder: Path, data: Dataset, label: str) -> Encoder:
    """The run's encoder: loaded if it is finished, continued if it was begun, trained otherwise."""
    if (folder / "model.safetensors").exists():
        rundir.check_same(describe(run, data), folder, defaults=Run().to_json(), finished=True)
    else:
        train(run, folder, data=data, **loop.as_begun(folder), label=label)
    return encoder.load(folder)  # always from the file: what is measured is what anyone can load


def evaluate(
    experiment: Experiment,
    found: Found,
    run: Run,
    folder: Path,
    model: Encoder,
    data: tuple[Dataset, Dataset],
    before: Mapping[str, Any],
) -> Iterator[dict[str, Any]]:
    """Every measure by name, shares as shares, all so far after each stage; defined in the folder's metrics.json.

    `before` are numbers that this run has already: a stage that is in them is not repeated.
    """
    device, numbers = run.torch_device(), dict(before)
    how = {"seed": run.seed, "device": device, "mode": run.mode, "precision": run.precision}
    missing = _missing(numbers, folder.name, experiment, found)
    if "sparsity" in missing:
        splits = {"train": data[0], "test": data[1]}
        train, test = (embedding.embed(folder, d, s, run) for s, d in splits.items())
        measured = measure(train, test, device=device)
        add_entries(folder, measured, fingerprints(splits))
        numbers |= {k: entry["value"] for k, entry in measured.items() if entry["value"] is not None}
        numbers |= activity(test.z)
        numbers |= experiment.also(train, test)
        yield numbers
    if {"probe_h", *found.more} & set(missing):
        assert experiment.probe is not None
        with _interruptible(folder, "probe", model, device) as there:
            probed = experiment.probe(model, *data, on=("h", "z"), **how, **there)
            numbers |= {f"probe_{place}": probe.accuracy for place, probe in probed.items()}
            numbers |= {f"probe_{place}_train": probe.train_accuracy for place, probe in probed.items()}
            yield numbers
            if more := experiment.more(probed, run):  # the probe is kept until this, which asks it, is done too
                yield (numbers := numbers | more)
    for place in ("h", "z"):
        if f"tune_{place}" in missing:
            assert experiment.tune is not None
            with _interruptible(folder, f"tune-{place}", model, device) as there:
                numbers[f"tune_{place}"] = experiment.tune(model, *data, on=(place,), **how, **there)[place].accuracy
                yield numbers


@contextmanager
def _interruptible(folder: Path, stage: str, model: Encoder, device: torch.device) -> Iterator[dict[str, Any]]:
    """Where a probe keeps its checkpoint until it is over, and whether there is one of this model to go on from."""
    place = folder / f"{stage}-{device.type}-{finetune.digest(model)}"
    begun = rundir.checkpoint_step(place) is not None
    if not begun:
        shutil.rmtree(place, ignore_errors=True)
    yield {"folder": place, "resume": begun}
    shutil.rmtree(place)


def activity(z: Any, *, eps: float = 1e-5) -> dict[str, float]:
    """How many features are active on a sample: the tenth and ninetieth percentile, and the most."""
    counts = metrics.active_per_sample(z, eps=eps)
    low, high = np.quantile(counts, [0.1, 0.9])
    return {
        "active_low": float(low),
        "active_high": float(high),
        "active_most": int(counts.max()),
    }
