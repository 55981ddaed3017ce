"""A run stopped in any way and resumed is the run that was never stopped."""

import functools
import json
import math
import operator
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import TINY, TINY_SETTINGS, call, complaint, tree
from gymnasium.vector import SyncVectorEnv
from killing import check, command, differences, episodes, events, run_to_end, run_with_kills, updates

from p3o import A2C, P3O, PPO, session, starting
from p3o.device import available_cores
from p3o.display import NoDisplay
from p3o.errors import RunStopped, UserError
from p3o.jobs import Job, job_of, resolve
from p3o.signals import StopSignals
from p3o.train import Trainer

LONG = ("--set", "num_envs=2", "num_steps=32", "hidden_sizes=8", "replay_size=500", "burn_in=64", "replay_samples=4")
HORIZON = "schedule_steps=1e7"  # of the learning rate, whatever the total


@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5"])
def test_killed_at_random_moments(env, tmp_path):
    if env == "Hopper-v5":
        pytest.importorskip("mujoco")
    # A checkpoint every iteration, so that many kills fall into the writing of one.
    arguments = [env, "--steps", "10000", "--eval-every", "1000", *LONG, "eval_episodes=1", "checkpoint_every=1"]
    run_to_end(tmp_path / "alone", arguments)
    rng = random.Random(env)
    done = run_with_kills(tmp_path / "killed", arguments, 3, 0.3, rng, is_under_way=True)
    assert done >= 2  # each with a checkpoint behind it
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


@pytest.mark.parametrize(
    ("settings", "is_told"), [((), True), (("schedule_steps=900",), False), (("lr_schedule=constant",), False)]
)
def test_another_total_on_the_way_is_kept_where_schedules_follow_it(settings, is_told, tmp_path):
    """The report then says that the run departs from what it set out for."""
    run = tmp_path / "run"
    assert call("train", "CartPole-v1", "--steps", 64, "--out", run, *TINY, *settings).code == 0
    result = call("resume", run, "--steps", 96)
    assert ("new horizon" in result.err) == is_told
    assert call("resume", run).code == 0  # which changes nothing
    (entry,) = json.loads((run / "config.json").read_text())["resumes"]
    assert (entry["at_step"], entry["steps"], entry.get("planned")) == (64, 96, 64 if is_told else None)


def test_another_total_before_the_first_checkpoint_is_no_departure(tmp_path):
    run = tmp_path / "run"
    assert call("train", "CartPole-v1", "--steps", 64, "--out", run, *TINY).code == 0
    for name in ("checkpoint", "model"):
        shutil.rmtree(run / name)
    assert call("resume", run, "--steps", 96).code == 0
    (entry,) = json.loads((run / "config.json").read_text())["resumes"]
    assert (entry["at_step"], entry["steps"], "planned" in entry) == (0, 96, False)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["CartPole-v1", "Hopper-v5", "Ant-v5", "Humanoid-v5", "Ant-v4", "Humanoid-v4"])
