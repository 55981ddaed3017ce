"""Our PPO and A2C against Stable-Baselines3's at the same settings: do they learn the same?

    python benchmarks/versus_sb3.py run OUT --library p3o --algo ppo --env CartPole-v1 --seed 0
    python benchmarks/versus_sb3.py jobs OUT            # all such commands, one a line
    python benchmarks/versus_sb3.py report results/versus-sb3 --figure docs/figures/versus-sb3.svg

`run` writes OUT/ENV/LIBRARY-ALGO/seed-N.csv.gz (step,return of every training episode); `report` prints the table.
"""

import argparse
import gzip
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

SEEDS = range(5)
STEPS = {("CartPole-v1", "ppo"): 100_000, ("CartPole-v1", "a2c"): 200_000, ("HalfCheetah-v4", "ppo"): 400_000}
STEPS[("HalfCheetah-v4", "a2c")] = 400_000
# Stable-Baselines3's defaults in our words: no decay, torch's RMSprop, the value error without the factor ½ in PPO,
# no value clipping, raw clipped actions, log-std 0, bootstrap at the time limit, separate 64-64 tanh networks.
OURS: dict[str, dict[str, Any]] = {
    "ppo": {
        "num_envs": 1,
        "num_steps": 2048,
        "num_epochs": 10,
        "num_minibatches": 32,
        "clip_value": False,
        "value_coef": 1.0,
        "lr_schedule": "constant",
    },
    "a2c": {
        "num_envs": 8,
        "num_steps": 16,
        "learning_rate": 7e-4,
        "optimizer": "rmsprop",
        "lr_schedule": "constant",
    },
}
COMMON = {"init_log_std": 0.0, "action_scale": "raw", "action_clip": True, "time_limit": "bootstrap"}


def run_ours(algo: str, env: str, seed: int, steps: int) -> list[tuple[int, float]]:
    from p3o.jobs import Job, set_up

    is_normalized = not env.startswith("CartPole")
    settings = OURS[algo] | COMMON | {"normalize_observation": is_normalized, "normalize_reward": is_normalized}
    trainer = set_up(Job(env, algo, steps, seed, settings=settings)).trainer
    episodes = []
    while trainer.step < steps:
        episodes += [(e.step, e.total) for e in trainer.iterate(steps).episodes]
    return episodes


def run_sb3(algo: str, env: str, seed: int, steps: int) -> list[tuple[int, float]]:
    import stable_baselines3
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    ours = OURS[algo]
    venv: Any = make_vec_env(env, n_envs=ours["num_envs"], seed=1000 * seed)
    if not env.startswith("CartPole"):
        venv = VecNormalize(venv)
    extra: dict[str, Any] = {"n_epochs": 10, "batch_size": 64} if algo == "ppo" else {}
    cls = getattr(stable_baselines3, algo.upper())
    model = cls("MlpPolicy", venv, n_steps=ours["num_steps"], seed=seed, device="cpu", **extra)
    episodes: list[tuple[int, float]] = []

    class Log(BaseCallback):
        def _on_step(self) -> bool:
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            episodes.extend((self.num_timesteps, float(r)) for r in ended)
            return True

    model.learn(steps, callback=Log())
    return episodes


def path_of(out: Path, env: str, library: str, algo: str, seed: int) -> Path:
    return out / env / f"{library}-{algo}" / f"seed-{seed}.csv.gz"


def run(out: Path, library: str, algo: str, env: str, seed: int) -> None:
    path = path_of(out, env, library, algo, seed)
    if path.exists():
        return
    episodes = (run_ours if library == "p3o" else run_sb3)(algo, env, seed, STEPS[(env, algo)])
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["step,return", *(f"{step},{total:.6g}" for step, total in episodes)]
    unfinished = path.with_name(path.name + ".tmp")
    unfinished.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))
    os.replace(unfinished, path)


def load(path: Path) -> np.ndarray:
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


def interval(values: np.ndarray) -> tuple[float, float]:
    """95 % bootstrap interval of the mean over seeds."""
    rng = np.random.default_rng(0)
    means = rng.choice(values, (20_000, len(values))).mean(1)
    return float(np.percentile(means, 2.5)), float(np.percentile(means, 97.5))


def report(out: Path, figure: Path | None) -> None:
    print("| environment | algorithm | steps | p3o: mean of the last 100 episodes, 95 % interval | SB3 | overlap |")
    print("| --- | --- | --- | --- | --- | --- |")
    for (env, algo), steps in STEPS.items():
        cells, intervals = [], []
        for library in ("p3o", "sb3"):
            scores = np.array([load(path_of(out, env, library, algo, s))[-100:, 1].mean() for s in SEEDS])
            low, high = interval(scores)
            intervals.append((low, high))
            cells.append(f"{scores.mean():.0f} ({low:.0f} to {high:.0f})")
        overlap = "yes" if intervals[0][0] <= intervals[1][1] and intervals[1][0] <= intervals[0][1] else "no"
        print(f"| {env} | {algo} | {steps:,} | {cells[0]} | {cells[1]} | {overlap} |")
    if figure is not None:
        draw(out, figure)


def draw(out: Path, figure: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(2, 2, figsize=(10, 6.5), layout="constrained")
    for axis, ((env, algo), steps) in zip(axes.flat, STEPS.items(), strict=True):
        grid = np.linspace(steps / 100, steps, 100)
        for library, color in (("p3o", "#d95f02"), ("sb3", "#1b78b4")):
            curves = []
            for seed in SEEDS:
                data = load(path_of(out, env, library, algo, seed))
                ends = np.searchsorted(data[:, 0], grid, side="right")
                curves.append([data[max(0, end - 100) : end, 1].mean() if end else np.nan for end in ends])
                axis.plot(grid, curves[-1], color=color, alpha=0.25, linewidth=0.8)
            axis.plot(grid, np.mean(curves, 0), color=color, linewidth=2, label={"p3o": "p3o", "sb3": "SB3"}[library])
        axis.set_title(f"{algo.upper()} on {env}")
        axis.set_xlabel("environment steps")
        axis.set_ylabel("mean of the last 100 episodes")
        axis.legend(frameon=False)
    figure.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(figure, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "jobs", "report"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--library", choices=("p3o", "sb3"))
    parser.add_argument("--algo", choices=("ppo", "a2c"))
    parser.add_argument("--env")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    if options.what == "run":
        run(options.out, options.library, options.algo, options.env, options.seed)
    elif options.what == "report":
        report(options.out, options.figure)
    else:
        for (env, algo), _ in STEPS.items():
            for library in ("sb3", "p3o"):
                for seed in SEEDS:
                    arguments = f"--library {library} --algo {algo} --env {env} --seed {seed}"
                    print(f"{sys.executable} {__file__} run {options.out} {arguments}")


if __name__ == "__main__":
    main()
