"""Exact snapshots of a running environment as plain data, so that another process goes on bit for bit.

A snapshot holds the attributes of every layer of the wrapper chain, with NumPy's generators and MuJoCo's simulation
state. What is not understood for certain is refused with `NotSnapshotable`. State outside the attributes is not seen:
module globals, class attributes, a simulator behind a handle that is a mere number.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import gymnasium

from p3o.envs.capturing import Encoder, NotSnapshotable, Tree
from p3o.envs.introspection import full_name, layers_of
from p3o.envs.restoring import Decoder

__all__ = ["NotSnapshotable", "capture", "functions_in", "restore"]


def capture(env: gymnasium.Env, functions: Sequence[Any] | None = None) -> Tree:
    """The whole state of `env` as nested dicts, lists, scalars and arrays that share no memory with it.

    `functions` is what `functions_in` said before the first reset; those that it holds now, where nothing is said. One
    that was made since may know what nothing else does, such as an episode's goal, and cannot be made again.
    """
    layers = layers_of(env)
    encoder = Encoder(layers, functions_in(env) if functions is None else functions)
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
    decoder = Decoder(layers, functions_in(env) if functions is None else functions)
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
    encoder = Encoder(layers, None)
    with contextlib.suppress(NotSnapshotable, RecursionError):
        for layer in layers:
            encoder.attributes(layer, type(layer).__name__)
    return encoder.found
