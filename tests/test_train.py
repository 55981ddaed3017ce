"""The loop on dummies: the order of events, what is counted, what stops a run, what a snapshot brings back."""

import itertools
import math
from typing import NamedTuple

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import probes
import pytest
from gymnasium import spaces

from p3o.algorithms import Algorithm, Entry, Metric, Specs
from p3o.config import Config, make_config
from p3o.distributions import Categorical
from p3o.envs.gymnasium_env import HostVectorEnv
from p3o.errors import RunStopped, UserError
from p3o.jobs import Job, set_up
from p3o.metrics import IntervalMeans
from p3o.placement import check_memory, format_bytes
from p3o.spaces import action_spec, observation_spec
from p3o.train import Trainer
from p3o.types import Observation, Step

SPACE = spaces.Box(-np.inf, np.inf, (1,), np.float64)
SPECS = Specs(observation_spec(SPACE), action_spec(spaces.Discrete(2)))
PLAIN = {"num_envs": 2, "num_steps": 3, "normalize_observation": False, "normalize_reward": False}


class Dummy:
    """Two environments that show the number of steps so far and pay it; the second terminates in step `end`."""

    num_envs, observation_space, action_space = 2, SPACE, spaces.Discrete(2)

    def __init__(self, events, end=-1):
        self.events, self.end, self.time = events, end, 0
        self.is_waiting = np.zeros(2, bool)

    def observation(self):
        return Observation(np.full((2, 1), float(self.time)), ())

    current = observation

    def reset(self):
        self.events.append("reset")
        return self.observation()

    def step(self, action):
        self.time += 1
        self.events.append(f"step {action.tolist()}")
        no = np.zeros(2, bool)
        ended = np.array([False, self.time == self.end])
        return Step(self.observation(), np.full(2, float(self.time)), ended, no, self.observation(), no)

    def snapshot(self):
        return {"time": self.time}

    def restore(self, snapshot):
        self.time = snapshot["time"]
        return []

    def close(self):
        pass


class DummyState(NamedTuple):
    params: jnp.ndarray  # how many updates there were


def dummy_entry(events, metrics=None):
    """An algorithm that prefers action 1 after its first update and writes down what it is asked."""

    def make(config, specs):
        def policy(params, observation):
            events.append(f"act on {observation.vector[0, 0]:g} with {int(params)}")
            return Categorical(np.tile(np.array([-50.0, 50.0]) if params else np.array([50.0, -50.0]), (2, 1)))

        def update(state, rollout, key, rate):
            reported = {"total": jnp.sum(rollout.reward), "rate": rate} if metrics is None else metrics(state)
            return DummyState(state.params + 1), reported

        names = (Metric("total", "sum of rewards"), Metric("rate", "as given"))
        return Algorithm(
            init_params=lambda rng: jnp.zeros(()),
            init=lambda rng: DummyState(jnp.zeros(())),
            policy=policy,
            update=update,
            learning_rate=lambda step, schedule_steps: 1 - step / schedule_steps,
            metrics=names,
        )

    return Entry("dummy", "Dummy", Config, make)


def dummy_trainer(events, end=-1, metrics=None, **settings):
    config = make_config(Config, PLAIN, settings)
    return Trainer(dummy_entry(events, metrics), config, Dummy(events, end), SPECS, seed=0)


@pytest.mark.parametrize(("pace", "counted"), [("constant", 14), ("learning_rate", 11)])
def test_observations_count_less_as_the_learning_rate_falls(pace, counted):
    """Two environments: one reset and three steps at the full rate, three more at half of it."""
    trainer = dummy_trainer([], normalize_observation=True, normalizer_pace=pace, learning_rate=1.0)
    for _ in range(2):
        trainer.iterate(schedule_steps=12)
    assert trainer.normalizer.state().observation_count == pytest.approx(counted + 1e-4)


def test_rewards_are_scaled_by_returns_of_the_runs_own_discount():
    # Dummies pay 1, 2, 3: with γ = ¼ the running returns are 1, 2.25, 3.5625 in both environments.
    trainer = dummy_trainer([], normalize_reward=True, gamma=0.25)
    trainer.iterate(schedule_steps=12)
    np.testing.assert_allclose(trainer.normalizer.state().discounted_return, [3.5625, 3.5625])


