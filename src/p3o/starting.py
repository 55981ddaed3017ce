"""A run begun in a new folder, or taken up where it stopped."""

import contextlib
import datetime
from pathlib import Path
from typing import Any

from p3o import checkpoint
from p3o.display import Display
from p3o.errors import UserError
from p3o.folder import check_free, fixed_part, leave_mark, lock, open_folder, read_config, write_config
from p3o.jobs import EnvSource, Job, Setup, check_new, job_of, set_up
from p3o.provenance import machine, versions
from p3o.recording import cut_back
from p3o.session import Session


def start(job: Job, folder: Path, display: Display, command: list[str] | None = None) -> tuple[Session, Any]:
    """A new run in a new folder; returns it with its lock."""
    check_free(folder)
    check_new(job)
    setup = set_up(job)
    config, stack = open_folder(setup, folder, command)
    return Session(setup, display, folder, config), stack


def resume(
    folder: Path, display: Display, steps: int | None = None, env: EnvSource | None = None
) -> tuple[Session, Any]:
    """The run in a folder, brought to its last checkpoint; returns it with its lock."""
    read_config(folder)  # else there is nothing to lock
    stack = contextlib.ExitStack()
    stack.enter_context(lock(folder))
    try:
        config = read_config(folder)
        return _resume_locked(folder, config, display, steps, env), stack
    except BaseException:
        stack.close()
        raise


def _resume_locked(
    folder: Path, config: dict[str, Any], display: Display, steps: int | None, env: EnvSource | None
) -> Session:
    job = job_of(config, folder, env)
    setup = set_up(job, config.get("device", "cpu"), config.get("cores"))
    has_lost_gpu = config.get("device") == "gpu" and setup.trainer.device.platform == "cpu"
    if has_lost_gpu:
        display.message("this run was on a GPU, and there is none here; the CPU goes on with it, not bit for bit")
    if config["env"]["observation_space"] != str(setup.spaces[0]) or config["env"]["action_space"] != str(
        setup.spaces[1]
    ):
        raise UserError(
            f"{folder}: the run was on spaces {config['env']['observation_space']} and "
            f"{config['env']['action_space']}, the environment has {setup.spaces[0]} and {setup.spaces[1]}"
        )
    session = Session(setup, display, folder, config)
    fresh = _restore(session, folder, config, steps)
    if fresh:
        display.message(
            "the environment cannot be brought back to where it was: the episodes that were running start afresh"
        )
    changed = has_lost_gpu
    planned: dict[str, Any] = {}
    if steps is not None and steps != job.steps:
        if setup.config.schedule_steps is None and setup.config.lr_schedule != "constant":
            display.message(f"the new total of {steps:,} steps is the new horizon of the learning-rate schedule")
            planned = {"planned": job.steps} if session.trainer.step else {}
        config["steps"] = session.steps = steps
        changed = True
    changed |= _tell_what_differs(setup, config, display)
    if changed:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = {"at_step": session.trainer.step, "steps": session.steps, "time": now}
        entry |= {"versions": versions(), "machine": machine(), **planned}
        if has_lost_gpu:
            entry["device"] = config["device"] = "cpu"
        config["resumes"].append(entry)
        leave_mark(folder)
        write_config(folder, config)
    return session


def _tell_what_differs(setup: Setup, config: dict[str, Any], display: Display) -> bool:
    """Versions, the machine and the replay's place: whether any is not as it was, so that numbers may not be."""
    differs = False
    now_used, here, before = versions(), machine(), config.get("machine")
    if any(now_used.get(package) != version for package, version in config["versions"].items()):
        display.message("this resume runs under other versions than before; it goes on, but not bit for bit")
        differs = True
    if isinstance(before, dict) and any(here.get(key) != value for key, value in before.items()):
        display.message("this resume runs on another machine than before; it goes on, but perhaps not bit for bit")
        differs = True
    if config.get("cores", setup.cores) != setup.cores:
        told = "XLA is set up for {} in this process, the run had {}; it goes on, but perhaps not bit for bit"
        display.message(told.format(setup.cores, config["cores"]))
        config["cores"] = setup.cores
        differs = True
    is_on_host = setup.trainer.memory is not None
    if config.get("replay_on_host", is_on_host) != is_on_host:  # a GPU with more room, or with less
        places = ("on the device", "in host memory") if is_on_host else ("in host memory", "on the device")
        told = "the replay was {} before and is {} now; it goes on, but perhaps not bit for bit"
        display.message(told.format(*places))
        config["replay_on_host"] = is_on_host
        differs = True
    return differs


def _restore(session: Session, folder: Path, config: dict[str, Any], steps: int | None) -> list[int]:
    """Go on from the folder's checkpoint, or from the start if there is none yet; `steps` is a new total."""
    if not checkpoint.exists(folder / "checkpoint"):
        if (folder / "model").exists():
            raise UserError(f"{folder / 'checkpoint'} is missing: the run cannot go on without it")
        if config.get("steps_before"):
            raise UserError(
                f"{folder}: the run was to go on from a saved model, and was stopped before its first checkpoint; "
                "remove the folder, and let the model learn again"
            )
        session.display.message("there was no checkpoint yet: the run begins again")
        cut_back(folder, None)
        return []
    tree = checkpoint.load(folder / "checkpoint", config["run_id"])
    try:
        for key, value in fixed_part(config).items():
            if tree["job"][key] != value:
                raise UserError(f"{folder / 'config.json'} was changed: {_change(key, tree['job'][key], value)}")
        if steps is not None and steps < tree["trainer"]["step"] and steps != config["steps"]:
            at = tree["trainer"]["step"]
            raise UserError(f"--steps {steps:,}: the run is at step {at:,} already; a larger total is needed")
        return session.restore(tree)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{folder / 'checkpoint'} does not fit this run: {reason}") from None


def _change(key: str, before: Any, now: Any) -> str:
    """Which setting differs, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        absent = "absent"
        name = next(n for n in sorted(before.keys() | now.keys()) if before.get(n, absent) != now.get(n, absent))
        return f"{key} {name} is {now.get(name, absent)}, the checkpoint was made with {before.get(name, absent)}"
    return f"{key} is {now}, the checkpoint was made with {before}"
