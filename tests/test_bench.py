"""`p3o bench`: time is put where it was spent, the clocks change nothing, and advice follows from the shares."""

import io
import json
import tempfile
import time

import gymnasium as gym
import jax
import numpy as np
import pytest
from commands import TINY, TINY_SETTINGS, call, complaint, tree
from rich.console import Console

from p3o import bench, clocks, findings
from p3o.jobs import Job, set_up


class Sleepy(gym.Env):
    """An environment whose step takes far longer than anything else in the loop."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(0.03)
        return np.zeros(3, np.float32), 1.0, False, False, {}


@pytest.fixture
def no_files(tmp_path, monkeypatch):
    """The working folder and the one for temporary files, both empty; to stay so."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert tree(tmp_path) == {"here": None, "temporary": None}


def result(**shares):
    """A result of an algorithm with these shares, the rest of its time in the simulator."""
    parts = dict.fromkeys(bench.COLUMNS, 0.0) | shares
    parts["simulator"] += 1.0 - sum(parts.values())
    return bench.Result("p3o", 2, 64, False, 5_000, False, 1000.0, parts, 0.1, 1.0, None)


def words(*results, cores=1):
    return "\n".join(findings.advice(bench.Picture("X-v0", "default", 1.0, 2000.0, list(results), {}), cores))


def test_clocks_take_inner_calls_from_outer_ones_and_leave_their_own_cost_out():
    now = [0.0]

    def spend(seconds):
        now[0] += seconds

    found = clocks.Clocks(lambda: now[0])
    inner = found.wrap(lambda: spend(2.0), "inner")
    outer = found.wrap(lambda: (spend(1.0), inner(), inner(), spend(4.0)), "outer")
    outer()
    assert found.seconds == {"inner": 4.0, "outer": 5.0}
    # each of 3 calls added 0.1 to itself; the 2 inner ones added 0.2 each to the outer one
    cost = clocks.Cost(0.1, 0.2)
    assert found.net(cost) == pytest.approx({"inner": 4.0 - 0.2, "outer": 5.0 - 0.1 - 0.4})
    assert found.overhead(cost) == pytest.approx(3 * 0.3)


def test_every_part_of_a_real_loop_is_found_and_no_result_changes():
    def trainer():
        return set_up(Job("CartPole-v1", "p3o", 10_000, settings=TINY_SETTINGS)).trainer

    plain, timed = trainer(), trainer()
    for one in (plain, timed):
        for _ in range(3):
            one.iterate(10_000)
    before = {name: vars(owner).keys() for name, owner in (("env", timed.env), ("normalizer", timed.normalizer))}
    found = clocks.breakdown(timed, 0.0, 10_000)
    plain.iterate(10_000)
    timed.iterate(10_000)
    plain.iterate(10_000)
    assert found.iterations == 1
    assert found.steps == 32
    assert set(found.parts) == set(clocks.PARTS)
    assert all(seconds > 0 for seconds in found.parts.values()), found.parts
    assert {"env": vars(timed.env).keys(), "normalizer": vars(timed.normalizer).keys()} == before
    assert type(timed.actor) is type(plain.actor)
    assert all("step" not in vars(env) and "step" not in vars(env.unwrapped) for env in timed.env.envs)
    a, b = plain.snapshot(), timed.snapshot()
    for x, y in zip(jax.tree.leaves(a["algorithm"]), jax.tree.leaves(b["algorithm"]), strict=True):
        np.testing.assert_array_equal(x, y)
    assert a["returns"].tolist() == b["returns"].tolist()


