"""The contract of every registered algorithm, and the probe environments."""

import dataclasses
import functools
import itertools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from gymnasium import spaces

from p3o.algorithms import ALGORITHMS, Specs, find
from p3o.algorithms.base import example_trajectory
from p3o.config import make_config
from p3o.errors import UserError
from p3o.spaces import action_spec, observation_spec

every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)


class Walk(gym.Env):
    """A noisy walk that terminates beyond ±2 and is truncated after seven steps: a bit of everything."""

    def __init__(self):
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,))
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.time = self.np_random.normal(), 0
        return np.array([self.position], np.float32), {}

    def step(self, action):
        self.position += self.np_random.normal() + (0.5 if action else -0.5)
        self.time += 1
        observation = np.array([self.position], np.float32)
        return observation, -abs(self.position), abs(self.position) > 2, self.time >= 7, {}


def trainer_of(algo, seed=0):
    """With normalisation, which is the host's: the compiled update is that of the probes."""
    trainer = probes.make_trainer(algo, Walk, seed, normalize_observation=True, normalize_reward=True)
    trainer._update = probes.compiled.get((algo, "discrete")) or trainer._compile()
    probes.compiled[algo, "discrete"] = trainer._update
    return trainer


def iterate(trainer, times):
    return [trainer.iterate(schedule_steps=10_000) for _ in range(times)]


def leaves(trainer):
    return [np.array(leaf) for leaf in jax.tree.leaves(trainer.state)]


@every_algorithm
def test_update_is_traced_once(algo):
    trainer = probes.make_trainer(algo, Walk)
    traces, update = [], trainer.algorithm.update

    def counted(*arguments):
        traces.append(1)
        return update(*arguments)

    trainer.algorithm = trainer.algorithm._replace(update=counted)
    iterate(trainer, 4)
    assert len(traces) == 1
    probes.compiled[algo, "discrete"] = trainer._update


@pytest.mark.parametrize("probe", probes.PROBES)
@pytest.mark.parametrize("actions", probes.ACTIONS)
@every_algorithm
def test_probe(algo, actions, probe):
    try:
        learned = probes.learn(algo, probe, actions, iterations=100)
    except UserError as refusal:
        assert "action space" in str(refusal)  # noqa: PT017
        pytest.skip(str(refusal))
    assert learned.values == pytest.approx(probes.PROBES[probe].values, abs=0.1)
    for observation, action in probes.PROBES[probe].best.items():
        assert learned.actions[observation] == action


@every_algorithm
def test_metrics_are_the_declared_ones_and_finite(algo):
    trainer = trainer_of(algo)
    declared = [metric.name for metric in trainer.algorithm.metrics]
    assert len(set(declared)) == len(declared)
    for iteration in iterate(trainer, 6):
        assert set(iteration.metrics) == {*declared, "learning_rate"}
        assert np.isfinite(list(iteration.metrics.values())).all()
    for metric in trainer.algorithm.metrics:
        assert metric.help
        assert metric.weight == "" or metric.weight in declared
    counts = [metric.name for metric in trainer.algorithm.metrics if metric.is_count]
    assert all(iteration.metrics[name] == int(iteration.metrics[name]) for name in counts)


@every_algorithm
def test_the_state_keeps_its_shapes_and_learns(algo):
    trainer = trainer_of(algo)
    before = trainer.state
    shapes = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), before)
    params = jax.tree.map(np.array, before.params)
    iterate(trainer, 1)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), trainer.state) == shapes
    moved = [
        not np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, trainer.state.params)), strict=True)
    ]
    assert all(moved)


@every_algorithm
def test_the_state_is_donated(algo):
    trainer = trainer_of(algo)
    iterate(trainer, 1)
    old = jax.tree.leaves(trainer.state)
    iterate(trainer, 1)
    assert all(leaf.is_deleted() for leaf in old)


@every_algorithm
def test_equal_seeds_give_equal_runs_and_others_differ(algo):
    runs = []
    for seed in (3, 3, 4):
        trainer = trainer_of(algo, seed)
        iterations = iterate(trainer, 4)
        runs.append((leaves(trainer), [(i.metrics, i.episodes) for i in iterations]))
    assert runs[0][1] == runs[1][1]
    jax.tree.map(np.testing.assert_array_equal, runs[0][0], runs[1][0])
    assert not np.array_equal(runs[0][0][0], runs[2][0][0])


@every_algorithm
def test_a_restored_run_goes_on_bit_for_bit(algo):
    trainer = trainer_of(algo)
    iterate(trainer, 4)
    snapshot = trainer.snapshot()
    expected = iterate(trainer, 3)
    for _ in range(2):  # the snapshot is neither changed by going on nor by a restore
        other = trainer_of(algo)
        assert other.restore(snapshot) == []
        assert (other.step, other.iteration) == (4 * 64, 4)
        again = iterate(other, 3)
        assert [(i.metrics, i.episodes) for i in again] == [(i.metrics, i.episodes) for i in expected]
        jax.tree.map(np.testing.assert_array_equal, leaves(other), leaves(trainer))
        assert list(other.recent) == list(trainer.recent)
        assert other.interval.means() == trainer.interval.means()
        np.testing.assert_equal(other.normalizer.state(), trainer.normalizer.state())


