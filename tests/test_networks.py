"""One definition for NumPy and JAX, shapes for every kind of observation, orthogonal initial weights."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from p3o.config import Config, make_config
from p3o.errors import UserError
from p3o.networks import convolve, convolve_by_products, make_network, num_parameters, orthogonal
from p3o.spaces import action_spec, observation_spec
from p3o.types import Observation

ACTIONS = {
    "gaussian": spaces.Box(-1, 1, (3,)),
    "categorical": spaces.Discrete(4),
    "bernoulli": spaces.MultiBinary(3),
    "multi_categorical": spaces.MultiDiscrete([2, 5]),
}
SMALL = {"hidden_sizes": (8, 6), "conv_channels": (2, 3, 4), "conv_features": 5, "policy_head_gain": 1.0}


def image(*shape):
    return spaces.Box(0, 255, shape, np.uint8)


def build(observation, action=ACTIONS["categorical"], is_q=False, **settings):
    specs = observation_spec(observation), action_spec(action)
    return make_network(*specs, make_config(Config, SMALL, settings), is_q), specs


def observations(spec, *batch):
    rng = np.random.default_rng(1)
    vector = rng.standard_normal((*batch, spec.vector_size)).astype(np.float32) if spec.vector_size else None
    images = tuple(rng.integers(256, size=(*batch, *shape), dtype=np.uint8) for shape in spec.image_shapes)
    return Observation(vector, images)


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("kind", ACTIONS)
def test_numpy_and_jax_agree(kind, is_shared):
    network, (spec, _) = build(spaces.Box(-1, 1, (5,)), ACTIONS[kind], shared_trunk=is_shared)
    params = network.init(np.random.default_rng(0))
    seen = observations(spec, 7, 2)
    on_numpy, on_jax = network.policy(params, seen), jax.jit(network.policy)(params, seen)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(on_numpy))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), on_numpy, on_jax)
    # Host and learner draw the same from it: same type, float32.
    assert {leaf.dtype for leaf in jax.tree.leaves(on_numpy)} == {np.dtype(np.float32)}
    np.testing.assert_allclose(network.value(params, seen), jax.jit(network.value)(params, seen), atol=1e-6)
    policy, value = jax.jit(network.policy_and_value)(params, seen)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), policy, on_numpy)
    np.testing.assert_allclose(value, network.value(params, seen), atol=1e-6)


def test_a_network_by_hand():
    # One tanh unit with weight 2 and bias 1 reads x = ½: h = tanh 2. Policy outputs 3h − 1 and 4h, value 5h + 6.
    network, _ = build(spaces.Box(-1, 1, (1,)), spaces.Discrete(2), hidden_sizes=(1,), shared_trunk=True)
    shapes = jax.tree.map(np.shape, network.init(np.random.default_rng(0)))
    params = {
        "trunk": {"images": [], "vector": [{"weight": np.array([[2.0]]), "bias": np.array([1.0])}]},
        "policy_head": {"weight": np.array([[3.0, 4.0]]), "bias": np.array([-1.0, 0.0])},
        "value_head": {"weight": np.array([[5.0]]), "bias": np.array([6.0])},
    }
    assert jax.tree.map(np.shape, params) == shapes
    seen, h = Observation(np.array([[0.5]]), ()), math.tanh(2)
    np.testing.assert_allclose(network.policy(params, seen).logits, [[3 * h - 1, 4 * h]])
    np.testing.assert_allclose(network.value(params, seen), [5 * h + 6])


@pytest.mark.parametrize(
    ("space", "is_shared"),
    [
        (image(36, 40, 3), True),
        (image(3, 36, 40), False),
        (image(36, 36), True),
        (spaces.Dict(camera=image(36, 36, 3), x=spaces.Box(-1, 1, (2,))), True),
        (spaces.Dict(front=image(36, 36, 3), back=image(2, 40, 40)), False),
    ],
    ids=["last", "first", "grey", "image and vector", "two images"],
)
def test_shapes_with_images(space, is_shared):
    network, (spec, _) = build(space, shared_trunk=is_shared)
    params = network.init(np.random.default_rng(0))

    @jax.jit
    def evaluate(params, seen):
        gradient = jax.grad(lambda p: jnp.sum(network.policy(p, seen).logits[..., 0]))(params)
        return *network.policy_and_value(params, seen), network.policy(params, seen), gradient

    policy, value, alone, weights = evaluate(params, observations(spec, 3, 2))
    assert policy.logits.shape == (3, 2, 4)
    assert value.shape == (3, 2)
    np.testing.assert_allclose(alone.logits, policy.logits, atol=1e-5)
    # Every image and the vector count.
    trunk = weights["trunk" if is_shared else "policy"]
    for part in (*trunk["images"], *trunk["vector"]):
        assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(part))


def test_images_are_divided_by_255_inside():
    network, _ = build(image(36, 36, 1))
    params = network.init(np.random.default_rng(0))
    white, black = (Observation(None, (np.full((1, 36, 36, 1), x, np.uint8),)) for x in (255, 0))
    # Zero biases: a black picture gives even logits, and a white one what a picture of ones would.
    np.testing.assert_array_equal(network.policy(params, black).logits, 0)
    ones = Observation(None, (np.full((1, 36, 36, 1), 255.0, np.float32),))
    np.testing.assert_allclose(network.policy(params, white).logits, network.policy(params, ones).logits, rtol=1e-6)
    assert np.abs(network.policy(params, white).logits).max() > 1e-3
    assert np.abs(network.policy(params, white).logits).max() < 100


def test_trunks_are_shared_or_separate():
    box = spaces.Box(-1, 1, (5,))
    shared = build(box, shared_trunk=True)[0].init(np.random.default_rng(0))
    separate = build(box, shared_trunk=False)[0].init(np.random.default_rng(0))
    assert set(shared) == {"trunk", "policy_head", "value_head"}
    assert set(separate) == {"policy", "value", "policy_head", "value_head"}
    # 5·8 + 8 + 8·6 + 6 = 102 in a trunk; heads 6·4 + 4 = 28 and 6 + 1 = 7.
    assert num_parameters(shared) == 102 + 28 + 7
    assert num_parameters(separate) == 2 * 102 + 28 + 7
    assert not np.array_equal(separate["policy"]["vector"][0]["weight"], separate["value"]["vector"][0]["weight"])


def test_a_value_per_action():
    network, (spec, _) = build(spaces.Box(-1, 1, (5,)), is_q=True)
    assert network.value(network.init(np.random.default_rng(0)), observations(spec, 3, 2)).shape == (3, 2, 4)


def test_without_hidden_layers_the_heads_read_the_observation():
    network, (spec, _) = build(spaces.Box(-1, 1, (5,)), hidden_sizes=())
    params = network.init(np.random.default_rng(0))
    seen = observations(spec, 3)
    np.testing.assert_allclose(network.policy(params, seen).logits, seen.vector @ params["policy_head"]["weight"])


@pytest.mark.parametrize(("rows", "columns"), [(7, 4), (4, 7), (5, 5)])
def test_orthogonal(rows, columns):
    weight = orthogonal(np.random.default_rng(0), rows, columns, gain=3.0)
    assert weight.shape == (rows, columns)
    assert weight.dtype == np.float32
    product = weight.T @ weight if rows >= columns else weight @ weight.T
    np.testing.assert_allclose(product, 9 * np.eye(min(rows, columns)), atol=1e-5)


def test_initial_gains_and_biases():
    space = spaces.Dict(camera=image(36, 36, 3), x=spaces.Box(-1, 1, (2,)))
    network, _ = build(space, ACTIONS["gaussian"], policy_head_gain=0.01, value_head_gain=2.0, init_log_std=-0.5)
    params = network.init(np.random.default_rng(0))

    def gain(weight):
        """The common singular value of a weight, inputs flattened."""
        values = np.linalg.svd(weight.reshape(-1, weight.shape[-1]), compute_uv=False)
        np.testing.assert_allclose(values, values[0], rtol=1e-4)
        return values[0]

    for name in ("policy", "value"):
        (camera,) = params[name]["images"]
        for layer in (*camera["convolutions"], camera["dense"], *params[name]["vector"]):
            assert gain(layer["weight"]) == pytest.approx(math.sqrt(2), rel=1e-4)
    assert gain(params["policy_head"]["weight"]) == pytest.approx(0.01, rel=1e-4)
    assert gain(params["value_head"]["weight"]) == pytest.approx(2.0, rel=1e-4)
    np.testing.assert_array_equal(params["log_std"], np.full(3, -0.5, np.float32))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if "bias" in jax.tree_util.keystr(path):
            np.testing.assert_array_equal(leaf, 0)


def test_the_same_generator_gives_the_same_network():
    network, _ = build(spaces.Box(-1, 1, (5,)))
    first, again, other = (network.init(np.random.default_rng(seed)) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first["policy_head"]["weight"], other["policy_head"]["weight"])


def test_precisions_of_images_agree_and_vectors_have_none():
    space = image(36, 36, 4)
    found = {}
    for precision in ("float32", "tf32", "bfloat16"):
        network, specs = build(space, precision=precision)
        params = network.init(np.random.default_rng(0))
        found[precision] = np.asarray(network.value(params, observations(specs[0], 3)))
    np.testing.assert_array_equal(found["float32"], found["tf32"])  # they differ on a GPU alone
    assert not np.array_equal(found["float32"], found["bfloat16"])
    np.testing.assert_allclose(found["float32"], found["bfloat16"], rtol=0.02, atol=0.02)
    with pytest.raises(UserError, match="precision: bfloat16 is for images"):
        build(spaces.Box(-1, 1, (5,)), precision="bfloat16")


@pytest.mark.parametrize("is_one", [None, False, True])  # None: as the platform has it
@pytest.mark.parametrize(("side", "stride", "height"), [(8, 4, 84), (4, 2, 20), (3, 1, 9), (8, 4, 39)])
def test_a_convolution_by_products_is_the_convolution(side, stride, height, is_one):
    rng = np.random.default_rng(side)
    x = jnp.asarray(rng.normal(size=(2, height, height + 5, 3)), jnp.float32)
    weight = jnp.asarray(rng.normal(size=(side, side, 3, 4)), jnp.float32)

    def plain(x, weight):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, weight, (stride, stride), "VALID", dimension_numbers=numbers)

    def ours(x, weight):
        if is_one is None:
            return convolve(x, weight, stride, "float32")
        return convolve_by_products(x, weight, stride, "float32", is_one)

    np.testing.assert_allclose(ours(x, weight), plain(x, weight), rtol=1e-4, atol=1e-4)
    for argument in (0, 1):
        found, expected = (
            jax.jit(jax.grad(lambda x, w, f=f: jnp.sin(f(x, w)).sum(), argument))(x, weight) for f in (ours, plain)
        )
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
