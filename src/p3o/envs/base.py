"""The one vector environment that the training loop knows."""

from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np

from p3o.types import Observation, Step

FEWEST_TO_SPLIT = 8  # environments: fewer do not keep a machine busy by halves


def halves(num_envs: int) -> list[slice]:
    """The rows of each half, or all in one. It goes by the number alone, so that every machine plays the same games."""
    size = num_envs // 2 if num_envs >= FEWEST_TO_SPLIT and num_envs % 2 == 0 else num_envs
    return [slice(first, first + size) for first in range(0, num_envs, size)]


class VectorEnv(Protocol):
    """E environments behind one same-step reset contract; see `p3o.types.Step`.

    Observations are raw (not normalised) and live in buffers that the next call overwrites.
    """

    num_envs: int
    observation_space: gym.Space  # of one environment
    action_space: gym.Space
    is_waiting: np.ndarray  # [E] the coming row will be masked, so the current observation is not acted on

    def reset(self) -> Observation: ...

    def step(self, action: np.ndarray) -> Step: ...

    def snapshot(self) -> dict[str, Any]:
        """The state of all environments as plain data."""

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        """Bring all environments back; returns those that could not be and stand at a fresh episode instead."""

    def current(self) -> Observation:
        """The observations that the environments stand at, after a reset, step or restore."""

    def close(self) -> None: ...


@runtime_checkable
class SplitEnv(VectorEnv, Protocol):
    """A `VectorEnv` of stacks of frames that also steps some of its environments while the others are under way.

    Rows are consecutive. Each part may be stepped by a thread of its own: nothing of one shows in another. Sets of rows
    within a part take turns in their order: rows that begin later are received later. So what happens depends on the
    games alone.
    """

    parts: list[slice]

    def send(self, action: np.ndarray, rows: slice) -> None:
        """Begin a step of these environments."""

    def receive(self, rows: slice) -> Step:
        """What came of it, for these rows alone; `newest` instead of an observation."""
