"""Model files: what `predict` needs and nothing else, the normaliser included, as JSON and safetensors."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from p3o import algorithms, checkpoint
from p3o.algorithms import Specs
from p3o.config import make_config
from p3o.errors import UserError
from p3o.normalize import Normalizer, NormalizerState
from p3o.rollout import Actor
from p3o.spaces import Encoder, action_mapper, action_spec, observation_spec, space_from_json, space_to_json
from p3o.types import Observation

FORMAT = 1
WRITING = 0.1  # seconds that a model may be half replaced


class Model:
    """A trained policy that maps raw observations to the environment's actions."""

    def __init__(
        self,
        algo: str,
        settings: dict[str, Any],
        env: dict[str, Any],
        observation_space: gym.Space,
        action_space: gym.Space,
        params: Any,
        normalizer: NormalizerState,
        step: int,
        preset: str = "default",
    ):
        self.algo, self.settings, self.env, self.step, self.preset = algo, settings, env, step, preset
        self.observation_space, self.action_space = observation_space, action_space
        self.specs = Specs(observation_spec(observation_space), action_spec(action_space))
        entry = algorithms.find(algo)
        self.config = make_config(entry.config, settings)
        self.params = params
        self.normalizer = normalizer
        self._normalizer = Normalizer(
            self.specs.observation.vector_size, 1, self.config.gamma, self.config.normalize_observation, False
        )
        self._normalizer.restore(normalizer)
        self._actor = Actor(entry.make(self.config, self.specs).policy, self.specs)
        self._actor.set_params(params)
        self._to_environment = action_mapper(self.specs.action, self.config.action_scale, self.config.action_clip)

    def act(self, observations: list[Any], rng: np.random.Generator | None) -> np.ndarray:
        """Actions for a list of raw observations; the mode of the policy when no generator is given."""
        encoder = Encoder(self.specs.observation, len(observations))
        raw = encoder.empty()
        for row, observation in enumerate(observations):
            encoder.write(observation, raw, row)
        vector = None if raw.vector is None else self._normalizer.scale(raw.vector)
        policy = self._actor(Observation(vector, raw.images))
        if rng is None:
            sample = policy.mode()
        else:
            sample = policy.sample(self.specs.action.noise(rng, (len(observations),)))
        return self._to_environment(np.asarray(sample))

    def check_spaces(self, observation_space: gym.Space, action_space: gym.Space, name: str) -> None:
        """Refuse an environment that this model was not trained for."""
        for what, own, other in (
            ("observation", self.observation_space, observation_space),
            ("action", self.action_space, action_space),
        ):
            if own != other:
                raise UserError(f"this model does not fit {name}: its {what} space is {own}, the environment's {other}")


