"""Advantages and returns on [T, E] arrays."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from p3o.types import Array


def generalized_advantage(
    reward: Array,  # [T, E]
    value: Array,  # [T + 1, E]
    terminated: Array,  # [T, E] bool
    truncated: Array,  # [T, E] bool
    final_value: Array | None,  # [T, E] of the final observation where truncated; None: a time limit is terminal
    gamma: float,
    gae_lambda: float,
) -> Array:
    """GAE(τ): δ_t = r_t + γ V(s_{t+1}) − V(s_t), Â_t = δ_t + γτ Â_{t+1}; both ends of an episode end the sum.

    A termination zeroes the bootstrap, a truncation bootstraps from the final observation's value if it is given.
    τ = 1 gives the n-step return minus the value.
    """
    is_end = terminated | truncated
    after_end = jnp.zeros_like(reward) if final_value is None else jnp.where(terminated, 0.0, final_value)
    next_value = jnp.where(is_end, after_end, value[1:])
    delta = reward + gamma * next_value - value[:-1]
    decay = gamma * gae_lambda * (1.0 - is_end)

    def backwards(advantage: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        step_delta, step_decay = step
        advantage = step_delta + step_decay * advantage
        return advantage, advantage

    start = jnp.zeros_like(delta[0])
    _, advantage = jax.lax.scan(backwards, start, (delta, decay), reverse=True, unroll=8)
    return advantage


def value_where(value: Callable[[Any], Array], observation: Any, where: Array, chunk: int = 32) -> Array:
    """Values [T, E] of the observations [T, E, ...] at the marked places, 0 elsewhere.

    Truncations are rare, so the critic runs on gathered chunks of marked rows only; no gradient passes.
    """
    shape = where.shape
    rows = where.size
    flat = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), observation)
    chunk = min(chunk, rows)
    padded = -(-rows // chunk) * chunk
    marked = jnp.nonzero(where.reshape(rows), size=padded, fill_value=rows)[0]

    def body(index: Array, values: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(marked, index * chunk, chunk)
        at = jax.tree.map(lambda leaf: leaf[jnp.minimum(row, rows - 1)], flat)
        return values.at[row].set(value(at), mode="drop")  # padding rows point past the end

    num_chunks = (jnp.sum(where) + chunk - 1) // chunk
    return jax.lax.fori_loop(0, num_chunks, body, jnp.zeros(rows)).reshape(shape)
