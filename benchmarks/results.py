"""Published runs: kept small, and one row of summary.csv for each run and checkpoint.

python benchmarks/results.py pack RUNS results/mujoco      # config.json and episodes.csv.gz of each run under RUNS
python benchmarks/results.py pack RUNS results/atari --updates           # and its updates.csv.gz: ESS, KL, entropy
python benchmarks/results.py summary results/mujoco --at 1e6 2e6 3e6     # results/mujoco/summary.csv
python benchmarks/results.py inside RUNS results/mujoco --at 3e5 1e6   # inside.csv: ESS, KL, gradients around each step
python benchmarks/results.py table results/mujoco          # P3O and PPO `default` beside the paper, from summary.csv
python benchmarks/results.py games results/atari           # every group at every checkpoint beside the paper
python benchmarks/results.py ends results/atari --columns p3o acer ppo:lr-baselines a2c     # the furthest run of each
python benchmarks/results.py ess results/atari             # P3O's ESS over the tenths of the learning rate's schedule
python benchmarks/results.py groups results/mujoco --preset paper --envs HalfCheetah-v4 Hopper-v4 --at 3e6   # at one
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
from common import markdown_table

from p3o.experiments.compare import compare
from p3o.experiments.reference import paper_score
from p3o.folder import run_folder
from p3o.jobs import Job
from p3o.runs import Run, load_run, window_mean
from p3o.statistics import MIN_SEEDS

OURS, PEER = "p3o", "ppo"  # both with the preset `default`
CHECKPOINTS = ("1000000", "3000000")
LONG = 40_000  # episodes
BEST_PUBLISHED = {  # of PPO, TRPO, A2C and ACKTR at 3M steps, test returns on -v3, by Tianshou's benchmark
    "HalfCheetah": 7263,
    "Walker2d": 4637,
    "Hopper": 2675,
    "Swimmer": 112,
    "InvertedDoublePendulum": 9081,
    "InvertedPendulum": 980,
    "Ant": 5064,
    "Humanoid": 5138,
}
COLUMNS = ("env", "algo", "preset", "variant", "seed", "steps", "score")
INSIDE = ("ess", "kl", "entropy", "value_loss", "grad_norm", "ratio_max")
AROUND = 50_000  # steps before and after, over which what goes on inside is averaged


def pack_run(source: Path, target: Path, updates: bool = False) -> None:
    """A run's settings and episodes, and its updates if asked for, without what names the machine's folders."""
    target.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    config["command"] = " ".join(re.sub(r"--out \S+", "", str(config.get("command"))).split())
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for table in ("episodes.csv", "updates.csv") if updates else ("episodes.csv",):
        (target / f"{table}.gz").write_bytes(gzip.compress(_shortened((source / table).read_bytes()), mtime=0))


def _shortened(table: bytes) -> bytes:
    """A very long list of episodes (a policy that falls at once): six digits of each return, whole seconds."""
    header, *lines = table.decode().splitlines()
    if len(lines) <= LONG or header != "step,env,return,length,seconds":
        return table
    cells = (line.split(",") for line in lines)
    short = (f"{step},{env},{float(total):.6g},{length},{float(at):.0f}" for step, env, total, length, at in cells)
    return "\n".join((header, *short, "")).encode()


def pack(out: Path, results: Path, updates: bool = False) -> int:
    """All runs under `out`, also those that were stopped on the way: none is dropped."""
    sources = sorted(path.parent for path in out.rglob("config.json") if (path.parent / "episodes.csv").exists())
    packed: set[Path] = set()
    for source in sources:
        config = json.loads((source / "config.json").read_text())
        job = Job(config["env"]["id"], *(config[key] for key in ("algo", "steps", "seed", "preset", "variant")))
        target = run_folder(results, job)
        if target in packed:
            raise SystemExit(f"{source}: there is another run of {target}")
        packed.add(target)
        kept = target / "config.json"
        if kept.exists() and json.loads(kept.read_text())["run_id"] != config["run_id"]:
            raise SystemExit(f"{source}: {target} holds another run, and none is to be dropped")
        pack_run(source, target, updates)
    return len(sources)


def rows(runs: Iterable[Run], at: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Score of each run at each checkpoint it has reached: the mean of the last 100 episodes that ended by then."""
    for run in runs:
        config = run.config
        for step in at:
            if step > config["steps"] or not (run.is_finished or run.last_step >= step):
                continue
            score = float(window_mean(run.episodes["step"], run.episodes["return_"], np.array(step)))
            if not np.isfinite(score):  # no episode has ended by then
                continue
            yield (*_name(config), step, round(score, 2))


def _name(config: dict[str, Any]) -> tuple[Any, ...]:
    return (config["env"]["id"], config["algo"], config["preset"], config["variant"], config["seed"])


def summarize(results: Path, at: Iterable[int]) -> int:
    lines = sorted(rows((load_run(file.parent) for file in results.rglob("config.json")), at))
    return _write(results / "summary.csv", COLUMNS, lines)


