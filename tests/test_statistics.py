"""Statistics against scipy and against cases worked by hand."""

import time

import numpy as np
import pytest
from scipy import stats

from p3o import statistics as st
from p3o.errors import UserError


def normal_scores(num_tasks=6, num_seeds=10, shift=0.0, seed=0):
    rng = np.random.default_rng(seed)
    return {f"task{i}": rng.normal(i / num_tasks + shift, 0.5, num_seeds) for i in range(num_tasks)}


@pytest.mark.parametrize("num_seeds", [1, 3, 5, 10])
def test_iqm_is_scipys_trimmed_mean_of_all_runs(num_seeds):
    scores = normal_scores(7, num_seeds)
    pooled = np.concatenate(list(scores.values()))
    assert st.iqm(scores) == pytest.approx(stats.trim_mean(pooled, 0.25), rel=1e-12)


def test_aggregates_by_hand():
    scores = {"a": [0.0, 2.0], "b": [0.5, 0.5], "c": [3.0, 5.0]}
    # task means 1, 0.5, 4; sorted runs 0 .5 .5 2 3 5, one cut from each end; min(x, 1) has means .5, .5, 1
    assert st.mean_of_task_means(scores) == pytest.approx(5.5 / 3)
    assert st.median_of_task_means(scores) == 1.0
    assert st.iqm(scores) == pytest.approx(6 / 4)
    assert st.optimality_gap(scores) == pytest.approx(1 - 2 / 3)


def test_aggregates_report_the_same_values_as_the_single_functions():
    scores = normal_scores()
    found = st.aggregates(scores, replicates=200)
    assert found.iqm.value == st.iqm(scores)
    assert found.mean.value == st.mean_of_task_means(scores)
    assert found.median.value == st.median_of_task_means(scores)
    assert found.optimality_gap.value == st.optimality_gap(scores)
    for estimate in found:
        assert estimate.low < estimate.value < estimate.high


def test_mean_interval_is_scipys_percentile_bootstrap():
    values = np.random.default_rng(3).gamma(2.0, size=12)
    ours = st.mean_interval(values, replicates=40_000)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=40_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.high, abs=0.02)


def test_interval_of_two_seeds_by_enumeration():
    # the draws are {0,0}, {0,1}, {1,0}, {1,1}: the mean is 0 with chance 1/4 and 1 with chance 1/4
    assert st.mean_interval([0.0, 1.0]) == (0.5, 0.0, 1.0)


def test_the_bootstrap_keeps_tasks_apart():
    # every seed of a task scores the same, so resampling seeds inside tasks changes nothing; resampling the pool would
    found = st.aggregates({"a": [0.0] * 5, "b": [1.0] * 5}, replicates=500)
    assert found.mean == (0.5, 0.5, 0.5)
    assert found.iqm == (0.5, 0.5, 0.5)


def test_the_resampled_unit_is_the_seed():
    # with n seeds of unit variance the interval's width is about 2 · 1.96 / sqrt(n)
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    values = (values - values.mean()) / values.std()
    found = st.mean_interval(values)
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.05)


def test_one_seed_has_no_interval():
    found = st.mean_interval([3.0])
    assert found.value == 3.0
    assert np.isnan([found.low, found.high]).all()
    assert np.isnan(st.aggregates({"a": [1.0], "b": [2.0]}).iqm.low)
    assert np.isnan(st.performance_profile({"a": [1.0]}, [0.0]).low).all()
    assert np.isnan(st.probability_of_improvement({"a": [1.0]}, {"a": [0.0]}).low)


def test_probability_of_improvement_is_mann_whitneys_u():
    x, y = normal_scores(shift=0.2, seed=1), normal_scores(num_seeds=7, seed=2)
    expected = np.mean([stats.mannwhitneyu(x[t], y[t]).statistic / (10 * 7) for t in x])
    found = st.probability_of_improvement(x, y)
    assert found.value == pytest.approx(expected)
    assert found.low < expected < found.high


def test_probability_of_improvement_counts_ties_half():
    x, y = {"a": [1.0, 2.0]}, {"a": [1.0, 0.0]}
    # pairs: 1v1 a tie, 1v0, 2v1, 2v0 won
    assert st.probability_of_improvement(x, y).value == 3.5 / 4
    assert st.probability_of_improvement(x, x).value == 0.5


def test_probability_of_improvement_interval_by_brute_force():
    x, y = normal_scores(2, 5, shift=0.3, seed=5), normal_scores(2, 4, seed=6)
    rng = np.random.default_rng(7)
    draws = []
    for _ in range(4000):
        chances = []
        for task in x:
            a, b = rng.choice(x[task], 5), rng.choice(y[task], 4)
            chances.append(np.mean((a[:, None] > b) + 0.5 * (a[:, None] == b)))
        draws.append(np.mean(chances))
    found = st.probability_of_improvement(x, y)
    assert (found.low, found.high) == pytest.approx(np.percentile(draws, [2.5, 97.5]), abs=0.03)


def test_probability_of_improvement_uses_the_tasks_of_both():
    assert st.probability_of_improvement({"a": [1.0], "b": [0.0]}, {"a": [0.0], "c": [9.0]}).value == 1.0
    with pytest.raises(UserError, match="no task in common"):
        st.probability_of_improvement({"a": [1.0]}, {"b": [1.0]})


