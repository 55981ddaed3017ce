"""The parts of a sweep by themselves: designs, the schedule, what is shown, and files on their way from a node."""

import contextlib
import errno
import io
import shutil
import time
import types
from pathlib import Path

import numpy as np
import pytest
from commands import TINY, call
from killing import differences
from rich.console import Console

from p3o import checkpoint, starting
from p3o.display import make_display
from p3o.errors import UserError
from p3o.folder import lock
from p3o.jobs import Job
from p3o.signals import StopSignals
from p3o.sweeps import board as boards
from p3o.sweeps import cluster, local, parcels, plan, schedule
from p3o.sweeps.design import read_file
from p3o.sweeps.local import Event
from p3o.sweeps.worker import Reporter, wait_for_lock

DESIGN = """
seeds = 2
steps = "1e4"

[[block]]
envs = ["CartPole-v1", "Acrobot-v1"]
algos = ["p3o", "ppo"]
preset = "paper"

[[block]]
envs = "CartPole-v1"
seeds = [3, 7]
steps = 500
variant = "lambda-0"
eval_every = 100
set = { kl_coef = 0, hidden_sizes = [8, 8] }
env_set = { sutton_barto_reward = true }
"""


def write(folder, text, name="design.toml"):
    (folder / name).write_text(text)
    return folder / name


def test_a_design_file_of_two_blocks(tmp_path):
    jobs, design = read_file(write(tmp_path, DESIGN))
    assert [(j.env, j.algo, j.seed, j.steps) for j in jobs[:8]] == [
        (env, algo, seed, 10_000) for env in ("CartPole-v1", "Acrobot-v1") for algo in ("p3o", "ppo") for seed in (0, 1)
    ]
    assert {j.preset for j in jobs[:8]} == {"paper"}
    settings = {"kl_coef": 0, "hidden_sizes": [8, 8]}
    assert jobs[8:] == [
        Job("CartPole-v1", "p3o", 500, seed, "default", "lambda-0", settings, {"sutton_barto_reward": True}, 100)
        for seed in (3, 7)
    ]
    assert len(design["block"]) == 2


def test_the_same_design_in_yaml(tmp_path):
    pytest.importorskip("yaml", reason="needs PyYAML")
    text = """
seeds: 2
steps: 1e4
block:
  - {envs: [CartPole-v1, Acrobot-v1], algos: [p3o, ppo], preset: paper}
  - envs: CartPole-v1
    seeds: [3, 7]
    steps: 500
    variant: lambda-0
    eval_every: 100
    set: {kl_coef: 0, hidden_sizes: [8, 8]}
    env_set: {sutton_barto_reward: true}
"""
    assert read_file(write(tmp_path, text, "design.yaml"))[0] == read_file(write(tmp_path, DESIGN))[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("env = ['CartPole-v1']", "unknown key 'env' (did you mean envs?)"),
        (
            "[[block]]\nenvs = ['A']\n[[block]]\nenvs = ['A']\nseed = 1",
            "block 2: unknown key 'seed' (did you mean seeds?)",
        ),
        ("envs = 3", "envs is 3, should be a list of names"),
        ("envs = ['CartPole-v1']\nseeds = 0", "seeds: '0'"),
        ("envs = ['CartPole-v1']\nseeds = [1, 1]", "seed 1 is there twice"),
        ("envs = ['CartPole-v1']\nseeds = ['x']", "should be a list of whole numbers"),
        ("envs = ['CartPole-v1']\nseeds = true", "seeds"),
        ("envs = ['CartPole-v1']\nsteps = 1.5", "steps: '1.5'"),
        ("envs = ['CartPole-v1']\nset = ['gamma=1']", "should be a table of names and values"),
        ("envs = ['CartPole-v1']\nset = { gamma = 2026-01-01 }", "gamma is datetime.date"),
        ("envs = ['CartPole-v1']\nvariant = 'a/b'", "variant 'a/b'"),
        ("envs = ['CartPole-v1']\npreset = 1", "preset is 1, should be text"),
        ("block = 3", "block should be a list of tables"),
        ("seeds = 1", "envs is missing"),
        ("envs = [", "is no TOML"),
    ],
)
def test_a_bad_design_is_one_line(text, said, tmp_path):
    with pytest.raises(UserError) as caught:
        read_file(write(tmp_path, text))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "design.toml" in str(caught.value)


