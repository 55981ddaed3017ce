"""ACER's pieces against numbers worked by hand, and its whole loss against its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from p3o import optimizers
from p3o.algorithms import Specs, acer
from p3o.algorithms.base import example_trajectory
from p3o.config import make_config
from p3o.distributions import Categorical
from p3o.errors import UserError
from p3o.networks import make_network
from p3o.spaces import action_spec, observation_spec


def column(*values: float) -> jnp.ndarray:
    return jnp.array(values, jnp.float32)[:, None]


def test_retrace_by_hand():
    # γ = 0.5, T = 3, V = (1, 2, 3, 4), Q(a) = (1, 1, 1), r = (1, 2, 3), ρ = (0.5, 2, 0.5), no end:
    #   Qret_2 = 3 + 0.5·4 = 5            then 0.5·(5 − 1) + 3 = 5
    #   Qret_1 = 2 + 0.5·5 = 4.5          then min(1, 2)·(4.5 − 1) + 2 = 5.5
    #   Qret_0 = 1 + 0.5·5.5 = 3.75
    no = jnp.zeros((3, 1), bool)
    targets = acer.retrace(column(1, 2, 3), column(1, 1, 1), column(1, 2, 3, 4), column(0.5, 2, 0.5), no, no, None, 0.5)
    np.testing.assert_allclose(targets[:, 0], [3.75, 4.5, 5.0], atol=1e-6)


def test_retrace_is_cut_at_ends():
    # As above with a termination at t = 1: Qret_1 = 2, then 1·(2 − 1) + 2 = 3, Qret_0 = 1 + 0.5·3 = 2.5.
    no = jnp.zeros((3, 1), bool)
    end = no.at[1, 0].set(True)
    arguments = (column(1, 2, 3), column(1, 1, 1), column(1, 2, 3, 4), column(0.5, 2, 0.5))
    terminal = acer.retrace(*arguments, end, no, column(9, 8, 9), 0.5)
    np.testing.assert_allclose(terminal[:, 0], [2.5, 2.0, 5.0], atol=1e-6)
    # A truncation there bootstraps from the final value 8: Qret_1 = 2 + 0.5·8 = 6, Qret_0 = 1 + 0.5·(5 + 2) = 4.5.
    truncated = acer.retrace(*arguments, no, end, column(9, 8, 9), 0.5)
    np.testing.assert_allclose(truncated[:, 0], [4.5, 6.0, 5.0], atol=1e-6)
    as_terminal = acer.retrace(*arguments, no, end, None, 0.5)
    np.testing.assert_allclose(as_terminal, terminal)


def test_projection_by_hand():
    # π = (0.5, 0.5), π̄ = (0.5, 0.5): k = (−1, −1), ‖k‖² = 2. g = (−2, −1), k·g = 3, δ = 1: scale (3 − 1)/2 = 1,
    # z = g − k = (−1, 0), and k·z = 1 = δ: exactly on the boundary.
    half = jnp.array([[0.5, 0.5]])
    z, is_projected = acer.project(jnp.array([[-2.0, -1.0]]), half, half, 1.0)
    np.testing.assert_allclose(z, [[-1.0, 0.0]], atol=1e-4)
    assert is_projected.tolist() == [True]
    # g = (1, 1): k·g = −2 < δ, so nothing happens.
    z, is_projected = acer.project(jnp.array([[1.0, 1.0]]), half, half, 1.0)
    np.testing.assert_allclose(z, [[1.0, 1.0]])
    assert is_projected.tolist() == [False]


def test_k_is_the_gradient_of_the_kl_to_the_average_policy():
    average, probs = jnp.array([0.2, 0.3, 0.5]), jnp.array([0.6, 0.3, 0.1])
    expected = jax.grad(lambda p: jnp.sum(average * (jnp.log(average) - jnp.log(p))))(probs)
    gradient = jnp.array([0.0, 0.0, -3.0])
    z, _ = acer.project(gradient[None], average[None], probs[None], 1.0)
    moved = (gradient - z[0]) / expected  # z leaves g along k only
    np.testing.assert_allclose(moved, jnp.full(3, moved[0]), rtol=1e-4)


def test_bias_correction_weight_by_hand():
    # c = 2: ρ = 0.8/0.2 = 4 gives 1 − 2/4 = 0.5; ρ = 0.2/0.8 = 0.25 gives 0.
    weight = acer.bias_correction_weight(jnp.array([0.8, 0.2]), jnp.array([0.2, 0.8]), 2.0)
    np.testing.assert_allclose(weight, [0.5, 0.0], atol=1e-5)


def test_bias_correction_is_zero_on_fresh_data_and_positive_when_constructed():
    probs = jnp.array([[0.7, 0.2, 0.1]])
    assert float(acer.bias_correction_weight(probs, probs, 10.0).sum()) == 0.0
    assert float(acer.bias_correction_weight(probs, jnp.array([[0.01, 0.49, 0.5]]), 10.0)[0, 0]) > 0.85


SPECS = Specs(observation_spec(spaces.Box(-1, 1, (3,))), action_spec(spaces.Discrete(3)))


def batch_and_network(**settings):
    config = make_config(acer.ACERConfig, {"num_envs": 2, "num_steps": 5, "hidden_sizes": "8", **settings})
    network = make_network(SPECS.observation, SPECS.action, config, is_q=True)
    rng = np.random.default_rng(0)
    batch = example_trajectory(config, SPECS)
    batch.observation.vector[:] = rng.normal(size=batch.observation.vector.shape)
    batch.action[:] = rng.integers(0, 3, batch.action.shape)
    batch.reward[:] = rng.normal(size=batch.reward.shape)
    batch.terminated[2, 0] = True
    batch = batch._replace(behaviour=Categorical(rng.normal(size=(5, 2, 3)).astype(np.float32)))
    params = network.init(rng)
    params["policy_head"]["weight"] = rng.normal(size=params["policy_head"]["weight"].shape).astype(np.float32)
    return config, network, jax.tree.map(jnp.asarray, batch), jax.tree.map(jnp.asarray, params)


def test_without_trust_region_the_gradient_is_that_of_the_plain_losses():
    config, network, batch, params = batch_and_network(use_trust_region=False)

    def plain(p):
        """loss_f + loss_bc − α·entropy + ½·q_coef·(Qret − Q)², weights and targets constant."""
        policy, q = network.policy_and_value(p, batch.observation)
        probs = policy.probs()[:-1]
        seen = acer.evaluate(network, config, params, params, batch)
        fixed = jax.lax.stop_gradient(seen.probs)
        truncated, corrected, entropy = acer.policy_terms(
            probs, fixed, jax.lax.stop_gradient(seen), batch.action, config.is_clip
        )
        q_loss = 0.5 * jnp.mean((seen.target - acer.taken(q[:-1], batch.action)) ** 2)
        return -jnp.mean(truncated + corrected + 0.01 * entropy) + 0.5 * q_loss

    expected = jax.grad(plain)(params)
    actual = jax.grad(lambda p: acer.acer_loss(network, config, params, p, batch)[0])(params)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_a_tight_trust_region_changes_only_the_policy():
    config, network, batch, params = batch_and_network(trust_region=0.0, shared_trunk=False)
    free = make_config(acer.ACERConfig, {"num_envs": 2, "num_steps": 5, "hidden_sizes": "8", "shared_trunk": False})

    # With π̄ = π, k is constant over actions and the softmax takes no notice: the average must differ. And k·g is
    # positive, so that the bound can bind, only where advantages are negative.
    batch = batch._replace(reward=batch.reward - 5.0)
    average = jax.tree.map(jnp.zeros_like, params)  # the uniform policy

    def gradient(c):
        return jax.grad(lambda p: acer.acer_loss(network, c, average, p, batch)[0])(params)

    tight, loose = gradient(config), gradient(free)
    np.testing.assert_allclose(tight["value_head"]["weight"], loose["value_head"]["weight"], atol=1e-6)
    assert not np.allclose(tight["policy_head"]["weight"], loose["policy_head"]["weight"], atol=1e-4)


@pytest.mark.parametrize(
    "space",
    [spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)],
    ids=lambda s: type(s).__name__,
)
def test_other_actions_are_refused_in_one_line(space):
    specs = Specs(SPECS.observation, action_spec(space))
    with pytest.raises(UserError, match="is not supported by acer") as error:
        acer.make(acer.ACERConfig(), specs)
    assert "\n" not in str(error.value)


def test_settings_for_box_actions_are_refused():
    with pytest.raises(UserError, match="init_log_std"):
        acer.make(make_config(acer.ACERConfig, {"init_log_std": 0.5}), SPECS)


def test_replayed_steps_are_plain_steps_on_the_replay_at_the_rate_of_the_iteration():
    config, network, batch, params = batch_and_network(replay_size=5, burn_in=0, off_policy_updates=8.0)
    algorithm = acer.make(config, SPECS)
    state = algorithm.with_params(algorithm.init(np.random.default_rng(0)), params)
    # The replay holds one rollout, of two environments that are alike: whatever is drawn, it is the same.
    one = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, :1], 2, axis=1), batch)
    optimizer, rate = optimizers.make_optimizer(config), np.float32(0.01)
    found, metrics = algorithm.update(state, one, jax.random.key(3), rate)
    count = int(metrics["off_policy_updates"])
    assert count > 2
    params, average, opt_state = state.params, state.average_params, optimizer.init(state.params)
    for _ in range(1 + count):
        gradient = jax.grad(lambda p: acer.acer_loss(network, config, average, p, one)[0])(params)  # noqa: B023
        params, opt_state = optimizers.apply(optimizer, params, opt_state, gradient, rate)
        average = jax.tree.map(lambda a, p: 0.99 * a + 0.01 * p, average, params)
    assert config.polyak == 0.99
    for a, b in zip(jax.tree.leaves(found.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    for a, b in zip(jax.tree.leaves(found.average_params), jax.tree.leaves(average), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_replay_waits_for_burn_in():
    # 12 steps an environment are 12 // 5 = 2 rollouts: the second iteration is the first that may replay.
    config, _, batch, _ = batch_and_network(replay_size=20, burn_in=12, off_policy_updates=8.0)
    algorithm = acer.make(config, SPECS)
    state, counts = algorithm.init(np.random.default_rng(0)), []
    for index in range(3):
        state, metrics = algorithm.update(state, batch, jax.random.key(index), np.float32(0))
        counts.append(int(metrics["off_policy_updates"]))
    assert counts[0] == 0
    assert min(counts[1:]) > 0  # ξ = 0 has probability e⁻⁸