def inside(out: Path, results: Path, at: Iterable[int]) -> int:
    """What updates.csv of each run under `out` says around each step, for those that keep no updates in `results`."""
    lines = []
    for file in out.rglob("updates.csv"):
        run = load_run(file.parent)
        for step in at:
            near = np.abs(run.updates["step"] - step) <= AROUND
            if near.any():
                lines.append((*_name(run.config), step, *(_around(run.updates.get(key), near) for key in INSIDE)))
    return _write(results / "inside.csv", (*COLUMNS[:-1], *INSIDE), sorted(lines))


def _around(column: np.ndarray | None, near: np.ndarray) -> str:
    values = np.empty(0) if column is None else column[near & ~np.isnan(column)]
    return f"{values.mean():.4g}" if values.size else ""


def _write(path: Path, columns: Iterable[str], lines: list[tuple[Any, ...]]) -> int:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(lines)
    return len(lines)


def table(results: Path, variant: str = "") -> list[str]:
    """P3O's own setting on the paper's tasks at 1M and 3M steps beside PPO's: means over seeds, and what it passes."""
    found: dict[tuple[str, str, str], list[float]] = {}
    with (results / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if (row["preset"], row["variant"]) == ("default", variant):
                found.setdefault((row["env"], row["algo"], row["steps"]), []).append(float(row["score"]))
    lines = []
    for task, best in BEST_PUBLISHED.items():
        env, paper = f"{task}-v4", paper_score(f"{task}-v4", "p3o")
        assert paper is not None
        early, late = (found.get((env, OURS, at), []) for at in CHECKPOINTS)
        peer = found.get((env, PEER, CHECKPOINTS[-1]), [])
        place = verdict = "–"
        if late:
            mean = np.mean(late)
            place = "above both" if mean > max(paper, best) else "above the paper" if mean > paper else "below"
            place += "" if len(late) >= MIN_SEEDS else f", {len(late)} of {MIN_SEEDS} seeds"
            (beside,) = compare(env, {OURS: late})
            verdict = beside.verdict.name if beside.verdict else "–"
        lines.append([env, f"{paper:,.0f}", f"{best:,}", _mean(peer), _mean(early), _mean(late), place, verdict])
    header = [
        "task",
        "the paper's P3O, 3M",
        "best published, 3M",
        "our PPO, 3M (seeds)",
        "our P3O, 1M (seeds)",
        "our P3O, 3M (seeds)",
        "its mean is",
        "verdict",
    ]
    return markdown_table(header, lines)


def _scores(results: Path) -> dict[tuple[str, ...], dict[int, list[float]]]:
    """Scores of the seeds at each checkpoint, by environment, algorithm, preset and variant."""
    found: dict[tuple[str, ...], dict[int, list[float]]] = {}
    with (results / "summary.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            group = found.setdefault(tuple(row[name] for name in ("env", "algo", "preset", "variant")), {})
            group.setdefault(int(row["steps"]), []).append(float(row["score"]))
    return found


def groups(results: Path, preset: str, envs: list[str], at: int) -> list[str]:
    """Every algorithm and variant of a preset on some environments at one checkpoint, `paper` beside the paper."""
    found = _scores(results)
    envs = envs or sorted({env for env, _, found_preset, _ in found if found_preset == preset})
    names = {(algo, variant) for env, algo, found_preset, variant in found if found_preset == preset and env in envs}
    lines = []
    for algo, variant in sorted(names, key=lambda name: (name[0] != OURS, name[0], name[1])):
        cells = []
        for env in envs:
            paper = paper_score(env.replace("p3o/", ""), algo) if preset == "paper" else None
            beside = "" if paper is None else f" · {paper:,.0f}"
            cells.append(_mean(found.get((env, algo, preset, variant), {}).get(at, [])) + beside)
        lines.append([f"{algo}{', ' + variant if variant else ''}", *cells])
    return markdown_table([f"at {at / 1e6:g}M steps", *envs], lines)


def games(results: Path) -> list[str]:
    """Every group of runs at every checkpoint, beside the paper's number for its game at 28M steps."""
    found, ends = _scores(results), _ends(results)
    at = sorted({step for group in found.values() for step in group})
    lines = []
    for (env, algo, preset, variant), scores in sorted(
        found.items(), key=lambda item: (item[0][0], item[0][1] != OURS)
    ):
        paper = paper_score(env, algo)
        name = f"{algo}, {preset}" + (f", {variant}" if variant else "")
        end = ends.get((env, algo, preset, variant))
        seeds = max([len(values) for values in scores.values()] + ([] if end is None else [end[2]]))
        means = [_of_seeds(scores.get(step, []), seeds) for step in at]
        last = "–" if end is None else f"{end[1]:,.1f} at {end[0] / 1e6:.2f}M"
        lines.append([env, name, str(seeds), "–" if paper is None else f"{paper:,.1f}", *means, last])
    steps = [f"{step / 1e6:g}M" for step in at]
    return markdown_table(["game", "run", "seeds", "the paper, 28M", *steps, "end of the longest"], lines)


def _ends(results: Path) -> dict[tuple[str, ...], tuple[int, float, int]]:
    """Of each group the furthest run: its last step and the mean of its last 100 episodes; and how many there are."""
    furthest: dict[tuple[str, ...], tuple[int, float, int]] = {}
    for file in sorted(results.rglob("config.json")):  # of two that came equally far the first seed, not the better
        run = load_run(file.parent)
        *group, _ = _name(run.config)
        mean = float(window_mean(run.episodes["step"], run.episodes["return_"], np.array(run.last_step)))
        step, best, number = furthest.get(tuple(group), (-1, 0.0, 0))
        step, best = (int(run.last_step), mean) if run.last_step > step else (step, best)
        furthest[tuple(group)] = (step, best, number + 1)
    return furthest


def ends(results: Path, preset: str, columns: list[str]) -> list[str]:
    """Each game in a row: how far the longest run of each algorithm came and what it had there, beside the paper."""
    found = {key: end for key, end in _ends(results).items() if key[2] == preset}
    names = [tuple(column.partition(":")[::2]) for column in columns] or sorted({(key[1], key[3]) for key in found})
    lines = []
    for env in sorted({key[0] for key in found}):
        cells = []
        for algo, variant in names:
            end, paper = found.get((env, algo, preset, variant)), paper_score(env, algo)
            ours = "–" if end is None else f"{_short(end[1])} at {end[0] / 1e6:.2f}M"
            cells.append(ours + ("" if paper is None else f" · {_short(paper)}"))
        lines.append([env, *cells])
    return markdown_table(["game", *(f"{algo}{', ' + variant if variant else ''}" for algo, variant in names)], lines)


def ess(results: Path) -> list[str]:
    """P3O's mean ESS in each tenth of a run's schedule, of the run of each game and variant that came furthest."""
    furthest: dict[str, Run] = {}
    for file in sorted(results.rglob("config.json")):
        run = load_run(file.parent)
        env, algo, preset, variant, _ = _name(run.config)
        name = env + (f", {variant}" if variant else "")
        if algo == OURS and preset == "paper" and run.last_step > (furthest[name].last_step if name in furthest else 0):
            furthest[name] = run
    lines = []
    for name, run in sorted(furthest.items()):
        schedule = run.config["settings"].get("schedule_steps") or run.config["steps"]
        steps = run.updates["step"]
        middles = steps - np.diff(steps, prepend=0) / 2  # of the interval that a line is about
        tenths = np.ceil(10 * middles / schedule)
        is_known = ~np.isnan(run.updates["ess"])  # none before the first replayed update
        means = [run.updates["ess"][is_known & (tenths == tenth)] for tenth in range(1, 11)]
        everything = run.updates["ess"][is_known].mean()
        lines.append([name, *(f"{values.mean():.2f}" if values.size else "–" for values in means), f"{everything:.2f}"])
    return markdown_table(["P3O, `paper`", *(f"{tenth * 10} %" for tenth in range(1, 11)), "all"], lines)


def _of_seeds(scores: list[float], seeds: int) -> str:
    """The mean; with how many of the seeds got there, where not all did."""
    if not scores:
        return "–"
    return f"{np.mean(scores):,.1f}" + (f" ({len(scores)} of {seeds})" if len(scores) < seeds else "")


def _short(score: float) -> str:
    return f"{score:,.0f}" if abs(score) >= 100 else f"{score:.1f}"


def _mean(scores: list[float]) -> str:
    """Mean and number of seeds, in their range where there are several."""
    if not scores:
        return "–"
    spread = f", {min(scores):,.0f} to {max(scores):,.0f}" if len(scores) > 1 else ""
    return f"{np.mean(scores):,.0f} ({len(scores)}{spread})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pack", "summary", "inside", "table", "games", "ends", "ess", "groups"))
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--updates", action="store_true", help="pack the updates too: for few runs, they are large")
    parser.add_argument("--at", type=float, nargs="+", default=[1e6, 2e6, 3e6], help="steps at which runs are scored")
    parser.add_argument("--variant", default="", help="of the runs in the table")
    parser.add_argument("--preset", default="paper", help="of the groups and the ends")
    parser.add_argument("--columns", nargs="+", default=[], help="of the ends: ALGO or ALGO:VARIANT; all unless given")
    parser.add_argument("--envs", nargs="+", default=[], help="of the groups; all that the preset has unless given")
    options = parser.parse_args()
    if options.what == "pack":
        print(f"{pack(*options.folders, options.updates)} runs packed into {options.folders[1]}")
    elif options.what == "inside":
        rows_written = inside(*options.folders, [int(step) for step in options.at])
        print(f"{rows_written} rows in {options.folders[1] / 'inside.csv'}")
    elif options.what == "table":
        print("\n".join(table(options.folders[0], options.variant)))
    elif options.what == "games":
        print("\n".join(games(options.folders[0])))
    elif options.what == "ends":
        print("\n".join(ends(options.folders[0], options.preset, options.columns)))
    elif options.what == "ess":
        print("\n".join(ess(options.folders[0])))
    elif options.what == "groups":
        print("\n".join(groups(options.folders[0], options.preset, options.envs, int(options.at[-1]))))
    else:
        at = [int(step) for step in options.at]
        print(f"{summarize(options.folders[0], at)} rows in {options.folders[0] / 'summary.csv'}")


if __name__ == "__main__":
    main()
