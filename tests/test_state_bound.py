"""The lemma's two sides on a problem worked by hand, and the checks that depend on them."""

from pathlib import Path

import numpy as np
import pytest

from p3o.experiments import state_bound as sb


def leaving(p, q):
    """Two states: action 1 leaves state 0 for good. π takes it with chance p, β with q."""
    transition = np.zeros((1, 2, 2, 2))
    transition[0, 0, 0, 0] = transition[0, 0, 1, 1] = 1
    transition[0, 1, :, 1] = 1
    policies = [np.array([[[1 - x, x], [0.5, 0.5]]]) for x in (p, q)]
    return sb.MDP(transition, np.array([[1.0, 0.0]]), *policies)


def test_two_states_by_hand():
    # d(0) = Σ (γ(1−x))^t = 1 / (1 − γ(1−x)): with γ = 1/2, p = 1/2, q = 1/4 that is 4/3 and 8/5; d sums to 2
    found = sb.gap(leaving(0.5, 0.25), 0.5)
    assert found.actual[0] == pytest.approx(2 * (8 / 5 - 4 / 3))
    largest = 0.75 * np.log(0.75 / 0.5) + 0.25 * np.log(0.25 / 0.5)  # KL(β‖π) in state 0; they agree in state 1
    assert found.bound[0] == pytest.approx(2 * 0.5 / 0.25 * np.sqrt(largest))
    assert found.sharp[0] == pytest.approx(np.sqrt(2) * 0.5 / 0.25 * np.sqrt(largest))
    # β is in state 0 for 8/5 of its 2
    assert found.mean_behaviour[0] == pytest.approx(4 * np.sqrt(0.8 * largest))
    reverse = 0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(0.5 / 0.25)
    assert found.mean_target[0] == pytest.approx(4 * np.sqrt(0.8 * reverse))
    assert found.log_ratio[0] == pytest.approx(0, abs=1e-15)
    # at time t: 2 |(1−p)^t − (1−q)^t| / 2t, largest at t = 1, where it is 1/4
    assert found.worst_time[0] == pytest.approx(0.25 / np.sqrt(largest))


def test_discounted_distribution_is_the_sum_over_time():
    mdp = sb.draw(np.random.default_rng(0), 3, 5, 2)
    transition = sb.policy_transition(mdp.transition, mdp.target)
    found = sb.discounted_distribution(transition, mdp.start, 0.9)
    total, now = np.zeros_like(mdp.start), mdp.start
    for t in range(400):
        total += 0.9**t * now
        now = np.einsum("ns,nst->nt", now, transition)
    np.testing.assert_allclose(found, total, rtol=1e-10)
    np.testing.assert_allclose(found.sum(-1), 10)


def test_draws_are_distributions_from_near_to_far():
    mdp = sb.draw(np.random.default_rng(1), 500, 4, 3)
    for part in mdp:
        np.testing.assert_allclose(part.sum(-1), 1)
        assert part.min() > 0
    largest = sb.kl(mdp.behaviour, mdp.target).max(-1)
    assert largest.min() < 1e-5
    assert largest.max() > 1


def test_no_bound_is_violated_and_ratios_are_sane():
    rows = sb.summarise(sb.check(num_draws=20))
    assert [row.gamma for row in rows] == ["0.5", "0.9", "0.95", "0.99", "0.999", "all"]
    assert rows[-1].draws == sum(row.draws for row in rows[:-1]) == 5 * 6 * 3 * 20
    for row in rows:
        assert row.violations == row.violations_in_time == row.violations_sharp == row.violations_mean == 0
        assert 1 < row.ratio_least <= row.ratio_5 < row.ratio_median < row.ratio_95
    assert rows[0].share_vacuous < rows[-2].share_vacuous


def test_a_violation_would_be_counted():
    """Half the bound is too small for two policies that part in one step and never meet again."""
    found = sb.gap(leaving(1 - 1e-9, 1e-9), 0.01)
    halved = found._replace(bound=found.bound / 1e3, sharp=found.actual / 2)
    row = sb.summarise({0.01: halved})[0]
    assert row.violations == 1
    assert row.violations_sharp == 1
    assert row.violations_mean == 0


def test_write(tmp_path):
    files = sb.write(tmp_path, num_draws=2)
    assert [file.name for file in files] == ["bound.csv", "summary.md"]
    assert (tmp_path / "bound.csv").read_text().count("\n") == 7
    assert "180 random MDPs (2 to 50 states, 2 to 18 actions): 0 violations" in (tmp_path / "summary.md").read_text()


def test_bias_remark_at_ess_zero_leaves_a_term():
    """The paper says that its bias is zero at ESS = 0, but the sum over actions of ∇ log π is 1 − A·π for a softmax."""
    logits = np.array([0.0, 1.0, 2.0])
    policy = np.exp(logits) / np.exp(logits).sum()
    gradient = np.eye(3) - policy  # row a: ∂ log π(a) / ∂ logits
    np.testing.assert_allclose(gradient.sum(0), 1 - 3 * policy)
    assert np.abs(gradient.mean(0)).max() > 0.1


def test_penalty_to_all_past_iterates_shrinks_the_step_as_one_over_k():
    """The minimiser of ⟨g, y⟩ + Σ_i ‖y − x_i‖² / 2α is mean(x) − α g / k, as Sec 3.4 has it."""
    rng = np.random.default_rng(0)
    past, slope, rate = rng.normal(size=(7, 3)), rng.normal(size=3), 0.3
    best = past.mean(0) - rate / 7 * slope
    gradient = slope + (best - past).sum(0) / rate
    np.testing.assert_allclose(gradient, 0, atol=1e-12)


@pytest.mark.slow
def test_the_page_about_the_paper_has_what_the_command_prints(tmp_path):
    sb.write(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "paper.md").read_text(encoding="utf-8").splitlines()
    printed = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in printed if line.startswith(("|", "- ")) and line not in page] == []
