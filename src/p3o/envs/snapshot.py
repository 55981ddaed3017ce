"""Exact snapshots of a running environment as plain data, so that another process goes on bit for bit.

A snapshot holds what the attributes of every layer of the wrapper chain hold, NumPy generators and MuJoCo's simulation
state included. What is not understood for certain is refused with `NotSnapshotable`. State outside the attributes is not
seen: module globals, class attributes, a library's simulator behind a plain handle number.
"""

import dis
import enum
import functools
import hashlib
import logging
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

Tree: TypeAlias = "None | bool | int | float | str | np.ndarray | list[Tree] | dict[str, Tree]"

SCALARS = (type(None), bool, int, float, str)
BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
MISSING = object()

# What the simulation derives from its state and computes anew only in the next step; tasks read some of it before that.
DERIVED = """xpos xquat xmat xipos ximat xanchor xaxis geom_xpos geom_xmat site_xpos site_xmat cam_xpos cam_xmat
    subtree_com subtree_linvel subtree_angmom cinert crb cdof cdof_dot cvel cacc cfrc_int cfrc_ext ten_length
    ten_velocity actuator_length actuator_velocity actuator_force act_dot qacc qacc_smooth qfrc_bias qfrc_passive
    qfrc_actuator qfrc_smooth qfrc_constraint qfrc_inverse sensordata energy""".split()


class NotSnapshotable(Exception):
    """The environment keeps state that cannot be captured for certain; the message names where."""


def capture(env: gymnasium.Env) -> Tree:
    """The whole state of `env` as nested dicts, lists, scalars and arrays that share no memory with it."""
    layers = list(_layers(env))
    encoder = _Encoder(layers)
    try:
        snapshot: Tree = [
            {"class": _name(type(layer)), "attributes": encoder.attributes(layer, type(layer).__name__)}
            for layer in layers
        ]
    except RecursionError:
        raise NotSnapshotable(f"{type(env.unwrapped).__name__} holds data nested too deeply, or in a cycle") from None
    encoder.check_overlap()
    return snapshot


def restore(env: gymnasium.Env, snapshot: Tree) -> None:
    """Put `env`, made as the captured one was, into the captured state; it may be unused or used.

    Objects and functions are matched with those `env` already holds in the same place, never looked up by name. Where
    only a reset makes them, reset `env` once before. On ValueError `env` is as it was.
    """
    layers = list(_layers(env))
    decoder = _Decoder(layers)
    try:
        if not isinstance(snapshot, list) or len(snapshot) != len(layers):
            raise ValueError(f"not {len(layers)} layers")
        attributes = [decoder.layer(layer, node) for layer, node in zip(layers, snapshot, strict=True)]
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"the snapshot does not fit {type(env.unwrapped).__name__}: {reason}") from error
    # Assigned past __setattr__ and only now, so that no code runs and a bad snapshot changes nothing.
    for write in decoder.writes:
        write()
    for layer, values in zip(layers, attributes, strict=True):
        vars(layer).clear()
        vars(layer).update(values)


