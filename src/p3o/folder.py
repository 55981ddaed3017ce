"""A run's folder: made once, written by one process at a time, never overwritten."""

import contextlib
import fcntl
import os
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

    With `mark`, what `mark_in` said when a writer left, it is refused if there was another one since.
    """
    try:
        file = open(folder / ".lock", "ab")  # noqa: SIM115
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
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # of a process that was forked meanwhile, too
        file.close()


def leave_mark(folder: Path) -> None:
    """Before anything is written, by whoever holds the lock: one that comes back sees that there was another."""
    try:
        file = os.open(folder / ".lock", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.pwrite(file, uuid.uuid4().hex.encode(), 0)  # over the one before: on a full disk, too
        finally:
            os.close(file)
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


def open_folder(
    setup: Setup, folder: Path, command: list[str] | None, steps_before: int = 0
) -> tuple[dict[str, Any], Any]:
    """Make a run folder with its config.json; returns the config and the lock that the caller holds to the end."""
    check_free(folder)
    config = describe(setup, uuid.uuid4().hex, command)
    if steps_before:
        config["steps_before"] = steps_before  # of the model that it goes on from
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock(folder))
        check_free(folder)  # again: another process may have come first
        write_config(folder, config)
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


def write_config(folder: Path, config: dict[str, Any]) -> None:
    try:
        checkpoint.write_json(folder / "config.json", config)
    except OSError as error:
        raise UserError(f"{folder / 'config.json'} cannot be written: {error.strerror}") from None


def fixed_part(config: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same in config.json when the run goes on."""
    return {key: config[key] for key in ("algo", "seed", "settings", "env")}


def command_line() -> list[str]:
    return ["p3o", *sys.argv[1:]]
