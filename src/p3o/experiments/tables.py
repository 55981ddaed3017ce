"""An experiment's own table, ours beside the paper's: table.csv and summary.md."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from p3o import statistics
from p3o.experiments import claims, reference
from p3o.experiments.catalog import CHECKPOINTS, Experiment
from p3o.experiments.claims import Check
from p3o.experiments.compare import Comparison, compare
from p3o.experiments.scores import Result
from p3o.statistics import Array, Estimate
from p3o.wording import format_number, format_return, format_share

QUOTED = ("qprop", "ipg")
HEADER = (
    *("env", "algo", "variant", "step", "seeds", "seeds_asked"),
    "short",  # runs whose score there rests on fewer than 100 episodes
    *("mean", "low", "high"),
    "spread",  # what low and high are: a 95 % interval, or the range of two to four seeds
    *("paper", "random", *QUOTED, "verdict", "gap"),
)


def write(experiment: Experiment, results: Sequence[Result], out: Path, scale: float) -> list[Path]:
    """Both files, from the runs that are there."""
    comparisons = _compare(results, scale)
    with open(out / "table.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *_rows(results, comparisons)])
    lines = _markdown(experiment, results, comparisons, scale)
    (out / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [out / "table.csv", out / "summary.md"]


def _compare(results: Sequence[Result], scale: float) -> dict[tuple[str, str, str], Comparison]:
    """The verdict of every cell that is the paper's own setting, by environment, algorithm and variant."""
    found: dict[tuple[str, str, str], Comparison] = {}
    for env in dict.fromkeys(result.cell.env for result in results):
        plain = {r.cell.algo: r.final for r in results if r.cell.env == env and not r.cell.variant and r.final.size}
        found |= {(env, row.algo, ""): row for row in compare(env, plain, scale)}
    return found


def _spread(values: Array) -> Estimate:
    """A mean over seeds with its 95 % interval, or with the range of two to four seeds."""
    if 1 < values.size < statistics.MIN_SEEDS:
        return Estimate(float(values.mean()), float(values.min()), float(values.max()))
    return statistics.mean_interval(values)


def _kind(seeds: int) -> str:
    return "" if seeds < 2 else "range" if seeds < statistics.MIN_SEEDS else "95 % interval"


def _rows(
    results: Sequence[Result], comparisons: Mapping[tuple[str, str, str], Comparison]
) -> Iterator[Sequence[object]]:
    for result in results:
        cell = result.cell
        row = comparisons.get((cell.env, cell.algo, cell.variant))
        for i, (step, scores) in enumerate(zip(result.steps, result.scores, strict=True)):
            mean = _spread(scores) if scores.size else Estimate(math.nan, math.nan, math.nan)
            is_final = i == len(result.steps) - 1
            verdict = row.verdict if row and is_final else None
            yield (
                *(cell.env, cell.algo, cell.variant, step, scores.size, result.asked, result.short[i]),
                *(_cell(x) for x in mean),
                _kind(scores.size),
                _cell(row.paper if row and is_final else None),
                _cell(reference.random_score(cell.env)),
                *(_cell(reference.quoted_score(cell.env, name)) for name in QUOTED),
                verdict.name if verdict else "",
                _cell(verdict.gap if verdict else None),
            )


def _cell(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.6g}"


def _markdown(
    experiment: Experiment,
    results: Sequence[Result],
    comparisons: Mapping[tuple[str, str, str], Comparison],
    scale: float,
) -> Iterator[str]:
    yield f"# {experiment.name}: {experiment.title}"
    yield ""
    yield f"{experiment.item} of the paper. {experiment.shows}"
    yield ""
    yield from _state(results, scale)
    yield ""
    yield from _score_table(results, comparisons)
    if scale == 1 and any(reference.quoted_score(r.cell.env, "qprop") is not None for r in results):
        yield ""
        yield from _quoted_table(results)
    findings = list(_findings(experiment, results, scale))
    if findings:
        yield ""
        yield "## What the runs say"
        yield ""
        yield from findings
    yield ""
    yield "## What the paper claims"
    yield ""
    yield from (f"- {claim}" for claim in experiment.claims)
    yield ""
    yield from _claim_table(claims.check(experiment, results, scale))


def _claim_table(checks: Sequence[Check]) -> Iterator[str]:
    """What the runs say of each claim; rules and reasons are in claims.py."""
    yield "| claim | holds if | these runs | |"
    yield "| --- | --- | --- | --- |"
    for check in checks:
        claim, rule, number = (part.replace("|", "\\|") for part in check[:3])
        yield f"| {claim} | {rule} | {number} | {check.verdict} |"