def _named_leaves(params: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def plain(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Constructor arguments as JSON keeps them, or a UserError for those that no file can hold."""
    for name, value in kwargs.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise UserError(
                f"env_kwargs {name}: a {type(value).__name__} cannot be stored; hand over a function that makes the "
                "environment"
            ) from None
    return json.loads(json.dumps(kwargs))


def save(model: Model, folder: Path) -> None:
    """Write model.json and model.safetensors; an older model in the folder is replaced as a whole, other files stay."""
    if folder.exists() and not (folder / "model.json").exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and holds no model; it is left as it is")
    env = {"id": model.env["id"], "kwargs": plain(model.env["kwargs"])}
    new = checkpoint.new_folder(folder)
    arrays = {f"params.{name}": leaf for name, leaf in _named_leaves(model.params).items()}
    statistics = model.normalizer._replace(discounted_return=np.zeros(0))._asdict()  # running episodes do not belong
    arrays |= {f"normalizer.{name}": np.asarray(value, np.float64) for name, value in statistics.items()}
    proof = checkpoint.write_tensors(new / "model.safetensors", arrays)
    description = {
        "format": FORMAT,
        "algo": model.algo,
        "preset": model.preset,
        "step": model.step,
        "env": env,
        "observation_space": space_to_json(model.observation_space),
        "action_space": space_to_json(model.action_space),
        "settings": model.settings,
        "data": proof,
    }
    checkpoint.write_json(new / "model.json", checkpoint.seal(description))
    checkpoint.replace_folder(new, folder, keeps_others=True)


def load(folder: Path) -> Model:
    """Read a model folder; anything wrong with it is one clear line. One that is being replaced is read again."""
    while True:
        before = _seal(folder)
        try:
            return _load(folder)
        except UserError:
            time.sleep(WRITING)
            if _seal(folder) == before:
                raise


def _seal(folder: Path) -> bytes | None:
    with contextlib.suppress(OSError):
        return (checkpoint.current_folder(folder) / "model.json").read_bytes()
    return None


def _load(folder: Path) -> Model:
    folder = checkpoint.current_folder(folder)
    if not (folder / "model.json").exists():
        raise UserError(f"{folder} holds no model: model.json is missing")
    data = checkpoint.read_sealed(folder / "model.json", "a model", FORMAT)
    try:
        arrays = checkpoint.read_tensors(folder, data["data"])
        observation_space, action_space = (space_from_json(data[f"{s}_space"]) for s in ("observation", "action"))
        entry = algorithms.find(data["algo"])
        config = make_config(entry.config, data["settings"])
        specs = Specs(observation_spec(observation_space), action_spec(action_space))
        params = _fill(entry.make(config, specs).init_params(np.random.default_rng(0)), arrays)
        fields: Any = [arrays[f"normalizer.{name}"] for name in NormalizerState._fields]
        statistics = NormalizerState(*fields)
        if statistics.observation_mean.shape != (specs.observation.vector_size,):
            raise ValueError("the normaliser has another size than the observation")
        return Model(
            data["algo"],
            data["settings"],
            data["env"],
            observation_space,
            action_space,
            params,
            statistics,
            data["step"],
            data.get("preset", "default"),
        )
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise UserError(f"{folder / 'model.json'} is damaged: {type(error).__name__} {error}") from None


def _fill(template: Any, arrays: dict[str, np.ndarray]) -> Any:
    names = list(_named_leaves(template))
    leaves, structure = jax.tree.flatten(template)
    stored = []
    for name, leaf in zip(names, leaves, strict=True):
        array = arrays.get(f"params.{name}")
        if array is None or array.shape != leaf.shape or array.dtype != leaf.dtype:
            raise ValueError(f"parameter {name} is missing or has another shape than the settings ask for")
        if not np.isfinite(array).all():
            raise ValueError(f"parameter {name} is not finite")
        stored.append(array)
    return jax.tree.unflatten(structure, stored)


def _are_within(numbers: np.ndarray, space: gym.spaces.Discrete) -> bool:
    inside = (numbers >= space.start) & (numbers < space.start + space.n)
    return bool(np.all(inside & (numbers == np.round(numbers))))


def split_batch(observation: Any, space: gym.Space) -> tuple[list[Any], bool]:
    """Single observations and whether they came as a batch, told by shape; one image may have its channels moved."""
    if isinstance(space, (gym.spaces.Dict, gym.spaces.Tuple)):
        is_dict = isinstance(space, gym.spaces.Dict)
        members = space.spaces if is_dict else dict(enumerate(space.spaces))
        try:
            parts = {key: split_batch(observation[key], part) for key, part in members.items()}
        except (KeyError, IndexError, TypeError):
            raise UserError(f"observation of type {type(observation).__name__}: one of {space} was expected") from None
        if len({(is_batch, len(rows)) for rows, is_batch in parts.values()}) != 1:
            raise UserError("observation: some of its parts are batches of another size than the others")
        is_batch = any(is_batch for _, is_batch in parts.values())
        rows = list(zip(*(rows for rows, _ in parts.values()), strict=True))
        return ([dict(zip(parts, row, strict=True)) for row in rows] if is_dict else rows), is_batch
    array = np.asarray(observation)
    if isinstance(space, gym.spaces.Discrete) and not _are_within(array, space):
        raise UserError(f"observation {observation!r}: one of {space} was expected")
    shape = tuple(space.shape or ())
    if array.shape == shape:
        return [array], False
    if array.shape[1:] == shape:
        return list(array), True
    if len(shape) == 3:
        moved = (shape[2], *shape[:2]) if shape[2] < shape[0] else (*shape[1:], shape[0])
        axes = (0, -1) if shape[2] < shape[0] else (-1, 0)
        if array.shape == moved:
            return [np.moveaxis(array, *axes)], False
        if array.shape[1:] == moved:
            return [np.moveaxis(row, *axes) for row in array], True
    raise UserError(f"observation of shape {array.shape}: {shape} or a batch of it was expected")