def test_order_of_events():
    events = []
    trainer = dummy_trainer(events)
    assert events == []  # nothing is touched before the first iteration
    first = trainer.iterate(schedule_steps=12)
    # One reset, then decisions on what was shown last, all with the same parameters.
    acts = [[f"act on {t} with 0", "step [0, 0]"] for t in range(3)]
    assert events == ["reset", *itertools.chain(*acts)]
    assert first.metrics == {"total": 12, "rate": 1, "learning_rate": 1}  # 2 · (1 + 2 + 3); before any step
    events.clear()
    second = trainer.iterate(schedule_steps=12)
    # The next rollout goes on where the last stood, with the new parameters and without a reset.
    acts = [[f"act on {t} with 1", "step [1, 1]"] for t in range(3, 6)]
    assert events == list(itertools.chain(*acts))
    assert second.metrics == {"total": 30, "rate": 0.5, "learning_rate": 0.5}  # 2 · (4 + 5 + 6); after 6 of 12
    assert (trainer.step, trainer.iteration) == (12, 2)


def test_the_trajectory_is_what_happened():
    trainer = dummy_trainer([], end=2)
    trainer.iterate(schedule_steps=12)
    trainer.iterate(schedule_steps=12)
    trajectory = trainer.rollout.buffers
    np.testing.assert_array_equal(trajectory.observation.vector[:, 0, 0], [3, 4, 5, 6])
    np.testing.assert_array_equal(trajectory.action, 1)
    np.testing.assert_array_equal(trajectory.behaviour.logits[..., 1], 50)
    np.testing.assert_array_equal(trajectory.reward, [[4, 4], [5, 5], [6, 6]])
    assert not trajectory.terminated.any()  # the flags of the first rollout are gone
    assert trainer.rollout.returns.tolist() == [21, 18]  # 1 + … + 6, and since the end in step 2


def test_episodes_are_counted():
    trainer = dummy_trainer([], end=2)
    first, second = (trainer.iterate(schedule_steps=12) for _ in range(2))
    assert [tuple(episode) for episode in first.episodes] == [(4, 1, 3.0, 2)]  # step 4, environment 1, 1 + 2, two steps
    assert second.episodes == []
    assert (trainer.num_episodes, trainer.mean_return, trainer.mean_length) == (1, 3.0, 2.0)
    assert math.isnan(dummy_trainer([]).mean_return)


def test_a_snapshot_in_the_middle_brings_the_counters_back():
    trainer, other = dummy_trainer([], end=5), dummy_trainer([], end=5)
    trainer.iterate(schedule_steps=24)
    snapshot = trainer.snapshot()
    expected = [trainer.iterate(schedule_steps=24) for _ in range(2)]
    other.restore(snapshot)
    assert [other.iterate(schedule_steps=24) for _ in range(2)] == expected
    assert (other.step, other.iteration, other.num_episodes) == (trainer.step, 3, 1)
    assert other.interval.means() == trainer.interval.means()
    assert other.seconds > 0


def test_a_snapshot_of_other_shapes_is_refused():
    trainer = dummy_trainer([])
    trainer.iterate(schedule_steps=12)
    snapshot = trainer.snapshot()
    snapshot["algorithm"] = [np.zeros(2, np.float32)]
    with pytest.raises(ValueError, match="shape"):
        trainer.restore(snapshot)


# What stops a run.


