"""Training speed against peers: one machine, one run, one thread each, alternating; ratios of medians.

    make peers          # an environment of its own in .venv-peers, then this script
    python benchmarks/peers.py [--repeats 5] [--seconds 10] [--envs HalfCheetah-v5 CartPole-v1] [--core 0]
                               [--save FILE.json | --load FILE.json] [--write docs/performance.md]

Each measurement is a process of its own, pinned to one core: start, compile, warm up, then count environment steps
for some seconds of whole iterations. Rounds go through all contestants before the next begins, so that a slow spell
of the machine hits everyone. `--save` keeps the numbers, `--load` takes them instead of measuring; `--write` puts
tables and figure into the page.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any, NamedTuple

from common import (
    COLORS,
    PARTS_SHOWN,
    add_page_options,
    machine_line,
    markdown_table,
    pyplot,
    run_worker,
    save_figure,
    write_section,
)

WARM_UP_STEPS = 12_000  # past P3O's burn-in, so that its replayed updates are in the measurement
PACKAGES = ("jax", "torch", "stable-baselines3", "sbx-rl", "gymnasium", "mujoco")


class Contestant(NamedTuple):
    """A library's algorithm at settings that some other has too."""

    library: str
    algo: str
    num_envs: int
    num_steps: int
    num_epochs: int = 0  # of PPO
    num_minibatches: int = 0

    @property
    def name(self) -> str:
        epochs = f", {self.num_epochs} epochs" if self.num_epochs else ""
        title = {"p3o": "", "sb3": "SB3 ", "sbx": "SBX ", "torch": "single-file torch "}[self.library]
        return f"{title}{self.algo.upper()} {self.num_envs}×{self.num_steps}{epochs}"


class Ratio(NamedTuple):
    """Two contestants, and how many times as fast the first has to be."""

    ours: Contestant
    theirs: Contestant
    bar: float | None


def ppo(library: str, *shape: int) -> Contestant:
    return Contestant(library, "ppo", *shape)


MUJOCO_PPO = (1, 2048, 10, 32)  # the PPO paper's, and the default of both peers
CARTPOLE_PPO = (8, 128, 4, 4)
RATIOS: dict[str, list[Ratio]] = {
    "HalfCheetah-v5": [
        Ratio(Contestant("p3o", "p3o", 2, 64), ppo("sb3", *MUJOCO_PPO), 6.0),
        Ratio(ppo("p3o", *MUJOCO_PPO), ppo("sb3", *MUJOCO_PPO), 8.0),
        Ratio(ppo("p3o", *MUJOCO_PPO), ppo("sbx", *MUJOCO_PPO), 8.0),
        Ratio(ppo("p3o", *MUJOCO_PPO), ppo("torch", *MUJOCO_PPO), None),
        Ratio(Contestant("p3o", "a2c", 8, 32), Contestant("sb3", "a2c", 8, 32), 2.5),
        Ratio(Contestant("p3o", "a2c", 2, 64), Contestant("sb3", "a2c", 2, 64), 3.0),
    ],
    "CartPole-v1": [
        Ratio(Contestant("p3o", "p3o", 2, 64), ppo("sb3", *CARTPOLE_PPO), None),
        Ratio(ppo("p3o", *CARTPOLE_PPO), ppo("sb3", *CARTPOLE_PPO), None),
        Ratio(ppo("p3o", *CARTPOLE_PPO), ppo("sbx", *CARTPOLE_PPO), None),
        Ratio(ppo("p3o", *CARTPOLE_PPO), ppo("torch", *CARTPOLE_PPO), None),
        Ratio(Contestant("p3o", "a2c", 8, 32), Contestant("sb3", "a2c", 8, 32), None),
    ],
}
SHARE_BARS = {("HalfCheetah-v5", "A2C 8×32"): 0.65, ("HalfCheetah-v5", "PPO 1×2048, 10 epochs"): 0.45}
PRODUCT_BAR = 0.5

Rounds = dict[str, list[dict[str, Any]]]  # contestant's name -> what each of its measurements found


def contestants(env: str) -> list[Contestant]:
    """Each once, ours first."""
    ratios = RATIOS[env]
    return list(dict.fromkeys([*(r.ours for r in ratios), *(r.theirs for r in ratios)]))


def settings_of(one: Contestant) -> dict[str, Any]:
    """Ours under the paper's settings, at the peers' shapes and with their separate networks."""
    settings: dict[str, Any] = {"num_envs": one.num_envs, "num_steps": one.num_steps, "shared_trunk": False}
    if one.num_epochs:
        settings |= {"num_epochs": one.num_epochs, "num_minibatches": one.num_minibatches}
    return settings


