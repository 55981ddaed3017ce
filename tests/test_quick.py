"""The quick ways are held equal to the plain ones, bit by bit."""

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from p3o.envs import mujoco_steps
from p3o.envs.gymnasium_env import HostVectorEnv
from p3o.envs.making import make_env
from p3o.jobs import Job, set_up
from p3o.normalize import Normalizer
from p3o.rollout import Actor
from p3o.spaces import action_mapper, action_spec

TASKS = (
    "HalfCheetah",
    "Swimmer",
    "Hopper",
    "Walker2d",
    "InvertedPendulum",
    "InvertedDoublePendulum",
    "Ant",
    "Humanoid",
)
IDS = [f"{name}-{version}" for name in TASKS for version in ("v4", "v5")] + ["p3o/Ant-v2", "p3o/Humanoid-v2"]
WITH_SETTINGS = [
    ("HalfCheetah-v5", {"exclude_current_positions_from_observation": False, "forward_reward_weight": 0.7}),
    ("Swimmer-v5", {"exclude_current_positions_from_observation": False, "ctrl_cost_weight": 0.3}),
    ("Hopper-v5", {"terminate_when_unhealthy": False, "healthy_reward": 2.5}),
    ("Hopper-v4", {"healthy_state_range": (-3.0, 3.0)}),
    ("Walker2d-v4", {"terminate_when_unhealthy": False, "healthy_z_range": (1.1, 1.3)}),
    ("InvertedDoublePendulum-v5", {"healthy_reward": 3.0}),
    ("Ant-v4", {"use_contact_forces": True}),
    ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.1, "healthy_z_range": (0.4, 0.8)}),
    ("Humanoid-v5", {"include_cvel_in_observation": False, "contact_cost_range": (0.0, 0.5)}),
]


@pytest.mark.parametrize(("env_id", "kwargs"), [(env_id, {}) for env_id in IDS] + WITH_SETTINGS)
def test_a_mujoco_task_stepped_quickly_is_the_task(env_id: str, kwargs: dict) -> None:
    pytest.importorskip("mujoco")
    quick, plain = make_env(env_id, kwargs), make_env(env_id, kwargs)
    rows, reward = np.full((1, *quick.observation_space.shape), np.nan), np.empty(1)  # type: ignore[misc]
    steps = mujoco_steps.make_steps([quick], rows)
    assert steps is not None
    rng = np.random.default_rng(1)
    low, high = quick.action_space.low, quick.action_space.high  # type: ignore[attr-defined]
    quick.reset(seed=3)
    plain.reset(seed=3)
    ends = 0
    for t in range(1_100):
        size = 0.0 if t < 50 else rng.uniform(0, 2)  # beyond the box too: the tasks themselves do not clip
        action = (size * rng.uniform(low, high, (1, *low.shape))).astype(low.dtype)
        ended = steps.step(action, reward)
        observation, gained, is_terminated, is_truncated, _ = plain.step(action[0])
        assert rows[0].tobytes() == observation.tobytes()
        assert reward[0] == gained
        assert ended == ([(0, is_terminated)] if is_terminated or is_truncated else [])
        if ended:
            ends += 1
            quick.reset()
            plain.reset()
    assert ends > 0


def test_wrapped_and_foreign_tasks_are_stepped_as_they_are() -> None:
    pytest.importorskip("mujoco")

    class Doubled(gym.RewardWrapper):
        def reward(self, reward: float) -> float:  # type: ignore[override]
            return 2 * reward

    for make in (lambda: Doubled(make_env("HalfCheetah-v5", {})), lambda: make_env("Reacher-v5", {})):
        env = HostVectorEnv(make, 2, np.random.SeedSequence(0))
        assert env._quick_steps is None
    assert HostVectorEnv(lambda: make_env("Ant-v5", {}), 2, np.random.SeedSequence(0))._quick_steps is not None


def test_environments_of_one_kind_may_differ_in_their_settings() -> None:
    """A function may draw them: each is paid by its own weights."""
    pytest.importorskip("mujoco")

    def drawn(weights: list[float]) -> HostVectorEnv:
        left = [*weights]
        make = lambda: make_env("HalfCheetah-v5", {"ctrl_cost_weight": left.pop(0)})  # noqa: E731
        return HostVectorEnv(make, len(weights), np.random.SeedSequence(0))

    quick, plain = drawn([0.1, 5.0]), drawn([0.1, 5.0])
    assert quick._quick_steps is not None
    plain._quick_steps = None
    quick.reset()
    plain.reset()
    action = np.full((2, 6), 0.8, np.float32)
    for _ in range(5):
        rewards = [env.step(action).reward for env in (quick, plain)]
        assert rewards[0].tolist() == rewards[1].tolist()
    assert rewards[0][1] < rewards[0][0] - 10