@pytest.mark.parametrize("every", [1, 1000])
def test_killed_at_many_random_moments(env, every, tmp_path):
    pytest.importorskip("mujoco")
    kills, found = check(env, 20_000, every, 20, every, tmp_path)
    assert kills >= 10
    assert found == []


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run of 512 steps that nothing stopped; read only."""
    path = tmp_path_factory.mktemp("runs") / "alone"
    assert call("train", "CartPole-v1", "--steps", 512, "--out", path, *TINY).code == 0
    return path


def stopped_by(number, path, *settings, seconds=None, steps="1e7", twice=False):
    """Start a long run and send it a signal, after so many seconds or once it has trained for a moment."""
    process = subprocess.Popen(
        command("train", "CartPole-v1", "--steps", steps, "--out", path, *TINY, *settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if seconds is None:
        deadline = time.monotonic() + 60
        while not (path / "episodes.csv").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        seconds = 0.2
    time.sleep(seconds)
    process.send_signal(number)
    if twice:
        process.send_signal(number)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_at_a_whole_iteration_and_says_how_to_go_on(number, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, out, err = stopped_by(number, Path("run"), HORIZON)
    assert (found, out) == (code, "run\n")
    assert err.splitlines()[-1].endswith("go on with: p3o resume run")
    assert "Traceback" not in err
    reached = json.loads(Path("run/checkpoint/checkpoint.json").read_text())["step"]
    assert reached > 0
    assert json.loads(Path("run/model/model.json").read_text())["step"] == reached
    # On to a nearer total, next to a run of that total that was never stopped.
    assert call("resume", "run", "--steps", reached + 500).code == 0
    assert call("train", "CartPole-v1", "--steps", reached + 500, "--out", "alone", *TINY, HORIZON).code == 0
    assert differences(Path("alone"), Path("run")) == []


@pytest.mark.parametrize("seconds", [0.9, 1.5])
def test_a_signal_during_start_up_is_no_traceback_and_resumes(seconds, tmp_path, alone):
    run = tmp_path / "run"
    code, out, err = stopped_by(signal.SIGTERM, run, seconds=seconds, steps=512)
    assert "Traceback" not in err
    # Python gives signals back to the system when it ends: one that comes there kills a process that has done its work.
    assert code in (0, 143) or (code == -signal.SIGTERM and (run / "report.html").exists()), err
    if (run / "config.json").exists():
        assert out == f"{run}\n"
        assert call("resume", run).code == 0
        assert differences(alone, run) == []
    else:
        assert tree(tmp_path) == {}


LOST = """
import gc, os, signal, time
from p3o.signals import StopSignals, interrupt_at_once

def callback(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGINT)

interrupt_at_once()
for is_late in (True, False):
    gc.callbacks.append(callback)
    try:
        gc.collect()
        if is_late:
            with StopSignals() as stop:
                time.sleep(0.5)
                print(stop.received)
        time.sleep(0.5)
        print("went on")
    except KeyboardInterrupt as now:
        print("stopped by", now.args[0])
"""


def test_a_signal_that_a_callback_swallows_is_not_lost():
    """As in the garbage collection of an import, where nothing can be raised."""
    found = subprocess.run([sys.executable, "-c", LOST], capture_output=True, text=True, check=True)
    assert (found.stdout.splitlines(), found.stderr) == (["2", "went on", "stopped by 2"], "")


INSIDE = """
import os, signal, sys
from p3o.signals import exit_code, interrupt_at_once

interrupt_at_once()
try:
    exec("os.kill(os.getpid(), signal.SIGTERM)")
except KeyboardInterrupt as stop:
    sys.exit(exit_code(stop))
