"""What the other verbs do with run folders: features, select, report, demo. Each reads files, so it reruns alone."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nonneg import embedding, evaluate, maps, metrics, names, probes, report, rundir, selection
from nonneg.errors import BadInput
from nonneg.figures import Column
from nonneg.loop import Interrupted
from nonneg.run import DIGITS, ROLES
from nonneg.train import train

HEADLINE = (
    "sparsity",
    "class_consistency",
    "top10_consistency",
    "linear_probe",
    "knn",
    "linear_probe_z",
    "knn_z",
    "live_features",
    "effective_rank",
)


def write_features(
    folder: Path, *, data: str | None, data_root: Path | None, image_size: int | None, out: Path | None
) -> dict[str, str]:
    """Features of both splits of the run's data set, or of another at the size the model was trained on, as files."""
    run = embedding.finished_run(folder)
    size = image_size or run.image_size or rundir.read_any(folder)[1]["data"].get("image_size")
    chosen = names.find(data, ROLES["data"]) if data else run.data
    source = replace(run, data=chosen, data_root=data_root or run.data_root, image_size=size)
    written = {}
    for split in ("train", "test"):
        dataset = source.load(split)
        made = embedding.embed(folder, dataset, split, run)
        path = out / f"{dataset.name}-{split}.npz" if out else embedding.path_of(folder, dataset, split)
        if out:
            if path.exists():
                raise BadInput(f"{path} already exists; remove it, or name another folder with --out")
            made.save(path)
        written[split] = str(path)
    return written


def select(
    folder: Path,
    *,
    budget: int | None = None,
    features: int | None = None,
    top: int | None = None,
    data_root: Path | None = None,
) -> dict[str, Any]:
    """Shortened codes of both splits in RUN/codes, and what was lost: each measure on test features before and after.

    What to keep is decided on training features. Precision and k-NN need labels; the mean cosine to what is read back
    and the share of nearest neighbours that stay do not.
    """
    selection.check_one(budget=budget, features=features, top=top)
    run = embedding.finished_run(folder, data_root)
    data = {split: run.load(split) for split in ("train", "test")}
    made = {split: embedding.embed(folder, dataset, split, run) for split, dataset in data.items()}
    plan = selection.plan(made["train"].z, budget=budget, features=features, top=top)
    codes = {split: plan.codes(f.z, labels=f.labels, ids=f.ids) for split, f in made.items()}
    paths = {split: folder / "codes" / f"{d.name}-{split}-{plan.name}.npz" for split, d in data.items()}
    for split, path in paths.items():
        codes[split].save(path)
    full: dict[str, Any] = {split: f.z for split, f in made.items()}
    short = {split: c.decode() for split, c in codes.items()}
    return {
        "kept": plan.about,
        "files": {split: str(path) for split, path in paths.items()},
        "bytes_per_vector": {
            "before": selection.bytes_per_vector(full["test"].shape[1], bits=32),
            "after": codes["test"].bytes_per_vector,
        },
        **_lost(full, short, made["train"].labels, made["test"].labels, device=run.torch_device()),
    }


def _lost(full: dict[str, Any], short: dict[str, Any], y: Any, answer: Any, *, device: Any) -> dict[str, Any]:
    """Measures before and after, by name."""
    k = min(10, full["test"].shape[0] - 1)
    lost: dict[str, Any] = {"cosine": {"before": 1.0, "after": selection.reconstruction(full["test"], short["test"])}}
    if k > 0:  # a single image has no neighbours
        near = [metrics.neighbours(z["test"], k=k, device=device) for z in (full, short)]
        lost[f"neighbour_overlap@{k}"] = {"before": 1.0, "after": metrics.neighbour_overlap(*near)}
    if answer is not None and np.bincount(answer).max(initial=0) > 1:
        found = [metrics.retrieval(z["test"], answer, k=k, device=device) for z in (full, short)]
        for name, key in ((f"precision@{k}", "precision"), (f"map@{k}", "map")):
            lost[name] = {"before": found[0][key], "after": found[1][key]}
    if y is not None and answer is not None and len(np.unique(y)) > 1:
        lost["knn_z"] = dict(
            zip(
                ("before", "after"),
                (probes.knn(z["train"], y, z["test"], answer, device=device) for z in (full, short)),
                strict=True,
            )
        )
    return lost


