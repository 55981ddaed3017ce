"""Exact snapshots of a running environment as plain data, so that another process goes on bit for bit.

A snapshot holds the attributes of every layer of the wrapper chain, with NumPy's generators and MuJoCo's simulation
state. What is not understood for certain is refused with `NotSnapshotable`. State outside the attributes is not seen:
module globals, class attributes, a simulator behind a handle that is a mere number.
"""

import dis
import enum
import functools
import hashlib
import itertools
import logging
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

Tree: TypeAlias = "bool | int | float | str | np.ndarray | list[Tree] | dict[str, Tree] | None"
Layers: TypeAlias = list[gymnasium.Env]

SCALARS = (type(None), bool, int, float, str)
SEQUENCES = {kind.__name__: kind for kind in (tuple, set, frozenset)}
BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
MISSING = object()

# What the simulator derives from its state and next computes inside a step; tasks read some of it before that.
# fmt: off
DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "cam_xpos", "cam_xmat", "subtree_com", "subtree_linvel", "subtree_angmom", "cinert", "cvel", "cacc", "cfrc_int",
    "cfrc_ext", "ten_length", "ten_velocity", "actuator_length", "actuator_velocity", "actuator_force", "act_dot",
    "qacc", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "qfrc_constraint", "sensordata", "energy",
)
# fmt: on


class NotSnapshotable(Exception):
    """The environment keeps state that cannot be captured for certain; the message says where."""


def capture(env: gymnasium.Env) -> Tree:
    """The whole state of `env` as nested dicts, lists, scalars and arrays that share no memory with it."""
    layers = _layers(env)
    encoder = _Encoder(layers)
    try:
        attributes = [encoder.attributes(layer, type(layer).__name__) for layer in layers]
    except RecursionError:
        raise NotSnapshotable(f"{type(layers[-1]).__name__} holds data nested too deeply, or in a cycle") from None
    encoder.check_overlap()
    return [[_name(type(layer)), values] for layer, values in zip(layers, attributes, strict=True)]


def restore(env: gymnasium.Env, snapshot: Tree) -> None:
    """Put `env`, made as the captured one was, into the captured state; it may be unused or used.

    Objects and functions are matched with those `env` holds in the same place, never looked up by name: where only a
    reset makes them, reset `env` once before. After a ValueError `env` is as it was.
    """
    layers = _layers(env)
    decoder = _Decoder(layers)
    nodes: Any = snapshot
    try:
        if [name for name, _ in nodes] != [_name(type(layer)) for layer in layers]:
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


def _layers(env: gymnasium.Env) -> Layers:
    """The wrapper chain, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _name(value: Any) -> str:
    """The full name of a class or function."""
    if isinstance(value, functools.partial):
        return f"partial {_name(value.func)}"
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"


class _Plain:
    """A class without slots or a base in C: what the memory layout of others is compared with."""


def _has_only_attributes(value: object) -> bool:
    """Whether everything `value` holds is in its `__dict__`."""
    layout = [(k.__basicsize__, k.__itemsize__, k.__dictoffset__, k.__weakrefoffset__) for k in (type(value), _Plain)]
    return layout[0] == layout[1] and not isinstance(value, types.ModuleType)


def _is_mujoco(owner: object) -> bool:
    return any(_name(kind) == "gymnasium.envs.mujoco.mujoco_env.MujocoEnv" for kind in type(owner).__mro__)


def _is_display(owner: object, name: str, value: object) -> bool:
    """Whether `value` only draws: a renderer, or pygame's surfaces, clocks and fonts where they are expected."""
    if isinstance(value, list | tuple) and value:
        return all(_is_display(owner, name, item) for item in value)
    module, kind = str(getattr(type(value), "__module__", "")), type(value).__name__  # Box2D's objects have none
    # Elsewhere a surface may be state: a picture that the environment reads back.
    is_expected = type(owner).__module__.startswith("gymnasium.") or name in ("screen", "clock", "surf", "window")
    is_pygame = module.split(".")[0] == "pygame" and kind in ("Surface", "Clock", "Font")
    return (is_expected and is_pygame) or module == "gymnasium.envs.mujoco.mujoco_rendering"


