"""MuJoCo's simulation state as arrays, and back."""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np

# What the simulator derives from its state and next computes inside a step; tasks read some of it before that.
# fmt: off
DERIVED = (
    "xpos", "xquat", "xmat", "xipos", "ximat", "xanchor", "xaxis", "geom_xpos", "geom_xmat", "site_xpos", "site_xmat",
    "cam_xpos", "cam_xmat", "subtree_com", "subtree_linvel", "subtree_angmom", "cinert", "cvel", "cacc", "cfrc_int",
    "cfrc_ext", "ten_length", "ten_velocity", "actuator_length", "actuator_velocity", "actuator_force", "act_dot",
    "qacc", "qfrc_bias", "qfrc_passive", "qfrc_actuator", "qfrc_constraint", "sensordata", "energy",
)
# fmt: on


def capture(data: Any) -> list[Any]:
    """A checksum of the model, the state that steps go on from, and what is derived from it."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(data.model, kind))
    mujoco.mj_getState(data.model, data, state, kind)
    return [_model_digest(data.model), state, np.concatenate([getattr(data, name).ravel() for name in DERIVED])]


def prepare(data: Any, digest: str, state: np.ndarray, derived: np.ndarray) -> Callable[[], None]:
    """Check that a captured state fits; returns the function that writes it into `data`."""
    import mujoco

    if type(data) is not mujoco.MjData or digest != _model_digest(data.model):
        raise ValueError("the simulation model is not the captured one")
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    fields = [getattr(data, name) for name in DERIVED]
    sizes = [field.size for field in fields]
    state, derived = state.astype(np.float64), derived.astype(np.float64)
    if (state.shape, derived.shape) != ((mujoco.mj_stateSize(data.model, kind),), (sum(sizes),)):
        raise ValueError("the simulation state has another size")

    def write() -> None:
        mujoco.mj_setState(data.model, data, state, kind)
        for field, part in zip(fields, np.split(derived, np.cumsum(sizes)[:-1]), strict=True):
            field[...] = part.reshape(field.shape)

    return write


def _model_digest(model: Any) -> str:
    """A checksum of a MuJoCo model, which snapshots leave out because tasks leave it as they made it."""
    import mujoco

    buffer = np.empty(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return hashlib.sha256(buffer.tobytes()).hexdigest()