def test_a_design_of_another_kind(tmp_path):
    with pytest.raises(UserError, match=r"a design is a \.toml"):
        read_file(write(tmp_path, "{}", "design.json"))


def test_a_single_seed_in_a_list_is_that_seed(tmp_path):
    jobs, _ = read_file(write(tmp_path, "envs = 'CartPole-v1'\nseeds = [4]"))
    assert [job.seed for job in jobs] == [4]


def make_run(name="seed-0", steps=1000, out=Path("out"), kind="vector", device="auto", replay_bytes=0, **fields):
    folder = out / "CartPole-v1" / fields.pop("algo", "a2c-default") / name
    asked = {"settings": {"device": device}}
    return plan.Run(Job("CartPole-v1", "a2c", steps), folder, asked, kind, replay_bytes, 1e-3, **fields)


@pytest.mark.parametrize(
    ("kind", "device", "share"),
    [
        ("vector", "auto", 0),
        ("vector", "cpu", 0),
        ("vector", "gpu", 0.5),
        ("image", "auto", 0.5),
        ("image", "cpu", 0),
        ("image", "gpu", 0.5),
    ],
)
def test_who_gets_a_gpu(kind, device, share, monkeypatch):
    """Locally the variable that hides it is not set, on Ray it has a share, and its replay is not in host memory."""
    run = make_run(kind=kind, device=device, replay_bytes=100)
    assert ("JAX_PLATFORMS" in local.single_thread_variables(run.may_use_gpu)) == (not share)
    two_gpus = types.SimpleNamespace(_cluster=lambda: {"GPU": 2.0}, capacity=4)
    assert cluster.RayEngine._gpu_share(two_gpus, run) == share
    monkeypatch.setattr(plan, "find_spec", lambda name: name)  # JAX for GPUs is installed
    monkeypatch.setattr("p3o.device.free_memory", lambda: 50)
    with contextlib.nullcontext() if share else pytest.raises(UserError, match="of memory are free"):
        plan.check_memory([run], 1)


def test_a_run_that_began_on_a_gpu_goes_on_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "has_gpu", lambda: False)
    run = make_run(out=tmp_path, device="gpu")
    with pytest.raises(UserError, match="JAX finds none"):
        local.check_gpu([run])
    run.folder.mkdir(parents=True)
    (run.folder / "config.json").write_text("{}")
    local.check_gpu([run])


@pytest.mark.parametrize(
    ("kind", "device", "has_gpu", "expected"),
    [("image", "auto", True, 3), ("image", "auto", False, 7), ("image", "cpu", True, 7), ("vector", "gpu", True, 7)],
)
def test_games_on_a_gpu_have_two_cores_a_run(monkeypatch, kind, device, has_gpu, expected):
    monkeypatch.setattr(local, "available_cores", lambda: list(range(7)))
    monkeypatch.setattr(plan, "find_spec", lambda name: name)
    monkeypatch.setattr(local, "has_gpu", lambda: has_gpu)
    runs = [make_run(kind="image", device="gpu"), make_run(kind=kind, device=device)]
    assert local.runs_at_once(runs) == expected
    monkeypatch.setattr(local, "available_cores", lambda: [0])
    assert local.runs_at_once(runs) == 1


