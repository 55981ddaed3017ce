"""ACER: actor-critic with experience replay (Wang et al. 2017), for discrete actions, as in OpenAI Baselines.

A Q head replaces the value head, V = Σ π Q. Retrace gives the targets; the off-policy gradient truncates importance
ratios at c and corrects the bias; a trust region around a Polyak average of past policies bounds the step, on the
probabilities. The same loss serves the fresh rollout and n ~ Poisson(4) replayed ones.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.lax import stop_gradient

from p3o import frames, losses, optimizers, replay
from p3o.algorithms.actor_critic import final_values
from p3o.algorithms.base import Algorithm, Metric, Specs, example_trajectory
from p3o.config import Config, setting
from p3o.errors import UserError
from p3o.networks import Network, make_network
from p3o.types import Array, Params, Trajectory

EPSILON = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class ACERConfig(Config):
    """Settings of ACER; the defaults are ours."""

    num_envs: int = setting(4, "Environments stepped side by side (K).", minimum=1, maximum=4096)
    num_steps: int = setting(20, "Steps each environment takes per iteration (T).", minimum=1, maximum=1_000_000)
    hidden_sizes: tuple[int, ...] = setting((64, 64), "Widths of the tanh layers for vector observations.", minimum=1)
    learning_rate: float = setting(7e-4, "Step size at the start.", above=0, maximum=10)
    entropy_coef: float = setting(0.01, "Weight α of the entropy bonus.", minimum=0)
    value_coef: float = setting(0.5, "Weight of the Q loss.", minimum=0)
    shared_trunk: bool = setting(True, "Policy and Q share all layers but their heads.")
    replay_size: int = setting(5_000, "Steps per environment that the replay keeps.", minimum=1)
    replay_device: str = setting(
        "auto",
        "Where the replay lies: on the GPU, in the host's memory, or (auto) on the GPU if it fits with room to spare.",
        choices=("auto", "gpu", "host"),
    )
    burn_in: int = setting(1_000, "Steps per environment before replayed updates start.", minimum=0)
    off_policy_updates: float = setting(
        4.0,
        "Mean of the Poisson number of replayed updates per iteration; 0 switches the replay off.",
        minimum=0,
        maximum=1000,
    )
    is_clip: float = setting(10.0, "Truncation c of the importance ratios.", above=0)
    use_trust_region: bool = setting(True, "Project the gradient into the trust region.")
    trust_region: float = setting(1.0, "δ: bound on the linearised KL to the average policy.", minimum=0)
    polyak: float = setting(0.99, "Share of the old average in each Polyak step.", minimum=0, maximum=1)


class ACERState(NamedTuple):
    params: Params
    average_params: Params
    opt_state: Any
    replay: replay.ReplayState | replay.Minibatches | None


METRICS = (
    Metric("ess", "normalised effective sample size of the replayed ratios", "off_policy_updates", is_shown=True),
    Metric("kl", "KL(average policy ‖ policy), over all gradient steps", is_shown=True),
    Metric("entropy", "entropy of the policy on the fresh rollout", is_shown=True),
    Metric("policy_loss", "truncated policy loss of the on-policy step"),
    Metric("value_loss", "½ mean squared error of Q to Retrace, over all gradient steps"),
    Metric("off_policy_loss", "truncated policy loss of the replayed steps", "off_policy_updates"),
    Metric("ratio_mean", "mean importance ratio", "off_policy_updates"),
    Metric("ratio_max", "largest importance ratio of a minibatch", "off_policy_updates"),
    Metric("off_policy_updates", "replayed gradient steps", is_count=True, is_shown=True),
    Metric("bias_correction_loss", "the bias-correction term, which the paper calls the on-policy loss; all steps"),
    Metric("bias_correction_fraction", "share of actions with a non-zero correction weight; all steps", is_shown=True),
    Metric("trust_region_fraction", "share of samples whose gradient was projected; all steps", is_shown=True),
    Metric("grad_norm", "global norm of the gradient before clipping, over all gradient steps"),
)
OVER_ALL_STEPS = (
    "kl",
    "value_loss",
    "bias_correction_loss",
    "bias_correction_fraction",
    "trust_region_fraction",
    "grad_norm",
)
REPLAYED = tuple(m.name for m in METRICS if m.weight)


def retrace(
    reward: Array,  # [T, B]
    q_taken: Array,  # [T, B] of the action taken
    value: Array,  # [T + 1, B]
    ratio: Array,  # [T, B] π/μ of the action taken
    terminated: Array,
    truncated: Array,
    final_value: Array | None,
    gamma: float,
) -> Array:
    """Q^ret_t = r_t + γ [ρ̄_{t+1} (Q^ret_{t+1} − Q_{t+1}) + V_{t+1}], ρ̄ = min(1, ρ), cut at ends of episodes."""
    is_end = terminated | truncated
    after_end = jnp.zeros_like(reward) if final_value is None else jnp.where(terminated, 0.0, final_value)

    def backwards(carry: Array, step: tuple[Array, ...]) -> tuple[Array, Array]:
        r, q, v, rho, ended, bootstrap = step
        target = r + gamma * jnp.where(ended, bootstrap, carry)
        return jnp.minimum(1.0, rho) * (target - q) + v, target

    steps = (reward, q_taken, value[:-1], ratio, is_end, after_end)
    _, targets = jax.lax.scan(backwards, value[-1], steps, reverse=True, unroll=4)
    return targets


def bias_correction_weight(probs: Array, behaviour: Array, clip: float) -> Array:
    """(1 − c/ρ)₊ of every action: non-zero only where π > c μ."""
    ratio = probs / (behaviour + EPSILON)
    return jnp.maximum(0.0, 1.0 - clip / (ratio + EPSILON))


def project(gradient: Array, average: Array, probs: Array, delta: float) -> tuple[Array, Array]:
    """z* = g − max(0, (k·g − δ)/‖k‖²) k with k = −π̄/π, the gradient of KL(π̄‖π); and where it changed g."""
    k = -average / (probs + EPSILON)
    excess = jnp.sum(k * gradient, -1, keepdims=True) - delta
    scale = jnp.maximum(0.0, excess / (jnp.sum(k * k, -1, keepdims=True) + EPSILON))
    return gradient - scale * k, scale[..., 0] > 0


def taken(values: Array, action: Array) -> Array:
    """The entry of each action taken: [..., A] and [...] to [...]."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]


