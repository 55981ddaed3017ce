"""Every table of a study as data: the page, the CSV files and the Markdown show the same rows."""

import json
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from p3o.report.axes import duration, short_count
from p3o.report.find import Group, Study, asked_steps, score, seconds_of, seed_of, window_at
from p3o.report.results import Overall, Results
from p3o.runs import SCORE_WINDOW, Array, Run, format_number, format_return
from p3o.statistics import MIN_SEEDS, Estimate, Verdict, mean_interval

MAX_ACROSS = 6  # groups side by side


class Cell(NamedTuple):
    """What is shown, and the plain value for CSV."""

    text: str
    value: str | float | int = ""
    note: str = ""  # smaller, below the text
    mark: str = ""  # best, good, bad
    bar: tuple[float, float, float] | None = None  # left end, right end and dot of an interval, in percent
    around: "Around | None" = None  # for CSV


class Around(NamedTuple):
    """What is known about a mean: its interval, or the range of few seeds; NaN where there is neither."""

    low: float
    high: float
    seeds: int


class Table(NamedTuple):
    key: str  # file name and id
    title: str
    note: str
    head: list[str]
    rows: list[list[Cell]]
    zero: float | None = None  # where a rule is drawn behind interval bars, in percent


def text(words: str, note: str = "", mark: str = "") -> Cell:
    return Cell(words, words, note, mark)


def number(value: float, say: Callable[[float], str] = format_number) -> Cell:
    return Cell(say(value), "" if math.isnan(value) else value)


def all_tables(results: Results) -> list[Table]:
    """The tables of the page in its order; one without rows is left out."""
    tables = [
        *score_tables(results),
        win_table(results),
        paper_table(results),
        improvement_table(results),
        *([aggregate_table(results, results.overall)] if results.overall else []),
        *difference_tables(results),
        cost_table(results),
        run_table(results),
    ]
    return [table for table in tables if table.rows]


def score_tables(results: Results) -> list[Table]:
    """Tasks down, groups across: the end first, then the checkpoints before it."""
    study = results.study
    names: dict[str, dict[str, int]] = {"the end": {}}
    for task in study.tasks:
        for name, step in results.checkpoints(task):
            names.setdefault(name, {})[task] = step
    return [_score_table(results, name, steps) for name, steps in names.items()]


def _score_table(results: Results, name: str, steps: dict[str, int]) -> Table:
    groups = results.study.groups
    every = {task: results.scores(task, step) for task, step in steps.items()}
    counts = {values.size for row in every.values() for values in row.values()}
    cells = {(task, group): Cell("–") for task in every for group in groups}
    for task, scores in every.items():
        best = max((float(values.mean()) for values in scores.values()), default=math.nan)
        for group, values in scores.items():
            cells[task, group] = _score_cell(values, best, len(scores) > 1, len(counts) > 1)
    labels = [results.labels[group] for group in groups]
    if len(groups) > max(MAX_ACROSS, len(every)):  # many variants of few tasks would be a table too wide to read
        head = ["algorithm", *(f"{task}, {short_count(step)}" for task, step in steps.items())]
        rows = [[text(results.labels[group]), *(cells[task, group] for task in every)] for group in groups]
    else:
        head = ["environment", "steps", *labels]
        rows = [
            [text(task), Cell(short_count(steps[task]), steps[task]), *(cells[task, group] for group in groups)]
            for task in every
        ]
    title = "Scores at the end" if name == "the end" else f"Scores at {name}"
    over = _count(counts.pop(), "seed") if len(counts) == 1 else "seeds"
    note = (
        f"Mean over {over} of the mean return of the last 100 episodes; below it the 95 % bootstrap interval over "
        f"seeds, or the range where there are fewer than {MIN_SEEDS}. The highest mean of an environment is bold."
    )
    short = sum(
        window_at(run, step) < SCORE_WINDOW
        for task, step in steps.items()
        for group in results.study.groups_of(task)
        for run in results.study.cells[task, group]
    )
    note += f" {_count(short, 'run')} had fewer than {SCORE_WINDOW} episodes by then." if short else ""
    key = "scores" if name == "the end" else f"scores-{name.replace(' %', '-percent')}"
    return Table(key, title, note, head, rows)


