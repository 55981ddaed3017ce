"""The Python side: learn, predict, save, load, resume."""

import contextlib
import errno
import fcntl
import importlib.util
import inspect
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time

import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import TINY_SETTINGS, call, complaint, tree
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from killing import differences

from p3o import A2C, ACER, P3O, PPO, checkpoint, evaluate, session
from p3o.envs import known
from p3o.envs.quiet import silence_mujoco
from p3o.errors import RunStopped, UserError
from p3o.folder import FolderInUse
from p3o.model import split_batch
from p3o.report import write_report
from p3o.saving import BackgroundSaver, Checkpoints

VECTOR = spaces.Box(-1, 1, (3,))
SMALL_IMAGES = {"num_envs": 2, "num_steps": 4, "conv_channels": "2,2,2", "conv_features": 4, "replay_size": 16}
SMALL_IMAGES |= {"burn_in": 8, "replay_samples": 2}


class Spaces(gym.Env):
    """Any spaces, random observations, episodes of seven steps; it checks the actions it is given."""

    def __init__(self, observation_space=VECTOR, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, type(action), self.action_space)
        self.time += 1
        return self.observation_space.sample(), 1.0, False, self.time == 7, {}


def cart_pole():
    return gym.make("CartPole-v1")


@pytest.fixture(scope="module")
def agent():
    """Trained for 96 steps; read only."""
    return P3O("CartPole-v1", seed=0, **TINY_SETTINGS).learn(96)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path / "cwd"


def weights(agent):
    return agent._loaded.params["policy"]["vector"][0]["weight"].copy()


# Learning -------------------------------------------------------------------------------------------------------------


def test_learn_returns_the_agent_adds_steps_and_writes_nothing(here):
    agent = P3O("CartPole-v1", **TINY_SETTINGS)
    assert agent.num_timesteps == 0
    assert np.isnan(agent.mean_return)
    assert agent.learn(60) is agent
    assert agent.num_timesteps == 64  # whole iterations of 32
    before = weights(agent)
    assert agent.learn(60).num_timesteps == 128
    assert not np.array_equal(weights(agent), before)
    assert agent.mean_return > 0
    assert tree(here) == {}


def test_learn_says_nothing_unless_asked(capfd):
    P3O("CartPole-v1", **TINY_SETTINGS).learn(32)
    assert "".join(capfd.readouterr()) == ""
    P3O("CartPole-v1", **TINY_SETTINGS).learn(32, progress_bar=True)
    said = capfd.readouterr()
    assert said.out == ""
    assert "step 32/32" in said.err


def test_a_callback_sees_every_iteration_and_stops_the_training():
    seen = []
    agent = P3O("CartPole-v1", **TINY_SETTINGS)
    agent.learn(1000, callback=lambda status: seen.append(status.step))  # None does not stop
    assert seen == list(range(32, 1025, 32))
    agent = P3O("CartPole-v1", **TINY_SETTINGS)
    agent.learn(1000, callback=lambda status: status.step < 96)
    assert agent.num_timesteps == 96
    assert agent.learn().num_timesteps == 1024  # to the end that was asked for


def test_a_refusal_inside_a_callback_is_the_callers(here):
    (here / "full").mkdir()
    (here / "full" / "other").touch()
    agent = P3O("CartPole-v1", **TINY_SETTINGS)
    with pytest.raises(UserError, match="full exists and holds no model; it is left as it is"):
        agent.learn(64, run_dir="run", callback=lambda status: agent.save("full"))


def test_predictions_in_a_callback_do_not_freeze_the_agent(agent):
    """The policy that a callback looked at is not the one that learn ends with."""
    seen = []
    watched = P3O("CartPole-v1", seed=0, **TINY_SETTINGS)
    watched.learn(96, callback=lambda status: seen.append(weights(watched)))
    assert not np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[2], weights(watched))
    assert np.array_equal(weights(watched), weights(agent))


@pytest.mark.parametrize("steps", [0, -5])
def test_learn_refuses_no_steps(agent, steps):
    with pytest.raises(UserError, match=str(steps)):
        agent.learn(steps)