def _layers(env: gymnasium.Env) -> Iterator[gymnasium.Env]:
    """The wrapper chain, outermost first."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _name(value: Any) -> str:
    """The full name of a class or function."""
    if isinstance(value, functools.partial):
        return f"partial {_name(value.func)}"
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"


class _Plain:
    """A Python object without slots: what the layout of others is compared with."""


def _has_only_attributes(value: object) -> bool:
    """Whether all the memory of `value` is its `__dict__`: no slots, no C struct, no built-in container."""
    kind = type(value)
    layouts = [(k.__basicsize__, k.__itemsize__, k.__dictoffset__, k.__weakrefoffset__) for k in (kind, _Plain)]
    return layouts[0] == layouts[1]


def _is_mujoco(owner: object) -> bool:
    return any(_name(kind) == "gymnasium.envs.mujoco.mujoco_env.MujocoEnv" for kind in type(owner).__mro__)


def _is_display(owner: object, name: str, value: object) -> bool:
    """Whether `value` only draws: a renderer, or a pygame surface, clock or font where such things are expected."""
    if isinstance(value, list | tuple) and value:
        return all(_is_display(owner, name, item) for item in value)
    module, kind = type(value).__module__, type(value).__name__
    if module == "gymnasium.envs.mujoco.mujoco_rendering":
        return True
    # Elsewhere a surface may be state, such as a picture the environment reads back.
    expected = type(owner).__module__.startswith("gymnasium.") or name in ("screen", "clock", "surf", "window", "font")
    return expected and module.split(".")[0] == "pygame" and kind in ("Surface", "Clock", "Font")


def _is_skipped(owner: object, name: str, value: object) -> bool:
    """Whether an attribute is no state, so that the restored environment keeps its own."""
    if isinstance(value, EnvSpec | logging.Logger) or _is_display(owner, name, value):
        return True
    return (
        (isinstance(owner, gymnasium.Env) and name in ("metadata", "render_mode", "spec"))
        or (isinstance(owner, gymnasium.Wrapper) and name in ("env", "_saved_kwargs", "_cached_spec", "_metadata"))
        or (isinstance(owner, gymnasium.utils.EzPickle) and name in ("_ezpickle_args", "_ezpickle_kwargs"))
        or (_is_mujoco(owner) and name in ("model", "fullpath"))
    )


def _is_constant(value: Any, layers: list[gymnasium.Env]) -> bool:
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
        if value.__module__.startswith("gymnasium."):
            return True  # its wrappers close over arrays they never write
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        kept = all(_is_constant(item, layers) for item in (*cells, *defaults, *vars(value).values()))
        return kept and not _rebinds(value.__code__, value.__code__.co_freevars)
    return type(value) is tuple and all(_is_constant(item, layers) for item in value)


def _among(layers: list[gymnasium.Env], value: object) -> bool:
    return any(value is layer for layer in layers)


def _rebinds(code: types.CodeType, names: tuple[str, ...]) -> bool:
    """Whether `code` or a function inside it assigns one of the outer variables `names` (`nonlocal`)."""
    own = any(step.opname == "STORE_DEREF" and step.argval in names for step in dis.get_instructions(code))
    return own or any(_rebinds(inner, names) for inner in code.co_consts if isinstance(inner, types.CodeType))


def _random_of(space: gymnasium.Space) -> Iterator[dict[str, Any]]:
    """The attributes of a space and of the spaces inside it; `_np_random` is the generator `sample` uses."""
    yield vars(space)
    for value in vars(space).values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, gymnasium.Space):
                yield from _random_of(item)


def _model_digest(model: Any) -> str:
    """A checksum of a MuJoCo model, which tasks leave as they made it and snapshots leave out."""
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer).hexdigest()


class _Encoder:
    """Live values to a tree; mutable ones are numbered as they come, and a second meeting is a reference."""

    def __init__(self, layers: list[gymnasium.Env]):
        self.layers = layers
        self.seen: dict[int, tuple[int, object]] = {}  # also keeps temporaries alive, or their ids would come again
        self.arrays: list[tuple[int, int, str]] = []  # first and last address, place

    def attributes(self, owner: object, where: str) -> Tree:
        if not _has_only_attributes(owner):
            raise NotSnapshotable(f"{where} is a {_name(type(owner))}, which keeps state outside its attributes")
        return {
            name: self.encode(value, f"{where}.{name}", owner)
            for name, value in vars(owner).items()
            if not _is_skipped(owner, name, value)
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
        if isinstance(value, gymnasium.Space):
            random = [self.encode(own.get("_np_random"), f"{where}._np_random") for own in _random_of(value)]
            return {"space": [_name(type(value)), random]}
        if callable(value) and _is_constant(value, self.layers):
            return {"function": _name(value)}
        if _name(type(value)) == "mujoco._structs.MjData" and _is_mujoco(owner):
            return {"mujoco": self.mujoco(value)}
        if type(value) in (tuple, set, frozenset):
            return self.immutable(value, where)
        self.remember(value)
        return self.mutable(value, where)

    def remember(self, value: object) -> None:
        self.seen[id(value)] = (len(self.seen), value)

    def items(self, values: Any, where: str) -> Tree:
        return [self.encode(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def immutable(self, value: Any, where: str) -> Tree:
        """Tuples and sets, numbered after their items because they are built after them."""
        if type(value) is not tuple and len(value) > 1:
            again = type(value)(list(value))
            if not all(isinstance(item, int | float | np.number) for item in value) or list(again) != list(value):
                raise NotSnapshotable(f"{where} is a set whose order may differ in another process")
        items = self.items(value, where)
        self.remember(value)
        return {type(value).__name__: items}

    def mutable(self, value: Any, where: str) -> Tree:
        kind = type(value)
        if kind is np.ndarray:
            low, high = np.lib.array_utils.byte_bounds(value)
            self.arrays.append((low, high, where))
            return self.array(value, where)
        if kind is list:
            return self.items(value, where)
        if kind is deque:
            return {"deque": [value.maxlen, self.items(value, where)]}
        if kind is dict:
            return {"dict": [[self.encode(k, where), self.encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
        if kind is bytes:
            return {"bytes": np.frombuffer(value, np.uint8).copy()}
        if kind is np.random.Generator:
            return {"generator": self.encode(value.bit_generator, where)}
        if kind in BIT_GENERATORS.values():
            return {"bits": [self.encode(value.state, where), self.encode(value.seed_seq, where)]}
        if kind is np.random.SeedSequence:
            return {"seed": self.encode(value.state, where)}
        if isinstance(value, gymnasium.Env):
            raise NotSnapshotable(f"{where} is an environment outside the wrapper chain")
        if isinstance(value, types.ModuleType) or not _has_only_attributes(value):
            raise NotSnapshotable(f"{where} is a {_name(kind)}, whose state is not known to be plain data")
        return {"object": [_name(kind), self.attributes(value, where)]}

    def array(self, value: np.ndarray, where: str) -> Tree:
        """An array as itself where every file format has it, else as bytes; axes keep their order in memory.

        The order matters: sums over the same numbers in another order differ in the last bits.
        """
        root: Any = value
        while isinstance(root, np.ndarray):
            root = root.base
        axes = sorted(range(value.ndim), key=lambda i: -value.strides[i])
        axes = list(range(value.ndim)) if value.flags.c_contiguous else axes
        dense = value.transpose(axes)
        if value.dtype.kind not in "biufcSUmM":
            raise NotSnapshotable(f"{where} is an array of {value.dtype}")
        if not dense.flags.c_contiguous or not (root is None or type(root) is bytes):
            raise NotSnapshotable(f"{where} is a view of memory that belongs to something else")
        is_common = value.dtype.kind in "biuf" and value.dtype.itemsize <= 8 and value.dtype.isnative
        if is_common and value.flags.c_contiguous:
            return value.copy()
        data = np.frombuffer(dense.tobytes(), np.uint8).copy()
        return {"array": [value.dtype.str, list(dense.shape), list(axes), data]}

    def check_overlap(self) -> None:
        """Refuse two arrays that share memory without being one: restored apart, they would drift apart."""
        arrays = sorted(self.arrays)
        for (_, high, where), (low, _, other) in zip(arrays, arrays[1:], strict=False):
            if low < high:
                raise NotSnapshotable(f"{where} and {other} are views of the same memory")

    @staticmethod
    def mujoco(data: Any) -> Tree:
        import mujoco

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        state = np.empty(mujoco.mj_stateSize(data.model, kind))
        mujoco.mj_getState(data.model, data, state, kind)
        derived = np.concatenate([getattr(data, name).ravel() for name in DERIVED])
        return [_model_digest(data.model), state, derived]


class _Decoder:
    """A tree to live values, each next to what the environment holds in its place."""

    def __init__(self, layers: list[gymnasium.Env]):
        self.layers = layers
        self.seen: list[Any] = []
        self.writes: list[Callable[[], None]] = []

    def layer(self, layer: gymnasium.Env, node: Any) -> dict[str, Any]:
        if node["class"] != _name(type(layer)):
            raise ValueError(f"it has {node['class']} in place of {_name(type(layer))}")
        return self.attributes(layer, node["attributes"])

    def attributes(self, owner: object, nodes: Any) -> dict[str, Any]:
        """What `vars(owner)` is to be: its own where that is no state, else what `nodes` say."""
        values = {name: value for name, value in vars(owner).items() if _is_skipped(owner, name, value)}
        for name, node in nodes.items():
            own = vars(owner).get(name, MISSING)
            value = self.decode(node, own)
            if not _is_skipped(owner, name, own):
                values[str(name)] = value
        return values

    def decode(self, node: Any, own: Any) -> Any:
        if type(node) in SCALARS:
            return node
        if type(node) is np.ndarray:
            return self.remember(self.array(node))
        if type(node) is list:
            values = self.remember([])
            values += self.items(node, own)
            return values
        ((tag, content),) = node.items()
        return self.tagged(tag, content, own)

    def remember(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def items(self, nodes: list[Any], own: Any) -> list[Any]:
        own = own if isinstance(own, list | tuple | deque) else ()
        return [self.decode(node, own[i] if i < len(own) else MISSING) for i, node in enumerate(nodes)]

    def tagged(self, tag: str, content: Any, own: Any) -> Any:
        if tag == "same":
            return self.seen[content]
        if tag == "layer":
            return self.layers[content]
        if tag == "tuple":
            return self.remember(tuple(self.items(content, own)))
        if tag in ("set", "frozenset"):
            return self.remember((set if tag == "set" else frozenset)(self.items(content, MISSING)))
        if tag == "deque":
            values = self.remember(deque(maxlen=content[0]))
            values.extend(self.items(content[1], own))
            return values
        if tag == "dict":
            table = self.remember({})
            for key_node, node in content:
                key = self.decode(key_node, MISSING)
                table[key] = self.decode(node, own.get(key, MISSING) if isinstance(own, dict) else MISSING)
            return table
        if tag == "array":
            return self.remember(self.array(*content))
        if tag == "scalar":
            return (self.array(content) if type(content) is np.ndarray else self.array(*content["array"]))[()]
        if tag == "bytes":
            return self.remember(self.array(content).tobytes())
        if tag in ("generator", "bits", "seed"):
            return self.random(tag, content)
        return self.matched(tag, content, own)

    def matched(self, tag: str, content: Any, own: Any) -> Any:
        """What can only be found, not made: it has to be in the same place of the restored environment."""
        name = content if tag == "function" else content[0]
        if tag == "mujoco":
            self.mujoco(own, *content)
            return own
        if name != _name(own if tag == "function" else type(own)):
            raise ValueError(f"{name} is not where it was captured")
        if tag == "object" and _has_only_attributes(own):
            value = self.remember(object.__new__(type(own)))  # anew, for the one in place may be shared
            vars(value).update(self.attributes(own, content[1]))
            return value
        if tag == "enum" and isinstance(own, enum.Enum):
            return type(own)[content[1]]
        if tag == "space" and isinstance(own, gymnasium.Space):
            for space, node in zip(_random_of(own), content[1], strict=True):
                generator = self.decode(node, MISSING)
                if not isinstance(generator, np.random.Generator | None):
                    raise ValueError("a space samples with something else than a generator")
                self.writes.append(functools.partial(space.__setitem__, "_np_random", generator))
            return own
        if tag == "function" and callable(own):
            return own
        raise ValueError(f"unknown entry {tag!r}")

    def random(self, tag: str, content: Any) -> Any:
        """A NumPy generator, its bit generator, or the seed sequence that it spawns from."""
        slot = len(self.seen)
        self.remember(None)  # numbered before its parts, as when captured
        value: Any
        if tag == "generator":
            bits = self.decode(content, MISSING)
            if type(bits) not in BIT_GENERATORS.values():
                raise ValueError("a generator without a bit generator")
            value = np.random.Generator(bits)
        elif tag == "bits":
            state, seed = (self.decode(part, MISSING) for part in content)
            if type(seed) is not np.random.SeedSequence:
                raise ValueError("a bit generator without a seed sequence")
            value = BIT_GENERATORS[state["bit_generator"]](seed)
            value.state = state
            # NumPy reads its buffers at these positions without a check.
            position, end = state.get("buffer_pos", 0), 4
            if state["bit_generator"] == "MT19937":
                position, end = state["state"]["pos"], 624
            if not 0 <= position <= end:
                raise ValueError("a bit generator's position is outside its buffer")
        else:
            parts = self.decode(content, MISSING)
            if not 0 < parts["pool_size"] <= 64:
                raise ValueError("a seed sequence of odd size")
            value = np.random.SeedSequence(**parts)
        self.seen[slot] = value
        return value

    @staticmethod
    def array(value: Any, shape: Any = None, axes: Any = None, data: Any = None) -> np.ndarray:
        """An array from itself, or from its data type, shape, order of axes in memory and bytes."""
        if type(value) is np.ndarray:
            if value.dtype.kind not in "biuf":
                raise ValueError(f"an array of {value.dtype}")
            return value.copy()
        if not re.fullmatch(r"[<>|][biufcSUmM]\d+(\[\w+\])?", value):
            raise ValueError(f"an array of {value!r}")
        dense = np.frombuffer(data.tobytes(), np.dtype(value)).reshape(shape)
        dense.tolist()  # text that is no text fails here
        return dense.transpose(np.argsort(axes)).copy(order="K")

    def mujoco(self, data: Any, digest: str, state: np.ndarray, derived: np.ndarray) -> None:
        import mujoco

        if type(data) is not mujoco.MjData or digest != _model_digest(data.model):
            raise ValueError("its simulation model is not the captured one")
        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        fields = [getattr(data, name) for name in DERIVED]
        shapes = (mujoco.mj_stateSize(data.model, kind),), (sum(field.size for field in fields),)
        state, derived = state.astype(np.float64), derived.astype(np.float64)
        if (state.shape, derived.shape) != shapes:
            raise ValueError("its simulation state has another size")

        def write() -> None:
            mujoco.mj_setState(data.model, data, state, kind)
            parts = np.split(derived, np.cumsum([field.size for field in fields])[:-1])
            for field, part in zip(fields, parts, strict=True):
                field[...] = part.reshape(field.shape)

        self.writes.append(write)