"""


def test_a_signal_inside_an_import_ends_the_process_there(tmp_path):
    """Raised in the middle of a library in C it can crash it."""
    (tmp_path / "slow.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('went on')")
    (tmp_path / "main.py").write_text("from p3o.signals import interrupt_at_once\ninterrupt_at_once()\nimport slow")
    done = subprocess.run([sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "p3o: stopped at once\n")


def test_a_signal_inside_an_exec_has_its_own_exit_code(tmp_path):
    """Python would end with SIGINT, also after SIGTERM and though the exception was caught."""
    (tmp_path / "inside.py").write_text(INSIDE)
    assert subprocess.run([sys.executable, "-m", "inside"], cwd=tmp_path).returncode == 143


def test_a_second_interrupt_stops_at_once(tmp_path):
    run = tmp_path / "run"
    code, _, err = stopped_by(signal.SIGINT, run, twice=True)
    assert code == 130
    assert "Traceback" not in err
    assert "resume" in err.splitlines()[-1]
    index = run / "checkpoint" / "checkpoint.json"  # there only if the first one had its way before the second came
    reached = json.loads(index.read_text())["step"] if index.exists() else 0
    assert call("resume", run, "--steps", reached + 64).code == 0


def interrupt(monkeypatch, after):
    """SIGTERM to this process during so many-th an iteration."""
    real, done = Trainer.iterate, count(1)

    def iterate(trainer, *schedule):
        result = real(trainer, *schedule)
        if next(done) == after:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(Trainer, "iterate", iterate)


@pytest.mark.parametrize("after", [1, 5, 15])
def test_stopped_after_an_iteration_and_resumed_is_equal(after, alone, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, after)
        result = call("train", "CartPole-v1", "--steps", 512, "--out", run, *TINY)
    assert result.code == 143
    assert f"stopped at step {32 * after}" in result.err
    assert call("resume", run).out == f"{run}\n"
    assert differences(alone, run) == []
    assert updates(run) == updates(alone)
    assert events(run) == events(alone)


def test_a_signal_before_the_first_iteration_resumes_from_the_start(alone, tmp_path, monkeypatch):
    real = starting.open_folder

    def open_folder(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(starting, "open_folder", open_folder)
        result = call("train", "CartPole-v1", "--steps", 512, "--out", run, *TINY)
    assert (result.code, result.out) == (130, f"{run}\n")
    assert not (run / "checkpoint").exists()
    assert call("eval", run).code == 2  # there is no model yet
    again = call("resume", run)
    assert again.code == 0
    assert "there was no checkpoint yet: the run begins again" in again.err
    assert differences(alone, run) == []


def test_lines_after_the_checkpoint_are_cut_back(tmp_path, monkeypatch):
    """What a killed process wrote after its last checkpoint is written again, once."""
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        call("train", "CartPole-v1", "--steps", 512, "--eval-every", 100, "--out", run, *TINY)
    for name in ("episodes.csv", "updates.csv", "evaluations.csv"):
        with open(run / name, "a") as file:
            file.write("99999,torn li")
    (event,) = (run / "tb").iterdir()
    with open(event, "ab") as file:
        file.write(b"torn")
    (run / "tb" / "events.out.tfevents.9.host.1").write_bytes(b"of the killed process")
    assert call("resume", run).code == 0
    assert call("train", "CartPole-v1", "--steps", 512, "--eval-every", 100, "--out", tmp_path / "b", *TINY).code == 0
    assert differences(tmp_path / "b", run) == []


# Totals ---------------------------------------------------------------------------------------------------------------


def test_resuming_a_finished_run_changes_no_result(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    before = tree(run)
    result = call("resume", run)
    assert (result.code, result.out) == (0, f"{run}\n")
    assert "finished at step 512" in result.err
    after = tree(run)
    assert before.pop("report.html")
    assert after.pop("report.html")
    assert after == before


def test_a_larger_total_is_the_new_horizon(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    result = call("resume", run, "--steps", "6e2")
    assert result.code == 0
    (line,) = [line for line in result.err.splitlines() if "horizon" in line]
    assert "600" in line
    config = json.loads((run / "config.json").read_text())
    assert config["steps"] == 600
    (entry,) = config["resumes"]
    assert (entry["at_step"], entry["steps"]) == (512, 600)
    assert entry["versions"] == config["versions"]
    lines = updates(run)
    assert [line["step"] for line in lines] == ["512", "608"]
    rates = [float(line["learning_rate"]) for line in lines]
    assert 0 < rates[1] < 0.25 * rates[0]  # past the old horizon it would be 0
    assert "finished" in call("resume", run).err


def test_a_total_below_what_is_reached_is_refused(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    before = tree(run)
    line = complaint(call("resume", run, "--steps", 300))
    assert "300" in line
    assert "512" in line
    assert tree(run) == before


def test_a_total_lowered_to_what_is_reached_ends_the_run(tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, 3)
        call("train", "CartPole-v1", "--steps", 512, "--out", run, *TINY)
    assert call("resume", run, "--steps", 96).code == 0
    assert [line["step"] for line in updates(run)] == ["96"]


def test_a_package_that_the_run_did_not_note_is_no_other_version(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    del config["versions"]["optax"]
    (run / "config.json").write_text(json.dumps(config))
    assert "other versions" not in call("resume", run).err


def test_a_resume_under_other_versions_goes_on_and_is_noted(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    config["versions"]["jax"] = "0.0.1"
    (run / "config.json").write_text(json.dumps(config))
    result = call("resume", run, "--steps", 600)
    assert result.code == 0
    assert "other versions" in result.err
    (entry,) = json.loads((run / "config.json").read_text())["resumes"]
    assert entry["versions"]["jax"] != "0.0.1"
    assert "another machine" not in result.err


def test_a_resume_on_another_machine_is_told_and_kept(alone, tmp_path):
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    here = dict(config["machine"])
    assert here["processor"]
    config["machine"]["processor"] = "an abacus"
    (run / "config.json").write_text(json.dumps(config))
    result = call("resume", run, "--steps", 600)
    assert result.code == 0
    assert "another machine" in result.err
    config = json.loads((run / "config.json").read_text())
    (entry,) = config["resumes"]
    assert (config["machine"]["processor"], entry["machine"]) == ("an abacus", here)


def test_a_process_in_which_xla_is_set_up_otherwise_is_told(alone, tmp_path):
    """The first run in it decided on the number of cores."""
    run = Path(shutil.copytree(alone, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    here = config["cores"]
    (run / "config.json").write_text(json.dumps(config | {"cores": here + 7}))
    result = call("resume", run, "--steps", 600)
    assert result.code == 0
    assert f"XLA is set up for {here} in this process, the run had {here + 7};" in result.err
    config = json.loads((run / "config.json").read_text())
    assert (len(config["resumes"]), config["cores"]) == (1, here)
    again = call("resume", run, "--steps", 640)  # told once
    assert again.code == 0
    assert "XLA is set up" not in again.err


def test_a_run_started_without_evaluation_settings_keeps_its_evaluations(tmp_path, monkeypatch):
    words = ("train", "CartPole-v1", "--steps", 512, "--eval-every", 64, *TINY, "eval_episodes=2")
    assert call(*words, "--out", tmp_path / "alone").code == 0
    with monkeypatch.context() as patch:
        interrupt(patch, 7)
        call(*words, "--out", tmp_path / "run")
    assert call("resume", tmp_path / "run").code == 0
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert (tmp_path / "run" / "evaluations.csv").read_text().count("\n") == 1 + 2 * 8


@pytest.mark.parametrize(("sent_at", "last"), [(192, 192), (512, None)])
def test_a_signal_cuts_an_evaluation_short_and_the_resume_plays_it(sent_at, last, tmp_path, monkeypatch):
    """But for the last one, which is waited for: the run is finished with it."""
    words = ("train", "CartPole-v1", "--steps", 512, "--eval-every", 64, *TINY, "eval_episodes=5")
    assert call(*words, "--out", tmp_path / "alone").code == 0
    real, played = session.evaluate, []

    def evaluate(*arguments):
        *others, step, tell, is_unwanted = arguments
        frames = count(1)

        def watched():
            played.append(step)
            if step == sent_at and next(frames) == 12:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.01)  # Python's handlers run between two of its instructions
            return is_unwanted()

        return real(*others, step, tell, watched)

    with monkeypatch.context() as patch:
        patch.setattr(session, "evaluate", evaluate)
        result = call(*words, "--out", tmp_path / "run")
    if last is None:
        assert result.code == 0
        assert played.count(512) > 12
    else:
        assert (result.code, played.count(last)) == (143, 12)
        assert f"stopped at step {last}" in result.err
        steps = [int(row.split(",")[0]) for row in (tmp_path / "run" / "evaluations.csv").read_text().splitlines()[1:]]
        assert max(steps) == last - 64
        assert call("resume", tmp_path / "run").code == 0
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert (tmp_path / "run" / "evaluations.csv").read_bytes() == (tmp_path / "alone" / "evaluations.csv").read_bytes()


def test_an_evaluation_that_is_left_to_the_resume_is_played_though_the_total_is_lowered(tmp_path, monkeypatch):
    words = ("train", "CartPole-v1", "--steps", 512, "--eval-every", 64, *TINY, "eval_episodes=5")
    with monkeypatch.context() as patch:
        patch.setattr(session, "evaluate", functools.partial(cut_short, session.evaluate, 192))
        assert call(*words, "--out", tmp_path / "run").code == 143
    result = call("resume", tmp_path / "run", "--steps", 192)
    assert result.code == 0
    assert "evaluation at step 192" in result.err
    rows = (tmp_path / "run" / "evaluations.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[0]) for row in rows] == [64] * 5 + [128] * 5 + [192] * 5
    assert "evaluation at" not in call("resume", tmp_path / "run", "--steps", 192).err  # once


def cut_short(real, at, *arguments):
    *others, step, tell, is_unwanted = arguments
    if step == at:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # Python's handlers run between two of its instructions
    return real(*others, step, tell, is_unwanted)


# Environments that resist ---------------------------------------------------------------------------------------------


class Opaque(gym.Env):
    """Its state is behind an object that cannot be captured; a seeded reset and the same actions bring it back."""

    observation_space = gym.spaces.Box(-10, 10, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.position = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rolls = iter(self.np_random.normal(size=1000).tolist())  # a C object without readable state
        self.position = np.full(2, next(self.rolls), np.float32)
        return self.position.copy(), {}

    def step(self, action):
        self.position = (0.9 * self.position + np.float32([next(self.rolls), 2 * action - 1])).astype(np.float32)
        return self.position.copy(), float(self.position[1]), bool(next(self.rolls) > 1.5), False, {}


class Unrepeatable(Opaque):
    """Nor does the same seed bring it back."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=secrets.randbits(32))


