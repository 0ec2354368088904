"""What `nonneg evaluate` does with a run: which measures the data allow, in what order, into metrics.json and plots."""

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nonneg import (
    canvas,
    classifier,
    embedding,
    features,
    figures,
    files,
    losses,
    measures,
    on_images,
    plots,
    progress,
    rundir,
)
from nonneg.data import Dataset
from nonneg.data import folder as folder_of_images
from nonneg.data.sprites import FACTORS, factors_of
from nonneg.errors import BadInput, unknown
from nonneg.features import Features
from nonneg.measures import HEAVY, LIGHT, Entry, why_no_probe
from nonneg.run import Training

SEED = 0  # of every draw in an evaluation
VIEWED = 5000  # test images that SEPIN is measured on, at most
PROBE_EPOCHS, TUNE_EPOCHS = 50, 30  # the paper's
COST = {  # of a measure beside others, about the seconds on two cores for 50,000 + 10,000 images; 1 where not named
    "linear_probe": 16,
    "knn": 15,
    "linear_probe_z": 16,
    "knn_z": 15,
    "sepin": 10,
    "retrieval": 40,
    "selection": 30,
    "spectrum": 2,
    "clusters": 30,
    "monosemanticity": 2,
    "identifiability": 2,  # for each pair of runs and each similarity
    "factors": 25,
}


@dataclass(frozen=True)
class Asked:
    """Which groups of measures, and what some of them need beside the run; nothing asked for is the basic group."""

    all: bool = False
    only: tuple[str, ...] = ()
    heavy: bool = False
    subset: int | None = None  # so many training and test images for the heavy groups
    judge: Path | None = None
    against: tuple[Path, ...] = ()
    ood: tuple[str, ...] = ()  # NAME=FOLDER

    def groups(self) -> list[str]:
        """The groups to be measured, where the data allow it."""
        for name in self.only:
            if name not in (*LIGHT, *HEAVY):
                raise unknown("group of measures", name, (*LIGHT, *HEAVY))
        if self.only and self.all:
            raise BadInput("--all is every group and --only a part: give one of them")
        if self.subset is not None and (self.subset < 1 or not (self.heavy or set(self.only) & set(HEAVY))):
            raise BadInput(f"--subset {self.subset} shortens the heavy measures: give 1 or more, and --heavy")
        for flag, given, group in (
            ("--judge", self.judge, "monosemanticity"),
            ("--against", self.against, "identifiability"),
            ("--ood", self.ood, "ood"),
        ):
            if given and self.only and group not in self.only:
                raise BadInput(f"{flag} is for the group {group}, which --only leaves out: add it, or leave {flag} out")
        names = [text.partition("=")[0] for text in self.ood]
        if len(set(names)) < len(names):
            raise BadInput("--ood gives one name to two folders: name each differently")
        wanted = {"basic": True, "monosemanticity": self.judge, "identifiability": self.against, "ood": self.ood}
        light = LIGHT if self.all else [group for group in LIGHT if wanted.get(group)]
        return list(self.only or (*light, *(HEAVY if self.heavy else ())))


@dataclass(frozen=True)
class Evaluated:
    """What was measured now, each with its definition; what was not, and why; all plots of the run."""

    measured: dict[str, Entry]
    skipped: dict[str, str]
    plots: list[Path]


