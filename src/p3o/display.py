"""What the user sees while a run trains: a live panel on a terminal, else plain lines, always on standard error."""

import math
import sys
import time
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol, get_args

from rich.console import Console
from rich.live import Live

from p3o.errors import UserError, nearest
from p3o.panel import History, Status, render_panel, status_line

Kind = Literal["auto", "live", "plain", "none"]
Clock = Callable[[], float]
REDRAW_SECONDS = 0.25
LINE_SECONDS = 5.0


class Header(NamedTuple):
    """What is said once, when a run starts."""

    title: str  # "P3O on HalfCheetah-v5, seed 0"
    lines: list[str]  # facts: run folder, replay size, settings
    total_steps: int


class Display(Protocol):
    """Where the training loop reports to; `update` is cheap enough to be called at every iteration."""

    def start(self, header: Header) -> None: ...
    def update(self, status: Status) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


def make_display(kind: Kind = "auto", console: Console | None = None, clock: Clock = time.monotonic) -> Display:
    """A display of the given kind; `auto` is live on a terminal that can move its cursor, else plain."""
    if kind not in get_args(Kind):
        raise UserError(
            f"display {kind!r} is unknown; it is one of {', '.join(get_args(Kind))}{nearest(kind, get_args(Kind))}"
        )
    if kind == "none":
        return NoDisplay()
    console = console or Console(stderr=True)
    if kind == "auto":
        # The file is asked, not rich, which also says yes to FORCE_COLOR in a log of continuous integration.
        kind = "live" if console.file.isatty() and not console.is_dumb_terminal else "plain"
    return LiveDisplay(console, clock) if kind == "live" else PlainDisplay(console, clock)


class NoDisplay:
    """Shows nothing."""

    def start(self, header: Header) -> None: ...
    def update(self, status: Status) -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


class PlainDisplay:
    """A line for the first status, then one every five seconds, and one for the last."""

    def __init__(self, console: Console, clock: Clock = time.monotonic):
        self._console = console
        self._clock = clock
        self._next = -math.inf
        self._status: Status | None = None
        self._is_printed = True

    def start(self, header: Header) -> None:
        for line in [header.title, *header.lines]:
            self.message(line)

    def update(self, status: Status) -> None:
        self._status, self._is_printed = status, False
        now = self._clock()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self._print()

    def message(self, text: str) -> None:
        _print_line(self._console, text)

    def stop(self) -> None:
        if not self._is_printed:
            self._print()

    def _print(self) -> None:
        assert self._status is not None
        line = status_line(self._status)
        if not self._console.encoding.lower().startswith("utf"):
            line = line.replace("λ", "lambda").replace("–", "-").replace("∞", "inf")
        _print_line(self._console, line)
        self._is_printed = True


class LiveDisplay:
    """A panel that is redrawn in place at most four times a second and stays on screen at the end."""

    def __init__(self, console: Console, clock: Clock = time.monotonic):
        self._console = console
        self._clock = clock
        self._next = -math.inf
        self._status: Status | None = None
        self._title = ""
        self._history = History()
        # Standard output is kept out of the way only where it shares the screen with the panel.
        shares_screen = sys.stdout is not None and sys.stdout.isatty()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=shares_screen)

    def start(self, header: Header) -> None:
        self._title = header.title
        for line in header.lines:
            self.message(line)
        self._live.start()

    def update(self, status: Status) -> None:
        self._status = status
        now = self._clock()
        if now < self._next:
            return
        self._draw()
        self._next = self._clock() + REDRAW_SECONDS  # after drawing, so that a slow terminal cannot eat the run

    def message(self, text: str) -> None:
        _print_line(self._console, text)

    def stop(self) -> None:
        if self._status is not None and self._live.is_started:
            self._draw()
        self._live.stop()

    def _draw(self) -> None:
        assert self._status is not None
        self._history.add(self._status)
        size = self._console.size
        panel = render_panel(self._title, self._status, self._history, size.width, size.height)
        self._live.update(panel, refresh=True)


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)
