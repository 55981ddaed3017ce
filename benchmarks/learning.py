"""The learning claims of docs/learning.md: which runs, their raw episodes in results/learning, and the table of them.

python benchmarks/learning.py jobs OUT              # the commands, one a line
python benchmarks/learning.py pack OUT results/learning   # config.json and episodes.csv.gz of each finished run
python benchmarks/learning.py table results/learning
    python benchmarks/learning.py figures results/learning    # docs/figures/ALGO.svg (needs matplotlib)
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p3o.runs import load_run, window_mean
from results import pack_run

FIGURES = Path(__file__).parent.parent / "docs" / "figures"


class Claim(NamedTuple):
    """A bar that runs have to clear: the mean of the last 100 training episodes, of each seed or over seeds."""

    env: str
    algo: str
    steps: int
    seeds: int
    bar: float
    is_each: bool = False


CLAIMS = (
    Claim("CartPole-v1", "p3o", 100_000, 3, 450, is_each=True),
    Claim("Pendulum-v1", "p3o", 300_000, 3, -250),
    Claim("Acrobot-v1", "p3o", 150_000, 3, -100),
    Claim("HalfCheetah-v5", "p3o", 300_000, 3, 2000, is_each=True),
    Claim("CartPole-v1", "a2c", 200_000, 3, 450, is_each=True),
    Claim("CartPole-v1", "a2cg", 200_000, 3, 450, is_each=True),
    Claim("CartPole-v1", "ppo", 200_000, 3, 450, is_each=True),
    Claim("CartPole-v1", "acer", 200_000, 3, 450, is_each=True),
    Claim("Pendulum-v1", "ppo", 500_000, 3, -300),
    Claim("HalfCheetah-v4", "ppo", 1_000_000, 5, 2500),
    Claim("HalfCheetah-v4", "a2c", 1_000_000, 3, 0),
    Claim("HalfCheetah-v4", "a2cg", 1_000_000, 3, 0),
)


def folder(root: Path, claim: Claim, seed: int) -> Path:
    return root / claim.env / f"{claim.algo}-default" / f"seed-{seed}"


def jobs(out: Path) -> None:
    for claim in CLAIMS:
        for seed in range(claim.seeds):
            where = folder(out, claim, seed)
            print(f"p3o train {claim.env} --algo {claim.algo} --steps {claim.steps} --seed {seed} --out {where}")


def pack(out: Path, results: Path) -> None:
    """Keep what the table needs of the runs that are finished."""
    for source in sorted(out.glob("*/*/seed-*")):
        if not load_run(source).is_finished:
            continue
        target = results / source.relative_to(out)
        pack_run(source, target)


def episodes(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Steps and returns of all episodes."""
    data = np.loadtxt(run / "episodes.csv.gz", delimiter=",", skiprows=1, ndmin=2)
    return data[:, 0], data[:, 2]


def table(results: Path) -> bool:
    print("| environment | algorithm | steps | bar | seeds: mean of the last 100 episodes | mean | |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    all_met = True
    for claim in CLAIMS:
        scores = [float(episodes(folder(results, claim, s))[1][-100:].mean()) for s in range(claim.seeds)]
        mean = float(np.mean(scores))
        is_met = (min(scores) if claim.is_each else mean) >= claim.bar
        all_met &= is_met
        bar = f"{claim.bar:g}, {'each' if claim.is_each else 'mean'}"
        cells = ", ".join(f"{s:.1f}" for s in scores)
        met = "met" if is_met else "**missed**"
        print(f"| {claim.env} | {claim.algo} | {claim.steps:,} | {bar} | {cells} | {mean:.1f} | {met} |")
    return all_met


def figures(results: Path) -> None:
    """A curve for each algorithm's page: mean of the last 100 episodes, one line a seed."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    for algo in dict.fromkeys(claim.algo for claim in CLAIMS):
        claims = [claim for claim in CLAIMS if claim.algo == algo]
        fig, axes = plt.subplots(1, len(claims), figsize=(4.2 * len(claims), 3.2), layout="constrained", squeeze=False)
        for axis, claim in zip(axes.flat, claims, strict=True):
            grid = np.linspace(claim.steps / 100, claim.steps, 100)
            for seed in range(claim.seeds):
                steps, returns = episodes(folder(results, claim, seed))
                axis.plot(grid, window_mean(steps, returns, grid), linewidth=1.2, label=f"seed {seed}")
            axis.set_title(f"{claim.algo.upper()} on {claim.env}")
            axis.set_xlabel("environment steps")
            axis.set_ylabel("mean of the last 100 episodes")
            axis.legend(frameon=False, fontsize=8)
        fig.savefig(FIGURES / f"{algo}.svg", metadata={"Date": None})
        plt.close(fig)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("jobs", "pack", "table", "figures"))
    parser.add_argument("out", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    options = parser.parse_args()
    if options.what == "jobs":
        jobs(options.out)
    elif options.what == "pack":
        pack(options.out, options.results)
    elif options.what == "figures":
        figures(options.out)
    else:
        sys.exit(not table(options.out))


if __name__ == "__main__":
    main()
