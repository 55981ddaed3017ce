"""Model folders: what was saved comes back, what was damaged is refused in one line."""

import json
import random
import shutil
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from commands import TINY, TINY_SETTINGS, call, complaint, tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p3o import P3O, checkpoint
from p3o import model as models
from p3o.errors import UserError

OBSERVATIONS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    assert call("train", "CartPole-v1", "--steps", 160, "--out", path, *TINY).code == 0
    return path


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "other"
    assert call("train", "CartPole-v1", "--steps", 160, "--seed", 1, "--out", path, *TINY).code == 0
    return path


@pytest.fixture
def model(run, tmp_path):
    """A copy that a test may damage."""
    return Path(shutil.copytree(run / "model", tmp_path / "model"))


def test_a_model_acts_as_before(run, tmp_path):
    loaded = models.load(run / "model")
    models.save(loaded, tmp_path / "copy")
    again = models.load(tmp_path / "copy")
    rows = list(OBSERVATIONS)
    assert np.array_equal(loaded.act(rows, None), again.act(rows, None))
    one, same = (m.act(rows, np.random.default_rng(3)) for m in (loaded, again))
    assert np.array_equal(one, same)
    assert tree(tmp_path / "copy") == tree(run / "model")


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(run, other, tmp_path, monkeypatch):
    model = Path(shutil.copytree(other / "model", tmp_path / "model"))
    real, reads = checkpoint.read_tensors, []

    def read_tensors(folder, *arguments):
        if not reads:
            shutil.copytree(run / "model", model, dirs_exist_ok=True)
        reads.append(1)
        return real(folder, *arguments)

    monkeypatch.setattr(checkpoint, "read_tensors", read_tensors)
    assert models.load(model).env == models.load(run / "model").env
    assert len(reads) == 3


def test_the_normaliser_is_inside_and_frozen(run):
    loaded = models.load(run / "model")
    assert loaded.normalizer.observation_mean.any()
    before = [np.array(value) for value in loaded.normalizer]
    loaded.act(list(100 * OBSERVATIONS), None)
    assert all(np.array_equal(a, b) for a, b in zip(before, loaded.normalizer, strict=True))


def test_a_model_names_what_it_is(run):
    description = json.loads((run / "model" / "model.json").read_text())
    assert description["format"] == 1
    assert (description["algo"], description["step"]) == ("p3o", 160)
    assert description["env"] == {"id": "CartPole-v1", "kwargs": {}}
    assert description["settings"]["num_steps"] == 16


DAMAGE = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "junk": lambda data: random.Random(0).randbytes(len(data)),
    "nested": lambda data: b"[" * 100_000,
    "no entries": lambda data: b'{"format": 1}',
    "other format": lambda data: b'{"format": 99}',
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_damaged_model_is_one_line(name, damage, model):
    (model / name).write_bytes(DAMAGE[damage]((model / name).read_bytes()))
    before = tree(model)
    for words in (("eval", model), ("video", model, "--out", model.parent / "film.mp4")):
        assert name in complaint(call(*words))
    assert tree(model) == before
    assert not (model.parent / "film.mp4").exists()


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_missing_file_is_one_line(name, model):
    (model / name).unlink()
    assert name in complaint(call("eval", model))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_half_a_model_of_another_run_is_refused(name, model, other):
    shutil.copy(other / "model" / name, model / name)
    assert "model." in complaint(call("eval", model))


@pytest.mark.parametrize(
    ("old", "new"), [('"step": 160', '"step": 161'), ('"num_steps": 16', '"num_steps": 17'), ('"n": 2', '"n": 3')]
)
def test_an_edited_number_is_refused(old, new, model):
    text = (model / "model.json").read_text()
    assert old in text
    (model / "model.json").write_text(text.replace(old, new))
    assert "was changed" in complaint(call("eval", model))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["model.json", "model.safetensors"]), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_bit_flipped_is_found(run, tmp_path, name, place, bit):
    folder = tmp_path / "flipped"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(run / "model", folder)
    data = bytearray((folder / name).read_bytes())
    data[int(place * len(data))] ^= 1 << bit
    (folder / name).write_bytes(data)
    try:
        loaded = models.load(folder)
    except UserError:
        return
    whole = models.load(run / "model")  # only blanks between entries of the JSON may change unseen
    assert (loaded.settings, loaded.env, loaded.step) == (whole.settings, whole.env, whole.step)