def measure_ours(one: Contestant, env: str, seconds: float) -> dict[str, Any]:
    """Speed first, then where the time goes."""
    from p3o import bench
    from p3o.clocks import breakdown
    from p3o.jobs import Job, set_up

    horizon = 10_000_000
    setup = set_up(Job(env, one.algo, horizon, preset="paper", settings=settings_of(one)))
    trainer = setup.trainer
    while trainer.step < WARM_UP_STEPS:
        trainer.iterate(horizon)
    step, started = trainer.step, time.perf_counter()
    while time.perf_counter() - started < seconds:
        trainer.iterate(horizon)
    speed = (trainer.step - step) / (time.perf_counter() - started)
    found = breakdown(trainer, seconds / 2, horizon)
    product = bench.replayed_product(setup, found)
    return {
        "speed": speed,
        "parts": found.parts | {"logging": bench.logging_seconds(setup, seconds / 8)},
        "product": None if product is None else list(product),
    }


def measure_baselines(one: Contestant, env: str, seconds: float) -> float:
    """SB3 or SBX with running normalisation, like ours; steps between the starts of two rollouts."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    module: Any = __import__("sbx" if one.library == "sbx" else "stable_baselines3")
    batch = one.num_envs * one.num_steps
    extra: dict[str, Any] = {}
    if one.num_epochs:
        extra = {"n_epochs": one.num_epochs, "batch_size": batch // one.num_minibatches}
    venv = VecNormalize(make_vec_env(env, n_envs=one.num_envs, seed=0))
    model = getattr(module, one.algo.upper())("MlpPolicy", venv, n_steps=one.num_steps, device="cpu", **extra)
    marks: list[tuple[int, float]] = []

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= min(WARM_UP_STEPS, 3 * batch):
                marks.append((self.num_timesteps, time.perf_counter()))

        def _on_step(self) -> bool:
            return len(marks) < 2 or marks[-1][1] - marks[0][1] < seconds

    model.learn(10_000_000, callback=Clock())
    (first, started), (last, ended) = marks[0], marks[-1]
    return (last - first) / (ended - started)


def measure_torch(one: Contestant, env: str, seconds: float) -> float:
    import torch
    from torch_ppo import Loop, speed

    torch.set_num_threads(1)
    batch = one.num_envs * one.num_steps
    loop = Loop(env, one.num_envs, one.num_steps, one.num_epochs, one.num_minibatches)
    return speed(loop, min(WARM_UP_STEPS, 3 * batch), seconds)


def worker(what: dict[str, Any]) -> None:
    one, env, seconds = Contestant(*what["contestant"]), what["env"], what["seconds"]
    if one.library == "p3o":
        found = measure_ours(one, env, seconds)
    else:
        found = {"speed": (measure_torch if one.library == "torch" else measure_baselines)(one, env, seconds)}
    print(json.dumps(found))


def run_rounds(env: str, repeats: int, seconds: float, core: int | None) -> Rounds:
    """All contestants in turn, again and again; one that fails (a peer that is not installed) is left out."""
    results: Rounds = {one.name: [] for one in contestants(env)}
    for round_number in range(repeats):
        for one in contestants(env):
            if one.name not in results:
                continue
            found = run_worker(__file__, {"contestant": one, "env": env, "seconds": seconds}, core)
            if found is None:
                print(f"{env}: {one.name} is left out", file=sys.stderr)
                del results[one.name]
                continue
            results[one.name].append(found)
            print(f"{env}, round {round_number + 1}: {one.name}: {found['speed']:,.0f} steps/s", file=sys.stderr)
    return results


def speeds(results: Rounds, name: str) -> list[float]:
    return [found["speed"] for found in results[name]]


def shares(results: Rounds, name: str) -> dict[str, float]:
    """Medians over the rounds of each part's share, for a contestant of ours."""
    rounds = [found["parts"] for found in results[name]]
    return {part: statistics.median(r[part] / sum(r.values()) for r in rounds) for part in PARTS_SHOWN}


def verdict(value: float, bar: float | None, form: str) -> str:
    if bar is None:
        return ""
    return f"≥ {bar:{form}}: {'met' if value >= bar else 'not met'}"


