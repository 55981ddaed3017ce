"""Our scores beside the paper's: the verdict on each number of a task."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from p3o import statistics
from p3o.experiments.reference import paper_score, random_score
from p3o.statistics import Array, Estimate, Verdict


class Comparison(NamedTuple):
    """One number of the paper and ours."""

    algo: str
    num_seeds: int
    mean: Estimate
    paper: float | None
    verdict: Verdict | None  # none where the paper has no number


def compare(env_id: str, scores: Mapping[str, ArrayLike], scale: float = 1.0) -> list[Comparison]:
    """Every algorithm of one task: `{algo: scores over seeds}` at the paper's number of steps times `scale`.

    "Ordering reproduced" asks for P(P3O > baseline) above 0.5, on P3O's own row against every baseline that has seeds
    enough, and is only open where the paper has P3O ahead: elsewhere it would contradict the paper.
    """
    groups = {algo: np.asarray(values, float).reshape(-1) for algo, values in scores.items()}
    ahead = _orderings(env_id, groups)
    rows = []
    for algo, values in groups.items():
        paper = paper_score(env_id, algo)
        least = min(ahead.values(), key=lambda chance: chance.low, default=None)
        improvement = least if algo == "p3o" else ahead.get(algo)
        if paper is None:
            rows.append(Comparison(algo, values.size, statistics.mean_interval(values), None, None))
            continue
        verdict = statistics.verdict(values, paper, random_score(env_id), improvement, scale)
        rows.append(Comparison(algo, values.size, verdict.mean, paper, verdict))
    return rows


def _orderings(env_id: str, groups: Mapping[str, Array]) -> dict[str, Estimate]:
    """P(P3O > baseline) for the baselines that the paper has below P3O, where both have seeds enough for a verdict."""
    best = paper_score(env_id, "p3o")
    groups = {algo: values for algo, values in groups.items() if values.size >= statistics.MIN_SEEDS}
    if best is None or "p3o" not in groups:
        return {}
    result = {}
    for algo, values in groups.items():
        paper = paper_score(env_id, algo)
        if algo != "p3o" and paper is not None and paper < best:
            result[algo] = statistics.probability_of_improvement({"x": groups["p3o"]}, {"x": values})
    return result
