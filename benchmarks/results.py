"""Published runs: kept small, and one row of summary.csv for each run and checkpoint.

python benchmarks/results.py pack RUNS results/mujoco      # config.json and episodes.csv.gz of each run under RUNS
python benchmarks/results.py summary results/mujoco --at 1e6 2e6 3e6     # results/mujoco/summary.csv
"""

import argparse
import csv
import gzip
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from p3o.folder import run_folder
from p3o.jobs import Job
from p3o.runs import Run, load_run, window_mean

COLUMNS = ("env", "algo", "preset", "variant", "seed", "steps", "score")


def pack_run(source: Path, target: Path) -> None:
    """A run's settings and episodes without what names the machine's folders."""
    target.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    config["command"] = " ".join(re.sub(r"--out \S+", "", str(config.get("command"))).split())
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    data = (source / "episodes.csv").read_bytes()
    (target / "episodes.csv.gz").write_bytes(gzip.compress(data, mtime=0))


def pack(out: Path, results: Path) -> int:
    """All runs under `out`, also those that were stopped on the way: none is dropped."""
    sources = sorted(path.parent for path in out.rglob("config.json") if (path.parent / "episodes.csv").exists())
    for source in sources:
        config = json.loads((source / "config.json").read_text())
        job = Job(config["env"]["id"], *(config[key] for key in ("algo", "steps", "seed", "preset", "variant")))
        pack_run(source, run_folder(results, job))
    return len(sources)


def rows(runs: Iterable[Run], at: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Score of each run at each checkpoint it has reached: the mean of the last 100 episodes that ended by then."""
    for run in runs:
        config = run.config
        for step in at:
            if step > config["steps"] or not (run.is_finished or run.last_step >= step):
                continue
            score = float(window_mean(run.episodes["step"], run.episodes["return_"], np.array(step)))
            name = (config["env"]["id"], config["algo"], config["preset"], config["variant"], config["seed"])
            yield (*name, step, round(score, 2))


def summarize(results: Path, at: Iterable[int]) -> int:
    lines = sorted(rows((load_run(file.parent) for file in results.rglob("config.json")), at))
    with (results / "summary.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(lines)
    return len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "summary"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--at", type=float, nargs="+", default=[1e6, 2e6, 3e6], help="steps at which runs are scored")
    options = parser.parse_args()
    if options.what == "pack":
        print(f"{pack(*options.folders)} runs packed into {options.folders[1]}")
    else:
        at = [int(step) for step in options.at]
        print(f"{summarize(options.folders[0], at)} rows in {options.folders[0] / 'summary.csv'}")


if __name__ == "__main__":
    main()
