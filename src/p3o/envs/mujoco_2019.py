"""Ant and Humanoid as they were in 2019, for the comparison with the paper: `p3o/Ant-v2` and `p3o/Humanoid-v2`.

The paper's runs used the -v2 tasks, most likely under MuJoCo 2.0, which left the contact forces at zero. Of Gymnasium's
-v4 tasks six are still the same, but that InvertedPendulum's force is now held within ±3; in these two the 84 force
readings differ (Ant lacks them, Humanoid has live ones), and the engine now charges Humanoid for the control that was
asked for, not for the one within the actuators' limits.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.mujoco.ant_v4 import AntEnv
from gymnasium.envs.mujoco.humanoid_v4 import HumanoidEnv

NUM_FORCES = 84  # six numbers for each of 14 bodies


class Ant2019(AntEnv):
    """Ant-v4 with the 84 zeros that stood for contact forces: 111 numbers."""

    def __init__(self, **kwargs: Any):
        self.forces = np.zeros(NUM_FORCES)
        super().__init__(**kwargs)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, self._get_obs().shape, np.float64)

    def _get_obs(self) -> np.ndarray:
        return np.concatenate((super()._get_obs(), self.forces))


class Humanoid2019(HumanoidEnv):
    """Humanoid-v4 without contact forces, its controls held within their limits before they are paid for."""

    def __init__(self, **kwargs: Any):
        self.forces = np.zeros(NUM_FORCES)
        super().__init__(**kwargs)

    def _get_obs(self) -> np.ndarray:
        observation = super()._get_obs()
        observation[-NUM_FORCES:] = self.forces
        return observation

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return super().step(np.clip(action, self.action_space.low, self.action_space.high))


IDS = {"p3o/Ant-v2": Ant2019, "p3o/Humanoid-v2": Humanoid2019}


def register() -> None:
    """Make the two known to Gymnasium."""
    for env_id, kind in IDS.items():
        if env_id not in gym.registry:
            gym.register(env_id, f"{kind.__module__}:{kind.__name__}", max_episode_steps=1000)
