"""An emulator a game with spares, as training runs them, against ale-py's one pool: steps a second of random play.

    taskset -c 0,1 python benchmarks/atari_emulators.py [--game Breakout] [--envs 16] [--rows 150] [--turns 3]

Both play in turn in one process, on the cores it may use. Processor time counts all threads. After them the bare
emulator, four frames a step and no picture, in as many processes as there are cores: nothing that plays on these cores
can be quicker.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import ale_py
import numpy as np
from common import markdown_table, usable_cores

from p3o.envs.atari import AtariVectorEnv
from p3o.envs.atari_games import action_names, find_game


def timed(step: Callable[[np.ndarray], object], actions: np.ndarray) -> list[str]:
    """Steps a second and processor microseconds a step."""
    wall, cpu = time.perf_counter(), time.process_time()
    for action in actions:
        step(action)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return [f"{actions.size / wall:,.0f}", f"{1e6 * cpu / actions.size:.0f}"]


def play_bare(rom: str, seconds: float) -> tuple[float, float]:
    """Steps a second and processor microseconds a step of one emulator that shows nothing."""
    emulator = ale_py.ALEInterface()
    emulator.loadROM(ale_py.roms.get_rom_path(rom))
    actions = emulator.getMinimalActionSet()
    choices = np.random.default_rng(0).integers(len(actions), size=1000).tolist()
    steps, wall, cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        for _ in range(4):
            emulator.act(actions[choices[steps % 1000]])
        if emulator.game_over():
            emulator.reset_game()
        steps += 1
    return steps / (time.perf_counter() - wall), 1e6 * (time.process_time() - cpu) / steps


def bare_row(rom: str, seconds: float = 3.0) -> list[str]:
    """A process for each core, all at once."""
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, "--bare", rom, str(seconds)]
    cores = len(usable_cores())
    workers = [subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, text=True) for _ in range(cores)]
    found = [[float(word) for word in worker.communicate()[0].split()] for worker in workers]
    speeds, times = zip(*found, strict=True)
    return [f"bare emulator, {len(found)} processes", f"{sum(speeds):,.0f}", f"{np.mean(times):.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        rom, seconds = options.bare
        print(*play_bare(rom, float(seconds)))
        return
    game, number = find_game(f"{options.game}NoFrameskip-v4", {}), options.envs
    pool = ale_py.ALEVectorInterface(
        rom_path=ale_py.roms.get_rom_path(game.rom),
        num_envs=number,
        reward_clipping=False,
        num_threads=len(usable_cores()),
    )
    ours = AtariVectorEnv(game, number, np.random.SeedSequence(0))
    pool.reset(list(range(number)), list(range(number)))
    ours.reset()
    strength = np.ones(number, np.float32)

    def step_pool(action: np.ndarray) -> object:
        pool.send(action, strength)
        return pool.recv()

    everything = slice(0, number)

    def step_ours(action: np.ndarray) -> object:
        """As training does: without the stacks, which are on its device."""
        ours.send(action, everything)
        return ours.receive(everything)

    actions = np.random.default_rng(0).integers(0, len(action_names(game.rom, False)), (options.rows, number))
    rows = []
    for turn in range(options.turns):
        rows.append([f"pool, turn {turn + 1}", *timed(step_pool, actions)])
        for ours.has_cores_for_all, order in ((True, "first"), (False, "last")):
            rows.append([f"ours, {order} asked first, turn {turn + 1}", *timed(step_ours, actions)])
    rows.append(bare_row(game.rom))
    print("\n".join(markdown_table(["", "steps/s", "processor µs a step"], rows)))
    ours.close()


if __name__ == "__main__":
    main()
