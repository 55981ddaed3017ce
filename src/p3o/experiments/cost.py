"""How long an experiment would take: a rough estimate from speeds measured on one core of an AMD EPYC (Zen 4).

Microseconds for one environment step, simulator and learning together. MuJoCo's were measured with
`p3o bench ENV-v4 --preset paper --algos p3o ppo a2c --seconds 2` (A2CG is taken to be as fast as A2C). Atari's come
from the time of one gradient of its network on such a core, not from runs, and leave a GPU out.
"""

import os

from p3o.experiments.catalog import Cell, Experiment

MUJOCO = {
    "HalfCheetah": {"p3o": 169, "ppo": 72, "a2c": 44},
    "Walker2d": {"p3o": 259, "ppo": 149, "a2c": 124},
    "Hopper": {"p3o": 206, "ppo": 124, "a2c": 89},
    "Swimmer": {"p3o": 184, "ppo": 88, "a2c": 56},
    "InvertedDoublePendulum": {"p3o": 195, "ppo": 95, "a2c": 70},
    "InvertedPendulum": {"p3o": 136, "ppo": 51, "a2c": 29},
    "Ant": {"p3o": 366, "ppo": 264, "a2c": 217},
    "Humanoid": {"p3o": 648, "ppo": 301, "a2c": 242},
}
ATARI = {"p3o": 26_700, "a2c": 3_200, "ppo": 9_200, "acer": 13_700}


def seconds_per_step(cell: Cell) -> float:
    """One core, one environment step."""
    speeds = MUJOCO[cell.task] if cell.suite == "mujoco" else ATARI
    return speeds["a2c" if cell.algo == "a2cg" else cell.algo] * 1e-6


def core_hours(experiment: Experiment) -> float:
    """Every run at full size, one after the other."""
    return sum(seconds_per_step(cell) * cell.steps * len(cell.seeds) for cell in experiment.cells) / 3600


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
