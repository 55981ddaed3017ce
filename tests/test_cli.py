"""The command line: bad input is one line and changes nothing; good input leaves what the interface promises."""

import contextlib
import csv
import errno
import itertools
import json
import math
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import TINY, TINY_SETTINGS, call, complaint, tree
from killing import command, episodes, events

from p3o import cli, device, evaluate, folder, listing
from p3o.commands.options import parse_seed, parse_value
from p3o.errors import is_out_of_memory


class TextEnv(gym.Env):
    """An observation space that no network here can read."""

    observation_space = gym.spaces.Text(5)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return "a", {}

    def step(self, action):
        return "a", 0.0, True, False, {}


class TupleActionEnv(TextEnv):
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Discrete(2)])


class NoRenderMode(gym.Env):
    """As short as a user's environment can be: its constructor takes nothing."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self):
        self.time = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 5, False, {}


class NeedsArgument(TextEnv):
    observation_space = gym.spaces.Box(-1, 1, (2,))

    def __init__(self, size, render_mode=None):
        self.size = size


@pytest.fixture(scope="module", autouse=True)
def _own_envs():
    ids = {
        "TestText-v0": TextEnv,
        "TestTupleAction-v0": TupleActionEnv,
        "TestNeedsArgument-v0": NeedsArgument,
        "TestNoRenderMode-v0": NoRenderMode,
    }
    for name, env in ids.items():
        gym.register(name, entry_point=env)
    yield
    for name in ids:
        del gym.registry[name]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Each test in an empty working folder."""
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    monkeypatch.chdir(cwd)
    return cwd


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of 320 steps with evaluations; read only."""
    path = tmp_path_factory.mktemp("runs") / "run"
    result = call("train", "CartPole-v1", "--steps", "3_00", "--seed", 3, "--eval-every", "1e2", "--out", path, *TINY)
    assert result.code == 0, result.err
    assert result.out == f"{path}\n"
    return path


@pytest.fixture
def own_run(run, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(run, tmp_path / "own"))


# Bad input ------------------------------------------------------------------------------------------------------------

BAD_TRAIN = {  # words -> what the line has to name
    ("CartPol-v1",): ("'CartPol-v1'", "CartPole-v1"),
    ("CartPole-v7",): ("'CartPole-v7'", "CartPole-v1"),
    ("Blackjack-v2",): ("'Blackjack-v2'", "Blackjack-v1"),  # which Atari has a game of, too
    ("Nothing-like-this",): ("'Nothing-like-this'; `p3o list environments`",),
    ("",): ("''",),
    **({} if find_spec("Box2D") else {("LunarLander-v3",): ("LunarLander-v3", "box2d")}),
    ("no_such_module:Thing-v0",): ("no_such_module",),
    ("gymnasium:Thing-v0",): ("Thing-v0",),
    ("TestText-v0",): ("Text", "Box"),
    ("TestTupleAction-v0",): ("Tuple", "Box"),
    ("TestNeedsArgument-v0",): ("size",),
    ("TestNeedsArgument-v0", "--env-set", "siz=3"): ("siz",),
    ("CartPole-v1", "--env-set", "lenght=3"): ("lenght",),
    ("CartPole-v1", "--env-set", "length"): ("--env-set", "'length'", "key=value"),
    ("CartPole-v1", "--env-set"): ("--env-set", "key=value"),
    ("CartPole-v1", "--algo", "p30"): ("'p30'", "did you mean p3o"),
    ("CartPole-v1", "--algo", "dqn"): ("'dqn'", "ppo"),
    ("CartPole-v1", "--preset", "papre"): ("'papre'", "did you mean paper"),
    ("CartPole-v1", "--set", "gama=0.9"): ("'gama'", "did you mean gamma"),
    ("CartPole-v1", "--set", "gamma=0.9", "--set", "learning_rat=1"): ("'learning_rat'", "learning_rate"),
    ("CartPole-v1", "--set", "gamma"): ("'gamma'", "key=value"),
    ("CartPole-v1", "--set", "gamma=1.5"): ("gamma", "1.5", "above 1"),
    ("CartPole-v1", "--set", "gamma=x"): ("gamma", "'x'"),
    ("CartPole-v1", "--set", "gamma=nan"): ("gamma", "'nan'"),
    ("CartPole-v1", "--set", "num_envs=0"): ("num_envs", "0"),
    ("CartPole-v1", "--set", "num_envs=1.5"): ("num_envs", "1.5"),
    ("CartPole-v1", "--set", "optimizer=adm"): ("'adm'", "did you mean adam"),
    ("CartPole-v1", "--set", "normalize_reward=perhaps"): ("normalize_reward", "'perhaps'"),
    ("CartPole-v1", "--set", "hidden_sizes=8,x"): ("hidden_sizes", "'x'"),
    ("CartPole-v1", "--set", "hidden_sizes="): ("hidden_sizes", "missing"),
    ("CartPole-v1", "--algo", "ppo", "--set", "kl_coef=0"): ("kl_coef: ppo has no such setting; it is one of p3o",),
    ("CartPole-v1", "--algo", "a2c", "--set", "burn_in=0"): (
        "burn_in: a2c has no such setting; it is one of p3o, acer",
    ),
    ("CartPole-v1", "--out", ""): ("--out", "missing"),
    ("CartPole",): ("'CartPole' has no version; one of CartPole-v0, CartPole-v1 is needed",),
    (".foo:Env-v0",): ("environment '.foo:Env-v0'",),
    ("gymnasium:CartPole",): ("'gymnasium:CartPole' has no version; one of CartPole-v0, CartPole-v1 is needed",),
    ("Ant-v3",): ("'Ant-v3' is no longer in Gymnasium, which has Ant-v4, Ant-v5\n",),
    ("Ant-v3", "--env-set", "x=1"): ("p3o: environment 'Ant-v3' is no longer in Gymnasium, which has Ant-v4, Ant-v5",),
    ("CartPole-v1", "--steps", "0"): ("--steps", "'0'"),
    ("CartPole-v1", "--steps", "-5"): ("--steps", "'-5'"),
    ("CartPole-v1", "--steps", "1.5"): ("--steps", "'1.5'"),
    ("CartPole-v1", "--steps", "many"): ("--steps", "'many'"),
    ("CartPole-v1", "--steps", "inf"): ("--steps", "'inf'"),
    ("CartPole-v1", "--steps"): ("--steps",),
    ("CartPole-v1", "--seed", "x"): ("--seed", "'x'"),
    ("CartPole-v1", "--seed", "-1"): ("--seed", "'-1'"),
    ("CartPole-v1", "--seed", "1e40"): ("--seed", "'1e40'"),
    ("CartPole-v1", "--eval-every", "0"): ("--eval-every", "'0'"),
    ("CartPole-v1", "--variant", "a/b"): ("--variant", "'a/b'"),
    ("CartPole-v1", "--variant", "x" * 300): ("--variant xxx", "at most 150 bytes"),
    ("FrozenLake-v1", "--env-set", "map_name=9x9"): ("cannot be made with map_name='9x9'", "KeyError"),
    ("HalfCheetah-v5", "--env-set", "frame_skip=0"): ("cannot be made with frame_skip=0", "ZeroDivisionError"),
    ("HalfCheetah-v5", "--env-set", "forward_reward_weight=x"): ("does not run with forward_reward_weight='x'",),
    ("CartPole-v1", "--set", "off_policy_updates=1e9"): ("off_policy_updates", "1000"),
    ("CartPole-v1", "--stesp", "3"): ("'--stesp'", "did you mean --steps"),
    ("CartPole-v1", "--zzz"): ("'--zzz'; `p3o train --help`",),
    ("CartPole-v1", "--bogus", "3"): ("'--bogus'; `p3o train --help`",),  # nothing like it: no hint
    ("CartPole-v1", "--out", "/dev/null"): ("/dev/null is no folder; choose another folder",),
    ("CartPole-v1", "more"): ("'more'",),
    (): ("ENV",),
}


@pytest.mark.parametrize("words", BAD_TRAIN, ids=" ".join)
def test_bad_train_is_one_line_and_writes_nothing(words, here):
    line = complaint(call("train", *words))
    for part in BAD_TRAIN[words]:
        assert part in line
    assert tree(here) == {}


def test_an_environment_without_a_render_mode_trains(here):
    result = call("train", "TestNoRenderMode-v0", "--steps", 32, "--out", "run", *TINY)
    assert (result.code, result.out) == (0, "run\n"), result.err


def test_a_model_file_that_is_not_there_is_one_line(here):
    pytest.importorskip("mujoco")
    line = complaint(call("train", "Ant-v5", "--env-set", "xml_file=./no_such_file.xml"))
    assert "no_such_file.xml" in line
    assert tree(here) == {}


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("trian", "CartPole-v1"), ("'trian'", "did you mean train", "resume")),
        (("--stpes", "3"), ("--stpes",)),
        (("list", "algoritms"), ("'algoritms'", "did you mean algorithms")),
        (("list", "algorithms", "more"), ("'more'",)),
        (("resume",), ("RUN",)),
        (("resume", "nowhere"), ("nowhere", "no run")),
        (("resume", "nowhere", "--steps", "x"), ("--steps", "'x'")),
        (("resume", "nowhere", "--set", "gamma=0.9"), ("resume does not know '--set'; `p3o resume --help`",)),
        (("eval", "nowhere"), ("nowhere",)),
        (("eval", "nowhere", "--episodes", "0"), ("--episodes", "'0'")),
        (("eval", "nowhere", "--determinstic"), ("'--determinstic'", "did you mean --deterministic")),
        (("video", "nowhere"), ("nowhere",)),
        (("video", "nowhere", "--out", "film.avi"), ("film.avi", ".mp4")),
        (("report", "nowhere"), ("nowhere",)),
        (("report",), ("one run",)),
    ],
)
def test_other_bad_commands_are_one_line(words, parts, here):
    line = complaint(call(*words))
    for part in parts:
        assert part in line
    assert tree(here) == {}


@pytest.mark.parametrize("words", [("resume",), ("eval",), ("video",)])
def test_a_folder_that_is_no_run(words, here):
    (here / "empty").mkdir()
    (here / "file").write_text("x")
    before = tree(here)
    for name in ("empty", "file"):
        assert name in complaint(call(*words, name))
    assert tree(here) == before


def test_bad_input_in_a_process_of_its_own_prints_no_traceback(here):
    for words in (("trian",), ("train", "CartPol-v1")):
        done = subprocess.run(command(*words), capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert tree(here) == {}


def test_out_that_exists_is_left_alone(run, here):
    before = tree(run)
    assert "p3o resume" in complaint(call("train", "CartPole-v1", "--out", run))
    assert tree(run) == before
    (here / "taken").mkdir()
    (here / "taken" / "notes.txt").write_text("mine")
    (here / "file").write_text("mine")
    before = tree(here)
    for name in ("taken", "file"):
        assert name in complaint(call("train", "CartPole-v1", "--out", name))
    assert tree(here) == before


@pytest.mark.parametrize("out", ["/proc/nothing/run", "file/run", "x" * 300])
def test_out_that_cannot_be_made(out, here):
    (here / "file").write_text("mine")
    before = tree(here)
    assert out in complaint(call("train", "CartPole-v1", "--out", out))
    assert tree(here) == before


@pytest.mark.parametrize("words", [("eval",), ("resume",), ("report",), ("video",), ("sweep", "--envs", "CartPole-v1")])
def test_a_path_that_the_file_system_refuses_is_one_line(words, here):
    name = "x" * 300
    line = complaint(call(words[0], name, *words[1:]))
    assert name in line
    assert "too long" in line
    assert tree(here) == {}


@pytest.mark.parametrize(("number", "is_ours"), [(errno.EACCES, True), (errno.ENOENT, False), (errno.EIO, False)])
def test_what_is_no_fault_of_a_path_keeps_its_traceback(number, is_ours, here, monkeypatch):
    def refuse(path):
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("p3o.agent.find_model", refuse)
    if is_ours:
        assert complaint(call("eval", "place")) == "p3o: place: Permission denied\n"
    else:
        with pytest.raises(OSError, match="place"):
            call("eval", "place")


def test_a_hint_to_resume_can_be_pasted(here):
    words = ("train", "CartPole-v1", "--steps", 32, *TINY, "--out", "two words")
    assert call(*words).code == 0
    assert "`p3o resume 'two words'`" in complaint(call(*words))
    (here / "file").write_text("")
    assert "file is no folder; choose another" in complaint(call("train", "CartPole-v1", "--out", "file"))


def test_out_that_cannot_be_written(here):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    (here / "closed").mkdir(mode=0o500)
    for out in ("closed", "closed/run"):
        assert out in complaint(call("train", "CartPole-v1", "--out", out))


def test_one_environment_is_no_plural(here):
    result = call("train", "CartPole-v1", "--steps", 16, "--out", "one", *TINY, "--set", "num_envs=1")
    assert "\n1 environment × " in result.out + result.err


def test_an_empty_folder_can_be_the_run_folder(here):
    (here / "empty").mkdir()
    assert call("train", "CartPole-v1", "--steps", 32, "--out", "empty", *TINY).out == "empty\n"


def test_a_second_writer_is_refused(own_run):
    before = tree(own_run)
    with folder.lock(own_run):
        assert "being written" in complaint(call("resume", own_run))
        done = subprocess.run(command("resume", own_run), capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert tree(own_run) == before
    assert call("resume", own_run).code == 0  # the lock goes with its holder


def test_the_later_of_two_that_start_at_once_is_refused(here, monkeypatch):
    """Both find the folder free; the one that comes later to the lock finds a run there."""

    def lock_after_the_other(path):
        (path / "config.json").write_text("the other's")
        return contextlib.nullcontext()

    monkeypatch.setattr(folder, "lock", lock_after_the_other)
    complaint(call("train", "CartPole-v1", "--out", "run", *TINY))
    assert tree(here) == {"run": None, "run/config.json": b"the other's"}


def test_repeated_set_options_all_count():
    told = ["train", "E", "--set", "a=1", "--env-set", "x=1", "--set", "b=2", "c=3", "--seed", "4", "--set=d=5", "-h"]
    gathered = cli.gather_words(told)
    assert gathered == ["train", "E", "--seed", "4", "-h", "--set", "a=1", "b=2", "c=3", "d=5", "--env-set", "x=1"]
    parsed = cli.parse(["train", "--set", "a=1", "E", "--set", "b=x=y"])
    assert (parsed.env, parsed.set) == ("E", ["a=1", "b=x=y"])
    parsed = cli.parse(["train", "--set", "a=1", "--seed", "3", "--", "E"])
    assert (parsed.env, parsed.set, parsed.seed) == ("E", ["a=1"], "3")

    assert "put it before" in complaint(call("train", "--", "E", "--set", "a=1"))


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "p3o: out of memory\n"),
        (
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 9 TB\nmore"),
            "p3o: out of memory (RESOURCE_EXHAUSTED: 9 TB)\n",
        ),
    ],
)
def test_too_little_memory_before_a_run_is_one_line(error, line, monkeypatch, here):
    def too_large(*_, **__):
        raise error

    monkeypatch.setattr("p3o.train.Rollout", too_large)
    result = call("train", "CartPole-v1", "--out", "run")
    assert (result.code, result.err) == (1, line)


def test_what_else_is_exhausted_is_no_lack_of_memory():
    assert not is_out_of_memory(RuntimeError("RESOURCE_EXHAUSTED: a message is too long"))


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("True", True), ("None", None), ("null", None), ("[1, 2]", [1, 2])],
)
def test_constructor_arguments_are_json_or_text(text, value):
    assert parse_value(text) == value
    assert parse_value(f"{text}!") == f"{text}!"


def test_large_seeds_are_kept_exactly():
    assert parse_seed("9007199254740993") == 2**53 + 1  # as a float it would be one less
    assert parse_seed("1e3") == 1000


# Good input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("--help",), ("train", "--help")])
def test_help_comes_without_waiting_for_jax(words):
    code = (
        "import sys; from p3o import cli; sys.argv[1:] = %r\n"
        "try: cli.main()\n"
        "finally: assert not {'jax', 'gymnasium', 'numpy', 'matplotlib', 'mujoco'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code % list(words)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout
    assert done.stderr == ""


def test_list_shows_what_there_is():
    assert {line.split()[0] for line in call("list", "algorithms").out.splitlines()} >= {"p3o"}
    assert call("list").out == call("list", "algorithms").out
    shown = call("list", "presets").out
    assert all(f"  {name} " in shown for name in TINY_SETTINGS)
    assert "--set" in shown
    p3o, _, others = shown.partition("\na2c: --set")
    assert "\n  paper/vector with discrete actions: kl_reduction mean\n" in p3o
    assert "\n  paper/image with discrete actions: kl_reduction mean\n" in p3o  # said once: Atari has no other
    assert "\n  default/image of Atari: normalize_reward False, reward_transform sign, time_limit terminal\n" in p3o
    assert "discrete actions" not in others
    names = call("list", "environments").out.splitlines()
    assert {"CartPole-v1", "Ant-v4", "Ant-v5"} <= set(names)
    assert not {"Ant-v2", "Ant-v3", "GymV21Environment-v0"} & set(names)  # only a word about where they went
    assert ("p3o/Ant-v2" in names) == bool(find_spec("mujoco"))
    assert any(name.startswith("phys2d/") for name in names) == bool(find_spec("flax"))


def test_list_presets_of_some_algorithms_and_in_a_narrow_terminal():
    shown = call("list", "presets", "--algos", "ppo", "acer").out
    assert re.findall(r"^(\w+): --set", shown, re.MULTILINE) == ["ppo", "acer"]
    narrow = list(listing.presets(["p3o"], 60))
    assert max(map(len, narrow)) <= 60
    at = narrow.index("  num_envs: 2 (default/vector), 8 (default/image), 2")
    assert narrow[at + 1 : at + 3] == [
        "    (paper/vector), 16 (paper/image)",
        "      Environments stepped side by side (K).",
    ]
    assert "  gamma: 0.99" in narrow  # the same everywhere
    wide = list(listing.presets(["p3o"]))
    most = max(map(len, wide))
    assert list(listing.presets(["p3o"], most)) == wide
    assert max(map(len, listing.presets(["p3o"], most - 1))) < most


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("presets", "--algos", "p3"), "did you mean p3o"),
        (("environments", "--algos", "p3o"), "--algos goes with `list presets`"),
        (("presets", "--in", "."), "--in goes with `list experiments`"),
        (("experiments", "--in", "nowhere"), "--in nowhere: no such folder"),
        (("experiments", "--in", ""), "--in: the name of a folder is missing"),
    ],
)
def test_list_takes_nothing_that_it_would_not_use(words, said, here):
    assert said in complaint(call("list", *words))


def test_config_says_everything(run):
    config = json.loads((run / "config.json").read_text())
    simulators = {"mujoco": "mujoco", "ale-py": "ale_py", "box2d": "Box2D"}
    assert {name for name, module in simulators.items() if find_spec(module)} <= set(config["versions"])
    assert config["format"] == 1
    assert (config["algo"], config["preset"], config["variant"], config["seed"]) == ("p3o", "default", "", 3)
    assert (config["steps"], config["eval_every"]) == (300, 100)
    assert config["env"]["id"] == "CartPole-v1"
    assert config["env"]["kwargs"] == {}
    assert config["env"]["action_space"] == "Discrete(2)"
    assert config["env"]["observation_space"].startswith("Box(")
    assert (config["settings"]["num_steps"], config["settings"]["hidden_sizes"]) == (16, [8])
    assert len(config["settings"]) > 30
    assert {"p3o", "jax", "gymnasium", "numpy", "python"} <= config["versions"].keys()
    assert config["machine"]["cores"] >= 1
    assert config["command"].startswith("p3o train CartPole-v1 --steps 3_00")
    assert config["resumes"] == []


def test_run_folder_holds_what_is_promised(run):
    names = {path.name for path in run.iterdir()} - {".lock"}
    assert names == {
        "config.json",
        "episodes.csv",
        "updates.csv",
        "evaluations.csv",
        "checkpoint",
        "model",
        "model-best",
        "tb",
        "report.html",
    }
    for part in ("model", "model-best"):
        assert {path.name for path in (run / part).iterdir()} == {"model.json", "model.safetensors"}
    for file in ("config.json", "model/model.json", "checkpoint/checkpoint.json"):
        assert json.loads((run / file).read_text(), parse_constant=pytest.fail)["format"] == 1


def rows(file):
    with open(file, newline="") as lines:
        return list(csv.DictReader(lines))


def test_episodes(run):
    lines = rows(run / "episodes.csv")
    assert list(lines[0]) == ["step", "env", "return", "length", "seconds"]
    steps = [int(line["step"]) for line in lines]
    assert steps == sorted(steps)
    assert steps[-1] <= 320  # the first whole iteration at or past 300
    assert all(step % 2 == 0 for step in steps)  # both environments take each step
    # An environment's episodes follow each other without a gap, one step in two being its own.
    for env in ("0", "1"):
        lengths = np.cumsum([int(line["length"]) for line in lines if line["env"] == env])
        assert [2 * n for n in lengths] == [int(line["step"]) for line in lines if line["env"] == env]
    assert all(float(line["return"]) == int(line["length"]) for line in lines)  # raw: CartPole gives 1 a step


def test_updates_of_a_short_run_are_one_line(run):
    (line,) = rows(run / "updates.csv")
    assert list(line) == [
        "step",
        *("ess", "kl_coef", "is_clip", "kl", "entropy", "policy_loss", "value_loss", "off_policy_loss"),
        *("ratio_mean", "ratio_max", "off_policy_updates", "grad_norm", "learning_rate", "steps_per_second"),
    ]
    assert line["step"] == "320"
    assert 0 < float(line["ess"]) <= 1
    assert math.isclose(float(line["kl_coef"]), 1 - float(line["ess"]), rel_tol=1e-4, abs_tol=1e-6)
    assert float(line["off_policy_updates"]) == int(line["off_policy_updates"]) > 0


def test_events_can_be_read(run):
    found = events(run)
    assert {(320, "rollout/ep_rew_mean"), (320, "train/ess"), (320, "train/kl_coef")} <= {e[:2] for e in found}
    (line,) = rows(run / "updates.csv")
    (ess,) = [value for _, tag, value in found if tag == "train/ess"]
    assert math.isclose(ess, float(line["ess"]), rel_tol=1e-6)
    returns = [float(line["return"]) for line in rows(run / "episodes.csv")][-100:]
    (mean,) = [value for _, tag, value in found if tag == "rollout/ep_rew_mean"]
    assert math.isclose(mean, np.mean(returns), rel_tol=1e-6)
    assert b"time/fps" in b"".join(p.read_bytes() for p in (run / "tb").iterdir())


def test_evaluations(run):
    lines = rows(run / "evaluations.csv")
    assert list(lines[0]) == ["step", "episode", "return", "length"]
    assert [int(line["step"]) for line in lines[::10]] == [128, 224, 320]  # the first iterations past 100, 200, 300
    assert [int(line["episode"]) for line in lines] == list(range(10)) * 3
    means = [np.mean([float(line["return"]) for line in lines[i : i + 10]]) for i in (0, 10, 20)]
    assert json.loads((run / "model-best" / "model.json").read_text())["step"] == (128, 224, 320)[np.argmax(means)]


def test_evaluation_does_not_disturb_the_training(run, here):
    result = call("train", "CartPole-v1", "--steps", 300, "--seed", 3, "--out", "plain", *TINY)
    assert result.code == 0
    weights = "model/model.safetensors"
    assert (here / "plain" / weights).read_bytes() == (run / weights).read_bytes()
    assert episodes(here / "plain") == episodes(run)
    assert not (here / "plain" / "evaluations.csv").exists()


def test_lines_of_updates_are_ten_iterations_or_ten_thousand_steps_apart(here):
    settings = ("--set", "num_envs=64", "num_steps=20", "hidden_sizes=8", "off_policy_updates=0")
    result = call("train", "CartPole-v1", "--steps", 30_000, "--out", "long", *settings)
    assert result.code == 0
    assert "64 environments × 20 steps an iteration" in result.out + result.err
    lines = rows(here / "long" / "updates.csv")
    # 1280 steps an iteration: ten iterations are 12,800 steps, the longer of the two; the last line ends the run.
    assert [int(line["step"]) for line in lines] == [12_800, 25_600, 30_720]
    assert all(line["ess"] == "" and line["off_policy_updates"] == "0" for line in lines)  # nothing was replayed


def test_default_folder_is_named_after_the_job_and_never_reused(here):
    words = ("train", "CartPole-v1", "--steps", 32, "--seed", 7, "--variant", "lambda-0", *TINY)
    assert call(*words).out == "runs/CartPole-v1/p3o-default-lambda-0/seed-7\n"
    assert call(*words).out == "runs/CartPole-v1/p3o-default-lambda-0/seed-7-2\n"


def test_eval_prints_one_line_and_changes_nothing(run):
    before = tree(run)
    result = call("eval", run, "--episodes", 3, "--deterministic", "--json")
    assert result.code == 0
    assert result.err == ""
    told = json.loads(result.out)
    assert result.out.count("\n") == 1
    assert (told["env"], told["episodes"], told["deterministic"], told["step"]) == ("CartPole-v1", 3, True, 320)
    assert len(told["returns"]) == 3
    assert math.isclose(told["mean_return"], np.mean(told["returns"]))
    sentence = call("eval", run / "model", "--episodes", 3, "--deterministic")
    assert f"return {told['mean_return']:.2f}" in sentence.out
    assert sentence.out.count("\n") == 1
    assert tree(run) == before


def test_a_module_that_is_not_found_is_told_from_one_that_it_wants(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gym_task.py").write_text("import gym_that_is_not_there\n")
    assert "for gym_task.py in this folder set PYTHONPATH=." in complaint(call("train", "gym_task:Foo-v0"))
    monkeypatch.syspath_prepend(tmp_path)
    said = complaint(call("train", "gym_task:Foo-v0"))
    assert "no module 'gym_task'" not in said
    assert "gym_that_is_not_there" in said
    (tmp_path / "gym_task.py").write_text("import gym\n")  # its name begins like the module's
    sys.modules.pop("gym_task", None)
    monkeypatch.setitem(sys.modules, "gym", None)
    assert "no module 'gym_task'" not in complaint(call("train", "gym_task:Foo-v0"))


def test_eval_says_now_and_then_that_it_still_plays(run, monkeypatch):
    clock = itertools.count(0.0, 4.0)
    monkeypatch.setattr(evaluate, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    result = call("eval", run, "--episodes", 2, "--deterministic", "--json")
    first, second = map(int, json.loads(result.out)["returns"])  # a step pays 1
    steps_at = [*range(first + 1), *range(first, first + second + 1)]  # an episode's first frame is no step
    said = re.findall(r"p3o: still playing, ([\d,]+) steps so far\n", result.err)
    assert said == [f"{steps:,}" for steps in steps_at[2::3]]  # the clock is looked at once more for each line
    assert len(said) > 4


def test_a_model_made_with_other_arguments_is_not_the_runs(here):
    arguments = ("train", "CartPole-v1", "--steps", 32, *TINY)
    assert call(*arguments, "--out", "a").code == 0
    assert call(*arguments, "--env-set", "sutton_barto_reward=true", "--out", "b").code == 0
    shutil.rmtree("a/model")
    shutil.copytree("b/model", "a/model")
    line = complaint(call("eval", "a"))
    assert "with {'sutton_barto_reward': True}, the run is of p3o on CartPole-v1 with {}" in line


def test_eval_samples_actions_from_its_own_seed(run):
    one, same, other = (json.loads(call("eval", run, "--episodes", 3, "--seed", s, "--json").out) for s in (1, 1, 2))
    assert one == same
    assert one["returns"] != other["returns"]


def test_eval_on_a_terminal_without_the_sign(run):
    words = command("eval", run, "--episodes", 1)
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("CartPole-v1: return ")


def test_standard_streams_may_be_closed(here):
    words = " ".join(command("train", "CartPole-v1", "--steps", 32, "--out", "run", *TINY))
    assert subprocess.run(f"{words} >&- 2>&-", shell=True, executable="/bin/bash").returncode == 0
    assert (here / "run" / "report.html").exists()


def test_reading_from_a_closed_pipe_is_no_traceback():
    done = subprocess.run(f"{sys.executable} -m p3o list presets | true", shell=True, capture_output=True, text=True)
    assert done.stderr == ""


@pytest.mark.parametrize("env", ["Ant-v4", "InvertedPendulum-v4", "Humanoid-v5"])
def test_libraries_do_not_chatter(env, here, capfd):
    pytest.importorskip("mujoco")
    result = call("train", env, "--steps", 32, "--out", "run", *TINY)
    assert result.code == 0
    assert "".join(capfd.readouterr()) == ""  # past Python's own streams
    lines = result.err.splitlines()
    assert lines[0] == f"P3O on {env}, seed 0"
    assert all(line.startswith(("P3O on", "2 env", "replay:", "run folder:", "step ", "report:")) for line in lines)
    assert [path.name for path in here.iterdir()] == ["run"]


def test_libraries_do_not_chatter_in_a_process_of_their_own(here):
    pytest.importorskip("mujoco")
    done = subprocess.run(
        command("train", "Ant-v4", "--steps", 32, "--out", "run", *TINY), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "run\n")
    lines = done.stderr.splitlines()
    assert all(line.startswith(("P3O on", "2 env", "replay:", "run folder:", "step ", "report:")) for line in lines)
    assert [path.name for path in here.iterdir()] == ["run"]


def test_a_cache_that_cannot_be_used_is_not_the_users_trouble(here, monkeypatch):
    (here / "cache").write_text("a file, where a folder was expected")
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    assert device.cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "other"))
    assert device.cache_folder() == here / "other" / "p3o" / "jax"


# The terminal ---------------------------------------------------------------------------------------------------------


def under_terminal(words, cwd, interrupt_after=None):
    """Run with standard error and input on a pseudo-terminal; returns exit code, standard output, what was drawn."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        command(*words), stdin=slave, stderr=slave, stdout=subprocess.PIPE, cwd=cwd, env=environment
    )
    os.close(slave)
    drawn = b""
    is_interrupted = interrupt_after is None
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            part = os.read(master, 65536)
        except OSError:  # the terminal closes with the process
            break
        drawn += part
        if not is_interrupted and interrupt_after in drawn:
            process.send_signal(signal.SIGINT)
            is_interrupted = True
    out, _ = process.communicate(timeout=30)
    os.close(master)
    return process.returncode, out.decode(), drawn.decode(errors="replace")


