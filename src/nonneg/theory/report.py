"""A study as one self-contained HTML page: the table, and a figure for each theorem that has one."""

import base64
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2

from nonneg import files
from nonneg.canvas import DPI
from nonneg.theory import pictures
from nonneg.theory.generalisation import accuracy
from nonneg.theory.studies import Study


@dataclass(frozen=True)
class Figure:
    """A picture, what it is of, and what to see in it."""

    title: str
    see: str
    picture: bytes

    @property
    def source(self) -> str:
        return f"data:image/png;base64,{base64.b64encode(self.picture).decode()}"

    @property
    def width(self) -> int:
        """In CSS pixels; a PNG says how wide it is in its bytes 16 to 19."""
        return int.from_bytes(self.picture[16:20], "big") * 100 // DPI


def write_report(study: Study, path: Path) -> None:
    """Write the page."""
    template = resources.files("nonneg").joinpath("theory.html").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    world = study.world
    about = {
        "latent classes": world.classes,
        "samples": world.samples,
        "labels": int(world.labels.max()) + 1,
        "overlap, the paper's epsilon": f"{world.overlap:.4f}",
        "classes with a unique sample": f"{int(world.unique.sum())} of {world.classes}",
        "seed": study.seed,
    }
    held = sum(row.holds for row in study.rows)
    html = environment.from_string(template).render(
        rows=study.rows, held=held, about=about, figures=figures(study), many=bool(study.by_kind)
    )
    files.write_text(path, html)


def figures(study: Study) -> list[Figure]:
    """Every figure that the study has numbers for."""
    found = []
    if study.by_kind:
        found.append(
            Figure(
                "Unique samples make the solution unique",
                "All three kinds of worlds can be solved: objective 0. Only where every class has a sample of its own "
                "is what is found phi. (6 random worlds of each kind, 8 starts each.)",
                pictures.by_kind(study.by_kind),
            )
        )
    if study.rotations:
        same = "the same" if study.world.unique.all() else "another solution, as good"
        found.append(
            Figure(
                "The rotation of phi",
                f"Left: phi, what descent finds with f ≥ 0 ({same}), and without (a mixture of all columns, of both "
                "signs, with the same objective 0). White is zero. Right: turning phi costs nothing while any sign is "
                "allowed. With f ≥ 0 and unique samples it costs from the first degree; without unique samples there "
                "is some room before it does.",
                pictures.rotations(study.rotations, unique=len(study.rotations) > 1),
            )
        )
    if study.by_overlap:
        found.append(
            Figure(
                "Overlap makes phi harder to find, not less unique",
                "As long as unique samples exist, the best of 8 starts is phi at any overlap. Single starts fail more "
                "often as classes share more. (4 random worlds at each overlap, 8 starts each.)",
                pictures.by_overlap(study.by_overlap),
            )
        )
    if study.by_width:
        found.append(
            Figure(
                "Fewer or more features than latent classes",
                "With fewer, objective 0 is out of reach and the columns are mostly none of phi's. With more, a class "
                "splits into parallel columns at no loss: merged, they are phi again.",
                pictures.by_width(study.by_width),
            )
        )
    if study.bounds:
        found.append(
            Figure(
                "The bounds, and their slack",
                "A dot is a random world, the darker the more its classes overlap. All lie below the line where the "
                "bound would be reached; the distance to it is the slack.",
                pictures.bounds(study.bounds),
            )
        )
    if study.by_labels:
        found.append(
            Figure(
                "How many labels it takes",
                "With phi it takes few labels to tell which of them goes with a latent class, and the closed-form head "
                "does the rest. Least squares needs as few, and any rotation of phi would serve it as well: what f ≥ 0 "
                "adds is that counting is enough. Without features every sample has to be seen with its label.",
                pictures.by_labels(study.by_labels, accuracy(study.world, study.world.label_posterior)),
            )
        )
    return found
