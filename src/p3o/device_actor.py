"""Acting on the learner's device: stacks of frames are kept there, and only the newest frames cross the bus, once.

A step is one copy there (newest frames and starts of episodes, in one array), one compiled call (stack, network,
sample) and one small copy back (actions). Frames, actions and behaviour stay on the device for the update to take.
The calls take NumPy arrays as they are: they go where the rest of the arguments is, and `jax.device_put` before the
call would take twice as long as the call itself.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o import frames
from p3o.algorithms.base import Specs, example_trajectory
from p3o.config import Config
from p3o.distributions import Distribution
from p3o.types import Array, Observation, Params, Trajectory


class Carry(NamedTuple):
    """A rollout in the making; donated from step to step."""

    stack: Array  # [E, H, W, S] where the environments stand
    frames: Array  # [T + S, E, H, W]
    action: Array  # [T, E, ...]
    behaviour: Any  # leaves [T, E, ...]
    noise: Array  # [T, E, ...]
    row: Array  # int32: the step to come


def _write(buffer: Array, value: Array, row: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(buffer, value.astype(buffer.dtype), row, 0)


def pack(frame: np.ndarray, is_start: np.ndarray) -> np.ndarray:
    """Newest frames [E, H, W] and starts of episodes [E] as one new array [E, H·W + 1]: one copy to the device."""
    num_envs, height, width = frame.shape
    packed = np.empty((num_envs, height * width + 1), np.uint8)
    packed[:, :-1].reshape(num_envs, height, width)[:] = frame
    packed[:, -1] = is_start
    return packed


def _push(carry: Carry, packed: Array) -> Carry:
    num_envs, height, width, size = carry.stack.shape
    frame, is_start = packed[:, :-1].reshape(num_envs, height, width), packed[:, -1] != 0
    rows = _write(carry.frames, frame, carry.row + size - 1)
    return carry._replace(stack=frames.advance(carry.stack, frame, is_start), frames=rows)


class DeviceActor:
    """The policy with the trajectory that it makes; one rollout is `begin`, T − 1 times `proceed`, then `finish`."""

    def __init__(
        self, policy: Callable[[Params, Observation], Distribution], config: Config, specs: Specs, device: Any
    ):
        example = example_trajectory(config, specs)
        ((height, width, size),) = specs.observation.image_shapes
        noise = np.zeros((config.num_steps, config.num_envs, *specs.action.shape), np.float32)
        stack = np.zeros((config.num_envs, height, width, size), np.uint8)
        held = Carry(stack, example.observation.images[0], example.action, example.behaviour, noise, np.int32(0))
        self.device = device
        self._carry: Carry = jax.device_put(held, device)
        self._no_finals = jax.device_put(example.final_observation, device)
        self._params: Params = None

        def decide(params: Params, carry: Carry) -> tuple[Carry, Array]:
            acts = policy(params, Observation(None, (carry.stack,)))
            action = acts.sample(jax.lax.dynamic_index_in_dim(carry.noise, carry.row, keepdims=False))
            behaviour = jax.tree.map(lambda b, leaf: _write(b, leaf, carry.row), carry.behaviour, acts)
            kept = _write(carry.action, action, carry.row)
            return carry._replace(action=kept, behaviour=behaviour, row=carry.row + 1), action

        def begin(params: Params, carry: Carry, noise: Array) -> tuple[Carry, Array]:
            start = jax.lax.dynamic_update_slice_in_dim(carry.frames, frames.as_frames(carry.stack), 0, 0)
            return decide(params, carry._replace(frames=start, noise=noise, row=jnp.zeros((), jnp.int32)))

        def proceed(params: Params, carry: Carry, packed: Array) -> tuple[Carry, Array]:
            return decide(params, _push(carry, packed))

        self._begin: Any = jax.jit(begin, donate_argnums=1)
        self._proceed: Any = jax.jit(proceed, donate_argnums=1)
        self._finish: Any = jax.jit(_push, donate_argnums=0)

    def compile(self, params: Params) -> None:
        """Compile all that a rollout calls, so that no step waits for it."""
        packed = pack(*self._blank())
        with jax.default_device(self.device):
            self._begin = self._begin.lower(params, self._carry, np.asarray(self._carry.noise)).compile()
            self._proceed = self._proceed.lower(params, self._carry, packed).compile()
            self._finish = self._finish.lower(self._carry, packed).compile()

    def _blank(self) -> tuple[np.ndarray, np.ndarray]:
        num_envs, height, width, _ = self._carry.stack.shape
        return np.zeros((num_envs, height, width), np.uint8), np.zeros(num_envs, bool)

    def set_params(self, params: Params) -> None:
        """Not copied: every call of a rollout is on its way before the update that takes these buffers over."""
        self._params = params

    def begin(self, stack: Array, noise: np.ndarray) -> Array:
        """Actions [E], on their way, of a rollout's first step, from stacks [E, H, W, S]: `finish`'s, or others."""
        if stack is not self._carry.stack:
            self._carry = self._carry._replace(stack=jax.device_put(np.array(stack), self.device))
        self._carry, action = self._begin(self._params, self._carry, noise)
        return action

    def proceed(self, frame: np.ndarray, is_start: np.ndarray) -> Array:
        """Actions [E], on their way, after new frames [E, H, W]; where an episode starts, older ones are forgotten."""
        self._carry, action = self._proceed(self._params, self._carry, pack(frame, is_start))
        return action

    def fetch(self, action: Array) -> np.ndarray:
        """Actions on the host; waits for them."""
        return np.asarray(action)

    def finish(self, frame: np.ndarray, is_start: np.ndarray) -> Array:
        """Take the rollout's last frames; the stacks that the environments stand at now."""
        self._carry = self._finish(self._carry, pack(frame, is_start))
        return self._carry.stack

    def trajectory(self, host: Trajectory) -> Trajectory:
        """The rollout: what the host counted, with what lies on the device (until the next `begin`)."""
        finals = self._no_finals  # nothing to send
        if host.final_observation is not None and host.truncated.any():
            finals = jax.device_put(jax.tree.map(np.copy, host.final_observation), self.device)
        carry = self._carry
        return Trajectory(
            observation=Observation(None, (carry.frames,)),
            action=carry.action,
            behaviour=carry.behaviour,
            # copied, since the next rollout writes into the host's arrays while the update may still read these
            reward=host.reward.copy(),
            terminated=host.terminated.copy(),
            truncated=host.truncated.copy(),
            is_masked=host.is_masked.copy(),
            final_observation=finals,
        )
