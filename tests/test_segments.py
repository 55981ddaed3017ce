"""A replay on disk in segments: only what is new is written, and a kill at any moment loses nothing that counts."""

import json
import os
import random
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from commands import call, complaint
from killing import differences, run_to_end, run_with_kills
from test_checkpoint import deaths

from p3o import checkpoint, segments
from p3o.errors import UserError
from p3o.saving import BackgroundSaver, Checkpoints
from p3o.sweeps.worker import Assignment, work

SETTINGS = [
    "num_envs=2",
    "num_steps=8",
    "conv_channels=2,2,2",
    "conv_features=4",
    "replay_size=24",
    "burn_in=16",
    "replay_samples=1",
    "time_limit=terminal",
    "checkpoint_every=16",
]
# seven iterations through a ring of three rollouts, all saved
WORDS = ("train", "pictures:Pictures-v0", "--steps", 112, "--set", *SETTINGS)


def chunk(first, last):
    """Rollouts whose numbers say which they are, with a row too many as from the device."""
    rows = np.arange(first, last + 1)
    return segments.Chunk(first, last, [np.repeat(rows[:, None], 4, 1).astype(np.uint8), rows.astype(np.float32)])


def test_a_segment_comes_back_and_a_damaged_one_is_refused(tmp_path):
    line = segments.write(tmp_path, chunk(3, 6))
    back = segments.read(tmp_path, line)
    assert (back.first, back.last) == (3, 6)
    assert back.leaves[0].tolist() == [[3] * 4, [4] * 4, [5] * 4]
    assert back.leaves[1].tolist() == [3, 4, 5]
    assert (line["bytes"], line["name"]) == ((tmp_path / line["name"]).stat().st_size, "replay-3-6")
    content = bytearray((tmp_path / line["name"]).read_bytes())
    content[-3] ^= 1
    (tmp_path / line["name"]).write_bytes(content)
    with pytest.raises(UserError, match="SHA-256"):
        segments.read(tmp_path, line)
    (tmp_path / line["name"]).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        segments.read(tmp_path, line)


def test_ranges_and_what_a_ring_still_needs():
    assert list(segments.ranges(5, 5 + 130)) == [(5, 69), (69, 133), (133, 135)]
    lines = [{"name": str(i), "first": i, "last": i + 2} for i in range(0, 10, 2)]
    # ten rollouts in a ring of five: 5 to 9 are there, so the segment with 4 and 5 still is
    assert [line["name"] for line in segments.needed(lines, 10, 5)] == ["4", "6", "8"]


