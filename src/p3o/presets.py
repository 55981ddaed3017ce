"""Named settings: `default` (ours, one per observation kind) and `paper` (the paper's tables)."""

from typing import Any

from p3o.errors import UserError, nearest
from p3o.experiments import paper

# The config classes' own defaults are the `default` preset for vectors; images differ by these.
_IMAGE: dict[str, Any] = {
    "shared_trunk": True,
    "normalize_reward": True,
    "entropy_coef": 0.01,
    "learning_rate": 3e-4,
}
_SMALL_REPLAY: dict[str, Any] = {"replay_size": 2_000, "burn_in": 500}  # images may be stored whole: memory decides
DEFAULT_IMAGE: dict[str, dict[str, Any]] = {
    "p3o": {
        **_IMAGE,
        **_SMALL_REPLAY,
        "grad_clip": "joint",  # one trunk, so one gradient
        "num_envs": 8,
        "num_steps": 16,
        "off_policy_updates": 2.0,
        "replay_samples": 6,
    },
    "a2c": {**_IMAGE, "num_envs": 16, "num_steps": 5},
    "a2cg": {**_IMAGE, "num_envs": 16, "num_steps": 16},
    "ppo": {
        **_IMAGE,
        "num_envs": 8,
        "num_steps": 128,
        "num_epochs": 4,
        "num_minibatches": 4,
        "clip_range": 0.1,
        "clip_schedule": "linear",
    },
    "acer": {**_IMAGE, **_SMALL_REPLAY, "num_envs": 8, "num_steps": 20},
}

IMAGE_LOOP: dict[str, Any] = {"checkpoint_every": 50_000}  # some seconds on a GPU, minutes on a CPU

PAPER = {"p3o": paper.p3o, "a2c": paper.a2c, "a2cg": paper.a2cg, "ppo": paper.ppo, "acer": paper.acer}

PRESETS = {
    "default": "one setting per observation kind that does well everywhere (docs/decisions.md says why)",
    "paper": "the paper's hyper-parameter tables and, where they are silent, the authors' code",
}


# Games differ in the size of their points by factors of thousands. Their caps are far away: to bootstrap there would
# take a second copy of every frame in the replay.
_GAME: dict[str, Any] = {"reward_transform": "sign", "normalize_reward": False, "time_limit": "terminal"}


def preset_settings(
    algo: str, preset: str, observation_kind: str, action_kind: str, is_game: bool = False
) -> dict[str, Any]:
    """The overrides that a preset puts on the algorithm's config class; games are Atari's."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}{nearest(str(preset), PRESETS)}; there are {', '.join(PRESETS)}")
    if preset == "paper":
        chosen = PAPER[algo](observation_kind, action_kind)
    else:
        chosen = {**(DEFAULT_IMAGE[algo] if observation_kind == "image" else {}), **(_GAME if is_game else {})}
    return IMAGE_LOOP | chosen if observation_kind == "image" else chosen
