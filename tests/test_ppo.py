"""PPO's losses against numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from p3o.algorithms import Specs, ppo
from p3o.config import make_config
from p3o.errors import UserError
from p3o.spaces import action_spec, observation_spec

ONES = jnp.ones(4)


def test_clipped_policy_loss_by_hand():
    # ρ = 1.5, 0.5, 1.5, 0.5 with Â = 1, 1, −1, −1 and ε = 0.2:
    #   max(−1.5, −1.2) = −1.2   max(−0.5, −0.8) = −0.5   max(1.5, 1.2) = 1.5   max(0.5, 0.8) = 0.8
    # mean = 0.6 / 4 = 0.15
    ratio = jnp.array([1.5, 0.5, 1.5, 0.5])
    advantage = jnp.array([1.0, 1.0, -1.0, -1.0])
    loss = ppo.clipped_policy_loss(jnp.log(ratio), advantage, jnp.float32(0.2), ONES)
    assert loss == pytest.approx(0.15, abs=1e-6)


def test_policy_gradient_stops_where_the_clip_binds():
    # Only the two entries whose unclipped term is the larger one pass a gradient: −Âρ/4 at index 1 and 2.
    ratio = jnp.array([1.5, 0.5, 1.5, 0.5])
    advantage = jnp.array([1.0, 1.0, -1.0, -1.0])
    gradient = jax.grad(lambda x: ppo.clipped_policy_loss(x, advantage, jnp.float32(0.2), ONES))(jnp.log(ratio))
    np.testing.assert_allclose(gradient, [0.0, -0.125, 0.375, 0.0], atol=1e-6)


def test_clipped_value_loss_by_hand():
    # V_old = 0, ε = 0.2, R = 1: V = 0.5 gives V_clip = 0.2, max(0.25, 0.64) = 0.64;
    # V = −0.5: V_clip = −0.2, max(2.25, 1.44) = 2.25; V = 0.1: both 0.81; V = 2: V_clip = 0.2, max(1, 0.64) = 1.
    # ½ · mean = ½ · 4.70 / 4 = 0.5875
    value = jnp.array([0.5, -0.5, 0.1, 2.0])
    loss = ppo.clipped_value_loss(value, jnp.zeros(4), jnp.ones(4), jnp.float32(0.2), ONES)
    assert loss == pytest.approx(0.5875, abs=1e-6)


def test_masked_rows_do_not_count():
    weight = jnp.array([1.0, 1.0, 0.0, 0.0])
    loss = ppo.clipped_value_loss(jnp.zeros(4), jnp.zeros(4), jnp.array([1.0, 1, 9, 9]), jnp.float32(0.2), weight)
    assert loss == pytest.approx(0.5)
    # mean 2, deviation 1 over the first two rows; the masked 100s change nothing
    scaled = ppo.normalized(jnp.array([1.0, 3.0, 100.0, 100.0]), weight)
    np.testing.assert_allclose(scaled[:2], [-1.0, 1.0], atol=1e-5)


def specs() -> Specs:
    return Specs(observation_spec(spaces.Box(-1, 1, (3,))), action_spec(spaces.Discrete(2)))


def test_minibatches_must_divide_the_rollout():
    with pytest.raises(UserError, match="num_minibatches: 5 does not divide the 64 samples"):
        ppo.make(make_config(ppo.PPOConfig, {"num_steps": 64, "num_minibatches": 5}), specs())


def test_a_falling_clip_needs_a_falling_rate():
    with pytest.raises(UserError, match="clip_schedule"):
        ppo.make(make_config(ppo.PPOConfig, {"clip_schedule": "linear", "lr_schedule": "constant"}), specs())


def test_every_sample_is_used_once_an_epoch():
    config = make_config(ppo.PPOConfig, {"num_steps": 8, "num_envs": 2, "num_epochs": 3, "num_minibatches": 4})
    rows = np.asarray(ppo.minibatch_rows(jax.random.key(0), config))
    assert rows.shape == (12, 4)
    epochs = rows.reshape(3, 16)
    assert np.sort(epochs).tolist() == [list(range(16))] * 3
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3  # shuffled anew
