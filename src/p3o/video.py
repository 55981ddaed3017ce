"""Films of a trained agent: MuJoCo without a screen through EGL or OSMesa, classic control through pygame."""

import contextlib
import ctypes.util
import errno
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym

from p3o.agent import load_model
from p3o.envs.atari import AtariGame
from p3o.envs.making import make_env
from p3o.envs.quiet import quietly
from p3o.errors import UserError, extra
from p3o.evaluate import Patience, play
from p3o.model import Model

FORMATS = (".mp4", ".gif")
DEFAULT_FPS = 30
CAMERA = {"camera_id", "camera_name", "default_camera_config"}  # what a MuJoCo task can be told of it


def film(run_dir: Path, out: Path, episodes: int, seed: int) -> None:
    """Write episodes to an .mp4 or .gif file: with deterministic actions, or drawn ones in a game.

    Without sticky actions the mode of a policy may wait in a game for ever; drawn actions are what its scores are of.
    """
    if out.suffix not in FORMATS:
        raise UserError(f"--out {out}: a name that ends in {' or '.join(FORMATS)} is needed")
    model = load_model(run_dir)
    if model.env["id"] is None:
        raise UserError(f"{run_dir}: its environment was made in Python; film it there")
    writer_for = _video_library()
    _choose_headless()
    env = make_env(model.env["id"], model.env["kwargs"], render_mode="rgb_array")
    model.check_spaces(env.observation_space, env.action_space, model.env["id"])
    fps = int(env.metadata.get("render_fps") or DEFAULT_FPS)
    unfinished = out.with_name(f".{out.stem}.tmp{out.suffix}")
    try:
        with quietly():
            _follow(env)
            env.reset(seed=seed)
            if env.render() is None:  # before anything is written
                raise UserError("it draws no pictures")
            _make_place(out, unfinished)
        what = "an episode" if episodes == 1 else f"{episodes} episodes"
        print(f"filming {what}: without a GPU a thousand pictures can take minutes", file=sys.stderr)
        _play(model, env, episodes, seed, lambda: writer_for(unfinished, fps))
        os.replace(unfinished, out)
    except _CannotWrite as error:
        raise UserError(f"--out {out} cannot be written: {error}") from None
    except Exception as error:
        # Every graphics stack fails in its own way; the user needs one line, not a driver's traceback.
        raise UserError(f"cannot render {model.env['id']}: {_first_line(error)}{_headless_hint()}") from None
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        env.close()


def _play(model: Model, env: gym.Env, episodes: int, seed: int, open_writer: Callable[[], Any]) -> None:
    """Episodes, each picture to the writer; libraries keep quiet, but a line every so often says that it goes on."""
    patience, is_fixed = Patience("filming"), not isinstance(env, AtariGame)
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        with quietly():
            writer = stack.enter_context(open_writer())

        def on_frame(length: int) -> None:
            with quietly():  # what writes .mp4 files starts with the first picture
                writer.append_data(env.render())
            patience(length)

        play(model, env, episodes, seed, is_fixed, on_frame)


def _follow(env: gym.Env) -> None:
    """Let MuJoCo's camera go along with the body.

    Gymnasium looks on from where the body starts if a task names none to follow, though most models have a camera for
    that. A camera that the environment was made with stays.
    """
    renderer = getattr(env.unwrapped, "mujoco_renderer", None)
    if renderer is None or renderer.camera_id != -1 or "trackbodyid" in (renderer.default_cam_config or {}):
        return
    if env.spec is not None and not CAMERA.isdisjoint(env.spec.kwargs):
        return
    import mujoco

    renderer.camera_id = mujoco.mj_name2id(renderer.model, mujoco.mjtObj.mjOBJ_CAMERA, "track")  # -1 where it has none


class _CannotWrite(Exception):
    """The place for the film, not its pictures, is the trouble."""


def _make_place(out: Path, unfinished: Path) -> None:
    """Try to write there before a library does, which would blame a broken pipe."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        unfinished.write_bytes(b"")
    except OSError as error:
        raise _CannotWrite(error.strerror) from None


def _video_library() -> Any:
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401 - the .mp4 writer needs it
    except ModuleNotFoundError as error:
        raise UserError(f"video needs {error.name}: {extra('video')}") from None

    def writer(path: Path, fps: int) -> Any:
        if path.suffix == ".gif":
            return imageio.get_writer(path, duration=1000 / fps, loop=0)
        # yuv420p plays everywhere and needs even sides, hence the macro block of 2
        return imageio.get_writer(path, fps=fps, macro_block_size=2, ffmpeg_log_level="quiet")

    return writer


def _choose_headless() -> None:
    """Without a screen: EGL if the machine has it, else OSMesa; the user's own choice stays."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL"):
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = backend
            return


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _headless_hint() -> str:
    if os.environ.get("DISPLAY") or os.environ.get("MUJOCO_GL"):
        return ""
    return "; without a screen MuJoCo needs EGL or OSMesa (Debian: libegl1 or libosmesa6)"
