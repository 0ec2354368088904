"""The run folder: who may write to it, the checkpoint, the log. Nothing in it is ever half written or unpickled."""

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

import nonneg
from nonneg import files, provenance
from nonneg.data import Dataset, Files
from nonneg.errors import BadInput
from nonneg.run import ClassifierRun, Run, SomeRun, Training, from_json

CHECKPOINT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"
OURS = (
    "run.json",
    "encoder.json",
    "model.safetensors",
    "model.bf16.safetensors",
    "head.json",
    "head.safetensors",
    "votes.png",
    "text.json",
    "text.safetensors",
    "log.jsonl",
    "metrics.json",
    "report.html",
    CHECKPOINT,
    PREVIOUS,
)
KINDS: dict[str, type[Run] | type[ClassifierRun]] = {"encoder": Run, "classifier": ClassifierRun}
FREE = ("device", "data_root", "captions", "checkpoint_seconds", "tensorboard", "strict")  # may differ on a resume
LOCK = ".lock"  # who is at work in a folder
LOCKS = {LOCK, files.WRITING}


def quoted(folder: Path) -> str:
    """A folder as it is typed in a command."""
    return shlex.quote(str(folder))


def resume_words(run: Training, folder: Path) -> str:
    """What to type to go on with the run of a folder."""
    return f"nonneg {run.verb} {run.to_json()['data']} --out {quoted(folder)} --resume"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be at work in `folder` and let no other process be so meanwhile: two would write one checkpoint and one log."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / LOCK).open("a")
    except OSError as error:
        raise BadInput(f"cannot write to {folder}: {error.strerror}; name another folder") from error
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput(f"another process is at work in {folder}; wait for it, or name another folder") from None
        except OSError:  # a file system without locks
            pass
        try:
            yield
        finally:
            if folder.is_dir() and {path.name for path in folder.iterdir()} <= LOCKS:  # nothing came of it
                for name in LOCKS:
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()


