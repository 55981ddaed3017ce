"""What the actor-critic algorithms share: advantages under the current critic, the on-policy loss, a gradient step."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import optax

from p3o import frames, losses, optimizers
from p3o.networks import Network
from p3o.returns import generalized_advantage, value_where
from p3o.types import Array, Params, Trajectory


class ActorCriticConfig(Protocol):
    """The settings that the functions here read."""

    @property
    def gamma(self) -> float: ...
    @property
    def use_gae(self) -> bool: ...
    @property
    def gae_lambda(self) -> float: ...
    @property
    def value_coef(self) -> float: ...
    @property
    def entropy_coef(self) -> float: ...


Loss = Callable[[Network, Any, Params, Trajectory], tuple[Array, dict[str, Array]]]


def final_values(value: Callable[[Any], Array], batch: Trajectory) -> Array | None:
    """Values of the final observations at truncations, or None where a time limit counts as terminal."""
    if batch.final_observation is None:
        return None
    return value_where(value, batch.final_observation, batch.truncated)


def advantages_and_returns(
    network: Network, config: ActorCriticConfig, params: Params, batch: Trajectory, value: Array
) -> tuple[Array, Array]:
    """Â and R = Â + V of a trajectory under the current critic, whose values [T + 1, B] are given; constants."""
    value = jax.lax.stop_gradient(value)
    params = jax.lax.stop_gradient(params)
    advantage = generalized_advantage(
        batch.reward,
        value,
        batch.terminated,
        batch.truncated,
        final_values(lambda observation: network.value(params, observation), batch),
        config.gamma,
        config.gae_lambda if config.use_gae else 1.0,
    )
    return jax.lax.stop_gradient(advantage), jax.lax.stop_gradient(advantage + value[:-1])


def evaluate(network: Network, config: ActorCriticConfig, params: Params, batch: Trajectory) -> tuple[Any, ...]:
    """Policy [T, B], advantage and value loss of a batch, and the weight of its rows."""
    policy, value = network.policy_and_value(params, batch.observation)
    policy = jax.tree.map(lambda leaf: leaf[:-1], policy)  # the last observation only bootstraps
    advantage, target = advantages_and_returns(network, config, params, batch, value)
    weight = 1.0 - batch.is_masked
    return policy, advantage, losses.value_loss(value[:-1], target, weight), weight


def on_policy_loss(
    network: Network, config: ActorCriticConfig, params: Params, batch: Trajectory
) -> tuple[Array, dict[str, Array]]:
    """The policy gradient on fresh data, eq. (5) and the first term of eq. (14), with value loss and entropy bonus."""
    policy, advantage, value_loss, weight = evaluate(network, config, params, batch)
    policy_loss = losses.policy_gradient_loss(policy, batch.action, advantage, weight)
    entropy = losses.mean(policy.entropy(), weight)
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    return loss, {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}


def make_gradient_step(
    network: Network, config: Any, optimizer: optax.GradientTransformation, frame_stack: int = 0
) -> Callable[..., tuple]:
    """(loss, params, optimiser state, batch, rate) -> (params, optimiser state, metrics with the gradient's norm)."""

    def gradient_step(loss: Loss, params: Params, opt_state: Any, batch: Trajectory, rate: Array) -> tuple:
        batch = frames.expand(batch, frame_stack)
        (_, metrics), gradient = jax.value_and_grad(loss, argnums=2, has_aux=True)(network, config, params, batch)
        params, opt_state = optimizers.apply(optimizer, params, opt_state, gradient, rate)
        return params, opt_state, metrics | {"grad_norm": optax.tree.norm(gradient)}

    return gradient_step
