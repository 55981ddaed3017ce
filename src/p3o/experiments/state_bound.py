"""The paper's lemma on the gap of discounted state distributions, checked on random tabular MDPs.

The lemma: ‖d_π − d_β‖₁ ≤ 2γ/(1−γ)² · sqrt(max_s KL(β(·|s) ‖ π(·|s))), where d_π(s) = Σ_t γ^t P(s_t = s) is not
normalised (it sums to 1/(1−γ)) and both policies start from the same distribution. Everything is solved exactly:
d_π = (I − γ P_πᵀ)⁻¹ d⁰. Beside the lemma itself:

- the step that it follows from, ‖p_t^π − p_t^β‖₁ ≤ 2t · sqrt(max_s KL(β‖π)) for the distribution at time t;
- a sharper constant: Pinsker's inequality gives √2 where the lemma has 2;
- the mean over the states that β visits in the place of the maximum, which is what P3O penalises, in both directions;
- the paper's remark that the KL term "can be rewritten as E_β[log ρ]": it is minus that.
"""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p3o.statistics import Array

GAMMAS = (0.5, 0.9, 0.95, 0.99, 0.999)
NUM_STATES = (2, 3, 5, 10, 20, 50)
NUM_ACTIONS = (2, 4, 18)
NUM_DRAWS = 700  # a size and discount; 5 x 6 x 3 of them
NUM_TIMES = 20  # times t of the intermediate bound
ROUNDING = 1e-9  # relative slack for arithmetic in double precision
FLOOR = 1e-6  # least probability, up to normalisation: below it a KL would be lost in rounding


class MDP(NamedTuple):
    """A batch of tabular problems with two policies each."""

    transition: Array  # [N, S, A, S]
    start: Array  # [N, S]
    target: Array  # π, [N, S, A]
    behaviour: Array  # β, [N, S, A]


class Gap(NamedTuple):
    """What the lemma says and what is the case, one entry a problem."""

    actual: Array  # ‖d_π − d_β‖₁
    bound: Array  # the lemma's right-hand side
    sharp: Array  # with √2 for 2
    mean_behaviour: Array  # the lemma with E_{s∼d_β} KL(β‖π) for the maximum
    mean_target: Array  # and with E_{s∼d_β} KL(π‖β), which P3O's penalty estimates
    log_ratio: Array  # E_β[log ρ] + E KL(β‖π), zero if they are each other's negative
    worst_time: Array  # the largest ‖p_t^π − p_t^β‖₁ / (2t sqrt(max KL)) over t


class Row(NamedTuple):
    """The draws of one discount (or of all)."""

    gamma: str
    draws: int
    violations: int
    violations_in_time: int
    violations_sharp: int
    violations_mean: int
    share_vacuous: float  # the bound is above 2/(1−γ), which no two distributions can exceed
    ratio_least: float  # bound / actual
    ratio_5: float  # percentiles
    ratio_median: float
    ratio_95: float


def draw(rng: np.random.Generator, num: int, num_states: int, num_actions: int) -> MDP:
    """Random problems, from nearly deterministic to nearly uniform, and policies from nearly equal to far apart."""

    def dirichlet(*shape: int) -> Array:
        concentration = 10 ** rng.uniform(-1.5, 1, (num, *[1] * len(shape[1:])))
        weights = rng.gamma(np.broadcast_to(concentration, shape)) + 1e-300  # never 0 / 0
        weights = weights / weights.sum(-1, keepdims=True) + FLOOR
        return weights / weights.sum(-1, keepdims=True)

    behaviour = dirichlet(num, num_states, num_actions)
    distance = 10 ** rng.uniform(-3, 1, (num, 1, 1))
    target = behaviour * np.exp(distance * rng.normal(size=behaviour.shape))
    return MDP(
        dirichlet(num, num_states, num_actions, num_states),
        dirichlet(num, num_states),
        target / target.sum(-1, keepdims=True),
        behaviour,
    )


def policy_transition(transition: Array, policy: Array) -> Array:
    """P(s' | s) under a policy: [N, S, A, S], [N, S, A] -> [N, S, S]."""
    return np.einsum("nsat,nsa->nst", transition, policy)


def discounted_distribution(transition: Array, start: Array, gamma: float) -> Array:
    """d(s) = Σ_t γ^t P(s_t = s), by a linear solve: [N, S, S], [N, S] -> [N, S]."""
    system = np.eye(start.shape[-1]) - gamma * np.swapaxes(transition, -1, -2)
    return np.linalg.solve(system, start[..., None])[..., 0]


def kl(p: Array, q: Array) -> Array:
    """KL(p‖q) over the last axis."""
    return np.sum(p * np.log(p / q), axis=-1)


