"""What the user sees while a sweep runs: a live table on a terminal, else plain lines, always on standard error."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from p3o.sweeps.plan import Run, State, seconds_left, sweep_seconds_left
from p3o.wording import format_clock, format_return

Clock = Callable[[], float]
REDRAW_SECONDS = 0.5
LINE_SECONDS = 30.0
FIXED_ROWS = 8  # title, bar, blank lines, heading of the table, what is folded, the cursor's line
BAR_COLUMNS = 16
WIDE = 90  # columns of a terminal in which all of that fits
HEADINGS = ("step", "return", "steps/s", "left", "state")
STYLES = {"running": "cyan", "failed": "red", "waiting": "dim", "finished": "green"}
ORDER: tuple[State, ...] = ("running", "failed", "waiting")  # in the table; finished runs are only counted


class Board(Protocol):
    """Where a sweep reports to."""

    def update(self, runs: Sequence[Run], workers: int) -> None: ...
    def say(self, what: str, run: Run, reason: str = "") -> None: ...
    def message(self, text: str) -> None: ...
    def stop(self) -> None: ...


def make_board(title: str, console: Console | None = None, clock: Clock = time.monotonic) -> Board:
    """A live table on a terminal that can move its cursor, else plain lines."""
    console = console or Console(stderr=True)
    is_live = console.file.isatty() and not console.is_dumb_terminal
    return LiveBoard(title, console, clock) if is_live else PlainBoard(title, console, clock)


def news(what: str, run: Run, reason: str = "") -> str:
    """One line about a run that has started, ended or died."""
    if what == "finished":
        said = [f"finished  {run.name}", *_score(run)]
        return "  ".join(said)
    if what == "resume":
        return f"resume    {run.name}  from step {run.saved_step:,}"
    if what == "again":
        return f"again     {run.name}  from step {run.step:,}: {reason}"
    return f"{what:<8}  {run.name}" + (f": {reason}" if reason else "")


def _score(run: Run) -> list[str]:
    score = [] if run.mean_return is None else [f"return {format_return(run.mean_return)}"]
    return score + ([] if run.steps_per_second is None else [f"{run.steps_per_second:,.0f} steps/s"])


def scores(runs: Sequence[Run]) -> list[str]:
    """What finished runs came to, a line for each environment and algorithm: the table counts them only."""
    found: dict[str, list[float]] = {}
    for run in runs:
        if run.state == "finished" and run.mean_return is not None:
            found.setdefault(" ".join(run.folder.parts[-3:-1]), []).append(run.mean_return)
    most = max(map(len, found), default=0)
    return [f"{name:<{most}}  return {_mean(values)}" for name, values in found.items()]


def _mean(values: list[float]) -> str:
    mean = format_return(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({format_return(min(values))} to {format_return(max(values))})"


def progress(runs: Sequence[Run]) -> float:
    """The share of all steps that is done."""
    return sum(min(r.step, r.job.steps) for r in runs) / sum(r.job.steps for r in runs)


def summary(runs: Sequence[Run], workers: int) -> str:
    """Counts, share and time left of the whole sweep, in one line."""
    counts = Counter(run.state for run in runs)
    parts = [f"{counts['finished']}/{len(runs)} finished"]
    parts += [f"{counts[state]} {state}" for state in ("running", "waiting", "failed") if counts[state]]
    return f"{', '.join(parts)}  {math.floor(100 * progress(runs))} %  {_left(runs, workers)} left"


def _left(runs: Sequence[Run], workers: int) -> str:
    return format_clock(sweep_seconds_left(runs, workers))


class PlainBoard:
    """A line for each run that starts or ends, and a summary every half minute."""

    def __init__(self, title: str, console: Console, clock: Clock = time.monotonic):
        self._console, self._clock = console, clock
        self._next = clock() + LINE_SECONDS
        self.message(title)

    def update(self, runs: Sequence[Run], workers: int) -> None:
        now = self._clock()
        if now >= self._next:
            self._next = now + LINE_SECONDS
            self.message(summary(runs, workers))

    def say(self, what: str, run: Run, reason: str = "") -> None:
        self.message(news(what, run, reason))

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stop(self) -> None: ...


class LiveBoard:
    """A table that is redrawn in place; what went wrong is printed above it and stays."""

    def __init__(self, title: str, console: Console, clock: Clock = time.monotonic):
        self._title, self._console, self._clock = title, console, clock
        self._next = -math.inf
        self._latest: tuple[Sequence[Run], int] | None = None
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False)
        self._live.start()

    def update(self, runs: Sequence[Run], workers: int) -> None:
        self._latest = (runs, workers)
        if self._clock() >= self._next:
            self._draw()
            self._next = self._clock() + REDRAW_SECONDS  # after drawing: a slow terminal is not to eat the sweep

    def say(self, what: str, run: Run, reason: str = "") -> None:
        if what in ("failed", "again"):
            self.message(news(what, run, reason))

    def message(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def stop(self) -> None:
        if self._live.is_started:
            if self._latest is not None:
                self._draw()
            self._live.stop()
            for line in scores(self._latest[0]) if self._latest is not None else ():
                self.message(line)

    def _draw(self) -> None:
        assert self._latest is not None
        size = self._console.size
        self._live.update(render(self._title, *self._latest, size.width, size.height), refresh=True)


def render(title: str, runs: Sequence[Run], workers: int, width: int, height: int) -> RenderableType:
    """The table for a terminal of the given size: running ones first, as many as fit, the rest as counts."""
    rows = max(height - FIXED_ROWS, 1)
    shown = sorted((r for r in runs if r.state in ORDER), key=lambda r: ORDER.index(r.state))
    is_folded = len(shown) > rows
    rest = [_cells(run, runs) for run in shown[:rows]]
    widths = [max([len(name), *(len(cells[i]) for cells in rest)]) for i, name in enumerate(HEADINGS)]
    bar_columns = BAR_COLUMNS if width >= WIDE else BAR_COLUMNS // 4
    free = max(width - bar_columns - sum(widths) - 2 * (len(widths) + 1), 8)  # for names, which give way
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("run", no_wrap=True)
    table.add_column("", width=bar_columns)
    for name, columns in zip(HEADINGS, widths, strict=True):
        table.add_column(name, no_wrap=True, justify="right", width=columns)
    for run, cells in zip(shown, rest, strict=False):
        style = STYLES[run.state]
        share = min(run.step / run.job.steps, 1.0)
        bar = ProgressBar(1.0, share, width=bar_columns, complete_style=style, finished_style="green")
        said = run.name if len(run.name) <= free else "…" + run.name[1 - free :]  # the seed is at the end
        table.add_row(Text(said, "" if run.state == "running" else style), bar, *cells[:-1], Text(cells[-1], style))
    parts: list[RenderableType] = [Text(title, "bold", no_wrap=True, overflow="ellipsis"), _bar(runs, workers, width)]
    if shown:
        parts += ["", table]
    if is_folded:
        parts.append(Text(f"and {_fold(shown[rows:])}", "dim"))
    return Group(*parts)


def _fold(runs: Sequence[Run]) -> str:
    counts = Counter(run.state for run in runs)
    return ", ".join(f"{counts[state]} more {state}" for state in ORDER if counts[state])


def _cells(run: Run, runs: Sequence[Run]) -> list[str]:
    """What the table says about a run, in the order of HEADINGS."""
    return [
        f"{run.step:,}",
        "–" if run.mean_return is None else format_return(run.mean_return),
        f"{run.steps_per_second:,.0f}" if run.state == "running" and run.steps_per_second else "–",
        "–" if run.state == "failed" else format_clock(seconds_left(run, runs)),
        run.state,
    ]


def _bar(runs: Sequence[Run], workers: int, width: int) -> RenderableType:
    share = progress(runs)
    said = Text(summary(runs, workers))
    row = Table.grid(padding=(0, 2, 0, 0))
    columns = max(min(width, 120) - said.cell_len - 3, 8)
    row.add_row(ProgressBar(1.0, share, width=columns, complete_style="cyan", finished_style="green"), said)
    return row
