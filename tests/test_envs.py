"""Every backend keeps one contract: what is acted on, what comes back, what ends, and what is no decision."""

import contextlib
import functools
import itertools
import os
import secrets
import threading
from time import sleep

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from p3o import seeds
from p3o.algorithms import Specs
from p3o.algorithms.p3o import P3OConfig
from p3o.config import make_config
from p3o.distributions import Categorical
from p3o.envs.gymnasium_env import GymnasiumVectorEnv, HostVectorEnv
from p3o.envs.making import make_env
from p3o.envs.quiet import quietly
from p3o.envs.snapshot import NotSnapshotable, capture
from p3o.errors import UserError
from p3o.normalize import Normalizer
from p3o.rollout import Rollout
from p3o.spaces import action_spec, observation_spec


def make_script(ends):
    """An environment that plays a script: episode k lasts `length` steps and ends in the `way` of ends[k], in turn.

    It shows 10 · episode + step and pays the number that it shows. (Made in a function so that another process gets it
    whole.)
    """
    import gymnasium
    import numpy

    class Script(gymnasium.Env):
        def __init__(self):
            self.observation_space = gymnasium.spaces.Box(0, 1e6, (1,), numpy.float64)
            self.action_space = gymnasium.spaces.Discrete(2)
            self.episode, self.time = -1, 0

        def observation(self):
            return numpy.array([10.0 * self.episode + self.time])

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.episode, self.time = self.episode + 1, 0
            return self.observation(), {}

        def step(self, action):
            self.time += 1
            length, way = ends[self.episode % len(ends)]
            is_end = self.time == length
            is_terminated, is_truncated = (is_end and way in (name, "both") for name in ("terminate", "truncate"))
            return self.observation(), 10.0 * self.episode + self.time, is_terminated, is_truncated, {}

    return Script()


# Two environments that end in different ways at different times, but make as many decisions in as many episodes.
ENDS = (
    [(3, "terminate"), (1, "both"), (2, "truncate")],
    [(2, "truncate"), (3, "both"), (1, "terminate")],
)
BACKENDS = ("host", "sync same", "sync next", "sync disabled", "async same", "async next")
MODES = {"same": AutoresetMode.SAME_STEP, "next": AutoresetMode.NEXT_STEP, "disabled": AutoresetMode.DISABLED}


def backend(name, ends=ENDS, seed=0):
    makes = [functools.partial(make_script, one) for one in ends]
    sequence = np.random.SeedSequence(seed)
    if name == "host":
        remaining = iter(makes)
        return HostVectorEnv(lambda: next(remaining)(), len(makes), sequence)
    kind, mode = name.split()
    if kind == "sync":
        return GymnasiumVectorEnv(SyncVectorEnv(makes, autoreset_mode=MODES[mode]), sequence)
    return GymnasiumVectorEnv(AsyncVectorEnv(makes, autoreset_mode=MODES[mode], context="spawn"), sequence)


@pytest.fixture(params=BACKENDS)
def env(request):
    made = backend(request.param)
    yield made
    made.close()


def expected_decisions(ends, number):
    """What the script makes of its first decisions: acted on, reward, terminated, truncated, final, next."""
    decisions = []
    for episode in itertools.count():
        length, way = ends[episode % len(ends)]
        for time in range(length):
            is_end = time == length - 1
            shown, following = 10 * episode + time, 10 * episode + time + 1
            decisions.append(
                (
                    shown,
                    following,
                    is_end and way in ("terminate", "both"),
                    is_end and way == "truncate",  # what terminates is not cut off as well
                    following if is_end else None,
                    10 * (episode + 1) if is_end else following,
                )
            )
            if len(decisions) == number:
                return decisions


