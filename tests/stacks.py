"""A vector environment with stacks of frames as Atari's, made up: frames and ends follow from actions and a seed."""

from typing import Any

import numpy as np
from gymnasium import spaces

from p3o import algorithms
from p3o.algorithms import Specs
from p3o.config import make_config
from p3o.placement import jit_update
from p3o.rollout import Actor
from p3o.spaces import action_spec, observation_spec
from p3o.train import Trainer
from p3o.types import Observation, Step

SIDE, STACK = 36, 4  # the smallest image the convolutions take
SETTINGS: dict[str, Any] = {
    "num_envs": 3,
    "num_steps": 5,
    "conv_channels": (2, 3, 2),
    "conv_features": 6,
    "shared_trunk": True,
    "policy_head_gain": 3.0,  # so that actions depend on what is seen
    "normalize_observation": False,
    "normalize_reward": False,
    "learning_rate": 1e-2,
}
REPLAYING: dict[str, Any] = {"replay_size": 20, "burn_in": 5, "off_policy_updates": 1.5}  # a ring of four rollouts
BY_ALGORITHM: dict[str, dict[str, Any]] = {
    "p3o": {**REPLAYING, "replay_samples": 2},
    "acer": REPLAYING,
    "ppo": {"num_epochs": 2, "num_minibatches": 3},
    "a2c": {},
}


compiled: dict[Any, Any] = {}
PARTS = ("_calls", "_join")


class StackEnv:
    """Frames of noise with the last action in a corner; episodes end often, also twice in a row."""

    def __init__(self, num_envs: int, seed: int = 0, ends: float = 0.25):
        self.num_envs, self.ends = num_envs, ends
        self.observation_space = spaces.Box(0, 255, (SIDE, SIDE, STACK), np.uint8)
        self.action_space = spaces.Discrete(4)
        self.is_waiting = np.zeros(num_envs, bool)
        self.rng = np.random.default_rng(seed)
        self.stack = np.zeros((num_envs, SIDE, SIDE, STACK), np.uint8)
        self.last = np.zeros(num_envs, np.int64)

    def reset(self) -> Observation:
        self._push(np.ones(self.num_envs, bool))
        return self.current()

    def _push(self, is_start: np.ndarray) -> None:
        frame = self.rng.integers(1, 256, (self.num_envs, SIDE, SIDE), np.uint8)
        frame[:, :8, :8] = 60 * self.last[:, None, None] + 1
        self.stack[..., :-1] = self.stack[..., 1:] * ~is_start[:, None, None, None]
        self.stack[..., -1] = frame

    def step(self, action: np.ndarray) -> Step:
        self.last = np.asarray(action, np.int64)
        chance = self.rng.random(self.num_envs)
        terminated, truncated = chance < self.ends / 2, (chance >= self.ends / 2) & (chance < self.ends)
        before = self.stack.copy()
        self._push(np.zeros(self.num_envs, bool))
        final = self.stack.copy()
        is_end = terminated | truncated
        self.stack[:] = before
        self._push(is_end)
        reward = self.rng.normal(size=self.num_envs) + self.last
        is_masked = self.is_waiting.copy()
        self.is_waiting = self.rng.random(self.num_envs) < 0.2
        finals = Observation(None, (final,))
        return Step(self.current(), reward, terminated, truncated, finals, is_masked)

    def current(self) -> Observation:
        return Observation(None, (self.stack,))

    def snapshot(self) -> dict[str, Any]:
        state = self.rng.bit_generator.state
        return {"rng": state, "stack": self.stack.copy(), "last": self.last.copy(), "waiting": self.is_waiting.copy()}

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        self.rng.bit_generator.state = snapshot["rng"]
        self.stack, self.last = snapshot["stack"].copy(), snapshot["last"].copy()
        self.is_waiting = snapshot["waiting"].copy()
        return []

    def close(self) -> None:
        pass


def specs_of(frame_stack: int = STACK) -> Specs:
    env = StackEnv(1)
    spec = observation_spec(env.observation_space)._replace(frame_stack=frame_stack)
    return Specs(spec, action_spec(env.action_space))


def make_trainer(
    algo: str, frame_stack: int = STACK, seed: int = 0, ends: float = 0.25, is_plain: bool = True, **settings: Any
) -> Trainer:
    """A trainer on frames kept once, or (`frame_stack` 0) on whole stacks, acted on in the plain way if `is_plain`.

    Its functions are compiled once for all tests.
    """
    entry = algorithms.find(algo)
    config = make_config(entry.config, SETTINGS, BY_ALGORITHM[algo], settings)
    trainer = Trainer(entry, config, StackEnv(config.num_envs, seed, ends), specs_of(frame_stack), seed)
    is_on_device = bool(frame_stack) or not is_plain
    if not is_on_device:
        trainer.actor = Actor(trainer.algorithm.policy, trainer.specs)
    what = (algo, frame_stack, is_on_device, config)
    if what not in compiled:
        actor: Any = trainer.actor
        update = trainer._compile() if trainer.memory is None else jit_update(trainer.algorithm)
        compiled[what] = (update, [vars(actor).get(name) for name in PARTS])
    trainer._update = compiled[what][0]
    if is_on_device:
        vars(trainer.actor).update(zip(PARTS, compiled[what][1], strict=True))
    return trainer