def test_the_longest_comes_first_by_measured_speed_where_there_is_one():
    runs = [make_run("seed-0", 1000), make_run("seed-1", 3000), make_run("seed-0", 2000, algo="ppo-default")]
    assert plan.next_run(runs) is runs[1]
    runs.append(make_run("seed-1", 500, algo="ppo-default", state="finished", step=500, steps_per_second=100.0))
    assert plan.seconds_left(runs[2], runs) == pytest.approx(20.0)  # 2000 steps at 100 a second
    assert plan.next_run(runs) is runs[2]
    runs[1].step = 2999  # one step to go
    assert plan.seconds_left(runs[1], runs) == pytest.approx(1e-3)


def test_time_left_is_bounded_by_the_longest_run():
    runs = [make_run("seed-0", 10_000), make_run("seed-1", 1000), make_run("seed-2", 1000)]
    assert plan.sweep_seconds_left(runs, 1) == pytest.approx(12.0)
    assert plan.sweep_seconds_left(runs, 4) == pytest.approx(10.0)


class Script:
    """An engine that plays what happens to each attempt: the step of its checkpoint and its last message."""

    capacity = 1

    def __init__(self, attempts):
        self.attempts = list(attempts)
        self.runs: list[plan.Run] = []

    def start(self, run):
        self.runs = [run]

    def poll(self, seconds):
        (run,), self.runs = self.runs, []
        step, message = self.attempts.pop(0)
        if step:
            (run.folder / "checkpoint").mkdir(parents=True, exist_ok=True)
            checkpoint.write_json(run.folder / "checkpoint" / checkpoint.INDEX, {"format": 1, "step": step})
        return [Event(run, message)]


class NoLedger:
    def write(self): ...


def play(run, *attempts):
    text = io.StringIO()
    board = boards.PlainBoard("title", Console(file=text, width=200))
    script = Script(attempts)
    with StopSignals() as stop:
        schedule.Schedule([run], script, board, NoLedger()).run(stop)
    assert script.attempts == []
    return text.getvalue()


DIED = {"kind": "died", "reason": "lightning"}


def test_a_process_may_die_twice_without_progress(tmp_path):
    run = make_run(out=tmp_path)
    said = play(run, (0, DIED), (0, DIED), (0, {"kind": "finished", "step": 1000}))
    assert run.state == "finished"
    assert said.count("again ") == 2


def test_the_third_death_is_a_failure(tmp_path):
    run = make_run(out=tmp_path)
    play(run, (0, DIED), (0, DIED), (0, DIED))
    assert (run.state, run.reason) == ("failed", "lightning, for the third time without progress")


def test_progress_wipes_the_slate(tmp_path):
    run = make_run(out=tmp_path)
    deaths = [(0, DIED), (0, DIED), (100, DIED), (100, DIED), (200, DIED), (200, DIED)]
    play(run, *deaths, (0, {"kind": "finished", "step": 1000}))
    assert run.state == "finished"


def test_an_exception_is_not_tried_again(tmp_path):
    run = make_run(out=tmp_path)
    play(run, (0, {"kind": "failed", "reason": "loss is nan"}))
    assert (run.state, run.reason) == ("failed", "loss is nan")


def drawn(runs, width, height):
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(boards.render("sweep of many runs", runs, 4, width, height))
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("height", [10, 24, 60])
@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(width, height):
    runs = [make_run(f"seed-{i}", state="finished", step=1000) for i in range(100)]
    runs += [make_run(f"seed-{i}") for i in range(100, 300)]
    runs += [
        make_run(f"seed-{i}", state="running", step=500, mean_return=12.5, steps_per_second=50.0) for i in range(4)
    ]
    runs += [make_run("seed-9", state="failed", reason="x")]
    lines = drawn(runs, width, height)
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "100/305 finished" in text
    assert "more waiting" in text
    if height > 10 and width >= 80:
        first = lines.index(next(line for line in lines if "seed-" in line))
        assert all("running" in line and "12.5" in line and "0:10" in line for line in lines[first : first + 4])
        assert "failed" in lines[first + 4]


