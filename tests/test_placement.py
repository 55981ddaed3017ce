"""Where the learner runs: the rules, with a stand-in for a GPU; no test here needs one."""

import json
import platform
import resource
import subprocess
import sys

import jax
import pytest

from p3o import device, placement
from p3o.display import NoDisplay
from p3o.errors import UserError
from p3o.jobs import Job, set_up
from p3o.signals import StopSignals
from p3o.starting import resume, start

JOB = Job("CartPole-v1", "p3o", 400, settings={"num_steps": 16})


class Gpu:
    platform = "gpu"

    def memory_stats(self):
        return {}


@pytest.fixture
def parts():
    trainer = set_up(JOB).trainer
    return trainer.algorithm, trainer.rollout.buffers


def with_gpu(monkeypatch, on_cpu, on_gpu):
    """A GPU whose updates take so long, and a CPU whose take so long; notes what was measured."""
    measured = []

    def seconds(algorithm, trajectory, device):
        measured.append(device.platform)
        return on_gpu if device.platform == "gpu" else on_cpu

    monkeypatch.setattr(placement, "accelerators", lambda: [Gpu()])
    monkeypatch.setattr(placement, "seconds_of_update", seconds)
    return measured


def test_without_a_gpu_nothing_is_measured_or_said(parts, monkeypatch):
    measured = with_gpu(monkeypatch, 1.0, 1.0)
    monkeypatch.setattr(placement, "accelerators", lambda: [])
    chosen = placement.place(*parts, "vector")
    assert (chosen.device.platform, chosen.reason, measured) == ("cpu", "", [])


@pytest.mark.parametrize(
    ("on_cpu", "on_gpu", "expected", "words"),
    [
        (0.0136, 0.0041, "gpu", "gpu: an update takes 13.6 ms on the CPU and 4.1 ms on the GPU"),
        (0.0136, 0.0200, "cpu", "cpu: an update takes 13.6 ms on the CPU and 20.0 ms on the GPU"),
        (0.0136, 0.0130, "cpu", "cpu: an update takes 13.6 ms on the CPU and 13.0 ms on the GPU"),  # not worth it
        (0.0004, 0.0001, "cpu", "cpu: an update takes 0.4 ms, less than a GPU needs to get going"),
    ],
)
def test_a_gpu_is_taken_for_vectors_if_its_update_is_faster(parts, monkeypatch, on_cpu, on_gpu, expected, words):
    with_gpu(monkeypatch, on_cpu, on_gpu)
    chosen = placement.place(*parts, "vector")
    assert (chosen.device.platform, chosen.reason) == (expected, words)


def test_images_go_to_the_gpu_and_wishes_count_unmeasured(parts, monkeypatch):
    measured = with_gpu(monkeypatch, 1.0, 2.0)
    assert placement.place(*parts, "image").device.platform == "gpu"
    assert placement.place(*parts, "vector", "gpu").device.platform == "gpu"
    assert placement.place(*parts, "image", "cpu").device.platform == "cpu"
    assert measured == []


def test_a_gpu_that_fails_is_not_taken(parts, monkeypatch):
    def seconds(algorithm, trajectory, device):
        if device.platform == "gpu":
            raise RuntimeError("RESOURCE_EXHAUSTED: out of memory\nmore")
        return 1.0

    with_gpu(monkeypatch, 1.0, 1.0)
    monkeypatch.setattr(placement, "seconds_of_update", seconds)
    chosen = placement.place(*parts, "vector")
    assert chosen.device.platform == "cpu"
    assert chosen.reason == "cpu: the update does not run on the GPU (RESOURCE_EXHAUSTED: out of memory)"


def test_a_replay_that_does_not_fit_is_refused_before_it_is_measured(parts, monkeypatch):
    measured = with_gpu(monkeypatch, 1.0, 0.1)
    algorithm, trajectory = parts
    with pytest.raises(UserError, match="of memory are free"):
        placement.place(algorithm._replace(replay_bytes=10**15), trajectory, "vector")
    assert measured == []


