"""Errors that end in one line: what the user can fix (exit code 2), and what stops a run (1)."""

import difflib
import shlex
import sys
from collections.abc import Iterable

XLA_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")  # by name: to import JAX takes a second


class UserError(Exception):
    """Bad input from outside: its message is one line that names the value and what would be right."""


class RunStopped(Exception):
    """A run that cannot go on by itself (a non-finite number, say); the message names the last good checkpoint."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether the machine, or the device that XLA computes on, had too little memory."""
    is_xla = type(error).__name__ in XLA_ERRORS
    return isinstance(error, MemoryError) or (is_xla and "RESOURCE_EXHAUSTED" in str(error))


def out_of_memory(error: Exception) -> str:
    """The line about it: what was asked for, where that is known."""
    said = str(error).strip().split("\n")[0]
    return f"out of memory ({said})" if said else "out of memory"


def extra(name: str) -> str:
    """What to do about a package that is not there, as a command for the Python that runs."""
    return f"install the extra p3o[{name}] (in the clone: {shlex.quote(sys.executable)} -m pip install -e '.[{name}]')"


def nearest(name: str, known: Iterable[str], prefix: str = "") -> str:
    """A hint for a misspelt name: ` (did you mean X?)`, or nothing when no known name is close."""
    by_lower = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {prefix}{by_lower[close[0]]}?)" if close else ""