def play(env, rows):
    """The decisions of each environment, as above, and the rows that were masked."""
    decisions, masked = [[] for _ in range(env.num_envs)], [[] for _ in range(env.num_envs)]
    before = env.reset().vector.copy()
    for row in range(rows):
        is_waiting = env.is_waiting.copy()
        step = env.step(np.zeros(env.num_envs, np.int64))
        after = step.observation.vector.copy()
        np.testing.assert_array_equal(after, env.current().vector)
        np.testing.assert_array_equal(step.is_masked, is_waiting)  # announced a row before
        assert {flags.dtype for flags in (step.terminated, step.truncated, step.is_masked)} == {np.dtype(bool)}
        assert step.reward.dtype == np.float64
        for index in range(env.num_envs):
            terminated, truncated = bool(step.terminated[index]), bool(step.truncated[index])
            if step.is_masked[index]:
                masked[index].append(row)
                assert step.reward[index] == 0
                assert not terminated
                assert not truncated
                # The first observation of the new episode is what the decision before led to, in the end.
                decisions[index][-1] = (*decisions[index][-1][:-1], after[index, 0])
                continue
            final = step.final_observation.vector[index, 0] if terminated or truncated else None
            decisions[index].append(
                (before[index, 0], step.reward[index], terminated, truncated, final, after[index, 0])
            )
        before = after
    return decisions, masked


def test_every_backend_makes_the_same_decisions(env):
    decisions, masked = play(env, rows=12)
    is_next_step = getattr(env, "mode", None) is AutoresetMode.NEXT_STEP
    for index, ends in enumerate(ENDS):
        number = len(decisions[index])
        expected = expected_decisions(ends, number)
        if env.is_waiting[index]:  # its last row showed the final observation, the reset is yet to come
            expected[-1] = (*expected[-1][:-1], expected[-1][-2])
        assert decisions[index] == expected
        assert number + len(masked[index]) == 12
    assert env.observation_space == spaces.Box(0, 1e6, (1,), np.float64)
    assert env.action_space == spaces.Discrete(2)
    # Under next-step reset the rows after ends are masked: after 3, 1, 2 and after 2, 3, 1, 2 steps.
    assert masked == ([[3, 5, 8], [2, 6, 8, 11]] if is_next_step else [[], []])


@pytest.mark.parametrize("name", ["host", "sync same", "sync next", "sync disabled"])
def test_a_time_limit_truncates(name):
    def make():
        return TimeLimit(make_script([(5, "terminate")]), 3)

    if name == "host":
        env = HostVectorEnv(make, 1, np.random.SeedSequence(0))
    else:
        env = GymnasiumVectorEnv(
            SyncVectorEnv([make], autoreset_mode=MODES[name.split()[1]]), np.random.SeedSequence(0)
        )
    decisions, _ = play(env, rows=4)
    assert [d[2:4] for d in decisions[0][:3]] == [(False, False), (False, False), (False, True)]
    assert decisions[0][2][4] == 3  # the final observation, of the old episode


def test_a_vector_environment_has_to_say_how_it_resets():
    vector = SyncVectorEnv([functools.partial(make_script, ENDS[0])])
    vector.metadata = {}
    with pytest.raises(UserError, match="autoreset_mode"):
        GymnasiumVectorEnv(vector, np.random.SeedSequence(0))


# Through the rollout: counts, returns, normaliser.


def collect(name, num_steps, ends=ENDS, time_limit="bootstrap", iterations=1):
    """One or more rollouts of a policy without preferences, with everything normalised."""
    env = backend(name, ends)
    config = make_config(P3OConfig, {"num_envs": len(ends), "num_steps": num_steps, "time_limit": time_limit})
    specs = Specs(observation_spec(env.observation_space), action_spec(env.action_space))
    normalizer = Normalizer(1, len(ends), 0.9, True, True)
    rollout = Rollout(config, specs, env, normalizer)
    rollout.start()
    step, episodes, trajectory, rng = 0, [], None, np.random.default_rng(0)
    for _ in range(iterations):
        trajectory, step, new = rollout.collect(
            lambda seen: Categorical(np.zeros((len(seen.vector), 2), np.float32)), rng, step
        )
        episodes += new
    env.close()
    return trajectory, step, episodes, normalizer.state(), rollout


