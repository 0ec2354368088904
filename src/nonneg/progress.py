"""Progress bars with time left, on stderr; results go to stdout."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

T = TypeVar("T")
console = Console(stderr=True)


@contextmanager
def bar(description: str, total: int) -> Iterator[Callable[..., None]]:
    """A bar for `total` units of work; call what it yields as `advance(n, note)`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total, note="")

        def advance(n: int = 1, note: str | None = None) -> None:
            if note is None:
                progress.update(task, advance=n)
            else:
                progress.update(task, advance=n, note=note)

        yield advance


def track(items: Iterable[T], description: str, total: int) -> Iterator[T]:
    """Yield `items` while a bar advances."""
    with bar(description, total) as advance:
        for item in items:
            yield item
            advance()
