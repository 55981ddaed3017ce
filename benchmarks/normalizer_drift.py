"""How much a finished run's policy depends on where its observation normaliser stands.

    python benchmarks/normalizer_drift.py RUN [RUN ...] [--episodes 20]

Plays the model as it ended, then with the normaliser moved back by a part of what it has counted, as if the policy's
own last observations had not been seen yet, and moved on by a tenth, as if as many more had been. Weights stay.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from common import markdown_table

from p3o import model as models
from p3o.envs.making import make_env
from p3o.evaluate import play
from p3o.normalize import NormalizerState

MOVES = {"as it ended": 0.0, "back by 3 %": -0.03, "back by 10 %": -0.1, "back by 20 %": -0.2, "on by 10 %": 0.1}


class Watched(gym.Wrapper):
    """Remembers what it showed."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.shown: list[np.ndarray] = []

    def reset(self, **options: Any) -> Any:
        result = self.env.reset(**options)
        self.shown.append(result[0])
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.shown.append(result[0])
        return result


def moved(state: NormalizerState, rows: np.ndarray, by: float) -> NormalizerState:
    """The statistics with so much of their count more (or less) of rows like these."""
    old, new = 1.0 / (1.0 + by), by / (1.0 + by)
    mean = old * state.observation_mean + new * rows.mean(0)
    square = old * (state.observation_variance + state.observation_mean**2) + new * (rows**2).mean(0)
    return state._replace(observation_mean=mean, observation_variance=np.maximum(square - mean**2, 1e-8))


def measure(run: Path, episodes: int) -> list[str]:
    """A row of the table: mean return and its standard error at each place of the normaliser."""
    model = models.load(run / "model")
    env, ended = Watched(make_env(model.env["id"], model.env["kwargs"])), model.normalizer
    cells, rows = [], np.zeros((0, ended.observation_mean.size))
    for by in MOVES.values():
        if by:
            model._normalizer.restore(moved(ended, rows, by))
        returns = [total for total, _ in play(model, env, episodes, 5, deterministic=False)]
        if not by:
            rows = np.array(env.shown)
        cells.append(f"{np.mean(returns):,.0f} ± {np.std(returns) / len(returns) ** 0.5:,.0f}")
    env.close()
    return [f"{model.env['id']} {run.name}", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--episodes", type=int, default=20)
    options = parser.parse_args()
    print("\n".join(markdown_table(["run", *MOVES], [measure(run, options.episodes) for run in options.runs])))


if __name__ == "__main__":
    main()
