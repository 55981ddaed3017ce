"""Speed of image runs on this machine: steps/s of each algorithm, where the time goes, precisions, the replay's place.

    python benchmarks/atari.py --env BreakoutNoFrameskip-v4 --seconds 20 --save atari.json
    python benchmarks/atari.py --tiny                        # a minute on a small CPU: does it run at all?
    python benchmarks/atari.py --profile 80 --algos p3o --set precision=tf32   # where 80 iterations spend it

Every measurement is a process of its own with the `paper` settings (burn-in cut short and the ring taken to be full, so
that replayed updates cost what they cost later). With `--env synthetic`, or where `p3o.envs.atari` is not there, frames
are made up at no cost: all that is left is ours. Times of parts are taken in a second pass, with a wait after each
update and groups of games in turn on one thread; speeds without.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from common import machine_line, markdown_table, result_of, usable_cores
from made_up_games import Synthetic

ALGORITHMS = ("p3o", "ppo", "a2c", "acer")
HORIZON = 28_000_000
REPLAYING = ("p3o", "acer")
TINY = {"num_envs": 2, "num_steps": 4, "conv_channels": (2, 2, 2), "conv_features": 4}


def settings_of(what: dict[str, Any]) -> dict[str, Any]:
    """What a measurement changes in the `paper` settings."""
    settings: dict[str, Any] = {"burn_in": 1} if what["algo"] in REPLAYING else {}
    if what["tiny"]:
        settings |= TINY | ({"replay_size": 64} if what["algo"] in REPLAYING else {})
    return settings | what["settings"]


def set_up(what: dict[str, Any]) -> Any:
    """A trainer for the real game where the adapter is there, else for made-up frames."""
    from p3o import algorithms, device, jobs, train
    from p3o.algorithms import Specs
    from p3o.config import make_config
    from p3o.presets import preset_settings
    from p3o.spaces import action_spec, observation_spec

    if what["groups"]:
        train.num_groups = lambda env, device: what["groups"]
    if what["env"] != "synthetic":
        return jobs.set_up(jobs.Job(what["env"], what["algo"], HORIZON, preset="paper", settings=settings_of(what)))
    entry = algorithms.find(what["algo"])
    config = make_config(
        entry.config, preset_settings(what["algo"], "paper", "image", "categorical"), settings_of(what)
    )
    device.configure("image", config.deterministic)
    env = Synthetic(config.num_envs, 36 if what["tiny"] else 84)
    specs = Specs(observation_spec(env.observation_space)._replace(frame_stack=4), action_spec(env.action_space))
    trainer = train.Trainer(entry, config, env, specs, 0, config.device)
    job = jobs.Job(lambda: None, what["algo"], HORIZON, preset="paper")
    return jobs.Setup(job, config, specs, trainer, (env.observation_space, env.action_space))


def fill_replay(trainer: Any) -> None:
    """As if the ring had been written once, with noise for frames: zeros would be quicker to multiply."""
    import jax
    import jax.numpy as jnp

    plan = trainer.algorithm.replay
    if plan is None:
        return
    held = trainer.memory if trainer.memory is not None else trainer.state.replay
    (ring,) = held.data.observation.images
    noise = np.random.default_rng(0).integers(0, 256, ring.shape[1:], np.uint8)
    if trainer.memory is not None:
        ring[:] = noise
        trainer.memory.num_added += plan.slots
        return
    ring = jax.jit(lambda old, new: jnp.broadcast_to(new[None], old.shape), donate_argnums=0)(ring, noise)
    data = held.data._replace(observation=held.data.observation._replace(images=(ring,)))
    trainer.state = trainer.state._replace(replay=held._replace(data=data, num_added=held.num_added + plan.slots))


def measure(what: dict[str, Any]) -> dict[str, Any]:
    """Speed and parts of one setting, in this process."""
    from p3o.clocks import breakdown
    from p3o.placement import replay_line

    setup = set_up(what)
    trainer = setup.trainer
    trainer.rollout.has_threads = not what["one_thread"]
    fill_replay(trainer)
    started = time.perf_counter()
    trainer.iterate(HORIZON)
    compile_seconds = time.perf_counter() - started
    for _ in range(what["warm_up"]):
        trainer.iterate(HORIZON)
    trainer.settle()
    step, iteration, started = trainer.step, trainer.iteration, time.perf_counter()
    while time.perf_counter() - started < what["seconds"]:
        trainer.iterate(HORIZON)
    trainer.settle()
    seconds = time.perf_counter() - started
    found = {
        "speed": (trainer.step - step) / seconds,
        "iteration_ms": 1e3 * seconds / (trainer.iteration - iteration),
        "compile_seconds": compile_seconds,
        "device": trainer.device.platform,
        "replay": replay_line(trainer.algorithm.replay_bytes, trainer.placement) if trainer.algorithm.replay else "",
    }
    parts = breakdown(trainer, what["seconds"] / 2, HORIZON)
    names = {"simulator": "emulation", "acting": "acting", "updating": "updating"}
    found["parts_ms"] = {word: 1e3 * parts.parts[name] for name, word in names.items()}
    found["parts_ms"]["rest"] = 1e3 * (parts.parts["copying"] + parts.parts["normalising"])
    if what.get("checkpoint"):
        found["checkpoint"] = measure_checkpoint(setup, what)
    trainer.env.close()
    return found


def profile(what: dict[str, Any], iterations: int) -> None:
    """The functions in which so many iterations spend the host's time, its waits for the device included.

    All on one thread, since the profiler sees no other.
    """
    import cProfile
    import pstats

    trainer = set_up(what).trainer
    trainer.rollout.has_threads = False
    fill_replay(trainer)
    for _ in range(1 + what["warm_up"]):
        trainer.iterate(HORIZON)
    trainer.settle()
    step, started, watch = trainer.step, time.perf_counter(), cProfile.Profile()
    watch.enable()
    for _ in range(iterations):
        trainer.iterate(HORIZON)
    trainer.settle()
    watch.disable()
    seconds = time.perf_counter() - started
    speed, each = (trainer.step - step) / seconds, 1e3 * seconds / iterations
    print(
        f"{what['name']}: {speed:,.0f} steps/s, {each:.2f} ms an iteration under the profiler, {iterations} iterations"
    )
    pstats.Stats(watch).strip_dirs().sort_stats("tottime").print_stats(30)
    trainer.env.close()


def measure_checkpoint(setup: Any, what: dict[str, Any]) -> dict[str, float]:
    """Two checkpoints of a run: the first after a fresh start, the second after `rollouts` more."""
    from p3o import folder as folders
    from p3o.display import NoDisplay
    from p3o.recording import Recorder
    from p3o.session import Session

    trainer, costs = setup.trainer, []
    with tempfile.TemporaryDirectory(prefix="p3o-bench-") as parent:
        run = Path(parent) / "run"
        config, lock = folders.open_folder(setup, run, None)
        with lock:
            session = Session(setup, NoDisplay(), run, config)
            session.recorder = Recorder(run, trainer.algorithm.metrics)
            session.checkpoints.segments = [
                {"name": "none", "first": 0, "last": trainer.num_added if trainer.is_replay_apart else 0}
            ]
            for _ in range(2):  # the first compiles
                for _ in range(what["rollouts"]):
                    trainer.iterate(HORIZON)
                trainer.settle()
                before, started = session.checkpoints.saver.cost, time.perf_counter()
                session.save(is_waited_for=False)
                stalled = time.perf_counter() - started
                slowed = time.perf_counter()
                count = 0
                while session.checkpoints.saver.is_busy:
                    trainer.iterate(HORIZON)
                    count += 1
                trainer.settle()
                slowed = time.perf_counter() - slowed
                session.wait_for_save()
                cost = session.checkpoints.saver.cost
                costs.append(
                    {
                        "rollouts": what["rollouts"],
                        "stalled_ms": 1e3 * stalled,
                        "written_mb": (cost.num_bytes - before.num_bytes) / 1e6,
                        "writing_seconds": cost.seconds - before.seconds,
                        "iteration_ms_meanwhile": 1e3 * slowed / max(count, 1),
                    }
                )
            session.recorder.close()
    return costs[-1]


def plan(options: argparse.Namespace) -> list[dict[str, Any]]:
    """All measurements: each algorithm, then P3O's variations."""
    common = {
        "env": options.env,
        "seconds": options.seconds,
        "tiny": options.tiny,
        "groups": options.groups,
        "one_thread": options.one_thread,
        "warm_up": 3 if options.tiny else 30,
    }
    chosen = dict(pair.split("=", 1) for pair in options.set)
    rollouts = 4 if options.tiny else 196  # of the paper's shape: a checkpoint every 50,000 steps
    jobs = []
    for algo in options.algos:
        extra = {"checkpoint": True, "rollouts": rollouts} if algo == "p3o" else {}
        jobs.append(common | {"name": algo, "algo": algo, "settings": chosen} | extra)
    if "p3o" in options.algos and not options.short:
        variations: dict[str, dict[str, Any]] = {
            "p3o tf32": {"precision": "tf32"},
            "p3o bfloat16": {"precision": "bfloat16"},
            "p3o, replay in host memory": {"replay_device": "host"},
            "p3o deterministic": {"deterministic": True},
        }
        jobs += [common | {"name": name, "algo": "p3o", "settings": chosen | s} for name, s in variations.items()]
    if "ppo" in options.algos and not options.short:
        jobs.append(common | {"name": "ppo tf32", "algo": "ppo", "settings": chosen | {"precision": "tf32"}})
    return jobs