class Evaluation(NamedTuple):
    """What the networks say of a batch; all constants but `probs` and `q_taken`."""

    probs: Array  # [T, B, A] π
    q_taken: Array  # [T, B]
    average: Array  # [T, B, A] π̄
    behaviour: Array  # [T, B, A] μ
    ratio: Array  # [T, B] of the action taken
    target: Array  # [T, B] Retrace
    advantage: Array  # [T, B]
    correction: Array  # [T, B, A] (1 − c/ρ)₊ (Q − V)


def evaluate(
    network: Network, config: ACERConfig, average_params: Params, params: Params, batch: Trajectory
) -> Evaluation:
    """Run the networks and make the targets."""

    def probs_and_q(params: Params, observation: Any) -> tuple[Array, Array]:
        policy: Any
        policy, q = network.policy_and_value(params, observation)
        return policy.probs(), q

    def state_value(observation: Any) -> Array:
        probs, q = probs_and_q(stop_gradient(params), observation)
        return jnp.sum(probs * q, -1)

    probs, q = probs_and_q(params, batch.observation)  # [T + 1, B, A]
    value = stop_gradient(jnp.sum(probs * q, -1))
    fixed, behaviour = stop_gradient(probs[:-1]), batch.behaviour.probs()
    q_taken = taken(q[:-1], batch.action)
    ratio = taken(fixed, batch.action) / (taken(behaviour, batch.action) + EPSILON)
    target = retrace(
        batch.reward,
        stop_gradient(q_taken),
        value,
        ratio,
        batch.terminated,
        batch.truncated,
        final_values(state_value, batch),
        config.gamma,
    )
    weights = bias_correction_weight(fixed, behaviour, config.is_clip)
    return Evaluation(
        probs=probs[:-1],
        q_taken=q_taken,
        average=probs_and_q(average_params, batch.observation)[0][:-1],
        behaviour=behaviour,
        ratio=ratio,
        target=target,
        advantage=target - value[:-1],
        correction=weights * (stop_gradient(q[:-1]) - value[:-1, :, None]),
    )


def policy_terms(probs: Array, fixed: Array, batch: Evaluation, action: Array, clip: float) -> tuple[Array, ...]:
    """Truncated off-policy term, bias correction and entropy of each row, as functions of the probabilities."""
    truncated = jnp.log(taken(probs, action) + EPSILON) * batch.advantage * jnp.minimum(clip, batch.ratio)
    corrected = jnp.sum(jnp.log(probs + EPSILON) * batch.correction * fixed, -1)
    entropy = -jnp.sum(probs * jnp.log(probs + EPSILON), -1)
    return truncated, corrected, entropy


def acer_loss(
    network: Network, config: ACERConfig, average_params: Params, params: Params, batch: Trajectory
) -> tuple[Array, dict[str, Array]]:
    """A scalar whose gradient is ACER's: the projected policy gradient plus that of the Q loss."""
    seen = evaluate(network, config, average_params, params, batch)
    fixed, weight = stop_gradient(seen.probs), 1.0 - batch.is_masked

    def objective(probs: Array) -> Array:
        truncated, corrected, entropy = policy_terms(probs, fixed, seen, batch.action, config.is_clip)
        return jnp.sum((truncated + corrected + config.entropy_coef * entropy) * weight)

    step, is_projected = jax.grad(objective)(fixed), jnp.zeros_like(weight, bool)
    if config.use_trust_region:
        step, is_projected = project(step, seen.average, fixed, config.trust_region)
    # The gradient of this sum with respect to the parameters is `step` passed back through the softmax.
    policy_part = -jnp.sum(stop_gradient(step) * seen.probs) / jnp.maximum(jnp.sum(weight), 1.0)
    q_loss = 0.5 * losses.value_loss(seen.q_taken, seen.target, weight)
    truncated, corrected, entropy = policy_terms(fixed, fixed, seen, batch.action, config.is_clip)
    kl = jnp.sum(seen.average * (jnp.log(seen.average + EPSILON) - jnp.log(fixed + EPSILON)), -1)
    return policy_part + config.value_coef * q_loss, {
        "ess": losses.effective_sample_size(jnp.log(seen.ratio + EPSILON), weight),
        "kl": losses.mean(kl, weight),
        "entropy": losses.mean(entropy, weight),
        "policy_loss": -losses.mean(truncated, weight),
        "value_loss": q_loss,
        "ratio_mean": losses.mean(seen.ratio, weight),
        "ratio_max": jnp.max(seen.ratio * weight),
        "bias_correction_loss": -losses.mean(corrected, weight),
        "bias_correction_fraction": losses.mean(
            jnp.mean(bias_correction_weight(fixed, seen.behaviour, config.is_clip) > 0.0, -1), weight
        ),
        "trust_region_fraction": losses.mean(is_projected * 1.0, weight),
    }


