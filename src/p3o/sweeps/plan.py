"""What a sweep has to do: every job checked before anything runs, and what its folder holds already."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from p3o import algorithms, checkpoint, device, speeds
from p3o.config import BEFORE
from p3o.errors import UserError
from p3o.folder import check_free, read_config, run_folder
from p3o.jobs import Job, Resolved, check_new, identity, resolve
from p3o.placement import format_bytes

State = Literal["waiting", "running", "finished", "failed"]
MISSING = object()


@dataclass
class Run:
    """One run of a sweep and where it stands."""

    job: Job
    folder: Path
    asked: dict[str, Any]  # what config.json has to say
    kind: str  # of its observations: vector or image
    replay_bytes: int
    seconds_per_step: float  # a guess, until runs of its kind have been measured
    state: State = "waiting"
    step: int = 0
    mean_return: float | None = None  # of the last 100 episodes
    steps_per_second: float | None = None
    deaths: int = 0  # of its process, since it last made progress
    saved_step: int = 0  # of the checkpoint from which the running attempt started
    reason: str | None = None  # why it failed
    log: str | None = None  # the end of what its process printed

    @property
    def name(self) -> str:
        return " ".join(self.folder.parts[-3:])

    @property
    def device(self) -> str:
        """Where it is to learn: auto, cpu or gpu."""
        return str(self.asked["settings"]["device"])

    @property
    def may_use_gpu(self) -> bool:
        """Whether it learns on a GPU where there is one; left to itself a run on vectors keeps to its core."""
        return self.device == "gpu" or (self.device == "auto" and self.kind == "image")

    @property
    def group(self) -> tuple[str, str]:
        """Runs of one group take the same time per step: they differ in their seed alone."""
        return self.folder.parts[-3], self.folder.parts[-2]


class _Kind(NamedTuple):
    """What jobs that differ only in their seed and steps have in common."""

    resolved: Resolved
    replay_bytes: int
    seconds_per_step: float


def check_jobs(jobs: Sequence[Job], out: Path) -> list[Run]:
    """The runs of a sweep, each job checked in full; equal jobs once, different ones in the same folder refused."""
    if not jobs:
        raise UserError("the sweep is empty: it needs at least one environment, algorithm and seed")
    kinds: dict[str, _Kind] = {}
    runs: dict[Path, Run] = {}
    for job in jobs:
        if not isinstance(job.env, str):
            raise UserError("a sweep needs environment ids: its processes make the environments themselves")
        if not job.steps >= 1 or (job.eval_every is not None and job.eval_every < 1):
            raise UserError(f"steps {job.steps}, eval_every {job.eval_every}: at least 1 is needed")
        if not 0 <= job.seed < 2**63:
            raise UserError(f"seed {job.seed}: a whole number of at least 0 is needed")
        key = repr((job.env, job.algo, job.preset, job.settings, job.env_kwargs))
        if key not in kinds:
            kinds[key] = _check_kind(job)
        resolved, replay_bytes, seconds_per_step = kinds[key]
        folder = run_folder(out, job)
        asked = identity(resolved._replace(job=job))
        if folder in runs and runs[folder].asked != asked:
            what = _difference(runs[folder].asked, asked)
            raise UserError(f"{folder} is wanted by two runs that differ ({what}); give one of them a variant")
        kind = resolved.specs.observation.kind
        runs.setdefault(folder, Run(job, folder, asked, kind, replay_bytes, seconds_per_step))
    return list(runs.values())


def _check_kind(job: Job) -> _Kind:
    check_new(job)
    resolved = resolve(job)
    algorithm = algorithms.find(job.algo).make(resolved.config, resolved.specs)
    # Not measured here: a simulator that crashes when it is stepped is to take a worker down, not the sweep.
    seconds = speeds.seconds_per_step(str(job.env), job.algo, resolved.specs.observation.kind == "image")
    return _Kind(resolved, algorithm.replay_bytes, seconds)


def has_cuda() -> bool:
    """Whether JAX is installed for NVIDIA's GPUs; quick to ask, unlike whether there is one."""
    return any(find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


def check_memory(runs: Sequence[Run], workers: int) -> None:
    """Refuse as many replays side by side as do not fit, before the kernel does."""
    on_gpu = has_cuda()
    is_on_host = (not (on_gpu and r.may_use_gpu) or r.asked["settings"].get("replay_device") == "host" for r in runs)
    sizes = sorted(r.replay_bytes for r, here in zip(runs, is_on_host, strict=True) if r.state == "waiting" and here)
    needed, free = sum(sizes[-workers:]), device.free_memory()
    if free is not None and needed > 0.9 * free:
        raise UserError(
            f"the replays of {min(workers, len(sizes))} runs at once need {format_bytes(needed)} and "
            f"{format_bytes(free)} of memory are free; lower it with --workers N or --set replay_size=N"
        )


def check_out(out: Path) -> None:
    """Refuse a folder that cannot be a sweep's."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file; a sweep needs a folder")
    if (out / "config.json").exists():
        raise UserError(f"{out} is a run; choose another folder for the sweep")


def inspect(run: Run) -> None:
    """Bring a run's state up to what its folder says, or refuse a folder that holds another run."""
    if not (run.folder / "config.json").exists():
        check_free(run.folder)
        return
    config = read_config(run.folder)
    found = {key: config.get(key) for key in run.asked}
    settings = found["settings"]
    if isinstance(settings, dict):  # those that are newer than the run are what they were before
        found["settings"] = _defaults(run.job.algo) | BEFORE | settings
    if found != run.asked:
        raise UserError(
            f"{run.folder} holds another run than asked for ({_difference(found, run.asked)}); "
            "choose another folder (or, for a sweep, a --variant), or remove it"
        )
    run.step = run.saved_step = saved_step(run.folder)
    if run.step >= run.job.steps and _is_complete(run.folder, run.step):
        run.state = "finished"


def _defaults(algo: str) -> dict[str, Any]:
    """An algorithm's settings as config.json would hold them if nothing were set."""
    config: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(algorithms.find(algo).config())))
    return config


