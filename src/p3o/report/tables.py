"""Every table of a study as data: the page, the CSV files and the Markdown show the same rows."""

import math
from collections.abc import Iterable

import numpy as np

from p3o.report.axes import short_count
from p3o.report.cells import Around, Cell, Table, around, interval, number, spread, text
from p3o.report.cost import cost_table, run_table
from p3o.report.find import window_at
from p3o.report.results import Overall, Results
from p3o.report.settings import difference_tables
from p3o.runs import SCORE_WINDOW, Array
from p3o.statistics import MIN_SEEDS, Estimate, Verdict
from p3o.wording import format_return, format_share

MAX_ACROSS = 6  # groups side by side


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
            cells[task, group] = _score_cell(values, best, results.can_be_compared(task, scores), len(counts) > 1)
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
        f"seeds, or the range where there are fewer than {MIN_SEEDS}. The highest mean of an environment is bold, "
        "unless a run that has not come so far is higher already."
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
            rows.append([text(name), won, near, Cell(str(len(there)), len(there)), number(share, format_share)])
    ties = f" Shared, and counted for nobody: {', '.join(wins.ties)}." if wins and wins.ties else ""
    note = (
        "A win is the highest mean alone, of the environments on which at least two algorithms have a score and no "
        "run that has not come so far is higher already. The interval and P(win), its mean over environments, come of "
        f"resampling the seeds 10,000 times.{ties}"
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
    return Cell(format_share(estimate.value), estimate.value, interval(estimate, format_share), bar=bar, around=near)


def _count(value: int, noun: str) -> str:
    return f"{value} {noun}{'' if value == 1 else 's'}"