def test_hooks_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who replaced a method, of one environment or of the class, wants it called."""
    pytest.importorskip("mujoco")
    from gymnasium.envs.mujoco.ant_v5 import AntEnv

    def hooked() -> gym.Env:
        env = make_env("Ant-v5", {})
        step = env.unwrapped.step
        env.unwrapped.step = lambda action: step(action)  # type: ignore[method-assign]
        return env

    assert HostVectorEnv(hooked, 1, np.random.SeedSequence(0))._quick_steps is None
    monkeypatch.setattr(AntEnv, "is_healthy", property(lambda self: True))
    assert HostVectorEnv(lambda: make_env("Ant-v5", {}), 1, np.random.SeedSequence(0))._quick_steps is None


def test_a_task_that_cannot_be_snapshotted_keeps_its_actions() -> None:
    """It is brought back by playing its episode again, so somebody has to write the actions down."""
    pytest.importorskip("mujoco")
    import threading

    def locked() -> gym.Env:
        env = make_env("Hopper-v5", {})
        env.unwrapped.lock = threading.Lock()  # type: ignore[attr-defined]
        return env

    env, other = (HostVectorEnv(locked, 1, np.random.SeedSequence(0)) for _ in range(2))
    env.reset()
    action = np.full((1, 3), 0.1, np.float32)
    for _ in range(7):
        env.step(action)
    other.reset()
    assert other.restore(env.snapshot()) == []
    assert env.step(action).reward.tolist() == other.step(action).reward.tolist()


def test_a_box_without_bounds_is_stepped_as_it_is() -> None:
    pytest.importorskip("mujoco")

    def unbounded() -> gym.Env:
        env = make_env("Hopper-v5", {})
        env.unwrapped.action_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        return env

    assert HostVectorEnv(unbounded, 1, np.random.SeedSequence(0))._quick_steps is None


def test_a_task_whose_reward_has_changed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco")
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv

    plain = HalfCheetahEnv.control_cost
    changed = lambda self, action: 2 * plain(self, action)  # noqa: E731
    changed.__module__ = HalfCheetahEnv.__module__  # as another version of Gymnasium would have it
    monkeypatch.setattr(HalfCheetahEnv, "control_cost", changed)
    assert HostVectorEnv(lambda: make_env("HalfCheetah-v5", {}), 1, np.random.SeedSequence(0))._quick_steps is None


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_the_quick_observer_is_the_normaliser(num_envs: int, size: int) -> None:
    rng = np.random.default_rng(num_envs)
    quick, plain = (Normalizer(size, num_envs, 0.99, True, True) for _ in range(2))
    out = np.empty((num_envs, size), np.float32)
    for t in range(300):
        batch = rng.normal(3.0, 2.0, (num_envs, size))
        if t % 50 == 40:
            batch[0, 0] = 1e6  # has to be clipped
        if t == 100:  # the plain way in between, as where episodes end
            assert np.array_equal(quick.observe(batch), plain.observe(batch))
            continue
        quick.observe_all(batch, out)
        assert out.tobytes() == plain.observe(batch).tobytes()
        assert np.abs(out).max() <= 10
    assert all(np.array_equal(a, b) for a, b in zip(quick.state(), plain.state(), strict=True))


def test_the_quick_observer_lets_nan_through() -> None:
    normalizer = Normalizer(3, 2, 0.99, True, True)
    out = np.empty((2, 3), np.float32)
    normalizer.observe_all(np.array([[1.0, np.nan, 2.0], [0.0, 1.0, 2.0]]), out)
    assert np.isnan(out[:, 1]).all()


def rollouts(env_id: str, algo: str, settings: dict, is_quick: bool) -> list[tuple]:
    trainer = set_up(Job(env_id, algo, 10_000, settings=settings)).trainer
    assert trainer.actor.quick is not None
    assert (trainer.env._quick_steps is not None) == (env_id.split("-")[0] in TASKS)  # type: ignore[attr-defined]
    if not is_quick:
        trainer.actor = Actor(trainer.algorithm.policy, trainer.specs)
        trainer.env._quick_steps = None  # type: ignore[attr-defined]
    trainer.rollout.start()
    trainer.actor.set_params(trainer.state.params)
    found = []
    for _ in range(4):
        trajectory, trainer.step, episodes = trainer.rollout.collect(trainer.actor, trainer.act_rng, trainer.step)
        leaves = [leaf.copy() for leaf in jax.tree.leaves(trajectory)]
        found.append((leaves, episodes, trainer.rollout.observation.vector.copy()))  # type: ignore[union-attr]
    return found


@pytest.mark.parametrize(
    ("env_id", "algo", "settings"),
    [
        ("HalfCheetah-v5", "p3o", {"num_envs": 2, "num_steps": 300}),
        ("Hopper-v5", "ppo", {"num_envs": 1, "num_steps": 256}),
        ("Hopper-v4", "a2c", {"num_envs": 8, "num_steps": 64, "normalize_observation": False}),
        ("CartPole-v1", "acer", {"num_envs": 3, "num_steps": 64}),
        ("Pendulum-v1", "p3o", {"num_envs": 2, "num_steps": 150, "action_scale": "raw", "action_clip": False}),
        ("ManyChoices-v0", "p3o", {"num_envs": 2, "num_steps": 50}),
    ],
)
def test_a_rollout_the_quick_way_is_the_rollout(env_id: str, algo: str, settings: dict) -> None:
    if env_id == "ManyChoices-v0" and env_id not in gym.registry:
        gym.register(env_id, entry_point=ManyChoices, max_episode_steps=20)
    quick, plain = (rollouts(env_id, algo, settings, is_quick) for is_quick in (True, False))
    ends = 0
    for (a, episodes, last), (b, other_episodes, other_last) in zip(quick, plain, strict=True):
        assert [x.tobytes() for x in a] == [x.tobytes() for x in b]
        assert episodes == other_episodes
        assert np.array_equal(last, other_last)
        ends += len(episodes)
    assert ends > 0


class ManyChoices(gym.Env):
    """MultiDiscrete actions: several distributions in one head."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.MultiDiscrete([2, 3, 4])

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32), float(action.sum()), False, False, {}


