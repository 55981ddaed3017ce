"""One environment from its id; what goes wrong on the way in one line."""

import importlib
from pathlib import Path
from typing import Any

import gymnasium as gym

from p3o.envs import known
from p3o.envs.atari import AtariGame
from p3o.envs.atari_games import find_game, is_atari
from p3o.envs.quiet import quietly, silence_mujoco
from p3o.errors import UserError, extra


def make_env(env_id: str, kwargs: dict[str, Any], render_mode: str | None = None) -> gym.Env:
    """One environment by id (`Name-v0` or `module:Name-v0`), without Gymnasium's checker; errors in one line."""
    if is_atari(env_id):
        return AtariGame(find_game(env_id, kwargs), render_mode)
    silence_mujoco()
    if env_id.startswith("p3o/"):
        _register_own(env_id)
    module, _, name = env_id.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        known.check_there(env_id, name)
        with quietly():
            # not every constructor takes a render_mode
            mode = {} if render_mode is None else {"render_mode": render_mode}
            return gym.make(name, disable_env_checker=True, **mode, **kwargs)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if module and error.name is not None and f"{module}.".startswith(f"{error.name}."):
            hint = f"; for {module}.py in this folder set PYTHONPATH=." if Path(f"{module}.py").exists() else ""
            raise UserError(f"environment {env_id!r}: there is no module {module!r}{hint}") from None
        raise UserError(_missing(env_id, str(error))) from None
    except gym.error.DependencyNotInstalled as error:
        raise UserError(_missing(env_id, str(error))) from None
    except gym.error.Error as error:
        hint = known.hint(name)
        if not hint and isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound):
            hint = "; `p3o list environments` shows those that are there"
        raise UserError(f"unknown environment {env_id!r}{hint}" if hint else _one_line(env_id, error)) from None
    except (TypeError, ValueError, AssertionError, OSError, ImportError) as error:
        raise UserError(_one_line(env_id, error)) from None
    except Exception as error:
        if not kwargs:  # a mistake in the environment, which its author wants to see whole
            raise
        raise UserError(f"environment {env_id!r} cannot be made with {_blamed(kwargs, error)}") from None


def try_out(env: gym.Env, env_id: str, kwargs: dict[str, Any]) -> None:
    """One step: constructors take what they are given, and a wrong value shows when it is used."""
    try:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    except Exception as error:
        raise UserError(f"environment {env_id!r} does not run with {_blamed(kwargs, error)}") from None


def _blamed(kwargs: dict[str, Any], error: Exception) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in kwargs.items())
    return f"{given}: {type(error).__name__} {' '.join(str(error).split())}"


def _register_own(env_id: str) -> None:
    try:
        from p3o.envs import mujoco_2019
    except (ImportError, gym.error.Error) as error:
        raise UserError(_missing(env_id, f"mujoco: {error}")) from None
    mujoco_2019.register()


def _one_line(env_id: str, error: Exception) -> str:
    return f"environment {env_id!r} cannot be made: {' '.join(str(error).split()) or type(error).__name__}"


def _missing(env_id: str, detail: str) -> str:
    package = next((e for e in ("mujoco", "ale", "box2d", "pygame") if e in detail.lower()), "")
    name = {"ale": "atari", "pygame": "video"}.get(package, package)
    help_line = extra(name) if name else " ".join(detail.split())
    return f"environment {env_id!r} needs a package that is not installed: {help_line}"
