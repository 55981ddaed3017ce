"""How a run's standing looks: one line, or a panel with progress, learning curve and metrics for a terminal."""

import math
from typing import NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from p3o.runs import Array
from p3o.wording import format_clock, format_number, format_return, metric

MAX_WIDTH = 120  # a wider panel is harder to read, not easier
CHART_ROWS = (6, 10)  # the metrics make room for the fewer, more are no better
SPARK_COLUMNS = (6, 40)
VALUE_COLUMNS = 9
OWN_ROW = frozenset({"steps_per_second"})  # shown beside the progress bar, so not again among the metrics
LINE_METRICS = ("ess", "kl_coef", "kl", "entropy")
FIRST_METRICS = ("ess", "kl_coef", "is_clip", "kl", "entropy", "off_policy_updates", "value_loss", "policy_loss")
SPARKS = "▁▂▃▄▅▆▇█"
BRAILLE = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # the bit of each dot: [row of 4][column of 2]


class Status(NamedTuple):
    """Where a run stands."""

    step: int
    total_steps: int
    episodes: int
    mean_return: float  # of the last 100 episodes; NaN before the first
    mean_length: float
    steps_per_second: float  # since this start or resume
    seconds: float  # of training, over all of them
    curve: tuple[Array, Array]  # steps, mean of the last 100 returns there
    metrics: dict[str, float]  # in the order and by the names of updates.csv; NaN where nothing happened


class History:
    """Past metrics for the sparklines: the whole run at a spacing that doubles when it gets long."""

    def __init__(self, capacity: int = 256):
        self._capacity = capacity
        self._every = 1
        self._count = 0
        self._rows: list[dict[str, float]] = []
        self._step = -1

    def add(self, status: Status) -> None:
        if status.step == self._step:
            return
        self._step = status.step
        if self._count % self._every == 0:
            self._rows.append(dict(status.metrics))
        self._count += 1
        if len(self._rows) > self._capacity:
            self._rows = self._rows[::2]
            self._every *= 2

    def values(self, name: str) -> list[float]:
        return [row[name] for row in self._rows if math.isfinite(row.get(name, math.nan))]


def status_line(status: Status) -> str:
    """One line that says where a run stands."""
    shown = [name for name in LINE_METRICS if name in status.metrics] or list(status.metrics)[:4]
    names = {"kl_coef": "λ"}
    parts = [
        f"step {status.step:,}/{status.total_steps:,}",
        f"return {format_return(status.mean_return)}",
        *(f"{names.get(n, n.replace('_', ' '))} {format_number(status.metrics[n], 2)}" for n in shown),
        f"{_rate(status)} steps/s",
        f"{format_clock(_seconds_left(status))} left",
    ]
    return "  ".join(parts)


def render_panel(title: str, status: Status, history: History, width: int, height: int) -> RenderableType:
    """The live panel for a terminal of the given size."""
    width = min(width, MAX_WIDTH)
    inner = width - 6  # border and padding
    facts = _facts(status, inner)
    parts: list[RenderableType] = [_progress(status, inner), *facts, "", _score(status, inner)]
    free = height - len(parts) - 6  # border, padding, x labels, blank line above the grid, the cursor's line
    grid, grid_rows = _metric_grid(status, history, inner, free - CHART_ROWS[0])
    rows = min(free - grid_rows, CHART_ROWS[1])
    if rows >= CHART_ROWS[0]:
        parts.append(_chart(status, inner, rows))
    if grid_rows:
        parts += ["", grid]
    body = Padding(Group(*parts), (1, 2, 0, 2))
    return Panel(
        body, title=Text(title, "bold not dim"), title_align="left", border_style="dim", width=width, padding=0
    )


def spark_line(values: list[float], width: int) -> str:
    """Values as a row of block characters of the given width at most, averaged where there are more."""
    if not values or width < 1:
        return ""
    means = np.array([chunk.mean() for chunk in np.array_split(np.array(values), min(width, len(values)))])
    low, span = means.min(), np.ptp(means)
    if span <= 1e-9 * np.abs(means).max():
        return SPARKS[3] * len(means)
    return "".join(SPARKS[round(level)] for level in (means - low) / span * (len(SPARKS) - 1))


