"""What a user did wrong, said in one sentence."""

import difflib
from collections.abc import Iterable, Sequence

MOST_SHOWN = 60  # options that are listed where there are more


class BadInput(ValueError):
    """What was given cannot be used; the message says what was wrong, where, and what to do."""


def listed(names: Sequence[str], most: int = 20) -> str:
    """The names with commas between them, of many the first and how many more."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def unknown(kind: str, name: str, options: Iterable[str]) -> BadInput:
    """The error for a name that does not exist, with the nearest one that does."""
    options = sorted(options)
    near = difflib.get_close_matches(name, options, n=1, cutoff=0.4)
    known = f"one of {listed(options, MOST_SHOWN)}"
    hint = f"did you mean {near[0]!r}? ({known})" if near else f"give {known}"
    return BadInput(f"unknown {kind} {name!r}: {hint}")