def test_learn_without_steps_needs_a_run_to_go_on_with(agent):
    with pytest.raises(UserError, match="number of steps"):
        agent.learn()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "CartPol-v1"}, "CartPole-v1"),
        ({"env": "CartPole-v1", "gama": 1}, "gamma"),
        ({"env": "CartPole-v1", "gamma": 2}, "gamma"),
        ({"env": "CartPole-v1", "preset": "papr"}, "paper"),
        ({"env": "CartPole-v1", "seed": -1}, "seed"),
        ({"env": "CartPole-v1", "seed": None}, "seed None: a whole number"),
        ({"env": "CartPole-v1", "seed": 1.5}, "seed 1.5: a whole number"),
        ({"env": "CartPole-v1", "seed": "a"}, "seed 'a': a whole number"),
        ({"env": "CartPole-v1", "seed": 2**64}, "to 2⁶³"),
        ({"env": gym.Env()}, "a function that makes"),
        ({"env": 3}, "int"),
        ({"env": lambda: 3}, "int"),
        ({"env": cart_pole, "env_kwargs": {"length": 3}}, "env_kwargs"),
        ({"env": Spaces, "num_envs": 0}, "num_envs"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(UserError, match=message):
        P3O(arguments.pop("env"), **arguments)


@pytest.mark.parametrize("steps", [0, -3, 1.5, float("nan"), float("inf"), "1e3", True])
def test_steps_that_are_no_number_of_steps(steps):
    with pytest.raises(UserError, match="a whole number of at least 1 is needed"):
        P3O("CartPole-v1", **TINY_SETTINGS).learn(steps)


def test_numbers_of_numpy_and_whole_floats_are_numbers():
    agent = P3O("CartPole-v1", seed=np.int64(3), **TINY_SETTINGS).learn(96.0).learn(np.int32(32))
    plain = P3O("CartPole-v1", seed=3, **TINY_SETTINGS).learn(96).learn(32)
    assert agent.num_timesteps == plain.num_timesteps == 128
    assert np.array_equal(weights(agent), weights(plain))


def test_a_function_that_hands_out_one_environment_twice_is_refused():
    env = cart_pole()
    with pytest.raises(UserError, match="of its own"):
        P3O(lambda: env, **TINY_SETTINGS)


def test_wrappers_of_their_own_around_one_environment_are_refused():
    env = cart_pole()
    with pytest.raises(UserError, match="of its own"):
        P3O(lambda: gym.wrappers.RecordEpisodeStatistics(env), **TINY_SETTINGS)


def test_environment_arguments_reach_the_constructor():
    agent = P3O("FrozenLake-v1", env_kwargs={"map_name": "8x8"}, **TINY_SETTINGS)
    assert agent._loaded.observation_space == spaces.Discrete(64)


# Run folders ----------------------------------------------------------------------------------------------------------


def test_a_run_dir_holds_the_run_and_grows(here):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(64, run_dir="run")
    assert {"config.json", "episodes.csv", "updates.csv", "checkpoint", "model", "report.html"} <= set(
        tree(here / "run")
    )
    agent.learn(64)
    assert json.loads((here / "run" / "config.json").read_text())["steps"] == 128
    agent.learn(64, run_dir="run", eval_every=32)
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["steps"], config["eval_every"]) == (192, 32)
    assert (here / "run" / "evaluations.csv").read_text().count("\n") == 1 + 2 * 10
    assert json.loads((here / "run" / "model" / "model.json").read_text())["step"] == 192
    assert call("eval", "run", "--episodes", 1).code == 0
    with pytest.raises(UserError, match="already writes"):
        agent.learn(32, run_dir="other")
    with open(here / "run" / ".lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="being written"):
            agent.learn(32)
    assert agent.learn(32).num_timesteps == 224


def test_a_run_is_not_free_while_a_checkpoint_that_nobody_waits_for_is_written(here, monkeypatch):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(64, run_dir="run")
    gate, prepare, wait = threading.Event(), Checkpoints.prepare, BackgroundSaver.wait

    def prepare_late(self, *arguments):
        write = prepare(self, *arguments)
        return lambda: write() if gate.wait(60) else 0

    def wait_impatiently(self):  # someone presses Ctrl-C again and again
        if self.is_busy and not gate.is_set():
            raise KeyboardInterrupt
        wait(self)

    monkeypatch.setattr(Checkpoints, "prepare", prepare_late)
    monkeypatch.setattr(BackgroundSaver, "wait", wait_impatiently)
    with pytest.raises(KeyboardInterrupt):
        agent.learn(64)
    for take_up in (lambda: P3O.resume("run"), lambda: agent.learn(64)):
        with pytest.raises(FolderInUse, match="is being written by another process or agent"):
            take_up()
    gate.set()
    deadline = time.monotonic() + 60
    while True:
        try:
            assert P3O.resume("run").num_timesteps == 128
            break
        except FolderInUse:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert agent.learn(64).num_timesteps == 192
    assert P3O.resume("run").num_timesteps == 192


def test_a_run_is_free_when_learn_is_over_and_is_not_written_from_two_states(here):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(64, run_dir="run")
    held = []
    agent.learn(32, callback=lambda status: held.append(complaint(call("resume", "run", "--steps", 500))))
    assert all("being written" in said for said in held)
    assert held
    other = P3O.resume("run")
    with pytest.raises(UserError, match=r"the run is finished at step 96; learn\(n\) adds n steps to it"):
        other.learn()
    assert call("resume", "run", "--steps", 160).code == 0
    before = tree(here)
    for stale in (agent, other):
        with pytest.raises(UserError, match=r"run was changed since this agent left it; P3O.resume\('run'\) takes"):
            stale.learn(32)
    assert tree(here) == before
    third = P3O.resume("run").learn(32)
    assert third.learn(32).num_timesteps == 224
    assert [agent.num_timesteps, other.num_timesteps] == [96, 96]


@pytest.mark.parametrize("learns", [True, False])
def test_a_run_that_another_left_without_a_checkpoint_is_not_written_on(learns, here):
    """It has cut the files back, and may have added to them: config and checkpoint do not show that."""
    agent = P3O("CartPole-v1", **TINY_SETTINGS, checkpoint_every=128)
    with pytest.raises(ZeroDivisionError):
        agent.learn(640, run_dir="run", callback=lambda status: status.step < 350 or 1 / 0)
    other = P3O.resume("run")
    if learns:
        with pytest.raises(ZeroDivisionError):
            other.learn(callback=lambda status: status.step < 300 or 1 / 0)
    before = tree(here)
    with pytest.raises(UserError, match="changed since this agent left it"):
        agent.learn()
    assert tree(here) == before
    other.learn()
    P3O("CartPole-v1", **TINY_SETTINGS, checkpoint_every=128).learn(640, run_dir="alone")
    assert differences(here / "alone", here / "run") == []


def test_a_run_that_another_only_looked_at_goes_on(here):
    """Refused, or with nothing to do: it has changed nothing."""
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run")
    complaint(call("resume", "run", "--steps", 16))
    assert call("resume", "run").code == 0
    with pytest.raises(UserError, match="run is a run of p3o, not of ppo"):
        PPO.resume("run")
    with pytest.raises(UserError, match="the run is on CartPole-v1, not on Acrobot-v1"):
        P3O.resume("run", env="Acrobot-v1")
    with pytest.raises(UserError, match="the run was on spaces"):
        P3O.resume("run", env=lambda: gym.make("Acrobot-v1"))
    P3O.resume("run")
    assert agent.learn(32).num_timesteps == 64


def test_a_refused_agent_leaves_the_run_to_the_one_that_has_it(here):
    other = P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run")
    agent = P3O.resume("run")
    other.learn(32)
    for _ in range(2):
        with pytest.raises(UserError, match="changed since"):
            agent.learn(32)
    (here / "run" / "config.json").rename(here / "kept")
    (here / "run" / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        other.learn(32)
    (here / "run" / "config.json").rmdir()
    (here / "kept").rename(here / "run" / "config.json")
    assert other.learn(32).num_timesteps == 96


def test_a_disk_that_does_not_take_the_mark_of_a_writer_is_one_line_and_loses_no_run(here, monkeypatch):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run")
    mark = (here / "run" / ".lock").read_text()
    assert len(mark) == 32

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        refused = call("resume", "run", "--steps", 96)
        assert refused.code == 2
        assert refused.err.splitlines()[-1] == "p3o: run cannot be written: No space left on device"
        with pytest.raises(UserError, match="run cannot be written: No space left"):
            agent.learn(32)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", full)
        refused = call("resume", "run", "--steps", 96)
        assert refused.code == 2
        assert refused.err.splitlines()[-1] == "p3o: run/config.json cannot be written: No space left on device"
    assert P3O.resume("run").learn(32).num_timesteps == 64
    assert (here / "run" / ".lock").read_text() not in ("", mark)


def test_the_way_to_take_up_a_run_of_an_environment_of_ones_own_is_told(here):
    def make():
        return gym.make("CartPole-v1")

    agent = P3O(make, **TINY_SETTINGS).learn(32, run_dir="run")
    P3O.resume("run", env=make).learn(32)
    with pytest.raises(UserError, match=r"P3O.resume\('run', env=\.\.\.\) takes it up"):
        agent.learn(32)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_that_was_forked_while_learning_does_not_keep_the_run(here):
    children = []

    def fork(status):
        if not children:
            children.append(os.fork())
            if not children[0]:
                time.sleep(60)
                os._exit(0)

    try:
        agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run", callback=fork)
        assert agent.learn(32).num_timesteps == 64
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_a_run_goes_on_where_the_working_folder_was_removed(here, monkeypatch):
    (here / "gone").mkdir()
    monkeypatch.chdir(here / "gone")
    (here / "gone").rmdir()
    agent = P3O("CartPole-v1", **TINY_SETTINGS, checkpoint_every=32).learn(96, run_dir=here / "run")
    assert agent.num_timesteps == 96


def test_a_refused_total_is_not_announced(here, caplog):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(96, run_dir="run", callback=lambda status: False)
    (here / "run" / "config.json").unlink()
    (here / "run" / "config.json").mkdir()
    with pytest.raises(UserError, match="cannot be written"):
        agent.learn(320)
    assert "now ends" not in caplog.text


def test_a_run_dir_comes_with_the_first_learn(agent, here):
    with pytest.raises(UserError, match="first call"):
        agent.learn(32, run_dir="run")
    (here / "taken").mkdir()
    (here / "taken" / "file").write_text("x")
    with pytest.raises(UserError, match="taken"):
        P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="taken")
    assert tree(here) == {"taken": None, "taken/file": b"x"}


@pytest.mark.parametrize("every", [0, "300", 0.5])
def test_evaluating_every_nothing_is_refused(every):
    with pytest.raises(UserError, match="eval_every"):
        P3O("CartPole-v1", **TINY_SETTINGS).learn(32, eval_every=every)


def test_a_refused_call_of_learn_leaves_no_plan(here, caplog):
    agent = P3O("CartPole-v1", **TINY_SETTINGS)
    (here / "taken").mkdir()
    (here / "taken" / "file").write_text("x")
    for options in ({"run_dir": "taken"}, {"run_dir": "taken", "eval_every": 16}):
        with pytest.raises(UserError, match="taken"):
            agent.learn(320, **options)
        with pytest.raises(UserError, match="the number of steps"):
            agent.learn()
    agent.learn(32)
    with pytest.raises(UserError, match="first call"):
        agent.learn(320, run_dir="run")
    agent.learn(32)
    assert agent.num_timesteps == 64
    assert "instead of" not in caplog.text
    assert (agent._session.schedule_start, agent._session.job.eval_every) == (32, None)


def test_a_config_that_cannot_be_written_is_written_at_the_next_call(here):
    agent = P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run")
    (here / "run" / "config.json.tmp").mkdir()
    with pytest.raises(UserError, match=r"config.json cannot be written"):
        agent.learn(64)
    assert (agent._session.steps, agent._session.schedule_start) == (32, 0)
    (here / "run" / "config.json.tmp").rmdir()
    agent.learn(64)
    config = json.loads((here / "run" / "config.json").read_text())
    assert (agent.num_timesteps, config["steps"], config["schedule_start"]) == (96, 96, 32)


def test_an_observation_outside_its_space_names_the_last_good_checkpoint(here):
    class Leaving(gym.Env):
        observation_space, action_space = spaces.Discrete(3), spaces.Discrete(2)
        time = 0

        def reset(self, *, seed=None, options=None):
            return 0, {}

        def step(self, action):
            self.time += 1
            return 3 if self.time > 80 else 1, 1.0, False, self.time % 10 == 0, {}

    said = r"^after step 160: observation 3: a whole number from 0 to 2 was expected; last good .* at step 128$"
    with pytest.raises(RunStopped, match=said):
        P3O(Leaving, **TINY_SETTINGS, checkpoint_every=64).learn(640, run_dir="run")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_return_of_an_evaluation_that_is_no_number_stops_the_run(value, here):
    class Poor(gym.Env):
        observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
        made = 0

        def __init__(self):
            Poor.made += 1
            self.pay = value if Poor.made > TINY_SETTINGS["num_envs"] + 1 else 1.0  # one is made to be asked

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), self.pay, True, False, {}

    agent = P3O(Poor, **TINY_SETTINGS)
    with pytest.raises(
        RunStopped, match=rf"evaluation at step 64: the mean return is {value}, .* checkpoint.* at step 64"
    ):
        agent.learn(640, run_dir="run", eval_every=64)
    with pytest.raises(RunStopped, match=rf"evaluation at step 128: the mean return is {value}"):
        P3O.resume("run", env=Poor).learn()  # past the first one
    assert not (here / "run" / "evaluations.csv").exists()
    assert write_report(here / "run").exists()
    Poor.made = 0
    with pytest.raises(RunStopped, match=rf"evaluation at step 64: the mean return is {value}, .* at step 64"):
        P3O(Poor, **TINY_SETTINGS).learn(64, run_dir="short", eval_every=64)
    assert write_report(here / "short").exists()
    assert (here / "short" / "updates.csv").read_text().splitlines()[-1].startswith("64,")
    resumed = P3O.resume("short", env=Poor)  # nothing of it is lost
    with pytest.raises(UserError, match="finished at step 64"):
        resumed.learn()


