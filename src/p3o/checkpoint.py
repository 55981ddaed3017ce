"""The whole training state on disk: safetensors + JSON, committed by one atomic rename.

`checkpoint.json` names the data file that belongs to it with size and SHA-256, so replacing that JSON is the moment a
new checkpoint becomes the checkpoint; the previous data file is removed after. Nothing read here can run code.
"""

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from p3o.errors import UserError

FORMAT = 1
INDEX = "checkpoint.json"


def flatten(tree: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Split a tree of dicts, lists and plain values into JSON and the arrays it refers to."""
    arrays: dict[str, np.ndarray] = {}

    def walk(node: Any, path: str) -> Any:
        if isinstance(node, np.ndarray):
            arrays[path] = np.ascontiguousarray(node)
            return {"@array": path, "@shape": list(node.shape)}  # ascontiguousarray makes 0-d arrays 1-d
        if isinstance(node, dict):
            if any(not isinstance(key, str) or key.startswith("@") for key in node):
                raise TypeError(f"{path}: keys must be text and not start with @")
            return {key: walk(value, f"{path}/{key}") for key, value in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(value, f"{path}/{index}") for index, value in enumerate(node)]
        if isinstance(node, np.generic):
            return node.item()
        if node is None or isinstance(node, (bool, int, float, str)):
            return node
        raise TypeError(f"{path}: {type(node).__name__} cannot be stored")

    return walk(tree, ""), arrays


def unflatten(skeleton: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of `flatten` (tuples come back as lists)."""
    if isinstance(skeleton, dict):
        if "@array" in skeleton:
            return arrays[skeleton["@array"]].reshape(skeleton["@shape"])
        return {key: unflatten(value, arrays) for key, value in skeleton.items()}
    if isinstance(skeleton, list):
        return [unflatten(value, arrays) for value in skeleton]
    return skeleton


def frozen(tree: Any) -> Any:
    """The tree as it is now, for a thread that writes it while its arrays and lists go on changing."""
    skeleton, arrays = flatten(tree)
    return unflatten(skeleton, {name: array.copy() for name, array in arrays.items()})


def write_file(path: Path, content: bytes) -> None:
    """Write atomically: the file is whole or not there, also after a loss of power."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk before anything that relies on them, where its file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # as file systems say that cannot sync folders
            raise
    finally:
        os.close(descriptor)


def write_json(path: Path, content: dict[str, Any]) -> None:
    write_file(path, (json.dumps(content, indent=1) + "\n").encode())


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """The same with a digest of itself."""
    return content | {"sha256": _digest(content)}


def _digest(content: dict[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def read_sealed(path: Path, what: str, format: int = FORMAT) -> dict[str, Any]:
    """A JSON object that is as it was written."""
    content = read_json(path, what, format)
    if content.get("sha256") != _digest(content):
        raise UserError(f"{path} was changed: its contents do not match their SHA-256")
    return content


def read_json(path: Path, what: str, format: int = FORMAT) -> dict[str, Any]:
    """A JSON object of a known format, or one clear line."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {what} was expected there") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict) or content.get("format") != format:
        found = content.get("format") if isinstance(content, dict) else None
        raise UserError(f"{path}: {what} of format {format} was expected, found {found!r}")
    return content


def write_tensors(path: Path, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Write arrays atomically; returns what proves the file later."""
    content = save_tensors(arrays)
    write_file(path, content)
    return {"name": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def read_tensors(folder: Path, proof: dict[str, Any]) -> dict[str, np.ndarray]:
    """Read arrays back, refusing a truncated, swapped or edited file in one line."""
    path = folder / Path(str(proof["name"])).name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) != proof["bytes"]:
        raise UserError(f"{path} is damaged: it has {len(content)} bytes instead of {proof['bytes']}")
    if hashlib.sha256(content).hexdigest() != proof["sha256"]:
        raise UserError(f"{path} is damaged or was changed: its SHA-256 is not the one written beside it")
    try:
        return load_tensors(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{path} is damaged: {str(error).splitlines()[0]}") from None


def save(folder: Path, run_id: str, step: int, tree: dict[str, Any]) -> int:
    """Write a checkpoint and drop the one before; returns its bytes on disk."""
    folder.mkdir(parents=True, exist_ok=True)
    skeleton, arrays = flatten(tree)
    proof = write_tensors(folder / _free_name(folder, step), arrays)
    index = {"format": FORMAT, "run_id": run_id, "step": step, "data": proof, "state": skeleton}
    write_json(folder / INDEX, seal(index))
    for old in folder.glob("state-*.safetensors*"):
        if old.name != proof["name"]:
            old.unlink()
    return int(proof["bytes"]) + (folder / INDEX).stat().st_size


def _free_name(folder: Path, step: int) -> str:
    """For new data, not the name of those in place: a second checkpoint of a step may differ from the first.

    It does where a resumed environment could not be brought back, and a kill may come before the new data are listed.
    """
    name = f"state-{step}.safetensors"
    if not (folder / name).exists():
        return name
    try:
        listed = json.loads((folder / INDEX).read_text())["data"]["name"]
    except (OSError, ValueError, KeyError, TypeError):  # no checkpoint in place
        return name
    return f"state-{step}-again.safetensors" if listed == name else name


def exists(folder: Path) -> bool:
    return (folder / INDEX).exists()


def load(folder: Path, run_id: str) -> dict[str, Any]:
    """The last whole checkpoint of this run."""
    index = read_sealed(folder / INDEX, "a checkpoint")
    if index.get("run_id") != run_id:
        raise UserError(f"{folder} belongs to another run: its run_id differs from the one in config.json")
    try:
        return unflatten(index["state"], read_tensors(folder, index["data"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / INDEX} is damaged: {type(error).__name__} {error}") from None


def new_folder(final: Path) -> Path:
    """An empty folder beside `final` for its next contents; hidden, so that it is no folder of the user's."""
    new = _beside(final, "new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    return new


def _beside(final: Path, kind: str) -> Path:
    """Its hidden neighbour; that of what a link or `.` stands for."""
    real = Path(os.path.realpath(final))
    return real.parent / f".{real.name}.{kind}"  # the root of a disk has a neighbour, too: inside it


def current_folder(final: Path) -> Path:
    """Where the contents of `final` are now: beside it if a replacement was killed between its two renames."""
    old = _beside(final, "old")
    return old if old.exists() and not final.exists() else final


def _working_folder() -> Path | None:
    try:
        return Path(os.path.realpath("."))
    except FileNotFoundError:  # it was removed
        return None


def replace_folder(new: Path, final: Path, keeps_others: bool = False) -> None:
    """Put a finished folder in the place of an older one; at every moment one of the two can be found.

    What else the older one has is thrown away, or moves on into the new one. So does this process, if it works there:
    paths that are relative to it are to mean the same afterwards.
    """
    old, final = _beside(final, "old"), Path(os.path.realpath(final))
    is_inside = _working_folder() == final

    def clear() -> None:
        for other in [*old.iterdir()] if keeps_others and old.is_dir() else []:
            if not (final / other.name).exists():
                os.replace(other, final / other.name)
        shutil.rmtree(old, ignore_errors=True)

    if final.exists():
        clear()  # left by one that was killed
        os.replace(final, old)
    os.replace(new, final)
    sync_folder(final.parent)
    if is_inside:
        os.chdir(final)
    clear()
