"""The terms of eq. (14) on numbers worked by hand, their limits, and what no gradient may pass through."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o import losses
from p3o.algorithms.base import Specs, example_trajectory
from p3o.algorithms.p3o import P3OConfig, on_policy_loss, replayed_loss
from p3o.config import make_config
from p3o.distributions import Categorical, DiagonalGaussian
from p3o.losses import effective_sample_size, off_policy_loss
from p3o.networks import make_network
from p3o.spaces import action_spec, observation_spec
from p3o.types import Observation

ONES = jnp.ones


def ess(ratios, weight=None):
    log_ratio = jnp.log(jnp.asarray(ratios, jnp.float32))
    return float(effective_sample_size(log_ratio, ONES(log_ratio.shape) if weight is None else jnp.asarray(weight)))


def test_ess_by_hand():
    assert ess([1, 1, 1, 1]) == pytest.approx(1)
    assert ess([0.3, 0.3]) == pytest.approx(1)  # only the spread counts
    assert ess([1, 2, 3]) == pytest.approx(36 / (3 * 14), rel=1e-6)  # (1 + 2 + 3)² / (3 (1 + 4 + 9))
    assert ess([1, 1e-9, 1e-9, 1e-9]) == pytest.approx(1 / 4, rel=1e-6)  # one sample carries all


def test_ess_leaves_masked_rows_out():
    # The ratio 50 is masked: (1 + 3)² / (2 (1 + 9)) = 16 / 20.
    assert ess([1, 50, 3], [1.0, 0.0, 1.0]) == pytest.approx(0.8, rel=1e-6)


def test_ess_of_no_rows_is_one():
    # Nothing replayed that counts: λ = 0, c = 1 and all sums are empty, rather than 0/0.
    assert ess([1, 2], [0.0, 0.0]) == 1


@pytest.mark.parametrize("number", [7, 11])
def test_equal_ratios_never_round_to_more_than_one(number):
    assert ess([1.0] * number) == 1


def test_ess_is_computed_in_log_space():
    # Ratios e^300 and 2·e^300 overflow float32; ESS = (1 + 2)² / (2 · 5) all the same.
    for shift in (300.0, -300.0):
        log_ratio = jnp.array([shift, shift + math.log(2)])
        assert float(effective_sample_size(log_ratio, ONES(2))) == pytest.approx(0.9, rel=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.lists(st.floats(-15, 15), min_size=n, max_size=n) for n in (1, 2, 9)))
def test_ess_lies_between_one_over_n_and_one(log_ratios):
    value = float(effective_sample_size(jnp.array(log_ratios, jnp.float32), ONES(len(log_ratios))))
    assert 1 / len(log_ratios) * (1 - 1e-5) <= value <= 1
    plain = np.exp(np.array(log_ratios))
    assert value == pytest.approx(plain.sum() ** 2 / (plain.size * (plain**2).sum()), rel=1e-4)


def test_mean_is_over_the_rows_that_count():
    assert float(losses.mean(jnp.array([1.0, 5.0, 100.0]), jnp.array([1.0, 1.0, 0.0]))) == 3
    assert float(losses.mean(jnp.array([1.0]), jnp.array([0.0]))) == 0


def three_ratios():
    """A replayed minibatch of three samples of a two-action policy whose ratios are 1, 2 and ½.

    π = (½, ½) everywhere; β gave the chosen action 0 the probability ½, ¼ and (nearly) 1.
    """
    policy = Categorical(jnp.zeros((3, 2)))
    taken = np.array([0.5, 0.25, 1 - 1e-6])
    behaviour = Categorical(jnp.asarray(np.log(np.stack([taken, 1 - taken], axis=-1)), jnp.float32))
    return policy, behaviour, jnp.zeros(3, jnp.int32), jnp.array([1.0, -1.0, 2.0])


def test_off_policy_loss_by_hand():
    policy, behaviour, action, advantage = three_ratios()
    # ESS = (1 + 2 + ½)² / (3 (1 + 4 + ¼)) = 12.25 / 15.75 = 7/9; λ = 2/9, c = 7/9.
    # Clipped ratios 7/9, 7/9, ½; log π = −log 2, so −mean(ρ Â log π) = log 2 (7/9 − 7/9 + 1) / 3.
    terms = off_policy_loss(policy, behaviour, action, advantage, ONES(3))
    assert float(terms.ess) == pytest.approx(7 / 9, rel=1e-4)
    assert float(terms.is_clip) == float(terms.ess)
    assert float(terms.kl_coef) == pytest.approx(2 / 9, rel=1e-3)
    assert float(terms.policy_loss) == pytest.approx(math.log(2) / 3, rel=1e-4)
    assert float(terms.ratio_mean) == pytest.approx(3.5 / 3, rel=1e-4)
    assert float(terms.ratio_max) == pytest.approx(2, rel=1e-4)
    # KL(π‖β) of the rows: 0, log 2 − ½ log 3 and −log 2 − ½ log(1 − ε) − ½ log ε.
    kl = (0 + math.log(2) - 0.5 * math.log(3) - math.log(2) - 0.5 * math.log(1e-6)) / 3
    assert float(terms.kl) == pytest.approx(kl, rel=1e-2)  # 1 − ε in float32
    assert float(terms.loss) == pytest.approx(float(terms.policy_loss + terms.kl_coef * terms.kl), rel=1e-6)


def test_numbers_for_lambda_and_c_replace_the_ess():
    policy, behaviour, action, advantage = three_ratios()
    terms = off_policy_loss(policy, behaviour, action, advantage, ONES(3), kl_coef=0.5, is_clip=1.5)
    # Clipped ratios 1, 1.5, ½: log 2 (1 − 1.5 + 1) / 3.
    assert float(terms.policy_loss) == pytest.approx(0.5 * math.log(2) / 3, rel=1e-4)
    assert (float(terms.kl_coef), float(terms.is_clip)) == (0.5, 1.5)
    assert float(terms.loss) == pytest.approx(float(terms.policy_loss + 0.5 * terms.kl), rel=1e-6)


def test_limits_of_lambda_and_c():
    policy, behaviour, action, advantage = three_ratios()
    no_kl = off_policy_loss(policy, behaviour, action, advantage, ONES(3), kl_coef=0.0, is_clip=1e9)
    assert float(no_kl.loss) == float(no_kl.policy_loss)  # λ = 0 drops the KL
    ratio = jnp.exp(losses.log_importance_ratio(policy, behaviour, action))
    unclipped = -jnp.mean(ratio * advantage * policy.log_prob(action))  # c → ∞ is plain importance sampling
    assert float(no_kl.policy_loss) == pytest.approx(float(unclipped), rel=1e-6)


def test_a_minibatch_carried_by_one_sample_leaves_only_the_penalty():
    # Ratios (1, ε, ε, ε): ESS → 1/N, so c → 1/N and λ → 1 − 1/N, and the policy gradient shrinks with them.
    taken = np.array([0.5, 1 - 1e-6, 1 - 1e-6, 1 - 1e-6])
    behaviour = Categorical(jnp.asarray(np.log(np.stack([taken, 1 - taken], axis=-1)), jnp.float32))
    action = jnp.zeros(4, jnp.int32)

    def policy_loss(logits):
        return off_policy_loss(Categorical(logits), behaviour, action, ONES(4), ONES(4)).policy_loss

    away = jnp.array([[0.0, 0.0], *[[-12.0, 0.0]] * 3])
    terms = off_policy_loss(Categorical(away), behaviour, action, ONES(4), ONES(4))
    assert float(terms.is_clip) == pytest.approx(1 / 4, rel=1e-3)
    assert float(terms.kl_coef) == pytest.approx(3 / 4, rel=1e-3)
    # ∇(−log π) of the first row is (−½, ½), weighted c/N = 1/16; the other rows have no weight.
    gradient = jax.grad(policy_loss)(away)
    np.testing.assert_allclose(gradient, [[-1 / 32, 1 / 32], *[[0, 0]] * 3], atol=1e-4)


@pytest.mark.parametrize("direction", ["policy_behaviour", "behaviour_policy"])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_kl_penalty_names_its_direction_and_reduction(direction, reduction):
    policy = DiagonalGaussian(jnp.zeros((2, 3)), jnp.zeros((2, 3)))
    behaviour = DiagonalGaussian(jnp.ones((2, 3)), jnp.full((2, 3), math.log(2)))
    # Per dimension KL(π‖β) = log 2 + (1 + 1)/8 − ½, KL(β‖π) = −log 2 + (4 + 1)/2 − ½; the second row is masked.
    one = math.log(2) - 0.25 if direction == "policy_behaviour" else 2 - math.log(2)
    value = losses.kl_penalty(policy, behaviour, direction, reduction, jnp.array([1.0, 0.0]))
    assert float(value) == pytest.approx(one * (3 if reduction == "sum" else 1), rel=1e-6)


def test_log_ratio_is_capped():
    policy = DiagonalGaussian(jnp.zeros((1, 1)), jnp.zeros((1, 1)))
    far = DiagonalGaussian(jnp.full((1, 1), 100.0), jnp.zeros((1, 1)))
    assert float(losses.log_importance_ratio(policy, far, jnp.zeros((1, 1)))[0]) == losses.LOG_RATIO_CAP
    assert float(losses.log_importance_ratio(far, policy, jnp.zeros((1, 1)))[0]) == -losses.LOG_RATIO_CAP


def test_no_gradient_passes_through_lambda_and_c():
    """The gradient is that of the loss with λ, c and ρ held at their values, which differs from the full derivative."""
    rng = np.random.default_rng(0)
    behaviour = Categorical(jnp.asarray(rng.standard_normal((6, 3)), jnp.float32))
    action = jnp.asarray(rng.integers(3, size=6), jnp.int32)
    advantage = jnp.asarray(rng.standard_normal(6), jnp.float32)
    logits = jnp.asarray(rng.standard_normal((6, 3)), jnp.float32)
    ratio = jnp.exp(losses.log_importance_ratio(Categorical(logits), behaviour, action))
    held = off_policy_loss(Categorical(logits), behaviour, action, advantage, ONES(6))

    def loss(x):
        return off_policy_loss(Categorical(x), behaviour, action, advantage, ONES(6)).loss

    def frozen(x):  # eq. (14) with constants
        weight = jnp.minimum(ratio, held.is_clip)
        kl = jnp.mean(Categorical(x).kl(behaviour))
        return -jnp.mean(weight * advantage * Categorical(x).log_prob(action)) + held.kl_coef * kl

    @functools.partial(jax.jit, static_argnums=0)
    def difference(function, at, epsilon=1e-2):
        steps = epsilon * jnp.eye(at.size).reshape(-1, *at.shape)
        slopes = jax.vmap(lambda step: (function(at + step) - function(at - step)) / (2 * epsilon))(steps)
        return slopes.reshape(at.shape)

    gradient = jax.grad(loss)(logits)
    np.testing.assert_allclose(gradient, difference(frozen, logits), atol=2e-4)
    assert np.abs(gradient - difference(loss, logits)).max() > 1e-2


# The losses of the whole algorithm on a small network.

ACTIONS = {"gaussian": spaces.Box(-1, 1, (2,)), "categorical": spaces.Discrete(3)}


@functools.cache  # one object for equal settings, so that it is compiled once
def network_of(kind, config):
    specs = Specs(observation_spec(spaces.Box(-1, 1, (4,))), action_spec(ACTIONS[kind]))
    return specs, make_network(specs.observation, specs.action, config)


def small_batch(kind, seed=0, is_fresh=True, **settings):
    """A network and a rollout of it: five steps of three environments with ends of both kinds and a masked row."""
    rng = np.random.default_rng(seed)
    base = {"num_envs": 3, "num_steps": 5, "hidden_sizes": (8,), "policy_head_gain": 1.0, "gamma": 0.9}
    config = make_config(P3OConfig, base, settings)
    specs, network = network_of(kind, config)
    params = network.init(rng)
    batch = example_trajectory(config, specs)
    observation = Observation(rng.standard_normal((6, 3, 4)).astype(np.float32), ())
    behaviour = jax.tree.map(lambda leaf: leaf[:-1], network.policy(params, observation))
    action = behaviour.sample(specs.action.noise(rng, (5, 3)))
    if not is_fresh:
        behaviour = jax.tree.map(
            lambda leaf: leaf + 0.3 * rng.standard_normal(leaf.shape).astype(np.float32), behaviour
        )
    terminated, truncated, is_masked = (np.zeros((5, 3), bool) for _ in range(3))
    terminated[1, 0] = truncated[2, 1] = is_masked[3, 2] = True
    batch = batch._replace(
        observation=observation,
        action=action,
        behaviour=behaviour,
        reward=rng.standard_normal((5, 3)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        is_masked=is_masked,
    )
    if batch.final_observation is not None:
        batch = batch._replace(final_observation=Observation(rng.standard_normal((5, 3, 4)).astype(np.float32), ()))
    return network, config, params, batch


@functools.partial(jax.jit, static_argnums=(0, 1))
def gradients(network, config, params, batch):
    """(gradient, metrics) of the on-policy and of the replayed loss."""
    return tuple(
        jax.grad(loss, argnums=2, has_aux=True)(network, config, params, batch)
        for loss in (on_policy_loss, replayed_loss)
    )


@pytest.mark.parametrize(
    ("kind", "time_limit"), [("gaussian", "bootstrap"), ("gaussian", "terminal"), ("categorical", "bootstrap")]
)
def test_off_policy_gradient_on_fresh_data_is_the_on_policy_gradient(kind, time_limit):
    # β = π, so ρ = 1, ESS = 1, c = 1, λ = 0; the entropy bonus is off.
    network, config, params, batch = small_batch(kind, time_limit=time_limit)
    (on, _), (off, aux) = gradients(network, config, params, batch)
    assert float(aux["ess"]) == pytest.approx(1, abs=1e-5)
    assert jax.tree.structure(on) == jax.tree.structure(off)
    for path, leaf in jax.tree_util.tree_leaves_with_path(on):
        other = dict(jax.tree_util.tree_leaves_with_path(off))[path]
        np.testing.assert_allclose(leaf, other, rtol=1e-4, atol=1e-6, err_msg=jax.tree_util.keystr(path))
        assert np.abs(leaf).max() > 1e-4, path  # every parameter takes part


def test_stale_data_gives_another_gradient():
    network, config, params, batch = small_batch("categorical", is_fresh=False)
    (on, _), (off, aux) = gradients(network, config, params, batch)
    assert 1 / 14 < float(aux["ess"]) < 0.99
    assert np.abs(on["policy_head"]["weight"] - off["policy_head"]["weight"]).max() > 1e-3
    # The value loss is not weighted by ρ: its gradient is the same on fresh and on stale data.
    np.testing.assert_allclose(on["value_head"]["weight"], off["value_head"]["weight"], rtol=1e-5)


def test_masked_rows_have_no_say():
    network, config, params, batch = small_batch("categorical", is_fresh=False)
    _, reference = gradients(network, config, params, batch)
    # Row (3, 2) is masked: its action and behaviour may be anything. (Its reward is of no decision either, but it is
    # part of earlier advantages unless the row before ended an episode, as every masked row's does.)
    action, behaviour = batch.action.copy(), jax.tree.map(np.copy, batch.behaviour)
    action[3, 2] = (action[3, 2] + 1) % 3
    behaviour.logits[3, 2] *= -1
    _, changed = gradients(network, config, params, batch._replace(action=action, behaviour=behaviour))
    jax.tree.map(np.testing.assert_array_equal, reference, changed)
    action[2, 2] = (action[2, 2] + 1) % 3  # and a row that counts
    _, changed = gradients(network, config, params, batch._replace(action=action, behaviour=behaviour))
    assert float(changed[1]["ess"]) != float(reference[1]["ess"])


def test_weights_of_the_value_loss_and_of_the_entropy_bonus():
    """The bonus is in the on-policy loss, and only by a setting in the replayed one."""
    network, config, params, batch = small_batch("categorical", entropy_coef=0.0)
    bonus = dataclasses.replace(config, entropy_coef=0.1)
    both = dataclasses.replace(bonus, off_policy_entropy=True)
    more_value = dataclasses.replace(config, value_coef=2.0)

    @jax.jit
    def values(params, batch):
        on = [on_policy_loss(network, c, params, batch) for c in (config, bonus, more_value)]
        off = [replayed_loss(network, c, params, batch)[0] for c in (config, bonus, both)]
        return *(loss for loss, _ in on), *off, on[0][1]["entropy"], on[0][1]["value_loss"]

    on, on_bonus, on_value, off, off_bonus, off_both, entropy, value_loss = map(float, values(params, batch))
    assert on_value - on == pytest.approx((2.0 - config.value_coef) * value_loss, rel=1e-4)
    assert on - on_bonus == pytest.approx(0.1 * entropy, rel=1e-4)
    assert off == off_bonus
    assert off - off_both == pytest.approx(0.1 * entropy, rel=1e-4)


def test_value_loss_by_hand():
    # mean[(R − V)²] = ((1 − 0)² + (2 − 4)²) / 2 = 2.5, without a half of its own; the target is constant.
    value, target = jnp.array([0.0, 4.0]), jnp.array([1.0, 2.0])
    assert float(losses.value_loss(value, target, ONES(2))) == 2.5
    np.testing.assert_allclose(jax.grad(losses.value_loss, argnums=(0, 1))(value, target, ONES(2)), ([-1, 2], [0, 0]))
