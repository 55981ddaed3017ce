"""Sweeps: nothing starts before all is checked, nothing is lost when something is killed, all that failed is told."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call, complaint, tree
from sweeping import (
    TINY_SWEEP,
    begin,
    checkpoints,
    compare,
    kill_all,
    kill_parent,
    kill_worker,
    runs,
    sweep,
    wait_for,
    workers_of,
)

from p3o import sweep as sweeps
from p3o.config import parse_seeds
from p3o.errors import UserError
from p3o.folder import lock
from p3o.jobs import Job

linux_only = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes through /proc")
DESIGN = ("--envs", "CartPole-v1", "--algos", "a2c", "--seeds", "2", "--steps", "6000", *TINY_SWEEP)
ENVIRONMENTS = """
import os, signal
import gymnasium as gym
import numpy as np

class Base(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        if self.time == 300:
            self.trouble()
        return np.zeros(2, np.float32), 1.0, self.time % 10 == 0, False, {}

class Raises(Base):
    def trouble(self):
        raise RuntimeError("the motor is broken")

class Dies(Base):
    def trouble(self):
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

gym.register("Raises-v0", entry_point=Raises)
gym.register("Dies-v0", entry_point=Dies)
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A sweep of two runs that nothing stopped; read only."""
    out = tmp_path_factory.mktemp("sweeps") / "alone"
    result = sweep(out, *DESIGN)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{out}\n"
    return out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", (0, 1, 2)),
        ("1e1", tuple(range(10))),
        ("5-9", (5, 6, 7, 8, 9)),
        ("7-7", (7,)),
        ("3,7", (3, 7)),
        ("0-2, 7", (0, 1, 2, 7)),
    ],
)
def test_seeds(text, expected):
    assert parse_seeds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "0", "-3", "x", "1.5", "5-", "-5-7", "9-5", "3,,7", "3,x", "1e9", "0-99999", "nan"]
)
def test_seeds_that_are_none(text):
    with pytest.raises(UserError, match="--seeds"):
        parse_seeds(text)


def test_a_seed_given_twice_is_named():
    with pytest.raises(UserError, match="seed 2 is there twice"):
        parse_seeds("0-3,2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "envs is missing"),
        (("--envs", "CartPole-v1", "CartPol-v1"), "did you mean CartPole-v1?"),
        (("--envs", "CartPole-v1", "--algos", "a2c", "pppo"), "did you mean ppo?"),
        (("--envs", "CartPole-v1", "--set", "gama=0.9"), "did you mean gamma?"),
        (("--envs", "CartPole-v1", "--env-set", "size=3"), "size"),
        (("--envs", "CartPole-v1", "--seeds", "1,1"), "seed 1 is there twice"),
        (("--envs", "CartPole-v1", "--steps", "0"), "steps: '0' is not a whole number"),
        (("--envs", "CartPole-v1", "--preset", "papper"), "did you mean paper?"),
        (("--envs", "CartPole-v1", "--variant", "a/b"), "variant 'a/b'"),
        (("--envs", "CartPole-v1", "--workers", "0"), "--workers: '0'"),
        (("--envs", "Pendulum-v1", "CartPole-v1", "--algos", "acer"), "acer"),
        (("--envs", "CartPole-v1", "--file", "x.toml"), "--envs belongs there"),
        (("--file", "nowhere.toml"), "nowhere.toml cannot be read"),
        (("--envs",), "--envs: a name is missing"),
        (("--envs", "CartPole-v1", "--worker", "2"), "did you mean --workers?"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in complaint(call("sweep", "out", *words))
    assert tree(tmp_path) == {}


def test_an_option_given_twice_adds_to_the_first(monkeypatch, tmp_path):
    seen = {}

    def take(jobs, out, **_):
        seen["envs"] = [job.env for job in jobs]
        return sweeps.Result([], None, 0)

    monkeypatch.setattr(sweeps, "run", take)
    words = ("--envs", "CartPole-v1", "--envs", "Acrobot-v1", "Pendulum-v1", "--seeds", "1")
    assert call("sweep", tmp_path / "out", *words).code == 0
    assert seen["envs"] == ["CartPole-v1", "Acrobot-v1", "Pendulum-v1"]


def test_ray_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    said = complaint(call("sweep", tmp_path / "out", *DESIGN, "--ray", "auto"))
    assert said.startswith("p3o: --ray needs Ray: install the extra p3o[ray] (in the clone: ")
    assert tree(tmp_path) == {}


def test_python_jobs_that_no_process_could_run(tmp_path):
    with pytest.raises(UserError, match="environment ids"):
        sweeps.run([Job(env=lambda: None)], tmp_path / "out")
    with pytest.raises(UserError, match="empty"):
        sweeps.run([], tmp_path / "out")
    two = [Job("CartPole-v1", "a2c"), Job("CartPole-v1", "a2c", settings={"gamma": 0.5})]
    with pytest.raises(UserError, match=r"settings gamma is 0.99 there, 0.5 here\); give one of them a variant"):
        sweeps.run(two, tmp_path / "out")
    assert tree(tmp_path) == {}


def test_a_replay_for_each_worker_has_to_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("p3o.device.free_memory", lambda: 10_000_000)
    jobs = [Job("CartPole-v1", "p3o", seed=seed) for seed in range(40)]
    with pytest.raises(UserError, match="lower it with --workers N"):
        sweeps.run(jobs, tmp_path / "out", workers=40)
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_is_not_there_is_missed_before_anything_starts(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    said = complaint(call("sweep", tmp_path / "out", *DESIGN, "--set", "device=gpu"))
    assert said.startswith("p3o: setting device: gpu was asked for and JAX finds none")
    assert list(tmp_path.iterdir()) == []


def test_nobody_looks_for_a_gpu_that_nobody_asked_for(alone, monkeypatch):
    monkeypatch.setattr("p3o.sweeps.local.has_gpu", lambda: pytest.fail("looked for a GPU"))
    assert call("sweep", alone, *DESIGN).code == 0


def test_a_folder_of_its_own(tmp_path, alone):
    (tmp_path / "file").write_text("")
    assert "is a file" in complaint(call("sweep", tmp_path / "file", *DESIGN))
    run = alone / runs(alone)[0]
    assert "is a run" in complaint(call("sweep", run, *DESIGN))
    with lock(alone):
        assert "is being written by another process" in complaint(call("sweep", alone, *DESIGN))


def test_what_a_sweep_leaves(alone):
    assert [str(run) for run in runs(alone)] == [f"CartPole-v1/a2c-default/seed-{seed}" for seed in range(2)]
    assert sweeps.run_folder(Path("out"), Job("ALE/Pong-v5", "ppo", seed=3, variant="x")) == Path(
        "out/ALE-Pong-v5/ppo-default-x/seed-3"
    )
    index = json.loads((alone / "sweep.json").read_text())
    assert index["format"] == 1
    assert index["design"]["seeds"] == "2"
    assert index["command"].startswith("p3o sweep ")
    assert index["versions"]["p3o"]
    for entry, run in zip(index["runs"], runs(alone), strict=True):
        assert entry["folder"] == str(run)
        assert entry["state"] == "finished"
        assert entry["step"] >= 6000
        assert entry["steps_per_second"] > 0
        assert entry["set"]["hidden_sizes"] == [8]
        config = json.loads((alone / run / "config.json").read_text())
        assert config["command"] == index["command"]
        assert config["settings"]["num_steps"] == 16
        assert {p.name for p in (alone / run).iterdir()} == {
            *("config.json", "episodes.csv", "updates.csv", "checkpoint", "model", "tb", "report.html"),
            *("worker.log", ".lock"),
        }


def test_finished_runs_are_skipped_and_a_larger_design_adds_to_them(alone, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(alone, out)
    before = {str(run): tree(out / run) for run in runs(out)}
    again = call("sweep", out, *DESIGN)
    assert (again.code, again.out) == (0, f"{out}\n")
    assert "start" not in again.err
    assert "nothing left to do, 2 finished before" in again.err
    assert {str(run): tree(out / run) for run in runs(out)} == before
    more = [word if word != "2" else "1-2" for word in DESIGN]  # seed 1, which is there, and 2, which is not
    result = sweep(out, *more)
    assert result.returncode == 0, result.stderr
    assert ", 1 finished before" in result.stderr.splitlines()[0]
    assert [line.split()[3] for line in result.stderr.splitlines() if line.startswith("start ")] == ["seed-2"]
    assert {str(run): tree(out / run) for run in runs(out)[:2]} == before
    entries = json.loads((out / "sweep.json").read_text())["runs"]
    assert [(entry["seed"], entry["state"]) for entry in entries] == [(s, "finished") for s in range(3)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", "7000"), "steps is 6000 there, 7000 here"),
        (("--set", "gamma=0.5"), "settings gamma is 0.99 there, 0.5 here"),
        (("--env-set", "sutton_barto_reward=true"), "env kwargs sutton_barto_reward is missing there, True here"),
        (("--eval-every", "100"), "eval_every is None there, 100 here"),
    ],
)
def test_a_run_that_differs_from_what_is_asked_is_refused(words, said, alone):
    before = tree(alone)
    result = call("sweep", alone, *DESIGN, *words)
    assert said in complaint(result)
    assert "CartPole-v1/a2c-default/seed-" in result.err
    assert tree(alone) == before


def edited(alone, out, change):
    """The sweep with its first run's config.json changed."""
    shutil.copytree(alone, out)
    file = out / runs(out)[0] / "config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))
    return out


def test_a_run_from_before_a_setting_existed_goes_on(alone, tmp_path):
    out = edited(alone, tmp_path / "out", lambda config: config["settings"].pop("device"))
    result = call("sweep", out, *DESIGN)
    assert (result.code, result.out) == (0, f"{out}\n"), result.err
    said = complaint(call("sweep", out, *DESIGN, "--set", "device=cpu"))
    assert "settings device is 'auto' there, 'cpu' here" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: config["env"].pop("kwargs"), "env kwargs is missing there, {} here"),
        (lambda config: config["settings"].update(gone=None), "settings gone is None there, missing here"),
        (lambda config: config.update(settings=3), "settings is 3 there"),
    ],
)
def test_what_is_missing_on_one_side_is_told(change, said, alone, tmp_path):
    assert said in complaint(call("sweep", edited(alone, tmp_path / "out", change), *DESIGN))