def tables(env: str, results: Rounds) -> list[str]:
    """Speeds, ratios, where our time goes, and what the products reach."""
    rows = []
    for name in results:
        found = speeds(results, name)
        rows.append([name, f"{statistics.median(found):,.0f}", f"{min(found):,.0f} to {max(found):,.0f}"])
    lines = [*markdown_table([f"{env}, one thread", "steps/s, median", "lowest to highest"], rows), ""]
    rows = []
    for ours, theirs, bar in RATIOS[env]:
        if ours.name not in results or theirs.name not in results:
            continue
        a, b = speeds(results, ours.name), speeds(results, theirs.name)
        each = [x / y for x, y in zip(a, b, strict=True)]
        ratio = statistics.median(a) / statistics.median(b)
        spread = f"{min(each):.1f} to {max(each):.1f}"
        rows.append([f"{ours.name} / {theirs.name}", f"**{ratio:.1f}×**", spread, verdict(ratio, bar, "g")])
    lines += [*markdown_table(["ratio of medians", "", "lowest to highest round", "bar"], rows), ""]
    rows = []
    for one in contestants(env):
        if one.library == "p3o" and one.name in results:
            part = shares(results, one.name)
            bar = verdict(part["simulator"], SHARE_BARS.get((env, one.name)), ".0%")
            rows.append([one.name, *(f"{share:.1%}" for share in part.values()), bar])
    lines += markdown_table(["where our time goes", *PARTS_SHOWN, "bar (simulator)"], rows)
    return [*lines, *product_lines(results)]


def product_lines(results: Rounds) -> list[str]:
    lines = []
    for name, rounds in results.items():
        products = [found["product"] for found in rounds if found.get("product")]
        if products:
            reached, plain = (statistics.median(column) for column in zip(*products, strict=True))
            share = statistics.median(a / b for a, b in products)
            lines += [
                "",
                f"{name}: replayed updates multiply matrices at {reached:.0f} GFLOP/s, {share:.0%} of the {plain:.0f} "
                f"that plain products of the same shapes reach ({verdict(share, PRODUCT_BAR, '.0%')}).",
            ]
    return lines


def draw(everything: dict[str, Rounds]) -> Any:
    """Speeds above, where our time goes below; a column for each environment."""
    plt = pyplot()
    figure, axes = plt.subplots(
        2,
        len(everything),
        figsize=(6 * len(everything), 6.5),
        layout="constrained",
        squeeze=False,
        height_ratios=(2, 1),
    )
    for column, (env, results) in enumerate(everything.items()):
        names = list(results)[::-1]
        ours = {one.name for one in contestants(env) if one.library == "p3o"}
        middle = [statistics.median(speeds(results, name)) for name in names]
        low = [m - min(speeds(results, name)) for m, name in zip(middle, names, strict=True)]
        high = [max(speeds(results, name)) - m for m, name in zip(middle, names, strict=True)]
        colors = ["#d95f02" if name in ours else "#1b78b4" for name in names]
        axes[0, column].barh(names, middle, xerr=[low, high], color=colors, ecolor="#4d4d4d")
        axes[0, column].set_title(f"{env}, one thread")
        axes[0, column].set_xlabel("environment steps per second")
        axes[0, column].locator_params(axis="x", nbins=5)
        axes[0, column].xaxis.set_major_formatter("{x:,.0f}")
        left = [0.0] * len(ours)
        shown = [name for name in names if name in ours]
        for part in PARTS_SHOWN:
            widths = [100 * shares(results, name)[part] for name in shown]
            axes[1, column].barh(shown, widths, left=left, color=COLORS[part], label=part)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes[1, column].set_xlabel("% of our time")
        axes[1, column].legend(ncols=3, fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=list(RATIOS), choices=list(RATIOS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    add_page_options(parser, "peers")
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    if options.write:
        pyplot()  # before the minutes of measuring
    if options.load:
        saved = json.loads(options.load.read_text())
    else:
        core = None if options.core < 0 else options.core
        rounds = {env: run_rounds(env, options.repeats, options.seconds, core) for env in options.envs}
        how = f"{options.repeats} rounds of {options.seconds:g} s each; {machine_line(*PACKAGES)}"
        saved = {"how": how, "results": rounds}
    if options.save:
        options.save.write_text(json.dumps(saved))
    lines = [saved["how"]]
    for env, results in saved["results"].items():
        lines += ["", *tables(env, results)]
    print("\n".join(lines))
    if options.write:
        figure = save_figure(draw(saved["results"]), options.write, "peers")
        write_section(options.write, "peers", ["", *lines, "", figure, ""])


if __name__ == "__main__":
    main()
