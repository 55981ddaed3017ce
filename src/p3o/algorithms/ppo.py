"""PPO: proximal policy optimisation with a clipped objective (Schulman et al. 2017), as in OpenAI Baselines' PPO2.

Each rollout is used for several epochs of shuffled minibatches; the ratio to the policy that collected it is clipped
at 1 ± ε, and so is the step of the value.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from p3o import frames, losses, optimizers
from p3o.algorithms.actor_critic import advantages_and_returns
from p3o.algorithms.base import Algorithm, Metric, Specs
from p3o.config import Config, setting
from p3o.distributions import Distribution
from p3o.errors import UserError
from p3o.networks import Network, make_network
from p3o.types import Array, Observation, Params, Trajectory


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOConfig(Config):
    """Settings of PPO; the defaults are ours."""

    num_envs: int = setting(1, "Environments stepped side by side (K).", minimum=1, maximum=4096)
    num_steps: int = setting(2048, "Steps each environment takes per iteration (T).", minimum=1, maximum=1_000_000)
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths of the tanh layers for vector observations.", minimum=1)
    use_gae: bool = setting(True, "Generalised advantages; without: n-step returns minus the value.")
    gae_lambda: float = setting(0.95, "Decay τ of generalised advantage estimation.", minimum=0, maximum=1)
    num_epochs: int = setting(10, "Passes over each rollout.", minimum=1)
    num_minibatches: int = setting(32, "Equal parts that each pass is split into.", minimum=1)
    clip_range: float = setting(0.2, "ε: how far the ratio may leave 1.", above=0)
    clip_schedule: str = setting(
        "constant", "ε stays, or falls with the learning rate.", choices=("constant", "linear")
    )
    clip_value: bool = setting(True, "Clip the step of the value at ±ε too.")
    normalize_advantage: bool = setting(True, "Centre and scale advantages within each minibatch.")


class PPOState(NamedTuple):
    params: Params
    opt_state: Any


class Minibatch(NamedTuple):
    """Shuffled samples of a rollout with what was fixed before the first epoch."""

    observation: Observation  # [N, ...]
    action: Array  # [N, ...]
    log_prob: Array  # [N] under the policy that acted
    value: Array  # [N] of the critic before the update
    advantage: Array  # [N]
    target: Array  # [N]
    weight: Array  # [N]


METRICS = (
    Metric("entropy", "entropy of the policy", is_shown=True),
    Metric("policy_loss", "clipped policy loss", is_shown=True),
    Metric("value_loss", "clipped value loss, with its factor ½", is_shown=True),
    Metric("approx_kl", "mean of (ρ − 1) − log ρ, an estimate of KL(old‖new)", is_shown=True),
    Metric("clip_fraction", "share of ratios outside 1 ± ε", is_shown=True),
    Metric("clip_range", "ε"),
    Metric("grad_norm", "global norm of the gradient before clipping"),
)


def normalized(advantage: Array, weight: Array) -> Array:
    """(x − mean) / (std + 1e-8) over the rows that count."""
    centred = advantage - losses.mean(advantage, weight)
    return centred / (jnp.sqrt(losses.mean(jnp.square(centred), weight)) + 1e-8)


def clipped_policy_loss(log_ratio: Array, advantage: Array, epsilon: Array, weight: Array) -> Array:
    """mean max(−Âρ, −Â clip(ρ, 1 ± ε))."""
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    return losses.mean(jnp.maximum(-advantage * ratio, -advantage * clipped), weight)


def clipped_value_loss(value: Array, old_value: Array, target: Array, epsilon: Array, weight: Array) -> Array:
    """½ mean max((V − R)², (V_clip − R)²) with V_clip within ±ε of the value before the update."""
    clipped = old_value + jnp.clip(value - old_value, -epsilon, epsilon)
    errors = jnp.maximum(jnp.square(value - target), jnp.square(clipped - target))
    return 0.5 * losses.mean(errors, weight)


def ppo_loss(
    network: Network, config: PPOConfig, epsilon: Array, params: Params, batch: Minibatch
) -> tuple[Array, dict[str, Array]]:
    """The loss of one minibatch."""
    policy: Distribution
    policy, value = network.policy_and_value(params, batch.observation)
    weight = batch.weight
    advantage = normalized(batch.advantage, weight) if config.normalize_advantage else batch.advantage
    log_ratio = policy.log_prob(batch.action) - batch.log_prob
    policy_loss = clipped_policy_loss(log_ratio, advantage, epsilon, weight)
    if config.clip_value:
        value_loss = clipped_value_loss(value, batch.value, batch.target, epsilon, weight)
    else:
        value_loss = 0.5 * losses.value_loss(value, batch.target, weight)
    entropy = losses.mean(policy.entropy(), weight)
    ratio = jnp.exp(log_ratio)
    return policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy, {
        "entropy": entropy,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "approx_kl": losses.mean(ratio - 1.0 - log_ratio, weight),
        "clip_fraction": losses.mean((jnp.abs(ratio - 1.0) > epsilon) * 1.0, weight),
        "clip_range": epsilon,
    }


def prepare(network: Network, config: PPOConfig, params: Params, rollout: Trajectory) -> Minibatch:
    """The whole rollout as one flat batch [T·E, ...], with values and advantages from before the update."""
    value = network.value(params, rollout.observation)
    advantage, target = advantages_and_returns(network, config, params, rollout, value)
    samples = Minibatch(
        observation=jax.tree.map(lambda leaf: leaf[:-1], rollout.observation),
        action=rollout.action,
        log_prob=rollout.behaviour.log_prob(rollout.action),
        value=value[:-1],
        advantage=advantage,
        target=target,
        weight=1.0 - rollout.is_masked,
    )
    size = config.steps_per_iteration
    return jax.tree.map(lambda leaf: leaf.reshape(size, *leaf.shape[2:]), samples)


def minibatch_rows(key: Array, config: PPOConfig) -> Array:
    """Samples of each minibatch [epochs · minibatches, samples]: every epoch goes once through all, shuffled anew."""
    epochs = jax.random.split(key, config.num_epochs)
    rows = jax.vmap(lambda epoch: jax.random.permutation(epoch, config.steps_per_iteration))(epochs)
    return rows.reshape(config.num_epochs * config.num_minibatches, -1)


def make(config: PPOConfig, specs: Specs) -> Algorithm:
    """PPO for an environment."""
    network = make_network(specs.observation, specs.action, config)
    optimizer = optimizers.make_optimizer(config)
    size = config.steps_per_iteration
    if size % config.num_minibatches:
        raise UserError(
            f"setting num_minibatches: {config.num_minibatches} does not divide the {size} samples of a rollout"
        )
    if config.clip_schedule == "linear" and config.lr_schedule != "linear":
        raise UserError("setting clip_schedule: linear needs lr_schedule=linear, since ε falls with the learning rate")

    def init(rng: np.random.Generator) -> PPOState:
        params = jax.tree.map(jnp.asarray, network.init(rng))
        return PPOState(params, optimizer.init(params))

    def update(state: PPOState, rollout: Trajectory, key: Array, rate: Array) -> tuple[PPOState, dict[str, Array]]:
        rollout = frames.expand(rollout, specs.observation.frame_stack)
        samples = prepare(network, config, state.params, rollout)
        decay = rate / config.learning_rate if config.clip_schedule == "linear" else 1.0
        epsilon = jnp.asarray(config.clip_range * decay, jnp.float32)

        def step(carry: tuple, rows: Array) -> tuple[tuple, dict[str, Array]]:
            params, opt_state = carry
            batch = jax.tree.map(lambda leaf: leaf[rows], samples)
            loss = jax.value_and_grad(ppo_loss, argnums=3, has_aux=True)
            (_, metrics), gradient = loss(network, config, epsilon, params, batch)
            params, opt_state = optimizers.apply(optimizer, params, opt_state, gradient, rate)
            return (params, opt_state), metrics | {"grad_norm": optax.tree.norm(gradient)}

        rows = minibatch_rows(key, config)
        (params, opt_state), metrics = jax.lax.scan(step, (state.params, state.opt_state), rows)
        return PPOState(params, opt_state), {name: jnp.mean(values) for name, values in metrics.items()}

    return Algorithm(
        network.init,
        init,
        network.policy,
        update,
        optimizers.decay_from_one(config),
        METRICS,
        host_policy=network.host_policy,
    )
