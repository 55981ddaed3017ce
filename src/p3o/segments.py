"""A large replay on disk: rollouts in segment files that are written once and listed in the checkpoint.

A checkpoint adds the rollouts since the last one and lists the segments that the ring still needs; those that it has
overwritten are removed after the list is in place. Frames of games shrink to a few percent under zlib's fastest level.
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from p3o.checkpoint import read_tensors, write_tensors
from p3o.errors import UserError
from p3o.types import Array

ROLLOUTS = 64  # of a segment, at most: of the paper's Atari runs 0.14 GB before compression
PATTERN = "replay-*"


class Chunk(NamedTuple):
    """Consecutive rollouts of a ring, counted from the first that was ever added."""

    first: int
    last: int  # not part of it
    leaves: list[Array]  # each [at least last − first, E, ...]; may be on the device


def ranges(first: int, last: int) -> Iterator[tuple[int, int]]:
    """A range of rollouts in pieces of a segment's size."""
    for start in range(first, last, ROLLOUTS):
        yield start, min(start + ROLLOUTS, last)


def write(folder: Path, chunk: Chunk) -> dict[str, Any]:
    """Write one segment; returns its line of the list."""
    arrays = [np.ascontiguousarray(np.asarray(leaf)[: chunk.last - chunk.first]) for leaf in chunk.leaves]
    # compressed first, one by one: zlib lets the training's thread go on, copies of large arrays do not
    packed = {str(i): np.frombuffer(zlib.compress(array.data, 1), np.uint8) for i, array in enumerate(arrays)}
    proof = write_tensors(folder / f"replay-{chunk.first}-{chunk.last}", packed)
    kinds = [{"shape": list(array.shape), "dtype": str(array.dtype)} for array in arrays]
    return proof | {"first": chunk.first, "last": chunk.last, "leaves": kinds}


def read(folder: Path, segment: dict[str, Any]) -> Chunk:
    """Read one segment back, refusing a damaged one in one line."""
    packed = read_tensors(folder, segment)
    try:
        leaves = [
            np.frombuffer(zlib.decompress(packed[str(i)].data), kind["dtype"]).reshape(kind["shape"])
            for i, kind in enumerate(segment["leaves"])
        ]
    except (zlib.error, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder / str(segment['name'])} is damaged: {str(error).splitlines()[0]}") from None
    return Chunk(segment["first"], segment["last"], leaves)


def needed(segments: Iterable[dict[str, Any]], num_added: int, slots: int) -> list[dict[str, Any]]:
    """Those with a rollout that a ring of so many slots still holds."""
    return [segment for segment in segments if segment["last"] > num_added - slots]


def clean(folder: Path, segments: Iterable[dict[str, Any]]) -> None:
    """Remove the files of segments that are not listed any more, and what a kill left."""
    names = {segment["name"] for segment in segments}
    for path in folder.glob(PATTERN):
        if path.name not in names:
            path.unlink()
