"""What the benchmarks share: a process for each measurement, and tables and figures put into a page."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from p3o.provenance import processor

PARTS_SHOWN = ("simulator", "acting", "normalising", "copying", "updating", "logging")
COLORS = dict(zip(PARTS_SHOWN, ("#4d4d4d", "#1b78b4", "#7fb8d8", "#b8b8b8", "#d95f02", "#e7c07b"), strict=True))


def usable_cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else list(range(os.cpu_count() or 1))


def add_page_options(parser: argparse.ArgumentParser, section: str) -> None:
    """The options of benchmarks whose numbers go to a page: where to run, what to keep, what to write."""
    parser.add_argument("--core", type=int, default=0, help="core to pin every process to; -1 for none")
    parser.add_argument("--save", type=Path, help="file for the numbers")
    parser.add_argument("--load", type=Path, help="numbers of an earlier run, instead of measuring")
    parser.add_argument("--write", type=Path, help=f"page with the markers `{section} begin` and `{section} end`")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)


def pinned(command: Sequence[object], core: int | None) -> list[str]:
    """The command, kept on one core where the system can do that."""
    words = [str(word) for word in command]
    return words if core is None or sys.platform != "linux" else ["taskset", "-c", str(core), *words]


def one_thread() -> dict[str, str]:
    """The environment variables of a process that computes on one thread of the CPU."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return os.environ | dict.fromkeys(names, "1") | {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}


def start_worker(script: str, what: Any, core: int | None) -> subprocess.Popen[str]:
    """A process of the script that runs one measurement and prints one line of JSON."""
    command = pinned([sys.executable, script, "--worker", json.dumps(what)], core)
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=one_thread())


def result_of(process: subprocess.Popen[str]) -> Any:
    """What a worker printed, or None with its last complaint on standard error."""
    out, err = process.communicate()
    if process.returncode:
        print((err.strip().splitlines() or [f"exit code {process.returncode}"])[-1], file=sys.stderr)
        return None
    return json.loads(out.strip().splitlines()[-1])


def run_worker(script: str, what: Any, core: int | None) -> Any:
    return result_of(start_worker(script, what, core))


def machine_line(*packages: str) -> str:
    """The processor and the versions that a measurement belongs to."""
    versions = []
    for package in packages:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {', '.join(versions)}."


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]


def write_section(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put lines between the page's markers `<!-- name begin -->` and `<!-- name end -->`."""
    text = page.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} begin -->", f"<!-- {name} end -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        sys.exit(f"{page}: the markers {begin} and {end} are needed, once each and in this order")
    before, after = text.split(begin)[0], text.split(end)[1]
    page.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")


def pyplot() -> Any:
    """Matplotlib for SVG files that are the same for the same numbers; one line where it is not installed."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        sys.exit("the figure needs matplotlib: python -m pip install matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "p3o"
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure: Any, page: Path, name: str) -> str:
    """Save the figure beside a page; returns the line that shows it there."""
    path = page.parent / "figures" / f"{name}.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    return f"![{name}](figures/{name}.svg)"