def evaluate(folder: Path, data_root: Path | None = None, asked: Asked | None = None) -> Evaluated:
    """Measure a run on its own data; entries are written to metrics.json and plots to RUN/plots.

    What earlier calls measured stays in metrics.json until its group is measured again, or model or images change.
    """
    asked = asked or Asked()
    groups, run = asked.groups(), embedding.finished_run(folder, data_root)
    data = {split: run.load(split) for split in ("train", "test")}
    _tell_other_images(folder, run, data["train"])
    _tell_unknown_classes(data["train"], data["test"])
    others = [_other_run(place, folder) for place in (asked.judge, *asked.against) if place is not None]
    if len({place.resolve() for place in asked.against}) < len(asked.against):
        raise BadInput("--against names a run twice, which would agree with itself: name each once")
    places = [_elsewhere(text, data["train"]) for text in asked.ood]
    path = folder / "metrics.json"
    with files.locked(folder):  # before another evaluation of this run, going on beside, can add to the old entries
        kept = {split: embedding.stored(folder, d, split, run) for split, d in data.items()}
        if not all(kept.values()):
            path.unlink(missing_ok=True)  # of another model, or of other images
        of = fingerprints(data)
        before = _entries(path, of) if path.exists() else {}
    made = {split: kept[split] or embedding.extracted(folder, d, split, run) for split, d in data.items()}
    cannot = _cannot(asked, data["test"], made)
    skipped = {group: why for group, why in cannot.items() if group in groups}
    if asked.subset is not None:
        whole = {_group(e) for e in before.values() if "subset" not in e} & set(HEAVY) & set(groups)
        skipped |= dict.fromkeys(sorted(whole), "it was measured on all images before, which --subset would replace")
    if asked.only and skipped:
        group, why = next(iter(skipped.items()))
        raise BadInput(f"{group} cannot be measured: {why}")
    if asked.all and not asked.heavy:
        skipped |= {group: cannot.get(group, "takes minutes; add --heavy") for group in HEAVY}
    if "basic" in groups and (why := _no_labels(made) or why_no_probe(made["train"].labels)):
        skipped["class consistency and probes" if made["test"].labels is None else "probes"] = why
    job = _Job(folder, run, data, made, asked, dict(others), places)
    if set(HEAVY) & set(groups):  # now: a subset that is too small is said before anything is measured
        for split in data:
            job.short(split)
    measured: dict[str, Entry] = {}
    failed: dict[str, str] = {}
    for stage in (job.light, job.heavy):
        for found, failure in stage([group for group in groups if group not in skipped]):
            failed |= dict([failure] if failure else [])
            measured |= found
            if found:  # as soon as it is: an interruption loses one group
                add_entries(folder, found, of)
    with files.locked(folder):
        drawn = _write_plots(folder, _entries(path) if path.exists() else {}, made["test"].z)
    if asked.only and failed:
        told = "; ".join(f"{group} cannot be measured: {why}" for group, why in failed.items())
        raise BadInput(told + (f" (the other groups are in {path})" if measured else ""))
    return Evaluated(measured, skipped | failed, drawn)


def _tell_other_images(folder: Path, run: Training, train: Dataset) -> None:
    """Say so where the images are not those that the run was trained on."""
    then = rundir.read_any(folder)[1]["data"]
    if then["fingerprint"] != train.fingerprint() and not getattr(run, "validation", False):  # which held some out
        progress.say(
            f"{folder} was trained on other images than {train.name} holds now ({then.get('images')} then, "
            f"{len(train)} now): what follows is measured on these"
        )


def _tell_unknown_classes(train: Dataset, test: Dataset) -> None:
    """Say so where test images are of classes without a training image: no probe can be right about them."""
    if train.labels is None or test.labels is None:
        return
    if len(unknown := test.labels[~torch.isin(test.labels, train.labels)]):
        first = test.classes[int(unknown[0])] if test.classes else int(unknown[0])
        progress.say(
            f"{test.name}: {len(unknown)} of {len(test)} test images are of a class without training images, first "
            f"{first!r}: every probe is wrong about them"
        )


def _group(entry: Entry) -> str:
    return entry.get("group", "basic")


def _other_run(place: Path, folder: Path) -> tuple[Path, Training]:
    if place.resolve() == folder.resolve():
        raise BadInput(f"{place} is the run that is measured: name another one")
    return place, embedding.finished_run(place)


def _elsewhere(text: str, train: Dataset) -> on_images.Elsewhere:
    return on_images.elsewhere(
        text, folder_of_images, train.classes, channels=train.channels, image_size=train.image_size
    )


def _no_labels(made: dict[str, Features]) -> str:
    without = [split for split, f in made.items() if f.labels is None]
    return f"the {' and '.join(without)} data have no labels" if without else ""