def test_a_save_with_segments_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """Two rollouts a checkpoint through a ring of three: the second save needs the first's last rollout."""

    def save(folder, number):
        listed = []
        if checkpoint.exists(folder):
            listed = checkpoint.load(folder, "id")["segments"]
        folder.mkdir(exist_ok=True)
        new = segments.write(folder, chunk(2 * number - 2, 2 * number))
        listed = segments.needed([*listed, new], 2 * number, 3)
        checkpoint.save(folder, "id", number, {"number": number, "segments": listed})
        segments.clean(folder, listed)

    def held(folder):
        tree = checkpoint.load(folder, "id")
        chunks = [segments.read(folder, line) for line in tree["segments"]]
        return tree["number"], [int(x) for c in chunks for x in c.leaves[1]][-3:]

    def prepare(moment):
        for number in (1, 2):
            save(tmp_path / str(moment), number)
        return tmp_path / str(moment)

    found = []
    for folder in deaths(prepare, lambda folder: save(folder, 3)):
        number, rollouts = held(folder)
        assert rollouts == list(range(2 * number - 3, 2 * number))
        found.append(number)
        save(folder, number + 1)
        assert held(folder)[1] == list(range(2 * number - 1, 2 * number + 2))
        assert len(list(folder.glob("replay-*"))) == 2
    assert set(found) == {2, 3}
    assert found == sorted(found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of images that nothing disturbed; read only."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    result = call(*WORDS, "--out", path)
    assert result.code == 0, result.err
    assert "replay: " in result.err + result.out
    assert " checkpoints: " in result.err + result.out  # their cost
    return path


def test_only_what_the_ring_holds_stays_on_disk(whole):
    tree = json.loads((whole / "checkpoint" / "checkpoint.json").read_text())["state"]
    lines = tree["segments"]
    assert tree["trainer"]["replay"] == 7
    assert lines[-1]["last"] == 7
    assert lines[0]["last"] > 4
    assert {path.name for path in (whole / "checkpoint").glob("replay-*")} == {line["name"] for line in lines}


def test_an_image_run_killed_while_it_saves_goes_on_equal(whole, tmp_path):
    resumed = 0
    for run in deaths(lambda m: tmp_path / str(m), lambda run: call(*WORDS, "--out", run), every=13):
        if (run / "config.json").exists():
            assert call("resume", run).code == 0
            assert differences(whole, run) == []
            resumed += 1
    assert resumed >= 2  # a busy machine writes fewer checkpoints, so moments to die at are close together


AHEAD = [*SETTINGS[:-1], "checkpoint_every=64"]  # four rollouts a checkpoint
AHEAD_WORDS = ("train", "pictures:Pictures-v0", "--steps", 160, "--set", *AHEAD)


@pytest.fixture
def small_segments(monkeypatch):
    """Segments of one rollout; returns how many went ahead of a checkpoint, and what each checkpoint had left."""
    monkeypatch.setattr(segments, "ROLLOUTS", 1)
    ahead, left = [], []
    start, prepare = BackgroundSaver.start, Checkpoints.prepare

    def counted(saver, write, waited, is_checkpoint=True):
        ahead.append(not is_checkpoint)
        start(saver, write, waited, is_checkpoint)
        saver.wait()  # so that the next one is taken at once, on a busy machine too

    def looked_at(checkpoints, *arguments):
        left.append(checkpoints.trainer.num_added - checkpoints._num_saved)
        return prepare(checkpoints, *arguments)

    monkeypatch.setattr(BackgroundSaver, "start", counted)
    monkeypatch.setattr(Checkpoints, "prepare", looked_at)
    return ahead, left


def test_full_segments_are_written_ahead_of_the_checkpoint(tmp_path, small_segments, monkeypatch):
    ahead, left = small_segments
    result = call(*AHEAD_WORDS, "--out", tmp_path / "ahead")
    assert result.code == 0, result.err
    assert len(left) >= 3
    assert sum(ahead) >= 6
    assert set(left) == {1}  # the newest alone: the others are on the disk
    assert f"{len(left)} checkpoints: " in result.err + result.out
    tree = json.loads((tmp_path / "ahead" / "checkpoint" / "checkpoint.json").read_text())["state"]
    names = {line["name"] for line in tree["segments"]}
    assert names == {"replay-7-8", "replay-8-9", "replay-9-10"}
    assert {path.name for path in (tmp_path / "ahead" / "checkpoint").glob("replay-*")} == names
    monkeypatch.undo()
    assert call(*AHEAD_WORDS, "--out", tmp_path / "whole").code == 0
    assert differences(tmp_path / "whole", tmp_path / "ahead") == []


def test_segments_that_a_ring_has_overwritten_do_not_pile_up_before_a_checkpoint(tmp_path, small_segments):
    ahead, _ = small_segments
    rare = [*SETTINGS[:-1], "checkpoint_every=100000"]
    held = []
    clean = segments.clean

    def counted(folder, lines):
        held.append(len(list(folder.glob("replay-*"))))
        clean(folder, lines)

    segments.clean = counted
    try:
        words = ("train", "pictures:Pictures-v0", "--steps", 160, "--set", *rare)
        assert call(*words, "--out", tmp_path / "run").code == 0
    finally:
        segments.clean = clean
    assert sum(ahead) >= 8
    assert held == [4]  # at the end, the only one: what the ring held before, and its newest


def test_a_run_killed_while_it_writes_ahead_goes_on_equal(tmp_path, small_segments):
    assert call(*AHEAD_WORDS, "--out", tmp_path / "whole").code == 0
    resumed = 0
    for run in deaths(lambda m: tmp_path / str(m), lambda run: call(*AHEAD_WORDS, "--out", run), every=17):
        if (run / "config.json").exists():
            assert call("resume", run).code == 0
            assert differences(tmp_path / "whole", run) == []
            resumed += 1
    assert resumed >= 2


def test_a_run_is_sent_home_while_none_of_its_files_comes_or_goes(tmp_path, monkeypatch):
    """Each time that a checkpoint is done, the next segment is begun before the sweep's callback has a look.

    After that segment there is a quiet moment: with small ones, on a quick machine, there would be none.
    """
    monkeypatch.setattr(segments, "ROLLOUTS", 1)
    runs, sent = [], []
    make, write, write_ahead = Checkpoints.__init__, segments.write, Checkpoints.write_ahead

    def after_the_checkpoint(checkpoints, folder):
        if checkpoints.trainer.iteration == checkpoints._covered:  # a checkpoint has just been begun
            return
        is_being_written = checkpoints._prepared_at not in (0, checkpoints.last)
        checkpoints.saver.wait()
        if is_being_written:
            write_ahead(checkpoints, folder)

    monkeypatch.setattr(Checkpoints, "__init__", lambda self, trainer: (make(self, trainer), runs.append(self))[0])
    monkeypatch.setattr(Checkpoints, "write_ahead", after_the_checkpoint)
    monkeypatch.setattr(segments, "write", lambda *arguments: (time.sleep(0.1), write(*arguments))[1])
    settings = dict(entry.split("=") for entry in AHEAD)
    job = {"env": "pictures:Pictures-v0", "steps": 320, "settings": settings}
    stop = type("Never", (), {"received": None})()
    last = work(
        Assignment(job, str(tmp_path / "run"), None),
        lambda message: None,
        stop,
        lambda: sent.append(runs[0].saver.is_busy),
    )
    assert last["kind"] == "finished", last
    assert sent
    assert not any(sent)


@pytest.mark.parametrize(("before", "told"), [(True, "in host memory before and is on the device now"), (False, None)])
def test_a_replay_that_lies_elsewhere_after_a_resume_is_told(whole, tmp_path, before, told):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    assert config["replay_on_host"] is False
    config["replay_on_host"] = before
    (run / "config.json").write_text(json.dumps(config))
    result = call("resume", run, "--steps", 128)
    assert result.code == 0, result.err
    if told is None:
        assert "bit for bit" not in result.err
    else:
        assert told in result.err
    assert json.loads((run / "config.json").read_text())["replay_on_host"] is False


def test_a_damaged_segment_is_one_line_and_changes_nothing(whole, tmp_path):
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    next((run / "checkpoint").glob("replay-*")).write_bytes(b"")
    assert "is damaged" in complaint(call("resume", run, "--steps", 200))


@pytest.mark.slow
def test_images_killed_with_sigkill(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    arguments = ["pictures:Pictures-v0", "--steps", "1600", "--set", *SETTINGS]
    run_to_end(tmp_path / "alone", arguments)
    killed = tmp_path / "killed"
    assert run_with_kills(killed, arguments, 6, 0.3, random.Random(0), is_under_way=True) >= 1
    assert differences(tmp_path / "alone", tmp_path / "killed") == []


def test_writing_goes_on_beside_and_its_cost_and_errors_come_out():
    saver, done = BackgroundSaver(), []

    def slow():
        time.sleep(0.1)
        done.append(1)
        return 3_000_000

    saver.start(slow, 0.5)
    assert saver.is_busy
    assert not done
    saver.wait()
    assert done
    assert (saver.cost.number, saver.cost.num_bytes) == (1, 3_000_000)
    assert saver.cost.seconds >= 0.1
    assert 0.5 < saver.cost.waited < 5
    assert saver.cost.line(9.0).startswith("1 checkpoint: 3 MB written in ")

    def broken():
        raise OSError(28, "No space left on device")

    saver.start(broken, 0.0)
    with pytest.raises(OSError, match="No space"):
        saver.wait()
    saver.wait()


def test_an_interrupted_wait_leaves_the_writing_to_the_next():
    saver, gate = BackgroundSaver(), threading.Event()
    saver.start(lambda: gate.wait(20) and 7, 0.0)
    running = saver._running
    assert running is not None
    saver._running = Interrupted(running)
    with pytest.raises(KeyboardInterrupt):
        saver.wait()
    assert saver.is_busy
    gate.set()
    saver._running = running
    saver.wait()
    assert not saver.is_busy
    assert saver.cost.num_bytes == 7


class Interrupted:
    """A future whose result is asked for when Ctrl-C comes."""

    def __init__(self, running):
        self.done = running.done

    def result(self):
        raise KeyboardInterrupt
