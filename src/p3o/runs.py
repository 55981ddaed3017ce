"""Reading run folders back: config.json and the CSV files, and the score of a run."""

import gzip
import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from p3o.config import BEFORE
from p3o.errors import UserError

Array = NDArray[Any]
KNOWN_FORMAT = 1
SCORE_WINDOW = 100  # episodes in the score of a run
PACKED_SLACK = 10_000  # steps before its total at which the last episode of a packed run may have ended
EPISODE_COLUMNS = ("step", "env", "return", "length", "seconds")
EVALUATION_COLUMNS = ("step", "episode", "return", "length")
WHOLE_COLUMNS = frozenset({"step", "env", "length", "episode"})
# What a reader of a config may rely on; every key but format and env is optional.
CONFIG_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "env": (dict, "an object"),
    "settings": (dict, "an object"),
    "versions": (dict, "an object"),
    "machine": (dict, "an object"),
    "algo": (str, "a string"),
    "resumes": (list, "a list"),
    "steps": ((int, float), "a number"),
}


class Resume(NamedTuple):
    """A moment at which a run was taken up otherwise than it was begun."""

    at_step: int
    steps: int  # the total from there on
    planned: int | None  # the one before, where schedules follow it


@dataclass(frozen=True)
class Run:
    """What a run folder says, as arrays: one entry per line of the file."""

    path: Path
    config: dict[str, Any]
    episodes: dict[str, Array]  # step, env, return_, length, seconds
    updates: dict[str, Array]  # column -> float, NaN where the cell is empty
    evaluations: dict[str, Array] | None  # step, episode, return_, length
    non_finite: tuple[str, ...] = ()  # "updates.csv: kl" where a cell says nan or inf (an empty cell does not)
    is_packed: bool = False  # its episodes were kept, its updates.csv was not
    is_failed: bool = False  # its sweep says so

    @property
    def env_id(self) -> str:
        return str(self.config["env"]["id"])

    @property
    def resumes(self) -> list[Resume]:
        """Those that are told whole."""
        found = []
        for entry in self.config.get("resumes", []):
            at_step, steps, planned = (
                entry.get(name) if isinstance(entry, dict) else None for name in ("at_step", "steps", "planned")
            )
            if isinstance(at_step, int) and isinstance(steps, int):
                found.append(Resume(at_step, steps, planned if isinstance(planned, int) else None))
        return found

    @property
    def last_step(self) -> int:
        """The last environment step that any line speaks of; 0 for a run that has only begun."""
        steps = (self.episodes["step"], self.updates["step"])
        return int(max((s[-1] for s in steps if s.size), default=0))

    @property
    def is_finished(self) -> bool:
        """Whether the last line of updates.csv, which a run writes at its end, is at the asked total.

        A packed run has none; its last episode has to have ended near the total.
        """
        if self.is_failed:
            return False
        lines = self.updates["step"]
        end = self.last_step + PACKED_SLACK if self.is_packed else lines[-1] if lines.size else 0
        return bool(end >= self.config.get("steps", 0))


def load_run(path: str | Path) -> Run:
    """Read a run folder, also one that is still being written; `UserError` names the file and line that is wrong.

    A CSV file may lie there compressed (episodes.csv.gz), as the folders of results/ have it.
    """
    path = Path(path)
    if not path.is_dir():
        raise UserError(f"{_shown(path)}: {'not a folder' if path.exists() else 'no such folder'}; give a run folder")
    config = _read_config(path / "config.json")
    non_finite: list[str] = []
    episodes = _read_csv(path / "episodes.csv", EPISODE_COLUMNS, non_finite)
    updates = _read_csv(path / "updates.csv", None, non_finite)
    has_evaluations = _stored(path / "evaluations.csv").exists()
    return Run(
        path=path,
        config=config,
        episodes=episodes,
        updates={name: column.astype(float) for name, column in updates.items()},
        evaluations=_read_csv(path / "evaluations.csv", EVALUATION_COLUMNS, non_finite) if has_evaluations else None,
        non_finite=tuple(non_finite),
        is_packed=episodes["step"].size > 0 and not _stored(path / "updates.csv").exists(),
    )