def _cannot(asked: Asked, test: Dataset, made: dict[str, Features]) -> dict[str, str]:
    """Why a group cannot be measured, for those that cannot."""
    unlabelled = _no_labels(made) if made["test"].labels is None else ""
    no_probe = _no_labels(made) or why_no_probe(made["train"].labels)
    signed = any(bool((f.z.data < 0).any()) for f in made.values())
    why = {
        "retrieval": unlabelled,
        "selection": unlabelled,
        "probabilities": "features of this run are negative, and probabilities are not" * signed,
        "clusters": unlabelled,
        "monosemanticity": "" if asked.judge else "it needs another run's eyes; name one with --judge RUN",
        "identifiability": "" if asked.against else "it compares runs; name others of this data with --against RUN ...",
        "factors": "" if test.name == "sprites" else f"the factors of {test.name} are not known, only those of sprites",
        "ood": no_probe or ("" if asked.ood else "name a labelled folder of other images with --ood NAME=FOLDER"),
        **dict.fromkeys(HEAVY, no_probe),
    }
    return {group: reason for group, reason in why.items() if reason}


def fixes_scale(run: Training) -> bool:
    """Whether the run's loss gives the length of features a meaning; a loss of cosines, or of labels, does not."""
    loss = getattr(run, "loss", None)
    knobs = loss.keywords if isinstance(loss, partial) else {}
    bounded = knobs.get("normalise") or knobs.get("mu", math.inf) < math.inf
    return getattr(loss, "func", loss) is losses.spectral and not bounded


def _temperature(run: Training) -> float | None:
    """The temperature of the run's loss, where it has one."""
    loss = getattr(run, "loss", None)
    knobs = inspect.signature(loss).parameters if loss else {}
    found = knobs["temperature"].default if "temperature" in knobs else None
    return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True)
