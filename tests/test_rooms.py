"""Who may import whom. A room that reaches further than this needs a better seam, not an exception."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nonneg.norm_cuda import HAVE_TRITON

SOURCE = Path(__file__).parent.parent / "src" / "nonneg"
BASE = {"errors", "files", "progress", "names"}
ALLOWED = {  # what each room may import of nonneg, besides itself
    "__init__": None,  # the public surface
    "__main__": {"cli"},
    "errors": set(),
    "files": {"errors"},
    "progress": set(),
    "names": {"errors"},
    "maps": set(),
    "losses": {"errors"},
    "optim": {"errors"},
    "backbones": {"errors", "norm_cuda"},
    "norm_cuda": {"augment_cuda"},
    "corruptions": {"errors"},
    "theory": {"canvas", "losses", "maps", *BASE},
    "encoder": {"backbones", "maps", *BASE},
    "classifier": {"encoder", "maps", *BASE},
    "data": BASE,
    "pairs": {"data", *BASE},
    "augment": {"augment_cuda", "errors"},
    "augment_cuda": {"augment", "errors"},
    "metrics": {"errors"},
    "probes": {"errors"},
    "evaluate": {
        "canvas",
        "classifier",
        "data",
        "embedding",
        "features",
        "figures",
        "losses",
        "measures",
        "on_images",
        "plots",
        "run",
        "rundir",
        *BASE,
    },
    "measures": {"metrics", "probes", "selection", *BASE},
    "embedding": {"data", "encoder", "features", "run", "rundir", *BASE},
    "asking": {
        "analyses",
        "comparison",
        "experiments",
        "gallery",
        "kept_features",
        "ledger",
        "loop",
        "provenance",
        *BASE,
    },
    "comparison": {*BASE},
    "features": {"encoder", "data", *BASE},
    "on_images": {"augment", "corruptions", "data", "encoder", "features", "finetune", "measures", "probes", *BASE},
    "kept_features": {"features", *BASE},
    "selection": {"metrics", *BASE},
    "engine": {"progress"},
    "run": {"engine", "augment", "backbones", "data", "losses", "maps", "optim", "encoder", *BASE},
    "rundir": {"__init__", "data", "provenance", "run", *BASE},
    "loop": {"data", "engine", "rundir", *BASE},
    "steps": {"augment", "engine", "loop", "run", *BASE},
    "train": {"data", "encoder", "loop", "run", "rundir", "steps", *BASE},
    "supervised": {
        "classifier",
        "data",
        "encoder",
        "engine",
        "features",
        "finetune",
        "loop",
        "maps",
        "metrics",
        "run",
        "rundir",
        "steps",
        *BASE,
    },
    "explain": {"canvas", "classifier", "data", "embedding", "features", "figures", *BASE},
    "multimodal": {
        "augment",
        "backbones",
        "canvas",
        "encoder",
        "evaluate",
        "features",
        "figures",
        "loop",
        "losses",
        "maps",
        "measures",
        "metrics",
        "optim",
        "pairs",
        "report",
        "run",
        "rundir",
        "steps",
        *BASE,
    },
    "canvas": set(),
    "figures": {"canvas", "data", "features", "metrics", "errors"},
    "report": {"figures", "metrics", *BASE},
    "finetune": {
        "augment",
        "backbones",
        "data",
        "encoder",
        "engine",
        "loop",
        "optim",
        "rundir",
        "steps",
        *BASE,
    },
    "experiments": {
        "augment",
        "backbones",
        "charts",
        "data",
        "finetune",
        "losses",
        "maps",
        "measures",
        "metrics",
        "multimodal",
        "optim",
        "run",
        *BASE,
    },
    "charts": {"canvas"},
    "plots": {"canvas", "figures"},
    "analyses": {
        "charts",
        "corruptions",
        "data",
        "embedding",
        "encoder",
        "evaluate",
        "experiments",
        "features",
        "figures",
        "finetune",
        "kept_features",
        "maps",
        "measures",
        "metrics",
        "on_images",
        "probes",
        "run",
        "selection",
        *BASE,
    },
    "reproduce": {
        "analyses",
        "asking",
        "comparison",
        "data",
        "embedding",
        "encoder",
        "engine",
        "evaluate",
        "experiments",
        "finetune",
        "gallery",
        "kept_features",
        "ledger",
        "loop",
        "measures",
        "metrics",
        "multimodal",
        "provenance",
        "run",
        "rundir",
        "supervised",
        "train",
        *BASE,
    },
    "provenance": set(),
    "ledger": {"experiments", *BASE},
    "gallery": {
        "experiments",
        "features",
        "figures",
        "kept_features",
        "ledger",
        "multimodal",
        "report",
        "workflow",
        *BASE,
    },
    "workflow": {
        "embedding",
        "evaluate",
        "figures",
        "loop",
        "maps",
        "metrics",
        "probes",
        "report",
        "run",
        "rundir",
        "selection",
        "train",
        *BASE,
    },
    "tables": {"measures", "workflow"},
    "cli": None,  # parsing: may see everything
}
THIRD_PARTY = {"maps": {"torch"}, "losses": {"torch"}, "metrics": {"torch", "numpy", "scipy", "sklearn"}}


def imports(path: Path) -> set[tuple[str, str]]:
    """(package, room) of every import statement, wherever it stands."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                head, _, rest = alias.name.partition(".")
                found.add((head, rest.partition(".")[0] or "__init__"))
        elif isinstance(node, ast.ImportFrom) and node.module:
            head, _, rest = node.module.partition(".")
            rooms = [rest.partition(".")[0]] if rest else [alias.name for alias in node.names]
            found |= {(head, room) for room in rooms}
    return found