def test_saving_never_touches_what_is_no_model(run, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("long work")
    (tmp_path / "file").write_text("x")
    (tmp_path / "model.old").mkdir()
    (tmp_path / "model.old" / "mine").write_text("x")
    before = tree(tmp_path)
    agent = P3O.load(run)
    for name in ("thesis", "file"):
        with pytest.raises(UserError, match=name):
            agent.save(tmp_path / name)
    assert tree(tmp_path) == before
    agent.save(tmp_path / "model")
    agent.save(tmp_path / "model")
    assert (tmp_path / "model.old" / "mine").exists()
    (tmp_path / "empty").mkdir()
    agent.save(tmp_path / "empty")
    assert P3O.load(tmp_path / "empty").num_timesteps == 160


def test_other_files_beside_a_model_stay(run, tmp_path):
    """`p3o video MODEL` puts its film there."""
    agent = P3O.load(run)
    agent.save(tmp_path / "model")
    (tmp_path / "model" / "video.mp4").write_text("a film")
    (tmp_path / "model" / "notes").mkdir()
    (tmp_path / "model" / "notes" / "one.txt").write_text("a note")
    agent.save(tmp_path / "model")
    names = {"model.json", "model.safetensors", "video.mp4", "notes"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    (tmp_path / "model" / "video.mp4").rename(tmp_path / "film")
    (tmp_path / ".model.old").mkdir()  # killed before it had moved on
    (tmp_path / "film").rename(tmp_path / ".model.old" / "video.mp4")
    agent.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    assert (tmp_path / "model" / "notes" / "one.txt").read_text() == "a note"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_is_saved_and_found_through_a_link_and_in_the_working_folder(run, tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    agent = P3O.load(run)
    for _ in range(2):
        agent.save(tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert {path.name for path in (tmp_path / "real").iterdir()} == {"model.json", "model.safetensors"}
        assert {path.name for path in tmp_path.iterdir()} == {"real", "link"}
    monkeypatch.chdir(tmp_path / "link")
    assert P3O.load(".").num_timesteps == 160
    for _ in range(2):  # the working folder is replaced under this process
        agent.save(".")
        assert Path.cwd() == tmp_path / "real"
    assert P3O.load(".").num_timesteps == 160
    monkeypatch.chdir(run)
    assert call("eval", ".", "--episodes", 1).code == 0


def test_a_resume_from_within_the_runs_model_goes_on(run, tmp_path, monkeypatch):
    whole = Path(shutil.copytree(run, tmp_path / "run"))
    monkeypatch.chdir(whole / "model")
    assert call("resume", "..", "--steps", 320).code == 0
    assert P3O.load(whole).num_timesteps == 320


def test_the_new_contents_of_a_linked_model_lie_beside_the_model(run, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "real").mkdir()
    (tmp_path / "link").symlink_to("far/real")
    assert checkpoint.new_folder(tmp_path / "link").parent == tmp_path / "far"


def test_a_model_does_not_learn_where_the_entries_of_a_dict_are_in_another_order(tmp_path):
    class Sorted(gym.Env):
        parts = {"area": gym.spaces.Box(-1, 1, (1,)), "pos": gym.spaces.Box(-1, 1, (2,))}  # noqa: RUF012
        observation_space, action_space = gym.spaces.Dict(parts), gym.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return {"area": np.zeros(1, np.float32), "pos": np.ones(2, np.float32)}, {}

        def step(self, action):
            return self.reset()[0], 1.0, True, False, {}

    class Given(Sorted):
        observation_space = gym.spaces.Dict(pos=Sorted.parts["pos"], area=Sorted.parts["area"])

    assert Given.observation_space == Sorted.observation_space
    P3O(Given, **TINY_SETTINGS).save(tmp_path / "model")
    P3O.load(tmp_path / "model", env=Given).learn(32)
    with pytest.raises(UserError, match="in another order than"):
        P3O.load(tmp_path / "model", env=Sorted)


def test_a_model_between_the_two_renames_is_found(run, tmp_path):
    whole = Path(shutil.copytree(run, tmp_path / "run"))
    (whole / "model").rename(whole / ".model.old")
    (whole / ".model.new").mkdir()  # half written
    result = call("eval", whole, "--episodes", 1)
    assert result.code == 0
    assert P3O.load(whole / "model").num_timesteps == 160
    assert call("resume", whole).code == 0
    assert {p.name for p in whole.iterdir() if "model" in p.name} == {"model"}


def test_constructor_arguments_go_along(tmp_path):
    agent = P3O("FrozenLake-v1", env_kwargs={"map_name": "8x8", "is_slippery": False}, **TINY_SETTINGS)
    agent.save(tmp_path / "lake")
    assert call("eval", tmp_path / "lake", "--episodes", 1).code == 0
    loaded = P3O.load(tmp_path / "lake")
    assert loaded._loaded.observation_space == gym.spaces.Discrete(64)
    loaded.learn(32)


def test_what_json_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    layout = np.array([["S", "F"], ["F", "G"]])
    agent = P3O("FrozenLake-v1", env_kwargs={"desc": layout}, **TINY_SETTINGS).learn(32)
    with pytest.raises(UserError, match="desc"):
        agent.save(tmp_path / "lake")
    agent = P3O("FrozenLake-v1", env_kwargs={"desc": layout}, **TINY_SETTINGS)
    with pytest.raises(UserError, match="desc"):
        agent.learn(32, run_dir=tmp_path / "run")
    assert tree(tmp_path) == {}


def test_the_model_of_another_run_is_refused(run, tmp_path):
    other = tmp_path / "other"
    assert call("train", "Acrobot-v1", "--steps", 32, *TINY, "--out", other).code == 0
    mixed = Path(shutil.copytree(run, tmp_path / "mixed"))
    shutil.rmtree(mixed / "model")
    shutil.copytree(other / "model", mixed / "model")
    assert "a model of p3o on Acrobot-v1, the run is of p3o on CartPole-v1" in complaint(call("eval", mixed))
    assert call("eval", mixed / "model", "--episodes", 1).code == 0  # by itself it is good