def failed_folders(index: Path) -> set[Path]:
    """The folders of the runs that a sweep.json calls failed; none where there is no such file."""
    return {index.parent / entry["folder"] for entry in read_sweep(index) if entry["state"] == "failed"}


def read_sweep(index: Path) -> list[dict[str, Any]]:
    """What a sweep.json says of each run; `UserError` where that cannot be told."""
    if not index.exists():
        return []
    try:
        entries = json.loads(read_text(index))["runs"]
        for entry in entries:
            if (
                not all(isinstance(entry[key], str) for key in ("folder", "state", "algo", "env"))
                or "seed" not in entry
            ):
                raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{_shown(index)}: damaged, not the index of a sweep") from error
    return list(entries)


def window_mean(steps: ArrayLike, returns: ArrayLike, at: ArrayLike, window: int = SCORE_WINDOW) -> Array:
    """Mean of the last `window` episodes that ended at or before each step of `at`: the score of a run there.

    Over all of them where there are fewer, NaN where there is none. `steps` must not decrease.
    """
    values = np.asarray(returns, float)
    finite = np.isfinite(values)
    # One bad return must spoil the windows that hold it and no others, so it is summed as 0 and counted apart.
    total = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    bad = np.concatenate([[0], np.cumsum(~finite)])
    end = np.searchsorted(np.asarray(steps), np.asarray(at), side="right")
    begin = np.maximum(end - window, 0)
    is_known = (end > begin) & (bad[end] == bad[begin])
    return np.where(is_known, (total[end] - total[begin]) / np.maximum(end - begin, 1), np.nan)


def _shown(value: object) -> str:
    """A value from outside as part of a one-line message."""
    text = "".join(c if c.isprintable() else "�" for c in str(value))
    return text if len(text) <= 200 else text[:197] + "..."


def _stored(file: Path) -> Path:
    """The file, or its compressed form where there is only that."""
    packed = file.with_name(file.name + ".gz")
    return packed if packed.exists() and not file.exists() else file


def read_text(file: Path) -> str:
    """The file's text, unpacked where its name ends in .gz; `UserError` where it cannot be read."""
    try:
        data = file.read_bytes()
        return (gzip.decompress(data) if file.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        is_packing = isinstance(error, gzip.BadGzipFile | EOFError | zlib.error)
        why = "not UTF-8 text" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None)
        raise UserError(f"{_shown(file)}: cannot be read ({'damaged' if is_packing else why})") from error


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise UserError(f"{_shown(file.parent)}: no run folder (it has no config.json)")
    try:
        config = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UserError(f"{_shown(file)}: not valid JSON{where}") from error
    if not isinstance(config, dict):
        raise UserError(f"{_shown(file)}: holds {type(config).__name__}, should be a JSON object")
    found = config.get("format")
    if isinstance(found, bool) or found != KNOWN_FORMAT:
        raise UserError(f"{_shown(file)}: format is {_shown(found)}, this version of p3o reads format {KNOWN_FORMAT}")
    for key, (kind, words) in CONFIG_TYPES.items():
        if key in config and not isinstance(config[key], kind):
            raise UserError(f"{_shown(file)}: {key} is {_shown(config[key])}, should be {words}")
    if not 0 <= config.get("steps", 0) < 2**53:
        raise UserError(f"{_shown(file)}: steps is {_shown(config['steps'])}, should be a number of steps")
    if not isinstance(config.get("env", {}).get("id"), str):
        raise UserError(f"{_shown(file)}: env.id is missing, should be the environment's name")
    if config.get("settings"):
        config["settings"] = BEFORE | config["settings"]
    return config


