"""Five environments whose values and best actions are known, and a way to run any registered algorithm on them.

Each adds one thing that can be wrong: the value loss, reading the observation, discounting and bootstrapping, the
policy gradient, and all of them together. Every one comes with two discrete actions or one continuous action.
"""

import dataclasses
import functools
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from p3o.algorithms import ALGORITHMS, Specs
from p3o.config import make_config
from p3o.envs.gymnasium_env import HostVectorEnv
from p3o.networks import make_network
from p3o.spaces import action_spec, observation_spec
from p3o.train import Trainer
from p3o.types import Observation

GAMMA = 0.5
ACTIONS = {"discrete": spaces.Discrete(2), "continuous": spaces.Box(-10, 10, (1,))}


def sign(action: Any) -> float:
    """An action as −1 or 1: the second of two, or a positive number, is 1."""
    return 1.0 if np.ravel(action)[0] > 0 else -1.0


class Probe(gym.Env):
    """Episodes of one step (two in `TwoSteps`); observations are one number, rewards lie in [−1, 1]."""

    values: ClassVar[dict[float, float]] = {}  # of each observation, under the best policy
    best: ClassVar[dict[float, float]] = {}  # the best action's sign at each observation, where it matters

    def __init__(self, actions: str):
        self.observation_space = spaces.Box(-1, 1, (1,))
        self.action_space = ACTIONS[actions]
        self.state = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = self.first()
        return np.array([self.state], np.float32), {}

    def step(self, action):
        reward = self.reward(sign(action))
        self.state, is_end = self.following()
        return np.array([self.state], np.float32), reward, is_end, False, {}

    def first(self) -> float:
        return 0.0

    def following(self) -> tuple[float, bool]:
        return self.state, True

    def reward(self, action: float) -> float:
        return 1.0


class Constant(Probe):
    """One observation, one step, reward 1: the value is 1."""

    values: ClassVar = {0.0: 1.0}


class ObservationDependent(Probe):
    """The reward is the observation, −1 or 1."""

    values: ClassVar = {-1.0: -1.0, 1.0: 1.0}

    def first(self):
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action):
        return self.state


class TwoSteps(Probe):
    """Observation −1, then 1, and a reward of 1 at the end: the values are γ and 1."""

    values: ClassVar = {-1.0: GAMMA, 1.0: 1.0}

    def first(self):
        return -1.0

    def following(self):
        return (1.0, False) if self.state < 0 else (self.state, True)

    def reward(self, action):
        return 1.0 if self.state > 0 else 0.0


class ActionDependent(Probe):
    """The reward is the action's sign."""

    values: ClassVar = {0.0: 1.0}
    best: ClassVar = {0.0: 1.0}

    def reward(self, action):
        return action


class Both(Probe):
    """The reward is 1 where the action's sign is the observation's, else −1."""

    values: ClassVar = {-1.0: 1.0, 1.0: 1.0}
    best: ClassVar = {-1.0: -1.0, 1.0: 1.0}

    def first(self):
        return float(self.np_random.choice([-1.0, 1.0]))

    def reward(self, action):
        return action * self.state


PROBES = {probe.__name__: probe for probe in (Constant, ObservationDependent, TwoSteps, ActionDependent, Both)}

# Small, quick, and without normalisation: the known values are those of raw rewards. Each algorithm takes what it has.
SETTINGS: dict[str, Any] = {
    "num_envs": 8,
    "num_steps": 8,
    "hidden_sizes": (16,),
    "gamma": GAMMA,
    "learning_rate": 0.02,
    "lr_schedule": "constant",
    "optimizer": "adam",
    "max_grad_norm": 10.0,
    "value_coef": 0.5,
    "entropy_coef": 0.0,
    "normalize_observation": False,
    "normalize_reward": False,
    "policy_head_gain": 0.01,
    "replay_size": 80,
    "burn_in": 16,
    "replay_samples": 1,
    "num_epochs": 2,
    "num_minibatches": 2,
}
# What single algorithms need beyond that.
OWN_SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"clip_value": False},
}


def settings_for(algo: str, **overrides: Any) -> dict[str, Any]:
    """Those of the common settings that the algorithm has."""
    names = {field.name for field in dataclasses.fields(ALGORITHMS[algo].config)}
    common = {name: value for name, value in SETTINGS.items() if name in names}
    return {**common, **OWN_SETTINGS.get(algo, {}), **overrides}


def make_trainer(algo: str, make_env: Any, seed: int = 0, **overrides: Any) -> Trainer:
    """A trainer of an algorithm on any environment; UserError where it refuses the environment's spaces."""
    config = make_config(ALGORITHMS[algo].config, settings_for(algo, **overrides))
    env = HostVectorEnv(make_env, config.num_envs, np.random.SeedSequence(seed))
    specs = Specs(observation_spec(env.observation_space), action_spec(env.action_space))
    return Trainer(ALGORITHMS[algo], config, env, specs, seed)


# Updates by algorithm and actions: probes, and environments like them, differ in nothing that is compiled.
compiled: dict[tuple[str, str], Any] = {}


class Outcome(NamedTuple):
    """What was learned, at each observation that the probe can show."""

    values: dict[float, float]
    actions: dict[float, float]


def learn(algo: str, probe: str, actions: str, iterations: int) -> Outcome:
    """Train on a probe and read the value and the preferred action at each of its observations."""
    trainer = make_trainer(algo, functools.partial(PROBES[probe], actions))
    trainer._update = compiled.get((algo, actions))
    for _ in range(iterations):
        trainer.iterate(schedule_steps=1_000_000)
    compiled[algo, actions] = trainer._update
    seen = sorted(PROBES[probe].values)
    observation = Observation(np.array(seen, np.float32)[:, None], ())
    policy = trainer.actor(observation)
    values: ClassVar = VALUES.get(algo, values_of_network)(trainer, observation)
    return Outcome(
        dict(zip(seen, np.asarray(values).tolist(), strict=True)),
        dict(zip(seen, [sign(action) for action in policy.mode()], strict=True)),
    )


def values_of_network(trainer: Trainer, observation: Observation) -> np.ndarray:
    """V(s), from the value head or, where there is a Q head, as Σ π Q."""
    params: Any = trainer.actor._params
    is_q = params["value_head"]["bias"].size > 1
    network = make_network(trainer.specs.observation, trainer.specs.action, trainer.config, is_q)
    values: ClassVar = network.value(params, observation)
    if is_q:
        policy: Any = network.policy(params, observation)
        values = (policy.probs() * values).sum(-1)
    return values


# Algorithms that keep their values elsewhere: name -> function of (trainer, observation).
VALUES: dict[str, Any] = {}
