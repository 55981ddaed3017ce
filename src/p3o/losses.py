"""The maths of P3O and of its baselines: pure functions of distributions and arrays.

`weight` is 1 for a decision of the agent and 0 for a masked row; every mean is over the decisions.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax.lax import stop_gradient
from jax.scipy.special import logsumexp

from p3o.distributions import Distribution
from p3o.types import Array

LOG_RATIO_CAP = 20.0  # keeps exp() finite; nothing near it is left after clipping at c


def mean(x: Array, weight: Array) -> Array:
    """Mean over the rows that count."""
    return jnp.sum(x * weight) / jnp.maximum(jnp.sum(weight), 1.0)


def log_importance_ratio(policy: Distribution, behaviour: Distribution, action: Array) -> Array:
    """log ρ = log π(a|s) − log β(a|s), eq. (6), capped for safety in exp()."""
    return jnp.clip(policy.log_prob(action) - behaviour.log_prob(action), -LOG_RATIO_CAP, LOG_RATIO_CAP)


def effective_sample_size(log_ratio: Array, weight: Array) -> Array:
    """Normalised ESS of the importance ratios, eq. (11): ‖ρ‖₁² / (N ‖ρ‖₂²), in [1/N, 1], computed in log space."""
    log_sum = logsumexp(log_ratio, b=weight)
    log_sum_of_squares = logsumexp(2.0 * log_ratio, b=weight)
    number = jnp.sum(weight)
    # without a row that counts there is nothing to correct: 1 instead of 0/0
    ess = jnp.exp(2.0 * log_sum - log_sum_of_squares) / jnp.maximum(number, 1.0)
    return jnp.where(number > 0, jnp.minimum(ess, 1.0), 1.0)  # rounding may pass 1, and λ would be below 0


def policy_gradient_loss(policy: Distribution, action: Array, advantage: Array, weight: Array) -> Array:
    """−E[Â log π(a|s)]: its gradient is the policy gradient, eq. (5)."""
    return -mean(stop_gradient(advantage) * policy.log_prob(action), weight)


def value_loss(value: Array, target: Array, weight: Array) -> Array:
    """Mean squared error to a constant target."""
    return mean(jnp.square(stop_gradient(target) - value), weight)


def kl_penalty(policy: Distribution, behaviour: Distribution, direction: str, reduction: str, weight: Array) -> Array:
    """Mean KL between the policy and the stored behaviour.

    The paper's equations print KL(β‖π), its text and the authors' code use KL(π‖β); `direction` names which.
    """
    first, second = (policy, behaviour) if direction == "policy_behaviour" else (behaviour, policy)
    return mean(first.kl(second, reduction), weight)  # type: ignore[arg-type]


class OffPolicyTerms(NamedTuple):
    """The off-policy part of eq. (14) and what it was made of."""

    loss: Array  # policy gradient plus λ times KL
    policy_loss: Array
    kl: Array
    ess: Array
    kl_coef: Array  # λ
    is_clip: Array  # c
    ratio_mean: Array
    ratio_max: Array


def off_policy_loss(
    policy: Distribution,
    behaviour: Distribution,
    action: Array,
    advantage: Array,
    weight: Array,
    *,
    kl_coef: float | str = "ess",
    is_clip: float | str = "ess",
    kl_direction: str = "policy_behaviour",
    kl_reduction: str = "sum",
) -> OffPolicyTerms:
    """Off-policy and KL terms of the P3O gradient, eq. (14), with λ and c from the minibatch's ESS."""
    log_ratio = stop_gradient(log_importance_ratio(policy, behaviour, action))
    ratio = jnp.exp(log_ratio)
    ess = effective_sample_size(log_ratio, weight)
    kl_weight = 1.0 - ess if kl_coef == "ess" else jnp.asarray(kl_coef, ratio.dtype)  # λ = 1 − ESS, eq. (15)
    clip = ess if is_clip == "ess" else jnp.asarray(is_clip, ratio.dtype)  # c = ESS, eq. (16)
    policy_loss = policy_gradient_loss(policy, action, jnp.minimum(ratio, clip) * advantage, weight)
    kl = kl_penalty(policy, behaviour, kl_direction, kl_reduction, weight)
    return OffPolicyTerms(
        loss=policy_loss + kl_weight * kl,
        policy_loss=policy_loss,
        kl=kl,
        ess=ess,
        kl_coef=kl_weight,
        is_clip=clip,
        ratio_mean=mean(ratio, weight),
        ratio_max=jnp.max(ratio * weight),
    )
