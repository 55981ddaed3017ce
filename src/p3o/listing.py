"""What `p3o list` shows."""

from collections.abc import Iterator

import gymnasium as gym

from p3o.algorithms import ALGORITHMS
from p3o.config import describe, make_config
from p3o.experiments.paper import ALTERNATIVES
from p3o.presets import PRESETS, preset_settings


def algorithms() -> Iterator[str]:
    for name, entry in ALGORITHMS.items():
        yield f"{name:<6} {entry.title}"


def presets() -> Iterator[str]:
    """Each preset, then each algorithm's settings with their values under both."""
    for name, meaning in PRESETS.items():
        yield f"{name}: {meaning}"
    for name, entry in ALGORITHMS.items():
        columns = {
            f"{preset}/{kind}": make_config(entry.config, preset_settings(name, preset, kind, "gaussian"))
            for preset in PRESETS
            for kind in ("vector", "image")
        }
        yield ""
        yield f"{name}: --set NAME=VALUE" + "".join(f"{c:>18}" for c in columns)
        for setting, _, meaning, choices in describe(entry.config):
            values = "".join(f"{_show(getattr(config, setting)):>18}" for config in columns.values())
            yield f"  {setting:<22}{values}  {meaning}{' One of: ' + ', '.join(choices) + '.' if choices else ''}"
        doubts = [a for a in ALTERNATIVES if a.algo == name]
        if doubts:
            yield f"{name}: doubtful entries of the paper, and the --set that selects the other reading"
        for doubt in doubts:
            yield f"  --set {doubt.setting:<32} {doubt.doubt}"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def environments() -> Iterator[str]:
    """Registered Gymnasium ids, newest version of each."""
    yield from sorted(gym.registry)
