"""One self-contained HTML page about a run: words first, then charts, then every setting."""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from p3o.errors import UserError
from p3o.runs import (
    METRICS,
    SCORE_WINDOW,
    Array,
    Metric,
    Run,
    format_number,
    format_return,
    load_run,
    metric,
    window_mean,
)

MAX_DOTS = 1500
GRID_POINTS = 200
MAX_METRIC_POINTS = 300
FEW_POINTS = 30  # a small chart with no more than these marks each one
TABLE_ROWS = 25
LOG_RATIO = 300.0  # a positive quantity that spans more than this is drawn on a logarithmic axis
PLOT = 1000.0  # side of the square that charts are drawn in; the page stretches it to its place


class Axis(NamedTuple):
    """From numbers to places between 0 and PLOT."""

    low: float
    high: float
    is_log: bool
    ticks: list[tuple[float, str]]  # place in percent, label

    @property
    def label_chars(self) -> int:
        return max([5, *(len(label) for _, label in self.ticks)])

    def place(self, values: Array) -> Array:
        values = np.log10(values) if self.is_log else values
        return (values - self.low) / (self.high - self.low) * PLOT


class Chart(NamedTuple):
    """Everything the template needs to draw one chart; paths are in PLOT units with y downwards."""

    key: str  # names its parts in the page, so never anything from outside
    column: str
    names: Metric
    description: str
    x: Axis
    y: Axis
    line: str
    dots: str
    marks: str  # evaluation points
    points: list[list[Any]]
    last: str


