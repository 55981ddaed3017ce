"""Gymnasium's own MuJoCo tasks stepped without the Python that they put around the physics: bit-equal, less waiting.

A cheetah's five physics steps take 30 µs; the task's `step` adds 9 µs of views, dictionaries and checks that training
does not read. Each task below is its observation and reward again, with the environment's own settings as they are at
the start. They are used for exactly these classes inside Gymnasium's standard wrappers, with no method replaced, and
only after `agrees` has seen them give the same numbers as the environment itself; all else goes through `env.step`.
"""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

CHECKED_STEPS, CHECKED_STEPS_OF_OTHERS = 24, 4
OF_2019 = "p3o.envs.mujoco_2019"
# (action, weighted cost of the action) -> (reward, terminated); writes the observation into a row given before
TaskStep = Callable[[np.ndarray, float], tuple[float, bool]]
Task = Callable[[Any, np.ndarray, Callable[[np.ndarray], None]], TaskStep]


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


def _writer(row: np.ndarray, *parts: np.ndarray) -> Callable[[], None]:
    """Copies views of the simulator's arrays side by side into the row."""
    pairs, at = [], 0
    for part in parts:
        source = part.reshape(-1)
        assert source.size == 0 or np.shares_memory(source, part)
        pairs.append((row[at : at + source.size], source))
        at += source.size
    if at != row.size:
        raise ValueError(f"observation of {at} numbers, not {row.size}")
    if len(pairs) == 2:  # by far the most frequent: positions, velocities
        (left, a), (right, b) = pairs

        def write_two() -> None:
            left[:] = a
            right[:] = b

        return write_two

    def write() -> None:
        for target, source in pairs:
            target[:] = source

    return write


def _is_v4(task: Any) -> bool:
    """Whether a task is of -v4, or ours on top of it."""
    return any(kind.__module__.endswith("_v4") for kind in type(task).__mro__)


def _is_of_2019(task: Any) -> bool:
    return type(task).__module__ == OF_2019


def _positions(task: Any, skipped: int) -> np.ndarray:
    return task.data.qpos[skipped if task._exclude_current_positions_from_observation else 0 :]


