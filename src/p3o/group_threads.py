"""Groups of environments that play side by side, each in a thread of its own, and end together however they end."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

OVER = object()  # what an iterator gives that is through


class GroupThreads:
    """Threads that are made on first use and end with this."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    def play(self, plays: list[Iterator[None]]) -> None:
        """Returns, or raises what one of them or Ctrl-C raised, when all have come to an end."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(len(plays), "p3o-group")
        stop: list[bool] = []  # an entry stops all; a list, since `threading.Event` can be torn by Ctrl-C
        locks = [threading.Lock() for _ in plays]
        try:
            futures = [self._executor.submit(play_until, stop, *pair) for pair in zip(locks, plays, strict=True)]
            for future in futures:
                future.result()
        except BaseException:
            while not _has_stopped(stop, locks):
                pass
            raise


def play_until(stop: list[bool], lock: threading.Lock, play: Iterator[None]) -> None:
    """A group's thread: to the end, or to the next wait after another one failed. It holds the lock while it plays."""
    with lock, np.errstate(invalid="ignore", over="ignore"):  # which is a thread's own
        try:
            while not stop and next(play, OVER) is not OVER:
                pass
        except BaseException:
            stop.append(True)
            raise


def _has_stopped(stop: list[bool], locks: list[threading.Lock]) -> bool:
    """Stop all threads and wait for them; False where another Ctrl-C came in between. One yet to begin never does."""
    try:
        stop.append(True)
        for lock in locks:
            with lock:
                pass
    except KeyboardInterrupt:
        return False
    return True
