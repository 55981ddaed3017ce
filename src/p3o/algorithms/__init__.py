"""The registry: a new algorithm is one file and one line here."""

from p3o.algorithms import a2c, acer, p3o, ppo
from p3o.algorithms.base import Algorithm, Entry, Metric, Specs
from p3o.errors import UserError, nearest

ALGORITHMS: dict[str, Entry] = {
    "p3o": Entry("p3o", "Policy-on Policy-off Policy Optimization", p3o.P3OConfig, p3o.make),
    "a2c": Entry("a2c", "Advantage actor-critic", a2c.A2CConfig, a2c.make),
    "a2cg": Entry("a2cg", "Advantage actor-critic with generalised advantages", a2c.A2CGConfig, a2c.make),
    "ppo": Entry("ppo", "Proximal policy optimisation", ppo.PPOConfig, ppo.make),
    "acer": Entry("acer", "Actor-critic with experience replay (discrete actions)", acer.ACERConfig, acer.make),
}


def find(name: str) -> Entry:
    """The registered algorithm of that name."""
    if name not in ALGORITHMS:
        raise UserError(f"unknown algorithm {name!r}{nearest(name, ALGORITHMS)}; there are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "Algorithm", "Entry", "Metric", "Specs", "find"]
