"""P3O: Policy-on Policy-off Policy Optimization (Fakoor, Chaudhari and Smola, UAI 2019), Algorithm 1.

Each iteration does one on-policy step on the fresh rollout, then ξ ~ Poisson(m) steps on replayed ones. The effective
sample size of the replayed importance ratios sets both the clip, c = ESS, and the weight of the penalty that keeps the
policy near the stored behaviour policies, λ = 1 − ESS.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o import losses, optimizers, replay
from p3o.algorithms.actor_critic import evaluate, make_gradient_step, on_policy_loss
from p3o.algorithms.base import Algorithm, Metric, Specs, example_trajectory
from p3o.config import Config, setting
from p3o.networks import Network, make_network
from p3o.types import Array, Params, Trajectory

KL_DIRECTIONS = ("policy_behaviour", "behaviour_policy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class P3OConfig(Config):
    """Settings of P3O; the defaults are ours, `--preset paper` has the paper's."""

    grad_clip: str = setting(
        "separate",
        "Clip the gradients of policy and value network by their joint norm, or each network's by its own.",
        choices=("joint", "separate"),
    )
    use_gae: bool = setting(True, "Generalised advantages; without: n-step returns minus the value.")
    gae_lambda: float = setting(0.95, "Decay τ of generalised advantage estimation.", minimum=0, maximum=1)
    replay_size: int = setting(5_000, "Steps per environment that the replay keeps.", minimum=1)
    replay_device: str = setting(
        "auto",
        "Where the replay lies: on the GPU, in the host's memory, or (auto) on the GPU if it fits with room to spare.",
        choices=("auto", "gpu", "host"),
    )
    burn_in: int = setting(2_500, "Steps per environment before replayed updates start.", minimum=0)
    replay_samples: int = setting(15, "Trajectories per environment in a replayed minibatch (T steps each).", minimum=1)
    off_policy_updates: float = setting(
        3.0,
        "Mean m of the Poisson number ξ of replayed updates per iteration; 0 switches the replay off.",
        minimum=0,
        maximum=1000,
    )
    kl_coef: float | str = setting("ess", "KL weight λ: `ess` for 1 − ESS, or a number.", choices=("ess",), minimum=0)
    is_clip: float | str = setting(
        "ess", "Clip c of the importance ratios: `ess`, or a number.", choices=("ess",), minimum=0
    )
    kl_direction: str = setting("policy_behaviour", "KL(π‖β) or KL(β‖π).", choices=KL_DIRECTIONS)
    kl_reduction: str = setting("sum", "KL summed over action dimensions, or averaged.", choices=("sum", "mean"))
    off_policy_entropy: bool = setting(False, "Add the entropy bonus in replayed updates too.")


class P3OState(NamedTuple):
    params: Params
    opt_state: Any
    replay: replay.ReplayState | replay.Minibatches | None


METRICS = (
    Metric(
        "ess", "normalised effective sample size of the replayed importance ratios", "off_policy_updates", is_shown=True
    ),
    Metric("kl_coef", "λ, the weight of the KL penalty", "off_policy_updates", is_shown=True),
    Metric("is_clip", "c, the clip of the importance ratios", "off_policy_updates", is_shown=True),
    Metric("kl", "KL between the policy and the stored behaviour policies", "off_policy_updates", is_shown=True),
    Metric("entropy", "entropy of the policy on the fresh rollout", is_shown=True),
    Metric("policy_loss", "policy-gradient loss of the on-policy step"),
    Metric("value_loss", "mean squared value error over all gradient steps"),
    Metric("off_policy_loss", "clipped policy-gradient loss of the replayed steps", "off_policy_updates"),
    Metric("ratio_mean", "mean importance ratio", "off_policy_updates"),
    Metric("ratio_max", "largest importance ratio of a minibatch", "off_policy_updates"),
    Metric("off_policy_updates", "replayed gradient steps", is_count=True, is_shown=True),
    Metric("grad_norm", "global norm of the gradient before clipping, over all gradient steps"),
)


