"""Files that are either the old one or the new one, never half of either."""

import glob
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from nonneg.errors import BadInput

WRITING = ".writing"  # in a folder: who has it locked
ABANDONED = 600  # seconds after which a temporary file that nobody writes to is of a process that was killed


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`; on success it takes `path`'s place, on failure `path` is untouched.

    Temporary files that processes killed in the middle of this left behind, untouched for a while, are removed.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        os.close(handle)
        yield temporary
        with temporary.open("rb+") as f:
            os.fsync(f.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        kept = " (the old file is unharmed)" if path.exists() else ""
        raise BadInput(
            f"cannot write {path}: {error.strerror or error}{kept}; free some space or check permissions"
        ) from error
    finally:
        if temporary is not None:
            with suppress(FileNotFoundError):
                temporary.unlink()


def _remove_abandoned(path: Path) -> None:
    for old in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        with suppress(OSError):  # it may be another user's, or gone already
            if time.time() - old.stat().st_mtime > ABANDONED:
                old.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Have `folder` for oneself: another process that asks for it waits. It must not be asked for again inside.

    For reading a file, adding to it and writing it anew, where two processes could lose each other's additions. Where
    nothing can be locked (Windows, some network file systems) it is had without.
    """
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            handle = stack.enter_context((folder / WRITING).open("a"))  # a network file system locks what is written to
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} is damaged: not valid JSON ({error})") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """A safetensors file whose header carries `about` as JSON."""
    metadata = {k: json.dumps(v) for k, v in about.items()}
    data = save({k: v.detach().cpu().contiguous() for k, v in tensors.items()}, metadata=metadata)
    with atomic(path) as temporary:  # bytes first, so that a full disk is an OSError like any other
        temporary.write_bytes(data)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of a safetensors file, or one sentence that says what is wrong with it."""
    try:
        with safe_open(path, framework="pt") as f:
            about = {k: json.loads(v) for k, v in (f.metadata() or {}).items()}
            return {k: f.get_tensor(k) for k in f.keys()}, about  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (SafetensorError, OSError, json.JSONDecodeError) as error:
        raise BadInput(f"{path} is damaged or truncated ({error})") from None
