"""What tables are made of: cells that know their text, their number and what is known about it."""

import math
from collections.abc import Callable
from typing import NamedTuple

from p3o.runs import Array
from p3o.statistics import MIN_SEEDS, Estimate, mean_interval
from p3o.wording import format_number, format_return


class Cell(NamedTuple):
    """What is shown, and the plain value for CSV."""

    text: str
    value: str | float | int = ""
    note: str = ""  # smaller, below the text
    mark: str = ""  # best, good, bad
    bar: tuple[float, float, float] | None = None  # left end, right end and dot of an interval, in percent
    around: "Around | None" = None  # for CSV


class Around(NamedTuple):
    """What is known about a mean: its interval, or the range of few seeds; NaN where there is neither."""

    low: float
    high: float
    seeds: int


class Table(NamedTuple):
    key: str  # file name and id
    title: str
    note: str
    head: list[str]
    rows: list[list[Cell]]
    zero: float | None = None  # where a rule is drawn behind interval bars, in percent


def text(words: str, note: str = "", mark: str = "") -> Cell:
    return Cell(words, words, note, mark)


def number(value: float, say: Callable[[float], str] = format_number) -> Cell:
    return Cell(say(value), "" if math.isnan(value) else value)


def around(values: Array) -> Around:
    if 1 < values.size < MIN_SEEDS:
        return Around(float(values.min()), float(values.max()), values.size)
    _, low, high = mean_interval(values)
    return Around(low, high, values.size)


def spread(values: Array) -> str:
    """What is known about a mean over seeds, in words."""
    low, high, seeds = around(values)
    if seeds < MIN_SEEDS:
        return "" if math.isnan(low) else f"{format_return(low)} to {format_return(high)}"
    return interval(Estimate(math.nan, low, high), format_return)


def interval(estimate: Estimate, say: Callable[[float], str] = format_number) -> str:
    return "" if math.isnan(estimate.low) else f"[{say(estimate.low)}, {say(estimate.high)}]"
