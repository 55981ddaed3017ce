"""Playing episodes with a model whose normaliser is frozen."""

import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from p3o import seeds
from p3o.envs.atari import AtariGame
from p3o.model import Model

MOST_STEPS = 100_000  # of an evaluation's episode: some environments end none, and a policy's mode may walk in circles
GAME_STEPS = 27_000  # half an hour of a game: a policy's mode may wait for ever, and early ones often do


class Patience:
    """A line every so often while episodes are played: a game may last for minutes, and a policy may wait in it."""

    def __init__(self, doing: str, every: float = 10.0, tell: Callable[[str], None] | None = None):
        self._doing, self._every, self._next = doing, every, time.monotonic() + every
        self._tell = tell or (lambda text: print(f"p3o: {text}", file=sys.stderr))
        self._steps = 0

    def __call__(self, length: int) -> None:
        """`length` is that of the episode so far, which begins without a step."""
        self._steps += length > 0
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._every
            self._tell(f"still {self._doing}, {self._steps:,} steps so far")


def play(
    model: Model,
    env: gym.Env,
    episodes: int,
    seed: int,
    deterministic: bool,
    on_frame: Any = None,
    most_steps: int | None = None,
) -> list[tuple[float, int]]:
    """(return, length) of each episode. The first reset is seeded, later ones go on from the environment's own state.

    `on_frame`, if given, is called with an episode's steps so far after its reset and after every step (a video takes
    its frames there). An episode is given up after `most_steps`, if given.
    """
    rng = None if deterministic else np.random.default_rng(np.random.SeedSequence((seed, 1)))
    results = []
    observation, _ = env.reset(seed=seed)
    for episode in range(episodes):
        if episode:
            observation, _ = env.reset()
        total, length, is_over = 0.0, 0, False
        if on_frame:
            on_frame(length)
        while not is_over:
            action = model.act([observation], rng)[0]
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(reward), length + 1
            is_over = terminated or truncated or length == most_steps
            if on_frame:
                on_frame(length)
        results.append((total, length))
    return results


class _CutShort(Exception):
    """A wish to stop, out of the middle of an episode."""


def evaluate(
    model: Model,
    env: gym.Env,
    episodes: int,
    run_seed: int,
    step: int,
    tell: Callable[[str], None] | None = None,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> list[tuple[float, int]] | None:
    """Episodes of a run with the policy's mode, seeded by its step, so that a resumed run evaluates the same ones.

    None where it `is_unwanted` by now, which is asked at every step: a game may last for minutes.
    """
    parent = seeds.derive(run_seed).evaluation
    key = (*parent.spawn_key, step)
    seed = int(np.random.SeedSequence(parent.entropy, spawn_key=key).generate_state(1)[0])
    most_steps = GAME_STEPS if isinstance(env, AtariGame) else MOST_STEPS
    patience = Patience("evaluating", tell=tell)

    def on_frame(length: int) -> None:
        patience(length)
        if is_unwanted():
            raise _CutShort

    try:
        return play(model, env, episodes, seed, deterministic=True, on_frame=on_frame, most_steps=most_steps)
    except _CutShort:
        return None
