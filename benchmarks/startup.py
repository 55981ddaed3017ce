"""How long a user waits: `p3o --help`, and `p3o train CartPole-v1` until its first iteration is through.

    python benchmarks/startup.py [--repeats 5] [--env CartPole-v1] [--core 0]

Whole processes, wall time, the compile cache warm: a first run of each is not counted. Processor time stands beside it:
on a busy machine the two differ.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from common import markdown_table, pinned

BARS = {"p3o --help": 0.5, "to the first step": 3.0}
COMMAND = [sys.executable, "-m", "p3o.cli"]


def processor_seconds() -> float:
    """Of all processes started here that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def whole(words: Sequence[str], core: int | None) -> tuple[float, float]:
    """Wall and processor seconds of a command."""
    started, used = time.perf_counter(), processor_seconds()
    subprocess.run(pinned([*COMMAND, *words], core), check=True, capture_output=True)
    return time.perf_counter() - started, processor_seconds() - used


def train(env: str, core: int | None) -> tuple[float, float, float]:
    """Seconds to the display's first line about steps; to the end of a run of one iteration, wall and processor."""
    used = processor_seconds()
    with tempfile.TemporaryDirectory() as parent:
        command = pinned([*COMMAND, "train", env, "--steps", "1", "--out", f"{parent}/run"], core)
        started, first = time.perf_counter(), None
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if first is None and line.startswith("step "):
                    first = time.perf_counter() - started
        if process.returncode or first is None:
            sys.exit(f"{' '.join(command)} failed")
        return first, time.perf_counter() - started, processor_seconds() - used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--core", type=int, default=0, help="core to pin every process to; -1 for none")
    options = parser.parse_args()
    core = None if options.core < 0 else options.core
    helps = [whole(["--help"], core) for _ in range(options.repeats + 1)][1:]
    runs = [train(options.env, core) for _ in range(options.repeats + 1)][1:]
    found: dict[str, tuple[list[float], list[float]]] = {
        "p3o --help": ([wall for wall, _ in helps], [used for _, used in helps]),
        "to the first step": ([first for first, _, _ in runs], []),
        "whole run of one iteration, report included": ([total for _, total, _ in runs], [used for _, _, used in runs]),
    }
    rows, is_met = [], True
    for name, (seconds, processor) in found.items():
        middle, bar = statistics.median(seconds), BARS.get(name)
        is_met = is_met and (bar is None or middle <= bar)
        verdict = "" if bar is None else f"≤ {bar:g} s: {'met' if middle <= bar else 'not met'}"
        used = f"{statistics.median(processor):.2f} s" if processor else ""
        rows.append([name, f"{middle:.2f} s", f"{min(seconds):.2f} to {max(seconds):.2f}", used, verdict])
    header = [f"start-up, {options.env}", "median", "lowest to highest", "processor", "bar"]
    print("\n".join(markdown_table(header, rows)))
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
