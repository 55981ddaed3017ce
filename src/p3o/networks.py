"""Networks as plain functions over parameter trees: tanh MLP for vectors, the Nature CNN for images, both joined.

`Network.policy` runs on NumPy arrays as well as on JAX arrays from the same definition, so that small networks can act
on the host (one call per step costs 12 µs there, 100 µs through a jitted function).
"""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o.config import Config
from p3o.distributions import Distribution, spread
from p3o.errors import UserError
from p3o.host_policy import HostPolicy
from p3o.spaces import ActionSpec, ObservationSpec
from p3o.types import Array, Observation, Params

CONVOLUTIONS = ((8, 4), (4, 2), (3, 1))  # (side, stride): Mnih et al. 2015; the paper's tables print 3×1 for 3×3
FEW_IMAGES = 32  # a batch for acting, where starting a GPU's kernels takes longer than they do


class Network(NamedTuple):
    """Parameters and the functions that read them."""

    init: Callable[[np.random.Generator], Params]
    policy: Callable[[Params, Observation], Distribution]
    value: Callable[[Params, Observation], Array]  # [...]
    policy_and_value: Callable[[Params, Observation], tuple[Distribution, Array]]
    host_policy: Callable[[int], HostPolicy] = HostPolicy  # `policy` on so many vectors, quickly


def orthogonal(rng: np.random.Generator, rows: int, columns: int, gain: float) -> np.ndarray:
    """A [rows, columns] matrix with orthonormal rows or columns, times the gain."""
    tall = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(tall)
    q = q * np.sign(np.diag(r))  # makes the draw uniform over orthogonal matrices
    return (gain * (q if rows >= columns else q.T)).astype(np.float32)


def _dense_init(rng: np.random.Generator, inputs: int, outputs: int, gain: float) -> Params:
    return {"weight": orthogonal(rng, inputs, outputs, gain), "bias": np.zeros(outputs, np.float32)}


def dense(params: Params, x: Array, precision: str | None = None) -> Array:
    """x W + b; images say how precisely, vectors leave it to the library."""
    weight = params["weight"]
    y = x @ weight if precision is None else _product(jnp.matmul, x, weight, precision)
    return y + spread(params["bias"], y)


def _product(multiply: Callable[..., Array], x: Array, weight: Array, precision: str) -> Array:
    """A matrix product or convolution in float32, or of bfloat16 numbers, whose sums the hardware keeps in float32.

    A GPU's own choice for float32 is TF32, which rounds the factors to 10 bits; `float32` asks for all 23.
    """
    if precision == "bfloat16":
        return multiply(x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)).astype(jnp.float32)
    return multiply(x, weight, precision="highest" if precision == "float32" else "default")


def mlp(layers: list[Params], x: Array) -> Array:
    """Tanh layers."""
    xp: Any = np if isinstance(x, np.ndarray) else jnp
    for layer in layers:
        x = xp.tanh(dense(layer, x))
    return x


def _mlp_init(rng: np.random.Generator, inputs: int, sizes: tuple[int, ...]) -> list[Params]:
    widths = (inputs, *sizes)
    return [_dense_init(rng, a, b, math.sqrt(2)) for a, b in itertools.pairwise(widths)]


def convolve(x: Array, weight: Array, stride: int, precision: str) -> Array:
    """Images [N, H, W, C] with a kernel [K, K, C, O], without padding, K a multiple of the stride.

    On a CPU as matrix products: inside a loop, where the replayed updates are, XLA's convolution there takes 15 to 20
    times as long. On a GPU too if images are few: XLA starts products all at once, as a recorded graph, and
    convolutions one by one.
    """
    whole = functools.partial(
        jax.lax.conv_general_dilated,
        window_strides=(stride, stride),
        padding="VALID",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )

    def elsewhere(x: Array, weight: Array) -> Array:
        if x.shape[0] <= FEW_IMAGES:
            return convolve_by_products(x, weight, stride, precision, is_one=False)
        return _product(whole, x, weight, precision)

    # One wide product reads and writes the least; where squares overlap most, it would multiply too much in vain.
    on_cpu = functools.partial(convolve_by_products, stride=stride, precision=precision, is_one=stride > 1)
    return jax.lax.platform_dependent(x, weight, cpu=on_cpu, default=elsewhere)


