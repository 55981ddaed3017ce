"""A restored environment goes on bit for bit like the captured one, or the capture is refused."""

import argparse
import copy
import enum
import functools
import json
import logging
import math
import os
import random
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p3o import checkpoint
from p3o.envs import introspection
from p3o.envs.capturing import DEEPEST
from p3o.envs.snapshot import NotSnapshotable, capture, restore

TASKS = (
    "HalfCheetah",
    "Walker2d",
    "Hopper",
    "Swimmer",
    "InvertedDoublePendulum",
    "InvertedPendulum",
    "Ant",
    "Humanoid",
)
MUJOCO = [f"{task}-{version}" for task in TASKS for version in ("v4", "v5")]
CLASSIC = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
TOY = ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "CliffWalking-v1"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:gymnasium", "ignore:.*is out of date.*:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    """MuJoCo writes its warnings to a file in the working directory."""
    monkeypatch.chdir(tmp_path)


def make(name, **options):
    if name in MUJOCO:
        pytest.importorskip("mujoco")
    return gymnasium.make(name, **options)


def to_text(tree):
    """A snapshot as JSON; anything in it that is not plain data fails here."""

    def pack(node):
        if type(node) is np.ndarray:
            assert node.dtype.kind in "biuf"
            return {"": [node.dtype.str, list(node.shape), node.tobytes().hex()]}
        if type(node) is dict:
            assert all(type(key) is str for key in node)
            return {key: pack(value) for key, value in node.items()}
        if type(node) is list:
            return [pack(value) for value in node]
        assert type(node) in (type(None), bool, int, float, str)
        return node

    return json.dumps(pack(tree))


def from_text(text):
    def unpack(node):
        if isinstance(node, dict) and "" in node:
            dtype, shape, data = node[""]
            return np.frombuffer(bytes.fromhex(data), dtype).reshape(shape)
        if isinstance(node, dict):
            return {key: unpack(value) for key, value in node.items()}
        return [unpack(value) for value in node] if isinstance(node, list) else node

    return unpack(json.loads(text))


def bits(value):
    """Something that is equal only for equal bits, types and shapes."""
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    array = np.asarray(value)
    return type(value), array.dtype, array.shape, array.tobytes()


def drive(env, num_steps, seed, is_running=True):
    """Random actions, with a reset without seed at the end of an episode; everything that came back."""
    generator = np.random.default_rng(seed)
    seen = [] if is_running else [bits(env.reset(seed=seed)[0])]
    for _ in range(num_steps):
        if isinstance(env.action_space, spaces.Discrete):
            action = int(generator.integers(env.action_space.n))
        else:
            space = env.action_space
            action = np.clip(generator.normal(size=space.shape), space.low, space.high).astype(space.dtype)
        observation, reward, terminated, truncated, _ = env.step(action)
        seen.append(bits((observation, reward, terminated, truncated)))
        if terminated or truncated:
            seen.append(bits(env.reset()[0]))
    return seen


def assert_goes_on_alike(env, fresh, num_steps=100, num_before=70):
    drive(env, num_before, seed=1, is_running=False)
    restore(fresh, from_text(to_text(capture(env))))
    assert drive(fresh, num_steps, seed=2) == drive(env, num_steps, seed=2)


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco_is_exact_across_the_time_limit_and_resets(name):
    env, fresh = (make(name, max_episode_steps=20) for _ in range(2))
    assert_goes_on_alike(env, fresh)


@pytest.mark.parametrize("name", MUJOCO)
def test_mujoco_shows_the_captured_observation_before_the_next_step(name):
    # Ant and Humanoid show contact forces, inertias and velocities that the simulator does not count as its state.
    env, fresh = (make(name) for _ in range(2))
    drive(env, 15, seed=1, is_running=False)
    restore(fresh, capture(env))
    assert bits(fresh.unwrapped._get_obs()) == bits(env.unwrapped._get_obs())


@pytest.mark.parametrize("name", ["Ant-v4", "Ant-v5", "Humanoid-v4", "Humanoid-v5", "Swimmer-v5"])
@pytest.mark.parametrize("num_before", [1, 9])
def test_mujoco_is_exact_in_the_middle_of_an_episode(name, num_before):
    env, fresh = (make(name, disable_env_checker=True) for _ in range(2))
    assert_goes_on_alike(env, fresh, num_steps=60, num_before=num_before)


