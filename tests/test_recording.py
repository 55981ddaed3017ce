"""The files that grow: lines, events, and cutting both back."""

import hashlib
import math
import os

import pytest
from killing import events as read_events

from p3o.algorithms import Metric
from p3o.errors import UserError
from p3o.folder import mark_in
from p3o.recording import Events, Recorder, Table, cut_back, number
from p3o.rollout import Episode

METRICS = (Metric("ess", "x", weight="updates"), Metric("updates", "x", is_count=True))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333"),
        (-2.5, "-2.5"),
        (1e-9, "1e-09"),
        (math.nan, ""),
        (1e6, "1000000"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


def test_a_table_has_one_header_however_often_it_is_opened(tmp_path):
    for line in ("1", "2"):
        table = Table(tmp_path / "t.csv", ("step",))
        table.add(line)
        length, digest = table.flush()
        table.close()
    assert (tmp_path / "t.csv").read_text() == "step\n1\n2\n"
    assert length == len("step\n1\n2\n")
    assert digest == hashlib.sha256(b"step\n1\n2\n").hexdigest()


def add_all(recorder, step):
    recorder.add_episodes([Episode(step, 1, 2.5, 7)], 1.234)
    means = {"ess": math.nan, "updates": 0.0, "learning_rate": 1e-3, "steps_per_second": 10.0}
    recorder.add_update(step, means)
    recorder.add_events(step, means, {"rollout/ep_rew_mean": 2.5})
    recorder.add_evaluation(step, [(1.0, 5), (2.0, 7)])


def test_lines_and_events(tmp_path):
    recorder = Recorder(tmp_path, METRICS)
    add_all(recorder, 4)
    recorder.close()
    assert (tmp_path / "episodes.csv").read_text() == "step,env,return,length,seconds\n4,1,2.5,7,1.23\n"
    assert (tmp_path / "updates.csv").read_text() == "step,ess,updates,learning_rate,steps_per_second\n4,,0,0.001,10\n"
    assert (tmp_path / "evaluations.csv").read_text() == "step,episode,return,length\n4,0,1,5\n4,1,2,7\n"
    found = {tag: value for step, tag, value in read_events(tmp_path) if step == 4}
    assert found.keys() == {
        *("rollout/ep_rew_mean", "train/updates", "train/learning_rate"),
        *("eval/mean_reward", "eval/mean_ep_length"),
    }  # no point where there is no number
    assert found["eval/mean_reward"] == 1.5


def contents(folder):
    """Of all its files but the writers' mark."""
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def test_cutting_back_gives_the_files_of_the_moment(tmp_path):
    recorder = Recorder(tmp_path, METRICS)
    add_all(recorder, 4)
    lengths = recorder.flush()
    before = contents(tmp_path)
    add_all(recorder, 8)
    recorder.close()
    later = Events(tmp_path / "tb")  # the next process writes a file of its own
    later.add(8, {"x": 1.0})
    later.close()
    assert contents(tmp_path) != before
    cut_back(tmp_path, lengths)
    assert contents(tmp_path) == before
    mark = mark_in(tmp_path)
    cut_back(tmp_path, lengths)  # twice is once
    assert contents(tmp_path) == before
    assert mark_in(tmp_path) == mark  # the second time was no writing
    cut_back(tmp_path, None)
    assert contents(tmp_path) == {}
    assert mark_in(tmp_path) != mark


def test_lost_lines_are_refused_before_anything_is_cut(tmp_path):
    recorder = Recorder(tmp_path, METRICS)
    add_all(recorder, 4)
    lengths = recorder.flush()
    add_all(recorder, 8)
    recorder.close()
    os.truncate(tmp_path / "updates.csv", 3)
    size = (tmp_path / "episodes.csv").stat().st_size
    with pytest.raises(UserError, match=r"updates\.csv"):
        cut_back(tmp_path, lengths)
    assert (tmp_path / "episodes.csv").stat().st_size == size


@pytest.mark.parametrize("name", ["episodes.csv", "updates.csv", "evaluations.csv"])
def test_edited_lines_are_refused_and_left_as_they_are(name, tmp_path):
    for _ in range(2):  # also what an earlier process wrote
        recorder = Recorder(tmp_path, METRICS)
        add_all(recorder, 4)
        lengths = recorder.flush()
        recorder.close()
    cut_back(tmp_path, lengths)
    content = (tmp_path / name).read_bytes()
    edited = content[:-2] + b"9" + content[-1:]
    (tmp_path / name).write_bytes(edited)
    with pytest.raises(UserError, match=rf"{name} was changed"):
        cut_back(tmp_path, lengths)
    assert (tmp_path / name).read_bytes() == edited
    cut_back(tmp_path, {key: value for key, value in lengths.items() if key != "digests"})  # of an older checkpoint


def test_event_files_of_two_processes_do_not_collide(tmp_path):
    for step in (1, 2):
        events = Events(tmp_path / "tb")
        events.add(step, {"x": float(step)})
        events.close()
    assert len(list((tmp_path / "tb").iterdir())) == 2
    assert read_events(tmp_path) == [(1, "x", 1.0), (2, "x", 2.0)]
