"""The registry: a new algorithm is one file and one line here."""

from p3o.algorithms import p3o
from p3o.algorithms.base import Algorithm, Entry, Metric, Specs
from p3o.errors import UserError, nearest

ALGORITHMS: dict[str, Entry] = {
    "p3o": Entry("p3o", "Policy-on Policy-off Policy Optimization", p3o.P3OConfig, p3o.make),
}


def find(name: str) -> Entry:
    """The registered algorithm of that name."""
    if name not in ALGORITHMS:
        raise UserError(f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "Entry", "Metric", "Specs", "find"]
