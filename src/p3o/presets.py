"""Named settings: `default` (ours, one per observation kind) and `paper` (the paper's tables)."""

from typing import Any

from p3o.errors import UserError, nearest
from p3o.experiments import paper

# The config classes' own defaults are the `default` preset for vectors; images differ by these.
DEFAULT_IMAGE: dict[str, dict[str, Any]] = {
    "p3o": {
        **paper.P3O_IMAGE,
        "shared_trunk": True,
        "normalize_observation": False,
        "normalize_reward": True,
        "optimizer": "adam",
        "learning_rate": 3e-4,
    },
}

PAPER = {"p3o": paper.p3o}

PRESETS = {
    "default": "one setting per observation kind that does well everywhere (docs/decisions.md says why)",
    "paper": "the paper's hyper-parameter tables and, where they are silent, the authors' code",
}


def preset_settings(algo: str, preset: str, observation_kind: str, action_kind: str) -> dict[str, Any]:
    """The overrides that a preset puts on the algorithm's config class."""
    if preset not in PRESETS:
        raise UserError(f"unknown preset {preset!r}{nearest(preset, PRESETS)}; there are {', '.join(PRESETS)}")
    if preset == "paper":
        return PAPER[algo](observation_kind, action_kind)
    return DEFAULT_IMAGE[algo] if observation_kind == "image" else {}