class _Job:
    """A run, its data and features, and what is asked of it; each stage yields what it found, or what failed."""

    folder: Path
    run: Training
    data: dict[str, Dataset]
    made: dict[str, Features]
    asked: Asked
    others: dict[Path, Training]
    places: list[on_images.Elsewhere]

    def light(self, groups: list[str]) -> Iterator[tuple[dict[str, Entry], tuple[str, str] | None]]:
        """The groups that need features alone, under one bar; what they need of other runs is embedded first."""
        train, test, device = self.made["train"], self.made["test"], self.run.torch_device()
        todo: list[tuple[str, int, Callable[[], dict[str, Entry]]]] = []  # group, cost, what to do
        if "basic" in groups:
            if rundir.trained(self.folder) == "classifier":
                todo.append(("basic", 1, self.classified))
            for name, take in measures.basic(train, test, device=device).items():
                todo.append(("basic", COST.get(name, 1), lambda name=name, take=take: {name: take()}))
        if "sepin" in groups:
            f, g, how = self.views()
            of = partial(measures.sepin, f.z, g.z, views=how, seed=SEED, temperature=_temperature(self.run))
            todo.append(("sepin", COST["sepin"], of))
        if "retrieval" in groups:
            todo.append(("retrieval", COST["retrieval"], lambda: measures.retrieval(train, test, device=device)))
        if "selection" in groups:
            todo.append(("selection", COST["selection"], lambda: measures.selected(train, test, device=device)))
        if "spectrum" in groups:
            todo.append(("spectrum", COST["spectrum"], lambda: measures.spectrum(train, test)))
        if "probabilities" in groups:
            scaled = fixes_scale(self.run)
            todo.append(("probabilities", 1, lambda: measures.probabilities(train, test, scaled=scaled)))
        if "clusters" in groups:
            todo.append(("clusters", COST["clusters"], lambda: measures.clusters(test, seed=SEED)))
        if "monosemanticity" in groups and self.asked.judge:
            judge, name = self.by(self.asked.judge).h, str(self.asked.judge)
            cost = COST["monosemanticity"]
            todo.append(("monosemanticity", cost, lambda: measures.monosemanticity(test.z, judge, name=name)))
        if "identifiability" in groups:
            zs, names = [test.z, *(self.by(r).z for r in self.asked.against)], [str(r) for r in self.asked.against]
            cost = COST["identifiability"] * len(zs) * (len(zs) - 1)
            todo.append(("identifiability", cost, lambda: measures.identifiability(zs, names=names)))
        if "factors" in groups:
            table = factors_of(test.ids)
            todo.append(("factors", COST["factors"], lambda: measures.factors(test.z, table, names=list(FACTORS))))
        if not todo:
            return
        with progress.bar("measuring", sum(cost for _, cost, _ in todo)) as advance:
            for group, steps in itertools.groupby(todo, key=lambda step: step[0]):
                measured: dict[str, Entry] = {}
                for _, cost, take in steps:
                    advance(0, note=group)
                    found, failed = _attempt(group, take)
                    measured |= found
                    if failed:
                        yield {}, failed
                    advance(cost)
                yield measured, None

    def classified(self) -> dict[str, Entry]:
        """What the run's own classifier says of the test features, whose classes are told by their names."""
        model, test, why = classifier.load(self.folder), self.made["test"], "the test data have no labels"
        try:
            number = self.data["test"].numbers_among(model.classes, "the data")
            labels = None if test.labels is None else number[test.labels].numpy()
        except BadInput as error:
            labels, why = None, str(error)
        with torch.inference_mode():
            logits = model.head(torch.from_numpy(test.z.toarray()))
        return measures.classified(labels, logits.numpy(), model.head.dead().numpy(), why=why)

    def heavy(self, groups: list[str]) -> Iterator[tuple[dict[str, Entry], tuple[str, str] | None]]:
        """The groups that look at images, each with a bar of its own."""
        if not set(groups) & {"ood", *HEAVY}:
            return
        model, device, seed = embedding.load_model(self.folder, self.run), self.run.torch_device(), SEED
        short = {split: self.short(split) for split in self.data}
        probe = None
        if set(groups) & {"ood", "corruptions"}:
            probe = on_images.clean_probe(self.made["train"], self.made["test"], device=device)
        for place in self.places if "ood" in groups else ():
            assert probe is not None
            yield _attempt("ood", lambda p=place: on_images.out_of_distribution(model, probe, p, device=device))
        for group, epochs in (("probe", PROBE_EPOCHS), ("tune", TUNE_EPOCHS)):
            if group in groups:
                probed = partial(on_images.probed, model, short["train"], short["test"], tune=group == "tune")
                yield self.marked(
                    _attempt(group, partial(probed, epochs=epochs, seed=seed, device=device)), "train", "test"
                )
        if "corruptions" in groups:
            assert probe is not None
            damaged = partial(on_images.corrupted, model, probe, short["test"], seed=seed, device=device)
            yield self.marked(_attempt("corruptions", damaged), "test")  # the probe is of all training images

    def marked(
        self, attempt: tuple[dict[str, Entry], tuple[str, str] | None], *splits: str
    ) -> tuple[dict[str, Entry], tuple[str, str] | None]:
        """The same entries, saying so where they are of a subset of these splits."""
        found, failed = attempt
        of = {split: len(self.short(split)) for split in splits}
        if all(n == len(self.data[split]) for split, n in of.items()):
            return attempt
        called = {"train": "training", "test": "test"}
        said = " and ".join(f"{n} {called[split]}" for split, n in of.items()) + " images"
        return {
            k: {**e, "definition": f"tried on {said} (--subset): {e['definition']}", "subset": said}
            for k, e in found.items()
        }, failed

    def short(self, split: str) -> Dataset:
        """The images of a split, or as many as --subset says, as equally over the classes as can be."""
        data, n = self.data[split], self.asked.subset
        if n is None or n >= len(data):
            return data
        labels = None if data.labels is None else data.labels.numpy()
        if labels is not None and n < (classes := len(np.unique(labels))):
            raise BadInput(f"--subset {n} is fewer images than the {classes} classes: give {2 * classes} or more")
        return data.subset(figures.sample_rows(labels, n, total=len(data), seed=SEED).tolist())

    def by(self, place: Path) -> Features:
        """This run's test images as another run's model sees them."""
        found = embedding.embed(place, self.data["test"], "test", self.others[place])
        if found.ids != self.made["test"].ids:
            raise BadInput(f"{place} cannot read the same test images as {self.folder}: evaluate both again")
        return found

    def views(self) -> tuple[Features, Features, str]:
        """Features of two views of at most 5,000 test images, kept in the run folder, and how they were made."""
        how = self.run.to_json()["augment"]
        data = self.data["test"]
        data = on_images.sampled(data, VIEWED, seed=SEED)
        model = hashlib.sha256((self.folder / "model.safetensors").read_bytes()).hexdigest()
        key = hashlib.sha256(f"{model} {data.fingerprint()} {how} {SEED}".encode()).hexdigest()[:16]
        paths = [self.folder / "features" / f"{data.name}-view{i}-{key}.npz" for i in (1, 2)]
        try:
            first, second = (features.load(path) for path in paths)
        except BadInput:  # not there, or damaged: made again
            encoder, device = embedding.load_model(self.folder, self.run), self.run.torch_device()
            first, second = on_images.two_views(encoder, data, self.run.augment, seed=SEED, device=device)
            for path, view in zip(paths, (first, second), strict=True):
                view.save(path)
        return first, second, how


