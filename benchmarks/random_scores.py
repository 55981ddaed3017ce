"""The return of uniformly random actions on the paper's MuJoCo tasks: the zero of paper-normalised scores.

    python benchmarks/random_scores.py src/p3o/experiments/reference/random_mujoco.csv

100 episodes a task in each version, from the action space's own sampler, seeds 0 to 99 for the episodes' starts.
"""

import argparse
from pathlib import Path

import numpy as np

from p3o.envs.making import make_env
from p3o.experiments.reference import MUJOCO_TASKS

VERSIONS = ("v4", "v5")


def random_returns(env_id: str, episodes: int) -> np.ndarray:
    """The returns of whole episodes, time limit included."""
    env = make_env(env_id, {})
    env.action_space.seed(0)
    returns = np.zeros(episodes)
    for episode in range(episodes):
        env.reset(seed=episode)
        is_over = False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            returns[episode] += float(reward)
            is_over = terminated or truncated
    env.close()
    return returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--episodes", type=int, default=100)
    options = parser.parse_args()
    lines = ["env,mean,std,episodes"]
    for task in MUJOCO_TASKS:
        for version in VERSIONS:
            returns = random_returns(f"{task}-{version}", options.episodes)
            lines.append(f"{task}-{version},{returns.mean():.4f},{returns.std(ddof=1):.4f},{options.episodes}")
            print(lines[-1], flush=True)
    options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
