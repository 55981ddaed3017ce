"""Running statistics against hand numbers and against a full recomputation."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o.normalize import CLIP, EPSILON, Normalizer, RunningMoments

FIRST_COUNT = 1e-4  # pseudo-observations with mean 0 and variance 1 that the statistics start from


def recomputed(rows):
    """Mean and variance of the rows and of the first pseudo-observations, in one go."""
    rows = np.asarray(rows, np.float64)
    total = FIRST_COUNT + len(rows)
    mean = rows.sum(0) / total
    variance = (FIRST_COUNT * (1 + mean**2) + ((rows - mean) ** 2).sum(0)) / total
    return mean, variance


def test_first_batch_by_hand():
    # Rows 1 and 3: mean 2, variance 1. With n₀ = 10⁻⁴ rows of mean 0 and variance 1 before them, total n = 2.0001:
    # mean 2 · 2/n; variance (n₀ · 1 + 2 · 1 + 2² · n₀ · 2/n) / n.
    moments = RunningMoments((1,))
    moments.update(np.array([[1.0], [3.0]]))
    n = 2.0001
    assert moments.count == pytest.approx(n)
    assert moments.mean[0] == pytest.approx(4 / n, rel=1e-12)
    assert moments.variance[0] == pytest.approx((1e-4 + 2 + 4 * 1e-4 * 2 / n) / n, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(-1e3, 1e3), max_size=6), max_size=8))
def test_merging_batches_is_a_full_recomputation(batches):
    moments = RunningMoments((1,))
    for batch in batches:
        moments.update(np.array(batch).reshape(-1, 1))  # an empty batch changes nothing
    mean, variance = recomputed(np.array([x for batch in batches for x in batch]).reshape(-1, 1))
    np.testing.assert_allclose(moments.mean, mean, atol=1e-9)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-7, atol=1e-7)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(1e-3, 1), st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6)), max_size=8),
)
def test_rows_that_count_less_are_a_weighted_recomputation(batches):
    moments = RunningMoments((1,))
    for weight, batch in batches:
        moments.update(np.array(batch).reshape(-1, 1), weight)
    rows = np.array([0.0, *(x for _, batch in batches for x in batch)])
    weights = np.array([FIRST_COUNT, *(weight for weight, batch in batches for _ in batch)])
    mean = np.average(rows, weights=weights)
    spread = (rows - mean) ** 2 + np.array([1.0, *np.zeros(len(rows) - 1)])  # the first have a variance of their own
    np.testing.assert_allclose(moments.count, weights.sum(), rtol=1e-12)
    np.testing.assert_allclose(moments.mean, mean, atol=1e-9)
    np.testing.assert_allclose(moments.variance, np.average(spread, weights=weights), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("num_envs", [1, 2, 5])
def test_at_any_pace_the_quick_way_is_the_plain_one_bit_by_bit(num_envs):
    rng, plain, quick = np.random.default_rng(0), make(3, num_envs), make(3, num_envs)
    for pace in (1.0, 0.7, 1e-3, 0.0):
        plain.pace = quick.pace = pace
        for _ in range(5):
            batch, out = rng.normal(2.0, 30.0, (num_envs, 3)), np.empty((num_envs, 3), np.float32)
            quick.observe_all(batch, out)
            assert np.array_equal(plain.observe(batch), out)
    before = plain.state()
    plain.observe(batch + 100.0)
    for name in ("observation_mean", "observation_variance", "observation_count"):  # at pace 0 nothing moves
        assert np.array_equal(getattr(plain.state(), name), getattr(before, name))
        assert np.array_equal(getattr(quick.state(), name), getattr(before, name))


def test_far_from_zero_loses_no_precision():
    moments = RunningMoments(())
    for x in (1e8 + 1, 1e8 + 2, 1e8 + 3):
        moments.update(np.array([x]))
    # The three rows have variance 2/3; the pseudo-observations at 0 add (1e8)² · n₀ · 3 / n².
    assert moments.variance == pytest.approx(recomputed([1e8 + 1, 1e8 + 2, 1e8 + 3])[1], rel=1e-9)


def make(size=1, num_envs=2, gamma=0.5, observation=True, reward=True):
    return Normalizer(size, num_envs, gamma, observation, reward)


def test_observations_are_counted_before_they_are_scaled():
    normalizer = make()
    rows = np.array([[1.0], [3.0]])
    mean, variance = recomputed(rows)
    scaled = normalizer.observe(rows)
    np.testing.assert_allclose(scaled, (rows - mean) / np.sqrt(variance + EPSILON), rtol=1e-6)
    np.testing.assert_allclose(scaled, [[-1], [1]], atol=1e-3)
    assert scaled.dtype == np.float32
    # Scaling alone changes nothing.
    before = normalizer.state()
    np.testing.assert_allclose(normalizer.scale(rows), scaled)
    np.testing.assert_equal(normalizer.state(), before)


def test_observations_are_clipped_at_ten():
    normalizer = make()
    normalizer.observe(np.array([[1.0], [-1.0]]))
    np.testing.assert_array_equal(normalizer.scale(np.array([[1e6], [-1e6]])), [[CLIP], [-CLIP]])
    assert CLIP == 10


def test_a_constant_observation_is_scaled_to_nothing():
    normalizer = make()
    for _ in range(1000):
        scaled = normalizer.observe(np.array([[5.0], [5.0]]))
    # All but the pseudo-observations at 0 agree: mean ≈ 5 (1 − n₀/n), variance ≈ n₀ (1 + 25) / n, so z ≈ 5 n₀/n / √….
    share = FIRST_COUNT / 2000
    np.testing.assert_allclose(scaled, 5 * share / math.sqrt(share * 26 + EPSILON), rtol=1e-2)


def test_rows_that_do_not_count_are_only_scaled():
    counted, other = make(), make()
    rows = np.array([[1.0], [900.0]])
    scaled = counted.observe(rows, np.array([True, False]))
    other.observe(rows[:1])
    np.testing.assert_equal(counted.state(), other.state())
    np.testing.assert_array_equal(scaled, other.scale(rows))
    counted.observe(rows, np.array([False, False]))
    np.testing.assert_equal(counted.state(), other.state())


def test_rewards_by_hand():
    normalizer = make(gamma=0.5)
    going = np.array([False, False])
    # G = (2, 4): the variance over the two and the pseudo-observations is taken in before the first use.
    first = normalizer.reward(np.array([2.0, 4.0]), going)
    variance = recomputed([2.0, 4.0])[1]
    np.testing.assert_allclose(first, np.array([2, 4]) / np.sqrt(variance + EPSILON))
    # G = (½·2 + 1, ½·4 + 0) = (2, 2); environment 1 ends: its G enters the statistics and is 0 afterwards.
    second = normalizer.reward(np.array([1.0, 0.0]), np.array([False, True]))
    variance = recomputed([2.0, 4.0, 2.0, 2.0])[1]
    np.testing.assert_allclose(second, np.array([1, 0]) / np.sqrt(variance + EPSILON))
    np.testing.assert_array_equal(normalizer.discounted_return, [2, 0])
    # G = (1, 6): after the end the sum starts anew.
    normalizer.reward(np.array([0.0, 6.0]), going)
    np.testing.assert_array_equal(normalizer.discounted_return, [1, 6])
    assert normalizer.return_moments.variance == pytest.approx(recomputed([2.0, 4.0, 2.0, 2.0, 1.0, 6.0])[1])


def test_rewards_are_divided_but_not_centred_and_clipped_at_ten():
    normalizer = make(num_envs=1, gamma=0.0)
    for _ in range(400):
        normalizer.reward(np.array([0.0]), np.array([False]))
    np.testing.assert_array_equal(normalizer.reward(np.array([1.0]), np.array([False])), [CLIP])
    np.testing.assert_array_equal(normalizer.reward(np.array([-5.0]), np.array([False])), [-CLIP])
    np.testing.assert_array_equal(normalizer.reward(np.array([0.0]), np.array([False])), [0])


def test_rewards_that_do_not_count_stay_out_of_the_statistics():
    normalizer, alone = make(gamma=0.5), make(num_envs=1, gamma=0.5)
    for reward in (1.0, 3.0, -2.0):
        normalizer.reward(np.array([reward, 0.0]), np.array([False, False]), np.array([True, False]))
        alone.reward(np.array([reward]), np.array([False]))
    assert normalizer.state()[3:6] == alone.state()[3:6]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=20))
def test_rewards_against_a_plain_loop(steps):
    normalizer = make(num_envs=1, gamma=0.9)
    total, seen = 0.0, []
    for reward, is_end in steps:
        scaled = normalizer.reward(np.array([reward]), np.array([is_end]))
        total = 0.9 * total + reward
        seen.append(total)
        expected = reward / math.sqrt(recomputed(seen)[1] + EPSILON)
        np.testing.assert_allclose(scaled, np.clip(expected, -10, 10), rtol=1e-5, atol=1e-9)
        total = 0.0 if is_end else total


def test_switched_off_it_only_casts():
    normalizer = make(observation=False, reward=False)
    rows, rewards = np.array([[1.0], [300.0]]), np.array([20.0, -30.0])
    np.testing.assert_array_equal(normalizer.observe(rows), rows)
    assert normalizer.observe(rows).dtype == np.float32
    np.testing.assert_array_equal(normalizer.scale(rows), rows)
    np.testing.assert_array_equal(normalizer.reward(rewards, np.array([True, False])), rewards)
    assert normalizer.state().observation_count == normalizer.state().return_count == FIRST_COUNT


def test_state_and_restore_go_on_alike():
    rng = np.random.default_rng(0)
    normalizer = make(size=3)

    def go_on(n):
        return [
            (n.observe(rng.standard_normal((2, 3))), n.reward(rng.standard_normal(2), rng.random(2) < 0.3))
            for _ in range(5)
        ]

    go_on(normalizer)
    state = normalizer.state()
    rng = np.random.default_rng(1)
    expected = go_on(normalizer)
    other = make(size=3)
    other.restore(state)
    np.testing.assert_equal(other.state(), state)
    rng = np.random.default_rng(1)
    np.testing.assert_equal(go_on(other), expected)
    # The state is a copy: what went on afterwards did not change it.
    again = make(size=3)
    again.restore(state)
    rng = np.random.default_rng(1)
    np.testing.assert_equal(go_on(again), expected)


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
    st.floats(0.1, 100.0),
)
def test_a_whole_rollout_of_rewards_is_scaled_as_step_by_step(steps, envs, seed, size):
    rng = np.random.default_rng(seed)
    plain, fast = (Normalizer(1, envs, 0.9, observation=False, reward=True) for _ in range(2))
    for _ in range(3):  # the state carries over from rollout to rollout
        reward = size * (rng.normal(size=(steps, envs)) + 3.0)
        is_end, is_counted = rng.random((steps, envs)) < 0.2, rng.random((steps, envs)) < 0.8
        one_by_one = [plain.reward(r, e, c) for r, e, c in zip(reward, is_end, is_counted, strict=True)]
        np.testing.assert_allclose(fast.rewards(reward, is_end, is_counted), one_by_one, rtol=1e-9)
        for a, b in zip(plain.state(), fast.state(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
