"""The numbers of a study: scores at checkpoints, what they say beside the paper, aggregates over tasks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from p3o import statistics
from p3o.experiments import reference
from p3o.experiments.compare import compare
from p3o.report.axes import short_count
from p3o.report.departures import departures
from p3o.report.find import Group, Study, score
from p3o.runs import Array, Run
from p3o.statistics import Aggregates, Estimate, Profile, Verdict, WinEstimate

MUJOCO_CHECKPOINTS = (1_000_000, 2_000_000, 3_000_000)
ATARI_CHECKPOINTS = (0.4, 0.8)
PROFILE_POINTS = 101
EFFICIENCY_POINTS = 25
MAX_TAU = 8.0


class Checkpoint(NamedTuple):
    name: str  # 1M, 40 %, the end
    step: int


class PaperRow(NamedTuple):
    """One of the paper's numbers beside ours."""

    task: str
    group: Group
    step: int
    scores: Array
    paper: float
    verdict: Verdict


@dataclass(frozen=True)
class Overall:
    """Everything that needs several tasks on one scale."""

    how: str  # how scores were normalised, in words
    scores: dict[Group, dict[str, Array]]  # [seeds] per task, normalised
    aggregates: dict[Group, Aggregates]
    profiles: dict[Group, Profile]
    left_out: tuple[Group, ...]

    @property
    def tasks(self) -> list[str]:
        return list(next(iter(self.scores.values())))


@dataclass(frozen=True)
class Efficiency:
    """The interquartile mean over tasks along training."""

    how: str
    tasks: tuple[str, ...]
    shares: Array  # of training, in percent
    curves: dict[Group, tuple[Array, Array, Array]]  # value, low and high at each share; NaN where a task has no score


