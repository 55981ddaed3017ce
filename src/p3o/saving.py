"""Checkpoints: what goes into one and when, and their writing while training goes on, one at a time, cost counted."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from p3o import checkpoint, segments
from p3o import model as models
from p3o.placement import format_bytes
from p3o.train import Trainer


class Cost(NamedTuple):
    """What checkpoints took."""

    number: int = 0
    num_bytes: int = 0  # written
    seconds: float = 0.0  # of writing, beside the training
    waited: float = 0.0  # seconds that training stood still

    def line(self, total_seconds: float) -> str:
        """One line for the end of a run."""
        share = self.waited / max(total_seconds + self.waited, 1e-9)
        return (
            f"{self.number} checkpoint{'' if self.number == 1 else 's'}: {format_bytes(self.num_bytes)} written in "
            f"{self.seconds:.1f} s beside the training, which waited {self.waited:.2f} s ({share:.1%})"
        )


class BackgroundSaver:
    """Runs the writing of a checkpoint beside the training; what it raises comes out of `wait`."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "checkpoint")
        self._running: Future[int] | None = None
        self.cost = Cost()

    @property
    def is_busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def start(self, write: Callable[[], int], waited: float) -> None:
        """Begin to write; the one before has been waited for. `write` returns its bytes."""
        assert self._running is None
        self.cost = self.cost._replace(number=self.cost.number + 1, waited=self.cost.waited + waited)

        def timed() -> int:
            started = time.perf_counter()
            num_bytes = write()
            cost = self.cost
            seconds = cost.seconds + time.perf_counter() - started
            self.cost = cost._replace(num_bytes=cost.num_bytes + num_bytes, seconds=seconds)
            return num_bytes

        self._running = self._executor.submit(timed)

    def wait(self) -> None:
        """Until nothing is being written."""
        running = self._running
        if running is None:
            return
        started = time.perf_counter()
        try:
            running.result()
        finally:
            if running.done():  # an interrupted wait leaves it to the next one
                self._running = None
            self.cost = self.cost._replace(waited=self.cost.waited + time.perf_counter() - started)


class Checkpoints:
    """Those of one run: the trainer, its replay in segments where that is apart, and the model beside them."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.saver = BackgroundSaver()
        self.last: int | None = None  # step of the last good one
        self.segments: list[dict[str, Any]] = []  # of the replay, on disk
        self._prepared_at = 0

    def is_due(self, every: int) -> bool:
        is_due = self.trainer.step // every > self._prepared_at // every
        return is_due and not self.saver.is_busy  # a slow disk makes checkpoints rarer, not training slower

    def prepare(self, folder: Path, run_id: str, entries: dict[str, Any], model: models.Model) -> Callable[[], int]:
        """All that a checkpoint holds, as it is now; returns the function that writes it and returns its bytes."""
        trainer, step = self.trainer, self.trainer.step
        tree: dict[str, Any] = {"trainer": trainer.snapshot(), **entries}
        saved_before = self.segments[-1]["last"] if self.segments else 0
        chunks = trainer.replay_chunks(saved_before) if trainer.is_replay_apart else []
        if trainer.is_replay_apart:
            tree = checkpoint.frozen(tree)
        self._prepared_at = step

        def write() -> int:
            place = folder / "checkpoint"
            place.mkdir(parents=True, exist_ok=True)
            new = [segments.write(place, chunk) for chunk in chunks]
            if chunks:
                assert trainer.algorithm.replay is not None
                slots = trainer.algorithm.replay.slots
                self.segments = segments.needed([*self.segments, *new], chunks[-1].last, slots)
            if trainer.is_replay_apart:
                tree["segments"] = self.segments
            size = checkpoint.save(place, run_id, step, tree)
            segments.clean(place, self.segments)
            models.save(model, folder / "model")
            self.last = step  # last: whoever sees it may take the folder's files
            return size + sum(segment["bytes"] for segment in new)

        return write

    def restore(self, folder: Path, tree: dict[str, Any]) -> list[int]:
        """Bring the trainer to a checkpoint; returns the environments that had to start a fresh episode."""
        self.segments = tree.get("segments", [])
        chunks = (segments.read(folder / "checkpoint", segment) for segment in self.segments)
        fresh = self.trainer.restore(tree["trainer"], chunks)
        self.last = self._prepared_at = self.trainer.step
        return fresh