def _check(config: ACERConfig, specs: Specs) -> None:
    if specs.action.kind != "categorical":
        raise UserError(
            f"action space {specs.action.space} is not supported by acer: it is for Discrete actions (p3o, ppo, a2c "
            "and a2cg take Box, MultiDiscrete and MultiBinary too)"
        )
    for field in dataclasses.fields(config):
        if (
            field.name in ("init_log_std", "action_scale", "action_clip")
            and getattr(config, field.name) != field.default
        ):
            raise UserError(f"setting {field.name}: acer has discrete actions only, so it would do nothing")


def _replay_plan(config: ACERConfig, specs: Specs) -> replay.Plan:
    replay.check_burn_in(config.burn_in, config.replay_size, config.num_steps)
    return replay.Plan(
        example_trajectory(config, specs),
        replay.num_slots(config.replay_size, config.num_steps),
        max(1, config.burn_in // config.num_steps),
        config.off_policy_updates,
        config.num_envs,  # one trajectory of each environment
        config.replay_device,
    )


def make(config: ACERConfig, specs: Specs) -> Algorithm:
    """ACER for an environment with discrete actions."""
    _check(config, specs)
    network = make_network(specs.observation, specs.action, config, is_q=True)
    optimizer = optimizers.make_optimizer(config)
    plan = _replay_plan(config, specs)
    is_replaying = config.off_policy_updates > 0

    def init(rng: np.random.Generator, has_ring: bool = True) -> ACERState:
        params = jax.tree.map(jnp.asarray, network.init(rng))
        ring = replay.init(plan.example, plan.slots) if is_replaying and has_ring else None
        average = jax.tree.map(jnp.array, params)  # a copy: both are donated to the update
        return ACERState(params, average, optimizer.init(params), ring)

    def gradient_step(carry: tuple, batch: Trajectory, rate: Array) -> tuple[tuple, dict[str, Array]]:
        params, average, opt_state = carry
        batch = frames.expand(batch, specs.observation.frame_stack)
        loss = jax.value_and_grad(acer_loss, argnums=3, has_aux=True)
        (_, metrics), gradient = loss(network, config, average, params, batch)
        params, opt_state = optimizers.apply(optimizer, params, opt_state, gradient, rate)
        average = jax.tree.map(lambda a, p: config.polyak * a + (1 - config.polyak) * p, average, params)
        return (params, average, opt_state), metrics | {"grad_norm": optax.tree.norm(gradient)}

    def replayed_step(carry: tuple, batch: Trajectory, rate: Array) -> tuple[tuple, dict[str, Array]]:
        carry, metrics = gradient_step(carry, batch, rate)
        return carry, metrics | {"off_policy_loss": metrics["policy_loss"]}

    def update(state: ACERState, rollout: Trajectory, key: Array, rate: Array) -> tuple[ACERState, dict[str, Array]]:
        memory = replay.add(state.replay, rollout) if state.replay is not None else None
        carry: Any = (state.params, state.average_params, state.opt_state)
        carry, fresh = gradient_step(carry, rollout, rate)
        sums, count = {name: jnp.zeros(()) for name in (*REPLAYED, *OVER_ALL_STEPS)}, jnp.zeros((), jnp.int32)
        if memory is not None:
            step = partial(replayed_step, rate=rate)
            carry, sums, count = replay.poisson_steps(memory, plan, key, step, carry, sums)
        metrics = replay.mean_metrics(fresh, sums, count, OVER_ALL_STEPS, REPLAYED)
        metrics |= {"entropy": fresh["entropy"], "policy_loss": fresh["policy_loss"], "off_policy_updates": count}
        params, average, opt_state = carry
        return ACERState(params, average, opt_state, memory), metrics

    def with_params(state: ACERState, params: Params) -> ACERState:
        return state._replace(params=params, average_params=jax.tree.map(jnp.array, params))

    replay_bytes = plan.num_bytes if is_replaying else 0
    rate = optimizers.decay_by_step(config)
    return Algorithm(
        network.init,
        init,
        network.policy,
        update,
        rate,
        METRICS,
        replay_bytes,
        network.host_policy,
        with_params,
        plan if is_replaying else None,
    )