def check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds anything, unless it may be overwritten."""
    for place in (folder, *folder.parents):
        if place.is_file():
            raise BadInput(f"cannot write {folder}: {place} is a file; name a folder")
    if (
        folder.is_dir()
        and not overwrite
        and {path.name for path in {*folder.iterdir()} - {*_leftovers(folder)}} - LOCKS
    ):
        raise BadInput(
            f"{folder} already exists; add --resume to continue it, --overwrite to replace it, or --out for another"
        )


def describe(kind: str, run: dict[str, Any], data: Dataset, device: torch.device) -> dict[str, Any]:
    """What run.json holds: what is trained (`kind`: encoder, ...), all it depends on, the data, the machine."""
    return {
        "kind": kind,
        "run": run,
        "data": {
            "name": data.name,
            "images": len(data),
            "image_size": data.image_size,
            "fingerprint": data.fingerprint(),
            "streamed": isinstance(data.images, Files),
            "skipped": data.skipped,
        },
        "versions": {"nonneg": nonneg.__version__, "torch": torch.__version__, "numpy": numpy.__version__},
        "threads": torch.get_num_threads(),
        "device": device.type,
        "made": provenance.made(device),
    }


def claim(about: dict[str, Any], folder: Path) -> None:
    """Take `folder` for the run that `about` describes: what an earlier run left goes, files of others stay."""
    for name in OURS:
        (folder / name).unlink(missing_ok=True)
    for pattern in ("features/*.npz", "features/*-pairs.npy", "codes/*.npz", "plots/*.png", "tensorboard/events.*"):
        for path in folder.glob(pattern):
            path.unlink()
    clear_leftovers(folder)
    files.write_json(folder / "run.json", about)


def keep_the_log(folder: Path) -> None:
    """Remove the weights of a run of which only the log is wanted."""
    for name in (CHECKPOINT, PREVIOUS, "model.safetensors", "model.bf16.safetensors", "head.safetensors"):
        (folder / name).unlink(missing_ok=True)


def trained(folder: Path) -> str:
    """What was trained in a folder: an encoder, where it does not say so."""
    path = folder / "run.json"
    about = files.read_json(path) if path.exists() else {}
    return str(about.get("kind", "encoder")) if isinstance(about, dict) else "encoder"


def read_run(folder: Path, kind: type[SomeRun] = Run) -> tuple[SomeRun, dict[str, Any]]:
    """The Run (or a run of another kind) of a folder, and all else that run.json holds."""
    about = read_about(folder, kind.trains)
    return from_json(about["run"], folder / "run.json", kind), about


def read_any(folder: Path) -> tuple[Run | ClassifierRun, dict[str, Any]]:
    """The run of a folder that holds an encoder, alone or with a classifier, and all else that run.json holds."""
    about = read_about(folder, *KINDS)
    return from_json(about["run"], folder / "run.json", KINDS[about.get("kind", "encoder")]), about


def check_there(folder: Path) -> None:
    """Refuse a folder that is none of a run."""
    if not (folder / "run.json").exists():
        raise BadInput(f"{folder} is not a run folder: it has no run.json")


def read_about(folder: Path, *kinds: str) -> dict[str, Any]:
    """All that run.json holds, of a folder where one of those kinds of things was trained."""
    check_there(folder)
    about = files.read_json(folder / "run.json")
    whole = isinstance(about, dict) and all(isinstance(about.get(k), dict) for k in ("run", "data"))
    if not whole or "fingerprint" not in about["data"] or not isinstance(about.get("threads"), int):
        raise BadInput(f"{folder / 'run.json'} is damaged: it does not describe a run")
    found = about.get("kind", "encoder")  # the first versions trained encoders alone, and did not say so
    if found not in kinds:
        raise BadInput(f"{folder} holds a run of another kind: {found}, not {' or '.join(kinds)}; name another folder")
    return about


def check_same(new: dict[str, Any], folder: Path, *, defaults: dict[str, Any], finished: bool = False) -> None:
    """A resumed run must be the one that was begun: the same settings, images, device and number of threads.

    `new` describes the run now; `defaults` says what settings are that run.json does not name, being older than they.
    A run that is `finished` draws no more random numbers: it may be looked at on another device.
    """
    if not (folder / "run.json").exists():
        raise BadInput(f"nothing to resume: {folder} is not a run folder (it has no run.json)")
    about = read_about(folder, new["kind"])
    run, old = new["run"], {**defaults, **about["run"]}
    changed = [k for k in run if k not in FREE and run[k] != old.get(k)]
    if changed:
        k = changed[0]
        raise BadInput(
            f"{folder} was begun with {k} = {old.get(k)}, not {run[k]}; drop that flag, or start anew in another folder"
        )
    if about["data"]["fingerprint"] != new["data"]["fingerprint"]:
        name, then, now = new["data"]["name"], about["data"].get("streamed"), new["data"]["streamed"]
        hint = "start anew in another folder"
        if then is not None and then != now:  # which files can be read shows only when all are decoded
            held, streamed = "held in memory", "streamed from disk"
            was, are, gb = (streamed, held, "0") if then else (held, streamed, "the GB that they take when decoded")
            hint = f"or so it seems because they were {was} then and are {are} now: set NONNEG_RESIDENT_GB to {gb}"
        other = "images or captions" if "captions" in new["data"] else "images"
        raise BadInput(f"{folder} was begun on other {other} than {name} holds now; {hint}")
    if finished:
        return
    if about.get("device") != new["device"]:
        raise BadInput(
            f"{folder} was begun on a {about.get('device')} and its random numbers cannot go on on a {new['device']}; "
            "resume it there, or start anew in another folder"
        )
    if torch.get_num_threads() != about["threads"]:
        torch.set_num_threads(about["threads"])  # sums in another order would change the last bits


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed process could not; only where no other process is at work (`alone`)."""
    for path in _leftovers(folder):
        path.unlink(missing_ok=True)


def _leftovers(folder: Path) -> list[Path]:
    """Temporary files that a killed process could not remove."""
    return [p for name in OURS for p in folder.glob(f".{name}*.tmp")]


class Checkpoint(NamedTuple):
    """All that changes in a run, after step `at`, which was reached in so many seconds."""

    tensors: dict[str, Tensor]
    at: int
    seconds: float