def _score_cell(values: Array, best: float, may_be_best: bool, with_seeds: bool) -> Cell:
    mean = float(values.mean())
    mark = "best" if may_be_best and mean >= best - 1e-12 * abs(best) else ""
    seeds = [_count(values.size, "seed")] if with_seeds else []
    note = "\n".join([part for part in (spread(values), *seeds) if part])
    return Cell(format_return(mean), mean, note, mark, around=around(values))


def around(values: Array) -> Around:
    if 1 < values.size < MIN_SEEDS:
        return Around(float(values.min()), float(values.max()), values.size)
    _, low, high = mean_interval(values)
    return Around(low, high, values.size)


def spread(values: Array) -> str:
    """What is known about a mean over seeds, in words."""
    low, high, seeds = around(values)
    if seeds < MIN_SEEDS:
        return "" if math.isnan(low) else f"{format_return(low)} to {format_return(high)}"
    return interval(Estimate(math.nan, low, high), format_return)


def interval(estimate: Estimate, say: Callable[[float], str] = format_number) -> str:
    return "" if math.isnan(estimate.low) else f"[{say(estimate.low)}, {say(estimate.high)}]"


def win_table(results: Results) -> Table:
    """On how many tasks each group has the highest mean, and what resampling the seeds does to that."""
    wins, names, rows = results.wins, results.labels, []
    if wins is not None and len(wins.p_win) > 1:
        most = max(estimate.value for estimate in wins.won.values())
        for name, estimate in sorted(wins.won.items(), key=lambda item: -item[1].value):
            there = [task for task, row in wins.p_win.items() if name in row]
            share = sum(wins.p_win[task][name] for task in there) / len(there)
            mark = "best" if estimate.value == most else ""
            seeds = min(values.size for task in there for g, values in results.final[task].items() if names[g] == name)
            won = Cell(f"{estimate.value:.0f}", int(estimate.value), mark=mark, around=Around(*estimate[1:], seeds))
            near = Cell(interval(estimate, lambda v: f"{v:.0f}") or "–", interval(estimate, lambda v: f"{v:.0f}"))
            rows.append([text(name), won, near, Cell(str(len(there)), len(there)), number(share, lambda v: f"{v:.2f}")])
    ties = f" Shared, and counted for nobody: {', '.join(wins.ties)}." if wins and wins.ties else ""
    note = (
        "A win is the highest mean alone, of the environments on which at least two algorithms have a score. The "
        f"interval and P(win), its mean over environments, come of resampling the seeds 10,000 times.{ties}"
    )
    head = ["algorithm", "won", "95 % interval", "environments", "P(win)"]
    return Table("wins", "Environments won", note, head, rows)


MARKS = {"exceeds": "good", "reproduced": "good", "ordering reproduced": "good", "not reproduced": "bad"}


def paper_table(results: Results) -> Table:
    """The paper's numbers beside ours."""
    rows = []
    for row in results.beside_paper:
        mean = row.verdict.mean
        rows.append(
            [
                text(row.task),
                text(results.labels[row.group]),
                text(row.group.preset or "–"),
                Cell(short_count(row.step), row.step),
                Cell(str(row.scores.size), row.scores.size),
                Cell(format_return(mean.value), mean.value, spread(row.scores), around=around(row.scores)),
                number(row.paper, format_return),
                number(row.verdict.gap, lambda gap: "–" if math.isnan(gap) else f"{gap:+,.1f}"),
                text(row.verdict.name, _reason(row.verdict), MARKS.get(row.verdict.name, "")),
            ]
        )
    note = (
        "By rules fixed before any run: at least 5 seeds and the paper's number of steps are needed for a verdict. "
        "Exceeds: the whole 95 % interval of our mean lies above the paper's number. Reproduced: the interval holds "
        "it, or our mean is within 10 % of its distance from random play. Ordering reproduced: neither, but P3O's runs "
        "beat the baselines' more often than not, with an interval above one half. Departure: a setting or an "
        "environment's argument is not the preset's, so there is no verdict. The preset paper has the paper's "
        "settings, default ours: its verdicts set our preset beside the paper's number, not the paper's settings. "
        "The paper's MuJoCo tasks were of version -v2; rewards differ a little between versions."
    )
    head = ["environment", "algorithm", "preset", "steps", "seeds", "ours", "paper", "difference", "verdict"]
    return Table("paper", "Beside the paper", note, head, rows)


