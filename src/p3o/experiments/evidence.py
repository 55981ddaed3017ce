"""The runs of an experiment as the claims about it ask for them: scores, wins and logs, or what is missing."""

from collections.abc import Sequence

import numpy as np

from p3o import statistics
from p3o.experiments.scores import Result
from p3o.statistics import Array


class Missing(Exception):
    """A score or log that a claim needs is not there."""


class Runs:
    """The results by task, algorithm and variant; remembers which were used since `used` was cleared."""

    def __init__(self, results: Sequence[Result]):
        self._found = {(r.cell.task, r.cell.algo, r.cell.variant): r for r in results}
        self.used: list[Result] = []

    def __getitem__(self, key: tuple[str, str, str]) -> Result:
        if key not in self._found:
            raise Missing(f"no {' '.join(part for part in key[1:] if part)} on {key[0]} here")
        self.used.append(self._found[key])
        return self._found[key]

    def scores(self, task: str, algo: str, variant: str = "", at: int = -1) -> Array:
        result = self[task, algo, variant]
        if not result.scores[at].size:
            raise Missing(f"{result.cell.label} on {task} has no score")
        return result.scores[at]

    def mean(self, task: str, algo: str, variant: str = "", at: int = -1) -> float:
        return float(self.scores(task, algo, variant, at).mean())

    def wins(self, tasks: Sequence[str], algos: Sequence[str], at: int = -1) -> statistics.Wins:
        return statistics.wins({t: {a: self.mean(t, a, at=at) for a in algos} for t in tasks})

    def logged(self, task: str, algo: str, variant: str, name: str) -> list[tuple[Array, Array]]:
        """Steps and values of a logged quantity, one pair a seed, where it has a number."""
        found = []
        for log in self[task, algo, variant].logs:
            values = log.get(name, np.empty(0))
            known = np.isfinite(values)
            if known.any():
                found.append((log["step"][known], values[known]))
        if not found:
            raise Missing(f"{name} of {algo} on {task} was not logged")
        return found

    def late(self, task: str, algo: str, variant: str, name: str) -> float:
        """Mean over seeds of a quantity over the last 80 % of training."""
        return float(np.mean([v[s >= 0.2 * s[-1]].mean() for s, v in self.logged(task, algo, variant, name)]))
