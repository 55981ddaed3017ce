"""What a reader must know before trusting the numbers of a study."""

from collections.abc import Callable, Iterable

import numpy as np

from p3o.provenance import PACKAGES
from p3o.report.departures import HARMLESS
from p3o.report.find import Group, Study, asked_steps, seed_of, window_at
from p3o.report.results import Results
from p3o.report.settings import shown_value
from p3o.runs import SCORE_WINDOW, Run, window_mean
from p3o.wording import format_number

MAX_NAMED = 6
SINGULAR = {"have": "has", "are": "is"}


def cautions(results: Results) -> list[str]:
    """One sentence for each kind of trouble, with the runs that have it."""
    study = results.study
    found = [
        _told(study.absent, "that the sweep asked for is not there", "that the sweep asked for are not there"),
        _told(study.failed, "failed", "failed"),
        _runs_with(
            results,
            lambda run: not run.is_finished,
            "are not finished; scores past the last step are left out",
            _standing,
        ),
        _runs_with(results, lambda run: bool(run.non_finite), "recorded values that are not finite numbers"),
        _runs_with(
            results,
            lambda run: not window_at(run, study.common_steps(run.env_id)),
            "have no episode that had ended where they are compared, so no score",
        ),
        _runs_with(
            results,
            lambda run: 0 < window_at(run, study.common_steps(run.env_id)) < SCORE_WINDOW,
            f"have fewer than {SCORE_WINDOW} episodes where they are compared, so that scores rest on fewer",
        ),
        *_missing_seeds(results),
        *_repeated_seeds(results),
        *_missing_cells(results),
        *_other_lengths(results),
        *_mixed_settings(results),
        *_mixed_scales(results),
        *_mixed_versions(study),
    ]
    if study.num_repeated:
        found.append(f"{study.num_repeated} runs were found in two places and are counted once.")
    return [sentence for sentence in found if sentence]


def _told(names: tuple[str, ...], one: str, many: str) -> str:
    if not names:
        return ""
    return f"{len(names)} run{f' {one}' if len(names) == 1 else f's {many}'}: {listed(names)}."


def _name(results: Results, task: str, group: Group, run: Run) -> str:
    return f"{results.labels[group]} on {task} seed {seed_of(run)}"


def _runs_with(
    results: Results, is_so: Callable[[Run], bool], words: str, note: Callable[[Run], str] = lambda run: ""
) -> str:
    """How many runs have it and which; `note` is told after the name of each."""
    cells = results.study.cells
    names = [_name(results, *key, run) + note(run) for key, cell in cells.items() for run in cell if is_so(run)]
    if not names:
        return ""
    verb, _, rest = words.partition(" ")
    if len(names) == 1:
        words = f"{SINGULAR.get(verb, verb)} {rest}"
    return f"{len(names)} of {len(results.study.runs)} runs {words}: {listed(names)}."


def _standing(run: Run) -> str:
    """The score of a run that is on its way, or was stopped there, as far as it has come."""
    score = float(window_mean(run.episodes["step"], run.episodes["return_"], run.last_step))
    return f" ({format_number(score)} at step {run.last_step:,})" if np.isfinite(score) else ""


def listed(names: Iterable[str], limit: int = MAX_NAMED) -> str:
    names = list(names)
    more = len(names) - limit
    return "; ".join(names[:limit]) + (f"; and {more} more" if more > 0 else "")


def _missing_seeds(results: Results) -> list[str]:
    """Seeds that another group has on the same task."""
    study, said = results.study, []
    for task in study.tasks:
        seeds = {group: {seed_of(run) for run in study.cells[task, group]} for group in study.groups_of(task)}
        every = set().union(*seeds.values())
        for group, there in seeds.items():
            missing = sorted(every - there, key=lambda s: (len(s), s))
            if missing:
                said.append(f"{results.labels[group]} on {task} has no seed {', '.join(missing)}")
    return [f"Seeds are missing that others have: {listed(said)}."] if said else []


def _repeated_seeds(results: Results) -> list[str]:
    said = []
    for (task, group), cell in results.study.cells.items():
        seeds = [seed_of(run) for run in cell]
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            said.append(f"{results.labels[group]} on {task} has seed {', '.join(twice)} more than once")
    return [f"Seeds are repeated, and every run is counted: {listed(said)}."] if said else []


def _missing_cells(results: Results) -> list[str]:
    study = results.study
    said = [
        f"{results.labels[group]} on {task}"
        for group in study.groups
        for task in study.tasks
        if (task, group) not in study.cells
    ]
    return [f"Not every algorithm was run on every environment; there is no {listed(said)}."] if said else []


def _other_lengths(results: Results) -> list[str]:
    study, said = results.study, []
    for task in study.tasks:
        steps = {group: study.asked(task, group) for group in study.groups_of(task)}
        if len(set(steps.values())) > 1:
            each = ", ".join(f"{results.labels[group]} {count:,}" for group, count in steps.items())
            said.append(f"{task} ({each}) at step {min(steps.values()):,}")
        short = [
            run for group in steps for run in study.cells[task, group] if asked_steps(run) != study.asked(task, group)
        ]
        if short:
            said.append(f"{task} has runs of one group with different totals")
    return [f"Lengths differ, so groups are compared where the shortest ends: {listed(said)}."] if said else []


def _mixed_settings(results: Results) -> list[str]:
    """Settings that differ between the seeds of one group on one task and matter: then it is not one group."""
    said = []
    for (task, group), cell in results.study.cells.items():
        entries = [run.config.get("settings", {}) | {"env": run.config["env"].get("kwargs", {})} for run in cell]
        names = list(dict.fromkeys(name for entry in entries for name in entry if name not in HARMLESS))
        mixed = [name for name in names if len({shown_value(entry.get(name)) for entry in entries}) > 1]
        if mixed:
            said.append(f"{results.labels[group]} on {task} ({', '.join(mixed)})")
    return [f"Seeds of one group have different settings: {listed(said)}."] if said else []


def _mixed_scales(results: Results) -> list[str]:
    """KL that is drawn in one chart, of one group averaged over actions, of another summed."""
    study, said = results.study, []
    for task in study.tasks:
        ways: dict[str, list[str]] = {}
        for group in study.groups_of(task):
            found = {run.config.get("settings", {}).get("kl_reduction") for run in study.cells[task, group]}
            for way in found - {None}:
                ways.setdefault(str(way), []).append(results.labels[group])
        if len(ways) > 1:
            each = ", ".join(f"{way} {' and '.join(labels)}" for way, labels in sorted(ways.items()))
            said.append(f"{task} ({each})")
    return [f"KL is drawn as kl_reduction has it, so not all on one scale: {listed(said)}."] if said else []


def _mixed_versions(study: Study) -> list[str]:
    said = []
    for package in PACKAGES:
        found = {str(of[package]) for run in study.runs for of in versions_of(run) if package in of}
        if len(found) > 1:
            said.append(f"{package} {', '.join(sorted(found))}")
    return [f"Runs were made with different versions: {listed(said, len(PACKAGES))}."] if said else []


def versions_of(run: Run) -> list[dict[str, object]]:
    """The versions it began with and those of resumes, where they are told."""
    resumes = run.config.get("resumes")
    later = [entry.get("versions") for entry in resumes if isinstance(entry, dict)] if isinstance(resumes, list) else []
    return [of for of in (run.config.get("versions"), *later) if isinstance(of, dict)]
