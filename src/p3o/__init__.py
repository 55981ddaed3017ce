"""P3O: Policy-on Policy-off Policy Optimization, and the algorithms it is compared with."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from p3o.agent import A2C, ACER, P3O, PPO

__version__ = "0.1.0"
__all__ = ["A2C", "ACER", "P3O", "PPO", "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Agents are imported on first use, so that `p3o --help` need not wait for JAX."""
    if name in __all__:
        from p3o import agent

        return getattr(agent, name)
    raise AttributeError(f"module 'p3o' has no attribute {name!r}")