@dataclass(frozen=True)
class Results:
    """A study with everything that is computed from it once."""

    study: Study

    @cached_property
    def labels(self) -> dict[Group, str]:
        return self.study.labels()

    @cached_property
    def final(self) -> dict[str, dict[Group, Array]]:
        """Scores over seeds at the last step that all groups of a task share; groups without any are left out."""
        return {task: self.scores(task, self.study.common_steps(task)) for task in self.study.tasks}

    def scores(self, task: str, step: int) -> dict[Group, Array]:
        found = {}
        for group in self.study.groups_of(task):
            values = np.array([score(run, step) for run in self.study.cells[task, group]])
            if np.isfinite(values).any():
                found[group] = values[np.isfinite(values)]
        return found

    def checkpoints(self, task: str) -> list[Checkpoint]:
        """1M, 2M, 3M for MuJoCo, 40 and 80 % for Atari, and always the end."""
        end = self.study.common_steps(task)
        row = reference.find_task(task)
        early = []
        if row and row.suite == "mujoco":
            early = [Checkpoint(short_count(step), step) for step in MUJOCO_CHECKPOINTS if step < end]
        elif row:
            early = [Checkpoint(f"{part:.0%}".replace("%", " %"), round(part * end)) for part in ATARI_CHECKPOINTS]
        return [*early, Checkpoint("the end", end)]

    def can_be_compared(self, task: str, scores: dict[Group, Array]) -> bool:
        """Two groups at least, and no run on its way to this step that is already higher than all of them."""
        if len(scores) < 2:
            return False
        best = max(float(values.mean()) for values in scores.values())
        waiting = [group for group in self.study.groups_of(task) if group not in scores]
        so_far = [score(run, run.last_step) for group in waiting for run in self.study.cells[task, group]]
        return not any(value >= best for value in so_far)  # NaN is not

    @cached_property
    def wins(self) -> WinEstimate | None:
        """Who has the highest mean on how many tasks, of those that can be compared."""
        rows = {task: named(row, self.labels) for task, row in self.final.items() if self.can_be_compared(task, row)}
        return statistics.win_estimate(rows) if rows else None

    @cached_property
    def lead(self) -> Group | None:
        """The group that others are compared with: P3O's with the most tasks, else the one with the most wins."""
        groups = self.study.groups
        ours = [group for group in groups if group.algo == "p3o"]
        if ours:
            return max(ours, key=lambda group: (len(self.study.tasks_of(group)), not group.variant))
        won = self.wins.won if self.wins else {}
        return max(groups, key=lambda g: won[self.labels[g]].value if self.labels[g] in won else -1.0, default=None)

    @cached_property
    def improvements(self) -> dict[Group, Estimate]:
        """P(lead > group) of each other group, over the tasks that both have."""
        found = {}
        for group in self.study.groups:
            both = self.common_tasks(group)
            if group != self.lead and self.lead is not None and both:
                ours, theirs = ({t: self.final[t][g] for t in both} for g in (self.lead, group))
                found[group] = statistics.probability_of_improvement(ours, theirs)
        return found

    def common_tasks(self, group: Group) -> list[str]:
        """Tasks on which the lead and the group both have a score."""
        return [task for task in self.study.tasks if {group, self.lead} <= set(self.final[task])]

    @cached_property
    def beside_paper(self) -> list[PaperRow]:
        """Every number that the paper prints for a task and algorithm that is here, at the paper's step or our end.

        A variant is a departure from the algorithm, so it has no number there. A departure without a name gets no
        verdict. Algorithms are set against each other within a preset and at the same step. The -v5 tasks of MuJoCo
        pay other rewards than the paper's, so they have none either.
        """
        suites = {task: row.suite for task in self.study.tasks if (row := reference.find_task(task))}
        suites = {task: suite for task, suite in suites.items() if suite != "mujoco" or not task.endswith("-v5")}
        return [row for task, suite in suites.items() for row in self._paper_rows(task, reference.PAPER_STEPS[suite])]

    def _paper_rows(self, task: str, full: int) -> list[PaperRow]:
        """One task's; `full` is the paper's number of steps."""
        rows: list[PaperRow] = []
        plain = [group for group in self.study.groups_of(task) if not group.variant]
        for kin in dict.fromkeys((g.preset, g.source, self.study.asked(task, g)) for g in plain):
            step = min(full, kin[2])
            scale = min(float(f"{step / full:.3g}"), 0.999) if step < full else 1.0
            scores = {
                g: v for g, v in self.scores(task, step).items() if g in plain and (g.preset, g.source) == kin[:2]
            }
            printed = {group for group in scores if reference.paper_score(task, group.algo) is not None}
            departing = {g: why for g in printed if (why := departures(self._scored(task, g, step), g))}
            true = {group: values for group, values in scores.items() if group not in departing}
            found = dict(zip(true, compare(task, {g.algo: v for g, v in true.items()}, scale), strict=True))
            for group, values in scores.items():
                paper = reference.paper_score(task, group.algo)
                if paper is None or self.study.asked(task, group) != kin[2]:
                    continue
                verdict = _departed(values, departing[group]) if group in departing else found[group].verdict
                assert verdict is not None
                rows.append(PaperRow(task, group, step, values, paper, verdict))
        return rows

    def _scored(self, task: str, group: Group, step: int) -> list[Run]:
        """The runs that have a score at a step."""
        return [run for run in self.study.cells[task, group] if math.isfinite(score(run, step))]

    @cached_property
    def overall(self) -> Overall | None:
        """Aggregates over the tasks that all compared groups share; None where there are fewer than two."""
        groups, tasks = shared_tasks(
            {g: [t for t in self.study.tasks if g in self.final[t]] for g in self.study.groups}
        )
        if not groups:
            return None
        scores = {group: {task: self.final[task][group] for task in tasks} for group in groups}
        how, low, high = scale_of(scores, tasks)
        tasks = [task for task in tasks if task in low]
        if len(tasks) < 2 or (len(groups) < 2 and how == MIN_MAX):
            return None
        normal = {g: statistics.normalise({t: row[t] for t in tasks}, low, high) for g, row in scores.items()}
        taus = profile_taus(normal)
        return Overall(
            how=how,
            scores=normal,
            aggregates={group: statistics.aggregates(row) for group, row in normal.items()},
            profiles={group: statistics.performance_profile(row, taus) for group, row in normal.items()},
            left_out=tuple(group for group in self.study.groups if group not in groups),
        )

    @cached_property
    def efficiency(self) -> Efficiency | None:
        """The IQM at every 4 % of training, over the tasks with a published scale; None with fewer than two."""
        if self.overall is None:
            return None
        norms = {task: norm for task in self.overall.tasks if (norm := reference.norm(task))}
        kinds = [norm.meaning for norm in norms.values()]
        meaning = max(kinds, key=kinds.count, default="")
        norms = {task: norm for task, norm in norms.items() if norm.meaning == meaning}
        if len(norms) < 2:
            return None
        low, high = ({task: getattr(norm, name) for task, norm in norms.items()} for name in ("low", "high"))
        shares = np.linspace(100 / EFFICIENCY_POINTS, 100, EFFICIENCY_POINTS)
        groups = list(self.overall.scores)
        found: dict[Group, list[Estimate]] = {group: [] for group in groups}
        for share in shares:
            rows = {task: self.scores(task, round(share / 100 * self.study.common_steps(task))) for task in norms}
            for group in groups:
                there = {task: row[group] for task, row in rows.items() if group in row}
                is_whole = len(there) == len(norms)
                normal = statistics.normalise(there, low, high)
                found[group].append(statistics.iqm_interval(normal) if is_whole else Estimate(*[math.nan] * 3))
        curves = {group: tuple(np.array(values).T) for group, values in found.items()}
        how = f"random play is 0, {meaning} is 1"
        return Efficiency(how, tuple(norms), shares, {g: (c[0], c[1], c[2]) for g, c in curves.items()})


