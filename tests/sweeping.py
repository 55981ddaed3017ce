"""`p3o sweep` as a process, with a stand-in for the page of the whole sweep."""

import subprocess
import sys
from typing import Any

# An update that compiles in a second; a checkpoint every few iterations, so that kills fall between two.
TINY_SWEEP = ("--set", "num_envs=2", "num_steps=16", "hidden_sizes=8", "checkpoint_every=200")
PROGRAM = """
import p3o.report
from p3o.cli import main

one = p3o.report.write_report
p3o.report.write_report = lambda paths: one(paths) if not isinstance(paths, list) else paths[0] / "report.html"
main()
"""


def command(*words: object) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "sweep", *(str(w) for w in words)]


def begin(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sweep(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, **options)