@pytest.mark.parametrize("env", ["CartPole-v1", "HalfCheetah-v5"])
def test_the_way_that_training_takes_is_the_one_that_is_timed(env, monkeypatch):
    if env == "HalfCheetah-v5":
        pytest.importorskip("mujoco")
    trainer = set_up(Job(env, "a2c", 10_000, settings={"hidden_sizes": "8", "num_envs": 2, "num_steps": 16})).trainer
    calls = []
    for name in ("_play", "_play_quickly"):
        way = getattr(trainer.rollout, name)
        monkeypatch.setattr(trainer.rollout, name, lambda *a, n=name, f=way: (calls.append(n), f(*a))[1])
    trainer.iterate(10_000)
    with clocks.timed(trainer) as found:
        trainer.iterate(10_000)
    assert calls[0] == calls[1]
    # once a vector step: the policy, the way to the environment's action, and for discrete actions the sample
    assert found.calls["acting"] == 16 * (3 if env == "CartPole-v1" else 2)
    # CartPole step by step, the cheetah by quick steps, which take both environments at once
    is_quick = trainer.env._quick_steps is not None
    assert is_quick == (env == "HalfCheetah-v5")
    assert found.calls["simulator"] == 16 * (1 if is_quick else 2)
    parts = clocks.breakdown(trainer, 0.0, 10_000, time.process_time).parts
    assert parts["simulator"] > 0
    if is_quick:  # tens of microseconds of physics a step
        assert parts["simulator"] > parts["normalising"]


def test_a_slow_environment_is_found_to_be_what_takes_the_time(no_files):
    settings = TINY_SETTINGS | {"num_steps": 4, "replay_size": 32, "burn_in": 8}
    picture = bench.measure(Sleepy, ["p3o"], 0.5, settings=settings)
    (found,) = picture.results
    assert found.shares["simulator"] >= 0.8, found.parts
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert set(found.shares) == {"simulator", "acting", "normalising", "copying", "updating", "logging"}
    assert found.parts["logging"] > 0
    assert found.parts["simulator"] >= 2 * found.num_steps * 0.03 * 0.99  # 2 environments, 30 ms a step
    assert picture.bare_steps_per_second <= 1 / 0.03
    (line,) = findings.advice(picture, cores=1)
    assert f"p3o: {found.shares['simulator']:.0%}".replace("%", " %") in line
    assert "of the time is your environment's step" in line


def test_iterations_are_shortened_for_a_slow_environment():
    # 11 steps fit: one environment takes 10 of them, since PPO needs a multiple of its 2 minibatches
    job = Job(Sleepy, "ppo", settings={"hidden_sizes": "8", "num_minibatches": 2, "num_epochs": 1})
    setup, is_shortened = bench._set_up_to_fit(job, 11.0)
    assert is_shortened
    assert setup.config.num_steps == 10
    setup, is_shortened = bench._set_up_to_fit(job, 1e9)
    assert not is_shortened
    assert setup.config.num_steps == 2048


def test_json_and_plain_lines_come_from_the_command(no_files):
    done = call("bench", "CartPole-v1", "--algos", "p3o", "--seconds", "0.3", "--json", *TINY)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["env"] == "CartPole-v1"
    (one,) = found["algorithms"]
    assert one["algo"] == "p3o"
    assert sum(one["shares"].values()) == pytest.approx(1.0)
    assert one["steps_per_second"] > 0
    assert one["compile_seconds"] > 0
    assert found["simulator_steps_per_second"] > 0
    plain = call("bench", "CartPole-v1", "--algos", "p3o", "a2c", "--seconds", "0.2", "--set", "hidden_sizes=8")
    assert plain.code == 0, plain.err
    assert "p3o 2×64: " in plain.out
    assert "a2c 8×16: " in plain.out
    assert "simulator alone, random actions" in plain.out


def test_algorithms_that_cannot_act_are_left_out_unless_named():
    picture = bench.measure("Pendulum-v1", [], 0.05, settings={"hidden_sizes": "8"})
    assert [r.algo for r in picture.results] == ["p3o", "a2c", "a2cg", "ppo"]
    assert "Discrete" in picture.skipped["acer"]
    assert "acer was left out" in "\n".join(findings.facts(picture))
    assert "Discrete" in complaint(call("bench", "Pendulum-v1", "--algos", "acer", "--seconds", "0.05"))


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["CartPol-v1"], "CartPole"),
        (["CartPole-v1", "--algos", "p30"], "did you mean p3o?"),
        (["CartPole-v1", "--seconds", "0"], "--seconds: '0'"),
        (["CartPole-v1", "--seconds", "soon"], "'soon' is not a number"),
        (["CartPole-v1", "--preset", "papr", "--seconds", "0.1"], "did you mean paper?"),
        (["CartPole-v1", "--set", "gama=1", "--seconds", "0.1"], "did you mean gamma?"),
    ],
)
def test_bad_input_is_one_line(arguments, part, no_files):
    assert part in complaint(call("bench", *arguments))