def _is_skipped(owner: object, name: str, value: object) -> bool:
    """Whether an attribute is no state, so that a restored environment keeps its own."""
    return (
        isinstance(value, EnvSpec | logging.Logger)
        or (isinstance(owner, gymnasium.Env) and name in ("metadata", "render_mode", "spec"))
        or (isinstance(owner, gymnasium.Wrapper) and name in ("env", "_saved_kwargs", "_cached_spec", "_metadata"))
        or (isinstance(owner, gymnasium.utils.EzPickle) and name in ("_ezpickle_args", "_ezpickle_kwargs"))
        or (_is_mujoco(owner) and name in ("model", "fullpath"))
        or _is_display(owner, name, value)
    )


def _is_constant(value: Any, layers: Layers) -> bool:
    """Whether a function, or what one refers to, keeps nothing between calls that is not captured elsewhere."""
    if isinstance(value, (*SCALARS, np.generic, np.ufunc, enum.Enum, gymnasium.Space, type)) or _among(layers, value):
        return True
    if isinstance(value, types.MethodType):
        return _among(layers, value.__self__)
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType)  # else it is bound, perhaps to a random generator
    if isinstance(value, functools.partial):
        return all(_is_constant(part, layers) for part in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.FunctionType):
        if str(value.__module__).startswith("gymnasium."):
            return True  # its wrappers close over arrays they never write
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        kept = all(_is_constant(item, layers) for item in (*cells, *defaults, *vars(value).values()))
        return kept and not _rebinds(value.__code__, value.__code__.co_freevars)
    return type(value) is tuple and all(_is_constant(item, layers) for item in value)


def _among(layers: Layers, value: object) -> bool:
    return any(value is layer for layer in layers)


def _rebinds(code: types.CodeType, names: tuple[str, ...]) -> bool:
    """Whether `code` or a function inside it assigns one of the outer variables `names` (`nonlocal`)."""
    own = any(step.opname == "STORE_DEREF" and step.argval in names for step in dis.get_instructions(code))
    return own or any(_rebinds(inner, names) for inner in code.co_consts if isinstance(inner, types.CodeType))


def _with_parts(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    """A space and the spaces inside it."""
    yield space
    for value in vars(space).values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, gymnasium.Space):
                yield from _with_parts(item)


def _model_digest(model: Any) -> str:
    """A checksum of a MuJoCo model, which snapshots leave out because tasks leave it as they made it."""
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()