def test_a_gpu_that_is_not_there_is_one_line():
    with pytest.raises(UserError, match="setting device: gpu was asked for and JAX finds none"):
        set_up(JOB._replace(settings={"device": "gpu"}))


def test_the_measurement_includes_replayed_updates(parts, monkeypatch):
    algorithm, trajectory = parts
    counts = []
    update = algorithm.update

    def counted(*arguments):
        state, metrics = update(*arguments)
        jax.debug.callback(lambda n: counts.append(int(n)), metrics["off_policy_updates"])
        return state, metrics

    seconds = placement.seconds_of_update(
        algorithm._replace(update=counted), trajectory, jax.local_devices(backend="cpu")[0]
    )
    jax.effects_barrier()
    assert seconds > 0
    assert len(counts) == placement.MEASURED_UPDATES + 1
    assert sum(counts) > 0  # although a fresh run's replay would be empty


def test_a_resumed_run_learns_where_it_did_before(tmp_path, monkeypatch):
    session, folder_lock = start(JOB, tmp_path / "run", NoDisplay())
    with folder_lock:
        session.run(StopSignals())
    file = tmp_path / "run" / "config.json"
    config = json.loads(file.read_text())
    assert config["device"] == "cpu"
    measured = with_gpu(monkeypatch, 1.0, 0.001)  # a new run would go to the GPU now
    session, folder_lock = resume(tmp_path / "run", NoDisplay(), 800)
    with folder_lock:
        assert session.trainer.device.platform == "cpu"
    assert measured == []


class Messages(NoDisplay):
    def __init__(self):
        self.said = []

    def message(self, text):
        self.said.append(text)


def test_a_gpu_run_resumed_without_a_gpu_says_so(tmp_path):
    session, folder_lock = start(JOB, tmp_path / "run", NoDisplay())
    with folder_lock:
        session.run(StopSignals())
    file = tmp_path / "run" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device": "gpu"}))
    display = Messages()
    session, folder_lock = resume(tmp_path / "run", display, 800)
    with folder_lock:
        assert session.trainer.device.platform == "cpu"
    assert any("was on a GPU, and there is none here" in said for said in display.said)
    config = json.loads(file.read_text())
    assert (config["device"], config["resumes"][-1]["device"]) == ("cpu", "cpu")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"device": "abacus"}))
    with pytest.raises(UserError, match="device is 'abacus'"):
        resume(tmp_path / "run", display, 1200)


# Where the replay lies.


class SmallGpu(Gpu):
    """Ten gigabytes, two of them taken."""

    def memory_stats(self):
        return {"bytes_limit": 10_000_000_000, "bytes_in_use": 2_000_000_000}


@pytest.mark.parametrize(
    ("size", "kind", "wanted", "is_on_host"),
    [
        (5_600_000_000, "image", "auto", False),  # 70 % of the eight that are free
        (5_600_000_001, "image", "auto", True),
        (7_000_000_000, "image", "gpu", False),
        (1_000, "image", "host", True),
        (7_000_000_000, "vector", "auto", False),
        (0, "image", "host", False),
    ],
)
def test_a_replay_of_images_is_on_the_gpu_with_room_to_spare_or_in_host_memory(
    parts, monkeypatch, size, kind, wanted, is_on_host
):
    with_gpu(monkeypatch, 1.0, 0.1)
    monkeypatch.setattr(placement, "accelerators", lambda: [SmallGpu()])
    monkeypatch.setattr(placement, "free_memory", lambda: 10**12)
    algorithm, trajectory = parts
    plan = algorithm.replay._replace(device=wanted)
    chosen = placement.place(algorithm._replace(replay_bytes=size, replay=plan), trajectory, kind)
    assert chosen.device.platform == "gpu"
    assert chosen.is_replay_on_host == is_on_host


def test_a_replay_that_fits_nowhere_is_refused(parts, monkeypatch):
    with_gpu(monkeypatch, 1.0, 0.1)
    monkeypatch.setattr(placement, "accelerators", lambda: [SmallGpu()])
    monkeypatch.setattr(placement, "free_memory", lambda: 6_000_000_000)
    algorithm, trajectory = parts
    with pytest.raises(UserError, match=r"needs 6 GB and 6 GB of memory are free"):
        placement.place(algorithm._replace(replay_bytes=6_000_000_000), trajectory, "image")


