"""The actions of a running episode, which can bring an environment back: a seeded reset, then all of them again."""

from typing import Any

import numpy as np

LONGEST = 1_000_000  # actions of an episode that are kept


class ActionLog:
    """Kept as bytes: an episode may be long. One that is too long is given up, until the next begins."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._like: np.ndarray | None = None  # an action
        self._number = 0

    def add(self, action: np.ndarray) -> None:
        if self._number >= LONGEST:
            self._number += 1
            self._bytes.clear()
            return
        if self._like is None:
            self._like = action.copy()
        self._bytes += action.tobytes()
        self._number += 1

    def clear(self) -> None:
        self._bytes.clear()
        self._number = 0

    @property
    def is_whole(self) -> bool:
        return self._number <= LONGEST

    def actions(self) -> np.ndarray | None:
        """[T, ...], writable; None before the first and of an episode that was given up."""
        if self._like is None or not self._bytes:
            return None
        like = np.asarray(self._like)
        return np.frombuffer(self._bytes.copy(), like.dtype).reshape(-1, *like.shape)

    def tree(self) -> dict[str, Any]:
        return {"number": self._number, "actions": self.actions()}

    @classmethod
    def restored(cls, number: int, actions: np.ndarray | None) -> "ActionLog":
        log = cls()
        log._number = number
        if actions is not None:
            log._like = actions[0].copy()
            log._bytes += actions.tobytes()
        return log