def test_performance_profile_by_hand():
    found = st.performance_profile({"a": [0.0, 1.0], "b": [2.0, 2.0]}, [-1.0, 0.0, 1.0, 2.0])
    np.testing.assert_allclose(found.value, [1, 0.75, 0.5, 0])  # above, not at
    np.testing.assert_allclose(found.low, [1, 0.5, 0.5, 0])  # of a's two seeds 0, 1 or 2 are above 0
    np.testing.assert_allclose(found.high, [1, 1, 0.5, 0])


def test_wins_keep_ties_apart():
    means = {"x": {"p3o": 2.0, "ppo": 1.0}, "y": {"p3o": 0.0, "ppo": 0.0}, "z": {"p3o": 1.0, "ppo": 3.0}}
    assert st.wins(means) == ({"p3o": 1, "ppo": 1}, ("y",))


def test_a_third_place_does_not_break_a_tie_for_the_first():
    assert st.wins({"x": {"a": 1.0, "b": 1.0, "c": 0.5}}) == ({"a": 0, "b": 0, "c": 0}, ("x",))


def test_win_estimate_of_sure_and_open_tasks():
    scores = {
        "sure": {"p3o": [5.0, 6.0], "ppo": [1.0, 2.0]},
        "open": {"p3o": [0.0, 1.0], "ppo": [0.4, 0.4]},
        "tied": {"p3o": [0.0, 0.0], "ppo": [0.0, 0.0]},
    }
    found = st.win_estimate(scores)
    assert found.p_win["sure"] == {"p3o": 1.0, "ppo": 0.0}
    # p3o's mean is 0 (loses) with chance 1/4, else 0.5 or 1 (wins)
    assert found.p_win["open"]["p3o"] == pytest.approx(0.75, abs=0.02)
    assert found.p_win["tied"] == {"p3o": 0.0, "ppo": 0.0}
    assert found.ties == ("tied",)
    assert found.won["p3o"] == (2.0, 1.0, 2.0)
    assert found.won["ppo"] == (0.0, 0.0, 1.0)


def test_normalise():
    found = st.normalise({"a": [10.0, 30.0]}, {"a": 10.0}, {"a": 20.0})
    np.testing.assert_array_equal(found["a"], [0.0, 2.0])
    with pytest.raises(UserError, match=r"no high reference for 'a'"):
        st.normalise({"a": [1.0]}, {"a": 0.0}, {})
    with pytest.raises(UserError, match="both 1"):
        st.normalise({"a": [1.0]}, {"a": 1.0}, {"a": 1.0})


SURE = st.Estimate(0.9, 0.8, 1.0)
UNSURE = st.Estimate(0.6, 0.4, 0.8)


@pytest.mark.parametrize(
    ("values", "paper", "more", "name"),
    [
        ([9, 10, 11, 10, 10], 8.0, {}, "exceeds"),
        ([9, 10, 11, 10, 10], 10.1, {}, "reproduced"),
        ([9, 10, 11, 10, 10], 9.9, {}, "reproduced"),  # above, but not by the whole interval
        ([9.9, 10, 10.1, 10, 10], 10.5, {}, "not reproduced"),
        ([9.9, 10, 10.1, 10, 10], 10.5, {"random": 0.0}, "reproduced"),  # 0.5 is within 10 % of 10.5
        ([9.9, 10, 10.1, 10, 10], 10.5, {"random": 8.0}, "not reproduced"),  # but not of 2.5
        ([9.9, 10, 10.1, 10, 10], 20.0, {"random": 0.0, "improvement": SURE}, "ordering reproduced"),
        ([9.9, 10, 10.1, 10, 10], 20.0, {"random": 0.0, "improvement": UNSURE}, "not reproduced"),
        ([-5, -5.1, -4.9, -5, -5], -5.2, {"random": -20.0}, "exceeds"),
        ([9, 10, 11, 10], 8.0, {}, "no verdict"),
        ([9, 10, 11, 10, 10], 8.0, {"scale": 0.5}, "not comparable"),
        ([9, 10], 8.0, {"scale": 0.5}, "not comparable"),
    ],
)
def test_verdict(values, paper, more, name):
    found = st.verdict(values, paper, **more)
    assert found.name == name
    assert found.gap == pytest.approx(np.mean(values) - paper)


def test_verdict_texts_say_the_range_and_the_gap():
    assert st.verdict([1.0, 4.0, 2.0], 3.0).text == "no verdict from 3 seeds: 1.0 to 4.0"
    assert st.verdict([1.0], 3.0).text == "no verdict from 1 seed: 1.0"
    assert st.verdict([1.0] * 5, 1003.5).text == "not reproduced: off by -1,002.5"
    assert st.verdict([1.0] * 5, 3.0, scale=0.01).text == "not comparable: 0.01 of the paper's steps"


@pytest.mark.parametrize("bad", [{}, {"a": []}, {"a": [1.0, np.nan]}, {"a": [np.inf]}])
def test_missing_and_non_finite_scores_are_refused(bad):
    for function in (st.iqm, st.aggregates, lambda s: st.performance_profile(s, [0.0])):
        with pytest.raises(UserError, match="statistics"):
            function(bad)


def test_results_depend_on_the_seed_alone():
    scores = normal_scores()
    assert st.aggregates(scores, 500) == st.aggregates(scores, 500)
    assert st.aggregates(scores, 500) != st.aggregates(scores, 500, seed=1)


def test_the_size_of_the_atari_table_takes_seconds():
    scores = normal_scores(49, 10)
    begin = time.process_time()
    st.aggregates(scores)
    st.probability_of_improvement(scores, scores)
    assert time.process_time() - begin < 10  # about one second; the limit is for a loaded machine
