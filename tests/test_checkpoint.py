"""Checkpoints: whole or not there, whatever is killed, torn or edited."""

import contextlib
import errno
import itertools
import json
import os
import random
import shutil
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from commands import TINY, call, complaint, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from killing import differences

from p3o import checkpoint, recording
from p3o.errors import UserError

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text().filter(lambda key: not key.startswith("@"))
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10
)
WORDS = ("train", "CartPole-v1", "--steps", 96, *TINY, "checkpoint_every=32")  # three iterations, all saved


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing disturbed; read only."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    assert call(*WORDS, "--out", path).code == 0
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A run of the same shape with another seed; read only."""
    path = tmp_path_factory.mktemp("runs") / "other"
    assert call(*WORDS, "--seed", 1, "--out", path).code == 0
    return path


@pytest.fixture
def run(whole, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def contents(step):
    return {"values": np.full(50, float(step)), "step": step, "text": ["λ", None]}


# What is stored -------------------------------------------------------------------------------------------------------


def test_arrays_survive_with_shape_and_type():
    put = {"matrix": np.arange(6.0).reshape(2, 3), "zero": np.array(3), "none": np.zeros((0, 2), np.uint8)}
    skeleton, arrays = checkpoint.flatten({"arrays": put, "number": np.float32(2)})
    back = checkpoint.unflatten(json.loads(json.dumps(skeleton)), arrays)
    assert back["number"] == 2.0
    for name, array in put.items():
        got = back["arrays"][name]
        assert (got.shape, got.dtype, got.tobytes()) == (array.shape, array.dtype, array.tobytes())


@given(TREES)
def test_plain_trees_survive(content):
    skeleton, arrays = checkpoint.flatten({"tree": content})
    assert checkpoint.unflatten(json.loads(json.dumps(skeleton)), arrays) == {"tree": content}


@pytest.mark.parametrize("bad", [{"@array": 1}, {1: 2}, {"a": object()}, {"a": {1, 2}}])
def test_what_cannot_be_stored_is_refused(bad):
    with pytest.raises(TypeError):
        checkpoint.flatten(bad)


def test_save_replaces_and_cleans(tmp_path):
    checkpoint.save(tmp_path, "id", 1, contents(1))
    (tmp_path / "state-7.safetensors.tmp").write_bytes(b"left by a kill")
    size = checkpoint.save(tmp_path, "id", 2, contents(2))
    assert {p.name for p in tmp_path.iterdir()} == {"checkpoint.json", "state-2.safetensors"}
    assert size == sum(p.stat().st_size for p in tmp_path.iterdir())
    assert checkpoint.load(tmp_path, "id")["step"] == 2


def test_a_second_checkpoint_of_a_step_leaves_the_first_alone_until_it_is_listed(tmp_path, monkeypatch):
    for number in (1, 2, 3):  # the names take turns
        checkpoint.save(tmp_path, "id", 1, contents(number))
        assert len(list(tmp_path.iterdir())) == 2
        for _ in range(2):  # the second finds what the first has left
            with monkeypatch.context() as killed:
                killed.setattr(checkpoint, "write_json", lambda *_: sys.exit("killed"))
                with pytest.raises(SystemExit):
                    checkpoint.save(tmp_path, "id", 1, contents(9))
            assert checkpoint.load(tmp_path, "id")["step"] == number


# Kills ----------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def killed_at(moment):
    """Die at the n-th touch of the disk: before or after a rename or removal, or with half a file written."""
    count = itertools.count(1)

    def touch():
        if next(count) == moment:
            raise Killed

    def around(real):
        def wrapped(*args, **kwargs):
            touch()
            result = real(*args, **kwargs)
            touch()
            return result

        return wrapped

    def open_torn(path, mode="r", *args, real=open, **kwargs):
        file = real(path, mode, *args, **kwargs)
        if mode == "wb":
            try:
                touch()
            except Killed:
                file.write(b"half")
                file.close()
                raise
        return file

    with (
        mock.patch.object(os, "replace", around(os.replace)),
        mock.patch.object(Path, "unlink", around(Path.unlink)),
        mock.patch.object(shutil, "rmtree", around(shutil.rmtree)),
        mock.patch.object(checkpoint, "open", open_torn, create=True),
    ):
        yield


def deaths(prepare, act, at_most=1000, every=1):
    """Let `act` die at every moment at which it can; yields what `prepare` made for each."""
    for moment in range(1, at_most, every):
        subject = prepare(moment)
        try:
            with killed_at(moment):
                act(subject)
        except Killed:
            yield subject
        else:
            return


def test_a_save_killed_at_any_moment_leaves_the_old_or_the_new_checkpoint(tmp_path):
    def prepare(moment):
        checkpoint.save(tmp_path / str(moment), "id", 1, contents(1))
        return tmp_path / str(moment)

    found = []
    for folder in deaths(prepare, lambda folder: checkpoint.save(folder, "id", 2, contents(2))):
        tree = checkpoint.load(folder, "id")
        assert np.array_equal(tree["values"], contents(tree["step"])["values"])
        found.append(tree["step"])
        checkpoint.save(folder, "id", 3, contents(3))
        assert checkpoint.load(folder, "id")["step"] == 3
        assert {p.name for p in folder.iterdir()} == {"checkpoint.json", "state-3.safetensors"}
    assert len(found) >= 8
    assert set(found) == {1, 2}
    assert found == sorted(found)  # one moment at which the new one takes over


def test_a_folder_replaced_is_found_at_any_moment(tmp_path):
    def prepare(moment):
        (tmp_path / str(moment) / "model").mkdir(parents=True)
        (tmp_path / str(moment) / "model" / "text").write_text("old")
        return tmp_path / str(moment) / "model"

    def act(final, text="new"):
        new = checkpoint.new_folder(final)
        (new / "text").write_text(text)
        checkpoint.replace_folder(new, final)

    found = []
    for final in deaths(prepare, act):
        found.append((checkpoint.current_folder(final) / "text").read_text())
        for again in deaths(lambda _, final=final: final, lambda final: act(final, "newer")):  # and killed once more
            assert (checkpoint.current_folder(again) / "text").exists()
        act(final, "newest")
        assert (final / "text").read_text() == "newest"
        assert [p.name for p in final.parent.iterdir()] == ["model"]
    assert set(found) == {"old", "new"}


@contextlib.contextmanager
def names_on_disk():
    """Asserts that no name is taken for granted, or the older one removed, before it is on the disk; yields a log."""
    fresh, log = set(), []  # folders in which a rename is not on the disk yet

    def replace(source, target, real=os.replace):
        if Path(target).name == checkpoint.INDEX:
            assert not fresh, "the index names a file that a loss of power would take away"
        real(source, target)
        fresh.add(os.stat(Path(target).parent).st_ino)
        log.append("rename")

    def fsync(descriptor, real=os.fsync):
        real(descriptor)
        fresh.discard(os.fstat(descriptor).st_ino)

    def unlink(path, real=Path.unlink, **options):
        assert not fresh
        log.append("remove")
        real(path, **options)

    def rmtree(path, real=shutil.rmtree, **options):
        if os.path.exists(path):
            assert not fresh
            log.append("remove")
        real(path, **options)

    with (
        mock.patch.object(os, "replace", replace),
        mock.patch.object(os, "fsync", fsync),
        mock.patch.object(Path, "unlink", unlink),
        mock.patch.object(shutil, "rmtree", rmtree),
    ):
        yield log
    assert not fresh


def test_nothing_is_removed_before_what_replaces_it_would_survive_a_loss_of_power(tmp_path):
    with names_on_disk() as log:
        for step in (1, 2):
            checkpoint.save(tmp_path / "checkpoint", "id", step, contents(step))
    assert log == ["rename"] * 4 + ["remove"]
    with names_on_disk() as log:
        for _ in range(2):
            checkpoint.replace_folder(checkpoint.new_folder(tmp_path / "model"), tmp_path / "model")
    assert log == ["rename"] * 3 + ["remove"]


@pytest.mark.parametrize(("number", "is_fatal"), [(errno.EINVAL, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_folders_is_no_error_but_a_broken_disk_is(number, is_fatal, tmp_path):
    def fsync(descriptor, real=os.fsync):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(number, os.strerror(number))
        real(descriptor)

    expected = pytest.raises(OSError, match=os.strerror(number)) if is_fatal else contextlib.nullcontext()
    with mock.patch.object(os, "fsync", fsync), expected:
        checkpoint.write_file(tmp_path / "file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_folders_of_the_user_beside_a_model_are_left_alone(tmp_path):
    for name in ("model.old", "model.tmp", "model.new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("precious")
    for _ in range(2):
        checkpoint.replace_folder(checkpoint.new_folder(tmp_path / "model"), tmp_path / "model")
    assert all((tmp_path / name / "mine").exists() for name in ("model.old", "model.tmp", "model.new"))


def test_a_run_killed_while_it_saves_goes_on_equal(whole, tmp_path):
    """From the folder's first file to the report; every ninth moment here, all of them in the slow test."""
    resumed = 0
    for run in deaths(lambda m: tmp_path / str(m), lambda run: call(*WORDS, "--out", run), every=9):
        if (run / "config.json").exists():
            assert call("resume", run).code == 0
            assert differences(whole, run) == []
            assert not [p for p in run.rglob("*") if p.suffix in (".tmp", ".new", ".old")]
            resumed += 1
        else:
            assert call(*WORDS, "--out", run).code == 0  # nothing of a run is there yet
    assert resumed >= 5


