"""Where a number comes from: the machine it was measured on, and the commit of the code."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import torch


def hardware(device: torch.device) -> str:
    """A GPU by its name; a CPU by its model and the threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = named[0] if named else platform.processor() or platform.machine()
    threads = torch.get_num_threads()
    return f"{model}, {threads} thread{'s' * (threads > 1)}"


def made(device: torch.device) -> dict[str, str]:
    """All that a result says of where and when it was made."""
    return {
        "hardware": hardware(device),
        "torch": str(torch.__version__),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


@cache
def commit() -> str:
    """The commit of this code, marked where files differ from it; $NONNEG_COMMIT names it where git cannot."""
    if named := os.environ.get("NONNEG_COMMIT"):
        return named

    def git(*words: str) -> str:
        here = Path(__file__)
        done = subprocess.run(["git", "-C", str(here.parent), *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # else it is somebody else's clone that we lie in
        changed = git("status", "--porcelain", "-uno", "--", ".")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
