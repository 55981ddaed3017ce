"""The ring against a plain list, the arithmetic of the paper's table, and when replayed updates happen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o import replay
from p3o.algorithms import p3o
from p3o.algorithms.base import Specs, example_trajectory
from p3o.config import make_config
from p3o.errors import UserError
from p3o.experiments import paper
from p3o.spaces import action_spec, observation_spec

TIME, ENVS = 3, 2


def specs_of(observation=None, action=None):
    observation = spaces.Box(-1, 1, (2,)) if observation is None else observation
    return Specs(observation_spec(observation), action_spec(action or spaces.Discrete(2)))


def example(specs=None, **settings):
    config = make_config(p3o.P3OConfig, {"num_envs": ENVS, "num_steps": TIME}, settings)
    return example_trajectory(config, specs or specs_of())


def numbered(rollout):
    """A rollout whose every entry says where it is from: 100 · rollout + 10 · environment + step."""

    def fill(leaf):
        time, envs, *rest = leaf.shape
        number = 100 * rollout + 10 * np.arange(envs)[None, :] + np.arange(time)[:, None]
        return np.broadcast_to(number.reshape(time, envs, *[1] * len(rest)), leaf.shape).astype(leaf.dtype)

    trajectory = jax.tree.map(fill, example())
    return trajectory._replace(reward=fill(np.zeros((TIME, ENVS))))


add = jax.jit(replay.add)
sample = jax.jit(replay.sample, static_argnums=2)


@pytest.mark.parametrize(("kind", "slots", "burn_in_slots"), [("vector", 78, 39), ("image", 3_125, 937)])
def test_the_papers_slots_and_burn_in(kind, slots, burn_in_slots):
    # MuJoCo 5000 // 64 and 2500 // 64 rollouts; Atari 50 000 // 16 and 15 000 // 16.
    config = make_config(p3o.P3OConfig, paper.p3o(kind, "categorical"))
    assert replay.num_slots(config.replay_size, config.num_steps) == slots
    # A ring of exactly that many rollouts is enough for the burn-in, one rollout less is not.
    replay.check_burn_in(config.burn_in, burn_in_slots * config.num_steps, config.num_steps)
    with pytest.raises(UserError, match="never start"):
        replay.check_burn_in(config.burn_in, burn_in_slots * config.num_steps - 1, config.num_steps)


def test_there_is_always_a_slot():
    assert replay.num_slots(3, 64) == 1
    replay.check_burn_in(0, 3, 64)


def test_the_oldest_slot_is_overwritten_first():
    state = replay.init(example(), slots=3)
    held = []
    for rollout in range(5):
        state = add(state, numbered(rollout))
        assert int(replay.num_filled(state)) == min(rollout + 1, 3)
        held.append(sorted({int(x) // 100 for x in np.asarray(state.data.reward).ravel()}))
    # Rollout 0 reads as the zeros of empty slots; then 0 1 2, 1 2 3, 2 3 4.
    assert held[2:] == [[0, 1, 2], [1, 2, 3], [2, 3, 4]]


def test_column_j_is_environment_j_mod_e_and_only_filled_slots_are_drawn():
    state = replay.init(example(), slots=50)
    for rollout in (1, 2, 3):
        state = add(state, numbered(rollout))
    batch = sample(state, jax.random.key(0), 200)
    reward = np.asarray(batch.reward)
    assert reward.shape == (TIME, 200)
    np.testing.assert_array_equal(reward[0] // 10 % 10, np.arange(200) % ENVS)
    rollouts = reward[0] // 100
    # Uniform with replacement over the three, independently in each column: about 67 each, 0 of empty slots.
    assert set(rollouts) == {1, 2, 3}
    assert np.bincount(rollouts.astype(int))[1:].min() > 40
    assert (rollouts[0::2] != rollouts[1::2]).any()
    assert not np.array_equal(reward, sample(state, jax.random.key(1), 200).reward)
    np.testing.assert_array_equal(reward, sample(state, jax.random.key(0), 200).reward)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 99), min_size=1, max_size=12), st.integers(0, 2**31 - 1))
def test_samples_are_whole_columns_of_a_plain_list(rollouts, seed):
    """Against a list that drops its head: every sampled column is one stored column, in all arrays at once."""
    state, held = replay.init(example(), slots=4), []
    for rollout in rollouts:
        state = add(state, numbered(rollout))
        held = [*held, rollout][-4:]
    batch = sample(state, jax.random.key(seed), 9)
    stored = {rollout: numbered(rollout) for rollout in held}
    for column in range(9):
        source = int(batch.reward[0, column]) // 100
        assert source in stored
        jax.tree.map(
            lambda leaf, origin, column=column: np.testing.assert_array_equal(
                leaf[:, column], origin[:, column % ENVS].astype(leaf.dtype)
            ),
            batch,
            stored[source],
        )


def test_a_sample_keeps_shapes_and_types():
    specs = specs_of(spaces.Dict(image=spaces.Box(0, 255, (36, 40, 3), np.uint8), x=spaces.Box(-1, 1, (2,))))
    one = example(specs)
    state = add(replay.init(one, slots=2), one)
    batch = sample(state, jax.random.key(0), 5)
    jax.tree.map(lambda leaf, new: np.testing.assert_equal(new.shape, (leaf.shape[0], 5, *leaf.shape[2:])), one, batch)
    jax.tree.map(lambda leaf, new: np.testing.assert_equal(new.dtype, leaf.dtype), one, batch)
    assert batch.observation.images[0].dtype == np.uint8


@pytest.mark.parametrize("time_limit", ["bootstrap", "terminal"])
def test_size_in_bytes_is_what_is_allocated(time_limit):
    one = example(time_limit=time_limit)
    state = replay.init(one, slots=7)
    assert replay.size_in_bytes(one, 7) == sum(leaf.nbytes for leaf in jax.tree.leaves(state.data))
    # By hand: 7 slots of 2 environments of 3 steps: observations of two float32 (one more; final ones where they are
    # kept), an int32 action, two float32 logits, a float32 reward and three flags.
    finals = 3 * 8 if time_limit == "bootstrap" else 0
    assert replay.size_in_bytes(one, 7) == 7 * 2 * (4 * 8 + 3 * (4 + 8 + 4 + 3) + finals)


# When replayed updates happen.

SMALL = {"num_envs": ENVS, "num_steps": TIME, "hidden_sizes": (4,), "replay_samples": 1}
REPLAYING = {"off_policy_updates": 8.0}


@functools.cache
def compiled(**settings):
    config = make_config(p3o.P3OConfig, SMALL, settings)
    algorithm = p3o.make(config, specs_of())
    return config, algorithm, jax.jit(algorithm.update)


def run(num_updates, **settings):
    """Numbers of replayed updates in each iteration on made-up rollouts."""
    config, algorithm, update = compiled(**settings)
    rollout = example_trajectory(config, specs_of())
    state, counts = algorithm.init(np.random.default_rng(0)), []
    for index in range(num_updates):
        state, metrics = update(state, rollout, jax.random.fold_in(jax.random.key(7), index), np.float32(0))
        counts.append(metrics["off_policy_updates"])
    return np.asarray(jnp.stack(counts))


def test_replay_starts_exactly_when_burn_in_is_over_and_is_poisson_then():
    # burn_in 20 steps an environment is 20 // 3 = 6 rollouts: the 6th iteration is the first that may replay.
    counts = run(605, **REPLAYING, burn_in=20, replay_size=30)
    assert (counts[:5] == 0).all()
    assert counts[5] > 0  # ξ = 0 has probability e⁻⁸
    # Mean and variance are m = 8. Standard errors: √(8/600) = 0.12 and about √((2·64 + 8)/600) = 0.48; four of each.
    assert counts[5:].mean() == pytest.approx(8, abs=0.5)
    assert counts[5:].var() == pytest.approx(8, abs=2)


def test_without_burn_in_the_first_iteration_replays():
    assert run(1, **REPLAYING, burn_in=0, replay_size=TIME)[0] > 0


def test_a_mean_of_zero_allocates_no_replay():
    config, algorithm, _ = compiled(off_policy_updates=0)
    state = algorithm.init(np.random.default_rng(0))
    assert state.replay is None
    assert algorithm.replay_bytes == 0
    assert run(2, off_policy_updates=0).sum() == 0
    # With replay the state holds what is announced.
    config, algorithm, _ = compiled(**REPLAYING, burn_in=0)
    state = algorithm.init(np.random.default_rng(0))
    assert algorithm.replay_bytes == sum(leaf.nbytes for leaf in jax.tree.leaves(state.replay.data))
    assert jax.tree.leaves(state.replay.data)[0].shape[0] == config.replay_size // TIME


def test_a_burn_in_that_never_ends_is_refused():
    with pytest.raises(UserError, match="burn_in"):
        p3o.make(make_config(p3o.P3OConfig, SMALL, {"burn_in": 100, "replay_size": 50}), specs_of())


def test_the_fresh_rollout_can_be_sampled_at_once():
    """It is added before the replayed steps: with one slot every replayed step is on the rollout just collected."""
    config, algorithm, update = compiled(**REPLAYING, burn_in=0, replay_size=TIME)
    rollout = example_trajectory(config, specs_of())
    _, metrics = update(algorithm.init(np.random.default_rng(0)), rollout, jax.random.key(0), np.float32(0))
    assert metrics["off_policy_updates"] > 0
    # Zeros for logits, and a learning rate of 0: π is the network's, nearly even; against an empty slot it would be
    # the same, so the observation that β is read from the rollout is made with other logits.
    logits = np.broadcast_to(np.array([3.0, 0.0], np.float32), (TIME, ENVS, 2))
    tilted = rollout._replace(behaviour=rollout.behaviour._replace(logits=logits))
    _, metrics = update(algorithm.init(np.random.default_rng(0)), tilted, jax.random.key(0), np.float32(0))
    # All actions are 0: ρ = ½ / σ(3) in every row.
    assert float(metrics["ratio_mean"]) == pytest.approx(0.5 * (1 + np.exp(-3)), rel=0.02)