def run_worker(what: dict[str, Any]) -> Any:
    import subprocess

    pipe = subprocess.PIPE
    command = [sys.executable, __file__, "--worker", json.dumps(what)]
    return result_of(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=os.environ))


def table(results: dict[str, Any]) -> list[str]:
    rows = []
    for name, found in results.items():
        parts = [f"{found['parts_ms'][part]:.2f}" for part in ("emulation", "acting", "updating", "rest")]
        rows.append([name, f"{found['speed']:,.0f}", f"{found['iteration_ms']:.2f}", *parts, found["device"]])
    header = ["run", "steps/s", "iteration ms", "emulation", "acting and copies", "updating", "rest", "device"]
    return markdown_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="BreakoutNoFrameskip-v4", help="a game, or synthetic")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--short", action="store_true", help="no variations")
    parser.add_argument("--tiny", action="store_true", help="small shapes and a second each, to see that it runs")
    parser.add_argument("--save", type=Path, help="file for the numbers")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="settings of all runs")
    parser.add_argument("--groups", type=int, default=0, help="of games, each with its thread; 0: as training chooses")
    parser.add_argument("--one-thread", action="store_true", help="groups take turns instead")
    parser.add_argument("--profile", type=int, metavar="N", help="of each algorithm a profile of N iterations instead")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(measure(options.worker)))
        return
    if options.tiny:
        options.env, options.seconds = "synthetic", 1.0
    if find_spec("p3o.envs.atari") is None and options.env != "synthetic":
        print("p3o.envs.atari is not there: made-up frames instead", file=sys.stderr)
        options.env = "synthetic"
    if options.profile:
        options.short = True
        for what in plan(options):
            profile(what, options.profile)
        return
    line = machine_line("p3o", "jax", "jaxlib", "numpy", "ale-py")
    results: dict[str, Any] = {}
    for what in plan(options):
        found = run_worker(what)
        if found is not None:
            results[what["name"]] = found
            print(f"{what['name']}: {found['speed']:,.0f} steps/s, {found['iteration_ms']:.2f} ms", flush=True)
        if options.save:
            content = {"machine": line, "cores": len(usable_cores()), "env": options.env, "results": results}
            options.save.write_text(json.dumps(content, indent=1) + "\n")
    print(line)
    print("\n".join(table(results)))
    for name, found in results.items():
        if "checkpoint" in found:
            print(f"checkpoint of {name}: {json.dumps(found['checkpoint'])}")


if __name__ == "__main__":
    main()