class _Encoder:
    """Live values to a tree; those with an identity are numbered as they come, and met again become references."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.seen: dict[int, tuple[int, object]] = {}  # by id; holds the value too, or its id could come again
        self.arrays: list[tuple[int, int, str]] = []  # first and last address, place

    def attributes(self, owner: object, where: str) -> Tree:
        if not _has_only_attributes(owner):
            raise NotSnapshotable(f"{where} is a {_name(type(owner))}, whose state is not known to be plain data")
        return {
            name: {"own": None} if _is_skipped(owner, name, value) else self.encode(value, f"{where}.{name}", owner)
            for name, value in vars(owner).items()
        }

    def encode(self, value: Any, where: str, owner: object = None) -> Tree:
        if type(value) in SCALARS:
            return value
        if id(value) in self.seen:
            return {"same": self.seen[id(value)][0]}
        if _among(self.layers, value):
            return {"layer": [layer is value for layer in self.layers].index(True)}
        if isinstance(value, np.generic):
            return {"scalar": self.array(np.asarray(value), where)}
        if isinstance(value, enum.Enum):
            return {"enum": [_name(type(value)), value.name]}
        if isinstance(value, gymnasium.Space):  # only what `sample` draws from can change
            random = [self.encode(vars(space).get("_np_random"), where) for space in _with_parts(value)]
            return {"space": [_name(type(value)), random]}
        if callable(value) and _is_constant(value, self.layers):
            return {"function": [_name(value)]}
        if _name(type(value)) == "mujoco._structs.MjData" and _is_mujoco(owner):
            return {"mujoco": self.mujoco(value)}
        if type(value) in SEQUENCES.values():
            return self.sequence(value, where)
        self.remember(value)
        return self.mutable(value, where)

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
        return {"object": [_name(kind), self.attributes(value, where)]}

    def generator(self, bits: Any, where: str) -> Tree:
        if type(bits) not in BIT_GENERATORS.values() or type(bits.seed_seq) is not np.random.SeedSequence:
            raise NotSnapshotable(f"{where} draws from a {_name(type(bits))} that is not NumPy's own")
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

    @staticmethod
    def mujoco(data: Any) -> Tree:
        import mujoco

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(data.model, kind))
        mujoco.mj_getState(data.model, data, state, kind)
        return [_model_digest(data.model), state, np.concatenate([getattr(data, name).ravel() for name in DERIVED])]


class _Decoder:
    """A tree to live values, each decoded next to what the environment holds in its place (`own`)."""

    def __init__(self, layers: Layers):
        self.layers = layers
        self.seen: list[Any] = []
        self.writes: list[Callable[[], None]] = []
        self.where = type(layers[-1]).__name__  # for messages

    def attributes(self, owner: object, nodes: Any) -> dict[str, Any]:
        """What `vars(owner)` is to be: its own where that is no state, else what `nodes` say."""
        values = {name: value for name, value in vars(owner).items() if _is_skipped(owner, name, value)}
        for name, node in nodes.items():
            self.where = f"{type(owner).__name__}.{name}"
            if type(name) is not str:
                raise ValueError("an attribute's name has to be text")
            own = vars(owner).get(name, MISSING)
            value = own if type(node) is dict and "own" in node else self.decode(node, own)
            if not _is_skipped(owner, name, own) and value is not MISSING:
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
            self.mujoco(own, *content)
            return own
        if content[0] != _name(own if tag == "function" else type(own)):
            raise ValueError(f"{content[0]} is not where it was captured")
        if tag == "object" and _has_only_attributes(own):
            value = self.remember(object.__new__(type(own)))  # anew, because others may share the one in place
            vars(value).update(self.attributes(own, content[1]))
            return value
        if tag == "enum" and isinstance(own, enum.Enum):
            return type(own)[content[1]]
        if tag == "space" and isinstance(own, gymnasium.Space):
            for space, node in zip(_with_parts(own), content[1], strict=True):
                generator = self.decode(node)
                if not isinstance(generator, np.random.Generator | None):
                    raise ValueError("a space that samples without a generator")
                self.writes.append(functools.partial(vars(space).__setitem__, "_np_random", generator))
            return own
        if tag == "function" and callable(own):
            return own
        raise ValueError(f"unknown entry {tag!r}")

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

    def mujoco(self, data: Any, digest: str, state: np.ndarray, derived: np.ndarray) -> None:
        import mujoco

        if type(data) is not mujoco.MjData or digest != _model_digest(data.model):
            raise ValueError("the simulation model is not the captured one")
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        fields = [getattr(data, name) for name in DERIVED]
        sizes = [field.size for field in fields]
        state, derived = state.astype(np.float64), derived.astype(np.float64)
        if (state.shape, derived.shape) != ((mujoco.mj_stateSize(data.model, kind),), (sum(sizes),)):
            raise ValueError("the simulation state has another size")

        def write() -> None:
            mujoco.mj_setState(data.model, data, state, kind)
            for field, part in zip(fields, np.split(derived, np.cumsum(sizes)[:-1]), strict=True):
                field[...] = part.reshape(field.shape)

        self.writes.append(write)
