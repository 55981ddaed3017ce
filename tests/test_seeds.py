"""Randomness: a seed decides everything, and neighbouring seeds share nothing."""

import gymnasium as gym
import numpy as np
from commands import TINY_SETTINGS

from p3o import P3O, seeds


class Counter(gym.Env):
    """Writes down the seeds it is given."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    given: list[int | None]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        type(self).given.append(seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 1.0, bool(self.np_random.random() < 0.2), False, {}


def seeds_given(seed, **settings):
    Counter.given = []
    P3O(Counter, seed=seed, **(TINY_SETTINGS | settings)).learn(64)
    return [given for given in Counter.given if given is not None]


def test_streams_of_a_seed_differ_from_each_other_and_from_its_neighbours():
    states = [tuple(stream.generate_state(4)) for seed in range(20) for stream in seeds.derive(seed)]
    assert len(set(states)) == len(states)


def test_neighbouring_seeds_share_no_environment_seed():
    given = [seeds_given(seed, num_envs=8) for seed in range(4)]
    assert all(len(one) >= 8 for one in given)
    together = [value for one in given for value in one]
    assert len(set(together)) == len(together)


def test_the_same_seed_gives_the_same_run():
    def weights(seed):
        agent = P3O("CartPole-v1", seed=seed, **TINY_SETTINGS).learn(128)
        observations = np.linspace(-1, 1, 40).reshape(10, 4)
        return agent.mean_return, agent.predict(observations)[0].tolist(), agent._loaded.params["policy"]["vector"][0]

    one, same, other = weights(5), weights(5), weights(6)
    assert one[:2] == same[:2]
    assert np.array_equal(one[2]["weight"], same[2]["weight"])
    assert not np.array_equal(one[2]["weight"], other[2]["weight"])


def test_members_of_one_run_get_seeds_of_their_own():
    given = seeds_given(0, num_envs=16)
    assert len(set(given)) == len(given) >= 16
