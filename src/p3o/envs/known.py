"""Which environment ids can be trained, and what is said of those that cannot."""

import contextlib
import importlib
import importlib.util

import gymnasium as gym

from p3o.envs import atari_games
from p3o.errors import UserError, nearest


def _is_gone(name: str) -> bool:
    """Whether Gymnasium keeps the id only to say that it has moved to another project."""
    return getattr(gym.registry[name].entry_point, "__name__", "").startswith("_raise")


def _lacks_flax(name: str) -> bool:
    """Whether it is one of Gymnasium's environments in JAX, which import flax, and that is not there."""
    place = str(gym.registry[name].entry_point)
    in_jax = place.startswith(("gymnasium.envs.phys2d", "gymnasium.envs.tabular"))
    return in_jax and importlib.util.find_spec("flax") is None


def plain_ids() -> list[str]:
    """Registered ids but for Atari's and those that cannot be made, the project's own too where MuJoCo is there."""
    with contextlib.suppress(ImportError, gym.error.Error):
        from p3o.envs import mujoco_2019

        mujoco_2019.register()
    names = [name for name in gym.registry if not atari_games.is_atari(name)]
    return sorted(name for name in names if not _is_gone(name) and not _lacks_flax(name))


def hint(name: str) -> str:
    """The nearest id that can be trained."""
    return nearest(name, [*plain_ids(), *atari_games.names()])


def check_there(env_id: str, name: str) -> None:
    """Refuse an id of a version that has gone, and name those that are there."""
    if name in gym.registry and _is_gone(name):
        task = name.rpartition("-v")[0]
        there = [known for known in plain_ids() if known.rpartition("-v")[0] == task]
        now = f", which has {', '.join(there)}" if there else ""
        raise UserError(f"environment {env_id!r} is no longer in Gymnasium{now}")


def check_version(env_id: str) -> None:
    """Refuse a new run with an id without a version: it would be of another task under a newer Gymnasium."""
    module, _, name = env_id.rpartition(":")
    with contextlib.suppress(ImportError, TypeError, ValueError):  # the making of it will say so
        if module:
            importlib.import_module(module)
    if not name or name in gym.registry:
        return
    versions = [known for known in plain_ids() if known.rpartition("-v")[0] == name] + atari_games.spellings(name)
    if versions:
        raise UserError(f"environment {env_id!r} has no version; one of {', '.join(versions)} is needed")
