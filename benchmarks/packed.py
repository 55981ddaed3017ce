"""Several runs packed by `p3o sweep`: environment steps a second of all of them together, and how busy the machine is.

    python benchmarks/packed.py --workers 8 --set precision=tf32 burn_in=1 --mps --save packed.json

The sweep is stopped after the measurement; its files go to a temporary folder. A run's speed is that between the first
and the last line of its updates.csv in the time measured, on the clock of the wall, so checkpoints count. `--mps`
starts NVIDIA's multi-process service for these runs, so that their kernels run side by side and not in turns.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import machine_line, markdown_table, usable_cores

from p3o.folder import run_folder
from p3o.jobs import Job

LONG = "28e6"  # steps of a run, of which none comes near its end
PATIENCE = 300.0  # seconds until all runs are under way
BUSY, IDLE, STOLEN = slice(0, 3), slice(3, 5), 7  # in /proc/stat: user nice system, idle iowait, two more, steal


def last_step(updates: Path) -> int | None:
    """Of the last whole line; None where there is none yet."""
    try:
        lines = updates.read_text().split("\n")[1:-1]
    except OSError:
        return None
    return int(lines[-1].split(",")[0]) if lines else None


def speed(seen: list[tuple[float, int]]) -> float | None:
    """Steps a second from (seconds, step) of each line as it came; None where fewer than two came."""
    if len(seen) < 2:
        return None
    (started, first), (ended, last) = seen[0], seen[-1]
    return (last - first) / (ended - started)


def counters() -> list[int]:
    """Of all processors since the machine started, in hundredths of a second; zeros where the system does not say."""
    try:
        return [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    except OSError:
        return [0] * 8


def shares(before: list[int], after: list[int]) -> dict[str, float]:
    """Parts of the processors' time between two readings, and the seconds that were busy."""
    spent = [new - old for old, new in zip(before, after, strict=True)]
    total = max(sum(spent), 1)
    idle, stolen = sum(spent[IDLE]) / total, spent[STOLEN] / total
    return {"idle": idle, "stolen": stolen, "busy_seconds": sum(spent[BUSY]) / 100}


@contextlib.contextmanager
def multi_process_service(is_wanted: bool) -> Iterator[dict[str, str]]:
    """NVIDIA's MPS, for those that get these variables."""
    if not is_wanted:
        yield {}
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        sys.exit("--mps: there is no nvidia-cuda-mps-control")
    with tempfile.TemporaryDirectory(prefix="p3o-mps-") as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], env=os.environ | variables, check=True)
        try:
            yield variables
        finally:
            subprocess.run([control], input="quit\n", text=True, env=os.environ | variables, check=False)


def watch(files: list[Path], seconds: float, sweep: subprocess.Popen[bytes]) -> dict[str, object]:
    """Wait until every run writes its lines, then look at them for so long."""
    deadline = time.monotonic() + PATIENCE
    while None in [last_step(file) for file in files]:
        if sweep.poll() is not None or time.monotonic() > deadline:
            sys.exit("the sweep ended, or took too long to start: run it by hand to see why")
        time.sleep(0.5)
    seen: list[list[tuple[float, int]]] = [[] for _ in files]
    known = [last_step(file) for file in files]
    before, started = counters(), time.monotonic()
    while time.monotonic() - started < seconds:
        time.sleep(0.05)
        for index, file in enumerate(files):
            step = last_step(file)
            if step is not None and step != known[index]:
                known[index] = step
                seen[index].append((time.monotonic(), step))
    found = shares(before, counters())
    speeds = [speed(lines) for lines in seen]
    if None in speeds:
        sys.exit("a run wrote fewer than two lines in that time: --seconds has to be longer")
    total = sum(value for value in speeds if value is not None)
    milliseconds = 1e3 * found.pop("busy_seconds") / (total * seconds)
    return {"together": total, "speeds": speeds, **found, "processor_ms_a_step": milliseconds}


def measure(options: argparse.Namespace) -> dict[str, object]:
    with multi_process_service(options.mps) as variables, tempfile.TemporaryDirectory(prefix="p3o-packed-") as folder:
        number = str(options.workers)
        what = ["--envs", options.env, "--algos", options.algo, "--preset", options.preset, "--steps", LONG]
        command = [sys.executable, "-m", "p3o", "sweep", folder, *what, "--seeds", number, "--workers", number]
        command += ["--set", *options.set] if options.set else []
        sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=os.environ | variables)
        try:
            jobs = [Job(options.env, options.algo, seed=seed, preset=options.preset) for seed in range(options.workers)]
            files = [run_folder(Path(folder), job) / "updates.csv" for job in jobs]
            return watch(files, options.seconds, sweep)
        finally:
            for _ in range(2):  # a second one stops at once: no checkpoint is needed
                sweep.send_signal(signal.SIGTERM)
                time.sleep(1.0)
            with contextlib.suppress(subprocess.TimeoutExpired):
                sweep.wait(60)
            sweep.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="BreakoutNoFrameskip-v4")
    parser.add_argument("--algo", default="p3o")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--workers", type=int, default=8, help="runs at once")
    parser.add_argument("--seconds", type=float, default=60.0, help="measured, once all runs are under way")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all runs")
    parser.add_argument("--mps", action="store_true", help="with NVIDIA's multi-process service")
    parser.add_argument("--save", type=Path, help="file for the numbers")
    options = parser.parse_args()
    found = measure(options)
    asked = {name: getattr(options, name) for name in ("env", "algo", "preset", "workers", "set", "mps")}
    found = {"machine": machine_line("p3o", "jax", "numpy", "ale-py"), "cores": len(usable_cores()), **asked, **found}
    if options.save:
        options.save.write_text(json.dumps(found, indent=1) + "\n")
    header = [f"{options.algo} on {options.env}", "steps/s together", "each", "processors idle", "stolen", "ms a step"]
    each = f"{min(found['speeds']):,.0f} to {max(found['speeds']):,.0f}"
    shown = [f"{found['idle']:.0%}", f"{found['stolen']:.1%}", f"{found['processor_ms_a_step']:.2f}"]
    print("\n".join(markdown_table(header, [[f"{options.workers} runs", f"{found['together']:,.0f}", each, *shown]])))
    print(found["machine"])


if __name__ == "__main__":
    main()
