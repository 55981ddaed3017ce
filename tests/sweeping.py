"""`p3o sweep` as a process, killed in the ways that a sweep has to survive; with a stand-in for the sweep's own page.

By hand, 2 environments × 3 algorithms × 3 seeds killed three ways: `python tests/sweeping.py OUT`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from killing import differences

# An update that compiles in a second; a checkpoint every few iterations, so that kills fall between two.
TINY_SWEEP = ("--set", "num_envs=2", "num_steps=16", "hidden_sizes=8", "checkpoint_every=200")


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "p3o.cli", "sweep", *(str(w) for w in words)]


def begin(*words: object, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def sweep(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, check=False, **options)


def workers_of(pid: int) -> list[int]:
    """The processes that a sweep has started (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                is_worker = b"p3o.sweeps.worker" in (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == pid and is_worker:
                found.append(int(entry.name))
    return found


def is_alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Any, seconds: float = 60.0) -> Any:
    """What the condition returns once that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise TimeoutError(f"nothing in {seconds} seconds")


def checkpoints(out: Path) -> set[tuple[Path, int]]:
    """Every whole checkpoint that is there, told apart from the one before it by its time."""
    return {(path, path.stat().st_mtime_ns) for path in out.glob("*/*/*/checkpoint/checkpoint.json")}


def runs(out: Path) -> list[Path]:
    return sorted(path.parent.relative_to(out) for path in out.glob("*/*/*/config.json"))


def compare(alone: Path, killed: Path) -> list[str]:
    """What differs between two sweeps that should be equal: names of files, and what is in them."""
    found = [] if runs(alone) == runs(killed) else ["runs"]
    for run in runs(alone):
        names = [sorted(p.name for p in (out / run).iterdir()) for out in (alone, killed)]
        found += [] if names[0] == names[1] else [f"{run}: {names}"]
        found += [f"{run}: {what}" for what in differences(alone / run, killed / run)]
    return found


def kill_worker(process: subprocess.Popen[str], out: Path) -> None:
    """SIGKILL one worker after its run has a checkpoint."""
    before = checkpoints(out)
    wait_for(lambda: checkpoints(out) - before)
    os.kill(wait_for(lambda: workers_of(process.pid))[0], signal.SIGKILL)


def kill_parent(process: subprocess.Popen[str], out: Path) -> float:
    """SIGKILL the sweep alone; returns how long its workers lived on."""
    before = checkpoints(out)
    wait_for(lambda: checkpoints(out) - before)
    orphans = wait_for(lambda: workers_of(process.pid))
    process.kill()
    started = time.monotonic()
    process.communicate()
    wait_for(lambda: not any(is_alive(pid) for pid in orphans))
    return time.monotonic() - started


def kill_all(process: subprocess.Popen[str], out: Path) -> None:
    """SIGKILL of the sweep and all its workers at once, as when a machine goes down."""
    before = checkpoints(out)
    wait_for(lambda: checkpoints(out) - before)
    everyone = [process.pid, *workers_of(process.pid)]
    for pid in everyone:
        os.kill(pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not any(is_alive(pid) for pid in everyone))


def main() -> None:
    """The sweep of the issue: killed (a worker twice, the parent, everything), gone on with, compared."""
    base = Path(sys.argv[1])
    words = ["--envs", "CartPole-v1", "Pendulum-v1", "--algos", "p3o", "ppo", "a2c", "--seeds", 3]
    words += ["--steps", 20_000, "--set", "checkpoint_every=2000", *sys.argv[2:]]
    started = time.monotonic()
    alone = sweep(base / "alone", *words)
    print(f"uninterrupted: exit {alone.returncode}, {time.monotonic() - started:.0f} s", flush=True)
    started = time.monotonic()
    process = begin(base / "killed", *words)
    for _ in range(2):
        kill_worker(process, base / "killed")
    lived = kill_parent(process, base / "killed")
    print(f"2 workers killed, then the parent; its workers were gone {lived:.1f} s later", flush=True)
    process = begin(base / "killed", *words)
    kill_all(process, base / "killed")
    print("everything killed", flush=True)
    last = sweep(base / "killed", *words)
    print(last.stderr, end="")
    print(f"exit {last.returncode}, {time.monotonic() - started:.0f} s in all", flush=True)
    found = compare(base / "alone", base / "killed")
    print(f"{len(runs(base / 'alone'))} runs: {'equal' if not found else 'DIFFERENT: ' + ', '.join(found)}")
    sys.exit(bool(found) or alone.returncode or last.returncode)


if __name__ == "__main__":
    main()
