"""Gymnasium environments behind `VectorEnv`: a list of single ones stepped in turn, or a user's vector environment."""

import contextlib
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate

from p3o.envs import snapshot as snapshots
from p3o.envs.mujoco_steps import make_steps
from p3o.envs.quiet import quietly
from p3o.errors import UserError
from p3o.spaces import Encoder, observation_spec
from p3o.types import Observation, Step

LONGEST_REBUILD = 1_000_000  # actions of an episode that are kept for a rebuild


class HostVectorEnv:
    """Single environments stepped in turn in this process: the fast way for simulators of 10 µs to 1 ms a step.

    Each is either snapshotted exactly, or rebuilt from a seeded reset and its actions since. For the latter every
    episode starts from a seed of its own.
    """

    def __init__(self, make: Callable[[], gym.Env], num_envs: int, seeds: np.random.SeedSequence):
        with quietly():
            self.envs = [make() for _ in range(num_envs)]
        self._functions = [snapshots.functions_in(env) for env in self.envs]
        self.num_envs = num_envs
        self.observation_space = self.envs[0].observation_space
        self.action_space = self.envs[0].action_space
        self._encoder = Encoder(observation_spec(self.observation_space), num_envs)
        self._current, self._final = self._encoder.empty(), self._encoder.empty()
        self._seeds = seeds.spawn(num_envs)
        self.is_waiting = np.zeros(num_envs, bool)
        self._episodes = [0] * num_envs
        self._earned = [0.0] * num_envs  # reward of the running episode: a rebuild has to arrive at it
        self._actions: list[list[Any] | None] = [None] * num_envs  # since the reset, where a rebuild may be needed
        self._is_unlogged = True  # no environment needs its actions kept
        self._never = np.zeros(num_envs, bool)
        self._never.setflags(write=False)
        self._quick_steps = make_steps(self.envs, self._current.vector)

    def _episode_seed(self, index: int, episode: int) -> int:
        parent = self._seeds[index]
        key = (*parent.spawn_key, episode)
        return int(np.random.SeedSequence(parent.entropy, spawn_key=key).generate_state(1)[0])

    def _start_episode(self, index: int) -> Any:
        is_seeded = self._episodes[index] == 0 or self._actions[index] is not None
        seed = self._episode_seed(index, self._episodes[index]) if is_seeded else None
        self._episodes[index] += 1
        self._earned[index] = 0.0
        if self._actions[index] is not None:
            self._actions[index] = []
        return self.envs[index].reset(seed=seed)[0]

    def reset(self) -> Observation:
        for index, env in enumerate(self.envs):
            self._encoder.write(self._start_episode(index), self._current, index)
            try:
                snapshots.capture(env, self._functions[index])
            except snapshots.NotSnapshotable:
                self._actions[index] = []
        self._is_unlogged = all(log is None for log in self._actions)
        return self._current

    def current(self) -> Observation:
        return self._current

    def step(self, action: np.ndarray) -> Step:
        reward = np.empty(self.num_envs)
        is_quick = self._quick_steps is not None and self._is_unlogged
        ended = self._step_quickly(action, reward) if is_quick else self._step_each(action, reward)
        if not ended:
            return Step(self._current, reward, self._never, self._never, self._final, self._never, is_quiet=True)
        terminated, truncated = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, bool)
        for index, is_terminated in ended:
            terminated[index], truncated[index] = is_terminated, not is_terminated
        return Step(self._current, reward, terminated, truncated, self._final, self._never)

    def _step_quickly(self, action: np.ndarray, reward: np.ndarray) -> list[tuple[int, bool]]:
        assert self._quick_steps is not None
        ended = self._quick_steps.step(action, reward)
        for index, _ in ended:
            self._final.vector[index] = self._current.vector[index]  # type: ignore[index]
            self._encoder.write(self._start_episode(index), self._current, index)
        return ended

    def _step_each(self, action: np.ndarray, reward: np.ndarray) -> list[tuple[int, bool]]:
        ended = []
        for index, env in enumerate(self.envs):
            log = self._actions[index]
            if log is not None and len(log) <= LONGEST_REBUILD:
                log.append(action[index].copy())
            raw, reward[index], is_terminated, is_truncated, _ = env.step(action[index])
            self._earned[index] += reward[index]
            if is_terminated or is_truncated:
                ended.append((index, bool(is_terminated)))
                self._encoder.write(raw, self._final, index)
                raw = self._start_episode(index)
            self._encoder.write(raw, self._current, index)
        return ended

    def snapshot(self) -> dict[str, Any]:
        return {"envs": [self._snapshot_one(index) for index in range(self.num_envs)]}

    def _snapshot_one(self, index: int) -> dict[str, Any]:
        row = [leaf[index].copy() for leaf in _leaves(self._current)]
        common = {"episodes": self._episodes[index], "earned": float(self._earned[index]), "observation": row}
        log = self._actions[index]
        if log is not None:
            actions = np.stack(log) if log else None
            return common | {"kind": "rebuild" if len(log) <= LONGEST_REBUILD else "fresh", "actions": actions}
        try:
            return common | {"kind": "state", "state": snapshots.capture(self.envs[index], self._functions[index])}
        except snapshots.NotSnapshotable:
            return common | {"kind": "fresh"}

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        if len(snapshot["envs"]) != self.num_envs:
            raise ValueError(f"holds {len(snapshot['envs'])} environments, not {self.num_envs}")
        fresh = [index for index, one in enumerate(snapshot["envs"]) if not self._restore_one(index, one)]
        self._is_unlogged = all(log is None for log in self._actions)
        return fresh

    def _restore_one(self, index: int, one: dict[str, Any]) -> bool:
        self._episodes[index], self._earned[index] = one["episodes"], one["earned"]
        if one["kind"] == "state":
            try:
                self.envs[index].reset(seed=0)  # makes what only a reset makes; all of it is overwritten
                snapshots.restore(self.envs[index], one["state"], self._functions[index])
            except ValueError:  # say, another version of the simulator
                seed = self._episode_seed(index, self._episodes[index])
                self._episodes[index] += 1
                self._encoder.write(self.envs[index].reset(seed=seed)[0], self._current, index)
                return False
            for leaf, row in zip(_leaves(self._current), one["observation"], strict=True):
                leaf[index] = row
            return True
        self._actions[index] = []
        if one["kind"] == "rebuild" and self._rebuild(index, one):
            return True
        self._encoder.write(self._start_episode(index), self._current, index)
        return False

    def _rebuild(self, index: int, one: dict[str, Any]) -> bool:
        """Play the episode again up to the same point; True if it arrives at the same observation."""
        env = self.envs[index]
        log = [] if one["actions"] is None else list(one["actions"])
        earned = 0.0
        try:
            raw = env.reset(seed=self._episode_seed(index, one["episodes"] - 1))[0]
            for action in log:
                raw, reward, is_terminated, is_truncated, _ = env.step(action.copy())
                earned += float(reward)  # as the array of float64 does, whatever kind of number it is
                if is_terminated or is_truncated:
                    return False
            self._encoder.write(raw, self._current, index)
        except Exception:  # it goes another way this time, where the actions do not fit
            return False
        rows = zip(_leaves(self._current), one["observation"], strict=True)
        if earned != one["earned"] or not all(np.array_equal(leaf[index], row) for leaf, row in rows):
            return False
        self._actions[index] = log
        return True

    def close(self) -> None:
        for env in self.envs:
            env.close()


