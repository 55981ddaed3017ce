"""Training speed against peers: one machine, one run, one thread each, alternating; ratios of medians.

    make peers          # an environment of its own in .venv-peers, then this script
    python benchmarks/peers.py [--repeats 5] [--seconds 10] [--env HalfCheetah-v5] [--markdown FILE]

Each measurement is a process of its own, pinned to one core: start, compile, warm up, then count environment steps
for some seconds of whole iterations. Rounds go through all contestants before the next begins, so that a slow spell
of the machine hits everyone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

# name -> (library, algorithm, preset or None, settings)
CONTESTANTS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "P3O (paper)": ("p3o", "p3o", "paper", {}),
    "PPO 1×2048, 10 epochs": ("p3o", "ppo", "paper", {}),
    "A2C 8×32": ("p3o", "a2c", "paper", {}),
    "A2C 2×64": ("p3o", "a2c", "paper", {"num_envs": 2, "num_steps": 64}),
    "SB3 PPO 1×2048, 10 epochs": ("sb3", "ppo", "", {"num_envs": 1, "num_steps": 2048}),
    "SBX PPO 1×2048, 10 epochs": ("sbx", "ppo", "", {"num_envs": 1, "num_steps": 2048}),
    "SB3 A2C 8×32": ("sb3", "a2c", "", {"num_envs": 8, "num_steps": 32}),
    "SB3 A2C 2×64": ("sb3", "a2c", "", {"num_envs": 2, "num_steps": 64}),
}
RATIOS = (
    ("P3O (paper)", "SB3 PPO 1×2048, 10 epochs"),
    ("PPO 1×2048, 10 epochs", "SB3 PPO 1×2048, 10 epochs"),
    ("PPO 1×2048, 10 epochs", "SBX PPO 1×2048, 10 epochs"),
    ("A2C 8×32", "SB3 A2C 8×32"),
    ("A2C 2×64", "SB3 A2C 2×64"),
)
WARM_UP_STEPS = 12_000  # past P3O's burn-in, so that its replayed updates are in the measurement


def measure_ours(algo: str, preset: str, settings: dict[str, Any], env: str, seconds: float) -> float:
    from p3o.jobs import Job, set_up

    trainer = set_up(Job(env, algo, 10_000_000, preset=preset, settings=settings)).trainer
    while trainer.step < WARM_UP_STEPS:
        trainer.iterate(10_000_000)
    step, started = trainer.step, time.perf_counter()
    while time.perf_counter() - started < seconds:
        trainer.iterate(10_000_000)
    return (trainer.step - step) / (time.perf_counter() - started)


def measure_peer(library: str, algo: str, settings: dict[str, Any], env: str, seconds: float) -> float:
    """SB3 or SBX with running normalisation, like ours; steps between the starts of two rollouts."""
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(1)
    module: Any = __import__("sbx" if library == "sbx" else "stable_baselines3")
    cls = getattr(module, algo.upper())
    venv = VecNormalize(make_vec_env(env, n_envs=settings["num_envs"], seed=0))
    extra: dict[str, Any] = {"n_epochs": 10, "batch_size": 64} if algo == "ppo" else {}
    model = cls("MlpPolicy", venv, n_steps=settings["num_steps"], device="cpu", **extra)
    marks: list[tuple[int, float]] = []

    class Clock(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps >= min(WARM_UP_STEPS, 3 * settings["num_envs"] * settings["num_steps"]):
                marks.append((self.num_timesteps, time.perf_counter()))

        def _on_step(self) -> bool:
            return len(marks) < 2 or marks[-1][1] - marks[0][1] < seconds

    model.learn(10_000_000, callback=Clock())
    (first, started), (last, ended) = marks[0], marks[-1]
    return (last - first) / (ended - started)


def worker(name: str, env: str, seconds: float) -> None:
    library, algo, preset, settings = CONTESTANTS[name]
    if library == "p3o":
        speed = measure_ours(algo, preset, settings, env, seconds)
    else:
        speed = measure_peer(library, algo, settings, env, seconds)
    print(json.dumps(speed))


def measure(name: str, env: str, seconds: float, core: int | None) -> float | None:
    """One measurement in its own process, or None (with the reason on stderr) where a peer is not installed."""
    command = [sys.executable, __file__, "--worker", name, "--env", env, "--seconds", str(seconds)]
    if core is not None:
        command = ["taskset", "-c", str(core), *command]
    variables = os.environ | {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    if done.returncode:
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def table(results: dict[str, list[float]], env: str, write: Callable[[str], Any]) -> None:
    write(f"| {env}, one thread | steps/s, median | min to max |")
    write("| --- | --- | --- |")
    for name, speeds in results.items():
        write(f"| {name} | {statistics.median(speeds):,.0f} | {min(speeds):,.0f} to {max(speeds):,.0f} |")
    write("")
    write("| ratio of medians | | lowest to highest of the rounds |")
    write("| --- | --- | --- |")
    for ours, theirs in RATIOS:
        if ours in results and theirs in results:
            a, b = results[ours], results[theirs]
            rounds = [x / y for x, y in zip(a, b, strict=True)]
            ratio = statistics.median(a) / statistics.median(b)
            write(f"| {ours} / {theirs} | **{ratio:.1f}×** | {min(rounds):.1f} to {max(rounds):.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--core", type=int, default=0, help="core to pin every process to; -1 for none")
    parser.add_argument("--only", nargs="*", default=list(CONTESTANTS))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options.worker, options.env, options.seconds)
    results: dict[str, list[float]] = {name: [] for name in options.only}
    for round_number in range(options.repeats):
        for name in list(results):
            speed = measure(name, options.env, options.seconds, None if options.core < 0 else options.core)
            if speed is None:
                del results[name]
                continue
            results[name].append(speed)
            print(f"round {round_number + 1}: {name}: {speed:,.0f} steps/s", file=sys.stderr, flush=True)
    table(results, options.env, print)


if __name__ == "__main__":
    main()
