"""A study in a few sentences: what was run, what won, how sure that is."""

import math
from collections import Counter

import numpy as np

from p3o.report.axes import duration, short_count
from p3o.report.cells import interval
from p3o.report.cost import wall_seconds
from p3o.report.find import Study, asked_steps
from p3o.report.results import Results
from p3o.runs import Array, Run
from p3o.statistics import MIN_SEEDS, Estimate
from p3o.wording import format_return, format_share

MAX_NAMED = 4
VERDICTS = {
    "exceeds": "exceeded",
    "ordering reproduced": "reproduced in their ordering only",
    "departure": "without a verdict, for departing from the preset",
    "not comparable": "not comparable, for want of steps",
    "no verdict": f"without a verdict, for want of {MIN_SEEDS} seeds",
}


def title(results: Results) -> str:
    study = results.study
    tasks, names = study.tasks, [results.labels[group] for group in study.groups]
    what = joined(names) if len(names) <= 4 else _how_many(study)
    words = f"{what} on {joined(tasks) if len(tasks) <= 2 else count(len(tasks), 'environment')}"
    return words[:1].upper() + words[1:]


def _how_many(study: Study) -> str:
    """Algorithms, or where one of them is there under several presets, variants or paths, these."""
    groups, algos = study.groups, sorted({group.algo for group in study.groups})
    if len(algos) == len(groups):
        return count(len(groups), "algorithm")
    kind = "group" if any(group.source for group in groups) else "variant"
    whose = algos[0].upper() if len(algos) == 1 else count(len(algos), "algorithm")
    return f"{count(len(groups), kind)} of {whose}"


