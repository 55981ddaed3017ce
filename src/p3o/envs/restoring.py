"""Plain data to live values, each next to what the environment holds in its place."""

import enum
import functools
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from p3o.envs import mujoco_state
from p3o.envs.capturing import BIT_GENERATORS, SEQUENCES
from p3o.envs.introspection import (
    SCALARS,
    Layers,
    class_named,
    constants,
    full_name,
    has_only_attributes,
    is_skipped,
    with_parts,
)

MISSING = object()


class Decoder:
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
        """What is found in the same place of the restored environment, or is made by its class."""
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
            return self.filled(type(own), own, content[1])  # anew, because others may share the one in place
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
        """What an episode made, by its class: an object, or a member of an enumeration."""
        kind: Any = class_named(content[0], self.layers)
        if kind is None or issubclass(kind, enum.Enum) != (tag == "enum"):
            raise ValueError(f"{content[0]} is not where it was captured")
        if tag == "enum":
            return kind[content[1]]
        if any(type(node) is dict and "own" in node for node in content[1].values()):
            raise ValueError(f"{content[0]} holds what is no state, and is not where it was captured")
        return self.filled(kind, object.__new__(kind), content[1])

    def filled(self, kind: type, own: object, nodes: Any) -> Any:
        """A new object, made without running any code of its class, next to `own`."""
        value = self.remember(object.__new__(kind))
        vars(value).update(self.attributes(own, nodes))
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
