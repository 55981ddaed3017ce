"""From paths to runs, and from runs to the groups that are compared."""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p3o.errors import UserError
from p3o.runs import SCORE_WINDOW, Array, Run, failed_folders, load_run, read_sweep, read_text, window_mean

Paths = str | Path | Sequence[str | Path]
DATA_FILES = ("episodes.csv", "episodes.csv.gz", "updates.csv", "updates.csv.gz")
BARE_NAME = re.compile(r"seed-(\d+)\.csv\.gz")
FILES = re.compile(rf"config\.json|sweep\.json|{BARE_NAME.pattern}")  # by which runs and sweeps are found
ORDER = ("p3o", "ppo", "a2c", "a2cg", "acer")


class Group(NamedTuple):
    """Runs that differ in nothing but task and seed."""

    algo: str
    preset: str
    variant: str
    source: str = ""  # the path it came from, where the same group came from two

    @property
    def folder(self) -> str:
        """Its name as a sweep has it."""
        parts = (self.algo, self.preset, self.variant, self.source)
        return "-".join(part for part in parts if part)


@dataclass(frozen=True)
class Study:
    """All runs of a report, by task and group; runs of a cell by seed."""

    cells: dict[tuple[str, Group], tuple[Run, ...]]
    num_repeated: int = 0  # runs that were found in two places and are counted once
    absent: tuple[str, ...] = ()  # runs that a sweep.json asks for and that are not there, by name
    failed: tuple[str, ...] = ()  # runs that it calls failed, with the reason

    @property
    def runs(self) -> list[Run]:
        return [run for cell in self.cells.values() for run in cell]

    @property
    def tasks(self) -> list[str]:
        return sorted({task for task, _ in self.cells}, key=str.lower)

    @property
    def groups(self) -> list[Group]:
        return sorted({group for _, group in self.cells}, key=_rank)

    def groups_of(self, task: str) -> list[Group]:
        return [group for group in self.groups if (task, group) in self.cells]

    def tasks_of(self, group: Group) -> list[str]:
        return [task for task in self.tasks if (task, group) in self.cells]

    def asked(self, task: str, group: Group) -> int:
        """Steps that the cell's runs were to have."""
        return max(asked_steps(run) for run in self.cells[task, group])

    def common_steps(self, task: str) -> int:
        """The step up to which every group was to be trained: where they can be compared."""
        return min(self.asked(task, group) for group in self.groups_of(task))

    def labels(self) -> dict[Group, str]:
        """Short names: the preset is in them where more than one is there."""
        groups = self.groups
        is_mixed = len({group.preset for group in groups if group.preset}) > 1
        labels = {group: _label(group, is_mixed) for group in groups}
        return labels if len(set(labels.values())) == len(groups) else {group: group.folder for group in groups}


def asked_steps(run: Run) -> int:
    return int(run.config.get("steps", 0)) or run.last_step


def seed_of(run: Run) -> str:
    return str(run.config.get("seed", "–"))


def score(run: Run, step: int) -> float:
    """Mean of the last 100 episodes that ended at or before `step`.

    NaN where the run has not come so far, or where no episode had ended by then.
    """
    if not has_reached(run, step):
        return np.nan
    return float(window_mean(run.episodes["step"], run.episodes["return_"], step))


def has_reached(run: Run, step: int) -> bool:
    """Whether everything up to `step` is there; at its own end a run has to have finished."""
    return run.is_finished if step == asked_steps(run) else run.last_step >= step


def window_at(run: Run, step: int) -> int:
    """How many episodes the score at `step` rests on."""
    return min(int(np.searchsorted(run.episodes["step"], step, side="right")), SCORE_WINDOW)


def find_study(paths: Paths) -> Study:
    """The runs under all paths; `UserError` where one of them holds none."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if not given:
        raise UserError("at least one run, sweep or results folder is needed")
    files = {root: _files(root) for root in given}
    indices = _indices(files.values())
    found = [(root, run) for root in given for run in _runs_under(root, files[root])]
    kept = _without_copies(_with_failures(found, indices))
    names = _source_names(given)
    keys = [(root, _group(run), run) for root, run in kept]
    clashing = _clashing(keys)
    cells: dict[tuple[str, Group], list[Run]] = {}
    for root, group, run in keys:
        group = group._replace(source=names[root]) if group in clashing else group
        cells.setdefault((run.env_id, group), []).append(run)
    ordered = sorted(cells.items(), key=lambda item: (item[0][0].lower(), _rank(item[0][1])))
    by_seed = {key: tuple(sorted(runs, key=_seed_rank)) for key, runs in ordered}
    absent, failed = _told_by_sweeps(indices)
    return Study(by_seed, len(found) - len(kept), absent, failed)


def _told_by_sweeps(indices: list[Path]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What every sweep.json under the paths says of runs that are not there and of runs that failed."""
    absent, failed = [], []
    for file in indices:
        for entry in read_sweep(file):
            name = f"{entry['algo']} on {entry['env']} seed {entry['seed']}"
            if not (file.parent / entry["folder"] / "config.json").exists():
                absent.append(name)
            if entry["state"] == "failed":
                failed.append(f"{name} ({entry.get('reason') or 'no reason given'})")
    return tuple(absent), tuple(failed)


def _indices(trees: Iterable[list[Path]]) -> list[Path]:
    """Every sweep.json once."""
    files = [file for tree in trees for file in tree if file.name == "sweep.json"]
    return list({os.path.realpath(file): file for file in reversed(files)}.values())[::-1]