def train_in_two(env, tmp_path, seed=1):
    agent = P3O(env, seed=seed, **TINY_SETTINGS)
    agent.learn(512, run_dir=tmp_path / "alone")
    agent = P3O(env, seed=seed, **TINY_SETTINGS)
    agent.learn(512, run_dir=tmp_path / "run", callback=lambda status: status.step < 160)
    agent = P3O.resume(tmp_path / "run", env=env)
    assert agent.num_timesteps == 160
    return agent.learn()


def test_an_environment_that_can_only_be_rebuilt_goes_on_equal(tmp_path, capsys):
    agent = train_in_two(Opaque, tmp_path)
    assert agent.num_timesteps == 512
    stored = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert {one["kind"] for one in stored["state"]["trainer"]["environments"]["envs"]} == {"rebuild"}
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert "afresh" not in capsys.readouterr().err


class Enemy:
    def __init__(self, place):
        self.place = place


class Haunted(gym.Env):
    """Its episodes make objects, which a file cannot make again."""

    observation_space, action_space = Opaque.observation_space, Opaque.action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position, self.enemies = np.zeros(2), []
        return self.position.copy(), {}

    def step(self, action):
        self.enemies.append(Enemy(self.np_random.normal()))
        self.position = np.array([float(action), sum(enemy.place for enemy in self.enemies)])
        return self.position.copy(), float(self.position[1]), bool(self.np_random.random() < 0.05), False, {}