def rooms() -> list[str]:
    return sorted({p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in SOURCE.rglob("*.py")})


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_what_it_may(room: str) -> None:
    assert room in ALLOWED, f"say in this test what the new room {room!r} may import"
    allowed = ALLOWED[room]
    for path in [SOURCE / f"{room}.py", *(SOURCE / room).rglob("*.py")]:
        for package, inner in imports(path) if path.exists() else ():
            assert package not in ("experiments", "benchmarks", "tests")
            if package == "nonneg" and allowed is not None and inner != room:
                assert inner in allowed, f"{path.name} imports nonneg.{inner}"
            if package == "nonneg":
                assert inner != "cli" or room == "__main__", f"{path.name} imports the command line"
            standard = package in sys.stdlib_module_names
            if room in THIRD_PARTY and package != "nonneg" and not standard:
                assert package in THIRD_PARTY[room], f"{path.name} imports {package}"


@pytest.mark.parametrize("room", [room for room in rooms() if ALLOWED.get(room)])
def test_a_room_may_import_no_more_than_it_does(room: str) -> None:
    paths = [path for path in [SOURCE / f"{room}.py", *(SOURCE / room).rglob("*.py")] if path.exists()]
    used = {inner for path in paths for package, inner in imports(path) if package == "nonneg"}
    assert not (ALLOWED[room] or set()) - used - BASE, "the list above allows what nobody asks for"


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda p: p.name)
def test_nothing_is_unpickled(path: Path) -> None:
    text = path.read_text()
    assert "import pickle" not in text and "torch.load(" not in text and "allow_pickle=True" not in text


def test_there_is_no_utils() -> None:
    assert not list(SOURCE.rglob("util*.py")) and not list(SOURCE.rglob("helper*.py"))


def test_the_map_in_the_readme_has_every_room() -> None:
    readme = (SOURCE.parent.parent / "README.md").read_text()
    text = readme.partition("## Map of the files")[2].partition("## Results")[0]
    there = [f"{room}/" if (SOURCE / room).is_dir() else f"{room}.py" for room in rooms() if not room.startswith("__")]
    assert [room for room in there if not re.search(rf"(?<!\w){re.escape(room)}", text)] == []


def test_the_command_starts_without_what_few_verbs_need() -> None:
    """torch's compiler and scikit-learn's clusters take a second each to load; the first is needed beside Triton."""
    program = "import nonneg.cli, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "torch" in loaded and "sklearn.cluster" not in loaded
    assert HAVE_TRITON or "torch._dynamo" not in loaded
