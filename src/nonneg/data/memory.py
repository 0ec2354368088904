"""How much memory a data set may take."""

from contextlib import suppress
from pathlib import Path

UNKNOWN = 4 * 2**30  # bytes assumed free where the system does not say

# What a container may take and has taken, by the two kinds of control group; caches do not count, they can be dropped.
GROUPS = (
    ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.stat", "anon"),
    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.stat", "total_rss"),
)


def free_bytes(root: Path = Path("/")) -> int:
    """What this process may still take: what the machine has available, or its container's limit allows."""
    found = []
    with suppress(OSError, KeyError, ValueError):
        found.append(1024 * _table(root / "proc/meminfo")["MemAvailable:"])
    for limit, used, name in GROUPS:
        with suppress(OSError, KeyError, ValueError):  # no such group, or no limit ("max")
            found.append(max(0, int((root / limit).read_text()) - _table(root / used)[name]))
    return min(found, default=UNKNOWN)


def _table(path: Path) -> dict[str, int]:
    """The lines of a system's file, "name number ...", as a mapping."""
    words = [line.split() for line in path.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdigit()}
