"""Ctrl-C and SIGTERM as a wish to stop at the next whole iteration, from which resume is exact."""

import contextlib
import signal
from typing import Any, Protocol


class Stop(Protocol):
    """A wish to stop: the number of a signal, None while there is none."""

    received: int | None


class StopSignals:
    """Remembers the first signal; a second one stops at once. Outside `with`, no signal is caught."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        for number in (signal.SIGINT, signal.SIGTERM):
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