@pytest.mark.parametrize("name", CLASSIC + TOY)
@pytest.mark.parametrize("options", [{}, {"disable_env_checker": True}, {"max_episode_steps": 20}])
def test_classic_and_toy_tasks_are_exact(name, options):
    assert_goes_on_alike(make(name, **options), make(name, **options), num_steps=300, num_before=105)


@pytest.mark.parametrize("name", ["Ant-v5", "Hopper-v4", "CartPole-v1", "Taxi-v4"])
def test_a_used_environment_can_be_restored_into(name):
    env, used = make(name), make(name)
    drive(used, 33, seed=5, is_running=False)
    assert_goes_on_alike(env, used)


@pytest.mark.parametrize("name", ["Humanoid-v5", "Acrobot-v1"])
def test_a_snapshot_of_an_unused_environment_makes_a_used_one_unused(name):
    used = make(name, disable_env_checker=True)
    drive(used, 10, seed=5, is_running=False)
    restore(used, capture(make(name, disable_env_checker=True)))
    assert "_np_random" not in vars(used.unwrapped)
    with pytest.raises(gymnasium.error.ResetNeeded):
        used.step(used.action_space.sample())


def test_a_snapshot_shares_no_memory_with_the_environment():
    env, fresh, late = (make("HalfCheetah-v5", max_episode_steps=20) for _ in range(3))
    drive(env, 7, seed=1, is_running=False)
    snapshot = capture(env)
    restore(fresh, snapshot)
    expected = drive(fresh, 60, seed=2)
    drive(env, 60, seed=3)
    restore(late, snapshot)
    assert drive(late, 60, seed=2) == expected


ANOTHER_PROCESS = """
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import test_snapshot as t
env = t.make("Ant-v5", max_episode_steps=50)
t.restore(env, t.from_text(pathlib.Path("snapshot.json").read_text()))
print(t.drive(env, 100, seed=2))
"""


def test_another_process_goes_on_alike(request, tmp_path):
    env = make("Ant-v5", max_episode_steps=50)
    drive(env, 70, seed=1, is_running=False)
    (tmp_path / "snapshot.json").write_text(to_text(capture(env)))
    command = [sys.executable, "-c", ANOTHER_PROCESS, str(request.path.parent)]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert other.stdout.strip() == str(drive(env, 100, seed=2))


def test_a_changed_simulation_model_is_noticed():
    env, fresh = make("Hopper-v5"), make("Hopper-v5")
    env.unwrapped.model.body_mass[1] *= 2
    with pytest.raises(ValueError, match="model"):
        restore(fresh, capture(env))


