"""One Atari emulator on a thread of its own, which any other process can bring to the same point.

ale-py's emulators have no state that can be read, but a seed and the actions since decide everything. A seeded start
loads the game anew (0.1 to 0.2 s, against 0.01 s for a plain one), so an emulator plays several games on one seed and
keeps the actions of all of them.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from p3o.envs.atari_games import Game, frames_of_a_start, screen
from p3o.envs.quiet import quietly

SIDE = 84
NEW_GAME = 255  # in a log, where a game starts without a new seed; actions are below 18
LONGEST_LOG = 10_000  # actions after which the next game gets a new seed: bounds what a rebuild has to play


class Frame(NamedTuple):
    """What the emulator shows after a start or a step."""

    image: np.ndarray  # [84, 84]
    reward: float
    is_over: bool
    lives: int
    num_frames: int  # raw, of this game


class Record(NamedTuple):
    """How to bring an emulator to where it is."""

    seed_number: int  # which seed of its own it started from
    log: np.ndarray  # uint8, actions and NEW_GAME


class Emulator:
    """Games one after the other. A start happens in the background, a step between `send` and `receive`."""

    def __init__(
        self, game: Game, seeds: np.random.SeedSequence, executor: ThreadPoolExecutor, is_filmed: bool = False
    ):
        self._game, self._seeds, self._executor = game, seeds, executor
        self._ale = _make(game, is_colour=False)
        self._camera = _make(game, is_colour=True) if is_filmed else None
        self._start_frames = frames_of_a_start(game.rom)
        self.picture: np.ndarray | None = None  # the screen, [210, 160, 3] in most games, where it is filmed
        self._seed_number = -1
        self._log = bytearray()
        self._first: Future[tuple[Frame, float]] | None = None

    @property
    def record(self) -> Record:
        return Record(self._seed_number, np.frombuffer(bytes(self._log), np.uint8))

    def start(self, needs_seed: bool = False) -> None:
        """Begin a new game; `first` waits for it."""
        if self._first is not None:
            self._first.result()  # an earlier start may not be through yet
        if needs_seed or self._seed_number < 0 or len(self._log) >= LONGEST_LOG:
            self._seed_number += 1
            self._log.clear()
            self._first = self._executor.submit(self._play, self._seed(self._seed_number), b"")
        else:
            self._log.append(NEW_GAME)
            self._first = self._executor.submit(self._play, -1, b"")

    def first(self) -> Frame:
        """What the game that was begun shows first."""
        assert self._first is not None
        return self._first.result()[0]

    def send(self, action: int) -> None:
        self._log.append(action)
        self._ale.send([action], [1.0])
        if self._camera is not None:
            self._camera.send([action], [1.0])

    def receive(self) -> Frame:
        observation, reward, is_over, _, info = self._ale.recv()
        if self._camera is not None:
            self.picture = self._camera.recv()[0][0, 0]
        return Frame(
            observation[0, 0],
            float(reward[0]),
            bool(is_over[0]),
            int(info["lives"][0]),
            int(info["episode_frame_number"][0]),
        )

    def rebuild(self, record: Record) -> "Future[tuple[Frame, float]]":
        """Play a record again in the background; its last frame and the score of its last game so far."""
        self._seed_number, self._log = record.seed_number, bytearray(record.log.tobytes())
        self._first = self._executor.submit(self._play, self._seed(self._seed_number), bytes(self._log))
        return self._first

    def _play(self, seed: int, log: bytes) -> tuple[Frame, float]:
        frame, score = self._reset(seed), 0.0
        for action in log:
            if action == NEW_GAME:
                frame, score = self._reset(-1), 0.0
                continue
            self._ale.send([action], [1.0])
            if self._camera is not None:
                self._camera.send([action], [1.0])
            frame = self.receive()
            score += frame.reward
        return frame, score

    def _reset(self, seed: int) -> Frame:
        """A new game after 1 to `noop_max` no-ops, uniformly: the emulator also draws 0, and is asked again then."""
        observation, info = self._ale.reset([0], [seed])
        if self._camera is not None:
            self.picture = self._camera.reset([0], [seed])[0][0, 0]
        num_frames = int(info["episode_frame_number"][0])
        if self._game.noop_max and num_frames == self._start_frames:
            return self._reset(-1)
        return Frame(observation[0, 0], 0.0, False, int(info["lives"][0]), num_frames)

    def _seed(self, number: int) -> int:
        sequence = np.random.SeedSequence(self._seeds.entropy, spawn_key=(*self._seeds.spawn_key, number))
        return int(sequence.generate_state(1)[0]) & 0x7FFFFFFF  # -1 would mean none


def _make(game: Game, is_colour: bool) -> Any:
    """ale-py's vector environment with one member: its C++ thread does the frame skip, the maximum and the resizing."""
    with quietly():
        import ale_py

        height, width = screen(game.rom) if is_colour else (SIDE, SIDE)
        return ale_py.ALEVectorInterface(
            rom_path=ale_py.roms.get_rom_path(game.rom),
            num_envs=1,
            frame_skip=game.frameskip,
            stack_num=1,
            img_height=height,
            img_width=width,
            grayscale=not is_colour,
            maxpool=game.frameskip > 1,
            noop_max=game.noop_max + 1,
            use_fire_reset=False,
            episodic_life=False,
            life_loss_info=False,
            reward_clipping=False,
            max_episode_steps=2**31 - 1,
            repeat_action_probability=game.repeat_action_probability,
            full_action_space=game.full_action_space,
            batch_size=1,
            num_threads=1,
            thread_affinity_offset=-1,  # the process's own: a sweep gives each worker its share of the cores
            autoreset_mode="NextStep",  # never comes to it: each game is started here
        )
