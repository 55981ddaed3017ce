"""The numbers of updates: sent to the host, received and checked, averaged over an interval."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o.algorithms import Metric
from p3o.errors import RunStopped

LEARNING_RATE = Metric("learning_rate", "step size")


class Gathered(NamedTuple):
    """Metrics in one array, so that they cross the bus at once: each one by itself takes 20 µs of the host."""

    names: list[str]
    values: Any  # [metrics] float32; counts are exact in it up to 16,777,216


class Coming(NamedTuple):
    """The metrics of an update that may still be on its way."""

    arrays: dict[str, Any] | Gathered
    rate: float
    step: int


gather = jax.jit(lambda arrays: jnp.stack([arrays[name].astype(jnp.float32) for name in sorted(arrays)]))


def send(arrays: dict[str, Any], rate: float, step: int) -> Coming:
    """Start the way to the host, each array by itself."""
    for array in arrays.values():
        array.copy_to_host_async()
    return Coming(arrays, rate, step)


def send_gathered(arrays: dict[str, Any], rate: float, step: int, gather: Callable[[Any], Any]) -> Coming:
    """Start the way to the host, all in one array; `gather` may be compiled already."""
    gathered = Gathered(sorted(arrays), gather(arrays))
    gathered.values.copy_to_host_async()
    return Coming(gathered, rate, step)


def receive(coming: Coming) -> dict[str, float]:
    """Wait for the numbers, and refuse those that are not finite."""
    arrays, rate, step = coming
    if isinstance(arrays, Gathered):
        metrics = dict(zip(arrays.names, np.asarray(arrays.values).tolist(), strict=True))
    else:
        metrics = {name: float(value) for name, value in jax.device_get(arrays).items()}
    metrics["learning_rate"] = rate
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise RunStopped(f"step {step:,}: {name} is {value}")
    return metrics


class IntervalMeans:
    """Metrics averaged over a logging interval, each over the things it is a mean of."""

    def __init__(self, metrics: tuple[Metric, ...]):
        self.metrics = metrics
        self.clear()

    def clear(self) -> None:
        self.sums = {m.name: 0.0 for m in self.metrics}
        self.weights = {m.name: 0.0 for m in self.metrics}

    def add(self, values: dict[str, float]) -> None:
        for metric in self.metrics:
            weight = values[metric.weight] if metric.weight else 1.0
            if weight:
                self.sums[metric.name] += values[metric.name] * (1.0 if metric.is_count else weight)
                self.weights[metric.name] += weight

    def means(self) -> dict[str, float]:
        """NaN where nothing happened."""
        return {
            m.name: math.nan
            if not self.weights[m.name]
            else self.sums[m.name] / (1.0 if m.is_count else self.weights[m.name])
            for m in self.metrics
        }
