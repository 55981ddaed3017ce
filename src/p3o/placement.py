"""Where the learner runs: on the CPU, or on a GPU where one is present and worth it; measured, and said in one line."""

import os
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o.algorithms.base import Algorithm
from p3o.device import GPU_SHARE, free_memory
from p3o.errors import UserError
from p3o.types import Trajectory

MEASURED_UPDATES = 8
WORTH_A_TRY = 1e-3  # seconds of an update below which starting a GPU's kernels alone takes longer
NO_GPU = "setting device: gpu was asked for and JAX finds none; p3o[cuda] installs JAX for NVIDIA GPUs"
MARGIN = 1.2  # how much faster the GPU has to be: on the CPU resume is exact without further ado


ROOM = 0.7  # share of a GPU's free memory that a replay may take


class Placement(NamedTuple):
    """A device and why it was taken; the reason is empty where there was no choice."""

    device: Any
    reason: str = ""
    is_replay_on_host: bool = False  # apart from the device's own memory


def jit_update(algorithm: Algorithm) -> Any:
    """The update as one call, compiled on first use: (state, trajectory, key, iteration, rate) -> (state, metrics)."""

    def update(state: Any, trajectory: Any, key: Any, iteration: Any, rate: Any) -> Any:
        # each iteration has a key of its own; folded in here, since a call from the host takes 0.1 ms
        return algorithm.update(state, trajectory, jax.random.fold_in(key, iteration), rate)

    return jax.jit(update, donate_argnums=0)


def compile_update(algorithm: Algorithm, state: Any, trajectory: Trajectory, key: Any) -> Any:
    """`jit_update`, compiled at once."""
    return jit_update(algorithm).lower(state, trajectory, key, np.int32(0), np.float32(0.0)).compile()


def place(algorithm: Algorithm, trajectory: Trajectory, observation_kind: str, wanted: str = "auto") -> Placement:
    """The device for an algorithm's updates on trajectories like this one; `wanted` is auto, cpu or gpu.

    The replay goes there too, unless its plan says otherwise, or it holds images and would leave too little room.
    """
    gpus = accelerators() if wanted != "cpu" else []
    if wanted == "gpu" and not gpus:
        raise UserError(NO_GPU)
    placement = _choose(algorithm, trajectory, observation_kind, wanted, gpus)
    replay_wanted = "auto" if algorithm.replay is None else algorithm.replay.device
    is_on_host = _is_replay_on_host(algorithm.replay_bytes, placement.device, observation_kind, replay_wanted)
    check_memory(algorithm.replay_bytes, jax.local_devices(backend="cpu")[0] if is_on_host else placement.device)
    return placement._replace(is_replay_on_host=is_on_host)


def _is_replay_on_host(replay_bytes: int, device: Any, observation_kind: str, wanted: str) -> bool:
    if wanted == "gpu" and device.platform == "cpu":
        raise UserError("setting replay_device: gpu was asked for and the run learns on the CPU")
    if wanted != "auto" or device.platform == "cpu" or observation_kind == "vector":
        return wanted == "host" and replay_bytes > 0
    free = _free_on(device)
    return free is not None and replay_bytes > ROOM * free


def replay_line(replay_bytes: int, placement: Placement) -> str:
    """Where the replay is and how large, for the start of a run."""
    where = "in memory" if placement.device.platform == "cpu" else "on the GPU"
    if placement.is_replay_on_host and placement.device.platform != "cpu":
        free = _free_on(placement.device)
        where = "in host memory" + (f" (the GPU has {format_bytes(free)} to give)" if free else "")
    return f"replay: {format_bytes(replay_bytes)} {where}, allocated once"


def what_to_expect(placement: Placement, image_speed: float | None, is_deterministic: bool) -> list[str]:
    """Of the device, for the start of a run; `image_speed` is in steps a second of a core, None without images."""
    lines = [f"learns on {placement.reason}"] if placement.reason else []
    is_cpu = placement.device.platform == "cpu"
    if image_speed is not None and is_cpu:
        lines.append(f"images on the CPU alone: some {image_speed:,.0f} steps/s a core; a GPU is far faster")
    if image_speed is not None and not is_cpu:
        lines.append("compiles first: a minute or two, seconds where the same was compiled before")
    if not is_cpu and not is_deterministic:
        lines.append("on this device resume is exact only with --set deterministic=true")
    return lines


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
    free = free_memory() if target.platform == "cpu" else _free_on(target)
    if free is not None and replay_bytes > 0.9 * free:
        raise UserError(
            f"the replay needs {format_bytes(replay_bytes)} and {format_bytes(free)} of memory are free; "
            "lower it with --set replay_size=N (steps per environment)"
        )


def _free_on(device: Any) -> int | None:
    """Bytes that this process may still take on a GPU, None where it does not say; in a sweep, its share of them."""
    stats = device.memory_stats() or {}
    free = stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)
    return free // max(1, int(os.environ.get(GPU_SHARE, "1"))) or None


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