def braille_chart(x: Array, y: Array, width: int, height: int) -> list[str]:
    """A line through finite points (x increasing) as rows of braille characters, two by four dots each."""
    columns, levels = 2 * width, 4 * height
    at = np.interp(np.linspace(x[0], x[-1], columns), x, y)
    span = np.ptp(at)
    dots = np.rint((at - at.min()) / span * (levels - 1)).astype(int) if span > 0 else np.full(columns, levels // 2)
    cells = np.zeros((height, width), int)
    previous = dots[0]
    for column, dot in enumerate(dots):
        # The line is closed by filling from its neighbour to it, or a steep part would fall into dots.
        begin, end = sorted((int(dot), int(previous + np.sign(dot - previous))))
        for level in range(begin, end + 1):
            row = levels - 1 - level
            cells[row // 4, column // 2] |= BRAILLE[row % 4][column % 2]
        previous = dot
    # A space instead of the empty braille cell, which some fonts draw as faint rings.
    return ["".join(chr(0x2800 + cell) if cell else " " for cell in row) for row in cells]


def _rate(status: Status) -> str:
    return f"{status.steps_per_second:,.0f}" if math.isfinite(status.steps_per_second) else "–"


def _seconds_left(status: Status) -> float:
    left = max(status.total_steps - status.step, 0)
    if left == 0:
        return 0.0
    return left / status.steps_per_second if status.steps_per_second > 0 else math.nan


def _progress(status: Status, inner: int) -> RenderableType:
    share = min(status.step / status.total_steps, 1.0) if status.total_steps > 0 else 1.0
    counts = Text.assemble((f"{status.step:,}", "bold"), (f" / {status.total_steps:,}", "dim"), f"  {share:4.0%}")
    row = Table.grid(padding=(0, 2, 0, 0))
    bar = ProgressBar(
        1.0, share, width=max(inner - counts.cell_len - 2, 8), complete_style="cyan", finished_style="green"
    )
    row.add_row(bar, counts)
    return row


def _facts(status: Status, inner: int) -> list[Text]:
    """Times, speed and episodes, on as many lines as they need."""
    length = round(status.mean_length, 1)
    facts = [
        (format_clock(status.seconds), "elapsed"),
        (format_clock(_seconds_left(status)), "left"),
        (_rate(status), "steps/s"),
        (f"{status.episodes:,}", "episodes"),
        (format_number(length), "steps each"),
    ]
    lines = [Text()]
    for value, name in facts:
        fact = Text.assemble(value, " ", (name, "dim"))
        if lines[-1].cell_len + fact.cell_len + 3 > inner:
            lines.append(Text())
        lines[-1].append("   " if lines[-1] else "").append_text(fact)
    return lines


def _score(status: Status, inner: int) -> Text:
    if status.episodes == 0:
        return Text("no episode has ended yet", "dim")
    of = f"the last {min(status.episodes, 100)} episodes" if status.episodes > 1 else "the first episode"
    line = Text.assemble("return ", (format_return(status.mean_return), "bold cyan"), (f"   mean of {of}", "dim"))
    line.truncate(inner)
    return line


def _chart(status: Status, inner: int, rows: int) -> Text:
    """The learning curve so far with the ends of both axes labelled."""
    x, y = (np.asarray(a, float) for a in status.curve)
    is_finite = np.isfinite(y)
    x, y = x[is_finite], y[is_finite]
    if x.size < 2 or x[0] == x[-1]:
        return Text("\n" * rows)  # the panel keeps its height when the first points come
    top, bottom = format_return(y.max()), format_return(y.min())
    margin = max(len(top), len(bottom))
    width = inner - margin - 2
    chart = Text(no_wrap=True)
    for i, line in enumerate(braille_chart(x, y, width, rows)):
        label, tick = (top, "┤") if i == 0 else (bottom, "┤") if i == rows - 1 else ("", "│")
        chart.append(f"{label:>{margin}} {tick}", "dim").append(f"{line}\n", "cyan")
    left, right = f"{x[0]:,.0f}", f"step {x[-1]:,.0f}"
    chart.append(f"{'':>{margin + 2}}{left}{right:>{max(width - len(left), 1)}}", "dim")
    return chart


def _metric_grid(status: Status, history: History, inner: int, max_rows: int) -> tuple[Table, int]:
    """The algorithm's own numbers as label, value and sparkline, the most telling first, and the rows they take."""
    others = [name for name in status.metrics if name not in OWN_ROW and name not in FIRST_METRICS]
    names = [name for name in FIRST_METRICS if name in status.metrics] + others
    labels = {name: metric(name).symbol for name in names}
    label_columns = max(map(len, labels.values()), default=0)
    fixed = label_columns + VALUE_COLUMNS + 4
    groups = 2 if inner // 2 >= fixed + SPARK_COLUMNS[0] else 1
    rows = min(math.ceil(len(names) / groups), max(max_rows, 2))
    spark_columns = min(inner // groups - fixed, SPARK_COLUMNS[1])
    grid = Table.grid(padding=(0, 1), pad_edge=False)
    for _ in range(groups):
        grid.add_column(width=label_columns, style="dim", no_wrap=True)
        grid.add_column(width=VALUE_COLUMNS, justify="right", no_wrap=True)
        grid.add_column(width=max(spark_columns, 0) + 1, style="cyan", no_wrap=True)
    for i in range(rows):
        cells = []
        for name in names[: rows * groups][i::rows]:
            cells += [
                labels[name],
                format_number(status.metrics[name]),
                spark_line(history.values(name), spark_columns),
            ]
        grid.add_row(*cells)
    return grid, rows