def write_report(folders: list[Path], path: Path, *, overwrite: bool, data_root: Path | None = None) -> None:
    """The report of one run or several side by side."""
    if path.exists() and not overwrite:
        raise BadInput(f"{path} already exists; add --overwrite to replace it, or --out for another file")
    titles = [folder.name if len({f.name for f in folders}) == len(folders) else str(folder) for folder in folders]
    columns = [column(folder, title, data_root) for folder, title in zip(folders, titles, strict=True)]
    seen = (f"{c.title}: {len(c.train.ids)} training and {len(c.test.ids)} test images" for c in columns)
    trained = (f", {c.log[-1]['epoch']} epochs" if c.log else "" for c in columns)
    held = (len(c.train.ids) - rundir.read_any(f)[1]["data"]["images"] for c, f in zip(columns, folders, strict=True))
    apart = (f", {n} of the training images held out" if n > 0 else "" for n in held)
    intro = "; ".join("".join(parts) for parts in zip(seen, trained, apart, strict=True)) + "."
    report.write(columns, path, title="What the features look at", intro=intro, seed=0)


def column(folder: Path, title: str, data_root: Path | None = None) -> Column:
    """All that a report shows of one run; it is evaluated first if it was not yet."""
    run = embedding.finished_run(folder, data_root)
    measured = evaluate.measured_of(folder, data_root)
    train_data, test_data = run.load("train"), run.load("test")
    about, test = run.to_json(), embedding.embed(folder, test_data, "test", run)
    test_data = test_data.named(test.ids)  # images that could be opened but not decoded have no features
    return Column(
        title=title,
        subtitle=f"{about['data']}, map {about['map']}",
        train=embedding.embed(folder, train_data, "train", run),
        test=test,
        metrics={name: {k: v for k, v in e.items() if k not in ("each", "group")} for name, e in measured.items()},
        images=test_data.images,
        classes=test_data.classes,
        skipped=sorted({*train_data.skipped, *test_data.skipped, *rundir.read_skipped(folder)}),
        log=rundir.read_log(folder),
        stability=measured.get("identifiability_cosine", {}).get("each"),
    )


def values(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Just the numbers."""
    return {k: entry["value"] for k, entry in measured.items()}


def demo(folder: Path, *, seed: int, epochs: int | None, overwrite: bool) -> dict[str, Any]:
    """CL and NCL from one seed on the digits inside scikit-learn, measured and shown side by side."""
    began = time.monotonic()
    for name in ("cl", "ncl"):
        if not overwrite and (folder / name).exists():
            raise BadInput(f"{folder} already holds a demo; add --overwrite to replace it, or --out for another folder")
    run = replace(DIGITS, seed=seed, epochs=DIGITS.epochs if epochs is None else epochs)
    data = run.load("train")
    out: dict[str, Any] = {}
    columns = []
    for name, map in (("cl", maps.identity), ("ncl", DIGITS.map)):
        try:
            train(
                replace(run, map=map), folder / name, data=data, overwrite=overwrite, label=f"training {name.upper()}"
            )
        except Interrupted:
            again = f"nonneg demo --out {rundir.quoted(folder)} --overwrite"
            raise Interrupted(f"the demo was stopped; it is short, so start it again with: {again}") from None
        out[name] = values(evaluate.evaluate(folder / name).measured)
        columns.append(column(folder / name, name.upper()))
    out["chance"] = {
        "class_consistency": out["cl"]["chance"],
        "top10_consistency": out["cl"]["top10_chance"],
        "linear_probe": out["cl"]["chance"],
        "knn": out["cl"]["chance"],
        "linear_probe_z": out["cl"]["chance"],
        "knn_z": out["cl"]["chance"],
    }
    report.write(columns, folder / "report.html", title=REPORT_TITLE, intro=DEMO_INTRO, seed=seed)
    out["seconds"] = round(time.monotonic() - began, 1)
    return out


REPORT_TITLE = "What non-negativity does to contrastive features"
DEMO_INTRO = (
    "Two encoders, trained on handwritten digits without labels, from the same seed, with the same images in the same "
    "order. The only difference is the last line of the model: CL returns the projector's output as it is, NCL cuts "
    "it at zero. Labels are used to measure, never to train."
)