def test_a_strange_folder_in_a_runs_place_is_refused(tmp_path):
    place = tmp_path / "CartPole-v1" / "a2c-default" / "seed-1"
    place.mkdir(parents=True)
    (place / "thesis.tex").write_text("years of work")
    before = tree(tmp_path)
    assert "seed-1 is not empty" in complaint(call("sweep", tmp_path, *DESIGN))
    assert tree(tmp_path) == before


@linux_only
def test_a_killed_worker_is_replaced(alone, tmp_path):
    process = begin(tmp_path / "out", *DESIGN)
    kill_worker(process, tmp_path / "out")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, f"{tmp_path / 'out'}\n"), err
    assert "its process was killed by SIGKILL" in err
    assert compare(alone, tmp_path / "out") == []


@linux_only
@pytest.mark.parametrize("kill", [kill_parent, kill_all])
def test_the_same_command_goes_on_after(kill, alone, tmp_path):
    kill(begin(tmp_path / "out", *DESIGN), tmp_path / "out")
    result = sweep(tmp_path / "out", *DESIGN)
    assert result.returncode == 0, result.stderr
    assert "resume" in result.stderr
    assert compare(alone, tmp_path / "out") == []


@linux_only
def test_workers_of_a_killed_sweep_are_waited_for(alone, tmp_path):
    """The next sweep may start while they are still writing their last checkpoint."""
    process = begin(tmp_path / "out", *DESIGN)
    wait_for(lambda: checkpoints(tmp_path / "out"))
    process.kill()
    result = sweep(tmp_path / "out", *DESIGN)
    process.communicate()
    assert result.returncode == 0, result.stderr
    assert compare(alone, tmp_path / "out") == []


