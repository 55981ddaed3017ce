"""Memory of a run over time: resident size after n steps against 10 n, with all files being written.

    python benchmarks/memory.py [--steps 30000] [--envs CartPole-v1 HalfCheetah-v5] [--algo p3o] [--core 0]

Each run is a process of its own and writes into a temporary folder.
"""

import argparse
import json
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import markdown_table, run_worker

TOLERANCE = 0.03  # growth that still counts as flat
TIMES = 10


def resident_bytes() -> int:
    """Of this process now; where the system does not say, its largest so far."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def worker(what: dict[str, Any]) -> None:
    """Train to 10 n steps and note the size at each n."""
    from p3o import starting
    from p3o.display import NoDisplay
    from p3o.jobs import Job
    from p3o.signals import StopSignals

    steps, sizes = what["steps"], []
    with tempfile.TemporaryDirectory() as parent, StopSignals() as stop:
        job = Job(what["env"], what["algo"], TIMES * steps)
        run, lock = starting.start(job, Path(parent) / "run", NoDisplay())

        def note(status: Any) -> None:
            if status.step >= (len(sizes) + 1) * steps:
                sizes.append(resident_bytes())

        with lock:
            run.run(stop, note)
    print(json.dumps(sizes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", nargs="+", default=["CartPole-v1", "HalfCheetah-v5"])
    parser.add_argument("--algo", default="p3o")
    parser.add_argument(
        "--steps", type=int, default=30_000, help="n; past the filling of the replay and the first checkpoint"
    )
    parser.add_argument("--core", type=int, default=0, help="core to pin every process to; -1 for none")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker)
    rows, is_flat = [], True
    for env in options.envs:
        core = None if options.core < 0 else options.core
        sizes = run_worker(__file__, {"env": env, "algo": options.algo, "steps": options.steps}, core)
        if sizes is None:
            sys.exit(1)
        growth = sizes[-1] / sizes[0] - 1
        is_flat = is_flat and growth <= TOLERANCE
        shown = [f"{sizes[0] / 1e6:.1f} MB", f"{sizes[-1] / 1e6:.1f} MB", f"{growth:+.1%}"]
        print(f"{env}, MB: {', '.join(f'{size / 1e6:.1f}' for size in sizes)}", file=sys.stderr)
        rows.append([f"{options.algo} on {env}", *shown, "flat" if growth <= TOLERANCE else "**grows**"])
    header = ["run", f"{options.steps:,} steps", f"{TIMES * options.steps:,} steps", "growth", ""]
    print("\n".join(markdown_table(header, rows)))
    sys.exit(not is_flat)


if __name__ == "__main__":
    main()