WRAPPERS = {
    "frames": lambda env: wrappers.FrameStackObservation(env, 3),
    "frames after padding with zeros": lambda env: wrappers.FrameStackObservation(env, 3, padding_type="zero"),
    "time": wrappers.TimeAwareObservation,
    "time in a dict": lambda env: wrappers.TimeAwareObservation(env, flatten=False),
    "normalised observation": wrappers.NormalizeObservation,
    "normalised reward": wrappers.NormalizeReward,
    "sticky": lambda env: wrappers.StickyAction(env, 0.4),
    "delay": lambda env: wrappers.DelayObservation(env, 2),
    "statistics": wrappers.RecordEpisodeStatistics,
    "clipped": wrappers.ClipAction,
    "rescaled": lambda env: wrappers.RescaleAction(env, np.float32(-2), np.float32(2)),
    "flat": wrappers.FlattenObservation,
    "repeated": lambda env: wrappers.RepeatAction(env, 2),
    "own function": lambda env: wrappers.TransformReward(env, lambda reward: 2 * reward),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_wrappers_are_exact(wrap):
    env, fresh = (wrap(make("Hopper-v5", max_episode_steps=20)) for _ in range(2))
    for num_before in (1, 45):
        assert_goes_on_alike(env, fresh, num_steps=60, num_before=num_before)


def test_episode_statistics_are_restored():
    env, fresh = (wrappers.RecordEpisodeStatistics(make("CartPole-v1"), buffer_length=4) for _ in range(2))
    assert_goes_on_alike(env, fresh)
    assert fresh.return_queue == env.return_queue
    assert fresh.return_queue.maxlen == 4


class Phase(enum.Enum):
    DAY = 1
    NIGHT = 2


@dataclass(frozen=True)
class Weather:
    wind: float
    history: np.ndarray


CALM = Weather(0.0, np.zeros(3))


class Plain(gymnasium.Env):
    """One of everything that is plain, all of it in the observation."""

    def __init__(self):
        self.action_space = spaces.Discrete(3)
        self.observation_space = spaces.Box(-np.inf, np.inf, (9,))
        self.weather = CALM
        self.phase = Phase.DAY
        self.scale = np.float32(1)
        self.recent = deque(maxlen=3)
        self.visits = {(0, 1): 0, "late": None, 7: [1, (2.5, {3})]}
        self.moves = {0: self.left, 1: math.sqrt, 2: functools.partial(round, ndigits=3)}
        self.grid = np.array([[b"S", b"G"]])
        self.image = np.asfortranarray(np.arange(6, dtype=">f8").reshape(2, 3))
        self.complex = np.array([1 + 2j])
        self.stream = np.random.Generator(np.random.MT19937(3))
        self.other_streams = [np.random.Generator(np.random.Philox(3)), np.random.Generator(np.random.SFC64(3))]

    def left(self, value):
        return value - 1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.buffer = np.zeros(3)
        self.weather = Weather(float(self.np_random.normal()), self.position)
        self.count = 10**30
        return self.observe(0), {}

    def step(self, action):
        self.position += self.np_random.normal(size=3)
        self.count += 1
        self.phase = Phase(2 if self.count % 3 else 1)
        self.scale *= np.float32(1.01)
        self.recent.append(self.stream.integers(100, dtype=np.int16))
        self.visits[0, 1] += action
        self.visits[7][1][1].add(action)
        child = self.stream.spawn(1)[0].normal() + self.other_streams[action % 2].random()
        terminated = bool(self.np_random.random() < 0.1)
        return self.observe(child), self.moves[action](9.1234), terminated, False, {}

    def observe(self, child):
        tail = [sum(self.recent), self.visits[0, 1], self.count % 97, self.phase.value, self.image.mean()]
        tail += [child, self.weather.wind, self.action_space.sample(), len(self.visits[7][1][1])]
        return np.concatenate([self.buffer * self.scale, self.weather.history, tail])


def test_a_plain_environment_is_exact():
    env, fresh = Plain(), Plain()
    env.action_space.seed(4)
    assert_goes_on_alike(env, fresh, num_steps=200)
    assert fresh.position is fresh.buffer is fresh.weather.history
    assert fresh.image.flags.f_contiguous
    assert fresh.image.dtype == env.image.dtype
    assert type(fresh.recent[0]) is np.int16
    assert fresh.grid.tolist() == [[b"S", b"G"]]
    assert CALM.wind == 0.0, "the object the fresh environment shared was written to"


def holding(value):
    """An environment with `value` in its attribute `held`."""
    env = Plain()
    env.reset(seed=0)
    env.held = value
    return env


def counter():
    calls = 0

    def step():
        nonlocal calls
        calls += 1

    return step


def shrunk_set():
    """In a table made for a hundred numbers 1 comes before 64, in one for two after it."""
    numbers = set(range(100))
    for number in set(numbers) - {1, 64}:
        numbers.remove(number)
    return numbers


class Slots:
    __slots__ = ("x",)


class Items(list):
    pass


VIEWED = np.zeros((4, 4))
REFUSED = {
    "a C object": lambda: count(),
    "a C object inside": lambda: {"world": [count()]},
    "a slotted object": Slots,
    "a list of its own kind": Items,
    "Python's generator": lambda: random.Random(0),
    "a bound generator": lambda: random.Random(0).random,
    "a module": lambda: random,
    "a counter in a closure": counter,
    "a list in a closure": lambda: (lambda items: lambda: items)([]),
    "a mutable default": lambda: functools.partial(print, []),
    "an environment": Plain,
    "objects in an array": lambda: np.array([None]),
    "rows of numbers": lambda: np.zeros(2, [("x", int)]),
    "views": lambda: [VIEWED, VIEWED[0]],
    "a strided view": lambda: np.zeros(8)[::2],
    "memory of something else": lambda: np.frombuffer(bytearray(8), np.uint8),
    "a set of text": lambda: {"a", "b"},
    "a set in an order of its history": shrunk_set,
    "two generators on one stream": lambda: [np.random.Generator(b) for b in [np.random.PCG64(1)] * 2],
    "an iterator": lambda: iter([1]),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_what_is_not_plain_is_refused_by_name(value):
    with pytest.raises(NotSnapshotable, match=r"^Plain\.held") as error:
        capture(holding(value()))
    assert "\n" not in str(error.value)


def test_endless_data_is_refused():
    endless = []
    endless.append((endless,))
    endless[0][0].append(endless[0])
    with pytest.raises(NotSnapshotable):
        capture(holding(endless[0]))


@pytest.mark.parametrize(
    "wrap", [Weather, lambda inner, _: [inner], lambda inner, _: (inner,), lambda inner, _: {0: inner}]
)
def test_data_as_deep_as_a_checkpoint_can_take_are_captured(wrap):
    deep = [capture(holding(functools.reduce(wrap, range(depth), 1))) for depth in (10, DEEPEST)]
    for snapshot in deep:
        skeleton, arrays = checkpoint.flatten({"state": {"trainer": {"environments": {"envs": [{"state": snapshot}]}}}})
        stored = json.loads(json.dumps(skeleton, indent=1))
        restored = checkpoint.unflatten(stored, arrays)["state"]["trainer"]["environments"]["envs"][0]["state"]
        restore(Plain(), restored)
    for depth in (DEEPEST + 1, 300, 5000):
        with pytest.raises(NotSnapshotable):
            capture(holding(functools.reduce(wrap, range(depth), 1)))


def test_cycles_and_back_references_are_restored():
    env, fresh = holding([1]), Plain()
    env.held += [env.held, env]
    restore(fresh, capture(env))
    assert fresh.held[0] == 1
    assert fresh.held[1] is fresh.held
    assert fresh.held[2] is fresh


def test_windows_are_no_state():
    surface = type("Surface", (), {"__module__": "pygame.surface"})
    env, fresh = make("CartPole-v1"), make("CartPole-v1")
    env.unwrapped.screen = surface()
    env.unwrapped.surf = surface()  # which an environment that never drew does not have
    assert_goes_on_alike(env, fresh)
    assert fresh.unwrapped.screen is None
    assert "surf" not in vars(fresh.unwrapped)
    restore(env, capture(fresh))
    assert isinstance(env.unwrapped.screen, surface)


@pytest.mark.parametrize("attribute", ["moves", "action_space"])
def test_what_is_matched_has_to_be_in_place(attribute):
    fresh = Plain()
    setattr(fresh, attribute, None)
    before = dict(vars(fresh))
    with pytest.raises(ValueError, match="not where it was captured"):
        restore(fresh, capture(holding(1)))
    assert vars(fresh) == before


@pytest.mark.parametrize("missing", [("weather",), ("phase",), ("weather", "phase")])
def test_objects_and_members_that_are_not_in_place_are_made_anew(missing):
    env, fresh = holding([1, 2]), Plain()
    for attribute in missing:
        setattr(fresh, attribute, Clock() if attribute == "weather" else None)
    restore(fresh, capture(env))
    assert type(fresh.weather) is Weather
    assert fresh.phase is env.phase
    assert fresh.weather.wind == env.weather.wind
    assert fresh.weather.history is fresh.position  # one array, as before
    assert fresh.weather is not env.weather


class Clock:
    """Code runs when it is made or dropped."""

    dropped = 0

    def __init__(self):
        self.time = 0

    def __del__(self):
        Clock.dropped += 1


class Logging:
    def __init__(self):
        self.log = logging.getLogger("a game")


class Sealed:
    def __new__(cls):
        raise AssertionError("code runs")

    def __init__(self):
        raise AssertionError("code runs")


@pytest.mark.parametrize(
    "make_one",
    [Clock, Logging, lambda: type("Local", (), {})(), lambda: argparse.Namespace(a=1)],
    ids=["dropped", "logging", "local", "other package"],
)
def test_objects_of_other_classes_have_to_be_in_place(make_one):
    env, fresh = holding(1), Plain()
    env.extra = make_one()
    snapshot = capture(env)
    before = dict(vars(fresh))
    with pytest.raises(ValueError, match="not where it was captured"):
        restore(fresh, snapshot)
    assert vars(fresh) == before
    fresh.extra = make_one()
    restore(fresh, snapshot)
    assert type(fresh.extra).__name__ == type(env.extra).__name__


def test_no_code_runs_for_an_object_that_is_made_anew():
    env, fresh = holding(1), Plain()
    env.extra = object.__new__(Sealed)
    env.extra.number = 3
    restore(fresh, capture(env))
    assert type(fresh.extra) is Sealed
    assert vars(fresh.extra) == {"number": 3}


@pytest.mark.parametrize(
    "name",
    ["subprocess.Popen", "os.system", "collections.OrderedDict", "test_snapshot.np.ndarray", "test_snapshot", ""],
)
def test_a_snapshot_makes_nothing_that_it_is_not_to_make(name):
    snapshot = capture(holding(1))
    snapshot[-1][1]["weather"] = {"object": [name, {}]}
    with pytest.raises(ValueError, match="not where it was captured"):
        restore(Plain(), snapshot)


def test_a_function_with_other_numbers_in_it_is_not_the_same():
    """Made in a reset, it has the episode's goal inside, which no name tells."""

    def closure(goal):
        return lambda value: abs(value - goal)

    def default(goal):
        def reward(value, goal=goal):
            return abs(value - goal)

        return reward

    def bound(goal):
        return functools.partial(default(0.0), goal=goal)

    def keyword(goal):
        def reward(value, *, goal=goal):
            return abs(value - goal)

        return reward

    def chosen(goal):
        member = Side.LEFT if goal < 0.15 else Side.RIGHT
        return lambda value: member

    def attribute(goal):
        function = default(0.0)
        function.goal = goal
        return function

    points = functools.partial(functools.partial, math.dist)
    for make_function in (lambda goal: points((goal,)), closure, default, bound, keyword, chosen, attribute):
        env, fresh = Plain(), Plain()
        env.reward, fresh.reward = make_function(0.1), make_function(0.1)
        restore(fresh, capture(env))
        fresh.reward = make_function(0.2)
        with pytest.raises(ValueError, match="other numbers"):
            restore(fresh, capture(env))


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Ground(enum.Enum):
    """Its members have an address in their names."""

    ICE = object()


def test_a_function_made_by_another_process_is_the_same(tmp_path):
    code = "from test_snapshot import captured_functions; print(captured_functions())"
    folder = Path(__file__).parent
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, check=True).stdout
        for _ in range(2)
    ]
    assert said[0] == said[1] != ""


