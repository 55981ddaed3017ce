"""The runs of an experiment, read back: one score a seed at every checkpoint."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p3o import checkpoint
from p3o.errors import UserError
from p3o.experiments.catalog import Cell, Experiment, checkpoints
from p3o.folder import run_folder
from p3o.jobs import Job
from p3o.runs import SCORE_WINDOW, Run, failed_folders, load_run, window_mean
from p3o.statistics import Array


class Result(NamedTuple):
    """One cell: its runs that have come far enough."""

    cell: Cell
    steps: tuple[int, ...]  # checkpoints
    scores: tuple[Array, ...]  # [seeds], one array a checkpoint
    asked: int  # seeds
    finished: int  # runs
    short: tuple[int, ...]  # runs whose score there rests on fewer than 100 episodes, one number a checkpoint
    logs: tuple[dict[str, Array], ...]  # updates.csv of each run, by column

    @property
    def final(self) -> Array:
        return self.scores[-1]


def collect(experiment: Experiment, out: Path, seeds: Sequence[int] | None, scale: float) -> list[Result]:
    """Every cell of an experiment with what is there of it under `out`; a folder that cannot be read is an error."""
    failed = failed_folders(out / "sweep.json")
    return [_collect_cell(cell, out, seeds, scale, failed) for cell in experiment.cells]


def _collect_cell(cell: Cell, out: Path, seeds: Sequence[int] | None, scale: float, failed: set[Path]) -> Result:
    jobs, steps = cell.jobs(seeds, scale), checkpoints(cell, scale)
    folders = [run_folder(out, job) for job in jobs]
    there = [folder for folder in folders if (folder / "config.json").exists()]
    runs = [replace(load_run(folder), is_failed=folder in failed) for folder in there]
    table = np.array([[_score(run, step) for step in steps] for run in runs]).reshape(len(runs), len(steps))
    scores = tuple(column[np.isfinite(column)] for column in table.T)
    few = np.array([[(run.episodes["step"] <= step).sum() < SCORE_WINDOW for step in steps] for run in runs], bool)
    short = tuple(int(n) for n in (few.reshape(table.shape) & np.isfinite(table)).sum(0))
    finished = sum(run.is_finished for run in runs)
    return Result(cell, steps, scores, len(jobs), finished, short, tuple(run.updates for run in runs))


def _score(run: Run, step: int) -> float:
    """Mean of the last 100 episodes that ended at or before a checkpoint, NaN before the run has come so far."""
    is_end = step == run.config.get("steps")
    if not (run.is_finished if is_end else run.last_step >= step):
        return np.nan
    return float(window_mean(run.episodes["step"], run.episodes["return_"], step))


def count_finished(jobs: Iterable[Job], out: Path) -> int:
    """How many of the jobs lie finished under `out`, from their checkpoints alone."""
    return sum(_is_finished(run_folder(out, job), job.steps) for job in jobs)


def _is_finished(folder: Path, steps: int) -> bool:
    try:
        if not (folder / "config.json").exists():
            return False
        asked = checkpoint.read_json(folder / "config.json", "a config").get("steps")
        step = checkpoint.read_json(folder / "checkpoint" / checkpoint.INDEX, "a checkpoint").get("step")
    except (UserError, OSError):
        return False
    return asked == steps and isinstance(step, int) and step >= steps