@linux_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_every_run_where_it_can_go_on(number, code, alone, tmp_path):
    process = begin(tmp_path / "out", *DESIGN)
    wait_for(lambda: checkpoints(tmp_path / "out"))
    workers = workers_of(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, f"{tmp_path / 'out'}\n"), err
    assert "to go; the same command goes on from here" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not any(Path("/proc", str(pid)).exists() for pid in workers)
    entries = json.loads((tmp_path / "out" / "sweep.json").read_text())["runs"]
    assert any(entry["state"] == "waiting" and entry["step"] % 32 == 0 < entry["step"] for entry in entries)
    result = sweep(tmp_path / "out", *DESIGN)
    assert result.returncode == 0, result.stderr
    assert compare(alone, tmp_path / "out") == []


@pytest.fixture
def own_envs(tmp_path, monkeypatch):
    (tmp_path / "own_envs.py").write_text(ENVIRONMENTS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))


def test_what_fails_is_told_and_the_others_go_on(own_envs, tmp_path):
    envs = ("own_envs:Raises-v0", "own_envs:Dies-v0", "CartPole-v1")
    out = tmp_path / "out"
    result = sweep(out, "--envs", *envs, "--algos", "a2c", "--seeds", 1, "--steps", 1000, *TINY_SWEEP)
    assert (result.returncode, result.stdout) == (1, f"{out}\n"), result.stderr
    assert result.stderr.count("again     own_envs-Dies-v0") == 2
    entries = {entry["env"]: entry for entry in json.loads((out / "sweep.json").read_text())["runs"]}
    assert entries["CartPole-v1"]["state"] == "finished"
    raised, died = entries[envs[0]], entries[envs[1]]
    assert (raised["state"], raised["reason"]) == ("failed", "RuntimeError: the motor is broken")
    assert 'raise RuntimeError("the motor is broken")' in raised["log"]
    assert died["reason"] == "its process was killed by SIGKILL, for the third time without progress"
    assert "last words" in died["log"]
    said = result.stderr.splitlines()[-3:]
    assert said[0] == "2 runs of 3 failed; the same command tries again:"
    assert all("worker.log" in line for line in said[1:])


@pytest.mark.slow
@linux_only
def test_two_environments_three_algorithms_three_seeds_killed_three_ways(tmp_path):
    """Issue 5: worker, parent, then all; the final files are those of a sweep that nothing stopped."""
    script = Path(__file__).with_name("sweeping.py")
    result = subprocess.run([sys.executable, script, tmp_path], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "18 runs: equal"
