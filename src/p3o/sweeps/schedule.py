"""The loop of a sweep: keep every worker busy, take their news, retry those that died, write sweep.json."""

import datetime
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from p3o import checkpoint
from p3o.errors import UserError
from p3o.folder import WORKER_LOG
from p3o.provenance import machine, versions
from p3o.signals import StopSignals
from p3o.sweeps.board import Board
from p3o.sweeps.local import Event
from p3o.sweeps.plan import Run, next_run, saved_step

FORMAT = 1  # of sweep.json
INDEX = "sweep.json"
MAX_DEATHS = 2  # of a run's process that are forgiven, each without progress since the one before
POLL_SECONDS = 0.2
LOG_LINES, LOG_BYTES = 20, 20_000  # of a failed run's log that are kept in sweep.json


class Engine(Protocol):
    """What runs the runs."""

    @property
    def capacity(self) -> int: ...  # runs at once
    @property
    def runs(self) -> Sequence[Run]: ...  # that are with it now
    def start(self, run: Run) -> None: ...
    def poll(self, seconds: float) -> list[Event]: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class Ledger:
    """sweep.json: what was asked for, by what, and the state of each run; runs of earlier calls stay in it."""

    def __init__(self, out: Path, runs: Sequence[Run], about: dict[str, Any]):
        self._path, self._out, self._runs, self._about = out / INDEX, out, runs, about
        self._started = _now()
        self._others: list[dict[str, Any]] = []
        if self._path.exists():
            self._take_over(checkpoint.read_json(self._path, "a sweep", FORMAT))

    def _take_over(self, before: dict[str, Any]) -> None:
        """What an earlier call of the sweep knew: its other runs, and the scores and speeds of finished ones."""
        try:
            self._started = before["started"]
            by_folder = {entry["folder"]: entry for entry in before["runs"]}
            for run in self._runs:
                entry = by_folder.pop(self._name(run), None)
                if entry is not None and run.step:
                    run.mean_return, run.steps_per_second = entry["mean_return"], entry["steps_per_second"]
            self._others = list(by_folder.values())
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{self._path} is damaged: {type(error).__name__} {error}") from None

    def write(self) -> None:
        own = [
            {
                "folder": self._name(run),
                **{key: run.asked[key] for key in ("algo", "preset", "variant", "seed", "steps", "eval_every")},
                "env": run.asked["env"]["id"],
                "env_kwargs": run.asked["env"]["kwargs"],
                "set": {key: run.asked["settings"][key] for key in run.job.settings},
                "state": run.state,
                "step": run.step,
                "mean_return": run.mean_return,
                "steps_per_second": run.steps_per_second,
                "reason": run.reason,
                "log": run.log,
            }
            for run in self._runs
        ]
        content = {
            "format": FORMAT,
            **self._about,
            "versions": versions(),
            "machine": machine(),
            "started": self._started,
            "changed": _now(),
            "runs": sorted(own + self._others, key=lambda entry: str(entry["folder"])),
        }
        try:
            checkpoint.write_json(self._path, content)
        except OSError as error:
            raise UserError(f"{self._path} cannot be written: {error.strerror}") from None

    def _name(self, run: Run) -> str:
        return run.folder.relative_to(self._out).as_posix()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class Schedule:
    """A sweep that is running."""

    def __init__(self, runs: Sequence[Run], engine: Engine, board: Board, ledger: Ledger):
        self.runs, self._engine, self._board, self._ledger = runs, engine, board, ledger
        self._is_stopping = False

    def run(self, stop: StopSignals) -> None:
        """Go on until every run has ended, or until a signal has stopped them all."""
        while self._engine.runs or (stop.received is None and next_run(self.runs) is not None):
            if stop.received is not None and not self._is_stopping:
                self._is_stopping = True
                name = signal.Signals(stop.received).name
                self._board.message(f"{name}: runs stop where they can go on exactly; a second one stops at once")
                self._engine.stop()
            if not self._is_stopping:
                self._fill()
            for event in self._engine.poll(POLL_SECONDS):
                self._take(event)
            self._board.update(self.runs, self._engine.capacity)

    def _fill(self) -> None:
        has_started = False
        while len(self._engine.runs) < self._engine.capacity and (run := next_run(self.runs)) is not None:
            run.saved_step = saved_step(run.folder)
            run.state = "running"
            self._board.say("resume" if run.saved_step else "start", run)
            has_started = True
            try:
                self._engine.start(run)
            except UserError as error:
                self._fail(run, str(error))
        if has_started:
            self._ledger.write()

    def _take(self, event: Event) -> None:
        run, message = event
        kind = message["kind"]
        if kind == "status":
            run.step, run.mean_return = message["step"], message["mean_return"]
            run.steps_per_second = message["steps_per_second"] or run.steps_per_second
            return
        if kind == "finished":
            run.state, run.step = "finished", message["step"]
            self._board.say("finished", run)
        elif kind == "failed":
            self._fail(run, message["reason"])
        elif self._is_stopping:  # it stopped as it was asked to, or was not yet up to that
            run.state, run.step = "waiting", saved_step(run.folder)
        else:
            self._retry(run, message.get("reason", "its process was told to stop by another program"))
        self._ledger.write()

    def _retry(self, run: Run, reason: str) -> None:
        """Back to the waiting ones, unless its process keeps dying without getting anywhere."""
        run.step = saved_step(run.folder)
        run.deaths = 1 if run.step > run.saved_step else run.deaths + 1
        if run.deaths > MAX_DEATHS:
            self._fail(run, f"{reason}, for the {_ordinal(run.deaths)} time without progress")
        else:
            run.state = "waiting"
            self._board.say("again", run, reason)

    def _fail(self, run: Run, reason: str) -> None:
        run.state, run.reason, run.log = "failed", reason, tail(run.folder / WORKER_LOG)
        self._board.say("failed", run, reason)


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def tail(log: Path) -> str | None:
    """The last lines of a log, None where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(log.stat().st_size - LOG_BYTES, 0))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    return "\n".join(lines[-LOG_LINES:]) or None
