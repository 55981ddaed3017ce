"""A run's folder: made once, written by one process at a time, never overwritten."""

import contextlib
import fcntl
import shlex
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p3o import checkpoint
from p3o.errors import UserError
from p3o.jobs import FORMAT, Job, Setup, describe, env_name

WORKER_LOG = "worker.log"  # what a sweep's process printed
LEFTOVERS = (".lock", "config.json.tmp", WORKER_LOG)  # of a run that was killed before it was one


class FolderInUse(UserError):
    """Another process holds the folder; it may let go of it."""


class FolderChanged(UserError):
    """Somebody else has written to the folder."""


@contextlib.contextmanager
def lock(folder: Path, mark: str | None = None) -> Iterator[None]:
    """One writer a folder; the lock goes with the process, however it ends.

    Each leaves a mark of its own in the file, so that one that comes back can tell whether there was another: with
    `mark`, what `mark_in` said when it left, it is refused then.
    """
    try:
        file = open(folder / ".lock", "a+")  # noqa: SIM115
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise FolderInUse(f"{folder} is being written by another process or agent") from None
    except OSError:
        pass  # a file system without locks
    try:
        if mark is not None and mark_in(folder) != mark:
            raise FolderChanged(f"{folder} was changed since this agent left it")
        _leave_mark(file, folder)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # of a process that was forked meanwhile, too
        file.close()


def _leave_mark(file: Any, folder: Path) -> None:
    try:
        file.truncate(0)
        file.write(uuid.uuid4().hex)
        file.flush()
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from None


def mark_in(folder: Path) -> str:
    """That of the last writer."""
    try:
        return (folder / ".lock").read_text()
    except OSError:  # removed, or without permission: nobody's
        return ""


def default_folder(job: Job) -> Path:
    """runs/ENV/ALGO-PRESET[-VARIANT]/seed-N, or the next free name after it."""
    first = folder = run_folder(Path("runs"), job)
    count = 2
    while folder.exists():
        folder = first.with_name(f"{first.name}-{count}")
        count += 1
    return folder


def run_folder(out: Path, job: Job) -> Path:
    """OUT/ENV/ALGO-PRESET[-VARIANT]/seed-N: where a run lies in a folder of many."""
    name = "-".join(part for part in (job.algo, job.preset, job.variant) if part)
    return out / folder_name(env_name(job.env)) / name / f"seed-{job.seed}"


def folder_name(env_id: str) -> str:
    return env_id.replace("/", "-").replace(":", "-")


def open_folder(setup: Setup, folder: Path, command: list[str] | None) -> tuple[dict[str, Any], Any]:
    """Make a run folder with its config.json; returns the config and the lock that the caller holds to the end."""
    check_free(folder)
    config = describe(setup, uuid.uuid4().hex, command)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock(folder))
        check_free(folder)  # again: another process may have come first
        try:
            checkpoint.write_json(folder / "config.json", config)
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror}") from None
        return config, stack.pop_all()


def check_free(folder: Path) -> None:
    """Refuse a folder that holds anything."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and all(p.name in LEFTOVERS for p in folder.iterdir()))
    except OSError as error:
        raise UserError(f"{folder} cannot be used: {error.strerror}") from None
    if is_free:
        return
    if (folder / "config.json").exists():
        go_on = f"p3o resume {shlex.quote(str(folder))}"
        raise UserError(f"{folder} exists: go on with `{go_on}`, or choose another folder")
    raise UserError(f"{folder} is {'not empty' if folder.is_dir() else 'no folder'}; choose another folder")


def read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise UserError(f"{folder} is no run: {'it is a file' if folder.exists() else 'there is no such folder'}")
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} is no run: it has no config.json")
    return checkpoint.read_json(folder / "config.json", "a run's config", FORMAT)


def fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same in config.json when the run goes on."""
    return {key: config[key] for key in ("algo", "seed", "settings", "env")}


def command_line() -> list[str]:
    return ["p3o", *sys.argv[1:]]
