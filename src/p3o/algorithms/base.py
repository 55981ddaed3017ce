"""What an algorithm is to the training loop: three functions and the names of its numbers."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from p3o.config import Config
from p3o.distributions import Distribution
from p3o.host_policy import HostPolicy
from p3o.replay import Plan
from p3o.spaces import ActionSpec, ObservationSpec
from p3o.types import Array, Observation, Params, Trajectory


class Specs(NamedTuple):
    """The two sides of an environment."""

    observation: ObservationSpec
    action: ActionSpec


class Metric(NamedTuple):
    """A number that each update reports, and how it is averaged over a logging interval."""

    name: str
    help: str
    weight: str = ""  # the count metric it is a mean over ("" for: one per iteration)
    is_count: bool = False  # summed over the interval instead
    is_shown: bool = False  # part of the live display


def _replace_params(state: Any, params: Params) -> Any:
    return state._replace(params=params)


class Algorithm(NamedTuple):
    """Pure functions for one seed. A state has a field `params`; all of it is saved in checkpoints."""

    init_params: Callable[[np.random.Generator], Params]
    init: Callable[..., Any]  # (rng) -> State; with a replay also has_ring=False, where the host keeps the ring
    policy: Callable[[Params, Observation], Distribution]  # what acts, on NumPy or JAX arrays
    update: Callable[[Any, Trajectory, Array, Array], tuple[Any, dict[str, Array]]]  # (state, rollout, key, rate)
    learning_rate: Callable[[int, int], float]  # (steps before the iteration, schedule steps) -> rate
    metrics: tuple[Metric, ...]
    replay_bytes: int = 0
    host_policy: Callable[[int], HostPolicy] | None = None  # `policy` for so many environments, where NumPy is quicker
    with_params: Callable[[Any, Params], Any] = _replace_params  # a fresh state around trained parameters
    replay: Plan | None = None  # with one, a state has a field `replay`


class Entry(NamedTuple):
    """A line of the registry."""

    name: str
    title: str
    config: type[Config]
    make: Callable[[Any, Specs], Algorithm]


def example_trajectory(config: Config, specs: Specs) -> Trajectory:
    """A rollout of zeros: the shapes and types of everything the loop hands to `update`.

    Of a stack of frames each frame is there once; `frames.expand` makes the stacks.
    """
    time, envs = config.num_steps, config.num_envs
    spec, action = specs

    def observation(steps: int) -> Observation:
        if spec.frame_stack:
            ((height, width, size),) = spec.image_shapes
            older = (
                size - 1 if steps > time else 0
            )  # of the first observation; a final one has them from the row before
            return Observation(None, (np.zeros((steps + older, envs, height, width), np.uint8),))
        vector = np.zeros((steps, envs, spec.vector_size), np.float32) if spec.vector_size else None
        return Observation(vector, tuple(np.zeros((steps, envs, *s), np.uint8) for s in spec.image_shapes))

    outputs = np.zeros((time, envs, action.num_outputs), np.float32)
    log_std = np.zeros(action.sizes, np.float32) if action.kind == "gaussian" else None
    flags = np.zeros((time, envs), bool)
    return Trajectory(
        observation=observation(time + 1),
        action=np.zeros((time, envs, *action.shape), action.dtype),
        behaviour=action.distribution(outputs, log_std),
        reward=np.zeros((time, envs), np.float32),
        terminated=flags,
        truncated=flags.copy(),
        is_masked=flags.copy(),
        final_observation=observation(time) if config.time_limit == "bootstrap" else None,
    )
