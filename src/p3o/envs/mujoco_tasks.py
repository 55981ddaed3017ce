"""Observation, reward and end of Gymnasium's MuJoCo tasks, -v4 and -v5, and of the two of 2019, for `mujoco_steps`."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

OF_2019 = "p3o.envs.mujoco_2019"
# (action, weighted cost of the action) -> (reward, terminated); writes the observation into a row given before
TaskStep = Callable[[np.ndarray, float], tuple[float, bool]]
Task = Callable[[Any, np.ndarray, Callable[[np.ndarray], None]], TaskStep]


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