def _reason(verdict: Verdict) -> str:
    return verdict.text.removeprefix(verdict.name).lstrip(":, ")


def aggregate_table(results: Results, overall: Overall) -> Table:
    """IQM, median, mean and optimality gap of each group."""
    columns = ("iqm", "median", "mean", "optimality_gap")
    limits = {name: _limits(getattr(a, name) for a in overall.aggregates.values()) for name in columns}
    rows = []
    for group, found in overall.aggregates.items():
        seeds = min(values.size for values in overall.scores[group].values())
        cells = [_estimate_cell(getattr(found, name), *limits[name], seeds) for name in columns]
        rows.append([text(results.labels[group]), *cells])
    best = [max, max, max, min]
    for j, pick in enumerate(best, start=1):
        top = pick(float(row[j].value) for row in rows)
        for row in rows:
            row[j] = row[j]._replace(mark="best" if len(rows) > 1 and row[j].value == top else "")
    left = ", ".join(results.labels[group] for group in overall.left_out)
    note = (
        f"Over {_count(len(overall.tasks), 'environment')} ({', '.join(overall.tasks)}), scores normalised so that "
        f"{overall.how}; 95 % intervals by stratified bootstrap over seeds. IQM: mean of the middle half of all runs. "
        "Optimality gap: how far runs fall short of 1 on average, less is better."
        + (f" Left out for want of common environments: {left}." if left else "")
    )
    head = ["algorithm", "IQM", "median", "mean", "optimality gap"]
    return Table("aggregates", "All environments together", note, head, rows)


def improvement_table(results: Results) -> Table:
    """How likely a run of the lead beats a run of each other group."""
    rows = []
    for group, estimate in results.improvements.items():
        both = results.common_tasks(group)
        assert results.lead is not None
        pair = text(f"{results.labels[results.lead]} over {results.labels[group]}")
        seeds = min(results.final[t][g].size for t in both for g in (group, results.lead))
        rows.append(
            [pair, _estimate_cell(estimate, 0, 1, seeds), Cell(str(len(both)), len(both)), _sure(estimate, seeds)]
        )
    note = (
        "The chance that a run of the first beats a run of the second on the same environment, a tie counting half, "
        "averaged over the environments that both have; 95 % interval by stratified bootstrap over seeds."
    )
    head = ["", "probability", "environments", "in words"]
    return Table("improvement", "Probability of improvement", note, head, rows, zero=50.0)


def _sure(estimate: Estimate, seeds: int) -> Cell:
    if seeds < MIN_SEEDS:
        return text("too few seeds to say")
    if estimate.low > 0.5:
        return text("better", mark="good")
    if estimate.high < 0.5:
        return text("worse", mark="bad")
    return text("cannot be told apart")


def _limits(estimates: Iterable[Estimate]) -> tuple[float, float]:
    known = np.array([value for estimate in estimates for value in estimate if math.isfinite(value)])
    low, high = float(known.min()), float(known.max())
    room = 0.05 * (high - low) or 0.5
    return low - room, high + room


def _estimate_cell(estimate: Estimate, low: float, high: float, seeds: int) -> Cell:
    places = [(value - low) / (high - low) * 100 for value in (estimate.low, estimate.high, estimate.value)]
    bar = (places[0], places[1], places[2]) if math.isfinite(places[0]) else None
    near = Around(estimate.low, estimate.high, seeds)
    return Cell(f"{estimate.value:.2f}", estimate.value, interval(estimate, lambda v: f"{v:.2f}"), bar=bar, around=near)