def test_a_replay_on_a_gpu_needs_one(parts):
    algorithm, trajectory = parts
    wanting = algorithm._replace(replay=algorithm.replay._replace(device="gpu"))
    with pytest.raises(UserError, match=r"setting replay_device: gpu was asked for"):
        placement.place(wanting, trajectory, "image", "cpu")


def test_the_start_says_where_the_replay_is():
    cpu = placement.Placement(jax.local_devices(backend="cpu")[0])
    assert placement.replay_line(6_600_000_000, cpu) == "replay: 6.6 GB in memory, allocated once"
    assert placement.replay_line(6_600_000_000, placement.Placement(SmallGpu())) == (
        "replay: 6.6 GB on the GPU, allocated once"
    )
    assert placement.replay_line(6_600_000_000, placement.Placement(SmallGpu(), "", True)) == (
        "replay: 6.6 GB in host memory (the GPU has 8 GB to give), allocated once"
    )


def test_the_start_says_what_to_expect_of_the_device():
    cpu, gpu = placement.Placement(jax.local_devices(backend="cpu")[0]), placement.Placement(SmallGpu(), "gpu: so")
    compiles = "compiles first: a minute or two, seconds where the same was compiled before"
    exact = "on this device resume is exact only with --set deterministic=true"
    assert placement.what_to_expect(cpu, None, False) == []
    assert placement.what_to_expect(cpu, 330.0, False) == [
        "images on the CPU alone: some 330 steps/s a core; a GPU is far faster"
    ]
    assert placement.what_to_expect(gpu, 330.0, False) == ["learns on gpu: so", compiles, exact]
    assert placement.what_to_expect(gpu, 330.0, True) == ["learns on gpu: so", compiles]
    assert placement.what_to_expect(gpu, None, False) == ["learns on gpu: so", exact]


def test_runs_of_a_sweep_share_a_gpu(monkeypatch):
    assert placement._free_on(SmallGpu()) == 8_000_000_000
    monkeypatch.setenv("P3O_GPU_SHARE", "4")
    assert placement._free_on(SmallGpu()) == 2_000_000_000


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="glibc's own switches")
@pytest.mark.parametrize(("kind", "size"), [("vector", 80 << 20), ("image", 80 << 20), ("image", 320 << 20)])
def test_large_blocks_that_threads_free_are_kept_for_the_next_call(kind, size):
    """A thread takes, fills and frees a block 8 times: its pages come once, or 8 times where they are given back.

    80 MiB are more than 64, the largest block that glibc's arenas but the first can hold; an update of PPO on games
    takes some 300.
    """
    script = f"""
import ctypes, resource, threading
from p3o import device
device.configure({kind!r})
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def fill():
    for _ in range(8):  # not NumPy's, which asks for huge pages
        block = libc.malloc({size})
        ctypes.memset(block, 1, {size})
        libc.free(block)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=fill)
thread.start()
thread.join()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) < 3 * size // resource.getpagesize()


@pytest.mark.parametrize(
    "names",
    [
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ],
)
def test_files_that_a_container_only_caches_are_free_memory(tmp_path, monkeypatch, names):
    limit, used, statistics, cached = names
    (tmp_path / "memory").mkdir()
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    (tmp_path / limit).write_text("5000\n")
    (tmp_path / used).write_text("4000\n")
    assert device.free_memory() == 1000
    (tmp_path / statistics).write_text(f"anon 1\n{cached} 3000\nfile 9\n")
    assert device.free_memory() == 4000
    (tmp_path / used).write_text("9000\n")
    assert device.free_memory() == 0


def test_a_run_without_a_replay_needs_no_memory_for_it(monkeypatch):
    monkeypatch.setattr(placement, "free_memory", lambda: 0)
    placement.check_memory(0, jax.local_devices(backend="cpu")[0])
    with pytest.raises(UserError, match="0 bytes of memory are free"):
        placement.check_memory(1, jax.local_devices(backend="cpu")[0])
