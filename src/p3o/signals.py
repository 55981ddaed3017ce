"""Ctrl-C and SIGTERM as a wish to stop at the next whole iteration, from which resume is exact."""

import contextlib
import signal
import sys
from typing import Any, Protocol


class Stop(Protocol):
    """A wish to stop: the number of a signal, None while there is none."""

    received: int | None


_early: list[int] = []  # signals from before there was anything that could stop in order


def interrupt_at_once() -> None:
    """Both signals raise KeyboardInterrupt from now on, for a command line.

    An exception that a signal raises inside a callback, such as JAX's of the garbage collection, is printed and lost:
    the signal is remembered for the `StopSignals` to come.
    """

    def handle(number: int, frame: Any) -> None:
        _early.append(number)
        raise KeyboardInterrupt(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    print_lost = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else print_lost(lost)


class StopSignals:
    """Remembers the first signal; a second one stops at once. Outside `with`, no signal is caught."""

    def __init__(self, numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.numbers = numbers
        self.received: int | None = _early[0] if _early else None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in self.numbers:
            with contextlib.suppress(ValueError):  # not in the main thread: the caller's handlers stay
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.received is not None:
            raise KeyboardInterrupt(number)
        self.received = number
