"""What the paper says of its tables and figures, as numbers of our runs: holds, does not hold, or cannot be told.

The paper prints no rules for "about" and "faster"; those here are ours and stand beside each number. A count holds
where ours is at least the paper's, a ratio where it is at least 90 % of it. Nothing can be told from runs shorter
than the paper's, from tasks that are missing, or from fewer than five seeds (on Atari three, which is all
that the paper has).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from p3o import statistics
from p3o.experiments import reference
from p3o.experiments.catalog import FIGURE_GAMES, Experiment
from p3o.experiments.evidence import Missing, Runs
from p3o.experiments.reference import MUJOCO_TASKS, paper_tasks
from p3o.experiments.scores import Result
from p3o.statistics import MIN_SEEDS, Array
from p3o.wording import format_number, format_return

BASELINES = {"mujoco": ("a2c", "a2cg", "ppo"), "atari": ("a2c", "acer", "ppo")}
PAIRS = {"a2c": (43, 3), "acer": (33, 13), "ppo": (35, 13)}  # games won and lost by P3O
RATIOS = {"ppo": 2.04, "a2c": 2.23}  # medians over the MuJoCo tasks
ZEROS = {"p3o": 3, "a2c": 4, "acer": 4}  # games at exactly 0
MEDIANS = {"p3o": 1.63, "ppo": 1.25, "acer": 1.18, "a2c": 0.29}  # human-normalised
SHARES = ("won_40pct", "won_80pct", "won_final")
ACTIONS = {"BeamRider": 9, "Qbert": 6}  # of the minimal action sets
ESS, ESS_ROOM = 0.85, 0.05
FLAT = 2.0  # the largest over the smallest of a quantity that is called constant
CORRECTED = 1e-3
RATIO_SHARE = 0.9
TENTHS = 10


class Check(NamedTuple):
    """A claim, the rule by which it holds, and what the runs have."""

    claim: str
    rule: str
    number: str
    verdict: str  # holds, does not hold, cannot tell: and why


Test = Callable[[Runs], tuple[str, bool]]  # the number in words, and whether the claim holds


def check(experiment: Experiment, results: Sequence[Result], scale: float) -> list[Check]:
    """Every claim of an experiment that is about numbers of its runs."""
    runs = Runs(results)
    return [_checked(runs, claim, rule, test, seeds, scale) for claim, rule, test, seeds in _claims(experiment.name)]


def _checked(runs: Runs, claim: str, rule: str, test: Test, seeds: int, scale: float) -> Check:
    runs.used = []
    try:
        number, holds = test(runs)
    except Missing as missing:
        return Check(claim, rule, "–", f"cannot tell: {missing}")
    there = min((r.final.size for r in runs.used), default=0)
    if scale < 1:
        return Check(claim, rule, number, f"cannot tell: {scale:g} of the paper's steps")
    if there < seeds:
        return Check(claim, rule, number, f"cannot tell: {there} of {seeds} seeds that are needed")
    return Check(claim, rule, number, "holds" if holds else "does not hold")


def _claims(name: str) -> Iterator[tuple[str, str, Test, int]]:
    """Claim, rule, test and the seeds that it needs, by experiment."""
    if name in ("mujoco-table", "curves-mujoco", "curves"):
        yield (
            "P3O is the highest on 8 of 8 MuJoCo tasks",
            "8 of 8",
            _highest("mujoco", tuple(MUJOCO_TASKS), 8),
            MIN_SEEDS,
        )
    if name == "mujoco-table":
        yield "of five tasks with Q-Prop and IPG P3O is the best on 4", "at least 4", _quoted, MIN_SEEDS
        yield "A2C without GAE is above A2CG on 8 of 8 tasks", "8 of 8", _a2c_over_a2cg, MIN_SEEDS
        for other, ratio in RATIOS.items():
            claim = f"the median over tasks of P3O's score over {other.upper()}'s is {ratio}"
            yield claim, f"at least {RATIO_SHARE * ratio:.2f}", _ratio(other, ratio), MIN_SEEDS
    if name == "atari-table":
        for other, (won, lost) in PAIRS.items():
            yield f"P3O beats {other.upper()} {won}:{lost}", f"at least {won} won", _pair(other, won), 3
        medians = ", ".join(f"{algo} {value}" for algo, value in MEDIANS.items())
        yield f"median human-normalised scores: {medians}", "in this order", _medians, 3
        zeros = ", ".join(f"{algo} {count}" for algo, count in ZEROS.items())
        yield f"games at exactly 0: {zeros}", "these counts", _zeros, 3
        yield "P3O, A2C and ACER are exactly 0 on Enduro and Freeway, PPO is not", "all of it", _two_zeros, 3
    if name == "atari-wins":
        for at, share in enumerate(SHARES):
            yield _win_claim(share), f"P3O at least {reference.paper_wins()['p3o'][share]}", _wins_at(at, share), 3
    if name in ("curves", "curves-atari"):
        yield "P3O ends highest on 8 of the nine games of Fig 5", "at least 8", _highest("atari", FIGURE_GAMES, 8), 3
        yield "at 40 % of training P3O is the best on 32 of 49 games", "at least 32", _wins_at(0, SHARES[0]), 3
    if name == "acer-on-policy-loss":
        games = ("Assault", "Riverraid", "Breakout", "BeamRider", "Qbert")
        claim = "the share of non-zero weights (1 − c/ρ)₊ is 0 through training"
        yield claim, f"below {CORRECTED:g} at every logged step", _corrected(games), 1
        yield "ACER is the best of the four on Assault, Riverraid and Breakout", "3 of 3", _acer_best, 3
    if name == "effect-of-lambda":
        yield "λ = 0.1 and 0.5 learn faster than λ = 0", "higher at 40 % of training, both games", _faster, 3
        yield "on Qbert λ = 0.1 is above 0.5", "at the end", _above("Qbert", "lambda-0.1", "lambda-0.5"), 3
        yield (
            "on BeamRider λ = 0.5 is at least 0.1",
            "at the end",
            _above("BeamRider", "lambda-0.5", "lambda-0.1", True),
            3,
        )
        yield "1 − ESS is the best on BeamRider", "highest of four at the end", _ess_best, 3
        yield "1 − ESS is a gain on Qbert", "above λ = 0 at the end", _above("Qbert", "", "lambda-0"), 3
    if name == "evolution-of-ess":
        yield "the ESS is about 0.85", f"mean of the last 80 % within {ESS_ROOM} on both games", _ess, 3
        yield "the KL term is roughly constant", f"largest over smallest of ten parts at most {FLAT:g}", _flat_kl, 3
        yield "entropy / |A| with λ = 0 is below P3O's", "on both games, mean of the last 80 %", _entropy, 3
    if name == "gae-and-rollout-length":
        yield "with GAE P3O is above P3O without", "at T = 16, at the end, both games", _gae, 3
        yield (
            "longer rollouts help, up to about 20",
            "T = 20 above 5, and 32 gains less over 20; both games",
            _longer,
            3,
        )


def _tasks(suite: str) -> tuple[str, ...]:
    return tuple(MUJOCO_TASKS) if suite == "mujoco" else paper_tasks("atari")


def _highest(suite: str, tasks: Sequence[str], least: int) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        found = runs.wins(tasks, ("p3o", *BASELINES[suite]))
        return f"{found.won['p3o']} of {len(tasks)}{_tied(found.ties)}", found.won["p3o"] >= least

    return test


def _tied(ties: Sequence[str]) -> str:
    return f"; tied: {', '.join(ties)}" if ties else ""


def _quoted(runs: Runs) -> tuple[str, bool]:
    above, tasks = 0, [t for t in MUJOCO_TASKS if reference.quoted_score(f"{t}-v4", "qprop") is not None]
    for task in tasks:
        quoted = [reference.quoted_score(f"{task}-v4", name) for name in ("qprop", "ipg")]
        others = [x for x in quoted if x is not None] + [runs.mean(task, algo) for algo in ("a2c", "ppo")]
        above += runs.mean(task, "p3o") > max(others)
    return f"{above} of {len(tasks)}", above >= 4


def _a2c_over_a2cg(runs: Runs) -> tuple[str, bool]:
    won = runs.wins(tuple(MUJOCO_TASKS), ("a2c", "a2cg")).won["a2c"]
    return f"{won} of {len(MUJOCO_TASKS)}", won == len(MUJOCO_TASKS)


def _ratio(other: str, paper: float) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        pairs = [(runs.mean(task, "p3o"), runs.mean(task, other)) for task in MUJOCO_TASKS]
        if min(y for _, y in pairs) <= 0:
            raise Missing(f"a score of {other} is not above 0, so it has no ratio")
        ratio = float(np.median([x / y for x, y in pairs]))
        return f"{ratio:.2f}", ratio >= RATIO_SHARE * paper

    return test


def _pair(other: str, least: int) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        found = runs.wins(_tasks("atari"), ("p3o", other))
        return f"{found.won['p3o']}:{found.won[other]}{_tied(found.ties)}", found.won["p3o"] >= least

    return test


def _medians(runs: Runs) -> tuple[str, bool]:
    medians = {}
    for algo in MEDIANS:
        scores = {}
        for task in _tasks("atari"):
            norm = reference.norm(task)
            assert norm is not None
            scores[task] = (runs.scores(task, algo) - norm.low) / (norm.high - norm.low)
        medians[algo] = statistics.median_of_task_means(scores)
    values = list(medians.values())
    said = ", ".join(f"{algo} {value:.2f}" for algo, value in medians.items())
    return said, all(x > y for x, y in itertools.pairwise(values))


def _zero_games(runs: Runs, algo: str) -> list[str]:
    return [task for task in _tasks("atari") if not runs.scores(task, algo).any()]


def _zeros(runs: Runs) -> tuple[str, bool]:
    counts = {algo: len(_zero_games(runs, algo)) for algo in ZEROS}
    return ", ".join(f"{algo} {count}" for algo, count in counts.items()), counts == ZEROS


def _two_zeros(runs: Runs) -> tuple[str, bool]:
    games = ("Enduro", "Freeway")
    at_zero = {a: [g for g in games if not runs.scores(g, a).any()] for a in ("p3o", "a2c", "acer", "ppo")}
    said = ", ".join(f"{algo} {' and '.join(found) or 'neither'}" for algo, found in at_zero.items())
    return f"at 0: {said}", all(len(found) == (0 if algo == "ppo" else 2) for algo, found in at_zero.items())


def _win_claim(share: str) -> str:
    printed = reference.paper_wins()
    part = {"won_40pct": "40 %", "won_80pct": "80 %", "won_final": "100 %"}[share]
    return f"games won at {part}: " + ", ".join(f"{algo} {counts[share]}" for algo, counts in printed.items())


def _wins_at(at: int, share: str) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        printed = reference.paper_wins()
        found = runs.wins(_tasks("atari"), tuple(printed), at)
        said = ", ".join(f"{algo} {found.won[algo]}" for algo in printed)
        return f"{said}{_tied(found.ties)}", found.won["p3o"] >= printed["p3o"][share]

    return test


def _corrected(games: Sequence[str]) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        logs = [log for game in games for log in runs.logged(game, "acer", "", "bias_correction_fraction")]
        most = max(float(values.max()) for _, values in logs)
        return f"at most {format_number(most)}", most < CORRECTED

    return test


def _acer_best(runs: Runs) -> tuple[str, bool]:
    won = runs.wins(("Assault", "Riverraid", "Breakout"), ("acer", "p3o", "a2c", "ppo")).won["acer"]
    return f"{won} of 3", won == 3


def _faster(runs: Runs) -> tuple[str, bool]:
    pairs = [(game, weight) for game in ("BeamRider", "Qbert") for weight in ("0.1", "0.5")]
    ours = {pair: runs.mean(pair[0], "p3o", f"lambda-{pair[1]}", at=0) for pair in pairs}
    faster = sum(value > runs.mean(game, "p3o", "lambda-0", at=0) for (game, _), value in ours.items())
    return f"{faster} of {len(pairs)}", faster == len(pairs)


def _above(game: str, first: str, second: str, or_equal: bool = False) -> Test:
    def test(runs: Runs) -> tuple[str, bool]:
        x, y = (runs.mean(game, "p3o", variant) for variant in (first, second))
        return f"{format_return(x)} and {format_return(y)}", x > y or (or_equal and x == y)

    return test


def _ess_best(runs: Runs) -> tuple[str, bool]:
    means = {v: runs.mean("BeamRider", "p3o", v) for v in ("", "lambda-0", "lambda-0.1", "lambda-0.5")}
    said = ", ".join(f"{variant or '1 − ESS'} {format_return(value)}" for variant, value in means.items())
    return said, statistics.wins({"BeamRider": means}).won[""] == 1


def _ess(runs: Runs) -> tuple[str, bool]:
    found = {game: runs.late(game, "p3o", "", "ess") for game in ACTIONS}
    said = ", ".join(f"{game} {value:.3f}" for game, value in found.items())
    return said, all(abs(value - ESS) <= ESS_ROOM + 1e-12 for value in found.values())


def _flat_kl(runs: Runs) -> tuple[str, bool]:
    """The last 80 % in ten parts, each the mean over seeds: single lines are too noisy for a largest and a smallest."""
    found = {}
    for game in ACTIONS:
        parts = np.array([_tenths(*log) for log in runs.logged(game, "p3o", "", "kl")])
        mean = parts.mean(0)
        if not np.isfinite(mean).all():
            raise Missing(f"kl of p3o on {game} has too few lines")
        found[game] = float(mean.max() / mean.min()) if mean.min() > 0 else math.inf
    said = ", ".join(f"{game} {value:.2f}" for game, value in found.items())
    return said, all(value <= FLAT for value in found.values())


def _tenths(steps: Array, values: Array) -> Array:
    """The means of ten equal parts of the last 80 % of the lines; NaN for a part without one."""
    kept = values[steps >= 0.2 * steps[-1]]
    return np.array([part.mean() if part.size else math.nan for part in np.array_split(kept, TENTHS)])


def _entropy(runs: Runs) -> tuple[str, bool]:
    pairs = {g: [runs.late(g, "p3o", v, "entropy") / n for v in ("lambda-0", "")] for g, n in ACTIONS.items()}
    said = ", ".join(f"{game} {x:.3f} and {y:.3f}" for game, (x, y) in pairs.items())
    return said, all(x < y for x, y in pairs.values())


def _rollout(length: int, use_gae: bool) -> str:
    parts = [] if use_gae else ["no-gae"]
    return "-".join(parts + ([] if length == 16 else [f"steps-{length}"]))


def _gae(runs: Runs) -> tuple[str, bool]:
    games, lengths = ("MsPacman", "Gravitar"), (5, 16, 20, 32)
    above = {
        (game, length): runs.mean(game, "p3o", _rollout(length, True)) > runs.mean(game, "p3o", _rollout(length, False))
        for game in games
        for length in lengths
    }
    at_16 = sum(above[game, 16] for game in games)
    return f"{at_16} of 2 games; over all T {sum(above.values())} of {len(above)}", at_16 == 2


def _longer(runs: Runs) -> tuple[str, bool]:
    said, holds = [], True
    for game in ("MsPacman", "Gravitar"):
        short, middle, long = (runs.mean(game, "p3o", _rollout(length, True)) for length in (5, 20, 32))
        said.append(f"{game} {format_return(short)}, {format_return(middle)}, {format_return(long)}")
        holds &= middle > short and long - middle < middle - short
    return f"{'; '.join(said)} at T = 5, 20, 32", holds