# Six decisions are three episodes of either script; under next-step reset they take three rows more.
SAME, NEXT = ("host", "sync same", "sync disabled"), ("sync next",)
ROWS = dict.fromkeys(SAME, 6) | dict.fromkeys(NEXT, 9)


@pytest.mark.parametrize("name", SAME + NEXT)
def test_raw_returns_lengths_and_steps_of_episodes(name):
    _, step, episodes, _, rollout = collect(name, ROWS[name])
    assert step == 12  # decisions of both, masked rows left out
    by_env = [[(e.total, e.length) for e in episodes if e.env == index] for index in range(2)]
    # Environment 0: 1 + 2 + 3; 11; 21 + 22. Environment 1: 1 + 2; 11 + 12 + 13; 21.
    assert by_env == [[(6, 3), (11, 1), (43, 2)], [(3, 2), (36, 3), (21, 1)]]
    np.testing.assert_array_equal(rollout.returns, 0)
    np.testing.assert_array_equal(rollout.lengths, 0)
    if name in SAME:
        # Episodes end at rows 2, 3, 5 (environment 0) and 1, 4, 5 (environment 1), two steps a row.
        assert [(e.step, e.env) for e in episodes] == [(4, 1), (6, 0), (8, 0), (10, 1), (12, 0), (12, 1)]


@pytest.mark.parametrize("name", NEXT)
def test_statistics_do_not_depend_on_how_the_backend_resets(name):
    reference = collect("host", 6)[3]
    for label, a, b in zip(reference._fields, reference, collect(name, ROWS[name])[3], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=label)
    # By hand: observations of resets and of steps that end no episode, 2 · (1 + 6) of them; rewards of 12 decisions.
    assert reference.observation_count == pytest.approx(14 + 1e-4)
    assert reference.return_count == pytest.approx(12 + 1e-4)


def test_statistics_leave_final_observations_out():
    # One episode of two steps: shown are 0, 1 and then 10 of the next episode; the final 2 is not counted.
    for name, rows in (("host", 2), ("sync next", 3)):
        state = collect(name, rows, ends=([(2, "terminate")],))[3]
        np.testing.assert_allclose(state.observation_mean, (0 + 1 + 10) / (3 + 1e-4))


def test_masked_rows_are_marked_in_the_trajectory():
    trajectory, *_ = collect("sync next", 9)
    np.testing.assert_array_equal(np.flatnonzero(trajectory.is_masked[:, 0]), [3, 5, 8])
    np.testing.assert_array_equal(np.flatnonzero(trajectory.is_masked[:, 1]), [2, 6, 8])
    assert not trajectory.is_masked[trajectory.terminated | trajectory.truncated].any()


@pytest.mark.parametrize(("name", "row"), [("host", 5), ("sync next", 7)])
def test_final_observations_are_stored_where_truncated(name, row):
    trajectory, _, _, state, rollout = collect(name, row + 1)
    # Environment 0 is truncated in its sixth decision at 22, scaled by the statistics of that moment.
    assert trajectory.truncated[row, 0]
    expected = (22 - state.observation_mean) / np.sqrt(state.observation_variance + 1e-8)
    np.testing.assert_allclose(trajectory.final_observation.vector[row, 0], expected, rtol=1e-5)
    # The last observation of the trajectory is what the next rollout starts from.
    np.testing.assert_array_equal(trajectory.observation.vector[-1], rollout.observation.vector)
    assert collect(name, row + 1, time_limit="terminal")[0].final_observation is None


def test_a_trajectory_keeps_nothing_of_the_one_before():
    ends = ([(2, "truncate"), (9, "terminate")],)
    first = collect("host", 4, ends)[0]
    assert first.final_observation.vector[1, 0, 0] != 0
    second = collect("host", 4, ends, iterations=2)[0]
    assert not second.truncated.any()
    np.testing.assert_array_equal(second.final_observation.vector, 0)


