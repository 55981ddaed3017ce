"""What a run is made with and on: versions and the machine, as config.json keeps them."""

import contextlib
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("p3o", "jax", "jaxlib", "numpy", "optax", "gymnasium", "mujoco", "ale-py", "box2d")


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def processor() -> str:
    """Its maker's name for it where the system tells, else its kind."""
    with contextlib.suppress(OSError):
        found = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text())
        if found:
            return found[1]
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    system, kind = platform.system(), platform.machine()
    return {"system": system, "machine": kind, "processor": processor(), "cores": os.cpu_count()}