def test_plain_lines_come_at_a_modest_pace():
    now, text = [0.0], io.StringIO()
    board = boards.PlainBoard("title", Console(file=text, width=200), lambda: now[0])
    run = make_run(state="running", step=500, steps_per_second=50.0)
    for now[0] in np.arange(0.0, 65.0, 0.5):
        board.update([run], 1)
    assert text.getvalue().splitlines() == ["title", *["0/1 finished, 1 running  50 %  0:10 left"] * 2]


def test_the_live_table_leaves_what_went_wrong_above_it():
    console = Console(file=io.StringIO(), width=100, height=20, force_terminal=True)
    board = boards.LiveBoard("title", console)
    run = make_run(state="running", step=500)
    board.update([run], 1)
    board.say("start", run)
    board.say("failed", run, "the motor is broken")
    board.stop()
    text = console.file.getvalue()
    assert "failed    CartPole-v1 a2c-default seed-0: the motor is broken" in text
    assert "start " not in text
    assert "return 1" not in text


def test_the_live_table_ends_with_what_its_runs_came_to():
    console = Console(file=io.StringIO(), width=100, height=20, force_terminal=True)
    board = boards.LiveBoard("title", console)
    runs = [make_run(f"seed-{seed}", state="finished", mean_return=value) for seed, value in enumerate((1, 2.5, None))]
    runs += [
        make_run(algo="ppo-default", state="finished", mean_return=-40.0),
        make_run(algo="p3o-default", state="failed", mean_return=7.0),
    ]
    board.update(runs, 1)
    board.stop()
    first, second = console.file.getvalue().splitlines()[-2:]
    assert first.endswith("CartPole-v1 a2c-default  return 1.75 (1.00 to 2.50)")  # after the cursor's return
    assert second == "CartPole-v1 ppo-default  return -40.0"


def test_a_worker_tells_its_status_at_most_twice_a_second():
    now, sent = [0.0], []
    reporter = Reporter(sent.append, lambda: now[0])

    class Status:
        total_steps, mean_return, steps_per_second = 1000, float("nan"), 0.0

    for i in range(100):
        now[0], Status.step = i / 50, 10 * i
        reporter.update(Status)
    assert [message["step"] for message in sent] == [0, 250, 500, 750]
    assert sent[0] == {"kind": "status", "step": 0, "mean_return": None, "steps_per_second": None}


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """A run of 320 steps and what a node would have sent: a parcel after its start, at each checkpoint, at its end."""
    folder = tmp_path_factory.mktemp("node") / "run"
    settings = {word.partition("=")[0]: word.partition("=")[2] for word in TINY[1:]} | {"checkpoint_every": 64}
    job = Job("CartPole-v1", "p3o", 320, settings=settings, eval_every=100)
    run, held = starting.start(job, folder, make_display("none"))
    packer = parcels.Packer(folder)
    sent = [packer.pack()]
    seen = [None]

    def after_iteration(_):
        if run.checkpoints.last != seen[0]:
            seen[0] = run.checkpoints.last
            sent.append(packer.pack())

    with held, StopSignals() as stop:
        run.run(stop, after_iteration)
    return folder, [*sent, packer.pack()]


def test_parcels_bring_a_whole_run_home(stages, tmp_path):
    folder, sent = stages
    assert len(sent) >= 5
    for parcel in sent:
        parcels.unpack(parcel, tmp_path / "home")
    assert parcels.list_files(tmp_path / "home") == parcels.list_files(folder)
    assert all((tmp_path / "home" / p).read_bytes() == (folder / p).read_bytes() for p in parcels.list_files(folder))
    episodes = [part for parcel in sent for part in parcel.parts if part.path == "episodes.csv"]
    assert sum(len(part.content) for part in episodes) == (folder / "episodes.csv").stat().st_size  # nothing twice


