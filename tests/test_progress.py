"""Progress: time left is true for slow steps, a narrow terminal cuts no number, and a file gets a line now and then."""

import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from nonneg import progress


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def shown(monkeypatch: pytest.MonkeyPatch, *, width: int, terminal: bool) -> Callable[[], str]:
    """What is printed from now on, to a terminal of that width or to a file."""
    out = io.StringIO()
    options = {"color_system": None, "legacy_windows": False, "_environ": {"TERM": "xterm"}}
    console = Console(file=out, width=width, force_terminal=terminal, force_interactive=terminal, **options)  # type: ignore[arg-type]
    monkeypatch.setattr(progress, "console", console)
    return out.getvalue


@pytest.mark.parametrize("seconds", [0.01, 7.0, 45.0, 2000.0])
def test_time_left_is_that_of_the_steps_however_slow(seconds: float, clock: Clock) -> None:
    pace = progress.Pace(total=100, done=0)
    assert pace.left() == "-:--:--"
    for _ in range(40):
        clock.now += seconds
        pace.advance(1)
    assert pace.left() == progress._clock(60 * seconds)


def test_a_slow_beginning_is_forgotten_and_what_was_done_before_is_no_work(clock: Clock) -> None:
    pace = progress.Pace(total=1000, done=500)
    clock.now += 120  # the compiler
    pace.advance(1)
    assert pace.left() == progress._clock(499 * 120)
    for _ in range(100):
        clock.now += 1
        pace.advance(1)
    assert pace.left() == progress._clock(399)
    assert progress._clock(151 * 3600 + 61) == "151:01:01"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_shows_count_and_times_whole(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    read = shown(monkeypatch, width=width, terminal=True)
    with progress.bar("training digits-scratch-nce_mlp-search-lr12.8-s0", 78200, done=1234) as advance:
        advance(56, note="loss 5.123  alive 256  zeros 95%")
    *_, last = (text for text in re.split(r"[\r\n]|\x1b\[[?\d]*[A-Za-z]", read()) if text.strip())
    assert "1290/78200 0:00:0" in last and " left 0:" in last and last.startswith("train")
    assert len(last.rstrip()) <= width and "loss 5.123" in last
    assert ("zeros 95%" in last) == (width == 120)


def test_without_a_terminal_long_work_says_a_line_every_half_minute_and_short_work_nothing(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    read = shown(monkeypatch, width=80, terminal=False)
    assert list(progress.track(range(5), "short", 5)) == [0, 1, 2, 3, 4] and read() == ""
    with progress.bar("training cl-s0", 8) as advance:
        for i in range(8):
            clock.now += 20
            advance(1, note=f"loss {i}")
    assert read().splitlines() == [
        "training cl-s0: 2/8 0:00:40, left 0:02:00 loss 1",
        "training cl-s0: 4/8 0:01:20, left 0:01:20 loss 3",
        "training cl-s0: 6/8 0:02:00, left 0:00:40 loss 5",
        "training cl-s0: 8/8 0:02:40, left 0:00:00 loss 7",
    ]
