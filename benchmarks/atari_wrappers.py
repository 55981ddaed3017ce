"""Our Atari pipeline beside a plain Python version of the six wrappers that the paper's runs had in 2019.

    python benchmarks/atari_wrappers.py [--games Breakout Qbert Seaquest] [--episodes 60] [--frames 1500]

The wrappers are written here from their description (docs/atari.md). Pictures are compared on the same states; scores,
lengths and lost steps on whole games with the same policies: `random` draws each action anew, `held` keeps each for
eight steps. Needs `ale-py` and `opencv-python-headless`.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ale_py
import cv2
import numpy as np
from common import markdown_table

from p3o.envs.atari import AtariVectorEnv
from p3o.envs.atari_games import Game, action_names, find_game

FIRE = 1  # of the three games
Policy = Callable[[np.random.Generator, int], Iterator[int]]


class Screen:
    """The emulator frame by frame: what `GameNoFrameskip-v4` was, with 1 to 30 no-ops at the start of a game."""

    def __init__(self, game: Game, seed: int):
        self.ale = ale_py.ALEInterface()
        self.ale.setLoggerMode(ale_py.LoggerMode.Error)
        self.ale.setFloat("repeat_action_probability", game.repeat_action_probability)
        self.ale.setInt("random_seed", seed)
        self.ale.loadROM(ale_py.roms.get_rom_path(game.rom))
        self.actions = self.ale.getMinimalActionSet()
        self.has_fire = action_names(game.rom, False)[FIRE] == "FIRE"
        self.rng = np.random.default_rng(seed)

    def start(self, num_noops: int) -> np.ndarray:
        self.ale.reset_game()
        for _ in range(num_noops):
            self.ale.act(0)
        return self.ale.getScreenRGB()

    def skip(self, action: int) -> tuple[np.ndarray, int, bool]:
        """Four frames of one action: the maximum of the last two in colour, the sum of rewards."""
        reward, last = 0, []
        for _ in range(4):
            reward += self.ale.act(self.actions[action])
            last = [*last[-1:], self.ale.getScreenRGB()]
            if self.ale.game_over():
                break
        return np.max(last, axis=0), reward, self.ale.game_over()


def warp(screen: np.ndarray) -> np.ndarray:
    """Colour to grey, then 84 × 84 by area."""
    return cv2.resize(cv2.cvtColor(screen, cv2.COLOR_RGB2GRAY), (84, 84), interpolation=cv2.INTER_AREA)


class Wrapped:
    """Life-loss episodes and FIRE on every reset, as in 2019; `score` is the whole game's."""

    def __init__(self, game: Game, seed: int):
        self.screen, self.lives, self.is_over = Screen(game, seed), 0, True
        self.score, self.hidden = 0.0, 0

    def _skip(self, action: int) -> tuple[np.ndarray, int, bool]:
        picture, reward, self.is_over = self.screen.skip(action)
        self.score += reward
        return picture, reward, self.is_over

    def reset(self) -> np.ndarray:
        """After a lost life one no-op step, after a game a new one; then FIRE and action 2."""
        if self.is_over:
            picture = self._new_game()
        else:
            picture = self._hidden(0)
        if self.screen.has_fire:
            for action in (1, 2):
                picture = self._hidden(action)
                if self.is_over:
                    picture = self._new_game()
        self.lives = self.screen.ale.lives()
        return warp(picture)

    def _new_game(self) -> np.ndarray:
        self.score, self.is_over = 0.0, False
        return self.screen.start(int(self.screen.rng.integers(1, 31)))

    def _hidden(self, action: int) -> np.ndarray:
        self.hidden += 1
        return self._skip(action)[0]

    def step(self, action: int) -> tuple[np.ndarray, int, bool]:
        picture, reward, is_end = self._skip(action)
        lives = self.screen.ale.lives()
        is_end = is_end or 0 < lives < self.lives
        self.lives = lives
        return warp(picture), reward, is_end


class Played(NamedTuple):
    """What games came to."""

    scores: list[float]  # of whole games, raw
    lengths: list[int]  # of whole games, in steps of the agent
    lives: list[int]  # lengths of the learner's episodes
    signs: list[float]  # their learned returns
    hidden: int  # steps that were not the agent's


def drawn(rng: np.random.Generator, number: int) -> Iterator[int]:
    while True:
        yield int(rng.integers(number))