def _state(results: Sequence[Result], scale: float) -> Iterator[str]:
    """How much of the experiment is there."""
    asked, finished = sum(r.asked for r in results), sum(r.finished for r in results)
    yield f"- {finished:,} of {asked:,} runs are finished."
    if scale < 1:
        yield f"- Runs have {scale:g} of the paper's steps: nothing here is comparable with its numbers."
    for suite, shares in CHECKPOINTS.items():
        of = [r.short for r in results if r.cell.suite == suite]
        there = [sum(counts) for counts in zip(*of, strict=True)]
        said = [f"{count:,} at {share:.0%} of training" for count, share in zip(there, shares, strict=False) if count]
        if said:
            where = ", ".join(said).replace("%", " %")
            yield f"- Runs on {suite} tasks with fewer than 100 episodes, whose score is the mean of those: {where}."
    if 0 < _fewest(results) < statistics.MIN_SEEDS:
        yield f"- Fewer than {statistics.MIN_SEEDS} seeds: ranges are printed, no intervals and no verdicts."
    has_interval = any(r.final.size >= statistics.MIN_SEEDS for r in results)
    near = "; intervals are 95 % bootstrap" if has_interval else ""
    yield f"- A score is the mean of the last 100 training episodes, then over seeds{near}."


def _fewest(results: Sequence[Result]) -> int:
    """Seeds of the smallest cell that has a score."""
    return min((r.final.size for r in results if r.final.size), default=0)


def _score_table(results: Sequence[Result], comparisons: Mapping[tuple[str, str, str], Comparison]) -> Iterator[str]:
    kinds = dict.fromkeys(_kind(r.final.size) for r in results if r.final.size > 1)
    yield f"| task | algorithm | seeds | at step | ours | {' or '.join(kinds) or 'range'} | the paper | verdict |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for result in results:
        cell = result.cell
        head = f"| {cell.task} | {cell.label} | {result.final.size} | {result.steps[-1]:,}"
        if not result.final.size:
            paper = _shown(None if cell.variant else reference.paper_score(cell.env, cell.algo))
            yield f"{head} | – | – | {paper} | {'no episode has ended' if result.finished else 'no finished run'} |"
            continue
        row = comparisons.get((cell.env, cell.algo, cell.variant))
        mean = _spread(result.final)
        paper = _shown(row.paper if row else None)
        verdict = row.verdict.text if row and row.verdict else ""
        yield f"{head} | {format_return(mean.value)} | {_interval(mean)} | {paper} | {verdict} |"


def _quoted_table(results: Sequence[Result]) -> Iterator[str]:
    """Ours beside the columns that the paper quotes from others."""
    yield "Q-Prop and IPG as the paper quotes them (read off curves of 10M steps, 3 seeds):"
    yield ""
    yield "| task | P3O, ours | P3O, the paper | Q-Prop | IPG |"
    yield "| --- | --- | --- | --- | --- |"
    for result in results:
        env = result.cell.env
        if result.cell.label != "p3o" or reference.quoted_score(env, "qprop") is None:
            continue
        ours = format_return(float(result.final.mean())) if result.final.size else "–"
        others = (reference.paper_score(env, "p3o"), *(reference.quoted_score(env, name) for name in QUOTED))
        yield f"| {result.cell.task} | {ours} | {' | '.join(_shown(x) for x in others)} |"


def _findings(experiment: Experiment, results: Sequence[Result], scale: float) -> Iterator[str]:
    """Wins, aggregates and logged quantities."""
    if experiment.name in ("mujoco-table", "atari-table", "atari-wins", "curves", "curves-mujoco", "curves-atari"):
        for suite in dict.fromkeys(r.cell.suite for r in results):
            yield from _suite_findings(suite, [r for r in results if r.cell.suite == suite], scale)
    columns = LOGGED.get(experiment.name, ())
    if columns:
        yield from _logged_table(results, columns)


LOGGED = {  # columns of updates.csv that an experiment is about
    "acer-on-policy-loss": ("bias_correction_loss", "bias_correction_fraction"),
    "evolution-of-ess": ("ess", "kl", "entropy"),
    "effect-of-lambda": ("kl_coef", "ess"),
}