def _departed(values: Array, why: tuple[str, ...]) -> Verdict:
    """In the place of a verdict, with no difference from the paper's number."""
    return Verdict("departure", f"departure: {'; '.join(why)}", statistics.mean_interval(values), math.nan)


def named(row: Mapping[Group, Array], labels: Mapping[Group, str]) -> dict[str, Array]:
    return {labels[group]: values for group, values in row.items()}


def shared_tasks(tasks_of: dict[Group, list[str]]) -> tuple[list[Group], list[str]]:
    """The groups that can be averaged over the same two or more tasks: those with the fewest tasks go first."""
    groups = [group for group, tasks in tasks_of.items() if len(tasks) > 1]
    while groups:
        shared = [task for task in tasks_of[groups[0]] if all(task in tasks_of[group] for group in groups)]
        if len(shared) > 1:
            return groups, shared
        groups.remove(min(reversed(groups), key=lambda group: len(tasks_of[group])))
    return [], []


MIN_MAX = "the lowest score of any run here on that environment is 0, the highest is 1"


def scale_of(scores: dict[Group, dict[str, Array]], tasks: list[str]) -> tuple[str, dict[str, float], dict[str, float]]:
    """What 0 and 1 mean on each task: the paper's scale for MuJoCo, the human one for Atari, else that of these runs.

    Tasks of two kinds do not share a published scale, so they get that of these runs.
    """
    norms = {task: reference.norm(task) for task in tasks}
    published = {task: norm for task, norm in norms.items() if norm}
    if len(published) == len(tasks) and len({norm.meaning for norm in published.values()}) == 1:
        meaning = next(iter(published.values())).meaning
        how = f"random play is 0, {meaning} is 1"
        return how, {t: norm.low for t, norm in published.items()}, {t: norm.high for t, norm in published.items()}
    found = {task: np.concatenate([row[task] for row in scores.values()]) for task in tasks}
    found = {task: values for task, values in found.items() if values.max() > values.min()}
    return MIN_MAX, {t: float(v.min()) for t, v in found.items()}, {t: float(v.max()) for t, v in found.items()}


def profile_taus(normal: dict[Group, dict[str, Array]]) -> Array:
    every = np.concatenate([values for row in normal.values() for values in row.values()])
    return np.linspace(0.0, min(max(1.0, float(every.max())), MAX_TAU), PROFILE_POINTS)