def _files(root: Path) -> list[Path]:
    """Those under a folder that a report may be about, behind links too.

    Each folder once, by its own name if that is there; not what lies around the folder itself, where a link leads up.
    """
    found: list[Path] = []
    walked: set[Path] = set()
    starts = [root]  # the links come after all that needs none
    for start in starts:
        for place, folders, names in os.walk(start):
            real = Path(os.path.realpath(place))
            if real in walked:
                folders.clear()
                continue
            walked.add(real)
            found += [Path(place, name) for name in names if FILES.fullmatch(name)]
            links = (Path(place, name) for name in sorted(folders) if os.path.islink(os.path.join(place, name)))
            starts += [link for link in links if not root.resolve().is_relative_to(os.path.realpath(link))]
    return sorted(found)


def _with_failures(runs: list[tuple[Path, Run]], indices: list[Path]) -> list[tuple[Path, Run]]:
    """Runs that their sweep calls failed are marked as such."""
    failed = {folder.resolve() for file in indices for folder in failed_folders(file)}
    return [
        (root, replace(run, is_failed=True) if failed and run.path.resolve() in failed else run) for root, run in runs
    ]


def _runs_under(root: Path, files: list[Path]) -> list[Run]:
    if not root.is_dir() or (root / "config.json").exists():
        return [load_run(root)]
    runs = [load_run(folder) for folder in _folders(files)] + _bare_runs(files)
    if not runs:
        raise UserError(f"{root}: no runs in it (a run folder has config.json and episodes.csv)")
    return runs


def _folders(files: list[Path]) -> Iterator[Path]:
    for file in files:
        if file.name == "config.json" and any((file.parent / name).exists() for name in DATA_FILES):
            yield file.parent


def _bare_runs(files: list[Path]) -> list[Run]:
    """Files ENV/NAME/seed-N.csv.gz with steps and returns alone, as results/versus-sb3 has them.

    They do not say how many steps were asked for: it is taken to be the most that any of the same task and name has,
    rounded to two digits: whole iterations end a little past it, episodes a little before.
    """
    runs = [_bare_run(file) for file in files if BARE_NAME.fullmatch(file.name)]
    for kind in {(run.env_id, run.config["algo"]) for run in runs}:
        same = [run for run in runs if (run.env_id, run.config["algo"]) == kind]
        most = max(run.last_step for run in same)
        unit = 10 ** max(len(str(most)) - 2, 0)
        for run in same:
            run.config["steps"] = round(most / unit) * unit
    return runs


def _bare_run(file: Path) -> Run:
    text = read_text(file)
    lines = text.splitlines()
    if not lines or lines[0] != "step,return":
        raise UserError(f"{file} line 1: header is {lines[0] if lines else ''!r}, should be 'step,return'")
    try:
        rows = np.array([line.split(",") for line in lines[1:]], float).reshape(-1, 2)
    except ValueError as error:
        raise UserError(f"{file}: damaged (two numbers on each line were expected)") from error
    if not (np.isfinite(rows[:, 0]).all() and (np.diff(rows[:, 0], prepend=0) >= 0).all()):
        raise UserError(f"{file}: damaged (steps must not decrease)")
    unknown = np.full(len(rows), np.nan)
    number = BARE_NAME.fullmatch(file.name)
    config = {
        "format": 1,
        "algo": file.parent.name,
        "seed": int(number[1]) if number else 0,
        "env": {"id": file.parent.parent.name},
    }
    episodes = {"step": rows[:, 0].astype(np.int64), "return_": rows[:, 1], "length": unknown, "seconds": unknown}
    return Run(file, config, episodes, {"step": np.empty(0)}, None, is_packed=True)


def _without_copies(found: list[tuple[Path, Run]]) -> list[tuple[Path, Run]]:
    """Each run once: the same folder given twice, or a packed copy of it (told by run_id), the fuller one kept."""
    kept: dict[str, tuple[Path, Run]] = {}
    for root, run in found:
        name = str(run.config.get("run_id") or run.path.resolve())
        if name not in kept or kept[name][1].updates["step"].size < run.updates["step"].size:
            kept[name] = (root, run)
    return list(kept.values())


def _group(run: Run) -> Group:
    config = run.config
    return Group(*(str(config.get(key) or "") for key in ("algo", "preset", "variant")))


def _clashing(keys: list[tuple[Path, Group, Run]]) -> set[Group]:
    """Groups with one seed of one task under two paths: these are two experiments, not one."""
    roots: dict[tuple[str, Group, str], set[Path]] = {}
    for root, group, run in keys:
        roots.setdefault((run.env_id, group, seed_of(run)), set()).add(root)
    return {group for (_, group, _), places in roots.items() if len(places) > 1}


def _source_names(roots: list[Path]) -> dict[Path, str]:
    """The last part of each path, or the whole path where that is not enough to tell them apart."""
    count = Counter(root.resolve().name for root in set(roots))
    return {root: root.resolve().name if count[root.resolve().name] == 1 else str(root) for root in roots}


def _rank(group: Group) -> tuple[int, Group]:
    return (ORDER.index(group.algo) if group.algo in ORDER else len(ORDER), group)


def _seed_rank(run: Run) -> tuple[float, str]:
    seed = run.config.get("seed")
    return (seed if isinstance(seed, int) else np.inf, str(run.path))


def _label(group: Group, with_preset: bool) -> str:
    algo = group.algo or "unknown"
    name = algo.upper() if algo.isalnum() else algo
    words = [name, group.preset if with_preset else "", group.variant]
    return " ".join(word for word in words if word) + (f" ({group.source})" if group.source else "")


def seconds_of(run: Run) -> Array:
    """Wall time at each episode, which never runs backwards."""
    seconds = run.episodes["seconds"]
    return np.maximum.accumulate(seconds) if seconds.size and np.isfinite(seconds).all() else np.empty(0)
