"""What runs cost: speed and time of each group, and every run on a line."""

import math

import numpy as np

from p3o.report.axes import duration, short_count
from p3o.report.cells import Cell, Table, number, text
from p3o.report.find import asked_steps, score, seconds_of, seed_of
from p3o.report.results import Results
from p3o.runs import Run
from p3o.wording import format_return


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
        "runs together, leaves out start-up and compilation; on a CPU a run on vectors keeps one "
        "core busy, one on images all of them."
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
