"""What the verbs do with a run on images and texts: evaluate, compare, features, report."""

from pathlib import Path

from nonneg import files
from nonneg.errors import BadInput
from nonneg.evaluate import add_entries
from nonneg.measures import Entry
from nonneg.multimodal import report
from nonneg.multimodal.measure import extract, measure

HEADLINE = tuple(key for key, _, _, _ in report.HEADLINE)


def evaluate(folder: Path, data_root: Path | None = None) -> dict[str, Entry]:
    """Measure a run on its test images and texts; the entries are written to metrics.json, and returned."""
    run, model = report.finished(folder, data_root)
    found = measure(extract(model, run.load_pairs("test"), device=run.torch_device()))
    add_entries(folder, found)
    return found


def measured_of(folder: Path, data_root: Path | None = None) -> dict[str, Entry]:
    """What metrics.json says of a run, which is measured first if it was not yet, or on other images or texts."""
    path = folder / "metrics.json"
    found = files.read_json(path) if path.exists() else {}
    if isinstance(found, dict) and found.keys() >= {"image_to_text@1"}:
        run, _ = report.finished(folder, data_root)
        if found["image_to_text@1"].get("data") == run.load_pairs("test").fingerprint():
            return found
    return evaluate(folder, data_root)


def write_features(folder: Path, *, data_root: Path | None, out: Path | None) -> dict[str, list[Path]]:
    """Features of the images and of the distinct texts of both splits, and which belong together, as files."""
    run, model = report.finished(folder, data_root)
    written = {}
    for split in ("train", "test"):
        data = run.load_pairs(split)
        name, place = f"{data.name}-{split}", out or folder / "features"
        if out and any(place.glob(f"{name}-*.np?")):
            raise BadInput(f"{place} already holds features of {name}; remove them, or name another folder with --out")
        written[split] = extract(model, data, device=run.torch_device()).save(place, name)
    return written


def write_report(folders: list[Path], path: Path, *, overwrite: bool, data_root: Path | None = None) -> None:
    """The report of one run or several side by side."""
    if path.exists() and not overwrite:
        raise BadInput(f"{path} already exists; add --overwrite to replace it, or --out for another file")
    short = len({f.name for f in folders}) == len(folders)
    columns = [report.column(folder, folder.name if short else str(folder), data_root) for folder in folders]
    seen = (
        f"{c.column.title}: {len(c.test.images.ids)} test images and {len(c.test.texts.ids)} texts" for c in columns
    )
    intro = "Two encoders, one of images and one of texts, with one space of features. " + "; ".join(seen) + "."
    report.write(columns, path, title="What the features look at, and what they are called", intro=intro)
