"""Gymnasium's own MuJoCo tasks stepped without the Python that they put around the physics: bit-equal, less waiting.

A cheetah's five physics steps take 30 µs; the task's `step` adds 9 µs of views, dictionaries and checks that training
does not read. Each task in `mujoco_tasks` is its observation and reward again, with the environment's own settings as
they are at the start. They are used for exactly these classes inside Gymnasium's standard wrappers, with no method
replaced, and only after `agrees` has seen them give the same numbers as the environment itself; all else goes through
`env.step`.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from p3o.envs.mujoco_tasks import TASKS

CHECKED_STEPS, CHECKED_STEPS_OF_OTHERS = 24, 4


def _physics(task: Any) -> Callable[[np.ndarray], None]:
    import mujoco

    step, after, model, data, frames = (
        mujoco.mj_step,
        mujoco.mj_rnePostConstraint,
        task.model,
        task.data,
        task.frame_skip,
    )
    control = data.ctrl

    def simulate(action: np.ndarray) -> None:
        control[:] = action
        step(model, data, frames)
        after(model, data)

    return simulate


class MujocoSteps:
    """All environments of a list, stepped in turn; observations go to the rows given at the start."""

    def __init__(self, envs: list[gym.Env], rows: np.ndarray):
        self._clocks: list[Any] = envs  # Gymnasium's TimeLimit, which keeps the count of its steps
        tasks = [env.unwrapped for env in envs]
        self._steps = [
            TASKS[type(task).__module__, type(task).__name__](task, row, _physics(task))
            for task, row in zip(tasks, rows, strict=True)
        ]
        weights = [getattr(task, "_ctrl_cost_weight", 0.0) for task in tasks]
        # in the action's own precision, as the tasks have it
        self._cost_weights = np.array(weights, envs[0].action_space.dtype) if any(weights) else None

    def step(self, action: np.ndarray, reward: np.ndarray) -> list[tuple[int, bool]]:
        """Step all; returns (index, terminated) of those that ended."""
        ended = []
        if self._cost_weights is None:
            costs = [0.0] * len(self._steps)
        else:
            costs = (self._cost_weights * np.add.reduce(np.square(action), 1)).tolist()
        for index, step in enumerate(self._steps):
            reward[index], is_terminated = step(action[index], costs[index])
            clock = self._clocks[index]
            clock._elapsed_steps += 1
            if is_terminated or clock._elapsed_steps >= clock._max_episode_steps:
                ended.append((index, is_terminated))
        return ended


def make_steps(envs: list[gym.Env], rows: np.ndarray | None) -> MujocoSteps | None:
    """The quick steps of these environments where there are any and they agree with the environments' own."""
    if rows is None or not all(_is_standard(env) for env in envs):
        return None
    try:
        steps = MujocoSteps(envs, rows)
        is_agreed = agrees(envs[0]) and all(agrees(env, CHECKED_STEPS_OF_OTHERS) for env in envs[1:])
    except Exception:  # another version of the task, or one that fails: its own `step` will tell
        return None
    return steps if is_agreed else None


def _is_standard(env: gym.Env) -> bool:
    if type(env) is not TimeLimit or type(env.env) is not OrderEnforcing or env.env.env is not env.unwrapped:
        return False
    task = env.unwrapped
    is_known = (type(task).__module__, type(task).__name__) in TASKS and task.render_mode is None
    return is_known and not any(_has_replaced_methods(layer) for layer in (env, env.env, task))


def _has_replaced_methods(layer: gym.Env) -> bool:
    """Whether somebody hooked into this environment or its class: a hook wants to be called."""
    if any(callable(value) and callable(getattr(type(layer), name, None)) for name, value in vars(layer).items()):
        return True
    for kind in type(layer).__mro__:
        for member in vars(kind).values() if kind.__module__.startswith("gymnasium.envs.mujoco") else ():
            function = member.fget if isinstance(member, property) else member
            if isinstance(function, FunctionType) and function.__module__ != kind.__module__:
                return True
    return False


def agrees(env: gym.Env, steps: int = CHECKED_STEPS) -> bool:
    """Plays the same actions twice from the same reset; the environment has to be reset before it is used."""
    space: Any = env.action_space
    actions = np.random.default_rng(0).uniform(space.low, space.high, (steps, 1, *space.shape)).astype(space.dtype)
    rows, reward = np.empty((1, *env.observation_space.shape)), np.empty(1)
    quick = MujocoSteps([env], rows)
    told = []
    for is_quick in (False, True):
        played = [env.reset(seed=0)[0].tobytes()]
        for action in actions:
            if is_quick:
                ended = quick.step(action, reward)
                played.append((rows[0].tobytes(), reward.item(0), bool(ended) and ended[0][1]))
                is_over = bool(ended)
            else:
                observation, gained, is_terminated, is_truncated, _ = env.step(action[0])
                played.append((observation.tobytes(), float(gained), bool(is_terminated)))
                is_over = is_terminated or is_truncated
            if is_over:
                break
        told.append(played)
    return told[0] == told[1]
