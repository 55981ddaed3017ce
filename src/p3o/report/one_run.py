"""One self-contained HTML page about a run: words first, then charts, then every setting."""

import json
import math
from typing import Any, NamedTuple

import numpy as np

from p3o.report.axes import (
    PLOT,
    Axis,
    bucket_means,
    dot_path,
    duration,
    line_path,
    linear_axis,
    short_count,
    thin,
    value_axis,
)
from p3o.report.templates import template
from p3o.runs import SCORE_WINDOW, Array, Run, window_mean
from p3o.wording import METRICS, Metric, format_number, format_return, metric

MAX_DOTS = 1500
GRID_POINTS = 200
MAX_METRIC_POINTS = 300
FEW_POINTS = 30  # a small chart with no more than these marks each one
TABLE_ROWS = 25


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


def render_one(run: Run) -> str:
    """The page as text; it depends on nothing but the run's files."""
    charts = metric_charts(run)
    curve = learning_curve(run)
    config = run.config
    algo = algorithm_name(run)
    return template("report.html.j2").render(
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
        resumes=resumes(run),
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
    took = f" It took {duration(episodes['seconds'][-1])}" if episodes["step"].size else ""
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
    took = duration(run.episodes["seconds"][-1]) if count else "–"
    episodes = f"last {min(count, SCORE_WINDOW)} episodes" if count != 1 else "one episode"
    return [
        ("Final score", format_return(_score(run)), episodes if count else "no episode yet"),
        ("Best", format_return(best), f"at step {step:,}" if math.isfinite(best) else ""),
        ("Steps", f"{run.last_step:,}", f"in {count:,} episode{'' if count == 1 else 's'}"),
        ("Time", took, f"{_speed(run):,.0f} steps/s" if math.isfinite(_speed(run)) else ""),
    ]


def resumes(run: Run) -> list[str]:
    """What the command does not tell: where the run was taken up with another total, or under other conditions."""
    said = []
    for at_step, steps, planned in run.resumes:
        before = "" if planned is None else f" instead of {planned:,}, schedules included"
        said.append(f"Resumed at step {at_step:,}, to a total of {steps:,}{before}.")
    return said


def _last_checkpoint(run: Run) -> int | None:
    """Its step, None where there is none or it cannot be told."""
    try:
        step = json.loads((run.path / "checkpoint" / "checkpoint.json").read_text())["step"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None


def warnings(run: Run) -> list[str]:
    """What a reader must know before trusting the numbers."""
    found = []
    count = run.episodes["step"].size
    if count < SCORE_WINDOW:
        rests = f"Fewer than {SCORE_WINDOW} episodes have ended, so the final score rests on {count}."
        found.append(rests if count else "No episode has ended yet, so there is no score.")
    if not run.is_finished:
        asked = run.config["steps"]
        found.append(f"The run is not finished: its files end at step {run.last_step:,} of {asked:,.0f}.")
        step = _last_checkpoint(run)
        if step is not None:
            found.append(f"Its last checkpoint is at step {step:,}; `p3o resume` with its folder goes on from there.")
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
    kept = thin(np.flatnonzero(is_finite), MAX_DOTS)
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
    steps, values = bucket_means(run.updates["step"], run.updates[name], MAX_METRIC_POINTS)
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
    grid = thin(curve_grid(run), TABLE_ROWS)
    mean = window_mean(run.episodes["step"], run.episodes["return_"], grid)
    return [(f"{step:,}", format_return(value)) for step, value in zip(grid, mean, strict=True)]


def chart_table(run: Run, charts: list[Chart]) -> list[list[str]]:
    """The numbers behind the small charts, first cell the step."""
    names = [chart.column for chart in charts]
    kept = thin(np.arange(run.updates["step"].size), TABLE_ROWS)
    return [[f"{run.updates['step'][i]:,.0f}", *(format_number(run.updates[n][i]) for n in names)] for i in kept]


def rows(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values as text, a value that is not a plain string as JSON."""
    return [(str(k), v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)) for k, v in settings.items()]


def step_axis(run: Run, count: int) -> Axis:
    """The x axis of every chart: all the steps that were asked for, so that an unfinished run looks unfinished."""
    return linear_axis(0, max(run.last_step, run.config.get("steps", 0), 1), count, label=short_count)


def _points(x: Array, y: Array, said: list[list[str]]) -> list[list[Any]]:
    """For the reader's cursor: place in percent from the left and from the top, then what to say there."""
    left, top = np.round(x / PLOT * 100, 2), np.round(100 - y / PLOT * 100, 2)
    return [[float(left[i]), float(top[i]), *said[i]] for i in np.flatnonzero(np.isfinite(y))]


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
