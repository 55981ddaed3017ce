"""The engine for a Ray cluster: one task for each run, whose files come back at every checkpoint.

A task works in a scratch folder of its node. After each checkpoint it sends what has changed to a mailbox, an actor
that the sweep empties into its own folder several times a second: a lost node costs at most one checkpoint interval.
Ray's own messages are pickled; the files of a run are bytes in them and hold none.
"""

import contextlib
import io
import logging
import os
import signal
import socket
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p3o.device import available_cores
from p3o.envs.quiet import quietly
from p3o.errors import RunStopped, UserError, extra
from p3o.folder import WORKER_LOG, leave_mark, lock
from p3o.sweeps.local import Event, assignment, single_thread_variables
from p3o.sweeps.parcels import Packer, Parcel, read_all, scratch_folder, unpack
from p3o.sweeps.plan import Run
from p3o.sweeps.worker import Assignment, Message, wait_for_lock, work

RESOURCE_SECONDS = 5.0  # between two looks at how large the cluster is
ANSWER_SECONDS = 60.0  # that the mailbox may take
CONNECT_SECONDS = 5.0
SMALLEST_GPU_SHARE = 0.1
NodeResult = tuple[Message, Parcel, str]  # last message, last files, log


class Mailbox:
    """Messages of all nodes until the sweep takes them; lives as an actor in the cluster."""

    def __init__(self) -> None:
        self._messages: list[tuple[str, Message | Parcel]] = []
        self._known: set[str] = set()
        self._is_stopping = False

    def expect(self, token: str) -> None:
        self._known.add(token)

    def forget(self, token: str) -> None:
        self._known.discard(token)

    def put(self, token: str, content: Message | Parcel) -> bool:
        """Take a message in; True tells the sender to stop: the sweep stops, or has given this attempt up."""
        if token not in self._known:
            return True
        self._messages.append((token, content))
        return self._is_stopping

    def take(self) -> list[tuple[str, Message | Parcel]]:
        taken, self._messages = self._messages, []
        return taken

    def stop(self) -> None:
        self._is_stopping = True


class _Wish:
    """The wish to stop, as the mailbox's answers bring it."""

    received: int | None = None


def run_on_node(told: Assignment, files: Parcel, mailbox: Any, token: str) -> NodeResult:
    """A run on its node: brought here, trained in a scratch folder, sent home at every checkpoint."""
    import ray

    wish, log = _Wish(), io.StringIO()

    def send(content: Message | Parcel) -> None:
        if ray.get(mailbox.put.remote(token, content)):
            wish.received = signal.SIGTERM

    send({"kind": "begun"})
    if wish.received is not None:  # while the task waited for its place
        return {"kind": "stopped"}, Parcel([], []), ""
    with scratch_folder() as name:
        folder = Path(name)
        unpack(files, folder)
        packer = Packer(folder)
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            message = work(told._replace(folder=name), send, wish, lambda: send(packer.pack()))
        if "reason" in message:
            message["reason"] = message["reason"].replace(name, told.folder)
        return message, packer.pack(), log.getvalue().replace(name, told.folder)


