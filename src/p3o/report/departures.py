"""Where a run departs from its preset without a name for it: then the paper's number is not about it."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from p3o.errors import UserError
from p3o.experiments import reference
from p3o.report.axes import short_count
from p3o.report.find import Group
from p3o.runs import Run

# what does not change what is learned
HARMLESS = frozenset({"checkpoint_every", "eval_episodes", "device", "replay_device", "deterministic"})


def departures(runs: Iterable[Run], group: Group) -> tuple[str, ...]:
    """Every departure of any of these runs of a group, in words."""
    said = [words for run in runs for words in _of_run(run, group)]
    return tuple(dict.fromkeys(said))


def _of_run(run: Run, group: Group) -> list[str]:
    row = reference.find_task(run.env_id)
    wanted = _preset(group.algo, group.preset, row.suite) if row else None
    if wanted is None:
        return [f"preset {group.preset or 'not recorded'}"]
    settings = run.config.get("settings", {})
    said = [
        f"{name} {_shown(value)}, not {_shown(wanted[name])}"
        for name, value in settings.items()
        if name in wanted and name not in HARMLESS and _plain(value) != wanted[name]
    ]
    said += [f"environment's {name} {_shown(value)}" for name, value in _options(run, row).items()]
    start = run.config.get("schedule_start")
    if isinstance(start, int) and start > 0:
        said.append(f"schedules begun anew at step {short_count(start)}")
    return said + [
        f"{short_count(steps)} steps, not the {short_count(planned)} it set out for"
        for planned, steps in _new_totals(run)
        if planned != steps
    ]


def _new_totals(run: Run) -> Iterable[tuple[int, int]]:
    """The total before and after each step at which the run was given another one; there and back is none."""
    totals: dict[int, tuple[int, int]] = {}
    for at_step, steps, planned in run.resumes:
        if planned is not None:
            first, _ = totals.get(at_step, (planned, steps))
            totals[at_step] = (first, steps)
    return totals.values()


def _options(run: Run, row: reference.Task | None) -> dict[str, Any]:
    """Those of the environment that are not the paper's; a spelling of a game (`ALE/Pong-v5`) has some of its own."""
    kwargs = run.config["env"].get("kwargs")
    options = kwargs if isinstance(kwargs, dict) else {}
    if row is None or row.suite != "atari":
        return options
    from p3o.envs.atari_games import registered

    papers = registered(f"{row.name}NoFrameskip-v4") or {}
    return {name: v for name, v in ((registered(run.env_id) or {}) | options).items() if papers.get(name) != v}


@cache
def _preset(algo: str, preset: str, suite: str) -> dict[str, Any] | None:
    """Every setting under a preset, None where there is no such algorithm or preset."""
    from dataclasses import asdict

    from p3o.algorithms import ALGORITHMS  # imports JAX, so only where there is a number of the paper to compare with
    from p3o.config import make_config
    from p3o.experiments.catalog import KINDS
    from p3o.presets import preset_settings

    try:
        layer = preset_settings(algo, preset, *KINDS[suite])
        config = make_config(ALGORITHMS[algo].config, layer)
    except (UserError, KeyError):
        return None
    return {name: _plain(value) for name, value in asdict(config).items()}


def _plain(value: Any) -> Any:
    """As JSON has it."""
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