def _attempt(group: str, take: Callable[[], dict[str, Entry]]) -> tuple[dict[str, Entry], tuple[str, str] | None]:
    """What a group measured, or that it cannot, and why."""
    try:
        found = take()
    except BadInput as error:
        return {}, (group, str(error))
    return (found if group == "basic" else {name: {**e, "group": group} for name, e in found.items()}), None


def fingerprints(data: Mapping[str, Dataset]) -> dict[str, str]:
    """By which an entry of metrics.json says what images it is about."""
    return {split: part.fingerprint() for split, part in data.items()}


def _entries(path: Path, of: dict[str, str] | None = None) -> dict[str, Entry]:
    """What metrics.json holds, or what it holds of these images; an entry that does not say which is of any."""
    measured = files.read_json(path)
    if not isinstance(measured, dict) or not all(isinstance(v, dict) and "value" in v for v in measured.values()):
        raise BadInput(f"{path} is damaged; remove it, and nonneg evaluate {rundir.quoted(path.parent)} writes it anew")
    return {name: e for name, e in measured.items() if of is None or e.get("data", of) == of}


def add_entries(folder: Path, found: dict[str, Entry], of: dict[str, str] | None = None) -> None:
    """metrics.json with these entries, in place of all that it held of their groups; whole groups are given.

    With `of`, the fingerprints of the images, each says what it is about, and what the file held of others goes. One
    line an entry, so that the numbers of 2,048 features do not take 2,048 lines.
    """
    path, again = folder / "metrics.json", {_group(e) for e in found.values()} - {"ood"}  # each folder is its own
    with files.locked(folder):
        there = _entries(path, of) if path.exists() else {}
        entries = {name: e for name, e in there.items() if _group(e) not in again}
        entries |= {name: e if of is None else {**e, "data": of} for name, e in found.items()}
        lines = (f"  {json.dumps(name)}: {json.dumps(e, allow_nan=False)}" for name, e in entries.items())
        files.write_text(path, "{\n" + ",\n".join(lines) + "\n}\n")


def _write_plots(folder: Path, measured: dict[str, Entry], z: Any) -> list[Path]:
    """A picture for each group that has one; those of groups no longer measured go."""
    colour = (canvas.SIGNED_RUNS if (z.data < 0).any() else canvas.NONNEG_RUNS)[0]
    drawn = {folder / "plots" / f"{name}.png": draw(measured, colour) for name, draw in plots.PLOTS.items()}
    for path, picture in drawn.items():
        if picture is None:
            path.unlink(missing_ok=True)
            continue
        with files.atomic(path) as temporary:
            temporary.write_bytes(picture)
    return [path for path, picture in drawn.items() if picture is not None]


def measured_of(folder: Path, data_root: Path | None = None) -> dict[str, Entry]:
    """What metrics.json says, the basic measures taken first if they were not yet."""
    path, run = folder / "metrics.json", embedding.finished_run(folder, data_root)
    data = {split: run.load(split) for split in ("train", "test")}
    if path.exists() and all(embedding.path_of(folder, d, split).exists() for split, d in data.items()):
        measured = _entries(path, fingerprints(data))
        if "sparsity" in measured:
            return measured
    evaluate(folder, data_root)  # never measured, or the images are no longer those that were
    return _entries(path)