def test_resume_goes_on_exactly(here):
    P3O("CartPole-v1", seed=3, **TINY_SETTINGS).learn(256, run_dir="alone")
    P3O("CartPole-v1", seed=3, **TINY_SETTINGS).learn(256, run_dir="run", callback=lambda s: s.step < 96)
    agent = P3O.resume("run")
    assert agent.num_timesteps == 96
    assert agent.learn().num_timesteps == 256
    assert differences(here / "alone", here / "run") == []


def test_resume_is_for_runs_of_its_own_algorithm(here):
    from p3o import PPO

    P3O("CartPole-v1", **TINY_SETTINGS).learn(32, run_dir="run")
    before = tree(here)
    with pytest.raises(UserError, match="run of p3o"):
        PPO.resume("run")
    with pytest.raises(UserError, match="model of p3o"):
        PPO.load("run")
    with pytest.raises(UserError, match="nowhere"):
        P3O.resume("nowhere")
    assert tree(here) == before


class Killed(Exception):
    """Stands for what a callback may raise, and for a SIGKILL as far as files go: nothing is written after it."""


def kill_at(step):
    def callback(status):
        if status.step >= step:
            raise Killed

    return callback


def test_a_loaded_model_that_is_killed_before_its_first_checkpoint_goes_on_from_itself(agent, here):
    agent.save("model")
    P3O.load("model").learn(256, run_dir="alone")
    with pytest.raises(Killed):
        P3O.load("model").learn(256, run_dir="run", callback=kill_at(64))
    resumed = P3O.resume("run")
    assert resumed.num_timesteps == 96
    assert np.array_equal(weights(resumed), weights(agent))
    assert resumed.learn().num_timesteps == 352
    assert differences(here / "alone", here / "run") == []


