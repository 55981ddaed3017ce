"""How the cost of an iteration grows: with environments, rollout, network, replay, observation and actions.

    python benchmarks/growth.py [--seconds 2] [--core 0] [--only environments ...] [--write docs/performance.md]
                                [--save FILE.json | --load FILE.json]

Every series is a process of its own on one core. For each point a trainer is made, warmed up, and its iterations are
timed by part, in processor time, so that other programs on the machine count for less. The exponent is that of a power
law through the last three points (1 is linear, 2 quadratic, 0 free), and is held against what it has to be: nothing
should grow faster than its arithmetic.
"""

import argparse
import json
import sys
import time
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from common import (
    COLORS,
    add_page_options,
    machine_line,
    markdown_table,
    pyplot,
    run_worker,
    save_figure,
    write_section,
)

TOLERANCE = 0.15  # of an exponent: caches and noise
HORIZON = 10_000_000
GROUPS = {  # what is drawn, and which parts it holds
    "simulator": ("simulator",),
    "acting": ("acting", "normalising", "copying"),
    "updating": ("updating",),
}


class Synthetic(gym.Env):
    """Observations and actions of any size at next to no cost."""

    def __init__(self, observation_size: int, action_space: gym.Space):
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
        self.action_space = action_space
        self._observations = np.random.default_rng(0).standard_normal((16, observation_size)).astype(np.float32)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self._time = 0
        return self._observations[0], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        self._time += 1
        return self._observations[self._time % 16], 1.0, False, self._time == 1000, {}


class Series(NamedTuple):
    """One thing that grows, and how fast the whole iteration may grow with it."""

    title: str
    algo: str
    env: str  # an id, or synthetic
    axis: str  # a setting, or observation, discrete, box
    values: tuple[int, ...]
    most: float  # exponent of the time of an iteration
    why: str


SERIES = {
    "environments": Series(
        "environments, P3O", "p3o", "HalfCheetah-v5", "num_envs", (1, 2, 4, 8, 16, 32, 64), 1.0, "as many more steps"
    ),
    "environments-a2c": Series(
        "environments, A2C", "a2c", "HalfCheetah-v5", "num_envs", (1, 2, 4, 8, 16, 32, 64), 1.0, "as many more steps"
    ),
    "rollout": Series(
        "rollout length, P3O", "p3o", "HalfCheetah-v5", "num_steps", (16, 32, 64, 128, 256, 512), 1.0, "so many steps"
    ),
    "rollout-ppo": Series(
        "rollout length, PPO", "ppo", "HalfCheetah-v5", "num_steps", (256, 512, 1024, 2048, 4096), 1.0, "so many steps"
    ),
    "width": Series(
        "hidden width, P3O", "p3o", "HalfCheetah-v5", "hidden_sizes", (32, 64, 128, 256, 512), 2.0, "square matrices"
    ),
    "replay": Series(
        "replay size, P3O", "p3o", "HalfCheetah-v5", "replay_size", (1_000, 10_000, 100_000, 500_000), 0.0, "same batch"
    ),
    "replay-samples": Series(
        "replayed trajectories, P3O", "p3o", "HalfCheetah-v5", "replay_samples", (4, 8, 16, 32, 64), 1.0, "larger batch"
    ),
    "observation": Series(
        "observation size, P3O", "p3o", "synthetic", "observation", (4, 17, 64, 348, 1000, 2000), 1.0, "first layer"
    ),
    "discrete": Series(
        "actions to choose from, P3O", "p3o", "synthetic", "discrete", (2, 8, 32, 128, 512), 1.0, "head"
    ),
    "box": Series("action dimensions, P3O", "p3o", "synthetic", "box", (1, 4, 16, 64, 256), 1.0, "head"),
    "humanoid": Series("Humanoid-v5, P3O", "p3o", "Humanoid-v5", "num_envs", (2,), 1.0, "348 numbers observed"),
}


def job_at(series: Series, value: int) -> Any:
    """The job of one point; replayed updates from the first iteration on."""
    from p3o.jobs import Job

    settings: dict[str, Any] = {"burn_in": 1} if series.algo == "p3o" else {}
    size, space = 17, gym.spaces.Box(-1, 1, (6,), np.float32)
    if series.axis == "observation":
        size = value
    elif series.axis == "discrete":
        space = gym.spaces.Discrete(value)
    elif series.axis == "box":
        space = gym.spaces.Box(-1, 1, (value,), np.float32)
    else:
        settings[series.axis] = f"{value},{value}" if series.axis == "hidden_sizes" else value
    env: Any = (lambda: Synthetic(size, space)) if series.env == "synthetic" else series.env
    return Job(env, series.algo, HORIZON, settings=settings)


def fill_replay(trainer: Any) -> None:
    """Let the ring count as full, so that all of it is drawn from."""
    memory = getattr(trainer.state, "replay", None)
    if memory is not None:
        import jax

        slots = jax.tree.leaves(memory.data)[0].shape[0]
        full = memory._replace(num_added=memory.num_added + slots)
        trainer.state = trainer.state._replace(replay=full)