def test_an_environment_whose_episodes_make_objects_goes_on_equal(tmp_path, capsys):
    train_in_two(Haunted, tmp_path)
    stored = json.loads((tmp_path / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert {one["kind"] for one in stored["state"]["trainer"]["environments"]["envs"]} == {"state"}
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert "afresh" not in capsys.readouterr().err


class Sought(gym.Env):
    """Each episode has a goal, which is known to a function alone."""

    observation_space, action_space = gym.spaces.Box(-9, 9, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.pay = self.goal(self.np_random)
        return np.array([self.pay(0), 0], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time / 20, action], np.float32), self.pay(self.time), self.time >= 45, False, {}


def anywhere(rng):
    place = float(rng.uniform())
    return lambda x: abs(x - place)


def few_places(rng):
    """Two resets may well draw the same one."""
    place = int(rng.integers(2))
    return lambda x: abs(x - place)


def side(rng):
    word = "left" if rng.integers(2) else "right"
    return lambda x: x if word == "left" else -x


def wave(rng):
    return functools.partial(operator.call, math.sin if rng.integers(2) else math.cos)


@pytest.mark.parametrize("goal", [anywhere, few_places, side, wave])
def test_an_environment_whose_resets_make_functions_is_rebuilt(goal, tmp_path, capsys):
    kind = type("SoughtThere", (Sought,), {"goal": staticmethod(goal)})
    for seed in (1, 3):
        train_in_two(kind, tmp_path / str(seed), seed)
        assert differences(tmp_path / str(seed) / "alone", tmp_path / str(seed) / "run") == []
    assert "afresh" not in capsys.readouterr().err


def paid(word, x):
    return x if word == "left" else -x


class Chosen(Sought):
    """Its resets choose among functions that it has from the start; they differ by a word alone."""

    def __init__(self):
        tasks = [functools.partial(paid, word) for word in ("left", "right")]
        self.pay = tasks[0]
        self.tasks = tasks

    def goal(self, rng):
        return self.tasks[rng.integers(2)]


class Named(Sought):
    """Its resets set functions that are known by their names."""

    def goal(self, rng):
        self.kind = np.float32
        self.ahead = self.step
        self.paid = paid
        return np.sin


@pytest.mark.parametrize("kind", [Chosen, Named])
def test_an_environment_whose_resets_choose_functions_is_captured(kind, tmp_path, capsys):
    def members():
        return SyncVectorEnv([kind, kind])

    for seed in (2, 3):
        train_in_two(kind, tmp_path / str(seed), seed)
        assert differences(tmp_path / str(seed) / "alone", tmp_path / str(seed) / "run") == []
    stored = json.loads((tmp_path / "2" / "run" / "checkpoint" / "checkpoint.json").read_text())
    assert {one["kind"] for one in stored["state"]["trainer"]["environments"]["envs"]} == {"state"}
    P3O(members(), **TINY_SETTINGS).learn(512, run_dir=tmp_path / "alone")
    P3O(members(), **TINY_SETTINGS).learn(512, run_dir=tmp_path / "run", callback=lambda status: status.step < 160)
    P3O.resume(tmp_path / "run", env=members()).learn()
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert "afresh" not in capsys.readouterr().err


def test_a_vector_environment_whose_resets_make_functions_says_that_it_starts_afresh(tmp_path, capsys):
    kind = type("SoughtSide", (Sought,), {"goal": staticmethod(side)})
    agent = P3O(SyncVectorEnv([kind, kind]), **TINY_SETTINGS)
    agent.learn(512, run_dir=tmp_path / "run", callback=lambda status: status.step < 160)
    P3O.resume(tmp_path / "run", env=SyncVectorEnv([kind, kind]))
    assert capsys.readouterr().err.count("start afresh") == 1


class Single(Opaque):
    """Its rewards are numbers of 32 bits."""

    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, np.float32(0.1), *ends


def test_a_rebuilt_environment_may_pay_in_single_precision(tmp_path, capsys):
    train_in_two(Single, tmp_path)
    assert differences(tmp_path / "alone", tmp_path / "run") == []
    assert "afresh" not in capsys.readouterr().err


@pytest.mark.parametrize("error", [RuntimeError, ValueError, UserError])
@pytest.mark.parametrize("where", ["reset", "step"])
def test_an_environment_that_cannot_play_its_actions_again_says_so_once(where, error, tmp_path, capsys, monkeypatch):
    agent = P3O(Opaque, seed=1, **TINY_SETTINGS)
    agent.learn(512, run_dir=tmp_path / "run", callback=lambda status: status.step < 160)
    calls, real = count(), getattr(Opaque, where)

    def failing(*arguments, **keywords):
        if next(calls) == 0:
            raise error("blocked")
        return real(*arguments, **keywords)

    monkeypatch.setattr(Opaque, where, failing)
    agent = P3O.resume(tmp_path / "run", env=Opaque)
    assert capsys.readouterr().err.count("start afresh") == 1
    assert agent.learn().num_timesteps == 512


def test_an_environment_that_cannot_be_brought_back_says_so_once(tmp_path, capsys):
    agent = train_in_two(Unrepeatable, tmp_path)
    assert agent.num_timesteps == 512
    assert capsys.readouterr().err.count("start afresh") == 1
    lengths = [int(row[3]) for row in episodes(tmp_path / "run")[1:]]
    assert all(length >= 1 for length in lengths)
    assert sum(lengths) <= 512


def test_a_resume_to_its_own_total_again_finds_the_run_finished(tmp_path):
    run = tmp_path / "run"
    assert call("train", "CartPole-v1", "--steps", 40, "--out", run, *TINY).code == 0
    for _ in range(2):  # 100 is no multiple of an iteration: the run is past it afterwards
        again = call("resume", run, "--steps", 100)
        assert again.code == 0, again.err
    assert "finished" in again.err
    said = complaint(call("resume", run, "--steps", 50))
    assert re.search(r"--steps 50: the run is at step \d+ already; a larger total is needed", said)
    file = run / "config.json"
    assert f"{file} is no run: it is a file" in complaint(call("resume", file))
    (run / "updates.csv").rename(run / "elsewhere.csv")
    assert re.search(r"updates.csv is missing: the checkpoint was made after \d+ bytes", complaint(call("resume", run)))
    (run / "elsewhere.csv").rename(run / "updates.csv")


@pytest.mark.parametrize(("algo", "name"), [("ppo", "PPO"), ("a2cg", "A2C"), ("p3o", "P3O")])
def test_the_class_of_a_run_made_in_python_is_named(algo, name, tmp_path):
    if algo == "ppo":
        PPO(Opaque, num_envs=2, num_steps=8, num_minibatches=2).learn(16, run_dir=tmp_path / "run")
    elif algo == "p3o":
        P3O(Opaque, **TINY_SETTINGS).learn(32, run_dir=tmp_path / "run")
    else:
        A2C(Opaque, use_gae=True, num_envs=2).learn(16, run_dir=tmp_path / "run")
    assert f"resume with {name}.resume(" in complaint(call("resume", tmp_path / "run"))
    assert f"with {name}.load" in complaint(call("eval", tmp_path / "run"))


def test_a_run_made_in_python_needs_its_environment(tmp_path):
    P3O(Opaque, **TINY_SETTINGS).learn(32, run_dir=tmp_path / "run")
    before = tree(tmp_path / "run")
    for words in (("resume",), ("eval",), ("video",)):
        assert "made in Python" in complaint(call(*words, tmp_path / "run"))
    assert tree(tmp_path / "run") == before
    with pytest.raises(UserError, match="spaces"):
        P3O.resume(tmp_path / "run", env="CartPole-v1")
    assert P3O.resume(tmp_path / "run", env=Opaque).learn(32).num_timesteps == 64


HASHED = """
import hashlib, sys
import jax, numpy as np
from p3o.jobs import Job, set_up
env, algo, cores, settings = eval(sys.argv[1])
setup = set_up(Job(env, algo, 10**6, 3, settings=settings), cores=cores)
for _ in range(3):
    setup.trainer.iterate(10**6)
leaves = jax.tree.leaves(setup.trainer.state.params)
print(setup.cores, hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest())
"""


@pytest.mark.skipif(len(available_cores()) < 2 or not hasattr(os, "sched_setaffinity"), reason="one core")
def test_weights_do_not_depend_on_the_cores_that_a_run_is_resumed_on():
    def trained(places, cores):
        what = repr(("CartPole-v1", "p3o", cores, {"burn_in": 64, "hidden_sizes": (256, 256)}))
        words = ["taskset", "-c", ",".join(map(str, places)), sys.executable, "-c", HASHED, what]
        free = {name: value for name, value in os.environ.items() if name not in ("PJRT_NPROC", "XLA_FLAGS")}
        return subprocess.run(words, capture_output=True, text=True, check=True, env=free).stdout.split()

    first, second = available_cores()[:2]
    assert trained([first], None) == trained([first, second], None)
    assert trained([first], None)[0] == "1"
    assert trained([first], 2) == trained([first, second], 2)
    assert trained([first], 2)[0] == "2"


@pytest.mark.parametrize("is_late", [False, True])
def test_who_computes_before_the_first_agent_is_told_once(is_late):
    """XLA's threads are as they are then, and config.json says for how many cores."""
    words = f"""
import jax, warnings
from p3o.jobs import Job, set_up
warnings.simplefilter("always")
if {is_late}:
    jax.numpy.zeros(2)
print([set_up(Job("CartPole-v1", "p3o", 100)).cores for _ in range(2)])
"""
    free = {name: value for name, value in os.environ.items() if name not in ("PJRT_NPROC", "XLA_FLAGS")}
    result = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, env=free)
    assert result.stderr.count("JAX was in use before the first agent") == is_late
    assert result.stdout.strip() == str([len(available_cores()) if is_late else 1] * 2)


def test_settings_newer_than_a_run_are_what_they_were_before(tmp_path):
    folder = tmp_path / "run"
    assert call("train", "CartPole-v1", "--steps", 128, "--out", folder, "--set", "grad_clip=joint").code == 0
    config = json.loads((folder / "config.json").read_text())
    assert config["cores"] == int(os.environ["PJRT_NPROC"])  # of this process: the first run in it decides
    for name in ("grad_clip", "normalizer_pace", "reward_transform"):
        del config["settings"][name]
    assert job_of(config, folder, None).settings["grad_clip"] == "joint"
    assert resolve(job_of(config, folder, None)).config.grad_clip == "joint"
    assert resolve(Job("CartPole-v1", "p3o", 1)).config.grad_clip == "separate"
    for cores in (0, "two"):
        with pytest.raises(UserError, match="cores"):
            job_of(config | {"cores": cores}, folder, None)


def test_what_others_keep_beside_the_events_of_a_run_stays(alone, tmp_path, monkeypatch):
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        call("train", "CartPole-v1", "--steps", 512, "--out", run, *TINY)
    (run / "tb" / "plugins").mkdir()
    (run / "tb" / "notes.txt").write_text("mine")
    assert call("resume", run).code == 0
    assert (run / "tb" / "notes.txt").read_text() == "mine"
    (run / "tb" / "plugins").rmdir()
    (run / "tb" / "notes.txt").unlink()
    assert differences(alone, run) == []


def test_a_policy_that_is_not_finite_does_not_become_the_best(tmp_path):
    job = Job("CartPole-v1", "p3o", 10_000, settings={"num_steps": 16}, eval_every=32)
    run, held = starting.start(job, tmp_path / "run", NoDisplay())
    with held:
        trainer = run.trainer
        trainer.state = trainer.state._replace(params=jax.tree.map(lambda leaf: leaf * np.nan, trainer.state.params))
        with pytest.raises(RunStopped, match="not finite"):
            run._evaluate(StopSignals())
    assert not (tmp_path / "run" / "model-best").exists()
