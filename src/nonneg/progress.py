"""Progress with time left, on stderr; results go to stdout. A bar in a terminal, elsewhere a line now and then."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")
console = Console(stderr=True)
EVERY = 30.0  # seconds between two lines where there is no terminal, and those by which the pace is judged
BAR, NOTE = 24, 34  # characters of each, where there is room


class Pace:
    """How long the rest will take, by the work of the last half minute, or by the last step if that took longer."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self.seen = deque([(time.monotonic(), done)])  # when, and how much was done then

    def advance(self, n: int) -> None:
        self.done += n
        if n:
            self.seen.append((time.monotonic(), self.done))
        while len(self.seen) > 2 and self.seen[1][0] < self.seen[-1][0] - EVERY:
            self.seen.popleft()

    def left(self) -> str:
        """h:mm:ss, or dashes before there is a pace."""
        (first, before), (last, after) = self.seen[0], self.seen[-1]
        return _clock((last - first) / (after - before) * (self.total - after)) if after > before else "-:--:--"


@contextmanager
def bar(description: str, total: int, *, done: int = 0) -> Iterator[Callable[..., None]]:
    """A bar for `total` units of work, of which some are `done`; call what it yields as `advance(n, note)`."""
    with (_bar if console.is_interactive else _lines)(description, Pace(total, done)) as advance:
        yield advance


@contextmanager
def _bar(description: str, pace: Pace) -> Iterator[Callable[..., None]]:
    """Count and times are always whole; where the terminal is narrow, the bar and then the texts beside it are cut."""
    room = console.width - len(f"{pace.total}/{pace.total} 0:00:00 left 00:00:00") - 3  # of label, bar and note
    label = _cut(description, max(room - 16, 8))
    wide = min(max(room - len(label) - NOTE, 4), BAR)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(wide),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
        TextColumn("left {task.fields[left]} {task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console) as live:
        task, said = live.add_task(label, total=pace.total, completed=pace.done, count="", left="", note=""), ""

        def advance(n: int = 1, note: str | None = None) -> None:
            nonlocal said
            pace.advance(n)
            said = said if note is None else _cut(note, room - len(label) - wide)
            live.update(task, advance=n, count=f"{pace.done}/{pace.total}", left=pace.left(), note=said)

        advance(0)
        yield advance


@contextmanager
def _lines(description: str, pace: Pace) -> Iterator[Callable[..., None]]:
    """A line every half minute, and one at the end of work that took longer."""
    began = told = time.monotonic()
    said = ""

    def advance(n: int = 1, note: str | None = None) -> None:
        nonlocal told, said
        pace.advance(n)
        said = said if note is None else note
        now = time.monotonic()
        if now - told >= EVERY or (pace.done >= pace.total and n and told > began):
            told = now
            times = f"{_clock(now - began)}, left {pace.left()}"
            text = f"{description}: {pace.done}/{pace.total} {times} {said}".rstrip()
            say(text)

    yield advance


def _clock(seconds: float) -> str:
    minutes, s = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{s:02}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yield `items` while a bar advances."""
    with bar(description, total) as advance:
        for item in items:
            yield item
            advance()


SAID: set[str] = set()


def say_once(text: str) -> None:
    """`say`, unless it was said before: a fall-back holds for every run and probe of a process."""
    if text not in SAID:
        SAID.add(text)
        say(text)


def say(text: str) -> None:
    """One line for the user, on stderr."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