def _runner(skipped: int) -> Task:
    """HalfCheetah and Swimmer: forward velocity minus the cost of the action, no end."""

    def task(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
        position, weight, dt = env.data.qpos, env._forward_reward_weight, env.dt
        write = _writer(row, _positions(env, skipped), env.data.qvel)

        def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
            before = position.item(0)
            simulate(action)
            write()
            return weight * ((position.item(0) - before) / dt) - cost, False

        return step

    return task


def _alive(env: Any) -> Callable[[bool], float]:
    """The reward for being healthy: until -v4 also paid in the step that ends the episode."""
    is_paid_at_the_end = hasattr(type(env), "terminated") and env._terminate_when_unhealthy
    reward = env._healthy_reward
    return lambda is_healthy: reward if is_healthy or is_paid_at_the_end else 0.0


def _walker(is_state_checked: bool) -> Task:
    """Hopper and Walker2d: the same with a reward for standing, and an end."""

    def task(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
        position, velocity, weight, dt = env.data.qpos, env.data.qvel, env._forward_reward_weight, env.dt
        write = _writer(row, _positions(env, 1), velocity)
        speeds = row[row.size - velocity.size :]
        bound = np.full(speeds.shape, 10.0)
        (low_z, high_z), (low_angle, high_angle) = env._healthy_z_range, env._healthy_angle_range
        low, high = env._healthy_state_range if is_state_checked else (-math.inf, math.inf)
        alive, ends = _alive(env), env._terminate_when_unhealthy

        def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
            before = position.item(0)
            simulate(action)
            write()
            now, moving = position.tolist(), velocity.tolist()
            if not (max(moving) <= 10.0 and min(moving) >= -10.0):
                np.clip(speeds, -bound, bound, out=speeds)
            is_healthy = low_z < now[1] < high_z and low_angle < now[2] < high_angle
            if is_state_checked and is_healthy:
                is_healthy = all(low < x < high for x in now[2:] + moving)
            reward = weight * ((now[0] - before) / dt) + alive(is_healthy) - cost
            return reward, ends and not is_healthy

        return step

    return task


def _inverted_pendulum(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
    write = _writer(row, env.data.qpos, env.data.qvel)
    is_paid_at_the_end = _is_v4(env)

    def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
        simulate(action)
        write()
        numbers = row.tolist()
        is_over = not all(map(math.isfinite, numbers)) or abs(numbers[1]) > 0.2
        return float(is_paid_at_the_end or not is_over), is_over

    return step


def _inverted_double_pendulum(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
    is_v4 = _is_v4(env)
    data = env.data
    position, velocity, force, tip = data.qpos, data.qvel, data.qfrc_constraint, data.site_xpos[0]
    angles = position[1:]
    sines, cosines, limited = row[1:3], row[3:5], row[5:]
    if row.size != (11 if is_v4 else 9):
        raise ValueError(f"observation of {row.size} numbers")
    limited_velocity, limited_force = limited[:3], limited[3:]
    forces = force[: limited_force.size]
    bound = np.full(limited.shape, 10.0)
    bonus = 10 if is_v4 else env._healthy_reward

    def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
        simulate(action)
        row[0] = position.item(0)
        np.sin(angles, sines)
        np.cos(angles, cosines)
        limited_velocity[:] = velocity
        limited_force[:] = forces
        np.clip(limited, -bound, bound, out=limited)
        x, _, y = tip.tolist()
        _, v1, v2 = velocity.tolist()
        is_over = y <= 1
        distance = 0.01 * x**2 + (y - 2) ** 2
        speed = 1e-3 * v1**2 + 5e-3 * v2**2
        return bonus * (is_v4 or not is_over) - distance - speed, is_over

    return step


def _ant(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
    import mujoco

    data, dt, is_v4 = env.data, env.dt, _is_v4(env)
    body = "torso" if is_v4 else env._main_body
    index = body if isinstance(body, int) else mujoco.mj_name2id(env.model, mujoco.mjtObj.mjOBJ_BODY, body)
    torso, position, velocity = data.xpos[index], data.qpos, data.qvel
    weight = 1.0 if is_v4 else env._forward_reward_weight
    is_contact_paid = env._use_contact_forces if is_v4 else True
    is_contact_seen = env._use_contact_forces if is_v4 else env._include_cfrc_ext_in_observation
    forces, contact_weight, limits = data.cfrc_ext, env._contact_cost_weight, env._contact_force_range
    limited = np.zeros_like(forces)
    seen = [limited if is_v4 else limited[1:]] if is_contact_seen else []
    seen += [env.forces] if _is_of_2019(env) else []
    write = _writer(row, _positions(env, 2), velocity, *seen)
    (low_z, high_z), ends, alive = env._healthy_z_range, env._terminate_when_unhealthy, _alive(env)

    def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
        before = torso.item(0)
        simulate(action)
        if is_contact_paid or is_contact_seen:
            np.clip(forces, *limits, out=limited)
        write()
        now = position.tolist()
        is_healthy = all(map(math.isfinite, now + velocity.tolist())) and low_z <= now[2] <= high_z
        if is_contact_paid:
            cost = cost + float(contact_weight * np.sum(np.square(limited)))
        reward = (torso.item(0) - before) / dt * weight + alive(is_healthy) - cost
        return reward, ends and not is_healthy

    return step


def _humanoid(env: Any, row: np.ndarray, simulate: Callable[[np.ndarray], None]) -> TaskStep:
    data, dt, is_v4 = env.data, env.dt, _is_v4(env)
    first = 0 if is_v4 else 1
    parts = [_positions(env, 2), data.qvel]
    for name, part in (
        ("cinert", data.cinert[first:]),
        ("cvel", data.cvel[first:]),
        ("qfrc_actuator", data.qfrc_actuator[0 if is_v4 else 6 :]),
        ("cfrc_ext", data.cfrc_ext[first:]),
    ):
        if is_v4 or getattr(env, f"_include_{name}_in_observation") is True:
            parts.append(part)
    if _is_of_2019(env):
        parts[-1] = env.forces
        low, high, drive = env.action_space.low, env.action_space.high, simulate
        simulate = lambda action: drive(np.clip(action, low, high))  # noqa: E731 - the same with a limit
    write = _writer(row, *parts)
    mass, centres, total = env.model.body_mass, data.xipos, env.model.body_mass.sum()
    position, control, forces = data.qpos, data.ctrl, data.cfrc_ext
    weight, action_weight = env._forward_reward_weight, env._ctrl_cost_weight
    (low_z, high_z), ends, alive = env._healthy_z_range, env._terminate_when_unhealthy, _alive(env)
    contact_weight, contact_range = (0.0, (0.0, 0.0)) if is_v4 else (env._contact_cost_weight, env._contact_cost_range)

    def centre() -> float:
        return float((np.einsum("b,bj->j", mass, centres) / total)[0])

    def step(action: np.ndarray, cost: float) -> tuple[float, bool]:
        before = centre()
        simulate(action)
        write()
        is_healthy = low_z < position.item(2) < high_z
        cost = float(action_weight * np.sum(np.square(control)))  # of what the simulator holds, in its precision
        if not is_v4:
            cost = cost + float(np.clip(contact_weight * np.sum(np.square(forces)), *contact_range))
        reward = weight * ((centre() - before) / dt) + alive(is_healthy) - cost
        return reward, ends and not is_healthy

    return step


TASKS: dict[tuple[str, str], Task] = {
    (f"gymnasium.envs.mujoco.{module}_{version}", name): task
    for module, name, task in (
        ("half_cheetah", "HalfCheetahEnv", _runner(1)),
        ("swimmer", "SwimmerEnv", _runner(2)),
        ("hopper", "HopperEnv", _walker(True)),
        ("walker2d", "Walker2dEnv", _walker(False)),
        ("inverted_pendulum", "InvertedPendulumEnv", _inverted_pendulum),
        ("inverted_double_pendulum", "InvertedDoublePendulumEnv", _inverted_double_pendulum),
        ("ant", "AntEnv", _ant),
        ("humanoid", "HumanoidEnv", _humanoid),
    )
    for version in ("v4", "v5")
} | {(OF_2019, "Ant2019"): _ant, (OF_2019, "Humanoid2019"): _humanoid}


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
