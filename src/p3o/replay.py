"""A ring of whole rollouts. A slot holds T steps of all E environments; sampling draws columns of T steps.

The ring is part of an algorithm's state, on the learner's device; where it does not fit there, `host_replay.py` keeps
one in host memory and hands the same minibatches over.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from p3o.errors import UserError
from p3o.types import Array, Trajectory


class ReplayState(NamedTuple):
    """Storage and how much of it was ever written."""

    data: Trajectory  # leaves [S, E, T or T + 1, ...]: a column is contiguous
    num_added: Array  # int32 rollouts added so far


class Minibatches(NamedTuple):
    """What a ring in host memory hands to one update in place of itself: all minibatches that it will take."""

    data: Trajectory  # leaves [M, B, T or T + 1, ...]
    count: Array  # int32: those to use


class Plan(NamedTuple):
    """What an algorithm keeps, and how it draws from it."""

    example: Trajectory  # a rollout
    slots: int
    burn_in_slots: int
    mean: float  # of the Poisson number of replayed steps an iteration
    num_columns: int  # of a minibatch
    device: str  # where it is wanted: auto, gpu or host

    @property
    def num_bytes(self) -> int:
        return size_in_bytes(self.example, self.slots)


def num_slots(replay_size: int, num_steps: int) -> int:
    """Slots of a buffer of `replay_size` steps per environment."""
    return max(1, replay_size // num_steps)


def check_burn_in(burn_in: int, replay_size: int, num_steps: int) -> None:
    """Refuse a burn-in that the ring can never hold."""
    if max(1, burn_in // num_steps) > num_slots(replay_size, num_steps):
        raise UserError(f"setting burn_in: {burn_in} is above replay_size {replay_size}: replay would never start")


def init(example: Trajectory, slots: int) -> ReplayState:
    """An empty ring for trajectories like the example (arrays or shapes, leaves [T, E, ...])."""

    def empty(leaf: Any) -> Array:
        time, envs, *rest = leaf.shape
        return jnp.zeros((slots, envs, time, *rest), leaf.dtype)

    shapes = jax.eval_shape(lambda: example)
    # compiled as one, not once for each shape; the memory is taken where it stays
    return jax.jit(lambda: ReplayState(jax.tree.map(empty, shapes), jnp.zeros((), jnp.int32)))()


def size_in_bytes(example: Trajectory, slots: int) -> int:
    return slots * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(example))


def add(state: ReplayState | Minibatches, trajectory: Trajectory) -> ReplayState | Minibatches:
    """Write one rollout over the oldest slot; the host's ring has done so by itself."""
    if isinstance(state, Minibatches):
        return state
    slots = jax.tree.leaves(state.data)[0].shape[0]
    slot = state.num_added % slots
    data = jax.tree.map(
        lambda ring, new: jax.lax.dynamic_update_index_in_dim(ring, jnp.swapaxes(new, 0, 1), slot, 0),
        state.data,
        trajectory,
    )
    return ReplayState(data, state.num_added + 1)


def take(data: Trajectory, slot: Array) -> Any:
    """Some slots [N] of a ring, as leaves [N, E, ...]."""
    return [ring[slot] for ring in jax.tree.leaves(data)]


def put(data: Trajectory, slot: Array, leaves: list[Array]) -> Trajectory:
    """The ring with other contents [E, ...] in one slot."""
    rings, structure = jax.tree.flatten(data)
    new = [jax.lax.dynamic_update_index_in_dim(r, leaf, slot, 0) for r, leaf in zip(rings, leaves, strict=True)]
    return jax.tree.unflatten(structure, new)


def num_filled(state: ReplayState) -> Array:
    return jnp.minimum(state.num_added, jax.tree.leaves(state.data)[0].shape[0])


def sample(state: ReplayState, key: Array, num_columns: int) -> Trajectory:
    """`num_columns` trajectories [T, B, ...]: column j from environment j mod E, slots uniform with replacement."""
    num_envs = jax.tree.leaves(state.data)[0].shape[1]
    slot = draw_slots(key, num_columns, num_filled(state))
    env = jnp.arange(num_columns) % num_envs
    return jax.tree.map(lambda ring: jnp.swapaxes(ring[slot, env], 0, 1), state.data)


def draw_slots(key: Array, num_columns: int, filled: Array) -> Array:
    return jax.random.randint(key, (num_columns,), 0, filled)


def draw_count(plan: Plan, key: Array, filled: Array) -> tuple[Array, Array]:
    """ξ, the number of replayed steps (0 before burn-in is over), and the key that minibatches are drawn with."""
    count_key, sample_key = jax.random.split(key)
    is_warm = filled >= plan.burn_in_slots
    return jnp.where(is_warm, jax.random.poisson(count_key, plan.mean), 0), sample_key


def poisson_steps(
    state: ReplayState | Minibatches,
    plan: Plan,
    key: Array,
    step: Callable[[Any, Trajectory], tuple[Any, dict[str, Array]]],
    carry: Any,
    names: Iterable[str],
) -> tuple[Any, dict[str, Array], Array]:
    """ξ ~ Poisson(mean) steps, each on a minibatch of its own, once burn-in is over (Algorithm 1, lines 5 to 9).

    `step(carry, minibatch)` returns the new carry and metrics; what comes back is the carry after all steps, the sums
    of the named metrics, and ξ.
    """
    if isinstance(state, Minibatches):
        count = state.count
    else:
        count, sample_key = draw_count(plan, key, num_filled(state))

    def minibatch(index: Array) -> Trajectory:
        if isinstance(state, Minibatches):
            return jax.tree.map(lambda leaf: jnp.swapaxes(leaf[index], 0, 1), state.data)
        return sample(state, jax.random.fold_in(sample_key, index), plan.num_columns)

    def body(index: Array, loop: tuple[Any, dict[str, Array]]) -> tuple[Any, dict[str, Array]]:
        carry, sums = loop
        carry, metrics = step(carry, minibatch(index))
        return carry, {name: sums[name] + metrics[name] for name in sums}

    carry, sums = jax.lax.fori_loop(0, count, body, (carry, {name: jnp.zeros(()) for name in names}))
    return carry, sums, count


def mean_metrics(
    fresh: dict[str, Array], sums: dict[str, Array], count: Array, over_all: Iterable[str], replayed: Iterable[str]
) -> dict[str, Array]:
    """Means of an iteration: over its fresh and its ξ replayed steps, or over the latter alone (0 without any)."""
    means = {name: (fresh[name] + sums[name]) / (1 + count) for name in over_all}
    return means | {name: sums[name] / jnp.maximum(count, 1) for name in replayed}
