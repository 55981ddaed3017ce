"""Which environment ids can be trained, and what is said of those that cannot."""

import gymnasium as gym

from p3o.envs import atari_games
from p3o.errors import UserError, nearest


def _is_gone(name: str) -> bool:
    """Whether Gymnasium keeps the id only to say that it has moved to another project."""
    return getattr(gym.registry[name].entry_point, "__name__", "").startswith("_raise")


def plain_ids() -> list[str]:
    """Registered ids but for Atari's."""
    return sorted(name for name in gym.registry if not atari_games.is_atari(name) and not _is_gone(name))


def hint(name: str) -> str:
    """The nearest id that can be trained."""
    return nearest(name, [*plain_ids(), *atari_games.names()])


def check_version(env_id: str, name: str) -> None:
    """Refuse an id without a version, which would mean another task tomorrow, and one of a version that has gone."""
    if name in gym.registry and not _is_gone(name):
        return
    task, _, version = name.rpartition("-v")
    versions = [known for known in plain_ids() if known.rpartition("-v")[0] == (task or name)]
    if not versions or (version and name not in gym.registry and task):
        return  # the usual word about an unknown id will do
    what = "is no longer in Gymnasium" if name in gym.registry else "has no version"
    raise UserError(
        f"environment {env_id!r} {what}: there {'are' if len(versions) > 1 else 'is'} {', '.join(versions)}"
    )
