"""The first two steps of every optimiser by hand, the clip, and the learning-rate decay."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from p3o import optimizers
from p3o.config import Config, make_config

RATE = 0.1


def steps(gradients, **settings):
    """Parameters after each step from 0 with the given gradients."""
    optimizer = optimizers.make_optimizer(
        make_config(Config, {"max_grad_norm": 1e9, "optimizer_epsilon": 0.5}, settings)
    )
    params = {"x": jnp.zeros(len(gradients[0]))}
    state, result = optimizer.init(params), []
    for gradient in gradients:
        params, state = optimizers.apply(optimizer, params, state, {"x": jnp.asarray(gradient)}, np.float32(RATE))
        result.append(np.asarray(params["x"]))
    return result


def test_adam_by_hand():
    # g = 2, then 4; β₁ = 0.9, β₂ = 0.999, ε = ½ outside the bias-corrected root.
    # m̂₁ = 2, v̂₁ = 4: step 2 / (2 + ½).
    # m₂ = 0.9·0.2 + 0.1·4 = 0.58, m̂₂ = 0.58/0.19; v₂ = 0.999·0.004 + 0.001·16 = 0.019996, v̂₂ = v₂/0.001999.
    first, second = steps([[2.0], [4.0]], optimizer="adam")
    assert first[0] == pytest.approx(-RATE * 2 / 2.5, rel=1e-5)
    step = (0.58 / 0.19) / (math.sqrt(0.019996 / 0.001999) + 0.5)
    assert second[0] - first[0] == pytest.approx(-RATE * step, rel=1e-4)


def test_adam_in_tensorflow_form_by_hand():
    # The same moments, but √(1 − β₂ᵗ)/(1 − β₁ᵗ) · m / (√v + ε): ε weighs 1/√0.001 ≈ 32 times more in step 1.
    first, second = steps([[2.0], [4.0]], optimizer="adam_tf")
    step = math.sqrt(0.001) / 0.1 * 0.2 / (math.sqrt(0.004) + 0.5)
    assert first[0] == pytest.approx(-RATE * step, rel=1e-4)
    step = math.sqrt(0.001999) / 0.19 * 0.58 / (math.sqrt(0.019996) + 0.5)
    assert second[0] - first[0] == pytest.approx(-RATE * step, rel=1e-4)


def test_rmsprop_by_hand():
    # torch: s₁ = 0.25·4 = 1, step 2/(1 + ½); s₂ = 0.75·1 + 0.25·16 = 4.75, step 4/(√4.75 + ½), with decay ¾.
    first, second = steps([[2.0], [4.0]], optimizer="rmsprop", rmsprop_decay=0.75)
    assert first[0] == pytest.approx(-RATE * 2 / 1.5, rel=1e-5)
    assert second[0] - first[0] == pytest.approx(-RATE * 4 / (math.sqrt(4.75) + 0.5), rel=1e-5)


def test_rmsprop_in_tensorflow_form_by_hand():
    # Squares start at 1 and ε is inside the root: s₁ = ¾ + ¼·4 = 1.75, step 2/√(1.75 + ½) = 2/1.5;
    # s₂ = ¾·1.75 + ¼·16 = 5.3125, step 4/√5.8125.
    first, second = steps([[2.0], [4.0]], optimizer="rmsprop_tf", rmsprop_decay=0.75)
    assert first[0] == pytest.approx(-RATE * 2 / 1.5, rel=1e-5)
    assert second[0] - first[0] == pytest.approx(-RATE * 4 / math.sqrt(5.8125), rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "adam_tf", "rmsprop", "rmsprop_tf"])
def test_gradients_are_clipped_by_their_global_norm_first(optimizer):
    # ‖(3, 4)‖ = 5 is clipped to 0.5: (0.3, 0.4), whatever the optimiser does then. Below the limit nothing changes.
    clipped = steps([[3.0, 4.0]] * 2, optimizer=optimizer, max_grad_norm=0.5)
    np.testing.assert_allclose(clipped, steps([[0.3, 0.4]] * 2, optimizer=optimizer), rtol=1e-5)
    np.testing.assert_allclose(
        steps([[0.3, 0.3]] * 2, optimizer=optimizer, max_grad_norm=0.5), steps([[0.3, 0.3]] * 2, optimizer=optimizer)
    )


@pytest.mark.parametrize("optimizer", ["adam", "adam_tf", "rmsprop", "rmsprop_tf"])
def test_the_state_can_be_donated(optimizer):
    """Two moments that are one buffer would be given away twice."""
    state = optimizers.make_optimizer(make_config(Config, {"optimizer": optimizer})).init({"x": jnp.zeros(2)})
    jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)(state)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))


def test_the_norm_is_over_all_arrays_together():
    optimizer = optimizers.make_optimizer(make_config(Config, {"max_grad_norm": 1.0, "optimizer": "rmsprop"}))
    params = {"a": jnp.zeros(1), "b": jnp.zeros((1, 1))}
    gradient = {"a": jnp.full(1, 3.0), "b": jnp.full((1, 1), 4.0)}
    # Clipped to (0.6, 0.8); s = 0.01 g², step g/(0.1 g + 1e-5) ≈ 10 for both.
    params, _ = optimizers.apply(optimizer, params, optimizer.init(params), gradient, np.float32(1.0))
    np.testing.assert_allclose(params["a"], -0.6 / (0.06 + 1e-5), rtol=1e-5)
    np.testing.assert_allclose(params["b"], -0.8 / (0.08 + 1e-5), rtol=1e-5)


def test_decay_by_iteration_by_hand():
    # K·T = 128 steps an iteration, 1000 steps: 8 iterations, M = 9 and lr·(1 − k/9) in iteration k = 1, …, 8.
    config = make_config(Config, {"num_envs": 2, "num_steps": 64, "learning_rate": 0.9, "lr_schedule": "linear"})
    rate = optimizers.decay_by_iteration(config)
    assert [rate(step, 1000) for step in (0, 128, 256, 896)] == pytest.approx([0.8, 0.7, 0.6, 0.1])
    assert rate(2048, 1000) == 0  # never below
    # Steps that are no multiple (masked rows do not count) belong to the iteration they fall into.
    assert rate(127, 1000) == pytest.approx(0.8)
    # A run of 23,437 whole iterations: M = 23,438 as in the authors' code; first lr (1 − 1/M), last lr/M.
    paper = optimizers.decay_by_iteration(make_config(Config, {"learning_rate": 3e-4}))
    assert paper(0, 23437 * 128) == pytest.approx(3e-4 * (1 - 1 / 23438))
    assert paper(23436 * 128, 23437 * 128) == pytest.approx(3e-4 / 23438)


def test_decay_by_step_by_hand():
    # 128 steps an iteration, 1000 steps are 8 iterations or 1024 steps; the last of the first is 127, counted from 0.
    config = make_config(Config, {"num_envs": 2, "num_steps": 64, "learning_rate": 1.0})
    rate = optimizers.decay_by_step(config)
    assert [rate(step, 1000) for step in (0, 128, 896)] == pytest.approx([897 / 1024, 769 / 1024, 1 / 1024])
    assert rate(0, 100) == 1.0  # one iteration: all of it


def test_decay_from_one_by_hand():
    # ⌈1000 / 128⌉ = 8 iterations: 1, 7/8, …, 1/8.
    config = make_config(Config, {"num_envs": 2, "num_steps": 64, "learning_rate": 1.0})
    rate = optimizers.decay_from_one(config)
    assert [rate(step, 1000) for step in (0, 128, 7 * 128, 8 * 128)] == pytest.approx([1, 7 / 8, 1 / 8, 0])


@pytest.mark.parametrize("steps", [1, 127, 128, 129, 1000])
@pytest.mark.parametrize("decay", [optimizers.decay_by_iteration, optimizers.decay_by_step, optimizers.decay_from_one])
def test_no_iteration_of_a_run_has_rate_zero(decay, steps):
    config = make_config(Config, {"num_envs": 2, "num_steps": 64})
    rate = decay(config)
    assert min(rate(step, steps) for step in range(0, steps, 128)) > 0
    assert min(rate(step, steps) for step in range(steps)) > 0  # iterations of games begin at any step


@pytest.mark.parametrize("decay", [optimizers.decay_by_iteration, optimizers.decay_by_step, optimizers.decay_from_one])
def test_constant_schedule(decay):
    rate = decay(make_config(Config, {"learning_rate": 0.1, "lr_schedule": "constant"}))
    assert rate(0, 1000) == rate(10**9, 1000) == 0.1


def test_networks_are_clipped_apart():
    # norms 5 and 10, clipped at 1: jointly both are divided by √125, apart by 5 and 10; log_std is the policy's
    gradient = {
        "policy": [{"w": jnp.array([3.0, 0.0])}],
        "log_std": jnp.array([4.0]),
        "value": [{"w": jnp.array([6.0])}],
        "value_head": {"b": jnp.array([8.0])},
    }
    expected = {"joint": (math.sqrt(125), math.sqrt(125)), "separate": (5.0, 10.0)}
    for how, (policy, value) in expected.items():
        config = make_config(Config, {"max_grad_norm": 1.0, "grad_clip": how, "optimizer": "rmsprop"}, {})
        optimizer = optimizers.make_optimizer(config)
        state = optimizer.init(gradient)
        clip = optimizers.clip_separately(1.0) if how == "separate" else optax.clip_by_global_norm(1.0)
        clipped, _ = clip.update(gradient, clip.init(gradient))
        assert clipped["policy"][0]["w"][0] == pytest.approx(3 / policy)
        assert clipped["log_std"][0] == pytest.approx(4 / policy)
        assert clipped["value"][0]["w"][0] == pytest.approx(6 / value)
        assert clipped["value_head"]["b"][0] == pytest.approx(8 / value)
        # and the optimiser takes it: RMSprop's memory holds the square of what was left
        _, state = optimizer.update(gradient, state, gradient)
        assert state[1].nu["value_head"]["b"][0] == pytest.approx(0.01 * (8 / value) ** 2, rel=1e-4)