def facts(results: Results) -> list[str]:
    """What stands under the title."""
    study = results.study
    presets = sorted({group.preset for group in study.groups if group.preset})
    seeds = sorted({len(cell) for cell in study.cells.values()})
    spread = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    dates = sorted(str(run.config["started"])[:10] for run in study.runs if run.config.get("started"))
    return [
        f"{len(study.runs)} run{'s' * (len(study.runs) != 1)}",
        f"{spread} seed{'' if spread == '1' else 's'} each",
        *([f"preset {joined(presets)}"] if presets else []),
        *([dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"] if dates else []),
    ]


def summary(results: Results) -> list[str]:
    sentences = [_what(results.study), _winner(results), _how_sure(results), _overall(results), _paper(results)]
    sentences.append(_replay(results.study))
    return [sentence for sentence in sentences if sentence]


def _what(study: Study) -> str:
    runs = study.runs
    steps = sorted({asked_steps(run) for run in runs})
    length = f"{steps[0]:,}" if len(steps) == 1 else f"{short_count(steps[0])} to {short_count(steps[-1])}"
    groups, tasks = study.groups, study.tasks
    compared = f"{_how_many(study)} on " if len(groups) > 1 else ""
    unfinished = sum(not run.is_finished for run in runs)
    return (
        f"{count(len(runs), 'run').capitalize()} of {length} environment steps"
        f"{f' ({unfinished} not finished)' if unfinished else ''}: "
        f"{compared}{count(len(tasks), 'environment')}{'' if len(tasks) > 4 else f' ({joined(tasks)})'}. "
        "A score is the mean return of a run's last 100 episodes; what is said of an algorithm is the mean over seeds."
    )


def _winner(results: Results) -> str:
    """Who has the highest mean on how many tasks, with what resampling the seeds does to that count."""
    wins = results.wins
    if wins is None:
        return _only_scores(results)
    total = len(wins.p_win)
    ranked = sorted(wins.won.items(), key=lambda item: -item[1].value)
    seeds = fewest(results)
    if total == 1:
        return _winner_of_one(results)
    said = [
        f"{name} has the highest score on {estimate.value:.0f} of {total} environments{_range(estimate, seeds)}"
        if i == 0
        else f"{name} on {estimate.value:.0f}{_range(estimate, seeds)}"
        for i, (name, estimate) in enumerate(ranked)
        if estimate.value or i == 0
    ]
    none = [name for name, estimate in ranked[1:] if not estimate.value]
    nobody = f"; {joined(none) if len(none) <= MAX_NAMED else 'the others'} on none" if none else ""
    ties = f" Tied: {', '.join(wins.ties)}." if wins.ties else ""
    return f"{', '.join(said)}{nobody}.{ties}"


def fewest(results: Results) -> int:
    """Seeds of the smallest cell that has a score: below five no sentence gives an interval."""
    return min((values.size for row in results.final.values() for values in row.values()), default=0)


def _near(estimate: Estimate, seeds: int) -> str:
    return "" if seeds < MIN_SEEDS else interval(estimate, format_share)


def _range(estimate: Estimate, seeds: int) -> str:
    if seeds < MIN_SEEDS or math.isnan(estimate.low) or estimate.low == estimate.high:
        return ""
    return f" (95 % interval {estimate.low:.0f} to {estimate.high:.0f})"


def _winner_of_one(results: Results) -> str:
    wins = results.wins
    assert wins is not None
    task = next(iter(wins.p_win))
    row = results.final[task]
    ranked = sorted(row, key=lambda group: -float(row[group].mean()))
    values = ", ".join(f"{results.labels[g]} {format_return(float(row[g].mean()))}" for g in ranked)
    if wins.ties:
        return f"On {task} the highest score is shared: {values}."
    best = results.labels[ranked[0]]
    sure = f"; it stays highest in {percent(wins.p_win[task][best])} of resampled sets of seeds"
    return f"{best} has the highest score on {task}{sure if fewest(results) >= MIN_SEEDS else ''}. Scores: {values}."


def _only_scores(results: Results) -> str:
    said = [
        f"{results.labels[group]} on {task} {format_return(float(values.mean()))}"
        for task, row in results.final.items()
        for group, values in row.items()
    ]
    if not said and any(run.episodes["step"].size for run in results.study.runs):
        return "No run has come to its end yet; the warnings below say where each stands."
    if not said:
        return "No run has a score yet."
    return f"Scores: {', '.join(said[:8])}{f' and {len(said) - 8} more in the table' if len(said) > 8 else ''}."


def _how_sure(results: Results) -> str:
    """Probability of improvement of the lead over each other group, and whether there are seeds enough to say so."""
    said: list[str] = []
    for group, estimate in results.improvements.items():
        near = _near(estimate, fewest(results))
        with_ = "with probability" if not said else "with"
        said.append(f"of {results.labels[group]} {with_} {format_share(estimate.value)}{f' {near}' if near else ''}")
    if not said or results.lead is None:
        return ""
    few = fewest(results)
    care = (
        f" {count(few, 'seed').capitalize()} {'is' if few == 1 else 'are'} too few for a verdict, which takes "
        f"{MIN_SEEDS}, and for intervals that are more than rough."
        if few < MIN_SEEDS
        else " Above one half is better, and the whole interval above one half is a difference to rely on."
    )
    return f"A run of {results.labels[results.lead]} beats a run {first(said)}.{care}"


def _overall(results: Results) -> str:
    overall = results.overall
    if overall is None:
        return ""
    ranked = sorted(overall.aggregates.items(), key=lambda item: -item[1].iqm.value)
    said = [
        f"{results.labels[group]} {format_share(found.iqm.value)} {_near(found.iqm, fewest(results))}".strip()
        for group, found in ranked
    ]
    which = (
        "all environments" if len(overall.tasks) == len(results.study.tasks) else f"{len(overall.tasks)} environments"
    )
    return f"Over {which}, with scores scaled so that {overall.how}, the interquartile mean is {first(said)}."


def _paper(results: Results) -> str:
    """What became of the paper's numbers, apart for each preset, with the versions of the environments."""
    sentences = []
    for preset in dict.fromkeys(row.group.preset for row in results.beside_paper):
        rows = [row for row in results.beside_paper if row.group.preset == preset]
        found = Counter(row.verdict.name for row in rows)
        said = [f"{number} {VERDICTS.get(name, name)}" for name, number in found.most_common()]
        versions = joined(sorted({f"-{row.task.rpartition('-')[2]}" for row in rows}))
        whose = f"our preset {preset}, not the paper's settings," if preset else "settings that are not recorded"
        whose = "the paper's settings" if preset == "paper" else whose
        sentences.append(
            f"Of {count(len(rows), 'number')} that the paper prints, with {whose} on {versions}: {joined(said)}."
        )
        away = [row for row in rows if row.verdict.name == "departure"]
        named = [f"{results.labels[r.group]} on {r.task} ({r.verdict.text.partition(': ')[2]})" for r in away]
        more = f" and {len(named) - MAX_NAMED} more" if len(named) > MAX_NAMED else ""
        sentences += [f"Departures from the preset: {'; '.join(named[:MAX_NAMED])}{more}."] * bool(named)
    return " ".join(sentences)


def _replay(study: Study) -> str:
    """Where P3O's effective sample size settled."""
    values = np.array([ess for run in study.runs if run.config.get("algo") == "p3o" for ess in [settled(run, "ess")]])
    values = values[np.isfinite(values)]
    if not values.size:
        return ""
    low, high = float(values.min()), float(values.max())
    at = f"at {low:.2f}" if high - low < 0.005 else f"between {low:.2f} and {high:.2f}"
    return (
        f"P3O's effective sample size settled {at} (the last tenth of a run so far): "
        "that is what replayed data were worth next to fresh data."
    )


def settled(run: Run, name: str) -> float:
    """Mean of the last tenth of a column's numbers."""
    values: Array = run.updates.get(name, np.empty(0))
    known = values[np.isfinite(values)]
    return float(known[-max(known.size // 10, 1) :].mean()) if known.size else math.nan


def tiles(results: Results) -> list[tuple[str, str, str]]:
    """Name, value and footnote of the numbers that stand out."""
    study = results.study
    runs = study.runs
    done = sum(run.is_finished for run in runs)
    seconds = np.array([wall_seconds(run) for run in runs])
    known = float(seconds[np.isfinite(seconds)].sum())
    wins = results.wins
    best = max(wins.won.items(), key=lambda item: item[1].value) if wins else None
    top = [(n, e) for n, e in wins.won.items() if best and e.value == best[1].value] if wins else []
    if len(top) == 1 and best and wins:
        most = (
            "Most wins",
            best[0],
            f"{best[1].value:.0f} of {len(wins.p_win)} environment{'s' if len(wins.p_win) > 1 else ''}",
        )
    elif len(study.cells) == 1:
        values = np.concatenate([*next(iter(results.final.values())).values(), np.empty(0)])
        most = ("Score", format_return(float(values.mean())) if values.size else "–", "mean over seeds")
    else:
        most = ("Most wins", "–", "shared" if wins else "nothing to compare")
    return [
        ("Runs", f"{len(runs):,}", "all finished" if done == len(runs) else f"{done:,} finished"),
        most,
        ("Steps", short_count(sum(run.last_step for run in runs)), "all runs together"),
        ("Training time", duration(known) if known else "–", "all runs, without start-up" if known else ""),
    ]


def count(value: int, noun: str) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    return f"{words[value] if value < len(words) else f'{value:,}'} {noun}{'' if value == 1 else 's'}"


def joined(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def first(said: list[str]) -> str:
    """The first few, with how many more the tables have."""
    return (
        joined(said) if len(said) <= MAX_NAMED + 1 else f"{', '.join(said[:MAX_NAMED])} (the rest in the table below)"
    )


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