def _read_csv(file: Path, header: tuple[str, ...] | None, non_finite: list[str]) -> dict[str, Array]:
    """The columns of a CSV file of numbers; `header` None takes any that begins with `step` and allows empty cells.

    A file that is not there yet, or that has no whole line yet, has no rows. The field of `return` is `return_`.
    """
    file = _stored(file)
    lines = read_text(file).split("\n")[:-1] if file.exists() else []  # what follows the last newline is in progress
    names = tuple(lines[0].rstrip("\r").split(",")) if lines else header or ("step",)
    right = names == header if header else names[0] == "step" and len(set(names)) == len(names) and all(names)
    if not right:
        wanted = ",".join(header or ("step", "…"))
        raise UserError(f"{_shown(file)} line 1: header is {_shown(lines[0])!r}, should be {wanted!r}")
    rows = _parse_fast(lines[1:], names) if header else None
    bad_columns: set[str] = set()
    if rows is None:
        rows, bad_columns = _parse_lines(file, lines[1:], names, may_be_empty=header is None)
    non_finite += [f"{file.name.removesuffix('.gz')}: {name}" for name in names if name in bad_columns]
    types = [np.int64 if name in WHOLE_COLUMNS else np.float64 for name in names]
    fields = ["return_" if name == "return" else name for name in names]
    return {field: rows[:, j].astype(types[j]) for j, field in enumerate(fields)}


def _parse_fast(lines: list[str], names: tuple[str, ...]) -> Array | None:
    """All lines at once, four times faster; None where anything is unusual, so that `_parse_lines` can say what."""
    if not lines or not all(lines):
        return np.empty((0, len(names))) if not lines else None
    try:
        rows = np.loadtxt(lines, delimiter=",", comments=None, ndmin=2)
    except ValueError:
        return None
    if rows.shape != (len(lines), len(names)) or not np.isfinite(rows).all():
        return None
    whole = rows[:, [i for i, name in enumerate(names) if name in WHOLE_COLUMNS]]
    is_right = ((whole == np.floor(whole)) & (whole >= 0) & (whole < 2**53)).all() and (np.diff(rows[:, 0]) >= 0).all()
    return rows if is_right else None


def _parse_lines(file: Path, lines: list[str], names: tuple[str, ...], may_be_empty: bool) -> tuple[Array, set[str]]:
    """The rows and the columns in which one says nan or inf; `UserError` names the first line that is wrong."""
    rows = np.empty((len(lines), len(names)))
    bad_columns: set[str] = set()
    for i, line in enumerate(lines):
        rows[i], bad = _parse_line(file, i + 2, line, names, may_be_empty)
        bad_columns.update(bad)
        if i and rows[i, 0] < rows[i - 1, 0]:
            raise UserError(f"{_shown(file)} line {i + 2}: step {rows[i, 0]:.0f} is less than the one before")
    return rows, bad_columns


def _parse_line(
    file: Path, number: int, line: str, names: tuple[str, ...], may_be_empty: bool
) -> tuple[list[float], list[str]]:
    """The numbers on a line and the columns in which it says nan or inf."""
    cells = line.rstrip("\r").split(",")
    if len(cells) != len(names):
        raise UserError(f"{_shown(file)} line {number}: {len(cells)} cells, should be {len(names)}")
    values, bad = [], []
    for name, cell in zip(names, cells, strict=True):
        is_whole = name == "step" or (name in WHOLE_COLUMNS and not may_be_empty)
        try:
            value = math.nan if may_be_empty and not cell and not is_whole else float(cell)
        except ValueError:
            value = None
        if value is None or (is_whole and not (value.is_integer() and 0 <= value < 2**53)):
            wanted = "a whole number" if is_whole else "a number"
            raise UserError(f"{_shown(file)} line {number}: {name} is {_shown(cell)!r}, should be {wanted}")
        if cell and not math.isfinite(value):
            bad.append(name)
        values.append(value)
    return values, bad
