"""Live values to plain data: what an environment holds, as nested dicts, lists, scalars and arrays."""

import contextlib
import enum
import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from p3o.envs import mujoco_state
from p3o.envs.introspection import (
    SCALARS,
    Layers,
    constants,
    full_name,
    has_only_attributes,
    is_among,
    is_constant,
    is_known_by_name,
    is_mujoco,
    is_skipped,
    with_parts,
)

Tree: TypeAlias = "bool | int | float | str | np.ndarray | list[Tree] | dict[str, Tree] | None"

SEQUENCES = {kind.__name__: kind for kind in (tuple, set, frozenset)}
BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
DEEPEST = 60  # levels of nesting: what writes and reads a checkpoint follows them, too


class NotSnapshotable(Exception):
    """The environment keeps state that cannot be captured for certain; the message says where."""


class Encoder:
    """Live values to a tree; those with an identity are numbered as they come, and met again become references."""

    def __init__(self, layers: Layers, functions: Sequence[Any] | None):
        self.layers = layers
        self.functions = functions  # that were there before the first reset; None: all that are met
        self.found: list[Any] = []  # functions, as they come
        self.seen: dict[int, tuple[int, object]] = {}  # by id; holds the value too, or its id could come again
        self.arrays: list[tuple[int, int, str]] = []  # first and last address, place
        self.depth = 0

    def attributes(self, owner: object, where: str) -> Tree:
        if not has_only_attributes(owner):
            raise NotSnapshotable(f"{where} is a {full_name(type(owner))}, whose state is not known to be plain data")
        return {
            name: {"own": None} if is_skipped(owner, name, value) else self.encode(value, f"{where}.{name}", owner)
            for name, value in vars(owner).items()
        }

    def encode(self, value: Any, where: str, owner: object = None) -> Tree:
        if type(value) in SCALARS:
            return value
        if id(value) in self.seen:
            return {"same": self.seen[id(value)][0]}
        if is_among(self.layers, value):
            return {"layer": [layer is value for layer in self.layers].index(True)}
        if isinstance(value, np.generic):
            return {"scalar": self.array(np.asarray(value), where)}
        if isinstance(value, enum.Enum):
            return {"enum": [full_name(type(value)), value.name]}
        if isinstance(value, gymnasium.Space):  # only what `sample` draws from can change
            random = [self.encode(vars(space).get("_np_random"), where) for space in with_parts(value)]
            return {"space": [full_name(type(value)), random]}
        if callable(value) and is_constant(value, self.layers):
            return self.function(value, where)
        if full_name(type(value)) == "mujoco._structs.MjData" and is_mujoco(owner):
            return {"mujoco": mujoco_state.capture(value)}
        if type(value) in SEQUENCES.values():
            return self.sequence(value, where)
        self.remember(value)
        with self.deeper(where):
            return self.mutable(value, where)

    def function(self, value: Any, where: str) -> Tree:
        """By its place among those of before the first reset or, where its name says all of it, by that alone."""
        self.found.append(value)
        node: list[Any] = [full_name(value), [*constants(value)]]
        if self.functions is not None and value in self.functions:
            node.append(self.functions.index(value))
        elif self.functions is not None and not is_known_by_name(value):
            raise NotSnapshotable(f"{where} is a function that was made after the first reset began")
        return {"function": node}

    @contextlib.contextmanager
    def deeper(self, where: str) -> Iterator[None]:
        if self.depth == DEEPEST:
            raise NotSnapshotable(f"{where[:200]} is nested too deeply, or in a cycle")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    def remember(self, value: object) -> None:
        self.seen[id(value)] = (len(self.seen), value)

    def items(self, values: Any, where: str) -> Tree:
        return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def sequence(self, value: Any, where: str) -> Tree:
        """A tuple or set, numbered after its items because it is built after them."""
        if type(value) is not tuple and len(value) > 1:
            is_number = all(isinstance(item, int | float | np.number) for item in value)
            if not is_number or list(type(value)(list(value))) != list(value):
                raise NotSnapshotable(f"{where} is a set that another process may go through in another order")
        with self.deeper(where):
            items = self.items(value, where)
        self.remember(value)
        return {type(value).__name__: items}

    def mutable(self, value: Any, where: str) -> Tree:
        kind = type(value)
        if kind is np.ndarray:
            if value.size:
                self.arrays.append((*np.lib.array_utils.byte_bounds(value), where))
            return self.array(value, where)
        if kind is list:
            return self.items(value, where)
        if kind is deque:
            return {"deque": [value.maxlen, self.items(value, where)]}
        if kind is dict:
            return {"dict": [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
        if kind is np.random.Generator:
            return {"generator": self.generator(value.bit_generator, where)}
        if isinstance(value, gymnasium.Env):
            raise NotSnapshotable(f"{where} is an environment outside the wrapper chain")
        return {"object": [full_name(kind), self.attributes(value, where)]}

    def generator(self, bits: Any, where: str) -> Tree:
        if type(bits) not in BIT_GENERATORS.values() or type(bits.seed_seq) is not np.random.SeedSequence:
            raise NotSnapshotable(f"{where} draws from a {full_name(type(bits))} that is not NumPy's own")
        if id(bits) in self.seen or id(bits.seed_seq) in self.seen:
            raise NotSnapshotable(f"{where} shares its source of random bits with another generator")
        node = [self.encode(bits.state, where), self.encode(bits.seed_seq.state, where)]
        self.remember(bits)
        self.remember(bits.seed_seq)
        return node

    def array(self, value: np.ndarray, where: str) -> Tree:
        """An array as itself where every file format has it, else as bytes.

        Axes keep their order in memory: a sum of the same numbers in another order differs in the last bits.
        """
        if value.dtype.kind not in "biufcSUmM":
            raise NotSnapshotable(f"{where} is an array of {value.dtype}")
        root: Any = value
        while isinstance(root, np.ndarray):
            root = root.base
        is_plain = value.flags.c_contiguous
        axes = sorted(range(value.ndim), key=lambda axis: 0 if is_plain else -value.strides[axis])
        dense = value.transpose(axes)
        if not dense.flags.c_contiguous or not (root is None or isinstance(root, bytes)):
            raise NotSnapshotable(f"{where} is a view of memory that may belong to something else")
        if is_plain and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 and value.dtype.isnative:
            return value.copy()
        data = np.frombuffer(dense.tobytes(), np.uint8).copy()
        return {"array": [value.dtype.str, list(dense.shape), list(axes), data]}

    def check_overlap(self) -> None:
        """Refuse two arrays that share memory without being one: restored apart, they would drift apart."""
        for (_, end, where), (start, _, other) in itertools.pairwise(sorted(self.arrays)):
            if start < end:
                raise NotSnapshotable(f"{where} and {other} are views of the same memory")
