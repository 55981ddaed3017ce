"""Sweeps: many runs over every core of this machine or over a Ray cluster, resumable at any moment."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p3o.device import available_cores
from p3o.errors import UserError
from p3o.folder import command_line, lock, run_folder
from p3o.jobs import Job
from p3o.signals import StopSignals
from p3o.sweeps.board import Board, make_board
from p3o.sweeps.local import LocalPool, check_gpu, runs_at_once
from p3o.sweeps.plan import Run, check_jobs, check_memory, check_out, inspect
from p3o.sweeps.schedule import Engine, Ledger, Schedule

__all__ = ["Failure", "Result", "run", "run_folder"]


class Failure(NamedTuple):
    """A run that could not be finished."""

    folder: Path
    reason: str


class Result(NamedTuple):
    """How a sweep ended."""

    failed: list[Failure]
    stopped: int | None  # the signal that stopped it
    finished: int  # runs, those that were finished before among them


def run(
    jobs: Sequence[Job],
    out: Path,
    *,
    workers: int | None = None,
    ray: str | None = None,
    about: dict[str, Any] | None = None,
) -> Result:
    """Bring every job to its end in OUT/ENV/ALGO-PRESET[-VARIANT]/seed-N, in processes of their own.

    Finished runs are skipped and broken ones taken up from their checkpoint, so that calling it again goes on.
    `ray` is the address of a cluster; `about` goes into sweep.json. Bad input raises a UserError before anything runs.
    """
    out = Path(out)
    if workers is not None and workers < 1:
        raise UserError(f"workers {workers}: at least 1 is needed")
    check_out(out)
    runs = check_jobs(jobs, out)
    with contextlib.ExitStack() as stack:
        engine = _make_engine(workers, ray, stack, runs)
        stop = stack.enter_context(StopSignals())  # after the engine: Ray brings a handler of its own
        for each in runs:
            inspect(each)
        if ray is None:
            check_gpu(runs)
            check_memory(runs, engine.capacity)
        _claim(out, stack)
        for each in runs:  # again: another sweep may have gone on until now
            inspect(each)
        ledger = Ledger(out, runs, about or {})
        ledger.write()
        board = make_board(_title(runs, engine.capacity, ray))
        stack.callback(board.stop)
        Schedule(runs, engine, board, ledger).run(stop)
        board.update(runs, engine.capacity)
        board.stop()
        _finish(out, runs, stop.received, board)
    failed = [Failure(r.folder, r.reason or "") for r in runs if r.state == "failed"]
    finished = sum(r.state == "finished" for r in runs)
    return Result(failed, stop.received if finished + len(failed) < len(runs) else None, finished)


def _make_engine(workers: int | None, ray: str | None, stack: contextlib.ExitStack, runs: Sequence[Run]) -> Engine:
    engine: Engine
    if ray is None:
        engine = LocalPool(workers or runs_at_once(runs), command_line(), len(runs))
    else:
        from p3o.sweeps.cluster import RayEngine

        engine = RayEngine(ray, workers, command_line())
    stack.callback(engine.close)
    return engine


def _claim(out: Path, stack: contextlib.ExitStack) -> None:
    """Make the folder and hold its lock: a second sweep on it is refused."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out} cannot be made: {error.strerror}") from None
    stack.enter_context(lock(out))


def _title(runs: Sequence[Run], workers: int, ray: str | None) -> str:
    envs, algos = (dict.fromkeys(keys) for keys in zip(*((r.job.env, r.job.algo) for r in runs), strict=True))
    where = f"on Ray {ray}" if ray else f"of {_count(len(available_cores()), 'core')}"
    before = sum(run.state == "finished" for run in runs)
    return (
        f"sweep of {_count(len(runs), 'run')}: {_count(len(envs), 'environment')}, {_count(len(algos), 'algorithm')}, "
        + (f"{_count(workers, 'process')} {where}" if before < len(runs) else "nothing left to do")
        + (f", {before} finished before" if before else "")
    )


def _count(number: int, word: str) -> str:
    plural = word + ("es" if word.endswith("s") else "s")
    return f"{number} {word if number == 1 else plural}"


def _finish(out: Path, runs: Sequence[Run], stopped: int | None, board: Board) -> None:
    """The report page, and what failed and why."""
    left = sum(r.state == "waiting" for r in runs)
    if left and stopped is not None:
        board.message(f"stopped with {_count(left, 'run')} to go; the same command goes on from here")
        return
    _write_report(out, board.message)
    failed = [r for r in runs if r.state == "failed"]
    if failed:
        board.message(f"{_count(len(failed), 'run')} of {len(runs)} failed; the same command tries again:")
    for each in failed:
        board.message(f"  {each.folder}: {each.reason} (log: {each.folder / 'worker.log'})")


def _write_report(out: Path, message: Callable[[str], None]) -> None:
    from p3o.report import write_report

    try:
        message(f"report: {write_report([out])}")
    except UserError as error:
        message(f"no report: {error}")