def test_a_terminal_gets_a_table():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    out = Terminal()
    picture = bench.Picture("X-v0", "default", 1.0, 2000.0, [result(updating=0.3)], {"acer": "no"})
    findings.show(picture, Console(file=out, width=130, force_terminal=True))
    assert "┃" in out.getvalue()
    assert "70%" in out.getvalue()
    assert "X-v0, preset default" in out.getvalue()


def test_advice_follows_the_shares():
    assert "of the time is your environment's step" in words(result())
    assert words(result(acting=0.3, updating=0.3)) == ""
    assert "a GPU gains little" in words(result(updating=0.6))
    large = result(updating=0.6)._replace(num_parameters=5_000_000)
    assert "a GPU may well" in words(large)
    assert "updates dominate" not in words(result(updating=0.45))  # the simulator does, and a GPU would not help it
    assert "runs at once" not in words(result()._replace(has_images=True), cores=8)
    assert "num_envs=16" in words(result(acting=0.2, normalising=0.2, copying=0.2))
    assert "checkpoint_every" in words(result(logging=0.2))
    assert "8 runs at once on 8 cores" in words(result(), cores=8)


def test_the_time_of_one_replayed_step_is_the_slope():
    # 2 ms + 3 ms a step; one update was disturbed
    assert bench.step_seconds([0, 1, 2, 3, 4, 5], [2.0, 5.0, 8.0, 11.0, 14.0, 60.0]) == pytest.approx(3.0)
    assert bench.step_seconds([2, 2, 2], [1.0, 1.1, 1.2]) is None


@pytest.mark.parametrize("shared_trunk", [False, True])
def test_matrix_products_have_the_shapes_of_the_network(shared_trunk):
    settings = TINY_SETTINGS | {"hidden_sizes": "8,4", "shared_trunk": shared_trunk}
    setup = set_up(Job("Pendulum-v1", "p3o", settings=settings))
    leaves = jax.tree.leaves(setup.trainer.state.params)
    assert sorted(leaf.shape for leaf in leaves if leaf.ndim == 2) == sorted(s[:2] for s in bench.layer_shapes(setup))
    assert [s[2] for s in bench.layer_shapes(setup)].count(False) == (1 if shared_trunk else 2)


def test_where_a_gpu_was_measured_the_measurement_is_the_advice():
    """With a GPU at hand the choice has been made by measurement: no guess about it beside it."""
    measured = result(updating=0.9)
    picture = bench.Picture("X-v0", "default", 0.1, 1e4, [measured], {})
    assert any("updates dominate" in line for line in findings.advice(picture, 1))
    reason = "gpu: an update takes 13.6 ms on the CPU and 4.1 ms on the GPU"
    picture = picture._replace(results=[measured._replace(device="gpu", device_reason=reason)])
    assert not any("updates dominate" in line for line in findings.advice(picture, 1))
    assert f"p3o learns on {reason}" in findings.facts(picture)


@pytest.mark.parametrize("num_envs", [1, 3, 4, 6])
def test_a_shortened_iteration_is_still_divided_into_minibatches(num_envs):
    job = Job("CartPole-v1", "ppo", 1000, 0, settings={"num_envs": num_envs, "num_minibatches": 4, "num_steps": 512})
    for most in (1.0, 11.0, 30.0):
        setup, is_shortened = bench._set_up_to_fit(job, most)
        setup.trainer.env.close()
        assert is_shortened
        assert setup.config.num_steps < 30