def _suite_findings(suite: str, results: Sequence[Result], scale: float) -> Iterator[str]:
    """Wins at every checkpoint, aggregates and the chance of improvement, over tasks that every algorithm has."""
    algos = list(dict.fromkeys(r.cell.algo for r in results))
    by_cell = {(r.cell.env, r.cell.algo): r for r in results}
    envs = [
        env
        for env in dict.fromkeys(r.cell.env for r in results)
        if all((env, a) in by_cell and all(s.size for s in by_cell[env, a].scores) for a in algos)
    ]
    if not envs:
        yield f"- {suite}: no task has finished runs of every algorithm yet."
        return
    has_interval = _fewest(results) >= statistics.MIN_SEEDS
    near = " (95 % interval)" if has_interval else ""
    yield f"Tasks won, {suite}, on the {len(envs)} tasks that have runs of every algorithm{near}:"
    yield ""
    if len(envs) < len({r.cell.env for r in results}):
        yield "(report.html counts every task on which two algorithms have a score, so its numbers are others.)"
        yield ""
    yield f"| at | {' | '.join(algos)} | tied |"
    yield f"| --- |{' --- |' * (len(algos) + 1)}"
    for i, step in enumerate(by_cell[envs[0], algos[0]].steps):
        found = statistics.win_estimate({e: {a: by_cell[e, a].scores[i] for a in algos} for e in envs})
        cells = " | ".join(_with_interval(found.won[a], _whole, has_interval) for a in algos)
        yield f"| {step:,} steps | {cells} | {', '.join(found.ties) or '–'} |"
    if suite == "atari" and scale == 1:
        for name, share in (("won_40pct", "40 %"), ("won_80pct", "80 %"), ("won_final", "100 %")):
            printed = reference.paper_wins()
            yield f"| the paper, of 49, at {share} | {' | '.join(str(printed[a][name]) for a in algos)} | |"
    yield ""
    yield from _aggregate_table({a: {e: by_cell[e, a].final for e in envs} for a in algos}, has_interval, scale)


def _aggregate_table(scores: Mapping[str, Mapping[str, Array]], has_interval: bool, scale: float) -> Iterator[str]:
    norms = {env: reference.norm(env) for env in next(iter(scores.values()))}
    known = {env: norm for env, norm in norms.items() if norm is not None}
    low, high = ({env: getattr(norm, name) for env, norm in known.items()} for name in ("low", "high"))
    meaning = next(iter(known.values())).meaning
    care = "" if scale == 1 else f" These runs have {scale:g} of the paper's steps: not comparable with it."
    near = ", with 95 % intervals" if has_interval else ""
    yield f"Normalised scores{near}: 0 is random play, 1 is {meaning}.{care}"
    yield ""
    yield "| algorithm | IQM | median | mean | optimality gap | P(P3O is better) |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for algo, of_tasks in scores.items():
        found = statistics.aggregates(statistics.normalise(of_tasks, low, high))
        cells = " | ".join(_with_interval(e, format_share, has_interval) for e in found)
        chance = "–"
        if algo != "p3o" and "p3o" in scores:
            estimate = statistics.probability_of_improvement(scores["p3o"], of_tasks)
            chance = _with_interval(estimate, format_share, has_interval)
        yield f"| {algo} | {cells} | {chance} |"
    yield ""


def _logged_table(results: Sequence[Result], columns: Sequence[str]) -> Iterator[str]:
    """Logged quantities: the mean over seeds of each run's mean, and the extremes, over the last 80 % of the lines."""
    yield "Logged quantities over the last 80 % of training, mean (least to largest over all seeds):"
    yield ""
    yield f"| task | algorithm | {' | '.join(columns)} |"
    yield f"| --- | --- |{' --- |' * len(columns)}"
    for result in results:
        cells = [_logged(result.logs, name) for name in columns]
        yield f"| {result.cell.task} | {result.cell.label} | {' | '.join(cells)} |"


def _logged(logs: Sequence[Mapping[str, Array]], name: str) -> str:
    parts = [log[name][log["step"] >= 0.2 * log["step"][-1]] for log in logs if name in log and log["step"].size]
    parts = [part[np.isfinite(part)] for part in parts]
    parts = [part for part in parts if part.size]
    if not parts:
        return "–"
    mean = float(np.mean([part.mean() for part in parts]))
    ends = min(part.min() for part in parts), max(part.max() for part in parts)
    return f"{format_number(mean)} ({format_number(float(ends[0]))} to {format_number(float(ends[1]))})"


def _shown(value: float | None) -> str:
    return "–" if value is None else format_return(value)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _with_interval(estimate: Estimate, shown: Callable[[float], str], has_interval: bool) -> str:
    interval = _interval(estimate, shown)
    return shown(estimate.value) if interval == "–" or not has_interval else f"{shown(estimate.value)} ({interval})"


def _interval(estimate: Estimate, shown: Callable[[float], str] = format_return) -> str:
    return "–" if math.isnan(estimate.low) else f"{shown(estimate.low)} to {shown(estimate.high)}"
