"""One run of a sweep in a process of its own: told what to do on standard input, telling how it goes through a pipe.

Lines are JSON objects. The job comes as the first line of standard input; the end of standard input means that the
sweep is gone, and the run stops at an exact point, as it does on SIGTERM.
"""

import json
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from p3o.errors import RunStopped, UserError
from p3o.signals import Stop, StopSignals

STATUS_SECONDS = 0.5
LOCK_SECONDS = 60.0  # that a process of a killed sweep may need to stop
Message = dict[str, Any]
FINAL = ("finished", "stopped", "failed")  # kinds of the last message


class Assignment(NamedTuple):
    """What a process is told."""

    job: dict[str, Any]  # the fields of a Job
    folder: str
    command: list[str] | None  # of the sweep


class Reporter:
    """A display that hands every status on, at most twice a second, as a message."""

    def __init__(self, send: Callable[[Message], None], clock: Callable[[], float] = time.monotonic):
        self._send, self._clock = send, clock
        self._next = -math.inf

    def start(self, header: Any) -> None:
        print(header.title, *header.lines, sep="\n", flush=True)

    def update(self, status: Any) -> None:
        now = self._clock()
        if now < self._next and status.step < status.total_steps:
            return
        self._next = now + STATUS_SECONDS
        known = math.isfinite(status.mean_return)
        self._send(
            {
                "kind": "status",
                "step": status.step,
                "mean_return": status.mean_return if known else None,
                "steps_per_second": status.steps_per_second or None,
            }
        )

    def message(self, text: str) -> None:
        print(text, flush=True)

    def stop(self) -> None: ...


def work(
    assignment: Assignment,
    send: Callable[[Message], None],
    stop: Stop,
    on_checkpoint: Callable[[], None] | None = None,
) -> Message:
    """Start the run or take it up, and go on to its end or to a wish to stop; returns the last message."""
    try:
        return _train(assignment, send, stop, on_checkpoint)
    except (UserError, RunStopped) as error:
        print(f"p3o: {error}", flush=True)
        return {"kind": "failed", "reason": str(error)}
    except Exception as error:
        traceback.print_exc()
        said = " ".join(str(error).split())
        return {"kind": "failed", "reason": f"{type(error).__name__}: {said}" if said else type(error).__name__}


def _train(
    assignment: Assignment, send: Callable[[Message], None], stop: Stop, on_checkpoint: Callable[[], None] | None
) -> Message:
    from p3o import starting
    from p3o.jobs import Job
    from p3o.report import write_report

    folder, display = Path(assignment.folder), Reporter(send)
    wait_for_lock(folder)
    if (folder / "config.json").exists():
        run, held = starting.resume(folder, display)
    else:
        run, held = starting.start(Job(**assignment.job), folder, display, assignment.command)
    seen = run.checkpoints.last

    def after_iteration(_: Any) -> None:
        nonlocal seen
        is_settled = run.checkpoints.last != seen and not run.checkpoints.saver.is_busy  # no file comes or goes
        if on_checkpoint is not None and is_settled:
            seen = run.checkpoints.last
            on_checkpoint()

    with run.holding(held):
        if run.trainer.step >= run.steps:
            run.complete(stop)
        else:
            run.run(stop, after_iteration)
        if run.trainer.step < run.steps:
            return {"kind": "stopped", "step": run.trainer.step}
        write_report(folder)
    return {"kind": "finished", "step": run.trainer.step}


def wait_for_lock(folder: Path, seconds: float = LOCK_SECONDS) -> None:
    """Give a process of a killed sweep the time to stop; who holds the folder longer is named by what comes next."""
    from p3o.folder import FolderInUse, lock

    deadline = time.monotonic() + seconds
    while folder.exists() and time.monotonic() < deadline:
        try:
            with lock(folder):
                return
        except FolderInUse:
            time.sleep(0.1)


class Pipe:
    """The way to the sweep: a status is dropped when the pipe is full, the last message is not."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    def send(self, message: Message) -> None:
        if message["kind"] in FINAL:
            os.set_blocking(self._descriptor, True)
        try:
            os.write(self._descriptor, (json.dumps(message) + "\n").encode())
        except (BlockingIOError, BrokenPipeError):  # nobody reads, or nobody is there any more
            return


def stop_with_parent() -> None:
    """Stop like on SIGTERM once standard input ends, and at once if that takes too long."""

    def watch() -> None:
        while os.read(0, 4096):  # not through sys.stdin, whose lock would be held when the process ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LOCK_SECONDS / 2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    pipe = Pipe(int(sys.argv[1]))
    with StopSignals() as stop:
        assignment = Assignment(**json.loads(sys.stdin.buffer.readline()))
        stop_with_parent()
        pipe.send(work(assignment, pipe.send, stop))


if __name__ == "__main__":
    main()