def save_checkpoint(folder: Path, tensors: dict[str, Tensor], at: int, *, seconds: float) -> None:
    """Write the checkpoint of step `at`; the one before it stays as the previous one."""
    new = folder / f"{CHECKPOINT}.new"
    files.write_tensors(new, tensors, {"at": at, "seconds": round(seconds, 3)})
    if (folder / CHECKPOINT).exists():
        (folder / CHECKPOINT).replace(folder / PREVIOUS)
    new.replace(folder / CHECKPOINT)


def load_checkpoint(folder: Path, *, previous: bool = False) -> Checkpoint | None:
    """The newest checkpoint, or the one before it; None when there is none yet."""
    path = _checkpoint(folder, previous=previous)
    if not path.exists():
        return None
    try:
        tensors, about = files.read_tensors(path)
        at = int(about["at"])
        return Checkpoint(tensors, at, float(about["seconds"]))
    except (BadInput, KeyError) as error:
        if path.name == CHECKPOINT and (at := checkpoint_step(folder, previous=True)) is not None:
            hint = f"the previous checkpoint, of step {at}, is intact: add --previous to resume from it"
        else:
            hint = "start the run again with --overwrite"
        raise BadInput(f"{error}; {hint}") from None


def _checkpoint(folder: Path, *, previous: bool) -> Path:
    newest, older = folder / CHECKPOINT, folder / PREVIOUS
    return older if previous or not newest.exists() else newest  # killed between two renames: only the older is there


def checkpoint_step(folder: Path, *, previous: bool = False) -> int | None:
    """The step of a checkpoint that can be read, else None."""
    try:
        return int(files.read_tensors(_checkpoint(folder, previous=previous))[1]["at"])
    except (BadInput, KeyError):
        return None


def board_writer() -> Callable[..., Any]:
    """What writes for TensorBoard, if it is there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("--tensorboard needs the tensorboard package: pip install 'nonneg[tensorboard]'") from None
    return SummaryWriter


class Log:
    """log.jsonl, one line an epoch, and TensorBoard's copy of it on request."""

    def __init__(self, folder: Path, done: int, skipped: list[str], *, tensorboard: bool = False) -> None:
        self.path = folder / "log.jsonl"
        kept = [line for line in read_log(folder) if line["step"] <= done]
        skipped = sorted({*skipped, *read_skipped(folder)}) if done else skipped
        first = [{"skipped": skipped}] if skipped else []
        files.write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in [*first, *kept]))
        self.board = None
        if tensorboard:
            purge = done + 1 if done else 0  # what was written after the checkpoint comes again
            self.board = board_writer()(str(folder / "tensorboard"), purge_step=purge)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        if self.board is not None:
            self.board.close()

    def add(self, line: dict[str, Any]) -> None:
        """Append a line as it is."""
        try:
            with self.path.open("a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")
        except OSError as error:
            why = f"cannot write {self.path}: {error.strerror}; free some space"
            raise BadInput(f"{why} and resume the run, which loses nothing that was checkpointed") from error

    def write(self, line: dict[str, Any], *, seconds: float) -> None:
        """Append one epoch's line; `seconds` are those of the whole run, whatever processes it was in."""
        line = {**line, "seconds": round(seconds, 3)}
        self.add(line)
        if self.board is not None:
            for name in line.keys() - {"epoch", "step"}:
                self.board.add_scalar(name, line[name], line["step"])


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The epochs in log.jsonl."""
    return [line for line in _read_lines(folder) if "epoch" in line]


def read_skipped(folder: Path) -> list[str]:
    """Inputs that log.jsonl names as skipped, when training began or later."""
    return [name for line in _read_lines(folder) for name in line.get("skipped", [])]


def _read_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of log.jsonl; a last one cut off by a kill is left out."""
    path = folder / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    out = []
    for i, line in enumerate(lines):
        try:
            out.append(json.loads(line))
        except json.JSONDecodeError:
            if i + 1 < len(lines):
                raise BadInput(f"{path}: line {i + 1} is not JSON") from None
    return out
