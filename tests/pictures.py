"""A small image environment under an id, for runs that other processes start: `pictures:Pictures-v0`."""

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Pictures(gym.Env):
    """Noise with the last action in a corner; an episode ends by chance."""

    def __init__(self):
        self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        self.action_space = spaces.Discrete(2)
        self.last = 0

    def _picture(self):
        picture = self.np_random.integers(0, 256, (36, 36, 1), np.uint8)
        picture[:8, :8] = 255 * self.last
        return picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._picture(), {}

    def step(self, action):
        self.last = int(action)
        return self._picture(), float(action), self.np_random.random() < 0.1, False, {}


if "Pictures-v0" not in gym.registry:
    gym.register("Pictures-v0", Pictures, max_episode_steps=30)
