"""Axes with round ticks, and numbers as SVG paths."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from p3o.runs import Array

LOG_RATIO = 300.0  # a positive quantity that spans more than this is drawn on a logarithmic axis
PLOT = 1000.0  # side of the square that charts are drawn in; the page stretches it to its place


class Axis(NamedTuple):
    """From numbers to places between 0 and PLOT."""

    low: float
    high: float
    is_log: bool
    ticks: list[tuple[float, str]]  # place in percent, label

    @property
    def label_chars(self) -> int:
        return max([5, *(len(label) for _, label in self.ticks)])

    def place(self, values: Array) -> Array:
        values = np.log10(np.maximum(values, 10.0**self.low)) if self.is_log else values  # a band may go below 0
        return (values - self.low) / (self.high - self.low) * PLOT


def value_axis(values: Array, count: int, may_be_log: bool = False) -> Axis:
    """A y axis around finite values, with a little room above and below."""
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if may_be_log and low > 0 and high / low > LOG_RATIO:
        return log_axis(low, high)
    is_flat = high - low <= 1e-9 * abs(high)
    room = (abs(high) * 0.1 or 1.0) if is_flat else 0.06 * (high - low)
    return linear_axis(low - room, high + room, count)


def linear_axis(low: float, high: float, count: int, label: Callable[[float], str] | None = None) -> Axis:
    """An axis with ticks at about `count` round numbers."""
    rough = (high - low) / count
    scale = 10.0 ** math.floor(math.log10(rough))
    gap = next(scale * m for m in (1, 2, 2.5, 5, 10) if scale * m >= rough * 0.999)
    first = math.ceil(low / gap - 1e-9)
    numbers = [gap * i for i in range(first, math.floor(high / gap + 1e-9) + 1)]
    label = label or tick
    return Axis(low, high, False, [((n - low) / (high - low) * 100, label(n)) for n in numbers])


def log_axis(low: float, high: float) -> Axis:
    """A logarithmic axis: ticks at powers of ten, at 1, 2 and 5 times them over less than three decades."""
    begin, end = math.log10(low) - 0.1, math.log10(high) + 0.1
    powers = range(math.floor(begin), math.floor(end) + 1)
    every = math.ceil(len(powers) / 6)
    multiples = (1, 2, 5) if end - begin < 3 else (1,)
    numbers = [m * 10.0**p for p in powers[::every] for m in multiples if begin <= math.log10(m * 10.0**p) <= end]
    if len(numbers) < 3:  # less than a factor of about five
        return Axis(begin, end, True, _linear_ticks_on_log(begin, end))
    return Axis(begin, end, True, [((math.log10(n) - begin) / (end - begin) * 100, tick(n)) for n in numbers])


def _linear_ticks_on_log(begin: float, end: float) -> list[tuple[float, str]]:
    low, high = 10.0**begin, 10.0**end
    ticks = linear_axis(low, high, 5).ticks
    numbers = [(low + place / 100 * (high - low), label) for place, label in ticks]
    return [((math.log10(n) - begin) / (end - begin) * 100, label) for n, label in numbers if n > 0]


def line_path(x: Array, y: Array) -> str:
    """An SVG path through the points, broken where one is not finite; a lone point becomes a dot."""
    parts, is_open = [], False
    for i in range(len(x)):
        if not (np.isfinite(x[i]) and np.isfinite(y[i])):
            is_open = False
            continue
        parts.append(f"{'L' if is_open else 'M'}{x[i]:.1f} {PLOT - y[i]:.1f}")
        ends_here = i + 1 == len(x) or not np.isfinite(y[i + 1])
        if not is_open and ends_here:
            parts.append("h0")
        is_open = True
    return "".join(parts)


def band_path(x: Array, low: Array, high: Array) -> str:
    """An SVG area between two lines, in as many pieces as there are gaps."""
    known = np.isfinite(low) & np.isfinite(high)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], known.astype(int), [0]])))
    pieces = []
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        if end - begin > 1:
            there = [f"{x[i]:.1f} {PLOT - high[i]:.1f}" for i in range(begin, end)]
            back = [f"{x[i]:.1f} {PLOT - low[i]:.1f}" for i in range(end - 1, begin - 1, -1)]
            pieces.append("M" + "L".join(there + back) + "Z")
    return "".join(pieces)


def dot_path(x: Array, y: Array) -> str:
    """Dots as one SVG path of lines without length: round caps keep them round however the chart is stretched."""
    pairs = zip(x, y, strict=True)
    return "".join(f"M{a:.0f} {PLOT - b:.0f}h0" for a, b in pairs if math.isfinite(a) and math.isfinite(b))


def bucket_means(steps: Array, values: Array, limit: int) -> tuple[Array, Array]:
    """At most `limit` points: means over neighbouring lines, so that a long run is thinned without losing its level."""
    if steps.size <= limit:
        return steps, np.where(np.isfinite(values), values, np.nan)
    edges = np.linspace(0, steps.size, limit + 1).astype(int)[:-1]
    is_finite = np.isfinite(values)
    count = np.add.reduceat(is_finite, edges, dtype=int)
    total = np.add.reduceat(np.where(is_finite, values, 0.0), edges)
    last = np.append(edges[1:], steps.size) - 1
    return steps[last], np.where(count > 0, total / np.maximum(count, 1), np.nan)


def thin(values: Array, limit: int) -> Array:
    """At most `limit` of the values, evenly spaced, with both ends."""
    if len(values) <= limit:
        return values
    return values[np.linspace(0, len(values) - 1, limit).astype(int)]


def short_count(steps: float) -> str:
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if steps >= size:
            return f"{steps / size:.4g}{unit}"
    return f"{steps:.4g}"


def tick(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e7:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.10g}"


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u00a0min {rest}\u00a0s" if minutes else f"{rest}\u00a0s"
    return f"{minutes // 60}\u00a0h {minutes % 60}\u00a0min"