class Broken(gym.Env):
    """Shows or pays `value` in every fifth step."""

    def __init__(self, what, value):
        self.observation_space, self.action_space = SPACE, spaces.Discrete(2)
        self.what, self.value = what, value

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1), {}

    def step(self, action):
        self.time += 1
        observation, reward = np.full(1, self.time / 10), 1.0
        if self.time % 5 == 0:
            observation, reward = (
                (np.full(1, self.value), 1.0) if self.what == "observation" else (observation, self.value)
            )
        return observation, reward, False, False, {}


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("what", ["observation", "reward"])
def test_what_is_not_finite_stops_the_run_and_is_named(what, value, is_normalized):
    config = make_config(Config, PLAIN | {"normalize_observation": is_normalized, "normalize_reward": is_normalized})
    env = HostVectorEnv(lambda: Broken(what, value), 2, np.random.SeedSequence(0))
    trainer = Trainer(dummy_entry([]), config, env, SPECS, seed=0)
    trainer.iterate(schedule_steps=100)  # three steps: all is well
    with pytest.raises(RunStopped, match=rf"^step 12: {what} of the environment is not finite"):
        trainer.iterate(schedule_steps=100)


def test_a_gradient_that_is_not_finite_stops_the_run():
    """Rewards near the end of float32: their squares in the value loss are beyond it."""
    trainer = probes.make_trainer("a2c", lambda: Broken("reward", 1e30), num_envs=2, num_steps=4)
    trainer.iterate(schedule_steps=100)
    with pytest.raises(RunStopped, match=r"^step 16: (value_loss|grad_norm) is (inf|nan)"):
        trainer.iterate(schedule_steps=100)


def test_parameters_are_checked_before_they_are_saved():
    trainer = dummy_trainer([])
    trainer.iterate(schedule_steps=100)
    trainer.check_params()
    trainer.state = DummyState(jnp.full((), jnp.inf))
    with pytest.raises(RunStopped, match=r"^step 6: parameter .*is not finite"):
        trainer.check_params()


def test_a_metric_that_is_not_finite_stops_the_run():
    trainer = dummy_trainer([], metrics=lambda state: {"total": jnp.log(-state.params - 1.0), "rate": state.params})
    with pytest.raises(RunStopped, match=r"^step 6: total is nan"):
        trainer.iterate(schedule_steps=100)
    trainer.check_params()


# Means over an interval, memory.


def test_interval_means_by_hand():
    means = IntervalMeans(
        (Metric("loss", "."), Metric("kl", ".", weight="updates"), Metric("updates", ".", is_count=True))
    )
    assert all(math.isnan(value) for value in means.means().values())
    means.add({"loss": 1.0, "kl": 2.0, "updates": 1.0})
    means.add({"loss": 3.0, "kl": 0.0, "updates": 0.0})  # nothing replayed: its KL is no observation
    means.add({"loss": 5.0, "kl": 4.0, "updates": 3.0})
    # loss (1 + 3 + 5) / 3; KL (1·2 + 3·4) / 4; updates 1 + 0 + 3.
    assert means.means() == {"loss": 3.0, "kl": 3.5, "updates": 4.0}
    means.clear()
    means.add({"loss": 3.0, "kl": 0.0, "updates": 0.0})
    assert means.means()["updates"] == 0
    assert math.isnan(means.means()["kl"])


def test_a_replay_that_does_not_fit_is_refused_before_it_is_made():
    with pytest.raises(UserError, match=r"the replay needs .* of memory are free; lower it with --set replay_size=N"):
        probes.make_trainer("p3o", lambda: Broken("reward", 0.0), replay_size=10**13)
    check_memory(0, type("Device", (), {"platform": "cpu"}))


def test_bytes_are_readable():
    assert [format_bytes(n) for n in (12, 1_500, 2_000_000, 96_300_000_000)] == [
        "12 bytes",
        "1.5 kB",
        "2 MB",
        "96.3 GB",
    ]


def test_the_sign_of_rewards_is_learned_and_their_size_is_told():
    job = Job("Pendulum-v1", "a2c", 10_000, settings={"reward_transform": "sign", "normalize_reward": False})
    trainer = set_up(job._replace(settings=job.settings | {"num_envs": 2, "num_steps": 200})).trainer
    trainer.rollout.start()
    trainer.actor.set_params(trainer.state.params)
    trajectory, _, episodes = trainer.rollout.collect(trainer.actor, trainer.act_rng, 0)
    assert set(np.unique(trajectory.reward)) == {-1.0}
    assert len(episodes) == 2
    assert all(episode.total != round(episode.total) and episode.total != -200 for episode in episodes)
