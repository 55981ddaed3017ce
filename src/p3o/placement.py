"""Where the learner runs: on the CPU, or on a GPU where one is present and worth it; measured, and said in one line."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o.algorithms.base import Algorithm
from p3o.device import free_memory
from p3o.errors import UserError
from p3o.types import Trajectory

MEASURED_UPDATES = 8
WORTH_A_TRY = 1e-3  # seconds of an update below which starting a GPU's kernels alone takes longer
NO_GPU = "setting device: gpu was asked for and JAX finds none; p3o[cuda] installs JAX for NVIDIA GPUs"
MARGIN = 1.2  # how much faster the GPU has to be: on the CPU resume is exact without further ado


class Placement(NamedTuple):
    """A device and why it was taken; the reason is empty where there was no choice."""

    device: Any
    reason: str = ""


def compile_update(algorithm: Algorithm, state: Any, trajectory: Trajectory, key: Any) -> Any:
    """The update as one compiled call: (state, trajectory, key, iteration, rate) -> (state, metrics)."""

    def update(state: Any, trajectory: Any, key: Any, iteration: Any, rate: Any) -> Any:
        # each iteration has a key of its own; folded in here, since a call from the host takes 0.1 ms
        return algorithm.update(state, trajectory, jax.random.fold_in(key, iteration), rate)

    arguments = (state, trajectory, key, np.int32(0), np.float32(0.0))
    return jax.jit(update, donate_argnums=0).lower(*arguments).compile()


def place(algorithm: Algorithm, trajectory: Trajectory, observation_kind: str, wanted: str = "auto") -> Placement:
    """The device for an algorithm's updates on trajectories like this one; `wanted` is auto, cpu or gpu."""
    gpus = accelerators() if wanted != "cpu" else []
    if wanted == "gpu" and not gpus:
        raise UserError(NO_GPU)
    placement = _choose(algorithm, trajectory, observation_kind, wanted, gpus)
    check_memory(algorithm.replay_bytes, placement.device)
    return placement


def _choose(
    algorithm: Algorithm, trajectory: Trajectory, observation_kind: str, wanted: str, gpus: list[Any]
) -> Placement:
    if wanted == "gpu":
        return Placement(gpus[0], "gpu, by its setting")
    if gpus and observation_kind != "vector":
        return Placement(gpus[0], "gpu: convolutions are far faster there")
    cpu = jax.local_devices(backend="cpu")[0]
    if not gpus:
        return Placement(cpu)
    check_memory(algorithm.replay_bytes, cpu)  # the measurement takes it
    on_cpu = seconds_of_update(algorithm, trajectory, cpu)
    if on_cpu < WORTH_A_TRY:
        return Placement(cpu, f"cpu: an update takes {on_cpu * 1e3:.2g} ms, less than a GPU needs to get going")
    try:
        on_gpu = seconds_of_update(algorithm, trajectory, gpus[0])
    except RuntimeError as error:  # out of its memory, say
        return Placement(cpu, f"cpu: the update does not run on the GPU ({str(error).splitlines()[0][:100]})")
    told = f"an update takes {on_cpu * 1e3:.1f} ms on the CPU and {on_gpu * 1e3:.1f} ms on the GPU"
    if on_gpu * MARGIN < on_cpu:
        return Placement(gpus[0], f"gpu: {told}")
    return Placement(cpu, f"cpu: {told}")


def check_memory(replay_bytes: int, target: Any) -> None:
    """Refuse a replay that does not fit before the kernel does."""
    free = free_memory()
    if target.platform != "cpu":
        stats = target.memory_stats() or {}
        free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0) or None
    if free is not None and replay_bytes > 0.9 * free:
        raise UserError(
            f"the replay needs {format_bytes(replay_bytes)} and {format_bytes(free)} of memory are free; "
            "lower it with --set replay_size=N (steps per environment)"
        )


def accelerators() -> list[Any]:
    return [device for device in jax.local_devices() if device.platform != "cpu"]


def seconds_of_update(algorithm: Algorithm, trajectory: Trajectory, device: Any) -> float:
    """Mean time of an update with a full replay, with the trajectory's way there and the parameters' way back."""
    with jax.default_device(device):
        state = algorithm.init(np.random.default_rng(0))
        replay = getattr(state, "replay", None)
        if replay is not None:  # as if it had been written often enough
            state = state._replace(replay=replay._replace(num_added=jnp.full_like(replay.num_added, 1_000_000)))
        state = jax.device_put(state, device)
        key = jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32))
        update = compile_update(algorithm, state, trajectory, key)
        for iteration in range(-1, MEASURED_UPDATES):  # the first one warms up; the others are the same on any device
            if iteration == 0:
                started = time.perf_counter()
            state, _ = update(state, trajectory, key, np.int32(iteration), np.float32(1e-4))
            jax.device_get(state.params)
    return (time.perf_counter() - started) / MEASURED_UPDATES


def format_bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