def captured_functions():
    """What a capture says of functions with an enum and with the name of a process's own file inside."""
    parts = (functools.partial(math.dist, Ground.ICE), functools.partial(math.dist, f"/tmp/log-{os.getpid()}"))
    return [introspection.constants(part) for part in parts]


def test_functions_captured_before_their_numbers_were_are_taken_as_they_are():
    env, fresh = Plain(), Plain()
    env.reward, fresh.reward = (functools.partial(math.dist, (goal,)) for goal in (0.1, 0.2))
    snapshot_before = copy.deepcopy(capture(env))

    def strip(node):
        if isinstance(node, dict) and "function" in node:
            node["function"] = node["function"][:1]
        for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            strip(item)

    strip(snapshot_before)
    restore(fresh, snapshot_before)


def test_another_environment_is_refused():
    with pytest.raises(ValueError, match="other layers"):
        restore(make("CartPole-v1"), capture(make("Pendulum-v1")))
    with pytest.raises(ValueError, match="other layers"):
        restore(make("CartPole-v1"), capture(make("CartPole-v1", disable_env_checker=True)))


def places(tree, path=()):
    yield path
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield from places(value, (*path, key))


WRONG = [
    None,
    -1,
    10**40,
    math.nan,
    "x",
    [],
    {},
    {"same": 10**6},
    {"dict": [[[], 1]]},
    {"": 1},
    np.zeros(2),
    b"",
    object(),
]
WRONG += [{"object": ["os.system", {}]}, {"array": ["|O", [1], [0], np.zeros(8, np.uint8)]}, {"tuple": 3}, {1: 2, 3: 4}]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_broken_snapshot_is_restored_or_refused_in_one_line(data):
    snapshot = copy.deepcopy(SNAPSHOT)
    path = data.draw(st.sampled_from(PLACES))
    wrong = data.draw(st.sampled_from(WRONG))
    target = functools.reduce(lambda node, key: node[key], path[:-1], snapshot)
    if path:
        target[path[-1]] = wrong
    env = Plain()
    before = dict(vars(env))
    refusal = None
    try:
        restore(env, snapshot if path else wrong)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert "\n" not in refusal
        assert vars(env).keys() == before.keys()
        assert all(vars(env)[name] is value for name, value in before.items())


SNAPSHOT = capture(holding([1, 2]))
PLACES = list(places(SNAPSHOT))


@pytest.mark.parametrize("wrong", [None, 3, "x", {}, [], [[]], [["CartPole", {}]]])
def test_no_snapshot_at_all_is_refused(wrong):
    with pytest.raises(ValueError, match="snapshot does not fit CartPoleEnv"):
        restore(make("CartPole-v1"), wrong)


def test_a_simulation_state_of_another_size_is_refused():
    env = make("Hopper-v5")
    snapshot = capture(env)
    snapshot[-1][1]["data"]["mujoco"][1] = np.zeros(3)
    with pytest.raises(ValueError, match="another size"):
        restore(env, snapshot)
