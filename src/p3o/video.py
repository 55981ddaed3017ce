"""Films of a trained agent: MuJoCo without a screen through EGL or OSMesa, classic control through pygame."""

import contextlib
import ctypes.util
import errno
import os
import sys
from pathlib import Path
from typing import Any

from p3o.agent import load_model
from p3o.envs.atari import AtariGame
from p3o.envs.making import make_env
from p3o.envs.quiet import quietly
from p3o.errors import UserError
from p3o.evaluate import play

FORMATS = (".mp4", ".gif")
DEFAULT_FPS = 30


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
            env.reset(seed=seed)
            if env.render() is None:  # before anything is written
                raise UserError("it draws no pictures")
            _make_place(out, unfinished)
        what = "an episode" if episodes == 1 else f"{episodes} episodes"
        print(f"filming {what}: without a GPU a thousand pictures can take minutes", file=sys.stderr)
        with quietly(), writer_for(unfinished, fps) as writer:
            is_fixed = not isinstance(env, AtariGame)
            play(model, env, episodes, seed, is_fixed, on_frame=lambda: writer.append_data(env.render()))
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
        raise UserError(f"video needs {error.name}: install the extra p3o[video]") from None

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
