"""The vocabulary: named arrays that travel from the environment to the gradient.

Axes are always in this order: `T` steps, `E` environments (or `B` replayed columns), then features.
"""

from typing import Any, NamedTuple

Array = Any  # a NumPy or JAX array; shapes stand beside the fields
Params = Any  # a tree of arrays


class Observation(NamedTuple):
    """What a network reads: a vector, images, or both."""

    vector: Array | None  # [..., D] float32, normalised
    images: tuple[Array, ...]  # each [..., H, W, C] uint8


class Step(NamedTuple):
    """One vector step, same-step reset: `observation` already belongs to the next episode."""

    observation: Any  # raw observations of all environments, as the encoder made them
    reward: Array  # [E] raw
    terminated: Array  # [E] the task ended: nothing is to come
    truncated: Array  # [E] the clock ended it: more would have come
    final_observation: Any  # the last observation of the episode, valid where an episode ended
    is_masked: Array  # [E] rows that were no decision of the agent
    is_quiet: bool = False  # surely nothing ended, is masked or will be: all flags are False
    is_game_end: Array | None = None  # [E] a whole game ended, not a life alone; None: every end is one
    newest: Array | None = None  # [E, H·W + 1] newest frames and starts of episodes, as `device_actor.pack` has them


class Trajectory(NamedTuple):
    """A rollout, or a replayed minibatch of rollout columns."""

    observation: Observation  # [T + 1, E, ...]
    action: Array  # [T, E, ...] as the policy sampled it, before clipping and scaling
    behaviour: Any  # the distribution that acted, leaves [T, E, ...]
    reward: Array  # [T, E] normalised
    terminated: Array  # [T, E] bool
    truncated: Array  # [T, E] bool
    is_masked: Array  # [T, E] bool
    final_observation: Observation | None  # [T, E, ...], valid where truncated; None under time_limit=terminal
