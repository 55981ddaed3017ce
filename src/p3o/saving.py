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
    seconds: float = 0.0  # of writing, beside the training or not
    waited: float = 0.0  # seconds that training stood still

    def line(self, total_seconds: float) -> str:
        """One line for the end of a run."""
        share = self.waited / max(total_seconds + self.waited, 1e-9)
        return (
            f"{self.number} checkpoint{'' if self.number == 1 else 's'}: {format_bytes(self.num_bytes)} written in "
            f"{self.seconds:.1f} s; training waited {self.waited:.2f} s ({share:.1%})"
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

    def start(self, write: Callable[[], int], waited: float, is_checkpoint: bool = True) -> None:
        """Begin to write; the one before has been waited for. `write` returns its bytes."""
        assert self._running is None
        number = self.cost.number + is_checkpoint
        self.cost = self.cost._replace(number=number, waited=self.cost.waited + waited)

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

    def then(self, act: Callable[[], None]) -> None:
        """Do it when nothing is being written: now, or after a writing that nobody waits for any more."""
        if self._running is None:
            act()
        else:
            self._running.add_done_callback(lambda _: act())


class Checkpoints:
    """Those of one run: the trainer, its replay in segments where that is apart, and the model beside them."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.saver = BackgroundSaver()
        self.last: int | None = None  # step of the last good one
        self.segments: list[dict[str, Any]] = []  # of the replay, listed in the last checkpoint
        self._ahead: list[dict[str, Any]] = []  # those written since
        self._prepared_at = 0
        self._covered = 0  # iterations whose rollouts have been handed over

    def is_due(self, every: int) -> bool:
        is_due = self.trainer.step // every > self._prepared_at // every
        return is_due and not self.saver.is_busy  # a slow disk makes checkpoints rarer, not training slower

    @property
    def _num_saved(self) -> int:
        """Rollouts that are in segments; asked for while nothing is being written."""
        return max((segment["last"] for segment in (*self.segments, *self._ahead)), default=0)

    def write_ahead(self, folder: Path) -> None:
        """Have each full segment of a replay written as soon as there is one, beside the training.

        A checkpoint then finds little left to copy: copies lie on the device, where the replay may leave little room.
        """
        trainer, plan = self.trainer, self.trainer.algorithm.replay
        is_soon = trainer.iteration - self._covered < segments.ROLLOUTS
        if not trainer.is_replay_apart or is_soon or self.saver.is_busy:
            return
        assert plan is not None
        if plan.slots < 2 * segments.ROLLOUTS:  # a small ring, overwritten before long
            return
        self.saver.wait()  # for what it raised
        started = time.perf_counter()
        chunk = next(trainer.replay_chunks(self._num_saved))
        self._covered = trainer.iteration - (trainer.num_added - chunk.last)

        def write() -> int:
            place = folder / "checkpoint"
            place.mkdir(parents=True, exist_ok=True)
            new = segments.write(place, chunk)
            kept = segments.needed([*self._ahead, new], chunk.last, plan.slots)
            for old in self._ahead[: len(self._ahead) + 1 - len(kept)]:  # no checkpoint lists them
                (place / old["name"]).unlink(missing_ok=True)
            self._ahead = kept
            return new["bytes"]

        self.saver.start(write, time.perf_counter() - started, is_checkpoint=False)

    def prepare(self, folder: Path, run_id: str, entries: dict[str, Any], model: models.Model) -> Callable[[], int]:
        """All that a checkpoint holds, as it is now; returns the function that writes it and returns its bytes."""
        trainer, step = self.trainer, self.trainer.step
        tree: dict[str, Any] = {"trainer": trainer.snapshot(), **entries}
        chunks = []
        if trainer.is_replay_apart:
            chunks = list(trainer.replay_chunks(self._num_saved))
            tree = checkpoint.frozen(tree)
        self._prepared_at, self._covered = step, trainer.iteration

        def write() -> int:
            place = folder / "checkpoint"
            place.mkdir(parents=True, exist_ok=True)
            new = [segments.write(place, chunk) for chunk in chunks]
            if trainer.is_replay_apart:
                assert trainer.algorithm.replay is not None
                held = [*self.segments, *self._ahead, *new]
                num_added, slots = tree["trainer"]["replay"], trainer.algorithm.replay.slots
                self.segments, self._ahead = segments.needed(held, num_added, slots), []
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
        self._covered = self.trainer.iteration
        return fresh
