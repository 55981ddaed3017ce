"""Exact snapshots of a running environment as plain data, so that another process goes on bit for bit.

A snapshot holds the attributes of every layer of the wrapper chain, with NumPy's generators and MuJoCo's simulation
state. What is not understood for certain is refused with `NotSnapshotable`. State outside the attributes is not seen:
module globals, class attributes, a simulator behind a handle that is a mere number.
"""

import contextlib
import enum
import functools
import itertools
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np

from p3o.envs import mujoco_state
from p3o.envs.introspection import (
    SCALARS,
    Layers,
    class_named,
    constants,
    full_name,
    has_only_attributes,
    is_among,
    is_constant,
    is_known_by_name,
    is_mujoco,
    is_skipped,
    layers_of,
    with_parts,
)

Tree: TypeAlias = "bool | int | float | str | np.ndarray | list[Tree] | dict[str, Tree] | None"

SEQUENCES = {kind.__name__: kind for kind in (tuple, set, frozenset)}
BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
MISSING = object()
DEEPEST = 60  # levels of nesting: what writes and reads a checkpoint follows them, too


class NotSnapshotable(Exception):
    """The environment keeps state that cannot be captured for certain; the message says where."""


def capture(env: gymnasium.Env, functions: Sequence[Any] | None = None) -> Tree:
    """The whole state of `env` as nested dicts, lists, scalars and arrays that share no memory with it.

    `functions` is what `functions_in` said before the first reset; those that it holds now, where nothing is said. One
    that was made since may know what nothing else does, such as an episode's goal, and cannot be made again.
    """
    layers = layers_of(env)
    encoder = _Encoder(layers, functions_in(env) if functions is None else functions)
    try:
        attributes = [encoder.attributes(layer, type(layer).__name__) for layer in layers]
    except RecursionError:
        raise NotSnapshotable(f"{type(layers[-1]).__name__} holds data nested too deeply, or in a cycle") from None
    encoder.check_overlap()
    return [[full_name(type(layer)), values] for layer, values in zip(layers, attributes, strict=True)]


def restore(env: gymnasium.Env, snapshot: Tree, functions: Sequence[Any] | None = None) -> None:
    """Put `env`, made as the captured one was, into the captured state; it may be unused or used.

    Functions are among those that `functions_in` said of `env` before its first reset. Functions that are known by
    their name, and objects, are matched with those that `env` holds in the same place: where only a reset puts them
    there, reset `env` once before. Objects that are not there, since an episode made them, are made anew where
    `class_named` knows their class. After a ValueError `env` is as it was.
    """
    layers = layers_of(env)
    decoder = _Decoder(layers, functions_in(env) if functions is None else functions)
    nodes: Any = snapshot
    try:
        if [name for name, _ in nodes] != [full_name(type(layer)) for layer in layers]:
            raise ValueError("it has other layers")
        attributes = [decoder.attributes(layer, values) for layer, (_, values) in zip(layers, nodes, strict=True)]
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the snapshot does not fit {decoder.where}: {reason}") from error
    # Only now, so that a bad snapshot changes nothing, and past __setattr__, so that no code runs.
    for write in decoder.writes:
        write()
    for layer, values in zip(layers, attributes, strict=True):
        vars(layer).clear()
        vars(layer).update(values)


def functions_in(env: gymnasium.Env) -> list[Any]:
    """The functions that it holds, as far as it is understood: the same in every environment made as it was."""
    layers = layers_of(env)
    encoder = _Encoder(layers, None)
    with contextlib.suppress(NotSnapshotable, RecursionError):
        for layer in layers:
            encoder.attributes(layer, type(layer).__name__)
    return encoder.found


class _Encoder:
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


