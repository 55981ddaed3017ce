"""How long an experiment would take: a rough estimate from speeds measured on one core of an AMD EPYC (Zen 4).

Microseconds for one environment step: what the simulator takes, and what the algorithm adds under the preset `paper`.
MuJoCo's were measured with `make peers` and with plain loops over the simulators. Atari's come from the time of one
gradient of its network on such a core, not from runs, and leave a GPU out.
"""

import os

from p3o.experiments.catalog import Cell, Experiment

SIMULATOR = {
    "HalfCheetah": 55,
    "Walker2d": 190,
    "Hopper": 155,
    "Swimmer": 120,
    "InvertedDoublePendulum": 60,
    "InvertedPendulum": 35,
    "Ant": 330,
    "Humanoid": 490,
}
ATARI_SIMULATOR = 700
LEARNING = {
    "mujoco": {"p3o": 140, "a2c": 15, "a2cg": 15, "ppo": 65},
    "atari": {"p3o": 26_000, "a2c": 2_500, "ppo": 8_500, "acer": 13_000},
}


def seconds_per_step(cell: Cell) -> float:
    """One core, one environment step."""
    return (SIMULATOR.get(cell.task, ATARI_SIMULATOR) + LEARNING[cell.suite][cell.algo]) * 1e-6


def core_hours(experiment: Experiment) -> float:
    """Every run at full size, one after the other."""
    return sum(seconds_per_step(cell) * cell.steps * len(cell.seeds) for cell in experiment.cells) / 3600


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