def test_a_loaded_model_without_a_first_checkpoint_is_not_begun_again_from_nothing(agent, here, monkeypatch):
    agent.save("model")
    loaded = P3O.load("model")

    def full(path, *_):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(RunStopped, match="No space left"):
            loaded.learn(64, run_dir="run")
    assert "was to go on from a saved model" in complaint(call("resume", "run"))
    assert not (here / "run" / "checkpoint" / "checkpoint.json").exists()
    assert is_free(here / "run")
    assert loaded.learn(64, run_dir="other").num_timesteps == 160
    assert (here / "other" / "checkpoint" / "checkpoint.json").exists()
    second = P3O.load("model")
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_tensors", full)
        with pytest.raises(RunStopped):
            second.learn(64, run_dir="again")
    assert second.learn(64).num_timesteps == 160  # without a folder
    assert np.array_equal(weights(second), weights(loaded))


def is_free(folder):
    with open(folder / ".lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_a_first_checkpoint_that_nobody_waited_for_is_none_of_another_folder(agent, here, monkeypatch):
    agent.save("model")
    loaded, real = P3O.load("model"), BackgroundSaver.wait

    def wait(saver):
        if saver.is_busy or saver._running is not None:
            raise KeyboardInterrupt
        real(saver)

    with monkeypatch.context() as patch:
        patch.setattr(BackgroundSaver, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            loaded.learn(64, run_dir="run")
    deadline = time.monotonic() + 30
    while not is_free(here / "run") and time.monotonic() < deadline:  # it is written to the end all the same
        time.sleep(0.01)
    with pytest.raises(Killed):
        loaded.learn(64, run_dir="other", callback=kill_at(0))
    resumed = P3O.resume("other")
    assert resumed.num_timesteps == agent.num_timesteps
    assert np.array_equal(weights(resumed), weights(agent))


def test_a_kill_before_config_json_knows_of_evaluations_leaves_a_run_without_any(here, monkeypatch):
    agent = P3O("CartPole-v1", seed=1, **TINY_SETTINGS)
    with pytest.raises(Killed):
        agent.learn(640, run_dir="run", callback=kill_at(96))

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(session, "write_config", killed)
        with pytest.raises(Killed):
            agent.learn(256, eval_every=64)
    assert P3O.resume("run").learn().num_timesteps == 640
    assert not (here / "run" / "evaluations.csv").exists() or (here / "run" / "evaluations.csv").stat().st_size < 100


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_evaluation_that_fails_is_played_when_learning_goes_on(error, here, monkeypatch):
    agent, real = P3O("CartPole-v1", seed=1, eval_episodes=1, **TINY_SETTINGS), session.evaluate

    def failing(*arguments):
        if arguments[4] == 128:
            raise error
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(session, "evaluate", failing)
        with pytest.raises(error):
            agent.learn(256, run_dir="run", eval_every=64)
    agent.learn()
    rows = (here / "run" / "evaluations.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == [64, 128, 192, 256]


@pytest.mark.parametrize("is_in_a_rollout", [False, True])
def test_learning_on_after_an_exception_and_killed_then_resumes_from_there(is_in_a_rollout, here, monkeypatch):
    """The new call's schedule begins where the agent is, so there has to be a checkpoint of that."""
    monkeypatch.setattr(Interrupting, "raise_at", 80 if is_in_a_rollout else 0)
    for name, step in (("alone", 10_000), ("run", 160)):
        monkeypatch.setattr(Interrupting, "steps", 0)
        agent = P3O(Interrupting, seed=1, **TINY_SETTINGS)
        with pytest.raises(KeyboardInterrupt if is_in_a_rollout else Killed):
            agent.learn(640, run_dir=name, callback=kill_at(96))
        at = agent.num_timesteps
        assert at == (64 if is_in_a_rollout else 96)
        with pytest.raises(Killed) if name == "run" else contextlib.nullcontext():
            agent.learn(256, callback=kill_at(step))
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["schedule_start"], config["steps"]) == (at, at + 256)
    resumed = P3O.resume("run", env=Interrupting)
    assert resumed.num_timesteps == at
    assert resumed.learn().num_timesteps == at + 256
    assert differences(here / "alone", here / "run") == []


def test_a_folder_that_lost_lines_is_not_written_on(here):
    """A disk that was full for a while: later lines behind a broken one would make the table useless."""
    P3O("CartPole-v1", seed=1, **TINY_SETTINGS).learn(512, run_dir="alone")
    agent = P3O("CartPole-v1", seed=1, **TINY_SETTINGS)

    def fill(status):
        if status.step == 128:
            table = agent._session.recorder.episodes
            table._file.close()
            table._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115

    with pytest.raises(RunStopped, match="cannot be written: No space left"):
        agent.learn(512, run_dir="run", callback=fill)
    before = tree(here / "run")
    with pytest.raises(UserError, match="are lost; `resume` goes on"):
        agent.learn(32)
    P3O.resume("run").learn()
    assert tree(here / "run") != before
    assert differences(here / "alone", here / "run") == []


def test_a_resume_in_another_environment_is_refused_and_its_own_keeps_its_arguments(here):
    P3O("Pendulum-v1", env_kwargs={"g": 5.0}, **TINY_SETTINGS).learn(64, run_dir="run")
    before = tree(here / "run")
    with pytest.raises(UserError, match="the run is on Pendulum-v1, not on MountainCarContinuous-v0"):
        P3O.resume("run", env="MountainCarContinuous-v0")
    assert tree(here / "run") == before
    P3O.resume("run", env="Pendulum-v1").learn(64)
    assert call("eval", "run", "--episodes", 1).code == 0


class Sized(gym.Env):
    """Shows whatever it is told to."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, shown):
        self.observation_space, self.shown = space, shown

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.shown, 1.0, False, False, {}


PICTURE = spaces.Box(0, 255, (40, 50, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "shown", "said"),
    [
        (VECTOR, np.ones(1), r"the shape \(1,\), its space has \(3,\)"),
        (VECTOR, 1.0, r"the shape \(\), its space has \(3,\)"),
        (
            spaces.Dict(a=VECTOR, b=VECTOR),
            {"a": np.ones(3), "b": np.ones(1)},
            r"the shape \(1,\), its space has \(3,\)",
        ),
        (PICTURE, np.zeros((50, 40, 3), np.uint8), r"the shape \(50, 40, 3\), its space has \(40, 50, 3\)"),
        (PICTURE, np.full((40, 50, 3), 300.0), r"pixels of 300.0 to 300.0, not of 0 to 255"),
    ],
)
def test_an_observation_of_another_shape_than_its_space_stops_the_run(space, shown, said):
    small = SMALL_IMAGES if space is PICTURE else TINY_SETTINGS
    with pytest.raises(RunStopped, match=said):
        P3O(lambda: Sized(space, shown), **small).learn(64)


def test_an_evaluation_gives_up_an_episode_that_does_not_end(here, monkeypatch):
    monkeypatch.setattr(evaluate, "MOST_STEPS", 30)
    endless = lambda: Sized(VECTOR, np.ones(3))  # noqa: E731
    P3O(endless, **TINY_SETTINGS, eval_episodes=2).learn(64, run_dir="run", eval_every=64)
    assert (here / "run" / "evaluations.csv").read_text().splitlines()[1:] == ["64,0,30,30", "64,1,30,30"]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda: P3O("CartPole-v1", preset=None), "unknown preset None"),
        (lambda: P3O("CartPole-v1", **TINY_SETTINGS).learn(32, callback=5), "callback 5: a function"),
        (
            lambda: P3O("CartPole-v1", **TINY_SETTINGS).learn(1e30, run_dir="run"),
            r"total_steps 1e\+30 is more than 1,000",
        ),
    ],
)
def test_arguments_that_are_no_use(act, said, here):
    with pytest.raises(UserError, match=said):
        act()
    assert tree(here) == {}


# Saving and loading ---------------------------------------------------------------------------------------------------


def test_load_predicts_as_saved_and_learns_from_an_empty_replay(agent, caplog):
    agent.save("model")
    loaded = P3O.load("model")
    observations = np.random.default_rng(0).normal(size=(50, 4))
    same = (a.predict(observations, deterministic=True)[0] for a in (agent, loaded))
    assert np.array_equal(*same)
    assert loaded.num_timesteps == 96
    before = weights(loaded)
    with caplog.at_level("WARNING", "p3o"):
        loaded.learn(32)
    assert sum("empty replay" in record.message for record in caplog.records) == 1
    assert loaded.num_timesteps == 128
    assert not np.array_equal(weights(loaded), before)
    loaded.learn(32)
    assert sum("empty replay" in record.message for record in caplog.records) == 1
    loaded.save("model")
    assert P3O.load("model").num_timesteps == 160


def test_predicting_needs_no_environment(agent, monkeypatch):
    agent.save("model")
    monkeypatch.delitem(gym.registry, "CartPole-v1")
    loaded = P3O.load("model")
    loaded.predict(np.zeros(4))
    with pytest.raises(UserError, match="CartPole"):
        loaded.learn(32)


def test_load_with_an_environment_it_was_not_trained_for(agent):
    agent.save("model")
    for env in ("Acrobot-v1", lambda: Spaces(), SyncVectorEnv([Spaces])):
        with pytest.raises(UserError, match="does not fit"):
            P3O.load("model", env=env)
    assert P3O.load("model", env=cart_pole).learn(32).num_timesteps == 128


def test_load_is_no_method_of_an_agent(agent):
    agent.save("model")
    for name in ("load", "resume"):
        with pytest.raises(TypeError, match=f"agent = P3O.{name}"):
            getattr(agent, name)("model")
    assert "load" in dir(agent)
    inspect.getmembers(agent)  # looking is allowed


def test_a_model_made_in_python_loads_and_learns_with_an_environment():
    P3O(Spaces, **TINY_SETTINGS).save("model")
    loaded = P3O.load("model")
    loaded.predict(np.zeros(3))
    with pytest.raises(UserError, match="without an environment"):
        loaded.learn(32)
    assert P3O.load("model", env=Spaces).learn(32).num_timesteps == 32


# Predicting -----------------------------------------------------------------------------------------------------------


def test_predict_has_the_usual_signature(agent):
    parameters = inspect.signature(P3O.predict).parameters
    assert list(parameters) == ["self", "observation", "state", "episode_start", "deterministic"]
    assert [p.default for p in parameters.values()][2:] == [None, None, False]
    state = object()
    assert agent.predict(np.zeros(4), state, np.array([True]), True)[1] is state


def test_predict_one_or_a_batch(agent):
    observations = np.random.default_rng(0).normal(size=(5, 4))
    batch, _ = agent.predict(observations, deterministic=True)
    assert batch.shape == (5,)
    singles = [agent.predict(row, deterministic=True)[0] for row in observations]
    assert [np.shape(single) for single in singles] == [()] * 5
    assert batch.tolist() == singles
    assert agent.predict(observations[:1], deterministic=True)[0].shape == (1,)
    assert agent.predict(observations.tolist(), deterministic=True)[0].tolist() == singles


def test_predict_samples_unless_told_otherwise(agent):
    observation = np.zeros((200, 4))
    assert len(set(agent.predict(observation)[0].tolist())) == 2  # entropy is near its maximum after 96 steps
    assert len(set(agent.predict(observation, deterministic=True)[0].tolist())) == 1


@pytest.mark.parametrize("shape", [(3,), (5,), (2, 3), (4, 1), (), (2, 2, 4)])
def test_predict_refuses_another_shape(agent, shape):
    with pytest.raises(UserError, match="observation of shape"):
        agent.predict(np.zeros(shape))


IMAGE_LAST, IMAGE_FIRST = (spaces.Box(0, 255, shape, np.uint8) for shape in ((40, 44, 3), (3, 40, 44)))
DICT = spaces.Dict({"vector": VECTOR, "number": spaces.Discrete(4, start=2), "many": spaces.MultiBinary(2)})
TUPLE = spaces.Tuple([VECTOR, spaces.MultiDiscrete([2, 3])])
OBSERVATIONS = {
    "Box": VECTOR,
    "matrix": spaces.Box(-1, 1, (2, 3)),
    "Discrete": spaces.Discrete(5, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4]),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": DICT,
    "Tuple": TUPLE,
    "nested": spaces.Dict({"tuple": TUPLE, "dict": DICT, "matrix": spaces.Box(-1, 1, (2, 3))}),
    "image last": IMAGE_LAST,
    "image first": IMAGE_FIRST,
    "image and vector": spaces.Dict({"image": IMAGE_LAST, "vector": VECTOR}),
}
ACTIONS = {
    "Discrete": spaces.Discrete(3, start=1),
    "Box": spaces.Box(np.float32([-2, 0]), np.float32([2, 5])),
    "unbounded Box": spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
}


def stacked(space, samples):
    return gym.vector.utils.concatenate(space, samples, gym.vector.utils.create_empty_array(space, len(samples)))


def check_predict(agent, observation_space, action_space):
    observation_space.seed(0)
    samples = [observation_space.sample() for _ in range(3)]
    singles = [agent.predict(sample, deterministic=True)[0] for sample in samples]
    batch, _ = agent.predict(stacked(observation_space, samples), deterministic=True)
    assert len(batch) == 3
    for single, row in zip(singles, batch, strict=True):
        assert action_space.contains(single)
        # a matrix product of three rows may round otherwise, most visibly where its sum is near zero
        np.testing.assert_allclose(single, row, rtol=1e-6, atol=1e-7)
    assert action_space.contains(agent.predict(samples[0])[0])


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observation_spaces_predict_and_load_and_the_richest_train(name):
    space = OBSERVATIONS[name]
    settings = SMALL_IMAGES if "image" in name else TINY_SETTINGS
    agent = P3O(lambda: Spaces(space), **settings)
    if name in ("nested", "image first", "image and vector"):
        agent.learn(24)
    check_predict(agent, space, spaces.Discrete(2))
    agent.save("model")
    check_predict(P3O.load("model"), space, spaces.Discrete(2))


@pytest.mark.parametrize("name", ACTIONS)
def test_action_spaces_train_and_predict(name):
    agent = P3O(lambda: Spaces(VECTOR, ACTIONS[name]), **TINY_SETTINGS).learn(64)
    check_predict(agent, VECTOR, ACTIONS[name])


@pytest.mark.parametrize("space", [IMAGE_FIRST, IMAGE_LAST])
def test_images_are_taken_with_channels_first_or_last(space):
    agent = P3O(lambda: Spaces(space), **SMALL_IMAGES)
    space.seed(1)
    images = np.stack([space.sample() for _ in range(4)])
    moved = np.moveaxis(images, -1, 1) if space is IMAGE_LAST else np.moveaxis(images, 1, -1)
    rows, is_batch = split_batch(moved, space)
    assert is_batch
    assert np.array_equal(np.stack(rows), images)
    one, is_batch = split_batch(moved[0], space)
    assert not is_batch
    assert np.array_equal(one[0], images[0])
    assert np.array_equal(*(agent.predict(i, deterministic=True)[0] for i in (images, moved)))


@pytest.mark.parametrize(
    "observation",
    [
        {"vector": np.zeros(3), "number": 2},
        {"vector": np.zeros((2, 3)), "number": np.array([2, 3]), "many": np.zeros((3, 2))},
        {"vector": np.zeros((2, 3)), "number": 2, "many": np.zeros(2)},
        np.zeros(3),
        3,
    ],
)
def test_a_dict_with_parts_that_do_not_fit_is_refused(observation):
    with pytest.raises(UserError, match="observation"):
        split_batch(observation, DICT)


@pytest.mark.parametrize("observation", [4, 10, -1, 5.5, np.array([5, 10])])
def test_a_number_that_a_discrete_observation_cannot_be_is_named(observation):
    space = spaces.Discrete(5, start=5)
    assert split_batch(7, space) == ([7], False)
    assert split_batch(np.array([5, 9]), space)[1]
    with pytest.raises(UserError, match=r"Discrete\(5, start=5\) was expected"):
        split_batch(observation, space)


# Vector environments --------------------------------------------------------------------------------------------------


def test_a_vector_environment_that_takes_one_seed_for_all():
    agents = [P3O(gym.make_vec("CartPole-v1", num_envs=2), **TINY_SETTINGS).learn(96) for _ in range(2)]
    assert type(gym.make_vec("CartPole-v1", num_envs=2)).__name__ == "CartPoleVectorEnv"
    assert agents[0].num_timesteps >= 96
    for asked, words in ((3, "3 differs from the vector environment's 2"), ("x", "num_envs")):
        with pytest.raises(UserError, match=words):
            P3O(gym.make_vec("CartPole-v1", num_envs=2), **TINY_SETTINGS | {"num_envs": asked})
    assert np.array_equal(*(weights(agent) for agent in agents))


def test_a_model_keeps_its_preset(tmp_path):
    P3O("CartPole-v1", preset="paper", **TINY_SETTINGS).learn(32).save(tmp_path / "model")
    agent = P3O.load(tmp_path / "model")
    agent.learn(32, run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["preset"] == "paper"


def test_a_model_that_cannot_be_written_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        P3O("CartPole-v1", **TINY_SETTINGS).save(tmp_path / "file" / "model")


def test_synchronous_vector_environments():
    env = SyncVectorEnv([cart_pole] * 3)
    settings = {name: value for name, value in TINY_SETTINGS.items() if name != "num_envs"}
    agent = P3O(env, **settings).learn(96)
    # Under next-step autoreset the rows after an end are no steps of the agent, so an iteration more may be needed.
    assert 96 <= agent.num_timesteps <= 96 + 48
    assert agent.predict(np.zeros((3, 4)))[0].shape == (3,)
    with pytest.raises(UserError, match="num_envs"):
        P3O(env, **TINY_SETTINGS)
    with pytest.raises(UserError, match="eval_every"):
        agent.learn(32, eval_every=10)


def test_asynchronous_vector_environments(here, capsys):
    settings = {name: value for name, value in TINY_SETTINGS.items() if name != "num_envs"}
    env = AsyncVectorEnv([cart_pole] * 2, context="spawn")  # JAX has threads, which a fork would not survive
    try:
        P3O(env, **settings).learn(64, run_dir="run")
        agent = P3O.resume("run", env=env)
        assert capsys.readouterr().err.count("start afresh") == 1
        assert agent.learn(64).num_timesteps >= 128
    finally:
        env.close()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_synchronous_vector_environments_resume_exactly(mode, here):
    settings = {name: value for name, value in TINY_SETTINGS.items() if name != "num_envs"}

    def make():
        return SyncVectorEnv([cart_pole] * 2, autoreset_mode=mode)

    P3O(make(), seed=1, **settings).learn(256, run_dir="alone")
    P3O(make(), seed=1, **settings).learn(256, run_dir="run", callback=lambda s: s.step < 90)
    P3O.resume("run", env=make()).learn()
    # The members' spaces have generators that nobody seeds; they are stored too but play no part.
    assert set(differences(here / "alone", here / "run")) <= {"state"}


class Interrupting(gym.Env):
    """Fifty-step episodes of reward 1; raises KeyboardInterrupt once, at a chosen step."""

    observation_space = gym.spaces.Box(-1, 1, (1,))
    action_space = gym.spaces.Discrete(2)
    raise_at = 70
    steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.length = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        Interrupting.steps += 1
        if Interrupting.steps == self.raise_at:
            raise KeyboardInterrupt
        self.length += 1
        return np.zeros(1, np.float32), 1.0, self.length == 50, False, {}


def test_an_interrupted_rollout_leaves_no_half_counted_episode():
    agent = A2C(Interrupting, num_envs=1, num_steps=20, hidden_sizes=(4,))
    with pytest.raises(KeyboardInterrupt):
        agent.learn(400)
    agent.learn(400)
    assert {total for total, _ in agent._session.trainer.recent} == {50.0}


def test_an_interrupt_in_a_run_folder_leaves_a_checkpoint_of_the_whole_iteration(here, caplog):
    settings = {"num_envs": 1, "num_steps": 16, "hidden_sizes": (4,), "replay_size": 64, "burn_in": 16}
    P3O("CartPole-v1", **settings).learn(160, run_dir="alone")
    agent = P3O("CartPole-v1", **settings)

    def interrupt(status):
        if status.step == 64:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        agent.learn(160, run_dir="run", callback=interrupt)
    assert caplog.messages == ["stopped at step 64; resume('run') goes on"]
    del agent
    P3O.resume("run").learn()
    assert differences(here / "alone", here / "run") == []


def test_an_interrupt_without_a_folder_waits_for_the_iteration():
    """In the middle of an update, whose arguments are given away, it would leave an agent without parameters."""
    agent = A2C("CartPole-v1", num_envs=1, num_steps=16, hidden_sizes=(4,))
    seen = []

    def interrupt(status):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)  # Python's handlers run between two of its instructions
        seen.append(status.step)

    with pytest.raises(KeyboardInterrupt):
        agent.learn(160, callback=interrupt)
    assert seen == [16]
    assert agent.learn(32).num_timesteps == 48


def test_an_interrupt_at_the_end_leaves_a_finished_run(here, caplog):
    agent = A2C("CartPole-v1", num_envs=1, num_steps=16, hidden_sizes=(4,))

    def interrupt(status):
        if status.step == 64:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        agent.learn(64, run_dir="run", callback=interrupt)
    assert (here / "run" / "report.html").exists()
    assert caplog.messages == []  # there is nothing to go on with


def test_an_interrupt_that_the_caller_handles_is_the_callers(here):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        agent = A2C("CartPole-v1", num_envs=1, num_steps=16, hidden_sizes=(4,))
        agent.learn(64, run_dir="run", callback=lambda _: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)
    assert (len(seen), agent.num_timesteps) == (4, 64)


def test_the_steps_that_a_resumed_run_had_to_go_leave_its_plan(here, caplog):
    settings = {"num_envs": 1, "num_steps": 16, "hidden_sizes": (4,)}
    A2C("CartPole-v1", **settings).learn(160, run_dir="alone")
    A2C("CartPole-v1", **settings).learn(160, run_dir="run", callback=lambda status: status.step < 64)
    A2C.resume("run").learn(96)
    assert differences(here / "alone", here / "run") == []
    assert caplog.messages == []


def test_a_run_of_an_id_without_a_version_goes_on(here, monkeypatch):
    """They were taken once, and Gymnasium makes the newest version of them."""
    settings = {"num_envs": 1, "num_steps": 16, "hidden_sizes": (4,)}
    with monkeypatch.context() as patch:
        patch.setattr(known, "check_version", lambda env_id: None)
        A2C("CartPole", **settings).learn(64, run_dir="run", callback=lambda status: status.step < 32)
    A2C.load("run").learn(16)
    assert A2C.resume("run").learn().num_timesteps == 64
    assert call("eval", "run", "--episodes", 1).code == 0
    with pytest.raises(UserError, match="has no version"):
        A2C("CartPole")


def test_a_number_that_replaces_the_plan_of_a_resumed_run_is_told(here, caplog):
    settings = {"num_envs": 1, "num_steps": 16, "hidden_sizes": (4,), "replay_size": 64, "burn_in": 16}
    P3O("CartPole-v1", **settings).learn(1600, run_dir="run", callback=lambda status: status.step < 64)
    agent = P3O.resume("run")
    agent.learn(32)
    said = "the run now ends at step 96 instead of 1,600, and its schedules begin anew; learn() without a number keeps"
    assert [message[: len(said)] for message in caplog.messages] == [said]
    agent.learn(32)  # added to a run that was at its end: nothing is replaced
    assert len(caplog.messages) == 1


def test_the_speed_is_that_of_this_start_and_the_time_of_all(here):
    seen = []
    P3O("CartPole-v1", **TINY_SETTINGS).learn(400, run_dir="run", callback=lambda status: status.step < 200)
    agent = P3O.resume("run")
    agent._session.trainer.seconds += 1e6  # a slow machine, before
    agent.learn(callback=seen.append)
    assert seen
    assert all(status.seconds > 1e6 for status in seen)
    assert all(status.steps_per_second > 1 for status in seen)


class Raising(Interrupting):
    def step(self, action):
        if self.length == 40:
            raise RuntimeError("the robot fell apart")
        return super().step(action)


def test_an_error_of_the_environment_says_what_is_left(here):
    with pytest.raises(RuntimeError, match="fell apart") as caught:
        A2C(Raising, num_envs=1, num_steps=16, hidden_sizes=(4,)).learn(400, run_dir="run")
    assert caught.value.__notes__ == ["p3o: step 32 was the last whole one; there was no checkpoint yet"]


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")])
def test_too_little_memory_is_one_line(error):
    class Large(Interrupting):
        def step(self, action):
            raise error

    with pytest.raises(RunStopped) as caught:
        A2C(Large, num_envs=1, num_steps=16, hidden_sizes=(4,)).learn(400)
    what = f"out of memory{f' ({error})' * bool(str(error))}; less is needed with smaller num_envs, num_steps"
    assert str(caught.value) == f"{what}; no run folder, so no checkpoint"


def test_learning_in_small_pieces_learns_in_each():
    agent = P3O("CartPole-v1", num_envs=1, num_steps=16, hidden_sizes=(4,))
    before = agent._session.trainer.state.params["policy_head"]["weight"].tolist()
    for _ in range(3):
        agent.learn(8)
        after = agent._session.trainer.state.params["policy_head"]["weight"].tolist()
        assert after != before
        before = after


def test_a_loaded_acer_keeps_its_trust_region_around_the_loaded_policy(tmp_path):
    settings = {"num_envs": 1, "num_steps": 8, "hidden_sizes": (4,), "replay_size": 64, "burn_in": 8}
    ACER("CartPole-v1", seed=3, **settings).learn(64).save(tmp_path / "model")
    loaded = ACER.load(tmp_path / "model", env="CartPole-v1")
    state = loaded._session.trainer.state
    for held, average in zip(jax.tree.leaves(state.params), jax.tree.leaves(state.average_params), strict=True):
        np.testing.assert_array_equal(held, average)
    loaded.learn(32)


def test_the_name_of_a2c_says_whether_it_uses_gae():
    assert A2C("CartPole-v1", use_gae=True).algo == "a2cg"
    with pytest.raises(UserError, match="use_gae"):
        A2C("CartPole-v1", use_gae="false")


def test_a_mujoco_that_cannot_be_imported_is_in_nobodys_way(tmp_path):
    code = "import gymnasium as gym; from p3o import P3O; P3O(lambda: gym.make('CartPole-v1'))"
    environment = os.environ | {"MUJOCO_GL": "bogus"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs mujoco (extra `mujoco`)")
def test_a_handler_of_mujocos_warnings_that_the_user_has_set_stays():
    import mujoco

    before, own = mujoco.get_mju_user_warning(), print
    try:
        mujoco.set_mju_user_warning(own)
        silence_mujoco()
        assert mujoco.get_mju_user_warning() is own
        mujoco.set_mju_user_warning(None)
        silence_mujoco()
        assert mujoco.get_mju_user_warning() is not None
    finally:
        mujoco.set_mju_user_warning(before)


@pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs mujoco (extra `mujoco`)")
def test_a_function_that_makes_a_mujoco_task_leaves_no_log_behind(tmp_path):
    """In a process of its own, in which nothing has silenced MuJoCo before."""
    code = "import gymnasium as gym; from p3o import P3O; P3O(lambda: gym.make('HalfCheetah-v5'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(tmp_path.glob("MUJOCO*"))


def test_completion_finds_the_agents():
    import p3o

    assert {"P3O", "A2C", "PPO", "ACER"} <= set(dir(p3o))
