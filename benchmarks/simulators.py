"""MuJoCo tasks stepped as training does, against their own `step`: microseconds a step, and whether the numbers agree.

    python benchmarks/simulators.py [--steps 4000] [--tasks HalfCheetah Ant] [--versions v4 v5]

Two environments of each kind play the same random actions in turn, in one process.
"""

import argparse
import time

import numpy as np
from common import markdown_table

from p3o.envs.making import make_env
from p3o.envs.mujoco_steps import make_steps
from p3o.speeds import MUJOCO


def compare(env_id: str, steps: int) -> tuple[float, float, int]:
    """Seconds of a step the quick way and the plain way, and in how many steps they differ."""
    quick_env, plain_env = make_env(env_id, {}), make_env(env_id, {})
    rows, reward = np.empty((1, *quick_env.observation_space.shape)), np.empty(1)
    quick = make_steps([quick_env], rows)
    if quick is None:
        raise SystemExit(f"{env_id}: there is no quick way under this version of Gymnasium")
    space, rng = quick_env.action_space, np.random.default_rng(0)
    quick_env.reset(seed=0)
    plain_env.reset(seed=0)
    quick_seconds, plain_seconds, different = 0.0, 0.0, 0
    for _ in range(steps):
        action = rng.uniform(space.low, space.high, (1, *space.shape)).astype(space.dtype)
        started = time.perf_counter()
        ended = quick.step(action, reward)
        between = time.perf_counter()
        observation, gained, terminated, truncated, _ = plain_env.step(action[0])
        plain_seconds += time.perf_counter() - between
        quick_seconds += between - started
        is_same = rows[0].tobytes() == observation.tobytes() and reward[0] == gained
        different += not (is_same and bool(ended) == (terminated or truncated))
        if terminated or truncated:
            quick_env.reset()
            plain_env.reset()
    return quick_seconds / steps, plain_seconds / steps, different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--tasks", nargs="+", default=list(MUJOCO), choices=list(MUJOCO))
    parser.add_argument("--versions", nargs="+", default=["v4", "v5"], choices=["v4", "v5"])
    options = parser.parse_args()
    rows = []
    for env_id in (f"{task}-{version}" for task in options.tasks for version in options.versions):
        quick, plain, different = compare(env_id, options.steps)
        rows.append([env_id, f"{1e6 * quick:.1f}", f"{1e6 * plain:.1f}", f"{plain / quick:.2f}×", str(different)])
    print("\n".join(markdown_table(["µs a step", "quick", "env.step", "ratio", "steps that differ"], rows)))


if __name__ == "__main__":
    main()