def difference_tables(results: Results) -> list[Table]:
    """Settings with different values in different groups, then those that only some algorithms have."""
    groups = results.study.groups
    values = {group: settings_of(results.study, group) for group in groups}
    names = list(dict.fromkeys(name for of in values.values() for name in of))
    differ, partial = [], []
    for name in names:
        row = [" or ".join(values[group].get(name, ["–"])) for group in groups]
        if len(set(row) - {"–"}) > 1:
            differ.append([text(name), *(text(cell) for cell in row)])
        elif len(set(row)) > 1:
            partial.append([text(name), *(text(cell) for cell in row)])
    note = "Settings with other values in other groups; – where an algorithm has no such setting."
    head = ["setting", *(results.labels[group] for group in groups)]
    return [
        Table("differences", "What differs", note, head, differ),
        Table("partial", "Settings that only some algorithms have", "", head, partial),
    ]


def common_settings(results: Results) -> list[tuple[str, str]]:
    """Settings with one value in every run."""
    found = [settings_of(results.study, group) for group in results.study.groups]
    first = found[0] if found else {}
    return [(k, v[0]) for k, v in first.items() if len(v) == 1 and all(other.get(k) == v for other in found)]


def settings_of(study: Study, group: Group) -> dict[str, list[str]]:
    """Each setting's values over the group's runs, in order of appearance; `steps` among them."""
    found: dict[str, list[str]] = {}
    for task in study.tasks_of(group):
        for run in study.cells[task, group]:
            entries = {"steps": asked_steps(run), **run.config.get("settings", {})}
            kwargs = run.config["env"].get("kwargs")
            entries |= {"env": kwargs} if kwargs else {}
            for name, value in entries.items():
                shown = shown_value(value)
                if shown not in found.setdefault(str(name), []):
                    found[str(name)].append(shown)
    return found


def shown_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cost_table(results: Results) -> Table:
    """Speed and what it cost."""
    study, rows = results.study, []
    for task in study.tasks:
        for group in study.groups_of(task):
            cell = study.cells[task, group]
            seconds = [wall_seconds(run) for run in cell]
            total = float(np.sum(seconds))
            rows.append(
                [
                    text(task),
                    text(results.labels[group]),
                    Cell(str(len(cell)), len(cell)),
                    Cell(short_count(sum(run.last_step for run in cell)), sum(run.last_step for run in cell)),
                    number(float(np.median([steps_per_second(run) for run in cell])), lambda v: _whole(v)),
                    number(total, lambda v: duration(v) if math.isfinite(v) else "–"),
                    number(total, _whole),
                ]
            )
    note = (
        "Steps per second: steps over seconds of training of a whole run, the median over runs. Training time, of all "
        "runs together, leaves out start-up and compilation; on a CPU a run keeps one core busy."
    )
    head = ["environment", "algorithm", "runs", "steps", "steps/s", "training time", "training seconds"]
    return Table("cost", "Speed and cost", note, head, rows)


def _whole(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "–"


def wall_seconds(run: Run) -> float:
    seconds = seconds_of(run)
    return float(seconds[-1]) if seconds.size else math.nan


def steps_per_second(run: Run) -> float:
    seconds = wall_seconds(run)
    return float(run.episodes["step"][-1] / seconds) if seconds > 0 else math.nan


def run_table(results: Results) -> Table:
    """One line per run."""
    rows = []
    for (task, group), cell in results.study.cells.items():
        for run in cell:
            episodes = run.episodes["step"].size
            rows.append(
                [
                    text(task),
                    text(results.labels[group]),
                    text(seed_of(run)),
                    Cell(f"{run.last_step:,}", run.last_step),
                    Cell(f"{episodes:,}", episodes),
                    number(score(run, min(asked_steps(run), run.last_step)), format_return),
                    number(steps_per_second(run), _whole),
                    number(wall_seconds(run), _whole),
                    text("yes" if run.is_finished else "no", mark="" if run.is_finished else "bad"),
                ]
            )
    note = "Score: mean return of the last 100 episodes so far."
    head = ["environment", "algorithm", "seed", "steps", "episodes", "score", "steps/s", "seconds", "finished"]
    return Table("runs", "Every run", note, head, rows)


def _count(value: int, noun: str) -> str:
    return f"{value} {noun}{'' if value == 1 else 's'}"
