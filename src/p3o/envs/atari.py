"""Atari games behind `VectorEnv`, and one game as a Gymnasium environment; docs/atari.md describes the rules.

A lost life ends the learner's episode while the game goes on; scores are those of whole games.
"""

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium as gym
import numpy as np

from p3o.device import available_cores
from p3o.envs.atari_games import Game, action_names
from p3o.envs.base import halves
from p3o.envs.emulator import SIDE, Emulator, Record
from p3o.types import Observation, Step

STACK = 4  # frames of an observation, newest last
ENVS_PER_SPARE = 4
FRAMES_PER_SECOND = 60


def spaces(game: Game) -> tuple[gym.Space, gym.Space]:
    """Of observations and actions."""
    image = gym.spaces.Box(0, 255, (SIDE, SIDE, STACK), np.uint8)
    return image, gym.spaces.Discrete(len(action_names(game.rom, game.full_action_space)))


class AtariVectorEnv:
    """E games at once, each on a thread of its own, with a few spare emulators that have the next game ready.

    A start takes as long as twenty steps, and all would wait for it. When a game ends, the spare that has waited
    longest takes its place, and the emulator that is free now starts a game in the background. The order depends on
    the games alone, so a seed always gives the same run. Each half of the games has spares of its own, so threads may
    step halves at the same time: all that they share is lists and arrays with rows of their own.
    """

    def __init__(
        self,
        game: Game,
        num_envs: int,
        seeds: np.random.SeedSequence,
        num_spares: int | None = None,
        is_filmed: bool = False,
    ):
        self.game, self.num_envs = game, num_envs
        self.parts = halves(num_envs)
        self.observation_space, self.action_space = spaces(game)
        names = action_names(game.rom, game.full_action_space)
        self._has_fire = "FIRE" in names
        self._fire_action = names.index("FIRE") if self._has_fire else 0
        self._num_spares = -(-num_envs // ENVS_PER_SPARE) if num_spares is None else num_spares
        self._is_filmed = is_filmed
        self.last_picture: np.ndarray | None = None  # of the first environment's last game, where it is filmed
        self._seeds = seeds
        self._num_lots = 0  # of emulators: each has seeds of its own
        self._emulators: list[Emulator] = []
        self._executor: ThreadPoolExecutor | None = None
        # The last frames of each environment, one slot a step, each with a last byte that says whether it is the first
        # of an episode; older ones are zero then. A slot is what `DeviceActor` takes, and stays for three more steps.
        self._slots = np.zeros((STACK, num_envs, SIDE * SIDE + 1), np.uint8)
        self._images = self._slots[..., :-1].reshape(STACK, num_envs, SIDE, SIDE)
        self._places = [list(images) for images in self._images]  # a view for each picture, made once
        self._newest = [0] * num_envs  # the slot of each environment's newest frame
        self._is_under_way = np.zeros(num_envs, bool)  # in the middle of a step, where an exception may have left them
        # Asking an emulator that is done for its frame takes some 20 µs: with a core for each game those that are done
        # are asked while others still play. On fewer cores the last to be sent is the last to be done: after a wait for
        # it the others need none of their own.
        self.has_cores_for_all = len(available_cores()) >= num_envs
        self._all = slice(0, num_envs)
        self._current = Observation(None, (np.zeros((num_envs, SIDE, SIDE, STACK), np.uint8),))
        self._final = Observation(None, (np.zeros_like(self._current.images[0]),))
        self.is_waiting = np.zeros(num_envs, bool)
        self._lives = [0] * num_envs
        self._score = np.zeros(num_envs)

    def _make_emulators(self) -> None:
        self.close()
        number = self.num_envs + self._num_spares
        self._executor = ThreadPoolExecutor(number)
        key = (*self._seeds.spawn_key, self._num_lots)
        children = np.random.SeedSequence(self._seeds.entropy, spawn_key=key).spawn(number)
        emulators = [Emulator(self.game, child, self._executor, self._is_filmed) for child in children]
        self._num_lots += 1
        self._is_under_way[:] = False
        self._players, self._spares = emulators[: self.num_envs], self._deal(emulators[self.num_envs :])
        self._emulators = emulators

    def _deal(self, spares: list[Emulator]) -> list[deque[Emulator]]:
        """To each part its share, the first ones to the first."""
        bounds = [len(spares) * part // len(self.parts) for part in range(len(self.parts) + 1)]
        return [deque(spares[first:last]) for first, last in itertools.pairwise(bounds)]

    @property
    def _is_broken(self) -> bool:
        return not self._emulators or bool(self._is_under_way.any())

    @property
    def picture(self) -> np.ndarray | None:
        """The first game's screen, where it is filmed."""
        return self._players[0].picture

    def reset(self) -> Observation:
        if self._is_broken:
            self._make_emulators()
        for emulator in self._emulators:
            emulator.start(needs_seed=True)
        self._newest = [0] * self.num_envs
        for index in range(self.num_envs):
            self._take_first(index)
        self._restack(self._all, np.ones(self.num_envs, bool))
        return self.current()

    def current(self) -> Observation:
        newest, envs = np.array(self._newest), np.arange(self.num_envs)
        for age in range(STACK):
            self._current.images[0][..., STACK - 1 - age] = self._images[newest - age, envs]
        return self._current

    def _copy_stack(self, index: int, to: np.ndarray) -> None:
        """The last frames of one environment, newest last, to its row of [E, H, W, S]."""
        for age in range(STACK):
            to[index, ..., STACK - 1 - age] = self._images[self._newest[index] - age, index]

    def step(self, action: np.ndarray) -> Step:
        self.send(action, self._all)
        return self.receive(self._all)._replace(observation=self.current())

    def send(self, action: np.ndarray, rows: slice) -> None:
        """Begin a step of some environments."""
        self._is_under_way[rows] = True
        is_waiting = self.is_waiting[rows]
        sent = np.where(is_waiting, self._fire_action, action) if np.count_nonzero(is_waiting) else action
        for player, one in zip(self._players[rows], sent.tolist(), strict=True):
            player.send(one)

    def receive(self, rows: slice) -> Step:
        """The step that was begun, for these rows alone, without an observation: `newest` is all that is new in it."""
        players = self._players[rows]
        if self.has_cores_for_all:
            frames = [player.receive() for player in players]
        else:
            frames = [player.receive() for player in players[::-1]][::-1]
        slot = (self._newest[rows.start] + 1) % STACK
        self._newest[rows] = [slot] * len(frames)
        images, rewards, over, lives, num_frames = zip(*frames, strict=True)
        for place, image in zip(self._places[slot][rows], images, strict=True):
            place[...] = image
        newest, finals = self._slots[slot, rows], Observation(None, (self._final.images[0][rows],))
        reward, is_masked = np.array(rewards), self.is_waiting[rows].copy()
        if any(rewards):
            self._score[rows] += reward
        before, cap, most_frames = self._lives[rows], self.game.max_num_frames_per_episode, max(num_frames)
        if before == [*lives] and True not in over and most_frames < cap:  # most steps: surely nothing ended
            no = np.zeros(len(frames), bool)
            newest[:, -1] = self.is_waiting[rows] = self._is_under_way[rows] = False
            return Step(None, reward, no, no, finals, is_masked, not np.count_nonzero(is_masked), no, newest)
        is_over, left, is_capped = np.array(over), np.array(lives), np.array(num_frames) >= cap
        # Qbert shows 0 lives for a while before its game is over: that is no further end.
        terminated = is_over | ((left > 0) & (left < before))
        self._lives[rows] = lives
        ended, is_game_end = terminated | is_capped, is_over | is_capped
        newest[:, -1] = ended
        self._end(rows, ended, is_game_end)
        self._is_under_way[rows] = False
        is_quiet = not np.count_nonzero(ended | is_masked)
        return Step(None, reward, terminated, is_capped & ~terminated, finals, is_masked, is_quiet, is_game_end, newest)

    def _end(self, rows: slice, ended: np.ndarray, is_game_end: np.ndarray) -> None:
        """The rest of a step in which episodes ended; the next games begin."""
        for index in np.flatnonzero(ended) + rows.start:
            self._copy_stack(index, self._final.images[0])
        for index in (np.flatnonzero(is_game_end) + rows.start).tolist():
            player = self._players[index]
            if index == 0:
                self.last_picture = player.picture
            player.start()
            spares = self._spares[index // self.parts[0].stop]
            spares.append(player)
            self._players[index] = spares.popleft()
            self._take_first(index)
        self._restack(rows, ended)

    def _take_first(self, index: int) -> None:
        """Show the first frame of the game that environment `index` has now."""
        frame = self._players[index].first()
        self._images[self._newest[index], index] = frame.image
        self._lives[index], self._score[index] = frame.lives, 0.0

    def _restack(self, rows: slice, ended: np.ndarray) -> None:
        """Zeros but for the newest frame, and FIRE to come, where an episode of the learner begins."""
        for index in np.flatnonzero(ended) + rows.start:
            for age in range(1, STACK):
                self._images[self._newest[index] - age, index] = 0
        self.is_waiting[rows] = ended & self._has_fire

    def snapshot(self) -> dict[str, Any]:
        place = {id(emulator): index for index, emulator in enumerate(self._emulators)}
        return {
            "lot": self._num_lots - 1,
            "emulators": [{"seed": one.record.seed_number, "log": one.record.log} for one in self._emulators],
            "players": [place[id(one)] for one in self._players],
            "spares": [place[id(one)] for part in self._spares for one in part],
            "stack": self.current().images[0].copy(),
            "lives": np.array(self._lives),
            "is_waiting": self.is_waiting.copy(),
            "score": self._score.copy(),
        }

    def restore(self, snapshot: dict[str, Any]) -> list[int]:
        """Every emulator plays its record again, all at once; one that does not arrive there starts a game afresh."""
        players, spares = snapshot["players"], snapshot["spares"]
        if (len(players), len(spares)) != (self.num_envs, self._num_spares):
            raise ValueError(f"holds {len(players)} games and {len(spares)} spares, not {self.num_envs} of each kind")
        self._num_lots = snapshot["lot"]
        self._newest = [0] * self.num_envs  # one half may have been a step ahead of the other
        self._make_emulators()
        records = [Record(one["seed"], one["log"]) for one in snapshot["emulators"]]
        played = [emulator.rebuild(record) for emulator, record in zip(self._emulators, records, strict=True)]
        self._players = [self._emulators[index] for index in players]
        self._spares = self._deal([self._emulators[index] for index in spares])
        arrived = [future.result() for future in played]
        fresh = []
        for index, emulator in enumerate(players):
            frame, score = arrived[emulator]
            is_same = np.array_equal(frame.image, snapshot["stack"][index, ..., -1])
            if not is_same or (frame.lives, score) != (snapshot["lives"][index], snapshot["score"][index]):
                fresh.append(index)
                self._players[index].start(needs_seed=True)
                self._take_first(index)
        self._go_on_from(snapshot, fresh)
        return fresh

    def _go_on_from(self, snapshot: dict[str, Any], fresh: list[int]) -> None:
        is_fresh = np.zeros(self.num_envs, bool)
        is_fresh[fresh] = True
        kept = ~is_fresh
        self._restack(self._all, is_fresh)
        for index in np.flatnonzero(kept):
            for age in range(STACK):
                self._images[self._newest[index] - age, index] = snapshot["stack"][index, ..., STACK - 1 - age]
            self._lives[index] = int(snapshot["lives"][index])
        for own, name in ((self._score, "score"), (self.is_waiting, "is_waiting")):
            own[kept] = snapshot[name][kept]

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True)
        self._executor, self._emulators, self._players = None, [], []
        self._spares = []


class AtariGame(gym.Env):
    """One whole game, for eval and video: a lost life ends nothing, FIRE is pressed for the player, rewards are raw."""

    def __init__(self, game: Game, render_mode: str | None = None):
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": max(FRAMES_PER_SECOND // game.frameskip, 1)}
        self.game, self.render_mode = game, render_mode
        self.observation_space, self.action_space = spaces(game)
        self._vector: AtariVectorEnv | None = None  # made by the first reset: to know the spaces it is not needed
        self._is_over = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None or self._vector is None:
            self.close()
            sequence = np.random.SeedSequence(seed)
            is_filmed = self.render_mode == "rgb_array"
            self._vector = AtariVectorEnv(self.game, 1, sequence, num_spares=0, is_filmed=is_filmed)
            self._vector.reset()
        elif not self._is_over:
            self._vector.reset()
        self._is_over = False
        while self._vector.is_waiting[0]:
            self._fire()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        assert self._vector is not None
        step: Any = self._vector.step(np.array([action]))
        reward = float(step.reward[0])
        while self._vector.is_waiting[0] and not step.is_game_end[0]:
            step = self._fire()
            reward += float(step.reward[0])
        self._is_over = bool(step.is_game_end[0])
        observation = step.final_observation.images[0][0].copy() if self._is_over else self._observation()
        is_terminated = self._is_over and not step.truncated[0]
        return observation, reward, is_terminated, self._is_over and not is_terminated, {}

    def _fire(self) -> Step:
        """The row that the player does not decide."""
        assert self._vector is not None
        return self._vector.step(np.zeros(1, np.int64))

    def _observation(self) -> np.ndarray:
        assert self._vector is not None
        return self._vector.current().images[0][0].copy()

    def render(self) -> np.ndarray | None:
        if self._vector is None:
            return None
        return self._vector.last_picture if self._is_over else self._vector.picture

    def close(self) -> None:
        if self._vector is not None:
            self._vector.close()
            self._vector = None
