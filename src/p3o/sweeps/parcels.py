"""A run's files on their way between the node that works on it and the sweep's folder.

Files that grow are sent from where the last parcel ended, the others whole when they have changed. What arrives is
written in an order in which every moment leaves a folder that can be resumed: growing files first (a resume cuts them
back), then the checkpoint's data, then the index that makes it the checkpoint, then what was made from it.
"""

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

from p3o import checkpoint
from p3o.folder import WORKER_LOG
from p3o.recording import EPISODES, EVALUATIONS, UPDATES

GROWING = (EPISODES, UPDATES, EVALUATIONS)
MODELS = ("model", "model-best")
IGNORED = (".lock", WORKER_LOG)


class Part(NamedTuple):
    """A file, or its end from an offset on."""

    path: str  # inside the run's folder, with slashes
    offset: int
    content: bytes


DATA = ("state-", "replay-")  # files of a checkpoint that come and go, by the beginning of their names


class Parcel(NamedTuple):
    """What has changed in a run's folder, and the checkpoint's data files that are there now."""

    parts: list[Part]
    data_files: list[str]


def is_growing(path: str) -> bool:
    return path in GROWING or path.startswith("tb/")


def list_files(folder: Path) -> list[str]:
    """The files of a run: no locks, logs or half-written ones."""
    paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file())
    return sorted(
        path.as_posix()
        for path in paths
        if path.name not in IGNORED and path.suffix not in (".tmp", ".part") and not path.parts[0].startswith(".")
    )


class Packer:
    """On the node: remembers what was sent."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lengths: dict[str, int] = {}
        self._stamps: dict[str, tuple[int, int]] = {}

    def pack(self) -> Parcel:
        parts = []
        files = list_files(self._folder)
        for path in files:
            if is_growing(path):
                sent = self._lengths.get(path, 0)
                content = (self._folder / path).read_bytes()[sent:]
                self._lengths[path] = sent + len(content)
                is_new = bool(content)
            else:
                sent, status = 0, (self._folder / path).stat()
                stamp = (status.st_mtime_ns, status.st_size)
                is_new = self._stamps.get(path) != stamp
                content = (self._folder / path).read_bytes() if is_new else b""
                self._stamps[path] = stamp
            if is_new:
                parts.append(Part(path, sent, content))
        return Parcel(parts, [path for path in files if _is_data(path)])


def _is_data(path: str) -> bool:
    return path.startswith(tuple(f"checkpoint/{name}" for name in DATA))


def unpack(parcel: Parcel, folder: Path) -> None:
    """In the sweep's folder: write a parcel so that being killed at any moment does no harm."""
    parts = {part.path: part for part in parcel.parts}
    index = f"checkpoint/{checkpoint.INDEX}"
    in_models = [path for path in parts if path.split("/")[0] in MODELS]
    last = [*in_models, index, "report.html"]
    for part in sorted((p for p in parcel.parts if p.path not in last), key=lambda p: p.path != "config.json"):
        _write(folder, part)
    if index in parts:
        _write(folder, parts[index])
        for old in [path for name in DATA for path in (folder / "checkpoint").glob(f"{name}*")]:
            if f"checkpoint/{old.name}" not in parcel.data_files:
                old.unlink()
    for name in MODELS:
        own = [parts[path] for path in in_models if path.startswith(name + "/")]
        if own:
            _replace_model(folder / name, own)
    if "report.html" in parts:
        _write(folder, parts["report.html"])


def _write(folder: Path, part: Part) -> None:
    path = folder / part.path
    path.parent.mkdir(parents=True, exist_ok=True)
    if part.offset == 0:
        checkpoint.write_file(path, part.content)
        return
    with open(path, "r+b") as file:
        file.truncate(part.offset)
        file.seek(part.offset)
        file.write(part.content)
        file.flush()
        os.fsync(file.fileno())


def _replace_model(folder: Path, parts: list[Part]) -> None:
    new = checkpoint.new_folder(folder)
    for part in parts:
        checkpoint.write_file(new / Path(part.path).name, part.content)
    checkpoint.replace_folder(new, folder, keeps_others=True)


def read_all(folder: Path) -> Parcel:
    """Everything that a node needs to take a run up."""
    return Packer(folder).pack() if folder.exists() else Parcel([], [])


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Where a node works."""
    return tempfile.TemporaryDirectory(prefix="p3o-")
