"""Run folders that no training made, with the shape of real ones: for the report's tests and its measurement."""

import json
from pathlib import Path

import numpy as np

PAPER_TASKS = (
    "HalfCheetah-v4 Walker2d-v4 Hopper-v4 Swimmer-v4 InvertedDoublePendulum-v4 InvertedPendulum-v4 Ant-v4 Humanoid-v4"
)
SETTINGS = {  # as both presets have them, but where OTHER_RATE says
    "p3o": {"num_envs": 2, "gamma": 0.99, "learning_rate": 0.0003},
    "ppo": {"num_envs": 1, "gamma": 0.99, "learning_rate": 0.0003},
    "a2c": {"num_envs": 8, "gamma": 0.99, "learning_rate": 0.001},
    "a2cg": {"num_envs": 8, "gamma": 0.99, "learning_rate": 0.001},
}
OTHER_RATE = {("a2c", "paper"), ("a2cg", "paper")}
COLUMNS = (
    "ess,kl_coef,is_clip,kl,entropy,policy_loss,value_loss,off_policy_loss,ratio_mean,ratio_max,off_policy_updates,"
    "grad_norm,learning_rate,steps_per_second"
)


def write_run(
    folder: Path,
    task: str = "CartPole-v1",
    algo: str = "p3o",
    seed: int = 0,
    steps: int = 10_000,
    episodes: int = 150,
    updates: int = 10,
    level: float = 100.0,
    preset: str = "default",
    variant: str = "",
    **config: object,
) -> Path:
    """A run whose returns rise from 0 to about `level`; the same arguments give the same files."""
    words = (task, algo, str(seed), preset, variant)
    rng = np.random.default_rng([ord(c) for word in words for c in word])
    folder.mkdir(parents=True)
    settings = SETTINGS.get(algo, SETTINGS["p3o"]) | ({"learning_rate": 0.013} if (algo, preset) in OTHER_RATE else {})
    if preset == "default":  # in other presets both are what they were before they could be set
        settings |= {"grad_clip": "separate" if algo == "p3o" else "joint", "normalizer_pace": "learning_rate"}
    default = {
        "format": 1,
        "run_id": "-".join(words),
        "algo": algo,
        "preset": preset,
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "env": {"id": task, "kwargs": {}, "observation_space": "Box(17)", "action_space": "Box(6)"},
        "settings": settings,
        "versions": {"python": "3.12.3", "jax": "0.11.2", "gymnasium": "1.4.0"},
        "machine": {"system": "Linux", "cores": 2},
        "command": f"p3o train {task} --algo {algo} --steps {steps} --seed {seed}",
        "started": "2026-02-03T14:05:11",
        "resumes": [],
    }
    (folder / "config.json").write_text(json.dumps(default | config))
    ends = np.sort(rng.integers(1, steps + 1, episodes))
    rise = 1 - np.exp(-3 * ends / steps)
    returns = level * rise * rng.normal(1, 0.05) + 0.1 * level * rng.normal(size=episodes)
    lines = [f"{s},{i % 2},{r:.8f},{1000},{s / 4000:.2f}" for i, (s, r) in enumerate(zip(ends, returns, strict=True))]
    (folder / "episodes.csv").write_text("step,env,return,length,seconds\n" + "".join(f"{line}\n" for line in lines))
    at = np.linspace(steps / updates, steps, updates).astype(int)
    if algo == "p3o":
        ess = 0.8 + 0.15 * at / steps + 0.01 * rng.normal(size=updates)
        rest = "0.01,0.4,0.02,1.0,3.2,32,0.5,0.0003,4512"
        rows = [
            f"{s},{e:.6f},{1 - e:.6f},{e:.6f},{0.1 * (1 - e):.6f},{3 - s / steps:.6f},{rest}"
            for s, e in zip(at, ess, strict=True)
        ]
        names = COLUMNS
    else:
        rows = [f"{s},{3 - s / steps:.6f},0.01,0.4,0.5,0.001,6512" for s in at]
        names = "entropy,policy_loss,value_loss,grad_norm,learning_rate,steps_per_second"
    (folder / "updates.csv").write_text(f"step,{names}\n" + "".join(f"{row}\n" for row in rows))
    return folder


def write_sweep(
    root: Path, tasks: list[str], algos: list[str], seeds: int, levels: dict[str, float] | None = None, **shape: int
) -> Path:
    """A sweep folder: ENV/ALGO-default/seed-N."""
    for task in tasks:
        for i, algo in enumerate(algos):
            for seed in range(seeds):
                level = (levels or {}).get(algo, 100.0 * (len(algos) - i))
                write_run(root / task / f"{algo}-default" / f"seed-{seed}", task, algo, seed, level=level, **shape)
    return root


def write_paper_sweep(root: Path) -> Path:
    """The size of the paper's MuJoCo table: 8 tasks, 4 algorithms, 10 seeds, 3M steps, 3,000 to 10,000 episodes."""
    for i, task in enumerate(PAPER_TASKS.split()):
        for j, algo in enumerate(("p3o", "ppo", "a2c", "a2cg")):
            for seed in range(10):
                write_run(
                    root / task / f"{algo}-paper" / f"seed-{seed}",
                    task,
                    algo,
                    seed,
                    steps=3_000_000,
                    episodes=3000 + 1000 * i,
                    updates=230,
                    level=5000.0 - 900 * j,
                    preset="paper",
                )
    return root
