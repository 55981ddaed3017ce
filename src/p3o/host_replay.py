"""A ring of rollouts in host memory, for a learner on a GPU that cannot hold it.

It draws the same numbers as the ring on the device would, gathers the columns with NumPy, and hands all minibatches
of an iteration to the one compiled update.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from p3o import replay
from p3o.replay import Minibatches, Plan
from p3o.types import Trajectory

ROOMS = (1, 2, 4, 8, 16)  # numbers of minibatches to compile for at the start; more hardly ever come


class HostReplay:
    """The storage and how much of it was ever written, as `replay.ReplayState`."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.data: Trajectory = jax.tree.map(self._empty, plan.example)
        self.num_added = 0
        # far beyond what a Poisson number of this mean ever is
        self._most = math.ceil(plan.mean + 10 * math.sqrt(plan.mean) + 10)
        self._cpu = jax.local_devices(backend="cpu")[0]
        self._draw = jax.jit(self._draw_all)

    def _empty(self, leaf: np.ndarray) -> np.ndarray:
        time, envs, *rest = leaf.shape
        ring = np.empty((self.plan.slots, envs, time, *rest), leaf.dtype)
        ring.fill(0)  # takes the memory now: zeros that nobody wrote take none, and it may be gone hours later
        return ring

    def add(self, trajectory: Trajectory) -> None:
        """Write one rollout over the oldest slot."""
        slot = self.num_added % self.plan.slots
        for ring, leaf in zip(jax.tree.leaves(self.data), jax.tree.leaves(trajectory), strict=True):
            ring[slot] = np.swapaxes(np.asarray(leaf), 0, 1)
        self.num_added += 1

    def _draw_all(self, key: Any, iteration: Any, filled: Any) -> tuple[Any, Any]:
        """ξ and the slots [most, B] of its minibatches, as `replay.poisson_steps` draws them."""
        count, sample_key = replay.draw_count(self.plan, jax.random.fold_in(key, iteration), filled)
        keys = jax.vmap(lambda index: jax.random.fold_in(sample_key, index))(jnp.arange(self._most))
        return count, jax.vmap(lambda k: replay.draw_slots(k, self.plan.num_columns, filled))(keys)

    def blank(self, room: int) -> Minibatches:
        """Room for so many minibatches, none of them to use."""
        columns = self.plan.num_columns
        return Minibatches(
            jax.tree.map(lambda ring: np.zeros((room, columns, *ring.shape[2:]), ring.dtype), self.data), np.int32(0)
        )

    def minibatches(self, key: Any, iteration: int) -> Minibatches:
        """All minibatches of an iteration; their number is rounded up to a power of two, so that few are compiled."""
        filled = min(self.num_added, self.plan.slots)
        with jax.default_device(self._cpu):
            number, slots = self._draw(jax.device_put(key, self._cpu), np.int32(iteration), np.int32(filled))
        count, slot = min(int(number), self._most), np.asarray(slots)
        room = 1 << max(0, count - 1).bit_length()
        env = np.arange(self.plan.num_columns) % self.plan.example.reward.shape[1]

        found = self.blank(room)._replace(count=np.int32(count))
        for ring, leaf in zip(jax.tree.leaves(self.data), jax.tree.leaves(found.data), strict=True):
            for index in range(count):
                leaf[index] = ring[slot[index], env]
        return found