REPLAYED = tuple(m.name for m in METRICS if m.weight)
OVER_ALL_STEPS = ("value_loss", "grad_norm")


def replayed_loss(network: Network, config: P3OConfig, params: Params, batch: Trajectory) -> tuple[Array, dict]:
    """Second and third term of eq. (14) on a replayed minibatch, with the (unweighted) value loss."""
    policy, advantage, value_loss, weight = evaluate(network, config, params, batch)
    terms = losses.off_policy_loss(
        policy,
        batch.behaviour,
        batch.action,
        advantage,
        weight,
        kl_coef=config.kl_coef,
        is_clip=config.is_clip,
        kl_direction=config.kl_direction,
        kl_reduction=config.kl_reduction,
    )
    loss = terms.loss + config.value_coef * value_loss
    if config.off_policy_entropy:
        loss = loss - config.entropy_coef * losses.mean(policy.entropy(), weight)
    return loss, {
        "ess": terms.ess,
        "kl_coef": terms.kl_coef,
        "is_clip": terms.is_clip,
        "kl": terms.kl,
        "value_loss": value_loss,
        "off_policy_loss": terms.policy_loss,
        "ratio_mean": terms.ratio_mean,
        "ratio_max": terms.ratio_max,
    }


def make(config: P3OConfig, specs: Specs) -> Algorithm:
    """P3O for an environment."""
    network = make_network(specs.observation, specs.action, config)
    optimizer = optimizers.make_optimizer(config)
    replay.check_burn_in(config.burn_in, config.replay_size, config.num_steps)
    plan = replay.Plan(
        example_trajectory(config, specs),
        replay.num_slots(config.replay_size, config.num_steps),
        max(1, config.burn_in // config.num_steps),
        config.off_policy_updates,
        config.replay_samples * config.num_envs,
        config.replay_device,
    )
    is_replaying = config.off_policy_updates > 0
    gradient_step = make_gradient_step(network, config, optimizer, specs.observation.frame_stack)

    def init(rng: np.random.Generator, has_ring: bool = True) -> P3OState:
        params = jax.tree.map(jnp.asarray, network.init(rng))
        ring = replay.init(plan.example, plan.slots) if is_replaying and has_ring else None
        return P3OState(params, optimizer.init(params), ring)

    def replayed_step(carry: tuple, batch: Trajectory, rate: Array) -> tuple[tuple, dict[str, Array]]:
        params, opt_state, metrics = gradient_step(replayed_loss, *carry, batch, rate)
        return (params, opt_state), metrics

    def update(state: P3OState, rollout: Trajectory, key: Array, rate: Array) -> tuple[P3OState, dict[str, Array]]:
        memory = replay.add(state.replay, rollout) if state.replay is not None else None
        params, opt_state, metrics = gradient_step(on_policy_loss, state.params, state.opt_state, rollout, rate)
        sums, count = {name: jnp.zeros(()) for name in (*REPLAYED, *OVER_ALL_STEPS)}, jnp.zeros((), jnp.int32)
        if memory is not None:
            (params, opt_state), sums, count = replay.poisson_steps(
                memory,
                plan,
                key,
                lambda carry, batch: replayed_step(carry, batch, rate),
                (params, opt_state),
                sums,
            )
        metrics |= replay.mean_metrics(metrics, sums, count, OVER_ALL_STEPS, REPLAYED)
        return P3OState(params, opt_state, memory), metrics | {"off_policy_updates": count}

    replay_bytes = plan.num_bytes if is_replaying else 0
    rate = optimizers.decay_by_iteration(config)
    return Algorithm(
        network.init,
        init,
        network.policy,
        update,
        rate,
        METRICS,
        replay_bytes,
        network.host_policy,
        replay=plan if is_replaying else None,
    )
