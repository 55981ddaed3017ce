"""Each frame kept once: stacks rebuilt from frames and ends are the stacks themselves, bit by bit."""

import jax
import numpy as np
import pytest
import stacks
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o import frames, replay
from p3o.algorithms import find
from p3o.algorithms.base import example_trajectory
from p3o.config import make_config
from p3o.types import Observation

TIME, ENVS, SIDE, STACK = 5, 3, 2, 4


def played(rng, is_end, stack):
    """Whole stacks [T + 1, E, H, W, S] and finals [T, ...] of a rollout, and the same with each frame once."""
    time, envs = is_end.shape
    observations, kept, finals = [stack.copy()], list(np.moveaxis(stack, -1, 0)), []
    for t in range(time):
        final, first = rng.integers(0, 256, (2, envs, SIDE, SIDE), np.uint8)
        finals.append(np.concatenate([stack[..., 1:], final[..., None]], -1))
        frame = np.where(is_end[t][:, None, None], first, final)
        older = stack[..., 1:] * ~is_end[t][:, None, None, None]
        stack = np.concatenate([older, frame[..., None]], -1)
        observations.append(stack)
        kept.append(frame)
    return np.stack(observations), np.stack(finals), np.stack(kept)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.floats(0, 1), st.integers(0, 2**31 - 1))
def test_rebuilt_stacks_are_the_stacks(time, chance, seed):
    """Ends at random, in a row too (chance 1: in every row), and none at all; a start with zeros of its own."""
    rng = np.random.default_rng(seed)
    is_end = rng.random((time, ENVS)) < chance
    start = rng.integers(0, 256, (ENVS, SIDE, SIDE, STACK), np.uint8)
    start[0, ..., :2] = 0  # an episode began a step before
    observations, _, kept = played(rng, is_end, start)
    assert len(kept) == time + STACK
    np.testing.assert_array_equal(frames.rebuild(kept, is_end), observations)
    moved = frames.advance(observations[0], kept[STACK], is_end[0])
    np.testing.assert_array_equal(moved, observations[1])


def test_an_end_forgets_and_consecutive_ends_forget_again_by_hand():
    # Frames 1 2 3 4 | 5 6 7 8 with ends in rows 1 and 2: observation 2 is (0 0 0 6), 3 is (0 0 0 7), 4 is (0 0 7 8).
    kept = np.arange(1, 9, dtype=np.uint8).reshape(8, 1, 1, 1)
    is_end = np.array([[False], [True], [True], [False]])
    found = np.asarray(frames.rebuild(kept, is_end))[:, 0, 0, 0]
    assert found.tolist() == [[1, 2, 3, 4], [2, 3, 4, 5], [0, 0, 0, 6], [0, 0, 0, 7], [0, 0, 7, 8]]


def config_of(**settings):
    return make_config(find("p3o").config, {"num_envs": ENVS, "num_steps": TIME}, settings)


def small_specs(frame_stack):
    specs = stacks.specs_of(frame_stack)
    leaf = specs.observation.leaves[0]._replace(shape=(SIDE, SIDE, STACK))
    return specs._replace(observation=specs.observation._replace(leaves=(leaf,)))


@pytest.mark.parametrize("time_limit", ["bootstrap", "terminal"])
def test_a_ring_of_frames_samples_what_a_ring_of_stacks_does(time_limit):
    """Eleven rollouts through four slots: the same key draws the same minibatch from both, bit by bit."""
    rng = np.random.default_rng(0)
    rings, examples = [], []
    for size in (STACK, 0):
        examples.append(example_trajectory(config_of(time_limit=time_limit), small_specs(size)))
        rings.append(replay.init(examples[-1], 4))
    add, sample = jax.jit(replay.add), jax.jit(replay.sample, static_argnums=2)
    stack = np.zeros((ENVS, SIDE, SIDE, STACK), np.uint8)
    for rollout in range(11):
        terminated, truncated = rng.random((2, TIME, ENVS)) < 0.2
        truncated &= ~terminated
        observations, finals, kept = played(rng, terminated | truncated, stack)
        stack = observations[-1]
        newest = finals[..., -1] * truncated[..., None, None]
        pairs = ((kept, newest), (observations, finals))
        for i, (seen, last) in enumerate(pairs):
            trajectory = examples[i]._replace(
                observation=Observation(None, (seen,)),
                terminated=terminated,
                truncated=truncated,
                reward=rng.normal(size=(TIME, ENVS)).astype(np.float32) * 0 + rollout,
            )
            if time_limit == "bootstrap":
                trajectory = trajectory._replace(final_observation=Observation(None, (last,)))
            rings[i] = add(rings[i], trajectory)
        few, whole = (sample(ring, jax.random.key(rollout), 17) for ring in rings)
        few = frames.expand(few, STACK)
        np.testing.assert_array_equal(few.observation.images[0], whole.observation.images[0])
        np.testing.assert_array_equal(few.reward, whole.reward)
        if time_limit == "bootstrap":
            at = np.asarray(whole.truncated)
            assert rollout == 0 or at.any()
            ours, theirs = (np.asarray(b.final_observation.images[0])[at] for b in (few, whole))
            np.testing.assert_array_equal(ours, theirs)


def test_the_papers_replay_is_seven_gigabytes():
    from gymnasium import spaces

    from p3o.algorithms import Specs
    from p3o.presets import preset_settings
    from p3o.spaces import action_spec, observation_spec

    spec = observation_spec(spaces.Box(0, 255, (84, 84, 4), np.uint8))
    sizes = {}
    for size in (4, 0):
        specs = Specs(spec._replace(frame_stack=size), action_spec(spaces.Discrete(6)))
        config = make_config(find("p3o").config, preset_settings("p3o", "paper", "image", "categorical"))
        sizes[size] = find("p3o").make(config, specs).replay_bytes
    # 3,125 slots × 16 environments × (20 frames of 84 × 84, and 16 rows of 4 + 24 + 4 + 3 bytes)
    assert sizes[4] == 3125 * 16 * (20 * 84 * 84 + 16 * 35)
    assert sizes[0] == 3125 * 16 * (17 * 84 * 84 * 4 + 16 * 35)