def connect(address: str, workers: int | None) -> Any:
    """Ray, connected to a cluster, or one line about what is missing."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # or it prints each dead worker to standard output
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        with quietly():
            import ray
    except ImportError:
        raise UserError(f"--ray needs Ray: {extra('ray')}") from None
    _check_address(address)
    own = {"num_cpus": workers or len(available_cores()), "include_dashboard": False} if address == "local" else {}
    try:
        with quietly():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL, **own)
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        hint = "" if address in ("auto", "local") else " (one that asks for a token needs RAY_AUTH_MODE=token here)"
        raise UserError(f"--ray {address}: no cluster could be reached: {said}{hint}") from None
    return ray


def _check_address(address: str) -> None:
    """Ray itself waits for minutes, or ends the process, where nobody answers."""
    at = _found_by_auto() if address == "auto" else address
    if at is None or at == "local":
        return
    host, _, port = at.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UserError(f"--ray {address}: auto, local, HOST:PORT or ray://HOST:PORT was expected")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address}: nobody answers there ({error})") from None


def _found_by_auto() -> str | None:
    """Where `auto` will look: the file in which `ray start` leaves its address outlives a cluster that was killed."""
    if os.environ.get("RAY_ADDRESS"):
        return os.environ["RAY_ADDRESS"]
    folder = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
    try:
        return (folder / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _unpacked(parcel: Parcel, folder: Path) -> str | None:
    """Write a parcel; returns why that could not be done, a full disk for instance."""
    try:
        unpack(parcel, folder)
    except OSError as error:
        return f"{error.filename or folder} cannot be written: {error.strerror or error}"
    return None


class RayEngine:
    """Tasks on a cluster; retries are the sweep's, since a new attempt needs the files of the last checkpoint."""

    def __init__(self, address: str, workers: int | None, command: list[str] | None):
        self._ray = connect(address, workers)
        self._workers, self._command = workers, command
        self._tasks: dict[Any, tuple[Run, str]] = {}  # by the reference to the result: the run and its attempt's token
        self._begun: set[str] = set()
        self._locks: dict[Path, contextlib.ExitStack] = {}
        self._resources: dict[str, float] = {}
        self._looked = -RESOURCE_SECONDS
        # A process for each task: JAX takes its settings once in a process.
        self._task = self._ray.remote(num_cpus=1, max_retries=0, max_calls=1)(run_on_node)
        self._open_mailbox()

    def _open_mailbox(self) -> None:
        """Beside this process where that is in the cluster, since it is of no use without it."""
        here = self._ray.get_runtime_context().get_node_id()
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=True)
        self._mailbox = self._ray.remote(num_cpus=0, scheduling_strategy=strategy)(Mailbox).remote()

    @property
    def runs(self) -> Sequence[Run]:
        return [run for run, _ in self._tasks.values()]

    @property
    def capacity(self) -> int:
        """Runs at once: as many as asked for, else as many as the cluster has cores at the moment."""
        return self._workers or max(int(self._cluster().get("CPU", 1)), 1)

    def _cluster(self) -> dict[str, float]:
        if time.monotonic() - self._looked >= RESOURCE_SECONDS:
            self._looked, self._resources = time.monotonic(), self._ray.cluster_resources()
        return self._resources

    def _gpu_share(self, run: Run) -> float:
        """Runs that may use them share the cluster's GPUs evenly."""
        gpus = self._cluster().get("GPU", 0.0)
        if not run.may_use_gpu or not gpus:
            return 0.0
        return max(SMALLEST_GPU_SHARE, min(1.0, int(100 * gpus / self.capacity) / 100))

    def start(self, run: Run) -> None:
        self._claim(run.folder)
        try:
            files = read_all(run.folder)
        except OSError as error:
            self._locks.pop(run.folder).close()
            raise UserError(f"{error.filename or run.folder} cannot be read: {error.strerror}") from None
        token = uuid.uuid4().hex
        self._mailbox.expect.remote(token)
        variables = single_thread_variables(run.may_use_gpu)
        options = {"num_gpus": self._gpu_share(run), "runtime_env": {"env_vars": variables}}
        told = assignment(run, run.folder, self._command)
        task = self._task.options(**options).remote(told, files, self._mailbox, token)
        self._tasks[task] = (run, token)

    def _claim(self, folder: Path) -> None:
        """Hold the lock of a run's folder while a node works on it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{folder} cannot be made: {error.strerror}") from None
        wait_for_lock(folder)
        with contextlib.ExitStack() as stack:
            stack.enter_context(lock(folder))
            leave_mark(folder)
            self._locks[folder] = stack.pop_all()

    def poll(self, seconds: float) -> list[Event]:
        """Files are written as they come; what is said about a run that has ended comes last."""
        try:
            ended, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=seconds)
            events = self._empty_mailbox()
        except self._ray.exceptions.RayActorError:
            return self._start_over()
        except (self._ray.exceptions.RaySystemError, self._ray.exceptions.GetTimeoutError, ConnectionError) as error:
            said = " ".join(str(error).split())
            raise RunStopped(f"the Ray cluster is gone: {said}; the same command goes on from the last files") from None
        for task in ended:
            if task in self._tasks:  # else it was given up just now
                run, _ = self._tasks[task]
                events.append(Event(run, self._result(task, run)))
                self._let_go(task)
        return events

    def _let_go(self, task: Any) -> None:
        run, token = self._tasks.pop(task)
        self._mailbox.forget.remote(token)
        self._locks.pop(run.folder).close()

    def _empty_mailbox(self) -> list[Event]:
        by_token = {token: task for task, (_, token) in self._tasks.items()}
        events = []
        for token, content in self._ray.get(self._mailbox.take.remote(), timeout=ANSWER_SECONDS):
            task = by_token.get(token)
            if task not in self._tasks:
                continue
            run, _ = self._tasks[task]
            if isinstance(content, Parcel):
                trouble = _unpacked(content, run.folder)
                if trouble is not None:  # its node would go on for nothing
                    self._cancel(task)
                    self._let_go(task)
                    events.append(Event(run, {"kind": "failed", "reason": trouble}))
            elif content["kind"] == "begun":
                self._begun.add(token)
            else:
                events.append(Event(run, content))
        return events

    def _result(self, task: Any, run: Run) -> Message:
        """What a task returned, its last files written; or how it was lost."""
        try:
            message, parcel, log = self._ray.get(task, timeout=ANSWER_SECONDS)
        except self._ray.exceptions.RayError as error:
            lines = str(error).splitlines() or [type(error).__name__]
            reason = f"its Ray task was lost: {lines[-1] if 'Traceback' in lines[0] else lines[0]}"
            self._append_log(run, reason + "\n")
            return {"kind": "died", "reason": reason}
        trouble = _unpacked(parcel, run.folder)
        self._append_log(run, log)
        return message if trouble is None else {"kind": "failed", "reason": trouble}

    def _append_log(self, run: Run, text: str) -> None:
        """As far as there is room for it."""
        with contextlib.suppress(OSError):
            run.folder.mkdir(parents=True, exist_ok=True)
            with open(run.folder / WORKER_LOG, "a", encoding="utf-8") as log:
                log.write(text)

    def _start_over(self) -> list[Event]:
        """The mailbox was lost with its node: every run goes on from the files that had come out of it."""
        lost = [run for run, _ in self._tasks.values()]
        self._end_tasks()
        self._open_mailbox()
        return [Event(run, {"kind": "died", "reason": "the node of the sweep's mailbox was lost"}) for run in lost]

    def _end_tasks(self) -> None:
        for task in self._tasks:
            self._cancel(task)
        self._tasks.clear()
        for held in self._locks.values():
            held.close()
        self._locks.clear()

    def _cancel(self, task: Any) -> None:
        with contextlib.suppress(Exception):  # gone already
            self._ray.cancel(task, force=True)

    def stop(self) -> None:
        """Ask every task to stop where its run can go on exactly; those that have not begun are taken back."""
        self._mailbox.stop.remote()
        for task, (_, token) in self._tasks.items():
            if token not in self._begun:
                self._ray.cancel(task, force=True)

    def close(self) -> None:
        self._end_tasks()
        self._ray.shutdown()
