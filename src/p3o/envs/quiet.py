"""Keeps libraries' chatter off the user's terminal and out of the user's folder."""

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.RLock()  # all threads share the error stream: the first to leave would put back another's


def silence_mujoco() -> None:
    """MuJoCo's warnings go to stderr and to MUJOCO_LOG.TXT in the working folder unless a handler takes them.

    A handler of the user's stays. A MuJoCo that cannot be imported has its say where it is needed.
    Nothing is lost: what matters (an unstable simulation) shows as a non-finite observation, which stops the run.
    """
    with contextlib.suppress(Exception):
        with quietly():  # it asks for a graphics library in a process of its own, which Ctrl-C would hit too
            import mujoco

        if mujoco.get_mju_user_warning() is None:
            mujoco.set_mju_user_warning(lambda message: None)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Drop Python warnings, and what libraries write straight to the error stream (ALE's banner), in this block."""
    with _ONE_AT_A_TIME, warnings.catch_warnings(), _no_error_stream():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _no_error_stream() -> Iterator[None]:
    if sys.stderr is None:  # closed by the caller: nothing to keep quiet
        yield
        return
    sys.stderr.flush()
    saved = os.dup(2)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)