def test_live_display_on_a_terminal_ends_cleanly(here):
    code, out, drawn = under_terminal(("train", "CartPole-v1", "--steps", 2000, "--out", "run", *TINY), here)
    assert (code, out) == (0, "run\n")
    assert "P3O on CartPole-v1" in drawn
    assert "╰" in drawn  # the panel, closed
    assert "\x1b[?25l" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")  # the cursor comes back
    assert "report: run/report.html" in drawn
    assert "Traceback" not in drawn


def test_interrupt_on_a_terminal_gives_the_terminal_back(here):
    words = ("train", "CartPole-v1", "--steps", "1e7", "--out", "run", *TINY)
    code, out, drawn = under_terminal(words, here, interrupt_after="╰".encode())
    assert (code, out) == (130, "run\n")
    assert "go on with: p3o resume run" in drawn
    assert drawn.rindex("\x1b[?25h") > drawn.rindex("\x1b[?25l")
    assert "Traceback" not in drawn


def test_the_version_is_printed(capsys):
    from p3o import __version__
    from p3o.cli import parse

    with pytest.raises(SystemExit) as stop:
        parse(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"p3o {__version__}\n")


def test_an_environment_that_has_moved_elsewhere_is_one_line(here):
    assert "Ant-v2" in complaint(call("train", "Ant-v2", "--steps", 100))