def write_report(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Write the page about a run, `report.html` in its folder unless `out` says where; returns its path."""
    page = render_report(load_run(run_dir))
    path = Path(out) if out is not None else Path(run_dir) / "report.html"
    if path.is_dir():
        raise UserError(f"{path}: is a folder, should be the name of an HTML file")
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(page.encode("utf-8", "replace"))  # JSON may hold half a surrogate pair
        os.replace(part, path)  # a reader never sees half a page
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error
    return path


def render_report(run: Run) -> str:
    """The page as text; it depends on nothing but the run's files."""
    environment = Environment(
        loader=PackageLoader("p3o"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    charts = metric_charts(run)
    curve = learning_curve(run)
    config = run.config
    algo = algorithm_name(run)
    return environment.get_template("report.html.j2").render(
        title=f"{algo} on {run.env_id}",
        facts=[f"seed {config.get('seed', '–')}", f"preset {config.get('preset', '–')}"]
        + ([f"variant {config['variant']}"] if config.get("variant") else [])
        + ([str(config["started"]).replace("T", " ")[:16]] if config.get("started") else []),
        summary=summary(run),
        tiles=tiles(run),
        curve=curve,
        curve_table=curve_table(run),
        charts=charts,
        chart_table=chart_table(run, charts),
        settings=rows(config.get("settings", {})),
        environment=rows(config["env"]),
        provenance=[("Versions", rows(config.get("versions", {}))), ("Machine", rows(config.get("machine", {})))],
        command=config.get("command", ""),
        warnings=warnings(run),
        points={chart.key: chart.points for chart in [curve, *charts] if chart},
    )


def algorithm_name(run: Run) -> str:
    return str(run.config.get("algo", "unknown algorithm")).upper()


def summary(run: Run) -> list[str]:
    """The run in a few sentences."""
    config, episodes = run.config, run.episodes
    asked = config.get("steps")
    of = f" of the {asked:,.0f} asked for" if asked and not run.is_finished else ""
    took = f" It took {_duration(episodes['seconds'][-1])}" if episodes["step"].size else ""
    speed = _speed(run)
    at = f", at {speed:,.0f} steps a second" if took and math.isfinite(speed) else ""
    first = f"{algorithm_name(run)} was trained on {run.env_id} for {run.last_step:,} environment steps{of}."
    sentences = [first + (f"{took}{at}." if took else ""), _score_sentence(run)]
    sentences.append(_replay_sentence(run) if config.get("algo") == "p3o" else "")
    return [sentence for sentence in sentences if sentence]


def _score_sentence(run: Run) -> str:
    count = run.episodes["step"].size
    if count == 0:
        return "No episode has ended yet, so there is no score."
    if count == 1:
        return f"Only one episode has ended; its return was {format_return(run.episodes['return_'][0])}."
    used = min(count, SCORE_WINDOW)
    which = f"the last {used} of its {count:,} episodes" if count > used else f"all of its {count} episodes"
    best, step = _best(run)
    peak = f" The curve was highest at step {step:,}, with {format_return(best)}." if math.isfinite(best) else ""
    return f"Its final score, the mean return of {which}, is {format_return(_score(run))}.{peak}"


def _replay_sentence(run: Run) -> str:
    """ESS, c and λ for a newcomer, from the mean of the last tenth of the updates that used replay."""
    ess, clip, weight = (_settled(run.updates.get(name)) for name in ("ess", "is_clip", "kl_coef"))
    if not math.isfinite(ess):
        return ""
    worth = f"The effective sample size settled at {ess:.2f}: replayed data were worth {ess:.0%}".replace("%", " %")
    if not (math.isfinite(clip) and math.isfinite(weight)):
        return f"{worth} of fresh data."
    follows = abs(clip - ess) < 0.005 and abs(weight - (1 - ess)) < 0.005
    link = "so" if follows else "while in this run"
    return f"{worth} of fresh data, {link} the clip c was {clip:.2f} and the KL weight λ {weight:.2f}."


def tiles(run: Run) -> list[tuple[str, str, str]]:
    """Name, value and footnote of the numbers that stand out."""
    count = run.episodes["step"].size
    best, step = _best(run)
    took = _duration(run.episodes["seconds"][-1]) if count else "–"
    episodes = f"last {min(count, SCORE_WINDOW)} episodes" if count != 1 else "one episode"
    return [
        ("Final score", format_return(_score(run)), episodes if count else "no episode yet"),
        ("Best", format_return(best), f"at step {step:,}" if math.isfinite(best) else ""),
        ("Steps", f"{run.last_step:,}", f"in {count:,} episode{'' if count == 1 else 's'}"),
        ("Time", took, f"{_speed(run):,.0f} steps/s" if math.isfinite(_speed(run)) else ""),
    ]


def warnings(run: Run) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = []
    count = run.episodes["step"].size
    if count < SCORE_WINDOW:
        rests = f"rests on {count}" if count else "does not exist yet"
        found.append(f"Fewer than {SCORE_WINDOW} episodes have ended, so the final score {rests}.")
    if not run.is_finished:
        asked = run.config["steps"]
        found.append(f"The run is not finished: its files end at step {run.last_step:,} of {asked:,.0f}.")
    if run.non_finite:
        found.append(f"Values that are not finite numbers were recorded in {', '.join(run.non_finite)}.")
    return found


def learning_curve(run: Run) -> Chart | None:
    """Single episodes as dots, the mean of the last 100 as a line, evaluations as marks; None without episodes."""
    steps, returns = run.episodes["step"], run.episodes["return_"]
    is_finite = np.isfinite(returns)
    if not is_finite.any():
        return None
    grid = curve_grid(run)
    mean = window_mean(steps, returns, grid)
    kept = _thin(np.flatnonzero(is_finite), MAX_DOTS)
    marks = evaluation_means(run)
    x = step_axis(run, 8)
    y = value_axis(np.concatenate([returns[kept], mean, marks[:, 1]]), 7)
    line_x, line_y = x.place(grid), y.place(mean)
    first, last = (format_return(v) for v in (returns[is_finite][0], mean[-1]))
    return Chart(
        key="curve-of-returns",
        column="return",
        names=Metric("return", "Learning curve", "Return of each episode against environment steps."),
        description=f"The first episode returned {first}; the mean of the last 100 at step {grid[-1]:,} is {last}.",
        x=x,
        y=y,
        line=line_path(line_x, line_y),
        dots=dot_path(x.place(steps[kept]), y.place(returns[kept])),
        marks=dot_path(x.place(marks[:, 0]), y.place(marks[:, 1])),
        points=_points(line_x, line_y, [_said(s, v, marks) for s, v in zip(grid, mean, strict=True)]),
        last=last,
    )


def _said(step: int, value: float, marks: Array) -> list[str]:
    """What the cursor on the learning curve says, with the latest evaluation where there is one."""
    before = marks[marks[:, 0] <= step]
    evaluation = [f"evaluation at {before[-1, 0]:,.0f}: {format_return(before[-1, 1])}"] if len(before) else []
    return [f"step {step:,}", f"mean of last 100: {format_return(value)}", *evaluation]


def metric_charts(run: Run) -> list[Chart]:
    """A small chart for each column of updates.csv that has a number in it, the known ones first."""
    order = [name for name in METRICS if name in run.updates]
    order += [name for name in run.updates if name not in METRICS and name != "step"]
    order = [name for name in order if np.isfinite(run.updates[name]).any()]
    return [_metric_chart(run, name, f"metric-{i}") for i, name in enumerate(order)]


def _metric_chart(run: Run, name: str, key: str) -> Chart:
    steps, values = _bucket_means(run.updates["step"], run.updates[name], MAX_METRIC_POINTS)
    known = values[np.isfinite(values)]
    x, y = step_axis(run, 4), value_axis(values, 5, may_be_log=True)
    line_x, line_y = x.place(steps), y.place(values)
    first, last, low, high = (format_number(v) for v in (known[0], known[-1], known.min(), known.max()))
    return Chart(
        key=key,
        column=name,
        names=metric(name),
        description=f"From {first} to {last}; lowest {low}, highest {high}.",
        x=x,
        y=y,
        line=line_path(line_x, line_y),
        dots=dot_path(line_x, line_y) if known.size <= FEW_POINTS else "",
        marks="",
        points=_points(
            line_x, line_y, [[f"step {s:,.0f}", format_number(v)] for s, v in zip(steps, values, strict=True)]
        ),
        last=last,
    )


def curve_grid(run: Run) -> Array:
    """Steps at which the curve is drawn: evenly spaced from the first finished episode to the last step."""
    return np.unique(np.linspace(run.episodes["step"][0], run.last_step, GRID_POINTS).astype(int))


def evaluation_means(run: Run) -> Array:
    """Step and mean return of each evaluation, [number of evaluations, 2]."""
    if run.evaluations is None or not run.evaluations["step"].size:
        return np.empty((0, 2))
    steps, index = np.unique(run.evaluations["step"], return_inverse=True)
    mean = np.bincount(index, run.evaluations["return_"]) / np.bincount(index)
    return np.stack([steps, mean], axis=1)[np.isfinite(mean)]


def curve_table(run: Run) -> list[tuple[str, str]]:
    if not run.episodes["step"].size:
        return []
    grid = _thin(curve_grid(run), TABLE_ROWS)
    mean = window_mean(run.episodes["step"], run.episodes["return_"], grid)
    return [(f"{step:,}", format_return(value)) for step, value in zip(grid, mean, strict=True)]


def chart_table(run: Run, charts: list[Chart]) -> list[list[str]]:
    """The numbers behind the small charts, first cell the step."""
    names = [chart.column for chart in charts]
    kept = _thin(np.arange(run.updates["step"].size), TABLE_ROWS)
    return [[f"{run.updates['step'][i]:,.0f}", *(format_number(run.updates[n][i]) for n in names)] for i in kept]


def rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values as text, a value that is not a plain string as JSON."""
    return [(str(k), v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in settings.items()]


def step_axis(run: Run, count: int) -> Axis:
    """The x axis of every chart: all the steps that were asked for, so that an unfinished run looks unfinished."""
    return linear_axis(0, max(run.last_step, run.config.get("steps", 0), 1), count, label=_short)


def value_axis(values: Array, count: int, may_be_log: bool = False) -> Axis:
    """A y axis around finite values, with a little room above and below."""
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if may_be_log and low > 0 and high / low > LOG_RATIO:
        return _log_axis(low, high)
    is_flat = high - low <= 1e-9 * abs(high)
    room = (abs(high) * 0.1 or 1.0) if is_flat else 0.06 * (high - low)
    return linear_axis(low - room, high + room, count)


def linear_axis(low: float, high: float, count: int, label: Callable[[float], str] | None = None) -> Axis:
    """An axis with ticks at about `count` round numbers."""
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    gap = next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= rough * 0.999)
    first = math.ceil(low / gap - 1e-9)
    numbers = [gap * i for i in range(first, math.floor(high / gap + 1e-9) + 1)]
    label = label or _tick
    return Axis(low, high, False, [((n - low) / (high - low) * 100, label(n)) for n in numbers])


def _log_axis(low: float, high: float) -> Axis:
    begin, end = math.log10(low) - 0.1, math.log10(high) + 0.1
    powers = range(math.ceil(begin), math.floor(end) + 1)
    every = math.ceil(len(powers) / 5)
    ticks = [((p - begin) / (end - begin) * 100, _tick(10.0**p)) for p in powers[::every]]
    return Axis(begin, end, True, ticks)


def line_path(x: Array, y: Array) -> str:
    """An SVG path through the points, broken where one is not finite; a lone point becomes a dot."""
    parts, is_open = [], False
    for i in range(len(x)):
        if not (np.isfinite(x[i]) and np.isfinite(y[i])):
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{x[i]:.1f} {PLOT - y[i]:.1f}")
        ends_here = i + 1 == len(x) or not np.isfinite(y[i + 1])
        if not is_open and ends_here:
            parts.append("h0")
        is_open = True
    return "".join(parts)


def dot_path(x: Array, y: Array) -> str:
    """Dots as one SVG path of lines without length: round caps keep them round however the chart is stretched."""
    pairs = zip(x, y, strict=True)
    return "".join(f"M{a:.0f} {PLOT - b:.0f}h0" for a, b in pairs if math.isfinite(a) and math.isfinite(b))


def _points(x: Array, y: Array, said: list[list[str]]) -> list[list[Any]]:
    """For the reader's cursor: place in percent from the left and from the top, then what to say there."""
    left, top = np.round(x / PLOT * 100, 2), np.round(100 - y / PLOT * 100, 2)
    return [[float(left[i]), float(top[i]), *said[i]] for i in np.flatnonzero(np.isfinite(y))]


def _bucket_means(steps: Array, values: Array, limit: int) -> tuple[Array, Array]:
    """At most `limit` points: means over neighbouring lines, so that a long run is thinned without losing its level."""
    if steps.size <= limit:
        return steps, np.where(np.isfinite(values), values, np.nan)
    edges = np.linspace(0, steps.size, limit + 1).astype(int)[:-1]
    is_finite = np.isfinite(values)
    count = np.add.reduceat(is_finite, edges, dtype=int)
    total = np.add.reduceat(np.where(is_finite, values, 0.0), edges)
    last = np.append(edges[1:], steps.size) - 1
    return steps[last], np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _thin(values: Array, limit: int) -> Array:
    """At most `limit` of the values, evenly spaced, with both ends."""
    if len(values) <= limit:
        return values
    return values[np.linspace(0, len(values) - 1, limit).astype(int)]


def _score(run: Run) -> float:
    return float(window_mean(run.episodes["step"], run.episodes["return_"], run.last_step))


def _best(run: Run) -> tuple[float, int]:
    """The highest mean of 100 episodes and its step; shorter means count only while there are no full ones."""
    steps = run.episodes["step"]
    full = steps[min(SCORE_WINDOW, steps.size) - 1 :] if steps.size else steps
    mean = window_mean(steps, run.episodes["return_"], full)
    if not np.isfinite(mean).any():
        return math.nan, 0
    best = int(np.nanargmax(mean))
    return float(mean[best]), int(full[best])


def _speed(run: Run) -> float:
    """Steps over seconds of the whole run, as the terminal has it; of the logging intervals where no episode ended."""
    seconds = run.episodes["seconds"]
    if seconds.size and seconds[-1] > 0:
        return float(run.episodes["step"][-1] / seconds[-1])
    speed = run.updates.get("steps_per_second", np.empty(0))
    speed = speed[np.isfinite(speed)]
    return float(np.median(speed)) if speed.size else math.nan


def _settled(values: Array | None) -> float:
    known = values[np.isfinite(values)] if values is not None else np.empty(0)
    return float(known[-max(known.size // 10, 1) :].mean()) if known.size else math.nan


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"


def _short(steps: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.4g}{unit}"
    return f"{steps:.4g}"


def _tick(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.10g}"
