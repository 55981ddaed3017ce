"""The command line called in this process, and what a folder holds before and after."""

import contextlib
import io
import sys
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from p3o import cli

# An update that compiles in a second and replays from the third iteration on.
TINY_SETTINGS = {
    "num_envs": 2,
    "num_steps": 16,
    "hidden_sizes": "8",
    "replay_size": 64,
    "burn_in": 32,
    "replay_samples": 2,
}
TINY = ("--set", *(f"{name}={value}" for name, value in TINY_SETTINGS.items()))


class Result(NamedTuple):
    code: int
    out: str
    err: str


def call(*words: object) -> Result:
    """`p3o WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with (
        mock.patch.object(sys, "argv", ["p3o", *(str(w) for w in words)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())


def complaint(result: Result) -> str:
    """The one line of a user's error: exit code 2, nothing on standard output."""
    assert result.code == 2, result
    assert result.out == ""
    assert result.err.startswith("p3o: ")
    assert result.err.count("\n") == 1
    assert result.err.endswith("\n")
    return result.err


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file with its contents and every folder, but the lock, which is no data."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock"
    }
