"""Charts of a study: curves over steps or wall time, what happened inside P3O, performance profiles."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from p3o.report.axes import Axis, band_path, line_path, linear_axis, log_axis, short_count, thin, tick, value_axis
from p3o.report.find import Group, Study, asked_steps, seconds_of, seed_of
from p3o.report.results import Efficiency, Overall
from p3o.runs import Array, Run, window_mean
from p3o.wording import Metric, format_number, format_return, metric

GRID_POINTS = 200
INSIDE_POINTS = 100
INSIDE = ("ess", "kl_coef", "is_clip", "kl", "entropy")
TABLE_ROWS = 20
COLOURS = 8  # --g0 to --g7 in study.css
DASHES = 4  # .dash-1 to .dash-3 there, and none


def colour_of(index: int) -> int:
    return index % COLOURS


def dash_of(index: int) -> int:
    """The dashes of a group's line; no two of the first 32 groups have both colour and dashes in common."""
    return (index + index // COLOURS) % DASHES


class Band(NamedTuple):
    """A line with what lies around it, on the grid of its chart."""

    mean: Array
    low: Array
    high: Array


class Series(NamedTuple):
    """One group in one chart; `on` is by kind of x: steps, time."""

    group: Group
    label: str
    colour: int
    on: dict[str, Band]
    seeds: list[tuple[str, dict[str, Array]]]


class StudyChart(NamedTuple):
    """A chart of several groups; `grid` and `x` are by kind of x, `y` by kind of scale."""

    key: str  # names its parts in the page, so never anything from outside
    title: str
    unit: str  # what y is
    description: str
    grid: dict[str, Array]
    x: dict[str, Axis]
    y: dict[str, Axis]
    series: list[Series]
    names: Metric | None = None

    def drawn(self, series: Series) -> tuple[str, str]:
        """Paths of band and line as the page opens: over steps, on the plain scale."""
        kind = next(iter(self.grid))
        if kind not in series.on:
            return "", ""
        x = self.x[kind].place(self.grid[kind])
        mean, low, high = (self.first_y.place(values) for values in series.on[kind])
        return band_path(x, low, high), line_path(x, mean)

    @property
    def first_y(self) -> Axis:
        return next(iter(self.y.values()))

    def points(self) -> dict[str, Any]:
        """The chart for the script that redraws it."""
        return {
            "grid": {kind: _numbers(grid) for kind, grid in self.grid.items()},
            "x": {kind: _axis(axis) for kind, axis in self.x.items()},
            "y": {kind: _axis(axis) for kind, axis in self.y.items()},
            "series": [
                {
                    "group": s.colour,
                    "on": {kind: [_numbers(values) for values in band] for kind, band in s.on.items()},
                    "seeds": [{kind: _numbers(values) for kind, values in by.items()} for _, by in s.seeds],
                }
                for s in self.series
            ],
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The lines as rows: x, then each group's mean."""
        kind = next(iter(self.grid))
        shown = [s for s in self.series if kind in s.on]
        kept = thin(np.arange(self.grid[kind].size), TABLE_ROWS)
        say = format_return if self.names is None and kind == "steps" else format_number
        head = ["step" if kind == "steps" else kind, *(s.label for s in shown)]
        rows = [[_x(self.grid[kind][i]), *(say(float(s.on[kind].mean[i])) for s in shown)] for i in kept]
        return head, rows


def _x(value: float) -> str:
    return f"{value:,.0f}" if value > 10 else f"{value:.3g}"


def learning_charts(study: Study) -> list[StudyChart]:
    """One chart per task; a task on which no episode has ended has none."""
    labels, groups = study.labels(), study.groups
    charts = [_learning_chart(study, task, f"task-{i}", labels, groups) for i, task in enumerate(study.tasks)]
    return [chart for chart in charts if chart]


def _learning_chart(
    study: Study, task: str, key: str, labels: dict[Group, str], groups: list[Group]
) -> StudyChart | None:
    cells = {group: study.cells[task, group] for group in study.groups_of(task)}
    runs = [run for cell in cells.values() for run in cell]
    end = max(max(run.last_step, asked_steps(run)) for run in runs)
    seconds = max((float(s[-1]) for s in map(seconds_of, runs) if s.size), default=0.0)
    grid = {"steps": np.unique(np.linspace(end / GRID_POINTS, end, GRID_POINTS).round()) if end else np.zeros(1)}
    if seconds > 0:
        grid["time"] = np.linspace(seconds / GRID_POINTS, seconds, GRID_POINTS)
    series = []
    for group, cell in cells.items():
        seeds = [(f"seed {seed_of(run)}", {kind: curve_of(run, kind, grid[kind]) for kind in grid}) for run in cell]
        on = {
            kind: band_of(np.stack([held(by[kind], run, kind) for run, (_, by) in zip(cell, seeds, strict=True)]))
            for kind in grid
        }
        ends = {kind: last_known(np.stack([by[kind] for _, by in seeds])) for kind in grid}
        on = {kind: cut(band, ends[kind]) for kind, band in on.items() if np.isfinite(band.mean).any()}
        series.append(Series(group, labels[group], groups.index(group), on, seeds))
    singles = np.concatenate([values for s in series for _, by in s.seeds for values in by.values()])
    singles = singles[np.isfinite(singles)]
    if not singles.size:
        return None
    bands = np.concatenate([values for s in series for band in s.on.values() for values in band])
    y = {"linear": value_axis(np.concatenate([singles, bands]), 6)}
    if singles.min() > 0:
        y["log"] = log_axis(float(singles.min()), float(max(singles.max(), np.nanmax(bands))))
    x = {"steps": linear_axis(0, max(end, 1), 6, short_count)}
    if "time" in grid:
        x["time"] = linear_axis(0, seconds, 6, clock_label(seconds))
    return StudyChart(key, task, "mean return of the last 100 episodes", describe(series), grid, x, y, series)


def curve_of(run: Run, kind: str, grid: Array) -> Array:
    """score(run, x) at each grid point, NaN past the run's end."""
    if kind == "steps":
        values = window_mean(run.episodes["step"], run.episodes["return_"], grid)
        end = max(run.last_step, asked_steps(run)) if run.is_finished else run.last_step
        return np.where(grid <= end, values, np.nan)
    seconds = seconds_of(run)
    if not seconds.size:
        return np.full(grid.size, np.nan)
    values = window_mean(seconds, run.episodes["return_"], grid)
    return np.where(grid <= seconds[-1] * (1 + 1e-9), values, np.nan)


def held(curve: Array, run: Run, kind: str) -> Array:
    """Over wall time a run that has ended keeps its last score, so that the mean does not jump when one ends."""
    known = np.flatnonzero(np.isfinite(curve))
    if kind != "time" or not known.size or not run.is_finished:
        return curve
    last = window_mean(run.episodes["step"], run.episodes["return_"], run.last_step)
    return np.where(np.arange(curve.size) > known[-1], last, curve)


def last_known(curves: Array) -> int:
    """The last point at which any seed has a value."""
    known = np.flatnonzero(np.isfinite(curves).any(0))
    return int(known[-1]) if known.size else -1


def cut(band: Band, last: int) -> Band:
    return Band(*(np.where(np.arange(values.size) <= last, values, np.nan) for values in band))


def band_of(curves: Array) -> Band:
    """Mean and one standard deviation over seeds, [seeds, points].

    It begins where the last seed begins and goes on while at least half of the seeds do.
    """
    known = np.isfinite(curves)
    count = known.sum(0)
    begins = known.argmax(1)[known.any(1)]
    is_drawn = (count * 2 >= max(len(curves), 1)) & (np.arange(curves.shape[1]) >= begins.max(initial=0))
    safe = np.where(known, curves, 0.0)
    mean = safe.sum(0) / np.maximum(count, 1)
    variance = np.where(known, (curves - mean) ** 2, 0.0).sum(0) / np.maximum(count - 1, 1)
    mean = np.where(is_drawn & (count > 0), mean, np.nan)
    std = np.where(count > 1, np.sqrt(variance), np.nan)
    return Band(mean, mean - std, mean + std)


def describe(series: Sequence[Series], say: Callable[[float], str] = format_return) -> str:
    """Where each line begins and ends, for who cannot see the chart."""
    said = []
    for s in series:
        mean = next(iter(s.on.values())).mean if s.on else np.empty(0)
        mean = mean[np.isfinite(mean)]
        said += [f"{s.label} from {say(float(mean[0]))} to {say(float(mean[-1]))}"] if mean.size else []
    return "; ".join(said) + "."


def clock_label(seconds: float) -> Callable[[float], str]:
    for size, unit in ((5400.0, "h"), (300.0, "min")):
        if seconds > size:
            each = 3600.0 if unit == "h" else 60.0
            return lambda value: f"{value / each:.3g} {unit}"
    return lambda value: f"{value:.3g} s"


def inside_charts(study: Study) -> list[tuple[str, list[StudyChart]]]:
    """Per task the evolution of ESS, λ, c, KL and entropy of P3O's groups."""
    labels, groups = study.labels(), study.groups
    ours = [group for group in groups if group.algo == "p3o"]
    rows = []
    for i, task in enumerate(study.tasks):
        there = [group for group in ours if (task, group) in study.cells]
        charts = [_inside_chart(study, task, there, name, f"inside-{i}-{name}", labels, groups) for name in INSIDE]
        rows.append((task, [chart for chart in charts if chart]))
    return [(task, charts) for task, charts in rows if charts]


def _inside_chart(
    study: Study, task: str, there: list[Group], name: str, key: str, labels: dict[Group, str], groups: list[Group]
) -> StudyChart | None:
    runs = {group: [run for run in study.cells[task, group] if has_numbers(run, name)] for group in there}
    runs = {group: found for group, found in runs.items() if found}
    if not runs:
        return None
    end = max(max(run.last_step, asked_steps(run)) for found in runs.values() for run in found)
    grid = np.linspace(end / INSIDE_POINTS, end, INSIDE_POINTS)
    series = []
    for group, found in runs.items():
        band = band_of(np.stack([resample(run.updates["step"], run.updates[name], grid) for run in found]))
        if np.isfinite(band.mean).any():
            series.append(Series(group, labels[group], groups.index(group), {"steps": band}, []))
    if not series:
        return None
    values = np.concatenate([part for s in series for part in s.on["steps"]])
    means = np.concatenate([s.on["steps"].mean for s in series])
    y = value_axis(means, 4, may_be_log=True)
    scale = "log" if y.is_log else "linear"
    y = y if y.is_log else value_axis(values, 4)
    names = metric(name)
    x = {"steps": linear_axis(0, end, 3, short_count)}
    return StudyChart(
        key, names.label, names.symbol, describe(series, format_number), {"steps": grid}, x, {scale: y}, series, names
    )


def has_numbers(run: Run, name: str) -> bool:
    return name in run.updates and bool(np.isfinite(run.updates[name]).any())


def resample(steps: Array, values: Array, grid: Array) -> Array:
    """A column of updates.csv on a grid: the mean of the lines of each grid cell, a straight line over empty cells."""
    known = np.isfinite(values)
    cell = np.searchsorted(grid, steps[known] - 0.5)
    cell = np.minimum(cell, grid.size - 1)
    count = np.bincount(cell, minlength=grid.size)
    total = np.bincount(cell, values[known], minlength=grid.size)
    there = np.flatnonzero(count)
    if not there.size:
        return np.full(grid.size, np.nan)
    result = np.interp(np.arange(grid.size), there, total[there] / count[there])
    result[: there[0]] = np.nan
    result[there[-1] + 1 :] = np.nan
    return result


def profile_chart(overall: Overall, study: Study) -> StudyChart:
    """Share of runs above each score."""
    labels, groups = study.labels(), study.groups
    series = [
        Series(group, labels[group], groups.index(group), {"score": Band(p.value, p.low, p.high)}, [])
        for group, p in overall.profiles.items()
    ]
    taus = next(iter(overall.profiles.values())).taus
    said = "; ".join(f"{s.label} has {s.on['score'].mean[taus.size // 2]:.2f} of its runs" for s in series)
    return StudyChart(
        "profile",
        "Performance profile",
        "share of runs above the score",
        f"Above a normalised score of {taus[taus.size // 2]:.2g}: {said}.",
        {"score": taus},
        {"score": linear_axis(0, float(taus[-1]), 6, tick)},
        {"linear": linear_axis(-0.02, 1.02, 5)},
        series,
    )


def efficiency_chart(found: Efficiency, study: Study) -> StudyChart | None:
    """The interquartile mean over tasks along training; None before any point has one."""
    labels, groups = study.labels(), study.groups
    series = [
        Series(group, labels[group], groups.index(group), {"share": Band(*curve)}, [])
        for group, curve in found.curves.items()
        if np.isfinite(curve[0]).any()
    ]
    if not series:
        return None
    values = np.concatenate([values for s in series for values in s.on["share"]])
    return StudyChart(
        "efficiency",
        "Sample efficiency",
        "interquartile mean of normalised scores",
        describe(series, format_number),
        {"share": found.shares},
        {"share": linear_axis(0, 100, 5, lambda value: f"{value:.0f} %")},
        {"linear": value_axis(values, 5)},
        series,
    )


def _axis(axis: Axis) -> dict[str, Any]:
    ticks = [[round(place, 2), label] for place, label in axis.ticks]
    return {"low": axis.low, "high": axis.high, "log": axis.is_log, "ticks": ticks}


def _numbers(values: Array) -> list[float | None]:
    """For JSON: five significant digits, null for NaN."""
    return [float(f"{v:.5g}") if np.isfinite(v) else None for v in values.tolist()]
