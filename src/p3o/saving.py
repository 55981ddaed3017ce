"""Checkpoints written while training goes on: one at a time, in a thread of its own, with their cost counted."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from p3o.placement import format_bytes


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
