"""Policies as storable parameters: NamedTuples of arrays with log-probability, entropy and KL.

Each class works on NumPy and on JAX arrays alike: the host samples actions, the learner differentiates. Sums run over
the action's own axes, so `log_prob`, `entropy` and `kl` have the batch's shape.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from p3o.types import Array

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


def _namespace(array: Array) -> Any:
    return np if isinstance(array, np.ndarray) else jnp


def _log_softmax(logits: Array) -> Array:
    if isinstance(logits, np.ndarray):
        shifted = logits - logits.max(-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return jax.nn.log_softmax(logits)


def _softplus(x: Array) -> Array:
    return _namespace(x).logaddexp(x, 0.0)


def _sigmoid(x: Array) -> Array:
    """1 / (1 + e⁻ˣ) without overflow, in its gradient either."""
    return _namespace(x).exp(-_softplus(-x))


def spread(vector: Array, like: Array) -> Array:
    """A vector [A] that adds to an array [..., A]: JAX wants the leading axes spelt out where ranks may not mix."""
    return vector if isinstance(like, np.ndarray) else jnp.expand_dims(vector, range(like.ndim - 1))


class DiagonalGaussian(NamedTuple):
    """Independent normal dimensions, for Box actions."""

    mean: Array  # [..., A]
    log_std: Array  # [..., A]

    def log_prob(self, action: Array) -> Array:
        xp = _namespace(self.mean)
        z = (action - self.mean) * xp.exp(-self.log_std)
        return (-0.5 * z * z - self.log_std - HALF_LOG_2PI).sum(-1)

    def entropy(self) -> Array:
        return (self.log_std + 0.5 + HALF_LOG_2PI).sum(-1)

    def kl(self, other: "DiagonalGaussian", reduction: str = "sum") -> Array:
        """KL(self ‖ other), summed over action dimensions or averaged over them."""
        xp = _namespace(self.mean)
        difference = (self.mean - other.mean) * xp.exp(-other.log_std)
        gap = self.log_std - other.log_std
        per_dimension = -gap + 0.5 * (xp.exp(2 * gap) + difference * difference - 1)
        return per_dimension.sum(-1) if reduction == "sum" else per_dimension.mean(-1)

    def mode(self) -> Array:
        return self.mean

    def sample(self, noise: Array) -> Array:
        """From standard normal noise of the action's shape."""
        return self.mean + _namespace(self.mean).exp(self.log_std) * noise


class Categorical(NamedTuple):
    """One choice among A."""

    logits: Array  # [..., A]

    def log_prob(self, action: Array) -> Array:
        xp = _namespace(self.logits)
        return xp.take_along_axis(_log_softmax(self.logits), action[..., None], axis=-1)[..., 0]

    def probs(self) -> Array:
        return _namespace(self.logits).exp(_log_softmax(self.logits))

    def entropy(self) -> Array:
        log_probs = _log_softmax(self.logits)
        return -(_namespace(self.logits).exp(log_probs) * log_probs).sum(-1)

    def kl(self, other: "Categorical", reduction: str = "sum") -> Array:
        """KL(self ‖ other), or that over the number of actions (`mean`), as the authors' code has it."""
        log_probs = _log_softmax(self.logits)
        terms = _namespace(self.logits).exp(log_probs) * (log_probs - _log_softmax(other.logits))
        return terms.sum(-1) if reduction == "sum" else terms.mean(-1)

    def mode(self) -> Array:
        return self.logits.argmax(-1)

    def sample(self, noise: Array) -> Array:
        """From one uniform number in [0, 1) per choice, by inverting the cumulative distribution."""
        cumulative = _namespace(self.logits).cumsum(self.probs(), axis=-1)
        # The last entry may round to below 1; scaling by it keeps the index in range.
        return (noise[..., None] * cumulative[..., -1:] >= cumulative).sum(-1).astype(np.int32)


class Bernoulli(NamedTuple):
    """Independent yes/no choices, for MultiBinary actions."""

    logits: Array  # [..., A], of a yes

    def log_prob(self, action: Array) -> Array:
        return (action * self.logits - _softplus(self.logits)).sum(-1)

    def entropy(self) -> Array:
        probability = _sigmoid(self.logits)
        return (_softplus(self.logits) - probability * self.logits).sum(-1)

    def kl(self, other: "Bernoulli", reduction: str = "sum") -> Array:
        """KL(self ‖ other); `mean` averages each choice over its two actions."""
        probability = _sigmoid(self.logits)
        terms = probability * (self.logits - other.logits) - _softplus(self.logits) + _softplus(other.logits)
        return terms.sum(-1) if reduction == "sum" else 0.5 * terms.sum(-1)

    def mode(self) -> Array:
        return (self.logits > 0).astype(np.int32)

    def sample(self, noise: Array) -> Array:
        """From uniform noise of the action's shape."""
        return (noise < _sigmoid(self.logits)).astype(np.int32)


class MultiCategorical(NamedTuple):
    """Independent choices of different sizes, for MultiDiscrete actions; the action's last axis runs over them."""

    factors: tuple[Categorical, ...]

    def log_prob(self, action: Array) -> Array:
        return sum(factor.log_prob(action[..., i]) for i, factor in enumerate(self.factors))

    def entropy(self) -> Array:
        return sum(factor.entropy() for factor in self.factors)

    def kl(self, other: "MultiCategorical", reduction: str = "sum") -> Array:
        return sum(a.kl(b, reduction) for a, b in zip(self.factors, other.factors, strict=True))

    def mode(self) -> Array:
        return _namespace(self.factors[0].logits).stack([factor.mode() for factor in self.factors], axis=-1)

    def sample(self, noise: Array) -> Array:
        xp = _namespace(self.factors[0].logits)
        return xp.stack([factor.sample(noise[..., i]) for i, factor in enumerate(self.factors)], axis=-1)


Distribution: TypeAlias = DiagonalGaussian | Categorical | Bernoulli | MultiCategorical
