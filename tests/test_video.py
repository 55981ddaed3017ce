"""Films: a file that plays and shows something, or one line that says what is missing."""

import ctypes.util
import importlib.util
import os
import re
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from commands import TINY, TINY_SETTINGS, call, complaint, tree
from killing import command

from p3o import P3O, video

has_writers = all(importlib.util.find_spec(name) for name in ("imageio", "imageio_ffmpeg"))
needs_writers = pytest.mark.skipif(not has_writers, reason="needs imageio and imageio-ffmpeg (extra `video`)")
needs_pygame = pytest.mark.skipif(not importlib.util.find_spec("pygame"), reason="needs pygame (extra `video`)")
needs_mujoco = pytest.mark.skipif(not importlib.util.find_spec("mujoco"), reason="needs mujoco (extra `mujoco`)")
headless = ctypes.util.find_library("EGL") or ctypes.util.find_library("OSMesa")
needs_headless = pytest.mark.skipif(not headless, reason="needs libegl1 or libosmesa6")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "run"
    assert call("train", "CartPole-v1", "--steps", 32, "--out", path, *TINY).code == 0
    return path


@pytest.fixture
def environment(monkeypatch):
    """No screen, and no choice made by an earlier film."""
    for name in ("DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    return dict(os.environ)


def frames(path, height, width):
    """All pictures of a film, decoded by ffmpeg itself."""
    import imageio_ffmpeg

    words = ["-loglevel", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run([imageio_ffmpeg.get_ffmpeg_exe(), *words], capture_output=True, check=True)
    return np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


@needs_writers
@needs_pygame
@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame", "ignore:pkg_resources")
def test_a_film_of_cart_pole(suffix, run, tmp_path, environment):
    out = tmp_path / "films" / f"film{suffix}"
    result = call("video", run, "--out", out, "--episodes", 2)
    assert (result.code, result.out) == (0, f"{out}\n")
    assert result.err.startswith("filming ")  # it can take long, and a terminal that says nothing looks broken
    assert len(result.err.splitlines()) == 1
    assert [p.name for p in out.parent.iterdir()] == [out.name]
    pictures = frames(out, 400, 600)
    assert len(pictures) >= 18  # two episodes of eight steps at the least, with their first pictures
    assert pictures[0].mean() > 200  # CartPole is drawn on white
    assert pictures[0].min() < 50  # in black
    assert not np.array_equal(pictures[0], pictures[-1])


@needs_writers
@needs_mujoco
@needs_headless
def test_a_film_of_mujoco_without_a_screen(tmp_path, environment):
    """In processes of its own, since MuJoCo chooses its graphics once a process."""
    P3O("HalfCheetah-v5", env_kwargs={"max_episode_steps": 20}, **TINY_SETTINGS).save(tmp_path / "model")
    out = tmp_path / "film.mp4"
    done = subprocess.run(
        command("video", tmp_path / "model", "--out", out),
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, f"{out}\n", 1)  # nothing from a driver
    pictures = frames(out, 480, 480)
    assert len(pictures) == 21
    assert pictures[0].std() > 10  # neither black nor of one colour
    assert not np.array_equal(pictures[0], pictures[-1])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["film.mp4", "model"]  # no MUJOCO_LOG.TXT


@needs_mujoco
def test_the_camera_follows_the_body(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo may write a log

    def camera(env_id, **kwargs):
        with gym.make(env_id, render_mode="rgb_array", **kwargs) as env:
            video._follow(env)
            return env.unwrapped.mujoco_renderer.camera_id

    assert camera("HalfCheetah-v5") == camera("HalfCheetah-v5", camera_name="track") >= 0
    assert camera("Hopper-v5") == -1  # a free camera that follows already
    assert camera("HalfCheetah-v5", default_camera_config={"distance": 9.0}) == -1  # the user's
    assert camera("HalfCheetah-v5", camera_id=-1) == camera("HalfCheetah-v5", camera_name="free") == -1
    assert camera("InvertedPendulum-v5") == -1  # its model has none
    video._follow(gym.make("CartPole-v1"))


@needs_writers
@needs_pygame
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame", "ignore:pkg_resources")
def test_a_long_film_says_that_it_goes_on(run, tmp_path, environment):
    """In a process of its own: what libraries write to the error stream is dropped, this is not to be."""
    code = (
        "import itertools, sys, types; from p3o import cli, evaluate; "
        "evaluate.time = types.SimpleNamespace(monotonic=itertools.count(0.0, 4.0).__next__); "
        f"sys.argv[1:] = ['video', {str(run)!r}, '--out', {str(tmp_path / 'film.mp4')!r}]; cli.main()"
    )
    done = subprocess.run([command()[0], "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *others = done.stderr.splitlines()
    assert first.startswith("filming an episode")
    assert others
    assert all(re.fullmatch(r"p3o: still filming, [1-9]\d* steps so far", line) for line in others)


@needs_writers
@needs_pygame
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame", "ignore:pkg_resources")
def test_the_film_goes_into_the_run_unless_told_otherwise(run, environment):
    assert call("video", run).out == f"{run / 'video.mp4'}\n"
    assert frames(run / "video.mp4", 400, 600).any()


class Blind(gym.Env):
    """Cannot be rendered."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, render_mode=None):
        pass

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


@needs_writers
def test_an_environment_that_cannot_be_rendered_is_one_line(tmp_path, environment):
    gym.register("TestBlind-v0", entry_point=Blind)
    try:
        P3O("TestBlind-v0", **TINY_SETTINGS).save(tmp_path / "model")
        before = tree(tmp_path)
        line = complaint(call("video", tmp_path / "model", "--out", tmp_path / "new" / "film.mp4"))
    finally:
        del gym.registry["TestBlind-v0"]
    assert "TestBlind-v0" in line
    assert tree(tmp_path) == before


@needs_writers
@needs_mujoco
def test_without_any_graphics_library_the_line_says_what_to_install(tmp_path, environment):
    P3O("HalfCheetah-v5", env_kwargs={"max_episode_steps": 5}, **TINY_SETTINGS).save(tmp_path / "model")
    before = tree(tmp_path)
    code = (
        "import ctypes.util, sys; from p3o import cli; ctypes.util.find_library = lambda name: None; "
        f"sys.argv[1:] = ['video', {str(tmp_path / 'model')!r}, '--out', {str(tmp_path / 'film.mp4')!r}]; cli.main()"
    )
    done = subprocess.run([command()[0], "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "HalfCheetah-v5" in done.stderr
    assert "libosmesa6" in done.stderr
    assert tree(tmp_path) == before


def test_without_the_writers_the_line_names_the_extra(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio", None)
    line = complaint(call("video", run, "--out", tmp_path / "film.mp4"))
    assert "p3o[video]" in line
    assert tree(tmp_path) == {}


@needs_writers
@needs_pygame
@pytest.mark.filterwarnings("ignore::DeprecationWarning:pygame", "ignore:pkg_resources")
def test_a_place_that_cannot_be_written_is_one_line(run, tmp_path, environment):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder.mp4").mkdir()
    before = tree(tmp_path)
    for out in ("file/film.mp4", "folder.mp4"):
        assert f"{out} cannot be written" in complaint(call("video", run, "--out", tmp_path / out))
    for out in ("/proc/film.mp4", "/proc/film.gif"):  # where nobody may make a file
        assert f"--out {out} cannot be written: " in complaint(call("video", run, "--out", out))
    assert tree(tmp_path) == before


@pytest.mark.parametrize("out", ["film.avi", "film", "film.MP4.txt"])
def test_other_formats_are_refused(out, run, tmp_path):
    assert out in complaint(call("video", run, "--out", tmp_path / out))
    assert video.FORMATS == (".mp4", ".gif")
