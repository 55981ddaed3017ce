"""Gymnasium spaces as the learner sees them: what an observation becomes, what an action is made from."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from p3o.distributions import Bernoulli, Categorical, DiagonalGaussian, Distribution, MultiCategorical, spread
from p3o.errors import UserError
from p3o.types import Array, Observation

UNBOUNDED = 1e30  # some environments write the largest float where they mean infinity
SMALLEST_IMAGE = 36  # pixels a side: the least the three convolutions can reduce


class Leaf(NamedTuple):
    """One array of an observation: where it sits in the raw observation, and what becomes of it."""

    path: tuple[str | int, ...]
    kind: str  # box, image, onehot
    size: int  # entries of the vector; 0 for an image
    shape: tuple[int, ...]  # of the raw array
    sizes: tuple[int, ...] = ()  # of each one-hot block
    start: tuple[int, ...] = ()
    is_channel_first: bool = False


class ObservationSpec(NamedTuple):
    """How raw observations of one environment become the arrays of an Observation."""

    leaves: tuple[Leaf, ...]
    frame_stack: int = 0  # the one image is so many frames, newest last, zeros before an episode's first; 0: no stack

    @property
    def vector_size(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    @property
    def image_shapes(self) -> tuple[tuple[int, int, int], ...]:
        return tuple(_height_width_channels(leaf) for leaf in self.leaves if leaf.kind == "image")

    @property
    def kind(self) -> str:
        """`image` as soon as one leaf is an image, else `vector`: presets are chosen by it."""
        return "image" if self.image_shapes else "vector"

    @property
    def is_one_image(self) -> bool:
        """One image, a stack of frames or not, and nothing else."""
        return len(self.leaves) == 1 and self.leaves[0].kind == "image"

    @property
    def is_plain_vector(self) -> bool:
        """One box without a path: the raw observation is the vector, up to its shape."""
        return len(self.leaves) == 1 and self.leaves[0].kind == "box" and not self.leaves[0].path


class ActionSpec(NamedTuple):
    """How a policy's sample becomes an action of the environment."""

    kind: str  # gaussian, categorical, bernoulli, multi_categorical
    sizes: tuple[int, ...]  # gaussian: (dimensions,); categorical: (actions,); multi: each factor's actions
    low: np.ndarray | None  # [A] bounds of a Box, infinite where there are none
    high: np.ndarray | None
    space: gym.Space

    @property
    def num_outputs(self) -> int:
        """Numbers that the policy head puts out."""
        return sum(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sampled action inside the learner."""
        if self.kind == "categorical":
            return ()
        return (len(self.sizes),) if self.kind == "multi_categorical" else self.sizes

    @property
    def dtype(self) -> type:
        return np.float32 if self.kind == "gaussian" else np.int32

    def distribution(self, outputs: Array, log_std: Array | None) -> Distribution:
        """The policy from the head's outputs [..., num_outputs]."""
        if self.kind == "gaussian":
            # A full-sized log-std is stored, so that the behaviour at collection time stands in the replay.
            return DiagonalGaussian(outputs, outputs * 0 + spread(log_std, outputs))
        if self.kind == "categorical":
            return Categorical(outputs)
        if self.kind == "bernoulli":
            return Bernoulli(outputs)
        ends = np.cumsum(self.sizes)
        return MultiCategorical(
            tuple(Categorical(outputs[..., end - size : end]) for end, size in zip(ends, self.sizes, strict=True))
        )

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """What `Distribution.sample` eats for a batch of this shape."""
        if self.kind == "gaussian":
            return rng.standard_normal((*shape, *self.shape), dtype=np.float32)
        return rng.random((*shape, *self.shape), dtype=np.float32)


def _height_width_channels(leaf: Leaf) -> tuple[int, int, int]:
    if len(leaf.shape) == 2:
        return (leaf.shape[0], leaf.shape[1], 1)
    *stack, a, b, c = leaf.shape
    height, width, channels = (b, c, a) if leaf.is_channel_first else (a, b, c)
    return (height, width, channels * math.prod(stack))


def _box_leaf(space: spaces.Box, path: tuple[str | int, ...]) -> Leaf:
    shape = space.shape
    if space.dtype == np.uint8 and len(shape) in (2, 3, 4):  # four axes: a stack of pictures that have channels
        channel_first = len(shape) > 2 and shape[-3] < shape[-1]
        sides = shape[-2:] if len(shape) == 2 or channel_first else shape[-3:-1]
        if min(sides) >= SMALLEST_IMAGE:
            return Leaf(path, "image", 0, shape, is_channel_first=channel_first)
    return Leaf(path, "box", int(np.prod(shape)), shape)


def _leaves(space: gym.Space, path: tuple[str | int, ...]) -> list[Leaf]:
    if isinstance(space, spaces.Box):
        return [_box_leaf(space, path)]
    if isinstance(space, spaces.Discrete):
        return [Leaf(path, "onehot", int(space.n), (), (int(space.n),), (int(space.start),))]
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(int(n) for n in space.nvec.ravel())
        starts = tuple(int(n) for n in np.asarray(space.start).ravel())
        return [Leaf(path, "onehot", sum(sizes), space.shape, sizes, starts)]
    if isinstance(space, spaces.MultiBinary):
        return [Leaf(path, "box", int(np.prod(space.shape)), space.shape)]
    if isinstance(space, spaces.Dict):
        return [leaf for key, part in space.spaces.items() for leaf in _leaves(part, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [leaf for index, part in enumerate(space.spaces) for leaf in _leaves(part, (*path, index))]
    raise UserError(
        f"observation space {type(space).__name__} is not supported; supported are Box, Discrete, MultiDiscrete, "
        "MultiBinary, and Dict or Tuple of them"
    )


def observation_spec(space: gym.Space) -> ObservationSpec:
    spec = ObservationSpec(tuple(_leaves(space, ())))
    if not spec.leaves or (spec.vector_size == 0 and not spec.image_shapes):
        raise UserError(f"observation space {space} holds no numbers")
    return spec


def action_spec(space: gym.Space) -> ActionSpec:
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and np.prod(space.shape) > 0:
        low, high = (np.asarray(bound, np.float64).ravel() for bound in (space.low, space.high))
        return ActionSpec("gaussian", (low.size,), low, high, space)
    if isinstance(space, spaces.Discrete):
        return ActionSpec("categorical", (int(space.n),), None, None, space)
    if isinstance(space, spaces.MultiDiscrete):
        return ActionSpec("multi_categorical", tuple(int(n) for n in space.nvec.ravel()), None, None, space)
    if isinstance(space, spaces.MultiBinary):
        return ActionSpec("bernoulli", (int(np.prod(space.shape)),), None, None, space)
    raise UserError(
        f"action space {space} is not supported; supported are Discrete, Box of floats, MultiDiscrete and MultiBinary"
    )


def action_mapper(
    spec: ActionSpec, scale: str, clip: bool, keeps_nan: bool = True
) -> Callable[[np.ndarray], np.ndarray]:
    """The function from a batch of sampled actions [E, ...] to what the environments expect, still one array.

    Without `keeps_nan` a NaN becomes a bound, and the call is quicker: for training, which stops at a NaN anyway.
    """
    space = spec.space
    if spec.kind == "gaussian":
        return _box_mapper(spec, scale, clip, keeps_nan)
    start = np.asarray(getattr(space, "start", 0))
    return lambda action: (action.reshape(-1, *space.shape) + start).astype(space.dtype)


def _box_mapper(spec: ActionSpec, scale: str, clip: bool, keeps_nan: bool) -> Callable[[np.ndarray], np.ndarray]:
    assert spec.low is not None
    assert spec.high is not None
    space = spec.space
    low, high = spec.low.astype(space.dtype), spec.high.astype(space.dtype)
    bounded = (np.abs(spec.low) < UNBOUNDED) & (np.abs(spec.high) < UNBOUNDED)
    is_scaled = bounded & (scale == "unit")
    middle = np.where(is_scaled, (np.where(bounded, spec.high, 0) + np.where(bounded, spec.low, 0)) / 2, 0)
    half = np.where(is_scaled, (np.where(bounded, spec.high, 0) - np.where(bounded, spec.low, 0)) / 2, 1)
    middle, half = middle.astype(space.dtype), half.astype(space.dtype)
    is_any_scaled = bool(is_scaled.any())
    tiles: dict[int, list[np.ndarray]] = {}  # the bounds in the shape of a batch: to broadcast costs more than the sum

    def to_environment(action: np.ndarray) -> np.ndarray:
        number = len(action)
        tiled = tiles.get(number)
        if tiled is None:
            tiled = [np.tile(bound, (number, 1)) for bound in (middle, half, low, high)]
            tiles.clear()  # of the last batch size only
            tiles[number] = tiled
        middles, halves, lows, highs = tiled
        mapped = action  # never handed out itself: environments may keep or change what they get
        if is_any_scaled:
            mapped = halves * mapped
            np.add(middles, mapped, mapped)
        if clip:
            # fmax and fmin take a fifth of the time of maximum and minimum, and differ on NaN alone
            at_least, at_most = (np.maximum, np.minimum) if keeps_nan else (np.fmax, np.fmin)
            mapped = at_most(at_least(mapped, lows), highs)
        return mapped.astype(space.dtype, copy=mapped is action).reshape(-1, *space.shape)

    return to_environment


class Encoder:
    """Writes raw observations into preallocated arrays, one row an environment."""

    def __init__(self, spec: ObservationSpec, num_envs: int):
        self.spec = spec
        self.num_envs = num_envs
        self._is_flat = spec.is_plain_vector and len(spec.leaves[0].shape) == 1
        self._shape = spec.leaves[0].shape if spec.leaves else ()

    def empty(self) -> Observation:
        """Raw arrays for all environments: vectors in float64, as simulators give them; images as they are."""
        vector = np.zeros((self.num_envs, self.spec.vector_size)) if self.spec.vector_size else None
        return Observation(
            vector, tuple(np.zeros((self.num_envs, *shape), np.uint8) for shape in self.spec.image_shapes)
        )

    def write(self, raw: Any, into: Observation, row: int) -> None:
        if self._is_flat:
            if getattr(raw, "shape", None) != self._shape:
                if np.size(raw) != into.vector.shape[1]:  # type: ignore[union-attr]
                    raise _unlike(raw, self._shape)
                raw = np.ravel(raw)
            into.vector[row] = raw  # type: ignore[index]
            return
        column, image = 0, 0
        for leaf in self.spec.leaves:
            value = raw
            for key in leaf.path:
                value = value[key]
            if leaf.kind == "image":
                array = np.asarray(value)
                if array.shape != leaf.shape:
                    raise _unlike(array, leaf.shape)
                if array.dtype != np.uint8 and not ((array >= 0) & (array <= 255)).all():
                    raise UserError(f"an observation has pixels of {array.min()} to {array.max()}, not of 0 to 255")
                if leaf.is_channel_first:
                    array = np.moveaxis(array, -3, -1)
                if array.ndim == 4:
                    array = np.moveaxis(array, 0, -1)
                into.images[image][row] = array.reshape(into.images[image].shape[1:])
                image += 1
                continue
            target = into.vector[row, column : column + leaf.size]  # type: ignore[index]
            if leaf.kind == "onehot":
                if np.size(value) != len(leaf.sizes):
                    raise _unlike(value, leaf.shape)
                _one_hot(np.asarray(value).ravel(), leaf, target)
            else:
                if np.size(value) != leaf.size:
                    raise _unlike(value, leaf.shape)
                target[:] = np.asarray(value).ravel()
            column += leaf.size


def _unlike(value: Any, shape: tuple[int, ...]) -> UserError:
    """NumPy would repeat a smaller array, and fold another one."""
    return UserError(f"an observation has the shape {np.shape(value)}, its space has {shape}")


def _one_hot(value: np.ndarray, leaf: Leaf, target: np.ndarray) -> None:
    target[:] = 0.0
    offset = 0
    for entry, size, start in zip(value, leaf.sizes, leaf.start, strict=True):
        index = entry.item() - start  # a number of Python's: small types of NumPy's would overflow
        if not 0 <= index < size or index != int(index):
            raise UserError(f"observation {entry}: a whole number from {start} to {start + size - 1} was expected")
        target[offset + int(index)] = 1.0
        offset += size


def space_to_json(space: gym.Space) -> dict[str, Any]:
    """A supported space as plain data, for model files."""
    if isinstance(space, spaces.Box):
        bounds = {}
        for name, bound in (("low", space.low), ("high", space.high)):
            same = bound.size > 0 and bool((bound == bound.flat[0]).all())
            bounds[name] = str(bound.flat[0]) if same else [str(x) for x in bound.ravel()]
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        lists = {"nvec": space.nvec.tolist(), "start": np.asarray(space.start).tolist()}
        return {"type": "MultiDiscrete", **lists, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        # Gymnasium tells 3 from (3,), so both are kept apart
        return {"type": "MultiBinary", "n": list(space.shape) if isinstance(space.n, tuple) else int(space.n)}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise UserError(f"space {type(space).__name__} is not supported")


def space_from_json(data: dict[str, Any]) -> gym.Space:
    """The inverse of `space_to_json`; ValueError, KeyError or TypeError if the data are no space."""
    kind = data["type"]
    if kind == "Box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        if dtype.kind not in "fiub":
            raise ValueError(f"Box of {dtype}")
        low, high = (np.broadcast_to(_bound(data[name], dtype, shape), shape) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        dtype = np.dtype(data.get("dtype", "int64"))
        options = {} if dtype == np.int64 else {"dtype": dtype.type}  # Gymnasium 1.1 knows no other
        return spaces.Discrete(int(data["n"]), start=int(data["start"]), **options)
    if kind == "MultiDiscrete":
        dtype = np.dtype(data.get("dtype", "int64"))
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype.type, start=np.array(data["start"]))
    if kind == "MultiBinary":
        size = data["n"]
        return spaces.MultiBinary([int(n) for n in size] if isinstance(size, list) else int(size))
    if kind == "Dict":
        # pairs keep their order; of a dict Gymnasium sorts the keys
        return spaces.Dict([(key, space_from_json(part)) for key, part in data["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(part) for part in data["spaces"]])
    raise ValueError(f"unknown space {kind!r}")


def _bound(text: str | list[str], dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    convert: Callable[[str], Any] = int
    if dtype.kind in "fb":
        convert = float if dtype.kind == "f" else "True".__eq__
    if isinstance(text, str):
        return np.array(convert(text), dtype)
    return np.array([convert(entry) for entry in text], dtype).reshape(shape)
