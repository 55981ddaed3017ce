"""Runs killed with SIGKILL at random moments and resumed, against the same run left alone.

Used by the tests, and by hand: `python tests/killing.py CartPole-v1 Hopper-v5 --kills 20`; on a GPU
`python tests/killing.py BreakoutNoFrameskip-v4 --kills 2 --steps 40000 --every 8000 --preset paper
--set deterministic=true burn_in=200 replay_size=4000`.
"""

import argparse
import csv
import json
import os
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors.numpy import load_file


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "p3o", *(str(w) for w in words)]


def episodes(run: Path) -> list[list[str]]:
    """episodes.csv without its wall-clock column."""
    with open(run / "episodes.csv", newline="") as file:
        return [row[:-1] for row in csv.reader(file)]


def updates(run: Path) -> list[dict[str, str]]:
    """updates.csv without its wall-clock column."""
    with open(run / "updates.csv", newline="") as file:
        return [{k: v for k, v in row.items() if k != "steps_per_second"} for row in csv.DictReader(file)]


def events(run: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) of every TensorBoard scalar but the speed, in the order of the files."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted((run / "tb").iterdir(), key=lambda p: int(p.name.rpartition(".")[2])):
        data, at = path.read_bytes(), 0
        while at < len(data):  # a record is its length, a checksum of that, the bytes and a checksum of them
            (length,) = struct.unpack_from("<Q", data, at)
            record = data[at + 12 : at + 12 + length]
            assert len(record) == length, f"{path} ends inside a record"
            event = Event.FromString(record)
            found += [(event.step, v.tag, v.simple_value) for v in event.summary.value if v.tag != "time/fps"]
            at += 12 + length + 4
    return found


def evaluations(run: Path) -> str:
    path = run / "evaluations.csv"
    return path.read_text() if path.exists() else ""


def state(run: Path) -> object:
    """The plain part of the checkpoint without clocks and lengths of files."""
    tree = json.loads((run / "checkpoint" / "checkpoint.json").read_text())["state"]
    tree["trainer"].pop("seconds")
    tree.pop("segments", None)  # where one segment ends and the next begins depends on the kills
    del tree["files"], tree["line_at"][2]
    return tree


def rollouts(run: Path) -> list[list[bytes]]:
    """The rollouts of a replay that is stored in segments, in order; the last ones, as many as the ring holds."""
    import p3o.segments

    tree = json.loads((run / "checkpoint" / "checkpoint.json").read_text())["state"]
    settings = json.loads((run / "config.json").read_text())["settings"]
    found = []
    for segment in tree.get("segments", []):
        chunk = p3o.segments.read(run / "checkpoint", segment)
        found += [[leaf[i].tobytes() for leaf in chunk.leaves] for i in range(chunk.last - chunk.first)]
    return found[-max(1, settings.get("replay_size", 0) // settings["num_steps"]) :]


def differences(one: Path, other: Path) -> list[str]:
    """What differs between two finished runs that should be equal; empty when they are."""
    found = [
        read.__name__ for read in (episodes, updates, events, evaluations, state, rollouts) if read(one) != read(other)
    ]
    models = [Path(m) / "model.safetensors" for m in ("model", "model-best") if (one / m).exists()]
    for part, same in (*zip(models, models, strict=True), (last_checkpoint(one), last_checkpoint(other))):
        a = load_file(one / part)
        b = load_file(other / same)
        found += [f"{part}: {name}" for name in a.keys() | b.keys() if not _same(a.get(name), b.get(name))]
    return found


def last_checkpoint(run: Path) -> Path:
    (state,) = (run / "checkpoint").glob("state-*.safetensors")
    return state.relative_to(run)


def _same(a, b) -> bool:  # type: ignore[no-untyped-def]
    return a is not None and b is not None and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def run_to_end(run: Path, arguments: list[str]) -> float:
    """An uninterrupted run; returns its seconds."""
    started = time.monotonic()
    subprocess.run(command("train", *arguments, "--out", run), check=True, capture_output=True)
    return time.monotonic() - started


def run_with_kills(
    run: Path,
    arguments: list[str],
    kills: int,
    longest: float,
    rng: random.Random,
    how: int = signal.SIGKILL,
    is_under_way: bool = False,
) -> int:
    """The same run, stopped up to `kills` times at random moments and resumed after each; returns how often.

    No moment is left out: start-up, compilation, a rollout, or the writing of a checkpoint. With `is_under_way` the
    clock of each moment starts when the process has written a checkpoint, however long it took to get there.
    """
    done = 0
    words = ["train", *arguments, "--out", str(run)]
    while True:
        process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done < kills:
            if is_under_way:
                wait_for_checkpoint(run, process)
            try:
                process.wait(timeout=rng.uniform(0.0 if is_under_way else 0.3, longest))
            except subprocess.TimeoutExpired:
                os.kill(process.pid, how)
                done += 1
        _, errors = process.communicate()
        if process.returncode == 0:
            return done
        assert process.returncode in (-how, 128 + how), errors.decode()
        assert b"Traceback" not in errors, errors.decode()
        if (run / "config.json").exists():
            words = ["resume", str(run)]


def wait_for_checkpoint(run: Path, process: subprocess.Popen) -> None:
    """Until there is another one, or the process has ended."""
    index = run / "checkpoint" / "checkpoint.json"
    before, deadline = (index.stat().st_ino if index.exists() else None), time.monotonic() + 300
    while process.poll() is None and (not index.exists() or index.stat().st_ino == before):
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.005)


def check(
    env: str, steps: int, every: int, kills: int, seed: int, folder: Path, preset: str = "default", *settings: str
) -> tuple[int, list[str]]:
    """Kill one environment's run; returns the number of kills and what came out different."""
    changes = (f"checkpoint_every={every}", *settings)
    arguments = [env, "--preset", preset, "--steps", str(steps), "--set", *changes]
    alone, killed = folder / f"{env}-alone", folder / f"{env}-killed"
    seconds = run_to_end(alone, arguments)
    longest = 2.0 + 2 * seconds / kills  # start-up, and a share of the training each
    done = run_with_kills(killed, arguments, kills, longest, random.Random(seed))
    return done, differences(alone, killed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--kills", type=int, default=20, help="kills of each environment's run")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--every", type=int, default=1_000, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", nargs="+", default=[], help="settings of the runs, say deterministic=true on a GPU")
    options = parser.parse_args()
    failed = False
    for env in options.envs:
        with tempfile.TemporaryDirectory() as folder:
            job = (env, options.steps, options.every, options.kills, options.seed, Path(folder))
            kills, found = check(*job, options.preset, *options.set)
        print(f"{env}: {kills} kills, {'equal' if not found else 'DIFFERENT: ' + ', '.join(found)}", flush=True)
        failed |= bool(found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