class Pictures(gym.Env):
    """Pictures whose pixels say the step; truncated after three."""

    def __init__(self, shape=(36, 36, 1)):
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.action_space = spaces.Discrete(2)

    def picture(self):
        return np.full(self.observation_space.shape, self.time, np.uint8)

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return self.picture(), {}

    def step(self, action):
        self.time += 1
        return self.picture(), 0.0, False, self.time == 3, {}


def test_pictures_stay_as_they_are_in_the_trajectory():
    env = HostVectorEnv(Pictures, 1, np.random.SeedSequence(0))
    config = make_config(P3OConfig, {"num_envs": 1, "num_steps": 5})
    specs = Specs(observation_spec(env.observation_space), action_spec(env.action_space))
    rollout = Rollout(config, specs, env, Normalizer(0, 1, 0.9, True, True))
    rollout.start()
    trajectory, *_ = rollout.collect(
        lambda seen: Categorical(np.zeros((1, 2), np.float32)), np.random.default_rng(0), 0
    )
    (images,) = trajectory.observation.images
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images[:, 0, 0, 0, 0], [0, 1, 2, 0, 1, 2])
    assert trajectory.final_observation.images[0][2, 0, 0, 0, 0] == 3
    assert trajectory.observation.vector is None


# Seeds.


class Recorder(gym.Env):
    """Keeps the seeds that it was reset with; opaque, so that every episode is seeded."""

    seen: list[int | None] = []  # noqa: RUF012

    def __init__(self, is_opaque=False):
        self.observation_space, self.action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)
        self.is_opaque = is_opaque

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.handle = itertools.count() if self.is_opaque else None
        Recorder.seen.append(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


def recorded(make_vector, run_seed, steps):
    Recorder.seen = []
    env = make_vector(seeds.derive(run_seed).envs)
    env.reset()
    for _ in range(steps):
        env.step(np.zeros(env.num_envs, np.int64))
    return [seed for seed in Recorder.seen if seed is not None]


@pytest.mark.parametrize("kind", ["host", "opaque", "vector"])
def test_neighbouring_runs_share_no_environment_seed(kind):
    def make(sequence):
        if kind == "vector":
            return GymnasiumVectorEnv(SyncVectorEnv([Recorder] * 4), sequence)
        return HostVectorEnv(functools.partial(Recorder, kind == "opaque"), 4, sequence)

    used = [recorded(make, run_seed, steps=3) for run_seed in range(5)]
    # Four environments, seeded once; where every episode is seeded, four episodes each.
    assert [len(one) for one in used] == [16 if kind == "opaque" else 4] * 5
    assert len({seed for one in used for seed in one}) == sum(map(len, used))
    assert recorded(make, 0, steps=3) == used[0]


def test_streams_of_a_run_differ():
    streams = seeds.derive(0)
    assert len({tuple(stream.generate_state(4)) for stream in streams}) == len(streams)
    assert tuple(seeds.derive(0).act.generate_state(4)) == tuple(streams.act.generate_state(4))
    assert tuple(seeds.derive(1).act.generate_state(4)) != tuple(streams.act.generate_state(4))


# Snapshots.


class Noise(gym.Env):
    """A walk driven by the environment's own generator; episodes of random length."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2)

    def draw(self):
        return self.np_random.normal()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = np.array([self.draw(), 0.0])
        return self.position.copy(), {}

    def step(self, action):
        self.position = self.position + np.array([self.draw(), action])
        return self.position.copy(), float(self.position[0]), abs(self.position[0]) > 3, False, {}


class Opaque(Noise):
    """The same behind an object in C that cannot be looked into, but the seed and the actions determine it."""

    def reset(self, *, seed=None, options=None):
        gym.Env.reset(self, seed=seed)
        self.stream = map(float, self.np_random.normal(size=10_000))
        self.position = np.array([self.draw(), 0.0])
        return self.position.copy(), {}

    def draw(self):
        return next(self.stream)


class Hidden(Opaque):
    """Randomness from outside: nothing determines it."""

    def draw(self):
        return secrets.randbelow(1000) / 1000


class Enemy:
    def __init__(self, place):
        self.place = place


class Crowd(Noise):
    """Objects come and go: a snapshot can be taken at any time, but another process does not have them."""

    def reset(self, *, seed=None, options=None):
        self.enemies = []
        return super().reset(seed=seed)

    def step(self, action):
        if self.np_random.random() < 0.5:
            self.enemies.append(Enemy(self.draw()))
        action *= 1  # some write to it
        observation, reward, *ends = super().step(action)
        return observation, reward + sum(enemy.place for enemy in self.enemies), *ends


def run(env, steps, seed=0):
    """Observations, rewards and ends under random actions."""
    rng, seen = np.random.default_rng(seed), []
    for _ in range(steps):
        step = env.step(rng.integers(2, size=env.num_envs))
        ended = step.terminated | step.truncated
        seen.append(
            (step.observation.vector.copy(), step.reward.copy(), ended, step.final_observation.vector[ended].copy())
        )
    return seen


def make_host(kind, seed=0):
    return HostVectorEnv(kind, 3, np.random.SeedSequence(seed))


@pytest.mark.parametrize("kind", [Noise, Opaque, Crowd])
@pytest.mark.parametrize("steps", [0, 1, 40])
def test_a_restored_host_environment_goes_on_alike(kind, steps):
    env = make_host(kind)
    env.reset()
    if kind is Opaque:
        with pytest.raises(NotSnapshotable):
            capture(env.envs[0])
    run(env, steps)
    snapshot = env.snapshot()
    expected = run(env, 40, seed=1)
    assert sum(ended.sum() for _, _, ended, _ in expected) > 3  # several episodes
    fresh = make_host(kind)
    fresh.reset()
    assert fresh.restore(snapshot) == []
    np.testing.assert_equal(run(fresh, 40, seed=1), expected)
    # And a used one, and a second time.
    assert env.restore(snapshot) == []
    np.testing.assert_equal(run(env, 40, seed=1), expected)


@pytest.mark.parametrize("kind", [Opaque, Crowd])
def test_a_snapshot_of_a_rebuilt_environment_is_exact_too(kind):
    env, second, third = (make_host(kind) for _ in range(3))
    env.reset()
    run(env, 10)
    second.restore(env.snapshot())
    run(env, 1, seed=3)
    run(second, 1, seed=3)
    assert third.restore(second.snapshot()) == []
    np.testing.assert_equal(run(third, 30, seed=1), run(env, 30, seed=1))


def test_what_cannot_be_brought_back_starts_a_fresh_episode_and_is_named():
    kinds = iter([Noise, Hidden, Opaque] * 2)
    env, other = (HostVectorEnv(lambda: next(kinds)(), 3, np.random.SeedSequence(0)) for _ in range(2))
    env.reset()
    run(env, 5)
    snapshot, stood = env.snapshot(), env.current().vector.copy()
    other.reset()
    assert other.restore(snapshot) == [1]
    np.testing.assert_array_equal(other.current().vector[[0, 2]], stood[[0, 2]])
    assert other.current().vector[1, 1] == 0  # a first observation: no action has been added yet
    run(other, 5)


def test_a_snapshot_of_another_number_of_environments_is_refused():
    env = make_host(Noise)
    env.reset()
    with pytest.raises(ValueError, match="3 environments, not 2"):
        HostVectorEnv(Noise, 2, np.random.SeedSequence(0)).restore(env.snapshot())


@pytest.mark.parametrize("mode", MODES)
def test_a_restored_vector_environment_goes_on_alike(mode):
    def make():
        return GymnasiumVectorEnv(SyncVectorEnv([Noise] * 3, autoreset_mode=MODES[mode]), np.random.SeedSequence(0))

    env, other = make(), make()
    env.reset()
    run(env, 7)
    while mode == "next" and not env.is_waiting.any():  # stop where a reset is due
        run(env, 1)
    snapshot = env.snapshot()
    expected, masks = run(env, 30, seed=1), env.is_waiting.copy()
    other.reset()
    assert other.restore(snapshot) == []
    np.testing.assert_equal(run(other, 30, seed=1), expected)
    np.testing.assert_array_equal(other.is_waiting, masks)


@pytest.mark.parametrize("kind", ["opaque", "async"])
def test_a_vector_environment_that_cannot_be_reached_into_starts_afresh(kind):
    if kind == "async":
        env = backend("async same")
    else:
        env = GymnasiumVectorEnv(SyncVectorEnv([Opaque] * 2), np.random.SeedSequence(0))
    first = env.reset().vector.copy()
    env.step(np.zeros(2, np.int64))
    assert env.restore(env.snapshot()) == [0, 1]
    assert not np.array_equal(env.current().vector, first)  # another episode, not the first again
    env.close()


# Making environments by name.


def test_environments_are_made_by_id_and_options():
    env = make_env("MountainCarContinuous-v0", {"goal_velocity": 0.5})
    assert env.unwrapped.goal_velocity == 0.5
    env.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("CartPoel-v1", {}, "unknown environment 'CartPoel-v1' (did you mean CartPole-v1?)"),
        ("no_such_module:CartPole-v1", {}, "there is no module 'no_such_module'"),
        ("CartPole-v1", {"gravity": 3}, "environment 'CartPole-v1' cannot be made"),
        ("Xyzzy", {}, "'Xyzzy'"),
    ],
)
def test_mistakes_in_names_are_one_line(name, options, message):
    with pytest.raises(UserError) as error:
        make_env(name, options)
    assert message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_the_error_stream_comes_back_when_several_threads_kept_it_quiet():
    before = os.fstat(2).st_ino
    inside = threading.Barrier(2, timeout=0.5)

    def keep_quiet():
        with quietly():
            with contextlib.suppress(threading.BrokenBarrierError):  # both inside at once, if that can be
                inside.wait()
            sleep(0.01 * (threading.current_thread().name == "second"))

    threads = [threading.Thread(target=keep_quiet, name=name) for name in ("first", "second")]
    for thread in threads:
        thread.start()
        sleep(0.1)
    for thread in threads:
        thread.join()
    assert os.fstat(2).st_ino == before


def test_ant_and_humanoid_of_2019():
    pytest.importorskip("mujoco")
    ant, now = make_env("p3o/Ant-v2", {}), make_env("Ant-v4", {})
    action = np.full(8, 3.0, np.float32)
    assert ant.observation_space.shape == (111,)
    told = [(now.reset(seed=1), ant.reset(seed=1))] + [(now.step(action), ant.step(action)) for _ in range(5)]
    for was, then in told:
        assert then[0].tolist() == [*was[0].tolist(), *[0.0] * 84]
    assert [then[1] for _, then in told[1:]] == [was[1] for was, _ in told[1:]]
    then, now = make_env("p3o/Humanoid-v2", {}), make_env("Humanoid-v4", {})
    for env in (then, now):
        env.reset(seed=2)
    asked, held = np.full(17, -1.0, np.float32), np.full(17, -0.4, np.float32)
    live = 0
    for _ in range(30):  # it falls, so some forces are live
        old, reward, *_, info = then.step(asked)
        new, same, *_ = now.step(held)
        assert old[:-84].tolist() == new[:-84].tolist()
        assert not old[-84:].any()
        assert reward == same
        assert info["reward_quadctrl"] == pytest.approx(-0.1 * 17 * 0.16)
        live += new[-84:].any()
    assert live


def test_of_our_own_tasks_an_unknown_one_is_one_line():
    pytest.importorskip("mujoco")
    with pytest.raises(UserError, match="p3o/Ant-v3"):
        make_env("p3o/Ant-v3", {})