class _Decoder:
    """A tree to live values, each decoded next to what the environment holds in its place (`own`)."""

    def __init__(self, layers: Layers, functions: Sequence[Any]):
        self.layers = layers
        self.functions = functions  # that were there before the first reset
        self.seen: list[Any] = []
        self.writes: list[Callable[[], None]] = []
        self.where = type(layers[-1]).__name__  # for messages

    def attributes(self, owner: object, nodes: Any) -> dict[str, Any]:
        """What `vars(owner)` is to be: its own where that is no state, else what `nodes` say."""
        values = {name: value for name, value in vars(owner).items() if is_skipped(owner, name, value)}
        for name, node in nodes.items():
            self.where = f"{type(owner).__name__}.{name}"
            if type(name) is not str:
                raise ValueError("an attribute's name has to be text")
            own = vars(owner).get(name, MISSING)
            value = own if type(node) is dict and "own" in node else self.decode(node, own)
            if not is_skipped(owner, name, own) and value is not MISSING:
                values[name] = value
        return values

    def decode(self, node: Any, own: Any = MISSING) -> Any:
        if type(node) in SCALARS:
            return node
        if type(node) is np.ndarray:
            return self.remember(self.array(node))
        if type(node) is list:
            values = self.remember([])
            values += self.items(node, own)
            return values
        ((tag, content),) = node.items()
        if tag in ("same", "layer"):
            return (self.seen if tag == "same" else self.layers)[content]
        if tag in SEQUENCES:
            return self.remember(SEQUENCES[tag](self.items(content, own)))
        if tag == "deque":
            queue = self.remember(deque(maxlen=content[0]))
            queue.extend(self.items(content[1], own))
            return queue
        if tag == "dict":
            table = self.remember({})
            for key_node, value_node in content:
                key = self.decode(key_node)
                table[key] = self.decode(value_node, own.get(key, MISSING) if isinstance(own, dict) else MISSING)
            return table
        if tag == "array":
            return self.remember(self.array(*content))
        if tag == "scalar":
            return (self.array(content) if type(content) is np.ndarray else self.array(*content["array"]))[()]
        return self.generator(*content) if tag == "generator" else self.matched(tag, content, own)

    def remember(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def items(self, nodes: list[Any], own: Any) -> list[Any]:
        own = own if isinstance(own, list | tuple | deque) else ()
        return [self.decode(node, own[i] if i < len(own) else MISSING) for i, node in enumerate(nodes)]

    def matched(self, tag: str, content: Any, own: Any) -> Any:
        """What can only be found, not made: it has to be in the same place of the restored environment."""
        if tag == "mujoco":
            self.writes.append(mujoco_state.prepare(own, *content))
            return own
        if tag == "function" and len(content) > 2:
            own = dict(enumerate(self.functions)).get(content[2], MISSING)
        if tag in ("object", "enum") and content[0] != full_name(type(own)):
            return self.made(tag, content)
        if content[0] != full_name(own if tag == "function" else type(own)):
            raise ValueError(f"{content[0]} is not where it was captured")
        if tag == "object" and has_only_attributes(own):
            value = self.remember(object.__new__(type(own)))  # anew, because others may share the one in place
            vars(value).update(self.attributes(own, content[1]))
            return value
        if tag == "enum" and isinstance(own, enum.Enum):
            return type(own)[content[1]]
        if tag == "space" and isinstance(own, gymnasium.Space):
            for space, node in zip(with_parts(own), content[1], strict=True):
                generator = self.decode(node)
                if not isinstance(generator, np.random.Generator | None):
                    raise ValueError("a space that samples without a generator")
                self.writes.append(functools.partial(vars(space).__setitem__, "_np_random", generator))
            return own
        if tag == "function" and callable(own):
            if content[1:2] not in ([], [constants(own)]):  # those of before had the name alone
                raise ValueError(f"{content[0]} has other numbers in it than where it was captured")
            return own
        raise ValueError(f"unknown entry {tag!r}")

    def made(self, tag: str, content: Any) -> Any:
        """What an episode made, by its class: an object without running any code, or a member of an enumeration."""
        kind: Any = class_named(content[0], self.layers)
        if kind is None or issubclass(kind, enum.Enum) != (tag == "enum"):
            raise ValueError(f"{content[0]} is not where it was captured")
        if tag == "enum":
            return kind[content[1]]
        if any(type(node) is dict and "own" in node for node in content[1].values()):
            raise ValueError(f"{content[0]} holds what is no state, and is not where it was captured")
        value = self.remember(object.__new__(kind))
        vars(value).update(self.attributes(value, content[1]))
        return value

    def generator(self, state_node: Any, seed_node: Any) -> np.random.Generator:
        slot = len(self.seen)
        self.remember(None)  # numbered before its parts, as when captured
        state, seed = self.decode(state_node), self.decode(seed_node)
        if not 0 < seed["pool_size"] <= 64:
            raise ValueError("a seed sequence of a strange size")
        bits = BIT_GENERATORS[state["bit_generator"]](np.random.SeedSequence(**seed))
        bits.state = state
        # NumPy reads its buffers at these places without a check.
        if not 0 <= state.get("buffer_pos", 0) <= 4 or not 0 <= state["state"].get("pos", 0) <= 624:
            raise ValueError("a bit generator at a place outside its buffer")
        self.seen[slot] = np.random.Generator(bits)
        self.seen += [bits, bits.seed_seq]
        return self.seen[slot]

    @staticmethod
    def array(value: Any, shape: Any = None, axes: Any = None, data: Any = None) -> np.ndarray:
        """An array from itself, or from its data type, shape, axes by their order in memory, and bytes."""
        if type(value) is np.ndarray:
            if value.dtype.kind not in "biuf":
                raise ValueError(f"an array of {value.dtype}")
            return value.copy()
        if not re.fullmatch(r"[<>|][biufcSUmM]\d+(\[\w+\])?", value):
            raise ValueError(f"an array of {value!r}")
        dense = np.frombuffer(data.tobytes(), np.dtype(value)).reshape(shape)
        dense.tolist()  # bytes that are no text fail here
        return dense.transpose(np.argsort(axes)).copy(order="K")
