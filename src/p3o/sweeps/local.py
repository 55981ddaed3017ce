"""The engine for this machine: one single-threaded process for each core."""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from p3o.device import GPU_SHARE, SINGLE_THREAD_FLAGS, available_cores
from p3o.errors import UserError
from p3o.folder import WORKER_LOG
from p3o.placement import NO_GPU
from p3o.sweeps.plan import Run, has_cuda
from p3o.sweeps.worker import FINAL, Assignment, Message

KILL_SECONDS = 10.0  # between the wish that a process stops at once and the end of patience
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Event(NamedTuple):
    """News of a run: a message of its process, or `died` with a reason."""

    run: Run
    message: Message


def single_thread_variables(may_use_gpu: bool) -> dict[str, str]:
    """The environment variables of a process that is to use one core, and no GPU unless it may."""
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_cpu_multi_thread_eigen" not in flags:
        flags = f"{flags} {SINGLE_THREAD_FLAGS}".strip()
    variables = dict.fromkeys(THREAD_VARIABLES, "1") | {"XLA_FLAGS": flags}
    return variables | ({} if may_use_gpu else {"JAX_PLATFORMS": "cpu"})


def own_paths() -> dict[str, str]:
    """The environment variable with which another Python finds what this one finds."""
    return {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def has_gpu() -> bool:
    """Whether JAX finds a GPU; asked in another process, since this one would keep a part of its memory."""
    code = "import sys; from p3o.placement import accelerators; sys.exit(not accelerators())"
    variables = os.environ | own_paths() | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    asked = subprocess.run([sys.executable, "-P", "-c", code], env=variables, capture_output=True, check=False)
    return asked.returncode == 0


def check_gpu(runs: Sequence[Run]) -> None:
    """Refuse new runs that ask for a GPU where there is none; those that have begun go on without it."""
    is_asked = any(r.device == "gpu" and not (r.folder / "config.json").exists() for r in runs)
    if is_asked and not has_gpu():
        raise UserError(NO_GPU)


def runs_at_once(runs: Sequence[Run]) -> int:
    """As many as there are cores; half as many if all are games that share a GPU: each run plays several at once."""
    number = len(available_cores())
    plays_on_gpu = all(run.kind == "image" and run.may_use_gpu for run in runs) and has_cuda() and has_gpu()
    return max(number // 2, 1) if plays_on_gpu else number


def assignment(run: Run, folder: Path, command: list[str] | None) -> Assignment:
    """What a process is told about a run, as plain data: every setting resolved, as its config.json will hold them."""
    settled = {"settings": run.asked["settings"], "env_kwargs": run.asked["env"]["kwargs"]}
    return Assignment(run.job._replace(**settled)._asdict(), str(folder), command)


class Worker:
    """A process and what it has said so far."""

    def __init__(self, run: Run, slot: int, core: int | None, command: list[str] | None, beside: int = 1):
        """`beside` runs share a GPU, this one counted in."""
        self.run, self.slot = run, slot
        self.unread = b""
        self.last: Message | None = None
        self.reader, writer = os.pipe()
        variables = os.environ | single_thread_variables(run.may_use_gpu) | own_paths()
        variables |= {GPU_SHARE: str(beside)}
        try:
            run.folder.mkdir(parents=True, exist_ok=True)
            with open(run.folder / WORKER_LOG, "ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "p3o.sweeps.worker", str(writer)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=variables,
                    pass_fds=(writer,),
                    start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
                )
        except OSError as error:
            os.close(self.reader)
            raise UserError(f"{run.folder}: no process could be started: {error.strerror}") from None
        finally:
            os.close(writer)
        if core is not None:
            with contextlib.suppress(OSError):  # gone already, or not allowed
                os.sched_setaffinity(self.process.pid, {core})
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            told = json.dumps(assignment(run, run.folder, command)._asdict())
            self.process.stdin.write(told.encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> tuple[list[Message], bool]:
        """Messages that have come, and whether the process has closed its end."""
        data = os.read(self.reader, 65536)
        *lines, self.unread = (self.unread + data).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if message["kind"] in FINAL:
                self.last = message
        return messages, not data

    def end(self) -> Message:
        """Wait for the process and say how it ended."""
        code = self.process.wait()
        self.close()
        if self.last is not None:
            return self.last
        if code < 0:
            return {"kind": "died", "reason": f"its process was killed by {_signal_name(-code)}"}
        return {"kind": "died", "reason": f"its process ended with exit code {code}"}

    def close(self) -> None:
        os.close(self.reader)
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class LocalPool:
    """Processes on this machine, each pinned to a core of its own when there is one for every core."""

    def __init__(self, workers: int, command: list[str] | None, num_runs: int | None = None):
        cores = available_cores()
        self.capacity = workers
        self._most = min(self.capacity, num_runs or self.capacity)  # runs at once that there can be
        self._command = command
        # With fewer processes than cores the system's scheduler does better: other programs run too.
        self._cores = cores if self.capacity >= len(cores) and hasattr(os, "sched_setaffinity") else []
        self._workers: dict[int, Worker] = {}  # by reader
        self._selector = selectors.DefaultSelector()

    @property
    def runs(self) -> Sequence[Run]:
        return [worker.run for worker in self._workers.values()]

    def start(self, run: Run) -> None:
        taken = {worker.slot for worker in self._workers.values()}
        slot = next(i for i in range(self.capacity) if i not in taken)
        core = self._cores[slot % len(self._cores)] if self._cores else None
        worker = Worker(run, slot, core, self._command, self._most)
        self._workers[worker.reader] = worker
        self._selector.register(worker.reader, selectors.EVENT_READ)

    def poll(self, seconds: float) -> list[Event]:
        """What has happened, after waiting for at most so long for something to happen."""
        events = []
        for key, _ in self._selector.select(seconds):
            worker = self._workers[key.fd]
            messages, is_closed = worker.read()
            events += [Event(worker.run, m) for m in messages if m["kind"] not in FINAL]
            if is_closed:
                self._selector.unregister(key.fd)
                del self._workers[key.fd]
                events.append(Event(worker.run, worker.end()))
        return events

    def stop(self) -> None:
        """Ask every process to stop where its run can go on exactly."""
        for worker in self._workers.values():
            worker.process.terminate()

    def close(self) -> None:
        """End what still runs, at once."""
        for worker in self._workers.values():
            worker.process.kill()
        deadline = time.monotonic() + KILL_SECONDS
        for worker in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(max(deadline - time.monotonic(), 0))
            worker.close()
        self._workers.clear()
        self._selector.close()
