"""Games without an emulator: what is left of a run on them is ours."""

from typing import Any

import numpy as np


class Synthetic:
    """E games without an emulator: frames of a long strip of noise, an end now and then; a step takes microseconds."""

    def __init__(self, num_envs: int, side: int = 84, stack: int = 4):
        from gymnasium import spaces

        from p3o.envs.base import halves

        self.num_envs, self.stack = num_envs, stack
        self.parts = halves(num_envs)
        self.observation_space = spaces.Box(0, 255, (side, side, stack), np.uint8)
        self.action_space = spaces.Discrete(6)
        self.is_waiting = np.zeros(num_envs, bool)
        rng = np.random.default_rng(0)
        # [frames, E, side, side]; shown as a view with the frames last, so that a stack costs nothing
        self._strip = rng.integers(0, 256, (64 + stack, num_envs, side, side), np.uint8)
        self._ends = rng.random((97, num_envs)) < 0.01
        self._times = np.zeros(num_envs, np.int64)  # the same, but for a group that is ahead of another
        self._sent = np.zeros(num_envs, np.int64)

    def current(self) -> Any:
        from p3o.types import Observation

        return Observation(None, (self._stacks(slice(0, self.num_envs)),))

    def _stacks(self, rows: slice) -> np.ndarray:
        at = self._times[rows.start] % 64
        return np.moveaxis(self._strip[at : at + self.stack, rows], 0, -1)

    def reset(self) -> Any:
        return self.current()

    def step(self, action: np.ndarray) -> Any:
        from p3o.types import Step

        self._times += 1
        ends, quiet = self._ends[self._times[0] % 97], np.zeros(self.num_envs, bool)
        now = self.current()
        return Step(now, action * 0.1, ends, quiet, now, quiet)

    def send(self, action: np.ndarray, rows: slice) -> None:
        self._sent[rows] = action

    def receive(self, rows: slice) -> Any:
        from p3o.device_actor import pack
        from p3o.types import Observation, Step

        self._times[rows] += 1
        ends, quiet = self._ends[self._times[rows.start] % 97, rows], np.zeros(self._sent[rows].size, bool)
        now = self._stacks(rows)
        finals, newest = Observation(None, (now,)), pack(now[..., -1], ends)
        return Step(None, self._sent[rows] * 0.1, ends, quiet, finals, quiet, newest=newest)

    def snapshot(self) -> dict[str, Any]:
        return {"time": int(self._times[0])}

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        self._times[:] = snapshot["time"]
        return []

    def close(self) -> None:
        pass
