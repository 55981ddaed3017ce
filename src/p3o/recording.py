"""The files that grow while a run trains: CSV lines and TensorBoard events, which can be cut back to a checkpoint."""

import contextlib
import hashlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p3o.algorithms import Metric
from p3o.errors import UserError
from p3o.folder import leave_mark
from p3o.rollout import Episode

EPISODES = "episodes.csv"
UPDATES = "updates.csv"
EVALUATIONS = "evaluations.csv"
EVENTS = "events.out.tfevents.*"  # other files beside them are not ours
LOOP_COLUMNS = ("learning_rate", "steps_per_second")


def number(value: float) -> str:
    """Ten digits, whole numbers plainly, nothing for NaN."""
    return "" if math.isnan(value) else format(value, ".10g")


class Table:
    """An append-only CSV file."""

    def __init__(self, path: Path, columns: tuple[str, ...]):
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115
        self.is_whole = True  # False once a line is lost
        self._digest = hashlib.sha256(path.read_bytes())  # of all that was written, so that an edited line is found
        if self._file.tell() == 0:
            self.add(*columns)

    def add(self, *cells: str) -> None:
        line = (",".join(cells) + "\n").encode()
        self._digest.update(line)
        with self._keeping():
            self._file.write(line)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        """A disk without room: what is not written here is gone."""
        try:
            yield
        except OSError:
            self.is_whole = False
            raise

    def flush(self) -> tuple[int, str]:
        """Push lines to the disk; returns the file's length and digest."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell(), self._digest.hexdigest()

    def close(self) -> None:
        with self._keeping():
            self._file.close()


class Events:
    """TensorBoard scalars, written without a thread so that a checkpoint knows what is on disk."""

    def __init__(self, folder: Path):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self._writer: Any = None

    def add(self, step: int, scalars: dict[str, float]) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        if self._writer is None:
            taken = len(list(self.folder.glob(EVENTS)))
            self._writer = EventsWriter(str(self.folder / "events"), filename_suffix=f".{taken}")
        for name, value in scalars.items():
            if not math.isnan(value):
                self._writer.write_event(Event(summary=scalar(name, value), step=step, wall_time=time.time()))

    def flush(self) -> dict[str, int]:
        if self._writer is not None:
            self._writer.flush()
        return {path.name: path.stat().st_size for path in sorted(self.folder.glob(EVENTS))}

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Recorder:
    """Writes a run's tables and events."""

    def __init__(self, folder: Path, metrics: tuple[Metric, ...]):
        self.folder = folder
        self._metrics = metrics
        self.episodes = Table(folder / EPISODES, ("step", "env", "return", "length", "seconds"))
        self.updates = Table(folder / UPDATES, ("step", *(m.name for m in metrics), *LOOP_COLUMNS))
        self.evaluations: Table | None = None
        if (folder / EVALUATIONS).exists():
            self._open_evaluations()
        self.events = Events(folder / "tb")

    def _open_evaluations(self) -> Table:
        if self.evaluations is None:
            self.evaluations = Table(self.folder / EVALUATIONS, ("step", "episode", "return", "length"))
        return self.evaluations

    def add_episodes(self, episodes: list[Episode], seconds: float) -> None:
        for episode in episodes:
            self.episodes.add(
                str(episode.step), str(episode.env), number(episode.total), str(episode.length), f"{seconds:.2f}"
            )

    def add_update(self, step: int, means: dict[str, float]) -> None:
        """One line of a logging interval; a count of nothing is 0, a mean of nothing is empty."""
        self.updates.add(
            str(step), *(number(means[m.name]) for m in self._metrics), *(number(means[c]) for c in LOOP_COLUMNS)
        )

    def add_events(self, step: int, means: dict[str, float], rollout: dict[str, float]) -> None:
        speed = means["steps_per_second"]
        train = {f"train/{name}": value for name, value in means.items() if name != "steps_per_second"}
        self.events.add(step, rollout | {"time/fps": speed} | train)

    def add_evaluation(self, step: int, results: list[tuple[float, int]]) -> None:
        table = self._open_evaluations()
        for episode, (total, length) in enumerate(results):
            table.add(str(step), str(episode), number(total), str(length))
        mean = sum(total for total, _ in results) / len(results)
        mean_length = sum(n for _, n in results) / len(results)
        self.events.add(step, {"eval/mean_reward": mean, "eval/mean_ep_length": mean_length})

    def flush(self) -> dict[str, Any]:
        """Everything on disk; returns the lengths and digests that `cut_back` needs."""
        found = {table.path.name: table.flush() for table in self._tables()}
        return {
            "tables": {name: length for name, (length, _) in found.items()},
            "digests": {name: digest for name, (_, digest) in found.items()},
            "events": self.events.flush(),
        }

    def _tables(self) -> list[Table]:
        return [table for table in (self.episodes, self.updates, self.evaluations) if table is not None]

    @property
    def is_whole(self) -> bool:
        """Whether every line has come to its file, once it is closed."""
        return all(table.is_whole for table in self._tables())

    def close(self) -> None:
        """All files, whatever becomes of one of them: what a full disk did not take was not promised to anyone."""
        files: list[Table | Events] = [*self._tables(), self.events]
        for file in files:
            with contextlib.suppress(OSError):
                file.close()


def cut_back(folder: Path, lengths: dict[str, Any] | None) -> None:
    """Drop all that was written after a checkpoint (None: after the start), if what was written before is there."""
    lengths = lengths or {"tables": {}, "events": {}}
    for name, length in lengths["tables"].items():
        if length and not (folder / name).exists():
            raise UserError(f"{folder / name} is missing: the checkpoint was made after {length} bytes of it")
        content = (folder / name).read_bytes() if length else b""
        if len(content) < length:
            raise UserError(
                f"{folder / name} is damaged: it has {len(content)} bytes, the checkpoint was made after {length}"
            )
        digest = lengths.get("digests", {}).get(name)  # older checkpoints have none
        if digest not in (None, hashlib.sha256(content[:length]).hexdigest()):
            raise UserError(f"{folder / name} was changed: its lines are not those that the checkpoint was made after")
    wanted = {folder / name: lengths["tables"].get(name) for name in (EPISODES, UPDATES, EVALUATIONS)}
    if (folder / "tb").is_dir():
        wanted |= {path: lengths["events"].get(path.name) for path in (folder / "tb").glob(EVENTS)}
    longer = {
        path: length
        for path, length in wanted.items()
        if path.exists() and (length is None or path.stat().st_size > length)
    }
    if longer:
        leave_mark(folder)
    for path, length in longer.items():
        if length is None:
            path.unlink()
        else:
            os.truncate(path, length)