def held(rng: np.random.Generator, number: int) -> Iterator[int]:
    for action in drawn(rng, number):
        yield from [action] * 8


POLICIES: dict[str, Policy] = {"random": drawn, "held": held}


def play_wrapped(game: Game, policy: Iterator[int], episodes: int) -> Played:
    env, played = Wrapped(game, 1), Played([], [], [], [], 0)
    steps = length = 0
    total = 0.0
    env.reset()
    while len(played.scores) < episodes:
        _, reward, is_end = env.step(next(policy))
        steps, length, total = steps + 1, length + 1, total + np.sign(reward)
        if is_end:
            played.lives.append(length)
            played.signs.append(total)
            length, total = 0, 0.0
            if env.is_over:
                played.scores.append(env.score)
                played.lengths.append(steps)
                steps = 0
            env.reset()
    return played._replace(hidden=env.hidden)


def play_ours(game: Game, policy: Iterator[int], episodes: int) -> Played:
    env, played = AtariVectorEnv(game, 1, np.random.SeedSequence(1)), Played([], [], [], [], 0)
    steps = length = hidden = 0
    total = score = 0.0
    env.reset()
    while len(played.scores) < episodes:
        is_hidden = bool(env.is_waiting[0])
        step: Any = env.step(np.array([0 if is_hidden else next(policy)]))
        score += step.reward[0]
        if is_hidden:
            hidden += 1
        else:
            steps, length, total = steps + 1, length + 1, total + np.sign(step.reward[0])
        if step.terminated[0]:
            played.lives.append(length)
            played.signs.append(total)
            length, total = 0, 0.0
        if step.is_game_end[0]:
            played.scores.append(score)
            played.lengths.append(steps)
            steps, score = 0, 0.0
    env.close()
    return played._replace(hidden=hidden)


def compare_pictures(game: Game, frames: int) -> list[str]:
    """Ours and the 2019 picture of the same states: mean and largest difference, pixels that differ by more than 8.

    A game's last picture is left out: nobody acts on it, and its frames are cut short in other ways.
    """
    env = AtariVectorEnv(game, 1, np.random.SeedSequence(0), num_spares=0)
    number = len(action_names(game.rom, False))
    policy, differences = drawn(np.random.default_rng(0), number), []
    env.reset()
    first, seed = env._players[0].first(), env._players[0]._seed(0)
    screen = Screen(game, seed)
    screen.start(first.num_frames)
    while len(differences) < frames:
        action = FIRE if env.is_waiting[0] else next(policy)
        step: Any = env.step(np.array([action]))
        picture = warp(screen.skip(action)[0])
        if not step.is_game_end[0]:
            differences.append(abs(step.observation.images[0][0, ..., -1].astype(int) - picture))
        else:
            env.close()
            env = AtariVectorEnv(game, 1, np.random.SeedSequence(len(differences)), num_spares=0)
            env.reset()
            screen = Screen(game, env._players[0]._seed(0))
            screen.start(env._players[0].first().num_frames)
    env.close()
    found = np.stack(differences)
    return [f"{found.mean():.3f}", str(found.max()), f"{100 * (found > 8).mean():.3f} %"]


def mean(values: list[Any], digits: int = 1) -> str:
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1) / len(values) ** 0.5:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", nargs="+", default=["Breakout", "Qbert", "Seaquest"])
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--frames", type=int, default=1500)
    options = parser.parse_args()
    pictures, rows = [], []
    for name in options.games:
        game = find_game(f"{name}NoFrameskip-v4", {})
        pictures.append([name, *compare_pictures(game, options.frames)])
        number = len(action_names(game.rom, False))
        for label, policy in POLICIES.items():
            for pipeline, play in (("2019", play_wrapped), ("ours", play_ours)):
                played = play(game, policy(np.random.default_rng(2), number), options.episodes)
                cells = [mean(played.scores), mean(played.lengths), mean(played.lives), mean(played.signs, 2)]
                share = played.hidden / (played.hidden + sum(played.lengths))
                rows.append([name, label, pipeline, *cells, f"{100 * share:.1f} %"])
    print("\n".join(markdown_table(["picture", "mean difference", "largest", "pixels off by more than 8"], pictures)))
    print()
    heads = [
        "game",
        "policy",
        "pipeline",
        "score",
        "steps a game",
        "steps a life",
        "learned return a life",
        "not decided",
    ]
    print("\n".join(markdown_table(heads, rows)))


if __name__ == "__main__":
    main()
