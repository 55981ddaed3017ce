"""Environments whose observations are pictures, and what a row can say about games: a few iterations on the CPU."""

import gymnasium as gym
import numpy as np
import pytest

from p3o import A2C, P3O, PPO
from p3o.algorithms import ALGORITHMS, Specs
from p3o.config import make_config
from p3o.envs.gymnasium_env import HostVectorEnv
from p3o.normalize import Normalizer
from p3o.presets import preset_settings
from p3o.rollout import Rollout
from p3o.spaces import action_spec, observation_spec
from p3o.types import Observation, Step

SMALL = {"num_envs": 2, "num_steps": 8, "conv_channels": (4, 4, 4), "conv_features": 16}


class Rooms(gym.Env):
    """Like MiniGrid's: a small picture of three colours, a mission in a Discrete, few actions."""

    observation_space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8), "direction": gym.spaces.Discrete(4)}
    )
    action_space = gym.spaces.Discrete(3)

    def _observe(self):
        image = np.zeros((40, 40, 3), np.uint8)
        image[10 * self.at, :, 1] = 255
        return {"image": image, "direction": self.at}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.steps = 0, 0
        return self._observe(), {}

    def step(self, action):
        self.steps += 1
        self.at = int(np.clip(self.at + action - 1, 0, 3))
        return self._observe(), float(self.at == 3), self.at == 3, self.steps >= 12, {}


@pytest.mark.parametrize("kind", [P3O, A2C, PPO])
def test_small_pictures(kind):
    more = {"replay_size": 32, "burn_in": 16, "replay_samples": 2} if kind is P3O else {}
    agent = kind(Rooms, **SMALL, **more).learn(64)
    assert agent.num_timesteps >= 64
    env = Rooms()
    assert env.action_space.contains(int(agent.predict(env.reset()[0])[0]))


def test_car_racing():
    pytest.importorskip("Box2D", reason="box2d: not installed")
    pytest.importorskip("pygame", reason="box2d: pygame is not installed")
    agent = P3O("CarRacing-v3", **SMALL, replay_size=32, burn_in=16, replay_samples=2).learn(48)
    assert agent.num_timesteps >= 48


class Script:
    """Rows written beforehand: reward, terminated, masked, end of a game."""

    rows = (  # of one environment
        (5.0, False, True, False),
        (-2.0, False, False, False),
        (0.0, True, False, False),  # a life is lost
        (3.0, False, True, False),
        (1.0, True, False, True),  # the game is over
        (7.0, False, False, False),
        (0.5, False, False, False),
        (0.0, False, False, False),
    )
    num_envs = 1
    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, has_games):
        self.is_waiting, self.at, self.has_games = np.array([True]), 0, has_games
        self.current = Observation(np.zeros((1, 2)), ())

    def reset(self):
        return self.current

    def step(self, action):
        reward, is_terminated, is_masked, is_over = self.rows[self.at]
        self.at += 1
        no = np.array([False])
        game_end = np.array([is_over]) if self.has_games else None
        flags = np.array([is_terminated]), no, self.current, np.array([is_masked]), False, game_end
        return Step(self.current, np.array([reward]), *flags)


@pytest.mark.parametrize("has_games", [True, False])
def test_scores_are_of_whole_games_and_raw_while_signs_are_learned(has_games):
    config = make_config(
        ALGORITHMS["a2c"].config,
        {"num_envs": 1, "num_steps": 8, "normalize_reward": False, "reward_transform": "sign"},
    )
    env = Script(has_games)
    specs = Specs(observation_spec(env.observation_space), action_spec(env.action_space))
    rollout = Rollout(config, specs, env, Normalizer(2, 1, 0.99, False, False))
    rollout.start()
    trajectory, step, episodes = rollout.collect(
        lambda observation: specs.action.distribution(np.zeros((1, 2), np.float32), None), np.random.default_rng(0), 0
    )
    assert trajectory.reward[:, 0].tolist() == [1, -1, 0, 1, 1, 1, 1, 0]
    assert trajectory.terminated[:, 0].tolist() == [row[1] for row in env.rows]
    assert step == 6  # two rows were no decisions
    found = [(episode.step, episode.total, episode.length) for episode in episodes]
    # the whole game: 5 - 2 + 0 + 3 + 1 in three steps; or each end by itself
    assert found == ([(3, 7.0, 3)] if has_games else [(2, 3.0, 2), (3, 4.0, 1)])
    assert (rollout.returns[0], rollout.lengths[0]) == (7.5, 3)


def test_pictures_are_no_frame_stack_unless_the_environment_says_so():
    assert observation_spec(Rooms.observation_space).frame_stack == 0
    assert HostVectorEnv(Rooms, 1, np.random.SeedSequence(0)).reset().images[0].shape == (1, 40, 40, 3)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize(
    ("preset", "kind", "is_game", "transform", "is_normalized"),
    [
        ("paper", "image", True, "sign", False),
        ("paper", "vector", False, "raw", True),
        ("default", "image", True, "sign", False),
        ("default", "image", False, "raw", True),
        ("default", "vector", False, "raw", True),
    ],
)
def test_where_signs_are_learned(algo, preset, kind, is_game, transform, is_normalized):
    config = make_config(ALGORITHMS[algo].config, preset_settings(algo, preset, kind, "categorical", is_game))
    assert (config.reward_transform, config.normalize_reward) == (transform, is_normalized)
