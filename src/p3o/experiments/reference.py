"""Printed numbers to stand beside ours: the paper's tables, the columns it quotes, human and random play.

Every lookup takes an environment id in any spelling (`HalfCheetah-v4`, `PongNoFrameskip-v4`, `ALE/Pong-v5`) or the
paper's own name of the row (`Half-Cheetah`, `Pong`), and gives None where there is no number. The files are in
reference/: paper_*.csv are the paper's tables as printed, published_*_wide.csv what others published (on MuJoCo: the
benchmark pages of OpenAI Baselines and openrlbenchmark, and the stored curves of Tianshou's 2021 benchmark at 3M
steps), random_mujoco.csv was measured with benchmarks/random_scores.py.
"""

import csv
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

MUJOCO_TASKS = {  # Gymnasium's name -> the paper's, in its order
    "HalfCheetah": "Half-Cheetah",
    "Walker2d": "Walker",
    "Hopper": "Hopper",
    "Swimmer": "Swimmer",
    "InvertedDoublePendulum": "Inverted Double Pendulum",
    "InvertedPendulum": "Inverted Pendulum",
    "Ant": "Ant",
    "Humanoid": "Humanoid",
}
PAPER_STEPS = {"mujoco": 3_000_000, "atari": 28_000_000}


class Task(NamedTuple):
    """A row of the paper's tables."""

    suite: str  # mujoco or atari
    name: str  # as the paper prints it


class Norm(NamedTuple):
    """What a normalised score of 0 and of 1 means for a task."""

    low: float
    high: float
    meaning: str


def find_task(env_id: str) -> Task | None:
    """The row that an environment id belongs to."""
    name = env_id.rsplit(":", 1)[-1].removeprefix("ALE/").removeprefix("p3o/")
    name = re.sub(r"-v\d+$", "", name)
    if name in MUJOCO_TASKS or name in MUJOCO_TASKS.values():
        return Task("mujoco", MUJOCO_TASKS.get(name, name))
    game = re.sub(r"(NoFrameskip|Deterministic)$", "", name)
    return Task("atari", game) if game in published("random") else None


def paper_score(env_id: str, algo: str) -> float | None:
    """The paper's number at the end of training: 3M steps on MuJoCo, 28M on Atari."""
    task = find_task(env_id)
    return None if task is None else _columns(f"paper_{task.suite}.csv").get(algo, {}).get(task.name)


def quoted_score(env_id: str, algo: str) -> float | None:
    """What the paper quotes of others on MuJoCo (`qprop`, `ipg`): read off curves of 10M steps and 3 seeds."""
    task = find_task(env_id)
    return None if task is None else _columns("paper_mujoco_main.csv").get(algo, {}).get(task.name)


def random_score(env_id: str) -> float | None:
    """The mean return of random play; versions before -v4 of MuJoCo tasks get the number of -v4."""
    task = find_task(env_id)
    if task is None or task.suite == "atari":
        return published("random").get(task.name) if task else None
    gym_name = next(gym for gym, name in MUJOCO_TASKS.items() if name == task.name)
    version = "v5" if env_id.endswith("-v5") else "v4"
    return _columns("random_mujoco.csv")["mean"].get(f"{gym_name}-{version}")


def human_score(env_id: str) -> float | None:
    """The human reference score of an Atari game."""
    task = find_task(env_id)
    return published("human").get(task.name) if task and task.suite == "atari" else None


def norm(env_id: str) -> Norm | None:
    """Human-normalised on Atari; on MuJoCo 0 is random play and 1 the paper's P3O."""
    task, low = find_task(env_id), random_score(env_id)
    if task is None or low is None:
        return None
    high = human_score(env_id) if task.suite == "atari" else paper_score(env_id, "p3o")
    meaning = "human play" if task.suite == "atari" else "the paper's P3O at 3M steps"
    return None if high is None else Norm(low, high, meaning)


def paper_tasks(suite: str) -> tuple[str, ...]:
    """The rows of the paper's table of a suite, in its order."""
    return tuple(_columns(f"paper_{suite}.csv")["p3o"])


def paper_column(suite: str, algo: str) -> dict[str, float]:
    """One column of the paper's table: row -> number."""
    return dict(_columns(f"paper_{suite}.csv")[algo])


def paper_wins() -> dict[str, dict[str, int]]:
    """The games won as the paper prints them: algorithm -> won_final, won_40pct, won_80pct -> count."""
    table = _columns("paper_atari_wins.csv")
    return {algo.lower(): {name: int(column[algo]) for name, column in table.items()} for algo in table["won_final"]}


def published(column: str, suite: str = "atari") -> dict[str, float]:
    """One column of published scores: row -> number; rows without one are left out."""
    return _columns(f"published_{suite}_wide.csv")[column]


@cache
def _columns(file: str) -> dict[str, dict[str, float]]:
    """A CSV file by column; its first column names the rows, cells that are no number are left out."""
    text = (resources.files("p3o.experiments") / "reference" / file).read_text(encoding="utf-8")
    header, *rows = csv.reader(text.splitlines())
    return {name: {row[0]: float(row[j]) for row in rows if _is_number(row[j])} for j, name in enumerate(header) if j}


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
