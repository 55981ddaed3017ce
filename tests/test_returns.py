"""Advantages by hand, with both ends of an episode inside, and their limits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from p3o.returns import generalized_advantage, value_where

FALSE = [False, False, False]


def gae(reward, value, terminated=FALSE, truncated=FALSE, final_value=None, gamma=0.5, gae_lambda=0.5):
    """One environment: lists of T (value: T + 1)."""
    columns = [jnp.asarray(x)[:, None] for x in (reward, value, terminated, truncated)]
    final = None if final_value is None else jnp.asarray(final_value)[:, None]
    return np.asarray(generalized_advantage(*columns, final, gamma, gae_lambda))[:, 0]


REWARD, VALUE = [1.0, 2.0, 4.0], [8.0, 4.0, 2.0, 6.0]


def test_by_hand_without_an_end():
    # γ = τ = ½. δ = (1 + 2 − 8, 2 + 1 − 4, 4 + 3 − 2) = (−5, −1, 5); Â₂ = 5, Â₁ = −1 + 5/4, Â₀ = −5 + Â₁/4.
    np.testing.assert_allclose(gae(REWARD, VALUE), [-5 + 0.25 / 4, 0.25, 5])


def test_by_hand_with_a_termination_inside():
    # Step 1 ends the task: δ₁ = 2 − 4 without a bootstrap, and nothing of Â₂ comes back.
    np.testing.assert_allclose(gae(REWARD, VALUE, terminated=[False, True, False]), [-5 - 2 / 4, -2, 5])


def test_by_hand_with_a_truncation_inside():
    # Step 1 is cut off at a final observation worth 10: δ₁ = 2 + 5 − 4; the sum ends there all the same.
    cut = [False, True, False]
    np.testing.assert_allclose(gae(REWARD, VALUE, truncated=cut, final_value=[99.0, 10.0, 99.0]), [-5 + 3 / 4, 3, 5])
    # Without a final value the time limit is terminal.
    np.testing.assert_allclose(gae(REWARD, VALUE, truncated=cut), [-5 - 2 / 4, -2, 5])


def test_a_step_that_does_both_terminates():
    both = [False, True, False]
    np.testing.assert_allclose(
        gae(REWARD, VALUE, terminated=both, truncated=both, final_value=[99.0, 10.0, 99.0]), [-5 - 2 / 4, -2, 5]
    )


def test_an_end_at_the_last_step_does_not_read_the_next_episode():
    last = [False, False, True]
    np.testing.assert_allclose(gae(REWARD, VALUE, terminated=last)[2], 4 - 2)
    np.testing.assert_allclose(gae(REWARD, VALUE, truncated=last, final_value=[0.0, 0.0, 10.0])[2], 4 + 5 - 2)


def test_one_step_is_the_td_error():
    np.testing.assert_allclose(gae([1.0], [8.0, 4.0], [False], [False]), [1 + 2 - 8])


def naive_returns(reward, value, terminated, truncated, final_value, gamma):
    """n-step returns by walking forward from every step."""
    time, envs = reward.shape
    result = np.zeros((time, envs))
    for start in range(time):
        for env in range(envs):
            total, discount = 0.0, 1.0
            for t in range(start, time):
                total += discount * reward[t, env]
                discount *= gamma
                if terminated[t, env] or truncated[t, env]:
                    total += 0.0 if terminated[t, env] else discount * final_value[t, env]
                    break
            else:
                total += discount * value[time, env]
            result[start, env] = total
    return result


def batch(seed, time=7, envs=3):
    rng = np.random.default_rng(seed)
    reward, final_value = rng.standard_normal((2, time, envs))
    value = rng.standard_normal((time + 1, envs))
    terminated, truncated = rng.random((2, time, envs)) < 0.2
    return reward, value, terminated, truncated, final_value


@pytest.mark.parametrize("seed", range(5))
def test_lambda_one_gives_n_step_returns(seed):
    reward, value, terminated, truncated, final_value = batch(seed)
    advantage = generalized_advantage(reward, value, terminated, truncated, final_value, 0.9, 1.0)
    expected = naive_returns(reward, value, terminated, truncated, final_value, 0.9)
    np.testing.assert_allclose(advantage + value[:-1], expected, atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_lambda_zero_gives_td_errors(seed):
    reward, value, terminated, truncated, final_value = batch(seed)
    advantage = generalized_advantage(reward, value, terminated, truncated, final_value, 0.9, 0.0)
    following = np.where(terminated, 0, np.where(truncated, final_value, value[1:]))
    np.testing.assert_allclose(advantage, reward + 0.9 * following - value[:-1], atol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_against_the_definition(seed):
    """Â_t = Σ_k (γτ)^k δ_{t+k}, up to the end of the episode."""
    reward, value, terminated, truncated, final_value = batch(seed)
    delta = np.asarray(generalized_advantage(reward, value, terminated, truncated, final_value, 0.9, 0.0))
    expected = np.zeros_like(delta)
    for t in range(len(delta)):
        alive = np.ones(delta.shape[1])
        for k in range(t, len(delta)):
            expected[t] += alive * (0.9 * 0.8) ** (k - t) * delta[k]
            alive = alive * ~(terminated | truncated)[k]
    actual = generalized_advantage(reward, value, terminated, truncated, final_value, 0.9, 0.8)
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_environments_do_not_mix():
    reward, value, terminated, truncated, final_value = batch(0)
    together = generalized_advantage(reward, value, terminated, truncated, final_value, 0.9, 0.95)
    for env in range(3):
        alone = gae(
            *(x[:, env] for x in (reward, value, terminated, truncated, final_value)), gamma=0.9, gae_lambda=0.95
        )
        np.testing.assert_allclose(together[:, env], alone, atol=1e-6)


def value(observation):
    """A critic that can be checked by eye: the sum of the features."""
    return observation["a"].sum(-1) + observation["b"]


@functools.partial(jax.jit, static_argnums=2)
def jitted_value_where(observation, where, chunk):
    return value_where(value, observation, where, chunk)


OBSERVATION = {
    "a": np.arange(7 * 5 * 2, dtype=np.float32).reshape(7, 5, 2),
    "b": np.arange(7 * 5, dtype=np.float32).reshape(7, 5) + 1,
}


@settings(max_examples=40, deadline=None)
@given(arrays(bool, (7, 5)), st.sampled_from([1, 8, 32, 35, 100]))
def test_value_where_is_the_plain_computation(where, chunk):
    expected = np.where(where, value(OBSERVATION), 0)
    np.testing.assert_array_equal(jitted_value_where(OBSERVATION, where, chunk), expected)


@pytest.mark.parametrize("chunk", [1, 8, 100])
def test_value_where_nowhere_and_everywhere(chunk):
    nowhere = np.zeros((7, 5), bool)
    np.testing.assert_array_equal(jitted_value_where(OBSERVATION, nowhere, chunk), nowhere)
    np.testing.assert_array_equal(jitted_value_where(OBSERVATION, ~nowhere, chunk), value(OBSERVATION))


def test_value_where_reads_only_marked_rows():
    """What stands at unmarked places, even NaN, does not show."""
    where = np.zeros((7, 5), bool)
    where[3, 4] = True
    observation = {
        name: np.where(where.reshape(7, 5, *[1] * (x.ndim - 2)), x, np.nan) for name, x in OBSERVATION.items()
    }
    np.testing.assert_array_equal(jitted_value_where(observation, where, 32), np.where(where, value(OBSERVATION), 0))