def convolve_by_products(x: Array, weight: Array, stride: int, precision: str, is_one: bool) -> Array:
    """Squares of stride × stride pixels become one long pixel; then each of the kernel's squares is one product.

    With `is_one` all pixels are multiplied with all squares at once, and what belongs to one result is added up after.
    """
    side, _, channels, outputs = weight.shape
    squares = side // stride  # of the kernel, along a side
    height, width = ((size - side) // stride + 1 for size in x.shape[1:3])  # of the result
    rows, columns = height + squares - 1, width + squares - 1
    x = x[:, : rows * stride, : columns * stride].reshape(-1, rows, stride, columns, stride, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, rows, columns, stride * stride * channels)
    weight = weight.reshape(squares, stride, squares, stride, channels, outputs).transpose(0, 2, 1, 3, 4, 5)
    weight = weight.reshape(squares, squares, -1, outputs)
    places = [(i, j) for i in range(squares) for j in range(squares)]
    if is_one:
        wide = weight.transpose(2, 0, 1, 3).reshape(x.shape[-1], -1)
        products = _product(jnp.matmul, x.reshape(-1, x.shape[-1]), wide, precision)
        products = products.reshape(-1, rows, columns, squares, squares, outputs)
        return functools.reduce(jnp.add, [products[:, i : i + height, j : j + width, i, j] for i, j in places])
    parts = [
        _product(jnp.matmul, x[:, i : i + height, j : j + width].reshape(-1, x.shape[-1]), weight[i, j], precision)
        for i, j in places
    ]
    return functools.reduce(jnp.add, parts).reshape(-1, height, width, outputs)


def nature_cnn(params: Params, image: Array, precision: str = "float32") -> Array:
    """uint8 images [..., H, W, C] to features [..., F]; the division by 255 happens here, not before."""
    batch = image.shape[:-3]
    x = image.reshape(-1, *image.shape[-3:]).astype(jnp.float32) / 255.0
    for layer, (_, stride) in zip(params["convolutions"], CONVOLUTIONS, strict=True):
        x = convolve(x, layer["weight"], stride, precision)
        x = jax.nn.relu(x + spread(layer["bias"], x))
    return jax.nn.relu(dense(params["dense"], x.reshape(*batch, -1), precision))


def _cnn_init(rng: np.random.Generator, shape: tuple[int, int, int], config: Config) -> Params:
    height, width, channels = shape
    convolutions = []
    for (side, stride), outputs in zip(CONVOLUTIONS, config.conv_channels, strict=True):
        weight = orthogonal(rng, side * side * channels, outputs, math.sqrt(2)).reshape(side, side, channels, outputs)
        convolutions.append({"weight": weight, "bias": np.zeros(outputs, np.float32)})
        height, width, channels = (height - side) // stride + 1, (width - side) // stride + 1, outputs
    return {
        "convolutions": convolutions,
        "dense": _dense_init(rng, height * width * channels, config.conv_features, math.sqrt(2)),
    }


def _trunk_init(rng: np.random.Generator, spec: ObservationSpec, config: Config) -> Params:
    return {
        "images": [_cnn_init(rng, shape, config) for shape in spec.image_shapes],
        "vector": _mlp_init(rng, spec.vector_size, config.hidden_sizes) if spec.vector_size else [],
    }


def _trunk(params: Params, observation: Observation, precision: str) -> Array:
    parts = [nature_cnn(p, image, precision) for p, image in zip(params["images"], observation.images, strict=True)]
    if observation.vector is not None:
        parts.append(mlp(params["vector"], observation.vector))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _trunk_width(spec: ObservationSpec, config: Config) -> int:
    vector = (config.hidden_sizes[-1] if config.hidden_sizes else spec.vector_size) if spec.vector_size else 0
    return config.conv_features * len(spec.image_shapes) + vector


def make_network(observation: ObservationSpec, action: ActionSpec, config: Config, is_q: bool = False) -> Network:
    """Policy and value networks; with `is_q` the value is one of each discrete action [..., A]."""
    if config.precision != "float32" and observation.kind == "vector":
        raise UserError(f"setting precision: {config.precision} is for images; networks of vectors are in float32")
    trunk = functools.partial(_trunk, precision=config.precision)
    head = functools.partial(dense, precision="float32" if observation.kind == "image" else None)
    trunk_of = {"policy": "trunk", "value": "trunk"} if config.shared_trunk else {"policy": "policy", "value": "value"}

    def init(rng: np.random.Generator) -> Params:
        width = _trunk_width(observation, config)
        params: Params = {name: _trunk_init(rng, observation, config) for name in sorted(set(trunk_of.values()))}
        params["policy_head"] = _dense_init(rng, width, action.num_outputs, config.policy_head_gain)
        params["value_head"] = _dense_init(rng, width, action.sizes[0] if is_q else 1, config.value_head_gain)
        if action.kind == "gaussian":
            params["log_std"] = np.full(action.sizes, config.init_log_std, np.float32)
        return params

    def read_policy(params: Params, features: Array) -> Distribution:
        return action.distribution(head(params["policy_head"], features), params.get("log_std"))

    def read_value(params: Params, features: Array) -> Array:
        value = head(params["value_head"], features)
        return value if is_q else value[..., 0]

    def policy(params: Params, observation: Observation) -> Distribution:
        return read_policy(params, trunk(params[trunk_of["policy"]], observation))

    def value(params: Params, observation: Observation) -> Array:
        return read_value(params, trunk(params[trunk_of["value"]], observation))

    def policy_and_value(params: Params, observation: Observation) -> tuple[Distribution, Array]:
        if not config.shared_trunk:
            return policy(params, observation), value(params, observation)
        features = trunk(params["trunk"], observation)
        return read_policy(params, features), read_value(params, features)

    return Network(init, _on_rows(policy), _on_rows(value), _on_rows(policy_and_value))


def _on_rows(function: Callable[[Params, Observation], Any]) -> Callable[[Params, Observation], Any]:
    """Run a network on [T, B, ...] as on [T·B, ...]: with two batch axes XLA's products take a quarter longer."""

    def on_rows(params: Params, observation: Observation) -> Any:
        batch = observation.images[0].shape[:-3] if observation.images else observation.vector.shape[:-1]  # type: ignore[union-attr]
        if len(batch) < 2:
            return function(params, observation)
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), observation)
        return jax.tree.map(lambda leaf: leaf.reshape(*batch, *leaf.shape[1:]), function(params, rows))

    return on_rows


def num_parameters(params: Params) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))
