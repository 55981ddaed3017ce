"""Looking into an environment: its layers, which attributes are state, and which functions keep nothing."""

import dis
import enum
import functools
import logging
import sys
import types
from collections.abc import Iterator
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

Layers: TypeAlias = list[gymnasium.Env]

SCALARS = (type(None), bool, int, float, str)


def layers_of(env: gymnasium.Env) -> Layers:
    """The wrapper chain, outermost first."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def full_name(value: Any) -> str:
    """The full name of a class or function."""
    if isinstance(value, functools.partial):
        return f"partial {full_name(value.func)}"
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', getattr(value, '__name__', '?'))}"


class _Plain:
    """A class without slots or a base in C: what the memory layout of others is compared with."""


def has_only_attributes(value: object) -> bool:
    """Whether everything `value` holds is in its `__dict__`."""
    return is_plain_class(type(value)) and not isinstance(value, types.ModuleType)


def is_plain_class(kind: type) -> bool:
    """Whether its objects hold all that they hold in their `__dict__`."""
    layout = [(k.__basicsize__, k.__itemsize__, k.__dictoffset__, k.__weakrefoffset__) for k in (kind, _Plain)]
    return layout[0] == layout[1]


def class_named(name: str, layers: Layers) -> type | None:
    """The class of that full name in a loaded module, of a package that a layer is from.

    Only enumerations, and classes of which an object can be made, filled and dropped without running any code.
    """
    parts = name.split(".")
    if parts[0] not in {type(layer).__module__.partition(".")[0] for layer in layers}:
        return None
    for length in range(len(parts) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(parts[:length]))
        for part in parts[length:]:
            found = getattr(found, "__dict__", {}).get(part)
        if isinstance(found, type) and full_name(found) == name:
            is_data = issubclass(found, enum.Enum) or (is_plain_class(found) and not hasattr(found, "__del__"))
            return found if is_data else None
    return None


def is_mujoco(owner: object) -> bool:
    return any(full_name(kind) == "gymnasium.envs.mujoco.mujoco_env.MujocoEnv" for kind in type(owner).__mro__)


def _is_display(owner: object, name: str, value: object) -> bool:
    """Whether `value` only draws: a renderer, or pygame's surfaces, clocks and fonts where they are expected."""
    if isinstance(value, list | tuple) and value:
        return all(_is_display(owner, name, item) for item in value)
    module, kind = str(getattr(type(value), "__module__", "")), type(value).__name__  # Box2D's objects have none
    # Elsewhere a surface may be state: a picture that the environment reads back.
    is_expected = type(owner).__module__.startswith("gymnasium.") or name in ("screen", "clock", "surf", "window")
    is_pygame = module.split(".")[0] == "pygame" and kind in ("Surface", "Clock", "Font")
    return (is_expected and is_pygame) or module == "gymnasium.envs.mujoco.mujoco_rendering"


def is_skipped(owner: object, name: str, value: object) -> bool:
    """Whether an attribute is no state, so that a restored environment keeps its own."""
    return (
        isinstance(value, EnvSpec | logging.Logger)
        or (isinstance(owner, gymnasium.Env) and name in ("metadata", "render_mode", "spec"))
        or (isinstance(owner, gymnasium.Wrapper) and name in ("env", "_saved_kwargs", "_cached_spec", "_metadata"))
        or (isinstance(owner, gymnasium.utils.EzPickle) and name in ("_ezpickle_args", "_ezpickle_kwargs"))
        or (is_mujoco(owner) and name in ("model", "fullpath"))
        or _is_display(owner, name, value)
    )


def is_constant(value: Any, layers: Layers) -> bool:
    """Whether a function, or what one refers to, keeps nothing between calls that is not captured elsewhere."""
    if isinstance(value, (*SCALARS, np.generic, np.ufunc, enum.Enum, gymnasium.Space, type)) or is_among(layers, value):
        return True
    if isinstance(value, types.MethodType):
        return is_among(layers, value.__self__)
    if isinstance(value, types.BuiltinFunctionType):
        return isinstance(value.__self__, types.ModuleType)  # else it is bound, perhaps to a random generator
    if isinstance(value, functools.partial):
        return all(is_constant(part, layers) for part in (value.func, *value.args, *value.keywords.values()))
    if isinstance(value, types.FunctionType):
        if str(value.__module__).startswith("gymnasium."):
            return True  # its wrappers close over arrays they never write
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        defaults = (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        kept = all(is_constant(item, layers) for item in (*cells, *defaults, *vars(value).values()))
        return kept and not _rebinds(value.__code__, value.__code__.co_freevars)
    return type(value) is tuple and all(is_constant(item, layers) for item in value)


def is_known_by_name(value: Any) -> bool:
    """Whether a constant function's full name says all about it, whoever asks: it was not made on the way."""
    if not isinstance(value, types.FunctionType):
        return not isinstance(value, functools.partial)  # a type, a library's own, or a method of a layer
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def constants(value: Any) -> list[str]:
    """The numbers and functions that a constant function carries with it: another one of its name may have others.

    Words are left out: the name of a file may be another one in another process.
    """
    if isinstance(value, enum.Enum):
        return [value.name]
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return [repr(value)]
    parts: tuple[Any, ...] = value if type(value) is tuple else ()
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.FunctionType) and not str(value.__module__).startswith("gymnasium."):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        parts = (*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *vars(value).values())
    return [said for part in parts for said in (*([full_name(part)] if callable(part) else []), *constants(part))]


def is_among(layers: Layers, value: object) -> bool:
    return any(value is layer for layer in layers)


def _rebinds(code: types.CodeType, names: tuple[str, ...]) -> bool:
    """Whether `code` or a function inside it assigns one of the outer variables `names` (`nonlocal`)."""
    own = any(step.opname == "STORE_DEREF" and step.argval in names for step in dis.get_instructions(code))
    return own or any(_rebinds(inner, names) for inner in code.co_consts if isinstance(inner, types.CodeType))


def with_parts(space: gymnasium.Space) -> Iterator[gymnasium.Space]:
    """A space and the spaces inside it."""
    yield space
    for value in vars(space).values():
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
        for item in items:
            if isinstance(item, gymnasium.Space):
                yield from with_parts(item)
