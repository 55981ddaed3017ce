"""Files that are there whole or not at all."""

import os
import re
from pathlib import Path

from p3o.errors import UserError

RUN_SUFFIXES = (".json", ".csv", ".gz", ".safetensors", ".toml")


def write_file(path: Path, data: bytes, kind: str) -> None:
    """The whole file or nothing: a reader never sees half of it."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, should be the name of {kind}")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def check_page_name(path: Path, kind: str) -> None:
    """Refuse a folder, and a name that files of runs have: a slip would write over them."""
    if path.suffix in RUN_SUFFIXES:
        raise UserError(f"{path}: {path.suffix} is of other files, not of {kind}")
    if path.is_dir():
        raise UserError(f"{path}: is a folder, should be the name of {kind}")


def check_figures_folder(folder: Path) -> None:
    """Refuse a file, and a folder that holds a run, a model or a checkpoint."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, should be a folder for figures")
    held = [file.name for file in folder.glob("*") if file.suffix in (".json", ".safetensors")]
    if held:
        raise UserError(f"{folder}: holds {min(held)}; figures want a folder of their own")


def file_name(text: str) -> str:
    """A name from outside as part of a file name."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip("-.") or "unnamed"
