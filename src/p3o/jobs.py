"""What a user asked for, checked and brought to the point where training can start."""

import dataclasses
import datetime
import json
import operator
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym

from p3o import algorithms, device, seeds
from p3o.algorithms import Specs
from p3o.config import BEFORE, Config, make_config
from p3o.envs import known
from p3o.envs.atari import STACK, AtariGame, AtariVectorEnv
from p3o.envs.atari_games import find_game, is_atari
from p3o.envs.base import VectorEnv
from p3o.envs.gymnasium_env import GymnasiumVectorEnv, HostVectorEnv
from p3o.envs.making import make_env, try_out
from p3o.envs.quiet import silence_mujoco
from p3o.errors import UserError
from p3o.model import plain
from p3o.placement import accelerators
from p3o.presets import preset_settings
from p3o.provenance import machine, versions
from p3o.spaces import action_spec, observation_spec
from p3o.train import Trainer

FORMAT = 1  # of config.json

EnvSource: TypeAlias = str | Callable[[], gym.Env] | gym.vector.VectorEnv


class Job(NamedTuple):
    """What the user asked for."""

    env: EnvSource
    algo: str = "p3o"
    steps: int = 1_000_000
    seed: int = 0
    preset: str = "default"
    variant: str = ""
    settings: dict[str, Any] = {}  # noqa: RUF012 - never changed
    env_kwargs: dict[str, Any] = {}  # noqa: RUF012
    eval_every: int | None = None


def maker(source: EnvSource, kwargs: dict[str, Any]) -> Callable[[], gym.Env] | None:
    """The function that makes one environment, or None for a vector environment."""
    if isinstance(source, str):
        return lambda: make_env(source, kwargs)
    if isinstance(source, gym.vector.VectorEnv):
        return None
    if isinstance(source, gym.Env) or not callable(source):
        raise UserError(
            f"environment {type(source).__name__}: give an id, a function that makes a gymnasium.Env, or a VectorEnv"
        )
    silence_mujoco()  # it may be what the function makes
    return source


class Resolved(NamedTuple):
    """A job whose every part is known to be good; no trainer yet."""

    job: Job
    config: Config
    specs: Specs
    spaces: tuple[gym.Space, gym.Space]
    probe: gym.Env | None  # the (closed) environment that was asked for its spaces; None for a vector environment


class Setup(NamedTuple):
    """A job brought to the point where training can start; nothing is written yet."""

    job: Job
    config: Config
    specs: Specs
    trainer: Trainer
    spaces: tuple[gym.Space, gym.Space]
    cores: int = 1  # that XLA compiles for


def check_new(job: Job) -> None:
    """What is asked of a new run alone: a folder with an id without a version, from before, is not to be lost."""
    if isinstance(job.env, str):
        known.check_version(job.env)


def resolve(job: Job) -> Resolved:
    """Check a job's algorithm, environment, preset and settings, and say what they come to."""
    entry = algorithms.find(job.algo)
    for name in job.settings:
        having = [other.name for other in algorithms.ALGORITHMS.values() if hasattr(other.config, name)]
        if having and job.algo not in having:
            raise UserError(f"setting {name}: {job.algo} has no such setting; it is one of {', '.join(having)}")
    try:
        seed = operator.index(job.seed)
    except TypeError:
        seed = -1
    if not 0 <= seed < 2**63:
        raise UserError(f"seed {job.seed!r}: a whole number from 0 to 2⁶³ − 1 is needed")
    job = job._replace(seed=seed)
    make = maker(job.env, job.env_kwargs)
    if job.env_kwargs and not isinstance(job.env, str):
        raise UserError("env_kwargs goes with an environment id; a function makes its environment as it should be")
    probe = None
    if make is None:
        assert isinstance(job.env, gym.vector.VectorEnv)
        spaces = (job.env.single_observation_space, job.env.single_action_space)
    else:
        probe = make()
        if not isinstance(probe, gym.Env):
            raise UserError(f"environment {env_name(job.env)}: it made a {type(probe).__name__}, not a gymnasium.Env")
        spaces = (probe.observation_space, probe.action_space)
        if job.env_kwargs and not isinstance(probe, AtariGame):
            try_out(probe, env_name(job.env), job.env_kwargs)
        probe.close()
    is_game = isinstance(job.env, str) and is_atari(job.env)
    spec = observation_spec(spaces[0])._replace(frame_stack=STACK if is_game else 0)
    specs = Specs(spec, action_spec(spaces[1]))
    preset = preset_settings(job.algo, job.preset, specs.observation.kind, specs.action.kind, is_game)
    brought = {"num_envs": job.env.num_envs} if isinstance(job.env, gym.vector.VectorEnv) else {}
    config = make_config(entry.config, preset, brought, job.settings)
    if config.num_envs != brought.get("num_envs", config.num_envs):
        raise UserError(
            f"setting num_envs: {config.num_envs} differs from the vector environment's {brought['num_envs']}"
        )
    return Resolved(job, config, specs, spaces, probe)


