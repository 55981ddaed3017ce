"""The paper's tables against published scores of others: what it claims and what comes out. No training."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p3o import statistics
from p3o.experiments.reference import paper_column, paper_wins, published, quoted_score
from p3o.wording import format_return

OPPONENTS = {  # columns of published_atari_wide.csv
    "ddqn": "DDQN, no-op starts, 200M frames (van Hasselt et al. 2016)",
    "ddqn_hs": "DDQN, human starts",
    "ddqn_tuned_noop": "DDQN tuned, no-op starts",
    "ddqn_tuned_hs": "DDQN tuned, human starts",
    "c51": "C51, no-op starts, 200M frames (Bellemare et al. 2017)",
    "sil": "SIL, 200M frames (Oh et al. 2018)",
    "dqn_nature": "DQN (Mnih et al. 2015)",
    "rainbow": "Rainbow, no-op starts, 200M frames (Hessel et al. 2018)",
    "dopamine_dqn_112M": "Dopamine DQN, training return at 112M frames, sticky actions",
    "dopamine_c51_112M": "Dopamine C51, training return at 112M frames, sticky actions",
    "dopamine_rainbow_112M": "Dopamine Rainbow, training return at 112M frames, sticky actions",
    "human": "human play",
    "random": "random play",
}
CLAIMED = {"ddqn": (32, 17), "c51": (18, 30), "sil": (26, 22)}  # the paper's text, wins : losses
BASELINES = ("a2c", "acer", "ppo")
MUJOCO = {  # columns of published_mujoco_wide.csv
    "baselines_ppo2_1M": "PPO, Baselines, 1M",
    "baselines_ppo2_1M_openrlbenchmark": "PPO, Baselines again, 1M",
    "tianshou_a2c_3M": "A2C, Tianshou, 3M",
    "tianshou_ppo_3M": "PPO, Tianshou, 3M",
    "tianshou_trpo_3M": "TRPO, Tianshou, 3M",
}


class Tally(NamedTuple):
    """Games won, lost and tied by the first of two columns."""

    wins: int
    losses: int
    ties: tuple[str, ...]
    missing: tuple[str, ...]  # games that only the first column has

    @property
    def text(self) -> str:
        return f"{self.wins}:{self.losses}"


def tally(ours: Mapping[str, float], theirs: Mapping[str, float]) -> Tally:
    """Compare two columns game by game; a game that one of them lacks does not count."""
    games = [game for game in ours if game in theirs]
    return Tally(
        sum(ours[game] > theirs[game] for game in games),
        sum(ours[game] < theirs[game] for game in games),
        tuple(game for game in games if ours[game] == theirs[game]),
        tuple(game for game in ours if game not in theirs),
    )


class Summary(NamedTuple):
    """Human-normalised scores of one column over its games."""

    median: float
    iqm: float
    mean: float
    optimality_gap: float
    zeros: tuple[str, ...]  # games with a score of exactly 0


def summary(column: Mapping[str, float]) -> Summary:
    scores = statistics.normalise({game: [x] for game, x in column.items()}, published("random"), published("human"))
    return Summary(
        statistics.median_of_task_means(scores),
        statistics.iqm(scores),
        statistics.mean_of_task_means(scores),
        statistics.optimality_gap(scores),
        tuple(game for game, x in column.items() if x == 0),
    )


def close_games(columns: Mapping[str, Mapping[str, float]], share: float) -> int:
    """On how many games the second best is less than `share` of the best away from it."""
    count = 0
    for game in next(iter(columns.values())):
        second, best = np.sort([column[game] for column in columns.values()])[-2:]
        count += bool(best - second < share * abs(best))
    return count


def write(out: Path) -> list[Path]:
    """comparison.csv and summary.md in `out`."""
    columns = {algo: paper_column("atari", algo) for algo in ("p3o", *BASELINES)}
    tallies = {name: tally(columns["p3o"], published(name)) for name in OPPONENTS}
    tallies |= {f"paper_{algo}": tally(columns["p3o"], columns[algo]) for algo in BASELINES}
    rows: list[Sequence[object]] = [("opponent", "wins", "losses", "ties", "claimed", "tied_games", "games_missing")]
    for name, found in tallies.items():
        claimed = ":".join(map(str, CLAIMED[name])) if name in CLAIMED else ""
        games = (" ".join(found.ties), " ".join(found.missing))
        rows.append((name, found.wins, found.losses, len(found.ties), claimed, *games))
    with open(out / "comparison.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    lines = [*_markdown(columns, tallies), "", *_mujoco_markdown()]
    (out / "summary.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [out / "comparison.csv", out / "summary.md"]


def _markdown(columns: Mapping[str, Mapping[str, float]], tallies: Mapping[str, Tally]) -> Iterator[str]:
    yield "# The paper's P3O on Atari against published scores"
    yield ""
    yield "Games won : lost by the P3O column of the paper's 49-game table (28M steps = 112M frames)."
    yield ""
    yield "| against | won : lost | tied | the paper says | |"
    yield "| --- | --- | --- | --- | --- |"
    for name, found in tallies.items():
        what = OPPONENTS.get(name, f"{name.removeprefix('paper_').upper()} in the paper's own table")
        claimed = ":".join(map(str, CLAIMED[name])) if name in CLAIMED else ""
        agrees = "" if not claimed else "agrees" if claimed == found.text else "**does not agree**"
        if found.missing:
            agrees = f"{agrees} ({', '.join(found.missing)} not published)".strip()
        yield f"| {what} | {found.text} | {', '.join(found.ties) or '–'} | {claimed} | {agrees} |"
    yield ""
    yield "Human-normalised scores of the paper's own table, 49 games:"
    yield ""
    yield "| algorithm | median | IQM | mean | optimality gap | games at exactly 0 |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for algo, column in columns.items():
        found_summary = summary(column)
        numbers = " | ".join(f"{x:.2f}" for x in found_summary[:4])
        yield f"| {algo} | {numbers} | {', '.join(found_summary.zeros) or '–'} |"
    yield ""
    games = columns["p3o"]
    won = statistics.wins({game: {algo: column[game] for algo, column in columns.items()} for game in games})
    printed = {algo: row["won_final"] for algo, row in paper_wins().items()}
    yield (
        f"Games won, recounted: {_counts(won.won)}; tied: {', '.join(won.ties) or 'none'}. Printed: {_counts(printed)}."
    )
    yield (
        f"The two best of the four are less than 5 % apart on {close_games(columns, 0.05)} games and less than "
        f"10 % on {close_games(columns, 0.10)}."
    )


def _mujoco_markdown() -> Iterator[str]:
    """The paper's MuJoCo table beside other people's runs of the same baselines."""
    paper = {algo: paper_column("mujoco", algo) for algo in ("a2c", "a2cg", "ppo", "p3o")}
    others = {name: published(name, "mujoco") for name in MUJOCO}
    yield "# The paper's MuJoCo table"
    yield ""
    yield "Its numbers at 3M steps (training returns), and what others published (Tianshou's are test episodes):"
    yield ""
    yield f"| task | A2C | A2CG | PPO | P3O | {' | '.join(MUJOCO.values())} |"
    yield f"| --- |{' --- |' * (len(paper) + len(others))}"
    for task in paper["p3o"]:
        numbers = [column.get(task) for column in (*paper.values(), *others.values())]
        yield f"| {task} | {' | '.join('–' if x is None else format_return(x) for x in numbers)} |"
    yield ""
    for algo in ("ppo", "a2c"):
        ratio = np.median([paper["p3o"][task] / x for task, x in paper[algo].items()])
        yield f"- median over the 8 tasks of P3O's number over {algo.upper()}'s: {ratio:.2f}"
    yield f"- A2C without GAE against A2CG, tasks won : lost: {tally(paper['a2c'], paper['a2cg']).text}"
    for name, other in (("qprop", "Q-Prop"), ("ipg", "IPG")):
        quoted = {task: x for task in paper["p3o"] if (x := quoted_score(task, name)) is not None}
        yield f"- P3O against the quoted {other}: {tally(paper['p3o'], quoted).text}"
    for name, what in MUJOCO.items():
        yield f"- P3O against {what}: {tally(paper['p3o'], others[name]).text}"
        algo = name.split("_")[1].removesuffix("2")
        if algo in paper:
            yield f"- the paper's own {algo.upper()} against {what}: {tally(paper[algo], others[name]).text}"


def _counts(won: Mapping[str, int]) -> str:
    return ", ".join(f"{algo} {count}" for algo, count in won.items())