def measure(series: Series, value: int, seconds: float) -> dict[str, Any]:
    """Seconds of a mean iteration by group, and steps a second."""
    from p3o.clocks import breakdown
    from p3o.jobs import set_up

    setup = set_up(job_at(series, value))
    trainer = setup.trainer
    trainer.iterate(HORIZON)
    fill_replay(trainer)
    for _ in range(2):
        started = time.process_time()
        trainer.iterate(HORIZON)
    once = time.process_time() - started
    found = breakdown(trainer, max(seconds, 8 * once), HORIZON, time.process_time)
    trainer.env.close()
    parts = found.parts
    if series.algo == "p3o":  # as many replayed updates as there are on average, not as happened to be drawn
        drawn = sum(m["off_policy_updates"] for m in found.metrics) / found.iterations
        parts["updating"] *= setup.config.off_policy_updates / drawn
    grouped = {name: sum(parts[part] for part in members) for name, members in GROUPS.items()}
    whole = sum(grouped.values())
    return {"value": value, "speed": found.steps / found.iterations / whole, "seconds": whole} | grouped


def worker(what: dict[str, Any]) -> None:
    series = SERIES[what["series"]]
    points = []
    for value in series.values:
        points.append(measure(series, value, what["seconds"]))
    print(json.dumps(points))


def exponent(points: list[dict[str, Any]], name: str) -> float:
    """Of the power law through the last three points."""
    last = points[-3:]
    x = np.log([p["value"] for p in last])
    y = np.log([max(p[name], 1e-9) for p in last])
    return float(np.polyfit(x, y, 1)[0])


def is_fast_enough(series: Series, points: list[dict[str, Any]]) -> bool:
    """Nothing but the whole is judged: a part that is next to nothing may jump about."""
    return exponent(points, "seconds") <= series.most + TOLERANCE


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for name, points in found.items():
        series, first, last = SERIES[name], points[0], points[-1]
        if len(points) < 3:
            continue
        rows.append(
            [
                series.title,
                f"{first['value']:,} to {last['value']:,}",
                f"{1e3 * first['seconds']:,.1f} to {1e3 * last['seconds']:,.1f} ms",
                f"{first['speed']:,.0f} to {last['speed']:,.0f}",
                *(f"{exponent(points, group):.2f}" for group in GROUPS),
                f"**{exponent(points, 'seconds'):.2f}**",
                f"≤ {series.most:g} ({series.why}): {'yes' if is_fast_enough(series, points) else '**no**'}",
            ]
        )
    header = ["grows", "from to", "iteration", "steps/s", *(f"exponent: {g}" for g in GROUPS), "whole", "has to be"]
    return markdown_table(header, rows)


def facts(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    lines = []
    for point in found.get("humanoid", []):
        parts = ", ".join(f"{group} {1e3 * point[group]:.1f} ms" for group in GROUPS)
        lines.append(
            f"Humanoid-v5 (348 numbers observed): {point['speed']:,.0f} steps/s; an iteration of P3O: {parts}."
        )
    for name, points in found.items():
        if name.startswith("environments"):
            per_step = [1e6 / p["speed"] for p in points]
            lines.append(
                f"{SERIES[name].title}: a step of one environment costs "
                + ", ".join(f"{cost:.0f}" for cost in per_step)
                + " µs at "
                + ", ".join(str(p["value"]) for p in points)
                + " environments."
            )
    return [line for fact in lines for line in (fact, "")]


def draw(found: dict[str, list[dict[str, Any]]]) -> Any:
    plt = pyplot()
    shown = {name: points for name, points in found.items() if len(points) >= 3}
    rows = -(-len(shown) // 4)
    figure, axes = plt.subplots(rows, 4, figsize=(14, 3.2 * rows), layout="constrained", squeeze=False)
    for axis, (name, points) in zip(axes.flat, shown.items(), strict=False):
        values = [p["value"] for p in points]
        for group in GROUPS:
            axis.loglog(values, [1e3 * p[group] for p in points], "o-", color=COLORS[group], markersize=3, label=group)
        axis.loglog(values, [1e3 * p["seconds"] for p in points], "k--", linewidth=1, label="whole")
        axis.set_title(f"{SERIES[name].title}: exponent {exponent(points, 'seconds'):.2f}", fontsize=9)
        axis.set_ylabel("ms an iteration", fontsize=8)
        axis.tick_params(labelsize=8)
        axis.set_xticks(values, [f"{v // 1000}k" if v >= 1000 and v % 1000 == 0 else str(v) for v in values])
        axis.xaxis.set_minor_formatter("")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter("")
    axes.flat[0].legend(fontsize=7, frameon=False)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring for each point")
    parser.add_argument("--only", nargs="+", default=list(SERIES), choices=list(SERIES))
    add_page_options(parser, "growth")
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    if options.write:
        pyplot()  # before the minutes of measuring
    if options.load:
        saved = json.loads(options.load.read_text())
    else:
        found = {}
        for name in options.only:
            core = None if options.core < 0 else options.core
            points = run_worker(__file__, {"series": name, "seconds": options.seconds}, core)
            if points is None:
                print(f"{name} is left out", file=sys.stderr)
                continue
            found[name] = points
            for p in points:
                parts = ", ".join(f"{group} {1e3 * p[group]:.2f}" for group in GROUPS)
                line = f"{name} {p['value']}: {1e3 * p['seconds']:.2f} ms ({parts}), {p['speed']:,.0f} steps/s"
                print(line, file=sys.stderr, flush=True)
        saved = {"how": machine_line("jax", "gymnasium", "mujoco"), "results": found}
    if options.save:
        options.save.write_text(json.dumps(saved))
    lines = [saved["how"], "", *table(saved["results"]), "", *facts(saved["results"])]
    print("\n".join(lines))
    if options.write:
        shown = save_figure(draw(saved["results"]), options.write, "growth")
        write_section(options.write, "growth", ["", *lines, shown, ""])


if __name__ == "__main__":
    main()
