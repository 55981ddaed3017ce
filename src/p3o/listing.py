"""What `p3o list` shows."""

import dataclasses
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from p3o.algorithms import ALGORITHMS, find
from p3o.config import Config, describe, make_config
from p3o.device import available_cores
from p3o.envs import atari_games, known
from p3o.experiments import catalog, cost
from p3o.experiments.paper import ALTERNATIVES
from p3o.presets import PRESETS, preset_settings

NARROWEST = 40  # characters to which lines are broken, in the narrowest of terminals


def algorithms() -> Iterator[str]:
    for name, entry in ALGORITHMS.items():
        yield f"{name:<6} {entry.title}"


def presets(algos: Sequence[str] = (), width: int | None = None) -> Iterator[str]:
    """Each preset, then the settings of each algorithm with their values under both.

    In a terminal of a `width` that is too narrow for columns a setting takes a few lines.
    """
    lines = list(_presets(algos))
    if width is None or max(map(len, lines)) <= width:
        return iter(lines)
    return _presets(algos, max(width, NARROWEST))


def _presets(algos: Sequence[str], width: int | None = None) -> Iterator[str]:
    """In columns, or in lines of at most so many characters."""

    def broken(line: str) -> list[str]:
        indent = line[: len(line) - len(line.lstrip())]
        return [line] if width is None else textwrap.wrap(line, width, subsequent_indent=indent + "  ") or [""]

    entries = {name: find(name) for name in algos} or ALGORITHMS
    for name, meaning in PRESETS.items():
        yield from broken(f"{name}: {meaning}")
    for name, entry in entries.items():
        columns = {
            f"{preset}/{kind}": make_config(entry.config, preset_settings(name, preset, kind, "gaussian"))
            for preset in PRESETS
            for kind in ("vector", "image")
        }
        yield ""
        yield f"{name}: --set NAME=VALUE" + "".join(f"{c:>18}" for c in columns if width is None)
        for setting, _, meaning, choices in describe(entry.config):
            values = {column: _show(getattr(config, setting)) for column, config in columns.items()}
            meaning += " One of: " + ", ".join(choices) + "." if choices else ""
            if width is None:
                yield f"  {setting:<22}" + "".join(f"{value:>18}" for value in values.values()) + f"  {meaning}"
            else:
                yield from _in_lines(setting, values, meaning, width)
        for line in _exceptions(name, columns):
            yield from broken(line)
        doubts = [a for a in ALTERNATIVES if a.algo == name]
        if doubts:
            yield from broken(f"{name}: doubtful entries of the paper, and the --set that selects the other reading")
        for doubt in doubts:
            yield from broken(f"  --set {doubt.setting:<32} {doubt.doubt}")


def _in_lines(setting: str, values: dict[str, str], meaning: str, width: int) -> Iterator[str]:
    """A setting, its values where they are not all the same, and what it is, none of it wider than the terminal."""
    same = len(set(values.values())) == 1
    told = next(iter(values.values())) if same else ", ".join(f"{value} ({column})" for column, value in values.items())
    yield from textwrap.wrap(f"{setting}: {told}", width, initial_indent="  ", subsequent_indent="    ")
    yield from textwrap.wrap(meaning, width, initial_indent="      ", subsequent_indent="      ")


def _exceptions(algo: str, columns: dict[str, Config]) -> Iterator[str]:
    """Where discrete actions or Atari's games have other values than the columns, which are of continuous actions."""
    for column, config in columns.items():
        preset, kind = column.split("/")
        cases = {"with discrete actions": ("discrete", False)}
        cases |= {"of Atari": ("discrete", True)} if kind == "image" else {}
        said: dict[str, str] = {}
        for case, (action_kind, is_game) in cases.items():
            other = make_config(type(config), preset_settings(algo, preset, kind, action_kind, is_game))
            names = [f.name for f in dataclasses.fields(other) if getattr(other, f.name) != getattr(config, f.name)]
            said[case] = ", ".join(f"{name} {_show(getattr(other, name))}" for name in names)
        if said.get("of Atari") == said["with discrete actions"]:
            said.pop("of Atari", None)
        yield from (f"  {column} {case}: {values}" for case, values in said.items() if values)


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def experiments(runs: Path = Path("runs")) -> Iterator[str]:
    """The paper's tables and figures: what each needs and how much of it lies under `runs`."""
    from p3o.experiments.scores import count_finished

    cores = len(available_cores())
    yield f"{'experiment':<25}{'in the paper':<21}{'runs':>5}{'done':>6}{'steps':>8}{'time here':>13}"
    for experiment in catalog.EXPERIMENTS.values():
        jobs = experiment.jobs()
        numbers = f"{'–':>5}{'–':>6}{'–':>8}{'seconds':>13}"
        if jobs:
            steps, hours = sum(job.steps for job in jobs), cost.core_hours(experiment) / cores
            numbers = f"{len(jobs):>5}{count_finished(jobs, runs):>6}{_short(steps):>8}{_duration(hours):>13}"
        yield f"{experiment.name:<25}{experiment.item:<21}{numbers}"
        yield f"  {experiment.title}"
    yield ""
    yield "p3o reproduce EXPERIMENT OUT   runs one; --scale 0.01 --seeds 2 makes it small."
    yield f"done: runs finished at full size under {runs}; with --in OUT those that"
    yield "      `p3o reproduce EXPERIMENT OUT` has made."
    yield f"time here: {cores} {'core' if cores == 1 else 'cores'}, estimated from speeds on one core of an AMD EPYC;"
    yield "Atari's is for plain CPU cores, from the cost of its network; no GPU is counted."


def _short(count: float) -> str:
    return f"{count / 1e9:.1f}G" if count >= 1e9 else f"{count / 1e6:.0f}M"


def _duration(hours: float) -> str:
    return f"{hours:,.0f} hours" if hours < 100 else f"{hours / 24:,.0f} days"


def environments() -> Iterator[str]:
    """Registered Gymnasium ids, then Atari's in the two spellings that train; docs/atari.md says how they differ."""
    games = atari_games.names()
    yield from known.plain_ids()
    yield from games or ["PongNoFrameskip-v4, ALE/Pong-v5 and so on: install the extra p3o[atari]"]