@pytest.mark.slow
def test_a_run_killed_at_any_moment_of_its_saves_goes_on_equal(whole, tmp_path):
    for run in deaths(lambda m: tmp_path / str(m), lambda run: call(*WORDS, "--out", run)):
        if (run / "config.json").exists():
            assert call("resume", run).code == 0
            assert differences(whole, run) == []


def test_a_finished_run_killed_before_its_model_gets_it_on_resume(run, whole):
    shutil.rmtree(run / "model")
    assert call("resume", run).code == 0
    assert differences(whole, run) == []


def test_a_full_disk_is_one_line_and_the_last_checkpoint_stays(tmp_path, whole):
    run, count = tmp_path / "run", itertools.count()

    def full(number, real=os.fsync):
        if next(count) == 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(number)

    def close(table):  # what is still in a buffer does not fit either
        table._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with mock.patch.object(os, "fsync", full), mock.patch.object(recording.Table, "close", close):
        result = call(*WORDS, "--out", run)
    assert result.code == 1
    line = result.err.splitlines()[-1]
    assert "No space left on device" in line
    assert "last good checkpoint" in line
    assert "Traceback" not in result.err
    assert call("resume", run).code == 0
    assert differences(whole, run) == []


def test_a_disk_that_is_full_at_the_start_is_one_line(tmp_path):
    with mock.patch.object(recording, "open", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")), create=True):
        result = call(*WORDS, "--out", tmp_path / "run")
    assert result.code == 1
    assert "cannot be written: full" in result.err.splitlines()[-1]


# Damage ---------------------------------------------------------------------------------------------------------------


def state_file(run):
    (path,) = (run / "checkpoint").glob("state-*.safetensors")
    return path


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "two bytes short": lambda data: data[:-2],
    "one byte long": lambda data: data + b"x",
    "junk": lambda data: random.Random(0).randbytes(len(data)),
    "zeros": lambda data: bytes(len(data)),
    "nested": lambda data: b"[" * 100_000,
    "null": lambda data: b"null",
    "no entries": lambda data: b'{"format": 1}',
    "other format": lambda data: b'{"format": 2}',
}
FILES = {
    "config.json": lambda run: run / "config.json",
    "checkpoint.json": lambda run: run / "checkpoint" / "checkpoint.json",
    "state": state_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("file", FILES)
def test_resume_refuses_a_damaged_file_and_changes_nothing(file, damage, run):
    path = FILES[file](run)
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    before = tree(run)
    line = complaint(call("resume", run, "--steps", 200))
    assert path.name in line
    assert tree(run) == before


@pytest.mark.parametrize("file", ["checkpoint.json", "state"])
def test_resume_refuses_the_checkpoint_of_another_run(file, run, other):
    shutil.copy(FILES[file](other), FILES[file](run))
    before = tree(run)
    assert "checkpoint" in complaint(call("resume", run, "--steps", 200))
    assert tree(run) == before


def test_resume_refuses_the_whole_checkpoint_of_another_run(run, other):
    shutil.rmtree(run / "checkpoint")
    shutil.copytree(other / "checkpoint", run / "checkpoint")
    assert "another run" in complaint(call("resume", run, "--steps", 200))


def test_resume_refuses_to_start_over_when_the_checkpoint_is_gone(run):
    shutil.rmtree(run / "checkpoint")
    before = tree(run)
    assert "checkpoint is missing" in complaint(call("resume", run))
    assert tree(run) == before


@pytest.mark.parametrize("name", ["episodes.csv", "updates.csv"])
@pytest.mark.parametrize("is_gone", [True, False])
def test_resume_refuses_tables_that_lost_lines(name, is_gone, run):
    if is_gone:
        (run / name).unlink()
    else:
        os.truncate(run / name, 10)
    before = tree(run)
    assert name in complaint(call("resume", run, "--steps", 200))
    assert tree(run) == before


EDITS = {
    ("settings", "gamma"): 0.5,
    ("settings", "hidden_sizes"): [16],
    ("settings", "num_envs"): "many",
    ("settings", "unheard_of"): 1,
    ("seed",): 4,
    ("algo",): "nothing",
    ("run_id",): "x",
    ("steps",): "lots",
    ("schedule_start",): None,
    ("env", "id"): "Acrobot-v1",
    ("env", "kwargs"): [],
    ("env", "observation_space"): "Box",
    ("eval_every",): 0,
    ("versions",): None,
    ("resumes",): {},
}


CAN_BE_REMOVED = [keys for keys in EDITS if keys not in (("settings", "unheard_of"), ("eval_every",))]


@pytest.mark.parametrize(
    ("keys", "is_removed"), [*((keys, False) for keys in EDITS), *((keys, True) for keys in CAN_BE_REMOVED)]
)
def test_resume_refuses_an_edited_config(keys, is_removed, run):
    config = json.loads((run / "config.json").read_text())
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = EDITS[keys]
    if is_removed:
        del place[keys[-1]]
    (run / "config.json").write_text(json.dumps(config))
    before = tree(run)
    complaint(call("resume", run, "--steps", 200))
    assert tree(run) == before


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["checkpoint.json", "state"]), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_bit_flipped_in_a_checkpoint_is_found(whole, tmp_path, file, place, bit):
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole / "checkpoint", folder / "checkpoint")
    path = FILES[file](folder)
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    path.write_bytes(data)
    run_id = json.loads((whole / "config.json").read_text())["run_id"]
    try:
        back = checkpoint.load(folder / "checkpoint", run_id)
    except UserError:
        return
    # only blanks between entries of the JSON may change unseen
    assert checkpoint.flatten(back)[0] == checkpoint.flatten(checkpoint.load(whole / "checkpoint", run_id))[0]
