"""An emulator a game with spares, as training runs them, against ale-py's one pool: steps a second of random play.

    taskset -c 0,1 python benchmarks/atari_emulators.py [--game Breakout] [--envs 16] [--rows 150] [--turns 3]

Both play in turn in one process, on the cores it may use. Processor time counts all threads.
"""

import argparse
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="Breakout")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--rows", type=int, default=150)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
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
    print("\n".join(markdown_table(["", "steps/s", "processor µs a step"], rows)))
    ours.close()


if __name__ == "__main__":
    main()