@every_algorithm
def test_a_used_run_can_be_taken_back(algo):
    """Nothing of what happened since stays behind."""
    trainer = trainer_of(algo)
    iterate(trainer, 2)
    snapshot = trainer.snapshot()
    iterate(trainer, 2)
    expected = leaves(trainer)
    iterate(trainer, 1)
    trainer.restore(snapshot)
    iterate(trainer, 2)
    jax.tree.map(np.testing.assert_array_equal, leaves(trainer), expected)


@every_algorithm
def test_learning_rate_never_rises_and_stays_constant_on_request(algo):
    entry = find(algo)
    specs = Specs(observation_spec(spaces.Box(-1, 1, (1,))), action_spec(spaces.Discrete(2)))

    def rates(schedule):
        config = make_config(entry.config, probes.settings_for(algo, lr_schedule=schedule, learning_rate=0.01))
        rate = entry.make(config, specs).learning_rate
        return [rate(step, 10_000) for step in range(0, 10_000 + 1, config.steps_per_iteration)]

    falling = rates("linear")
    assert all(a > b or b == 0 for a, b in itertools.pairwise(falling))
    assert 0.0099 < falling[0] <= 0.01
    assert 0 <= falling[-1] < 0.0001
    assert set(rates("constant")) == {0.01}


OBSERVATIONS = {
    "vector": spaces.Box(-1, 1, (3,)),
    "image": spaces.Box(0, 255, (36, 36, 2), np.uint8),
    "both": spaces.Dict(camera=spaces.Box(0, 255, (3, 40, 36), np.uint8), mode=spaces.Discrete(4)),
}
ACTIONS = {
    "discrete": spaces.Discrete(3),
    "box": spaces.Box(-1, 1, (2,)),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "multi_binary": spaces.MultiBinary(3),
}


@pytest.mark.parametrize(
    ("observation", "action", "time_limit"),
    [*itertools.product(OBSERVATIONS, ACTIONS, ["bootstrap"]), ("vector", "discrete", "terminal")],
)
@every_algorithm
def test_every_kind_of_space_fits(algo, observation, action, time_limit):
    """Traced, not run: shapes and types of an update on every kind of observation and action."""
    entry = find(algo)
    specs = Specs(observation_spec(OBSERVATIONS[observation]), action_spec(ACTIONS[action]))
    config = make_config(entry.config, probes.settings_for(algo, time_limit=time_limit, conv_channels=(2, 2, 2)))
    try:
        algorithm = entry.make(config, specs)
    except UserError as refusal:
        assert str(ACTIONS[action]) in str(refusal)  # noqa: PT017
        pytest.skip(str(refusal))
    state = jax.eval_shape(lambda: algorithm.init(np.random.default_rng(0)))
    rollout = example_trajectory(config, specs)
    after, metrics = jax.eval_shape(algorithm.update, state, rollout, jax.random.key(0), np.float32(0))
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), state
    )
    assert set(metrics) == {metric.name for metric in algorithm.metrics}
    assert {value.shape for value in metrics.values()} == {()}
    seen = jax.tree.map(lambda leaf: leaf[0], rollout.observation)
    policy = jax.eval_shape(algorithm.policy, state.params, seen)
    assert jax.tree.map(lambda leaf: leaf.shape, policy) == jax.tree.map(lambda leaf: leaf.shape[1:], rollout.behaviour)
    kept = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(getattr(state, "replay", None))[:-1]]
    assert algorithm.replay_bytes == sum(kept)


@every_algorithm
def test_policies_act_on_numpy_and_on_jax(algo):
    trainer = trainer_of(algo)
    iterate(trainer, 1)
    seen = trainer.rollout.observation
    on_host = trainer.actor(seen)
    on_device = jax.jit(trainer.algorithm.policy)(trainer.state.params, jax.tree.map(jnp.asarray, seen))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), on_host, on_device)


@every_algorithm
def test_registry_entries_are_complete(algo):
    entry = ALGORITHMS[algo]
    assert entry.name == algo
    assert entry.title
    assert dataclasses.is_dataclass(entry.config)


def test_an_unknown_algorithm_is_named():
    with pytest.raises(UserError, match=r"unknown algorithm 'p30' \(did you mean p3o\?\)"):
        find("p30")


def test_cartpole_is_learned():
    """From 20 steps an episode to several times that, within seconds."""
    settings = {"num_envs": 8, "num_steps": 32, "hidden_sizes": (32,), "gamma": 0.98, "learning_rate": 5e-3}
    make = functools.partial(gym.make, "CartPole-v1", disable_env_checker=True)
    trainer = probes.make_trainer(
        "p3o",
        make,
        **settings,
        normalize_observation=True,
        normalize_reward=True,
        replay_size=1600,
        burn_in=160,
        replay_samples=2,
    )
    while trainer.step < 25_000:
        trainer.iterate(schedule_steps=1_000_000)
    assert trainer.mean_return > 100
