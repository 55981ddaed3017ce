"""Ctrl-C and SIGTERM as a wish to stop at the next whole iteration, from which resume is exact."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any, Protocol

AGAIN_AFTER = 0.05  # seconds


class Stop(Protocol):
    """A wish to stop: the number of a signal, None while there is none."""

    received: int | None


def interrupt_at_once() -> None:
    """Both signals raise KeyboardInterrupt from now on, for a command line.

    Not inside an import, where there is nothing to lose and an exception can crash a library that is written in C: the
    process ends there. An exception that a signal raises inside a callback, such as JAX's of the garbage collection,
    would be printed and lost: the signal is sent again.
    """

    def handle(number: int, frame: Any) -> None:
        if _is_importing(frame):
            with contextlib.suppress(OSError):
                os.write(2, b"p3o: stopped at once\n")
            os._exit(128 + number)
        raise KeyboardInterrupt(number)

    def on_lost(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt and lost.exc_value is not None and lost.exc_value.args:
            again = threading.Timer(AGAIN_AFTER, os.kill, (os.getpid(), lost.exc_value.args[0]))
            again.daemon = True
            again.start()
        else:
            print_lost(lost)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handle)
    print_lost, sys.unraisablehook = sys.unraisablehook, on_lost


def _is_importing(frame: Any) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def exit_code(stop: KeyboardInterrupt) -> int:
    """128 + the signal. Python itself would end with SIGINT, of whatever signal, if it came inside an `exec`.

    Imports are full of them (named tuples, data classes); an `exec` that ends well makes Python forget the other.
    """
    exec("")
    return 128 + (stop.args[0] if stop.args else signal.SIGINT)


class StopSignals:
    """Remembers the first signal; a second one stops at once. Outside `with`, no signal is caught."""

    def __init__(self, numbers: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.numbers = numbers
        self.received: int | None = None
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