def set_up(job: Job, device_name: str = "auto", cores: int | None = None) -> Setup:
    """Check everything about a job and build its trainer; a resumed one on the device and cores that it had."""
    was_in_use = device.is_in_use()  # an environment may compute with JAX, too
    job, config, specs, spaces, probe = resolve(job)
    cores = device.configure(specs.observation.kind, config.deterministic, cores, was_in_use)
    if device_name == "auto":
        device_name = config.device
    elif device_name == "gpu" and not accelerators():  # resumed on a machine without one
        device_name = "cpu"
    streams = seeds.derive(job.seed)
    make = maker(job.env, job.env_kwargs)
    env: VectorEnv
    if make is None:
        env = GymnasiumVectorEnv(job.env, streams.envs)
    elif isinstance(job.env, str) and is_atari(job.env):
        env = AtariVectorEnv(find_game(job.env, job.env_kwargs), config.num_envs, streams.envs)
    else:
        env = HostVectorEnv(make, config.num_envs, streams.envs)
        if len({id(e) for e in (probe, *env.envs)}) <= config.num_envs or _share_one(env.envs):
            raise UserError(f"environment {env_name(job.env)}: each call has to make an environment of its own")
    trainer = Trainer(algorithms.find(job.algo), config, env, specs, job.seed, device_name)
    return Setup(job, config, specs, trainer, spaces, cores)


def _share_one(envs: Sequence[gym.Env]) -> bool:
    """Whether wrappers of their own are around one and the same environment."""
    return len({id(env.unwrapped) for env in envs}) < len(envs)


def class_name(algo: str) -> str:
    """Of the Python class that has an algorithm; A2C's has both of its forms."""
    return "A2C" if algo == "a2cg" else algo.upper()


def env_name(source: EnvSource) -> str:
    """The id, or the name of what a Python user handed over."""
    if isinstance(source, str):
        return source
    if isinstance(source, gym.vector.VectorEnv):
        return type(source).__name__
    return getattr(source, "__name__", type(source).__name__)


def identity(setup: Setup | Resolved) -> dict[str, Any]:
    """The part of config.json that says what was asked for: the same for the same job."""
    job = setup.job
    return {
        "algo": job.algo,
        "preset": job.preset,
        "variant": job.variant,
        "seed": job.seed,
        "steps": job.steps,
        "eval_every": job.eval_every,
        "env": {
            "id": env_name(job.env),
            "is_python": not isinstance(job.env, str),  # made by a function or object: its id cannot make it again
            "kwargs": plain(job.env_kwargs),
            "observation_space": str(setup.spaces[0]),
            "action_space": str(setup.spaces[1]),
        },
        "settings": json.loads(json.dumps(dataclasses.asdict(setup.config))),
    }


def describe(setup: Setup, run_id: str, command: list[str] | None) -> dict[str, Any]:
    """The contents of config.json."""
    return {
        "format": FORMAT,
        "run_id": run_id,
        **identity(setup),
        "schedule_start": 0,
        "versions": versions(),
        "machine": machine(),
        "device": "cpu" if setup.trainer.device.platform == "cpu" else "gpu",
        "replay_on_host": setup.trainer.memory is not None,  # apart from the device's own memory
        "cores": setup.cores,
        "command": shlex.join(command) if command else None,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "resumes": [],
    }


CONFIG_TYPES: dict[str, type] = {  # of the entries of config.json that a resume needs
    "run_id": str,
    "algo": str,
    "preset": str,
    "variant": str,
    "seed": int,
    "steps": int,
    "schedule_start": int,
    "env": dict,
    "settings": dict,
    "versions": dict,
    "resumes": list,
}
ENV_TYPES: dict[str, type] = {
    "id": str,
    "is_python": bool,
    "kwargs": dict,
    "observation_space": str,
    "action_space": str,
}


def check_types(config: dict[str, Any], folder: Path) -> None:
    """Refuse a config.json with something missing, or of another kind than was written."""
    file = folder / "config.json"
    for types, part, prefix in ((CONFIG_TYPES, config, ""), (ENV_TYPES, config.get("env", {}), "env.")):
        for name, kind in types.items():
            if name not in part:
                raise UserError(f"{file} is damaged: {prefix}{name} is missing")
            if type(part[name]) is not kind:
                raise UserError(f"{file} is damaged: {prefix}{name} is {part[name]!r}, which is no {kind.__name__}")
    if config.get("device", "cpu") not in ("cpu", "gpu"):
        raise UserError(f"{file} is damaged: device is {config['device']!r}, which is neither cpu nor gpu")
    if type(config.get("cores", 1)) is not int or config.get("cores", 1) < 1:
        raise UserError(f"{file} is damaged: cores is {config['cores']!r}, which is no number of cores")
    every = config.get("eval_every")
    if config["steps"] < 1 or not (every is None or (type(every) is int and every >= 1)):
        raise UserError(f"{file} is damaged: steps is {config['steps']} and eval_every {every!r}")


def job_of(config: dict[str, Any], folder: Path, env: EnvSource | None) -> Job:
    """The job that a config.json describes."""
    check_types(config, folder)
    source = env if env is not None else config["env"]["id"]
    if env is None and config["env"]["is_python"]:
        how = f"{class_name(config['algo'])}.resume({str(folder)!r}, env=...)"
        raise UserError(f"{folder}: its environment was made in Python; resume with {how}")
    is_its_own = env is None or env == config["env"]["id"]
    if isinstance(env, str) and not is_its_own and not config["env"]["is_python"]:
        raise UserError(f"{folder}: the run is on {config['env']['id']}, not on {env}")
    return Job(
        source,
        config["algo"],
        config["steps"],
        config["seed"],
        config["preset"],
        config["variant"],
        BEFORE | config["settings"],
        config["env"]["kwargs"] if is_its_own else {},
        config.get("eval_every"),
    )
