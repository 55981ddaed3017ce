"""Many runs at once: N single-thread runs, a core each, against one run alone.

    python benchmarks/parallel.py [--cores N] [--env HalfCheetah-v5] [--algo p3o] [--seconds 10] [--repeats 3]

The runs of a round start to measure together. Alone, a run takes the cores in turn, so that a slower core counts the
same on both sides.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from common import markdown_table, result_of, start_worker, usable_cores

BAR = 0.9
HORIZON = 10_000_000


def worker(what: dict[str, Any]) -> None:
    """Warm up, say so, wait for the word, measure."""
    from p3o.jobs import Job, set_up

    trainer = set_up(Job(what["env"], what["algo"], HORIZON, what["seed"], preset=what["preset"])).trainer
    while trainer.step < what["warm_up"]:
        trainer.iterate(HORIZON)
    print("ready", flush=True)
    sys.stdin.readline()
    step, started = trainer.step, time.perf_counter()
    while time.perf_counter() - started < what["seconds"]:
        trainer.iterate(HORIZON)
    print(json.dumps((trainer.step - step) / (time.perf_counter() - started)))


def together(what: dict[str, Any], cores: list[int]) -> list[float]:
    """Speeds of one run a core, all at once."""
    processes = [start_worker(__file__, what | {"seed": seed}, core) for seed, core in enumerate(cores)]
    for process in processes:
        if not wait_until_ready(process):
            sys.exit("a run did not start")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    speeds = [result_of(process) for process in processes]
    if None in speeds:
        sys.exit("a run failed")
    return speeds


def wait_until_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    if process.stdout.readline().strip() == "ready":
        return True
    return result_of(process) is not None  # prints why


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=len(usable_cores()))
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--algo", default="p3o")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=12_000, help="steps before measuring; past P3O's burn-in")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    cores = usable_cores()[: options.cores]
    if not 1 <= options.cores <= len(usable_cores()):
        sys.exit(f"--cores {options.cores}: there are {len(usable_cores())}")
    what = {name: getattr(options, name) for name in ("env", "algo", "preset", "seconds", "warm_up")}
    alone: list[float] = []
    totals: list[float] = []
    for round_number in range(options.repeats):
        alone += together(what, [cores[round_number % len(cores)]])
        totals.append(sum(together(what, cores)))
        print(f"alone {alone[-1]:,.0f}, together {totals[-1]:,.0f} steps/s", file=sys.stderr, flush=True)
    one, all_runs = statistics.median(alone), statistics.median(totals)
    efficiency = all_runs / (len(cores) * one)
    verdict = f"≥ {BAR:.0%}: {'met' if efficiency >= BAR else 'not met'}"
    header = [
        f"{options.algo} on {options.env}",
        "one run",
        f"{len(cores)} runs on {len(cores)} cores",
        "efficiency",
        "bar",
    ]
    row = ["steps/s, median", f"{one:,.0f}", f"{all_runs:,.0f}", f"**{efficiency:.0%}**", verdict]
    print("\n".join(markdown_table(header, [row])))
    sys.exit(efficiency < BAR)


if __name__ == "__main__":
    main()
