"""Optimisers in the conventions that the papers' code used; the learning rate is an argument of each step."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from p3o.config import Config
from p3o.types import Array, Params


class TFAdamState(NamedTuple):
    count: Array
    mu: Params
    nu: Params


def scale_by_adam_tf(b1: float = 0.9, b2: float = 0.999, eps: float = 1e-5) -> optax.GradientTransformation:
    """Adam in TensorFlow's form: √(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε), so ε is not bias-corrected."""

    def init(params: Params) -> TFAdamState:
        # twice: both are donated to the update
        mu, nu = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return TFAdamState(jnp.zeros((), jnp.int32), mu, nu)

    def update(gradient: Params, state: TFAdamState, params: Params | None = None) -> tuple[Params, TFAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mu, gradient)
        nu = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, state.nu, gradient)
        rate = jnp.sqrt(1 - b2**count) / (1 - b1**count)
        return jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + eps), mu, nu), TFAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def clip_separately(max_norm: float) -> optax.GradientTransformation:
    """Clip the value network's gradient by its own norm and all the rest by theirs; a shared trunk is of the rest."""
    clip = optax.clip_by_global_norm(max_norm)

    def update(gradient: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        parts = ({k: v for k, v in gradient.items() if k.startswith("value") == is_value} for is_value in (True, False))
        return {k: v for part in parts for k, v in clip.update(part, state)[0].items()}, state

    return optax.GradientTransformation(clip.init, update)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Global-norm clip, then the optimiser's direction at learning rate 1."""
    eps = config.optimizer_epsilon
    rules: dict[str, Any] = {
        "adam": lambda: optax.scale_by_adam(eps=eps),
        "adam_tf": lambda: scale_by_adam_tf(eps=eps),
        # torch: zeros at the start, ε outside the root
        "rmsprop": lambda: optax.scale_by_rms(config.rmsprop_decay, eps, initial_scale=0.0, eps_in_sqrt=False),
        # TensorFlow: ones at the start (a warm-up of some 500 steps), ε inside the root
        "rmsprop_tf": lambda: optax.scale_by_rms(config.rmsprop_decay, eps, initial_scale=1.0, eps_in_sqrt=True),
    }
    clip = clip_separately if config.grad_clip == "separate" else optax.clip_by_global_norm
    chain = optax.chain(clip(config.max_grad_norm), rules[config.optimizer]())
    # compiled as one: JAX would otherwise compile a filling function for each shape, a second at every start
    return optax.GradientTransformation(jax.jit(chain.init), chain.update)


def apply(
    optimizer: optax.GradientTransformation, params: Params, opt_state: Any, gradient: Params, learning_rate: Array
) -> tuple[Params, Any]:
    """One descent step."""
    direction, opt_state = optimizer.update(gradient, opt_state, params)
    return jax.tree.map(lambda p, d: p - learning_rate * d, params, direction), opt_state


def num_iterations(config: Config, steps: int) -> int:
    """Iterations of a run: it ends at the first whole one at or past its steps."""
    return -(-steps // config.steps_per_iteration)


def decay_by_iteration(config: Config) -> Callable[[int, int], float]:
    """lr·(1 − k/M) in iteration k = 1, 2, …, M − 1 of a run, as the P3O authors' code has it: it never reaches 0."""

    def rate(step: int, schedule_steps: int) -> float:
        if config.lr_schedule == "constant":
            return config.learning_rate
        iteration = step // config.steps_per_iteration + 1
        total = num_iterations(config, schedule_steps) + 1
        return config.learning_rate * max(0.0, 1.0 - iteration / total)

    return rate


def decay_by_step(config: Config) -> Callable[[int, int], float]:
    """lr·(1 − n/steps) with n the last environment step of the iteration, counted from 0, as Baselines' A2C has it."""

    def rate(step: int, schedule_steps: int) -> float:
        if config.lr_schedule == "constant":
            return config.learning_rate
        iterations = num_iterations(config, schedule_steps)
        if iterations == 1:
            return config.learning_rate  # the rule below would leave nothing of it
        total = iterations * config.steps_per_iteration
        last = min(step + config.steps_per_iteration, total) - 1  # rows that do not count may shift iterations
        return config.learning_rate * max(0.0, 1.0 - last / total)

    return rate


def decay_from_one(config: Config) -> Callable[[int, int], float]:
    """lr·(1 − (k − 1)/M) in iteration k = 1, 2, …, M of a run, as Baselines' PPO has it."""

    def rate(step: int, schedule_steps: int) -> float:
        if config.lr_schedule == "constant":
            return config.learning_rate
        done = step // config.steps_per_iteration
        return config.learning_rate * max(0.0, 1.0 - done / num_iterations(config, schedule_steps))

    return rate