def test_a_sweep_killed_while_it_unpacks_can_go_on_at_every_moment(stages, tmp_path, monkeypatch):
    """Each write of the last parcels is made to be the last thing that happens; the run is then resumed."""
    folder, sent = stages
    moments = 0
    write = parcels.checkpoint.write_file
    for moment in range(100):
        home = tmp_path / f"home-{moment}"
        for parcel in sent[:2]:
            parcels.unpack(parcel, home)
        left = [moment]

        def limited(path, content, left=left):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            write(path, content)

        monkeypatch.setattr(parcels.checkpoint, "write_file", limited)
        try:
            parcels.unpack(sent[2], home)
        except KeyboardInterrupt:
            moments += 1
        else:
            break
        finally:
            monkeypatch.setattr(parcels.checkpoint, "write_file", write)
        assert call("resume", home).code == 0
        assert differences(folder, home) == []
        shutil.rmtree(home)
    assert moments >= 3  # data, index, model


class FakeRay:
    """Ray as far as `poll` needs it: one task, what lies in the mailbox, and the task's result once it has ended."""

    exceptions = types.SimpleNamespace(
        RayError=RuntimeError, RayActorError=KeyError, RaySystemError=KeyError, GetTimeoutError=KeyError
    )

    def __init__(self, posted=(), result=None):
        self.contents = {"posted": list(posted), "task": result}
        self.ended = ["task"] if result else []
        self.cancelled = []

    def get(self, reference, timeout):
        return self.contents[reference]

    def wait(self, tasks, num_returns, timeout):
        return self.ended, []

    def cancel(self, task, force):
        self.cancelled.append(task)


PARCEL = parcels.Parcel([], [])
FINISHED = ({"kind": "finished", "step": 1000}, PARCEL, "log")


@pytest.mark.parametrize(
    ("ray", "cancelled"),
    [
        (FakeRay([("token", PARCEL), ("token", PARCEL)]), ["task"]),
        (FakeRay([("token", PARCEL)], FINISHED), ["task"]),
        (FakeRay([], FINISHED), []),
    ],
)
def test_files_that_find_no_room_fail_their_run(ray, cancelled, tmp_path, monkeypatch):
    def full(parcel, folder):
        raise OSError(errno.ENOSPC, "No space left on device", str(folder / "episodes.csv"))

    monkeypatch.setattr(cluster, "unpack", full)
    run, released = make_run(out=tmp_path), []
    engine = object.__new__(cluster.RayEngine)
    engine._ray, engine._begun, engine._tasks = ray, set(), {"task": (run, "token")}
    call_of = types.SimpleNamespace
    engine._mailbox = call_of(take=call_of(remote=lambda: "posted"), forget=call_of(remote=released.append))
    engine._locks = {run.folder: contextlib.ExitStack()}
    reason = f"{run.folder / 'episodes.csv'} cannot be written: No space left on device"
    assert engine.poll(0.0) == [Event(run, {"kind": "failed", "reason": reason})]
    assert (engine.runs, engine._locks, released, ray.cancelled) == ([], {}, ["token"], cancelled)


def test_a_folder_that_cannot_be_locked_is_not_waited_for(tmp_path):
    (tmp_path / ".lock").mkdir()
    started = time.monotonic()
    with pytest.raises(UserError, match="cannot be written: Is a directory"):
        wait_for_lock(tmp_path)
    assert time.monotonic() - started < 5


def test_a_folder_in_use_is_waited_for(tmp_path):
    with lock(tmp_path):
        started = time.monotonic()
        wait_for_lock(tmp_path, 0.3)
    assert time.monotonic() - started >= 0.3


def test_segments_of_a_replay_that_are_gone_on_the_node_go_at_home(tmp_path):
    node, home = tmp_path / "node", tmp_path / "home"
    (node / "checkpoint").mkdir(parents=True)
    packer = parcels.Packer(node)
    for step in range(3):
        for old in (node / "checkpoint").glob("*-*"):
            old.unlink()
        for name in (f"replay-{step}-{step + 1}.safetensors", f"state-{step}.safetensors"):
            (node / "checkpoint" / name).write_bytes(b"data")
        (node / "checkpoint" / checkpoint.INDEX).write_text(str(step))
        parcels.unpack(packer.pack(), home)
    assert parcels.list_files(home) == parcels.list_files(node)