def gap(mdp: MDP, gamma: float, num_times: int = NUM_TIMES) -> Gap:
    """Both sides of every inequality."""
    p_target = policy_transition(mdp.transition, mdp.target)
    p_behaviour = policy_transition(mdp.transition, mdp.behaviour)
    d_target = discounted_distribution(p_target, mdp.start, gamma)
    d_behaviour = discounted_distribution(p_behaviour, mdp.start, gamma)
    divergence = kl(mdp.behaviour, mdp.target)  # [N, S]
    largest = np.sqrt(divergence.max(-1))
    factor = 2 * gamma / (1 - gamma) ** 2
    weight = (1 - gamma) * d_behaviour  # sums to 1
    log_ratio = np.sum(mdp.behaviour * np.log(mdp.target / mdp.behaviour), axis=-1)
    worst, now_target, now_behaviour = np.zeros(largest.size), mdp.start, mdp.start
    for time in range(1, num_times + 1):
        now_target = np.einsum("ns,nst->nt", now_target, p_target)
        now_behaviour = np.einsum("ns,nst->nt", now_behaviour, p_behaviour)
        worst = np.maximum(worst, np.abs(now_target - now_behaviour).sum(-1) / (2 * time * largest))
    return Gap(
        actual=np.abs(d_target - d_behaviour).sum(-1),
        bound=factor * largest,
        sharp=factor * largest / np.sqrt(2),
        mean_behaviour=factor * np.sqrt(np.sum(weight * divergence, axis=-1)),
        mean_target=factor * np.sqrt(np.sum(weight * kl(mdp.target, mdp.behaviour), axis=-1)),
        log_ratio=np.sum(weight * (log_ratio + divergence), axis=-1),
        worst_time=worst,
    )


def check(num_draws: int = NUM_DRAWS, gammas: Sequence[float] = GAMMAS, seed: int = 0) -> dict[float, Gap]:
    """Every size of problem at every discount: gamma -> its draws, all sizes together."""
    rng = np.random.default_rng(seed)
    result = {}
    for gamma in gammas:
        parts = [gap(draw(rng, num_draws, s, a), gamma) for s in NUM_STATES for a in NUM_ACTIONS]
        result[gamma] = Gap(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return result


def summarise(gaps: dict[float, Gap]) -> list[Row]:
    """One row a discount and one over all."""
    rows = [_row(f"{gamma:g}", found, np.full(found.actual.size, 2 / (1 - gamma))) for gamma, found in gaps.items()]
    everything = Gap(*(np.concatenate(column) for column in zip(*gaps.values(), strict=True)))
    limits = np.concatenate([np.full(found.actual.size, 2 / (1 - gamma)) for gamma, found in gaps.items()])
    return [*rows, _row("all", everything, limits)]


def _row(name: str, found: Gap, limit: Array) -> Row:
    ratio = found.bound / found.actual

    def violated(*bounds: Array) -> int:
        return int(sum(np.sum(found.actual > bound * (1 + ROUNDING)) for bound in bounds))

    return Row(
        name,
        ratio.size,
        violated(found.bound),
        int(np.sum(found.worst_time > 1 + ROUNDING)),
        violated(found.sharp),
        violated(found.mean_behaviour, found.mean_target),
        float(np.mean(found.bound >= limit)),
        *(float(x) for x in np.percentile(ratio, (0, 5, 50, 95))),
    )


def write(out: Path, num_draws: int = NUM_DRAWS) -> list[Path]:
    """Run the check; bound.csv and summary.md in `out`."""
    gaps = check(num_draws)
    rows = summarise(gaps)
    with open(out / "bound.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([Row._fields, *([*row[:6], *(f"{x:.6g}" for x in row[6:])] for row in rows)])
    (out / "summary.md").write_text("\n".join(_markdown(rows, gaps)) + "\n", encoding="utf-8")
    return [out / "bound.csv", out / "summary.md"]


def _markdown(rows: Sequence[Row], gaps: dict[float, Gap]) -> Iterable[str]:
    total = rows[-1]
    slips = max(float(np.abs(found.log_ratio).max()) for found in gaps.values())
    yield "# The bound on the gap of discounted state distributions"
    yield ""
    yield "Lemma 4: ‖d_π − d_β‖₁ ≤ 2γ/(1−γ)² · sqrt(max_s KL(β‖π)), d not normalised."
    yield ""
    yield f"- {total.draws:,} random MDPs (2 to 50 states, 2 to 18 actions): {total.violations} violations."
    yield f"- The bound at time t, 2t · sqrt(max KL), t = 1 to {NUM_TIMES}: {total.violations_in_time} violations."
    yield f"- With √2 in the place of the factor 2: {total.violations_sharp} violations."
    yield (
        "- With the mean over the states that β visits in the place of the maximum, KL(β‖π) and KL(π‖β): "
        f"{total.violations_mean} violations."
    )
    yield (
        f"- In {total.share_vacuous:.0%} of the draws the bound says nothing: it is above 2/(1−γ), the largest gap "
        "there can be. That is so when max KL ≥ ((1−γ)/γ)²; at γ = 0.99 when max KL ≥ 0.0001."
    )
    yield f"- E_β[log ρ] is −KL(β‖π) in every draw (to {slips:.0e}), so it is not the KL term but its negative."
    yield ""
    yield "| γ | draws | violations | says nothing | bound / actual: least | 5 % | median | 95 % |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for row in rows:
        ratios = " | ".join(f"{x:,.3g}" if x < 1000 else f"{x:,.0f}" for x in row[7:])
        yield f"| {row.gamma} | {row.draws:,} | {row.violations} | {row.share_vacuous:.0%} | {ratios} |"