def test_mapped_actions_are_not_the_learners_own() -> None:
    """An environment may keep or change the array that it is given."""
    spec = action_spec(gym.spaces.Box(-1, 1, (2,), np.float32))
    for scale, clip in (("raw", False), ("raw", True), ("unit", False), ("unit", True)):
        action = np.array([[0.5, -3.0]], np.float32)
        mapped = action_mapper(spec, scale, clip)(action)
        assert not np.shares_memory(mapped, action)
        assert mapped.tolist() == [[0.5, -1.0 if clip else -3.0]]


def test_a_nan_is_told_to_those_who_predict() -> None:
    spec = action_spec(gym.spaces.Box(-1, 1, (2,), np.float32))
    action = np.array([[np.nan, -3.0]], np.float32)
    mapped = action_mapper(spec, "unit", True)(action)
    assert np.isnan(mapped[0, 0])
    assert mapped[0, 1] == -1
    assert action_mapper(spec, "unit", True, keeps_nan=False)(action)[0, 1] == -1


def test_mapped_batches_of_many_sizes_do_not_pile_up() -> None:
    mapper = action_mapper(action_spec(gym.spaces.Box(-1, 1, (2,), np.float32)), "unit", True)
    for number in (1, 2, 3, 2):
        assert mapper(np.full((number, 2), 2.0, np.float32)).tolist() == [[1.0, 1.0]] * number
    held = next(cell.cell_contents for cell in mapper.__closure__ if isinstance(cell.cell_contents, dict))  # type: ignore[union-attr,attr-defined]
    assert list(held) == [2]


@pytest.mark.parametrize("mode", list(gym.vector.AutoresetMode))
def test_a_users_vector_environment_the_quick_way(mode: gym.vector.AutoresetMode) -> None:
    """Masked rows and final observations included."""

    def trainer(is_quick: bool) -> Any:
        make = [lambda: gym.make("CartPole-v1", max_episode_steps=9)] * 3
        made = set_up(Job(gym.vector.SyncVectorEnv(make, autoreset_mode=mode), "p3o", 10_000)).trainer
        if not is_quick:
            made.actor = Actor(made.algorithm.policy, made.specs)
        made.rollout.start()
        made.actor.set_params(made.state.params)
        return made

    quick, plain = trainer(True), trainer(False)
    ends = 0
    for _ in range(3):
        a, b = (t.rollout.collect(t.actor, t.act_rng, 0) for t in (quick, plain))
        assert [x.tobytes() for x in jax.tree.leaves(a[0])] == [x.tobytes() for x in jax.tree.leaves(b[0])]
        assert a[1:] == b[1:]
        ends += int(a[0].truncated.sum())
    assert ends > 0