def _is_complete(folder: Path, step: int) -> bool:
    """Whether everything after the last checkpoint was written too."""
    return (folder / "report.html").exists() and _step_in(folder / "model" / "model.json") == step


def saved_step(folder: Path) -> int:
    """The step of a run's checkpoint; 0 before the first."""
    return _step_in(folder / "checkpoint" / checkpoint.INDEX)


def _step_in(file: Path) -> int:
    """0 also for a damaged file: the run's own process will say what is wrong with it."""
    try:
        step = checkpoint.read_json(file, "a step").get("step")
    except UserError:
        return 0
    return step if isinstance(step, int) else 0


def _difference(found: Any, asked: Any, name: str = "") -> str:
    """The first thing that differs: `settings gamma is 0.99, asked for 0.98`."""
    if isinstance(found, dict) and isinstance(asked, dict):
        key = next(k for k in [*asked, *found] if found.get(k, MISSING) != asked.get(k, MISSING))
        return _difference(found.get(key, MISSING), asked.get(key, MISSING), f"{name} {key}".strip())
    there, here = ("missing" if value is MISSING else repr(value) for value in (found, asked))
    return f"{name} is {there} there, {here} here"


def seconds_left(run: Run, runs: Sequence[Run]) -> float:
    """An estimate from runs that differ in the seed alone where there are some, else from a guess."""
    left = max(run.job.steps - run.step, 0)
    if run.steps_per_second:
        return left / run.steps_per_second
    speeds = [r.steps_per_second for r in runs if r.group == run.group and r.steps_per_second]
    return left * len(speeds) / sum(speeds) if speeds else left * run.seconds_per_step


def sweep_seconds_left(runs: Sequence[Run], workers: int) -> float:
    """Time until the last run ends, with all workers busy or the longest run alone at the end."""
    left = [seconds_left(r, runs) for r in runs if r.state in ("waiting", "running")]
    return max(sum(left) / max(workers, 1), max(left)) if left else 0.0


def next_run(runs: Sequence[Run]) -> Run | None:
    """The waiting run that will take longest."""
    waiting = [r for r in runs if r.state == "waiting"]
    return max(waiting, key=lambda r: seconds_left(r, runs), default=None)
