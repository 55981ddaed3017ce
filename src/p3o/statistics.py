"""Statistics of scores over seeds: aggregates, bootstrap intervals, win counts and the verdict beside the paper.

Scores are `{task: one number per seed}`. The unit that is resampled is the seed: replicates draw seeds with
replacement inside each task (a stratified bootstrap), and intervals are the 2.5 and 97.5 percentiles of what the
replicates give. Every function is a pure function of its arguments and `seed`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p3o.errors import UserError

Array = NDArray[Any]
Scores = Mapping[str, ArrayLike]  # task -> [seeds]
Statistic = Callable[[Sequence[Array]], Array]  # one array [..., seeds] per task -> [...]

REPLICATES = 10_000
PERCENTILES = (2.5, 97.5)
MIN_SEEDS = 5  # fewer seeds get no verdict
TOLERANCE = 0.10  # of the distance from random play to the paper's number
TIE = 1e-12  # relative distance below which two means are the same number


class Estimate(NamedTuple):
    """A number with its 95 % interval; the interval is NaN where no task has two seeds."""

    value: float
    low: float
    high: float


class Aggregates(NamedTuple):
    """One algorithm over all tasks, on normalised scores."""

    iqm: Estimate
    median: Estimate
    mean: Estimate
    optimality_gap: Estimate


class Profile(NamedTuple):
    """The share of runs that score above each threshold, with a pointwise 95 % band."""

    taus: Array  # [P]
    value: Array  # [P]
    low: Array  # [P]
    high: Array  # [P]


class Wins(NamedTuple):
    """On how many tasks each algorithm has the unique highest mean, and the tasks where the highest is shared."""

    won: dict[str, int]
    ties: tuple[str, ...]


class WinEstimate(NamedTuple):
    """`Wins` of the means over seeds, and what resampling the seeds does to it."""

    won: dict[str, Estimate]  # counts
    ties: tuple[str, ...]
    p_win: dict[str, dict[str, float]]  # task -> algorithm -> share of replicates in which it wins alone


class Verdict(NamedTuple):
    """What a mean over seeds says about the paper's number; `gap` is ours minus the paper's."""

    name: str  # exceeds, reproduced, ordering reproduced, not reproduced, no verdict, not comparable
    text: str
    mean: Estimate
    gap: float


def iqm(scores: Scores) -> float:
    """Interquartile mean: the mean of all runs of all tasks without the lowest and the highest quarter."""
    return float(_iqm(_groups(scores)))


def mean_of_task_means(scores: Scores) -> float:
    return float(_mean(_groups(scores)))


def median_of_task_means(scores: Scores) -> float:
    return float(_median(_groups(scores)))


def optimality_gap(scores: Scores) -> float:
    """1 − mean of min(score, 1), every task with the same weight: how far the runs fall short of 1."""
    return float(_optimality_gap(_groups(scores)))


def aggregates(scores: Scores, replicates: int = REPLICATES, seed: int = 0) -> Aggregates:
    """The four aggregates with intervals, all from the same replicates."""
    groups = _groups(scores)
    drawn = _resample(groups, replicates, seed)
    return Aggregates(*(_estimate(f, groups, drawn) for f in (_iqm, _median, _mean, _optimality_gap)))


def iqm_interval(scores: Scores, replicates: int = 2_000, seed: int = 0) -> Estimate:
    """The interquartile mean with its interval alone, for curves of many points."""
    groups = _groups(scores)
    return _estimate(_iqm, groups, _resample(groups, replicates, seed))


def mean_interval(values: ArrayLike, replicates: int = REPLICATES, seed: int = 0) -> Estimate:
    """The mean over seeds of one task and its interval."""
    groups = _groups({"scores": values})
    return _estimate(_mean, groups, _resample(groups, replicates, seed))


def probability_of_improvement(x: Scores, y: Scores, replicates: int = REPLICATES, seed: int = 0) -> Estimate:
    """P(X > Y): the chance that a run of X beats a run of Y on the same task, averaged over the tasks of both.

    Per task it is Mann-Whitney's U / (n_x n_y), where a tie counts half.
    """
    tasks = [task for task in x if task in y]
    if not tasks:
        raise UserError("probability of improvement: the two sets of scores have no task in common")
    rng = np.random.default_rng(seed)
    value, drawn = 0.0, np.zeros(replicates)
    pairs = list(zip(_groups({t: x[t] for t in tasks}), _groups({t: y[t] for t in tasks}), strict=True))
    for ours, theirs in pairs:
        above = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)  # [n_x, n_y]
        value += above.mean()
        counts_x, counts_y = _counts(rng, ours.size, replicates), _counts(rng, theirs.size, replicates)
        drawn += np.sum((counts_x @ above) * counts_y, axis=1) / above.size
    is_known = any(group.size > 1 for pair in pairs for group in pair)
    return _interval(value / len(tasks), drawn / len(tasks), is_known)


def performance_profile(scores: Scores, taus: ArrayLike, replicates: int = 2_000, seed: int = 0) -> Profile:
    """The fraction of runs × tasks that score above each tau."""
    taus, groups = np.asarray(taus, float), _groups(scores)
    rng = np.random.default_rng(seed)
    value, drawn = np.zeros(taus.size), np.zeros((replicates, taus.size))
    for group in groups:
        above = (group[:, None] > taus).astype(float)  # [seeds, P]
        value += above.sum(0)
        drawn += _counts(rng, group.size, replicates) @ above
    total = sum(group.size for group in groups)
    if all(group.size < 2 for group in groups):
        drawn = np.full_like(drawn, np.nan)
    low, high = np.percentile(drawn / total, PERCENTILES, axis=0)
    return Profile(taus, value / total, low, high)


def wins(means: Mapping[str, Mapping[str, float]]) -> Wins:
    """Count wins in `{task: {algorithm: mean over seeds}}`; a task whose highest mean is shared counts for nobody."""
    won = dict.fromkeys(_algorithms(means), 0)
    ties = []
    for task, row in means.items():
        winner = _winners(np.array([list(row.values())], float))[0]
        if winner < 0:
            ties.append(task)
        else:
            won[list(row)[winner]] += 1
    return Wins(won, tuple(ties))


def win_estimate(
    scores: Mapping[str, Mapping[str, ArrayLike]], replicates: int = REPLICATES, seed: int = 0
) -> WinEstimate:
    """Wins of `{task: {algorithm: scores over seeds}}` with the interval of each count and P(win) on each task."""
    rng = np.random.default_rng(seed)
    counted = wins(
        {task: {algo: float(np.mean(np.asarray(v, float))) for algo, v in row.items()} for task, row in scores.items()}
    )
    drawn = {algo: np.zeros(replicates) for algo in counted.won}
    p_win: dict[str, dict[str, float]] = {}
    has_spread = False
    for task, row in scores.items():
        groups = _groups(row)
        has_spread |= any(group.size > 1 for group in groups)
        means = [_counts(rng, group.size, replicates) @ group / group.size for group in groups]
        winner = _winners(np.stack(means, axis=1))
        p_win[task] = {algo: float(np.mean(winner == i)) for i, algo in enumerate(row)}
        for i, algo in enumerate(row):
            drawn[algo] += winner == i
    won = {algo: _interval(float(counted.won[algo]), drawn[algo], has_spread) for algo in drawn}
    return WinEstimate(won, counted.ties, p_win)


def normalise(scores: Scores, low: Mapping[str, float], high: Mapping[str, float]) -> dict[str, Array]:
    """Scores as (x − low) / (high − low) of their task: human-normalised with random and human play."""
    result = {}
    for task, values in scores.items():
        if task not in low or task not in high:
            raise UserError(f"normalise: there is no {'low' if task not in low else 'high'} reference for {task!r}")
        if low[task] == high[task]:
            raise UserError(f"normalise: low and high reference of {task!r} are both {low[task]:g}")
        result[task] = (np.asarray(values, float) - low[task]) / (high[task] - low[task])
    return result


def verdict(
    values: ArrayLike,
    paper: float,
    random: float | None = None,
    improvement: Estimate | None = None,
    scale: float = 1.0,
    replicates: int = REPLICATES,
    seed: int = 0,
) -> Verdict:
    """The verdict on one number of the paper, by rules that were fixed before any run.

    `values` are our scores over seeds, `random` the score of random play (without it the 10 % rule is left out),
    `improvement` is P(P3O > baseline) and is given where the number is P3O's beside a baseline's.
    """
    (group,) = _groups({"scores": values})
    mean = mean_interval(group, replicates, seed)
    gap = mean.value - paper
    if scale < 1:
        return Verdict("not comparable", f"not comparable: {scale:g} of the paper's steps", mean, gap)
    if group.size < MIN_SEEDS:
        spread = f"{group.min():,.1f} to {group.max():,.1f}" if group.size > 1 else f"{group[0]:,.1f}"
        seeds = f"{group.size} seed{'s' if group.size > 1 else ''}"
        return Verdict("no verdict", f"no verdict from {seeds}: {spread}", mean, gap)
    if mean.low > paper:
        return Verdict("exceeds", f"exceeds the paper by {gap:,.1f}", mean, gap)
    if mean.low <= paper <= mean.high:
        return Verdict("reproduced", "reproduced: the interval holds the paper's number", mean, gap)
    if random is not None and abs(gap) <= TOLERANCE * abs(paper - random):
        return Verdict("reproduced", f"reproduced: within 10 % of the paper ({gap:+,.1f})", mean, gap)
    if improvement is not None and improvement.low > 0.5:
        return Verdict("ordering reproduced", f"ordering reproduced, the number is off by {gap:+,.1f}", mean, gap)
    return Verdict("not reproduced", f"not reproduced: off by {gap:+,.1f}", mean, gap)


def _groups(scores: Mapping[str, ArrayLike]) -> list[Array]:
    """One array of finite numbers per task."""
    if not scores:
        raise UserError("statistics: there are no scores")
    groups = [np.asarray(values, float).reshape(-1) for values in scores.values()]
    for task, group in zip(scores, groups, strict=True):
        if not group.size or not np.isfinite(group).all():
            raise UserError(f"statistics: {task!r} has {'a score that is not finite' if group.size else 'no scores'}")
    return groups


def _resample(groups: Sequence[Array], replicates: int, seed: int) -> list[Array]:
    """Seeds drawn with replacement inside each task: [replicates, seeds] per task."""
    rng = np.random.default_rng(seed)
    return [group[rng.integers(0, group.size, (replicates, group.size))] for group in groups]


def _counts(rng: np.random.Generator, size: int, replicates: int) -> Array:
    """How often each of `size` seeds is drawn in each replicate: [replicates, size], rows sum to `size`."""
    return rng.multinomial(size, np.full(size, 1 / size), replicates).astype(float)


def _estimate(statistic: Statistic, groups: Sequence[Array], drawn: Sequence[Array]) -> Estimate:
    return _interval(float(statistic(groups)), statistic(drawn), any(group.size > 1 for group in groups))


def _interval(value: float, drawn: Array, is_known: bool) -> Estimate:
    low, high = np.percentile(drawn, PERCENTILES) if is_known else (math.nan, math.nan)
    return Estimate(float(value), float(low), float(high))


def _iqm(groups: Sequence[Array]) -> Array:
    pooled = np.sort(np.concatenate(groups, axis=-1), axis=-1)
    cut = pooled.shape[-1] // 4
    return pooled[..., cut : pooled.shape[-1] - cut].mean(-1)


def _task_means(groups: Iterable[Array]) -> Array:
    return np.stack([group.mean(-1) for group in groups])  # [tasks, ...]


def _mean(groups: Sequence[Array]) -> Array:
    return _task_means(groups).mean(0)


def _median(groups: Sequence[Array]) -> Array:
    return np.median(_task_means(groups), axis=0)


def _optimality_gap(groups: Sequence[Array]) -> Array:
    return 1 - _task_means(np.minimum(group, 1) for group in groups).mean(0)


def _algorithms(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The algorithms of all tasks, in order of first appearance."""
    return list(dict.fromkeys(algo for row in rows.values() for algo in row))


def _winners(means: Array) -> Array:
    """The column of the unique highest of each row, −1 where it is shared: [rows, algorithms] -> [rows]."""
    if not means.shape[-1] or not np.isfinite(means).all():
        raise UserError("wins: every algorithm needs a finite mean on every task")
    best = means.max(-1, keepdims=True)
    is_best = means >= best - TIE * np.abs(best)
    return np.where(is_best.sum(-1) == 1, means.argmax(-1), -1)