class GymnasiumVectorEnv:
    """A user's Gymnasium VectorEnv in any of its three autoreset modes.

    Under next-step autoreset the row after an episode's end is no decision of the agent: it is masked.
    """

    def __init__(self, env: gym.vector.VectorEnv, seeds: np.random.SeedSequence):
        self.env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self.mode = env.metadata.get("autoreset_mode")
        if not isinstance(self.mode, AutoresetMode):
            raise UserError(
                f"vector environment {type(env).__name__} does not say how it resets: its metadata needs "
                "'autoreset_mode' (gymnasium.vector.AutoresetMode)"
            )
        self._encoder = Encoder(observation_spec(self.observation_space), self.num_envs)
        self._current, self._final = self._encoder.empty(), self._encoder.empty()
        self._seeds = seeds
        self._num_steps = 0  # vector steps so far
        self._members = self.env.envs if type(env) is SyncVectorEnv else []  # only those of Gymnasium's can be reached
        self._functions = [snapshots.functions_in(env) for env in self._members]
        self.is_waiting = np.zeros(self.num_envs, bool)

    def _write(self, batch: Any, into: Observation) -> None:
        for index, raw in enumerate(iterate(self.env.observation_space, batch)):
            self._encoder.write(raw, into, index)

    def reset(self) -> Observation:
        # Seeds of their own at each reset: one after an interruption does not play the first episodes again.
        key = (*self._seeds.spawn_key, self._num_steps)
        seeds = np.random.SeedSequence(self._seeds.entropy, spawn_key=key).generate_state(self.num_envs).tolist()
        self._write(_seeded(self.env, seeds), self._current)
        self.is_waiting[:] = False
        return self._current

    def current(self) -> Observation:
        return self._current

    def step(self, action: np.ndarray) -> Step:
        batch, reward, terminated, truncated, info = self.env.step(action)
        self._num_steps += 1
        terminated = np.array(terminated, bool)
        truncated = np.array(truncated, bool) & ~terminated
        is_masked = self.is_waiting.copy()
        ended = terminated | truncated
        if self.mode is AutoresetMode.NEXT_STEP:
            self._write(batch, self._current)
            for leaf, final in zip(_leaves(self._current), _leaves(self._final), strict=True):
                final[ended] = leaf[ended]
            self.is_waiting = ended
        elif self.mode is AutoresetMode.SAME_STEP:
            for index in np.flatnonzero(ended).tolist():
                self._encoder.write(info["final_obs"][index], self._final, index)
            self._write(batch, self._current)
        else:
            self._write(batch, self._final if ended.any() else self._current)
            if ended.any():
                batch, _ = self.env.reset(options={"reset_mask": ended})
                self._write(batch, self._current)
        is_quiet = not (ended.any() or is_masked.any())
        return Step(
            self._current, np.array(reward, np.float64), terminated, truncated, self._final, is_masked, is_quiet
        )

    def snapshot(self) -> dict[str, Any]:
        rows = [leaf.copy() for leaf in _leaves(self._current)]
        common = {"num_steps": self._num_steps, "is_waiting": self.is_waiting.copy(), "observation": rows}
        if not self._members:
            return common | {"kind": "fresh"}
        try:
            members = [snapshots.capture(*member) for member in zip(self._members, self._functions, strict=True)]
            return common | {"kind": "state", "members": members}
        except snapshots.NotSnapshotable:
            return common | {"kind": "fresh"}

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        self._num_steps = snapshot["num_steps"]
        if snapshot["kind"] == "fresh" or not self._members:
            self.reset()
            return list(range(self.num_envs))
        self.reset()  # fills the vector environment's own buffers; the members are overwritten next
        try:
            for member in zip(self._members, snapshot["members"], self._functions, strict=True):
                snapshots.restore(*member)
        except ValueError:  # say, another version of the simulator
            self.reset()
            return list(range(self.num_envs))
        self.is_waiting = np.array(snapshot["is_waiting"], bool)
        self.env._autoreset_envs = self.is_waiting.copy()
        for leaf, row in zip(_leaves(self._current), snapshot["observation"], strict=True):
            leaf[:] = row
        return []

    def close(self) -> None:
        self.env.close()


def _seeded(env: gym.vector.VectorEnv, seeds: list[int]) -> Any:
    """The first observations. Some take a seed for each member, ale-py's an array of numbers below 2³¹, and those that
    step all members at once, such as Gymnasium's CartPole, a single one."""
    for seed in (seeds, np.array(seeds, np.int64) % 2**31):
        with contextlib.suppress(TypeError, gym.error.Error):
            return env.reset(seed=seed)[0]
    return env.reset(seed=seeds[0])[0]


def _leaves(observation: Observation) -> list[np.ndarray]:
    vector = [] if observation.vector is None else [observation.vector]
    return [*vector, *observation.images]
