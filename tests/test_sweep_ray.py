"""The same sweep on a real Ray cluster, started on this machine: equal files, also after a worker was killed."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest
from sweeping import TINY_SWEEP, begin, checkpoints, compare, sweep, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray (extra `ray`)"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes through /proc"),
]
DESIGN = ("--envs", "CartPole-v1", "--algos", "a2c", "--seeds", "2", "--steps", "6000", *TINY_SWEEP)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = parent(pid)
    return False


def tasks_of(sweep_pid: int) -> list[int]:
    """Ray's processes that work on a run of this sweep."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cmdline").read_bytes().startswith(b"ray::run_on_node"):
                found += [int(entry.name)] if is_below(int(entry.name), sweep_pid) else []
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The sweep without Ray; read only."""
    out = tmp_path_factory.mktemp("sweeps") / "alone"
    assert sweep(out, *DESIGN).returncode == 0
    return out


def test_a_worker_killed_in_the_middle(alone, tmp_path):
    process = begin(tmp_path / "out", *DESIGN, "--ray", "local", "--workers", 1)  # the task is the one with the files
    wait_for(lambda: checkpoints(tmp_path / "out"), 120)
    (task,) = wait_for(lambda: tasks_of(process.pid))
    os.kill(task, signal.SIGKILL)
    out, err = process.communicate(timeout=180)
    assert (process.returncode, out) == (0, f"{tmp_path / 'out'}\n"), err
    (again,) = (line for line in err.splitlines() if line.startswith("again "))
    assert "from step 0" not in again  # a checkpoint had come home
    assert "its Ray task was lost" in again
    assert compare(alone, tmp_path / "out") == []


def test_stopped_on_ray_and_finished_without_it(alone, tmp_path):
    process = begin(tmp_path / "out", *DESIGN, "--ray", "local")
    wait_for(lambda: checkpoints(tmp_path / "out"), 120)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (143, f"{tmp_path / 'out'}\n"), err
    assert err.splitlines()[-1].endswith("the same command goes on from here")
    result = sweep(tmp_path / "out", *DESIGN)
    assert result.returncode == 0, result.stderr
    assert "resume" in result.stderr
    assert compare(alone, tmp_path / "out") == []


def test_a_killed_ray_sweep_goes_on(alone, tmp_path):
    process = begin(tmp_path / "out", *DESIGN, "--ray", "local")
    wait_for(lambda: checkpoints(tmp_path / "out"), 120)
    process.kill()
    process.communicate()
    result = sweep(tmp_path / "out", *DESIGN, "--ray", "local")
    assert result.returncode == 0, result.stderr
    assert "resume" in result.stderr
    assert compare(alone, tmp_path / "out") == []


@pytest.mark.parametrize("address", ["auto", "nonsense", "127.0.0.1:9", "ray://127.0.0.1:9"])
def test_a_bad_address_is_one_line(address, tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    result = sweep(tmp_path / "out", *DESIGN, "--ray", address, env=environment)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"p3o: --ray {address}: ")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()
