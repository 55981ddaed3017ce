"""Stacks of frames, each frame kept once: how they are stored, advanced by one frame, and rebuilt.

A stack [..., H, W, S] has the newest frame last. At the start of an episode all older frames are zero, and from one
observation to the next the stack moves on by one frame; so T + 1 observations are T + S frames and the ends.
"""

import jax.numpy as jnp

from p3o.types import Array, Observation, Trajectory


def advance(stack: Array, frame: Array, is_start: Array) -> Array:
    """Stacks [E, H, W, S] with a new frame [E, H, W]; where an episode starts [E], the older frames are zero."""
    older = jnp.where(is_start[:, None, None, None], jnp.zeros_like(stack[..., 1:]), stack[..., 1:])
    return jnp.concatenate([older, frame[..., None]], -1)


def as_frames(stack: Array) -> Array:
    """The frames [S, E, H, W] of stacks [E, H, W, S], oldest first."""
    return jnp.moveaxis(stack, -1, 0)


def rebuild(frames: Array, is_end: Array) -> Array:
    """Stacks [T + 1, B, H, W, S] from the frames [T + S, B, H, W] and the ends of episodes [T, B].

    The first S frames are the stack at the start, with the zeros that it had; a frame is part of a later stack if no
    episode ended between the two.
    """
    num_steps = is_end.shape[0]
    size = frames.shape[0] - num_steps
    is_kept = jnp.ones((num_steps + 1, *is_end.shape[1:]), bool)
    channels = []
    for age in range(size):  # the newest frame first
        if age:
            rows = is_end[: max(0, num_steps + 1 - age)]  # an end in row t − age is before observation t
            nothing = jnp.zeros((age, *is_end.shape[1:]), bool)
            is_kept = is_kept & ~jnp.concatenate([nothing, rows])[: num_steps + 1]
        first = size - 1 - age
        frame = frames[first : first + num_steps + 1]
        channels.append(jnp.where(is_kept[..., None, None], frame, jnp.zeros_like(frame)))
    return jnp.stack(channels[::-1], -1)


def expand(trajectory: Trajectory, frame_stack: int) -> Trajectory:
    """A trajectory as networks read it, from one that stores each frame once (`frame_stack` 0: it is so already).

    Of a final observation the newest frame is stored: its older ones are those of the observation before it.
    """
    if not frame_stack:
        return trajectory
    stacks = rebuild(trajectory.observation.images[0], trajectory.terminated | trajectory.truncated)
    finals = trajectory.final_observation
    if finals is not None:
        last = jnp.concatenate([stacks[:-1, ..., 1:], finals.images[0][..., None]], -1)
        finals = Observation(None, (last,))
    return trajectory._replace(observation=Observation(None, (stacks,)), final_observation=finals)
