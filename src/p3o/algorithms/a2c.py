"""A2C: synchronous advantage actor-critic (Mnih et al. 2016), and A2CG, the same with generalised advantages.

One gradient step on each rollout: E[Â ∇ log π] with n-step returns, or GAE, minus the value.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o import optimizers
from p3o.algorithms.actor_critic import make_gradient_step, on_policy_loss
from p3o.algorithms.base import Algorithm, Metric, Specs
from p3o.config import Config, setting
from p3o.errors import UserError
from p3o.networks import make_network
from p3o.types import Array, Params, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class A2CConfig(Config):
    """Settings of A2C; the defaults are ours."""

    num_envs: int = setting(8, "Environments stepped side by side (K).", minimum=1, maximum=4096)
    num_steps: int = setting(16, "Steps each environment takes per iteration (T).", minimum=1, maximum=1_000_000)
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths of the tanh layers for vector observations.", minimum=1)
    learning_rate: float = setting(1e-3, "Step size at the start.", above=0, maximum=10)
    use_gae: bool = setting(False, "Generalised advantages; without: n-step returns minus the value.")
    gae_lambda: float = setting(
        0.95, "Decay τ of generalised advantage estimation, where use_gae is on.", minimum=0, maximum=1
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class A2CGConfig(A2CConfig):
    """A2C with generalised advantage estimation."""

    use_gae: bool = setting(True, "Generalised advantages; without: n-step returns minus the value.")


class A2CState(NamedTuple):
    params: Params
    opt_state: Any


METRICS = (
    Metric("entropy", "entropy of the policy", is_shown=True),
    Metric("policy_loss", "policy-gradient loss", is_shown=True),
    Metric("value_loss", "mean squared value error", is_shown=True),
    Metric("grad_norm", "global norm of the gradient before clipping", is_shown=True),
)


def make(config: A2CConfig, specs: Specs) -> Algorithm:
    """A2C for an environment."""
    if config.use_gae != isinstance(config, A2CGConfig):
        raise UserError("setting use_gae: A2C with generalised advantages is --algo a2cg, without them --algo a2c")
    network = make_network(specs.observation, specs.action, config)
    optimizer = optimizers.make_optimizer(config)
    gradient_step = make_gradient_step(network, config, optimizer, specs.observation.frame_stack)

    def init(rng: np.random.Generator) -> A2CState:
        params = jax.tree.map(jnp.asarray, network.init(rng))
        return A2CState(params, optimizer.init(params))

    def update(state: A2CState, rollout: Trajectory, key: Array, rate: Array) -> tuple[A2CState, dict[str, Array]]:
        params, opt_state, metrics = gradient_step(on_policy_loss, state.params, state.opt_state, rollout, rate)
        return A2CState(params, opt_state), metrics

    return Algorithm(
        network.init,
        init,
        network.policy,
        update,
        optimizers.decay_by_step(config),
        METRICS,
        host_policy=network.host_policy,
    )
