"""What observations become, what samples become, and spaces as plain data."""

import json

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o.errors import UserError
from p3o.spaces import (
    SMALLEST_IMAGE,
    Encoder,
    action_mapper,
    action_spec,
    observation_spec,
    space_from_json,
    space_to_json,
)


def encode(space, *raws):
    """Raw observations, one an environment, as arrays."""
    encoder = Encoder(observation_spec(space), len(raws))
    into = encoder.empty()
    for row, raw in enumerate(raws):
        encoder.write(raw, into, row)
    return into


def box(*shape, low=-np.inf, high=np.inf, dtype=np.float32):
    return spaces.Box(low, high, shape, dtype)


@pytest.mark.parametrize(
    ("space", "raw", "vector"),
    [
        (box(3), np.array([1.0, 2.0, 3.0]), [1, 2, 3]),
        (box(2, 2), np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 2, 3, 4]),
        (box(), np.array(5.0), [5]),
        (box(), 5.0, [5]),
        (box(2, low=0, high=9, dtype=np.int64), np.array([3, 4]), [3, 4]),
        (box(2, 2, low=0, high=255, dtype=np.uint8), np.array([[1, 2], [3, 255]], np.uint8), [1, 2, 3, 255]),
        (spaces.Discrete(3), 1, [0, 1, 0]),
        (spaces.Discrete(3), np.int64(2), [0, 0, 1]),
        (spaces.Discrete(3, start=-1), -1, [1, 0, 0]),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 3], start=[5, -1]), np.array([5, 1]), [1, 0, 0, 0, 1]),
        (spaces.MultiDiscrete([[2], [2]]), np.array([[1], [0]]), [0, 1, 1, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), [1, 0, 1]),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]], np.int8), [1, 0, 0, 1]),
        (spaces.Tuple((spaces.Discrete(2), box(2))), (1, np.array([7.0, 8.0])), [0, 1, 7, 8]),
        (
            spaces.Dict(b=spaces.Dict(x=box(1), y=spaces.Tuple((spaces.Discrete(2), box()))), a=spaces.MultiBinary(1)),
            {"a": np.array([1]), "b": {"x": np.array([9.0]), "y": (0, np.array(4.0))}},
            [9, 1, 0, 4, 1],  # in the order of the space
        ),
    ],
)
def test_vectors(space, raw, vector):
    spec = observation_spec(space)
    if isinstance(space, spaces.Dict):  # Gymnasium sorts the keys of a plain dict but keeps keywords as they come
        vector = vector if next(iter(space.spaces)) == "b" else [*vector[-1:], *vector[:-1]]
    encoded = encode(space, raw)
    np.testing.assert_array_equal(encoded.vector, [vector])
    assert encoded.images == ()
    assert spec.vector_size == len(vector)
    assert spec.kind == "vector"


@pytest.mark.parametrize(
    ("space", "value", "place"),
    [
        (spaces.Discrete(5, start=-2), np.uint8(1), [3]),
        (spaces.Discrete(201, start=-100), np.int8(100), [200]),
        (spaces.MultiDiscrete([201, 3], start=[-100, 0]), np.array([100, 2], np.int8), [200, 203]),
        (spaces.Discrete(3), np.float32(2.0), [2]),
    ],
)
def test_one_hot_takes_numbers_of_any_type(space, value, place):
    encoder = Encoder(observation_spec(space), 1)
    into = encoder.empty()
    encoder.write(value, into, 0)
    np.testing.assert_array_equal(np.flatnonzero(into.vector[0]), place)


@pytest.mark.parametrize("value", [-1, 3, 1.7])
def test_one_hot_refuses_what_is_outside(value):
    encoder = Encoder(observation_spec(spaces.Discrete(3)), 1)
    with pytest.raises(UserError, match=f"observation {value}: a whole number from 0 to 2"):
        encoder.write(value, encoder.empty(), 0)


def test_rows_of_a_one_hot_are_cleared():
    encoder = Encoder(observation_spec(spaces.Discrete(3)), 1)
    into = encoder.empty()
    encoder.write(0, into, 0)
    encoder.write(2, into, 0)
    np.testing.assert_array_equal(into.vector, [[0, 0, 1]])


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([3, 3]), spaces.MultiBinary(2), spaces.Tuple([box(1), box(1)])])
def test_too_many_numbers_are_refused(space):
    raw = (np.zeros(1), np.zeros(2)) if isinstance(space, spaces.Tuple) else np.ones(3, int)
    with pytest.raises(UserError, match="an observation has the shape"):
        encode(space, raw)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)])
def test_a_vector_may_come_as_a_row_or_a_column(shape):
    np.testing.assert_array_equal(encode(box(3), np.arange(3.0).reshape(shape)).vector, [[0, 1, 2]])


def test_vectors_keep_double_precision():
    np.testing.assert_array_equal(encode(box(1, dtype=np.float64), np.array([1 + 1e-12])).vector, [[1 + 1e-12]])


@pytest.mark.parametrize("shape", [(40, 50, 3), (3, 40, 50), (40, 50), (40, 50, 1), (4, 84, 84)])
def test_images_become_channel_last_and_stay_uint8(shape):
    rng = np.random.default_rng(0)
    raw = rng.integers(256, size=shape, dtype=np.uint8)
    space = box(*shape, low=0, high=255, dtype=np.uint8)
    encoded = encode(space, raw, 255 - raw)
    is_first = len(shape) == 3 and shape[0] < shape[2]
    expected = np.moveaxis(raw, 0, -1) if is_first else raw.reshape(*shape[:2], -1)
    assert encoded.vector is None
    (images,) = encoded.images
    assert images.dtype == np.uint8
    np.testing.assert_array_equal(images, [expected, 255 - expected])
    assert observation_spec(space).kind == "image"
    assert observation_spec(space).image_shapes == (expected.shape,)


@pytest.mark.parametrize("shape", [(2, 40, 50, 3), (2, 3, 40, 50)])
def test_stacks_of_pictures_with_channels_are_images_of_all_their_channels(shape):
    raw = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    space = box(*shape, low=0, high=255, dtype=np.uint8)
    (images,) = encode(space, raw, 255 - raw).images
    assert observation_spec(space).image_shapes == ((40, 50, 6),)
    pixel = raw[:, 7, 9] if shape[-1] == 3 else raw[:, :, 7, 9]
    assert sorted(images[0, 7, 9].tolist()) == sorted(pixel.ravel().tolist())
    np.testing.assert_array_equal(images[1], 255 - images[0])


def test_small_pictures_are_vectors():
    # Three convolutions 8/4, 4/2, 3/1 need 36 pixels a side: 36 → 8 → 3 → 1.
    side = SMALLEST_IMAGE
    for convolution, stride in ((8, 4), (4, 2), (3, 1)):
        side = (side - convolution) // stride + 1
    assert side == 1
    large = box(SMALLEST_IMAGE, SMALLEST_IMAGE, 3, low=0, high=255, dtype=np.uint8)
    small = box(SMALLEST_IMAGE - 1, SMALLEST_IMAGE, 3, low=0, high=255, dtype=np.uint8)
    assert observation_spec(large).kind == "image"
    assert observation_spec(small).kind == "vector"
    assert observation_spec(small).vector_size == 35 * 36 * 3
    # Floats are numbers, whatever their shape.
    assert observation_spec(box(84, 84, 3)).kind == "vector"


def test_a_dict_of_image_and_vector():
    space = spaces.Dict(camera=box(36, 36, 3, low=0, high=255, dtype=np.uint8), speed=box(2), gear=spaces.Discrete(2))
    raw = {"camera": np.full((36, 36, 3), 7, np.uint8), "speed": np.array([1.0, 2.0]), "gear": 1}
    encoded = encode(space, raw)
    assert encoded.images[0].shape == (1, 36, 36, 3)
    assert (encoded.images[0] == 7).all()
    assert sorted(encoded.vector[0]) == [0, 1, 1, 2]
    assert observation_spec(space).kind == "image"
    assert observation_spec(space).vector_size == 4


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(box(1), None),
        spaces.OneOf((spaces.Discrete(2), box(1))),
        spaces.Dict(a=spaces.Text(5)),
        spaces.Dict(),
        spaces.Tuple(()),
        box(0),
    ],
)
def test_unsupported_observations_are_refused_in_one_line(space):
    with pytest.raises(UserError, match="observation space") as error:
        observation_spec(space)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Dict(a=spaces.Discrete(2)),
        spaces.Tuple((spaces.Discrete(2),)),
        box(2, low=0, high=9, dtype=np.int64),
        box(0),
    ],
)
def test_unsupported_actions_are_refused_in_one_line(space):
    with pytest.raises(UserError, match=r"action space .* is not supported") as error:
        action_spec(space)
    assert len(str(error.value).splitlines()) == 1


# Actions.


@pytest.mark.parametrize(
    ("space", "kind", "outputs", "shape", "dtype"),
    [
        (box(3), "gaussian", 3, (3,), np.float32),
        (box(2, 2), "gaussian", 4, (4,), np.float32),
        (box(), "gaussian", 1, (1,), np.float32),
        (spaces.Discrete(4, start=2), "categorical", 4, (), np.int32),
        (spaces.MultiDiscrete([2, 3]), "multi_categorical", 5, (2,), np.int32),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "multi_categorical", 14, (4,), np.int32),
        (spaces.MultiBinary(3), "bernoulli", 3, (3,), np.int32),
        (spaces.MultiBinary((2, 2)), "bernoulli", 4, (4,), np.int32),
    ],
)
def test_action_kinds(space, kind, outputs, shape, dtype):
    spec = action_spec(space)
    assert (spec.kind, spec.num_outputs, spec.shape, spec.dtype) == (kind, outputs, shape, dtype)
    # A sample of the policy has that shape, and what the environment gets is in the space.
    rng = np.random.default_rng(0)
    outputs = rng.standard_normal((5, spec.num_outputs)).astype(np.float32)
    policy = spec.distribution(outputs, np.zeros(spec.sizes, np.float32) if kind == "gaussian" else None)
    sample = policy.sample(spec.noise(rng, (5,)))
    assert sample.shape == (5, *shape)
    assert sample.dtype == dtype
    for action in action_mapper(spec, "unit", clip=True)(sample):
        assert space.contains(np.asarray(action) if isinstance(space, spaces.Box) else action), action


def mapped(space, action, scale="unit", clip=True):
    return action_mapper(action_spec(space), scale, clip)(np.asarray(action, np.float32))


def test_unit_actions_are_stretched_to_the_box():
    space = spaces.Box(np.array([-1, 0, -3], np.float32), np.array([1, 10, 1], np.float32))
    # −1, 0 and 1 are the low end, the middle and the high end of each dimension.
    np.testing.assert_allclose(mapped(space, [[-1, -1, -1]]), [[-1, 0, -3]])
    np.testing.assert_allclose(mapped(space, [[0, 0, 0]]), [[0, 5, -1]])
    np.testing.assert_allclose(mapped(space, [[1, 1, 1]]), [[1, 10, 1]])
    np.testing.assert_allclose(mapped(space, [[0.5, 0.5, 0.5]]), [[0.5, 7.5, 0]])
    # Beyond the ends: clipped or not.
    np.testing.assert_allclose(mapped(space, [[2, 2, -2]]), [[1, 10, -3]])
    np.testing.assert_allclose(mapped(space, [[2, 2, -2]], clip=False), [[2, 15, -5]])


def test_raw_actions_go_through():
    space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 10], np.float32))
    np.testing.assert_allclose(mapped(space, [[-5, 3]], "raw", clip=False), [[-5, 3]])
    np.testing.assert_allclose(mapped(space, [[-5, 30]], "raw", clip=True), [[-1, 10]])


def test_dimensions_without_both_bounds_are_not_stretched():
    space = spaces.Box(np.array([-np.inf, 0, -4], np.float32), np.array([np.inf, np.inf, 4], np.float32))
    np.testing.assert_allclose(mapped(space, [[7, 7, 0.5]]), [[7, 7, 2]])
    np.testing.assert_allclose(mapped(space, [[-7, -7, -7]]), [[-7, 0, -4]])  # a single bound still clips


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_box_actions_have_the_type_and_shape_of_the_box(dtype):
    action = mapped(spaces.Box(-2, 2, (2, 2), dtype), [[0.5, 0, 0, 1]])
    assert action.shape == (1, 2, 2)
    assert action.dtype == dtype
    np.testing.assert_allclose(action, [[[1, 0], [0, 2]]])
    assert mapped(spaces.Box(-2, 2, (), dtype), [[0.5], [1]]).shape == (2,)


def test_discrete_actions_start_where_the_space_does():
    spec = action_spec(spaces.Discrete(3, start=5))
    action = action_mapper(spec, "unit", clip=True)(np.array([0, 2], np.int32))
    np.testing.assert_array_equal(action, [5, 7])
    assert action.dtype == np.int64


def test_multi_discrete_and_multi_binary_take_their_shape():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 10], [20, 30]])
    action = action_mapper(action_spec(space), "unit", clip=True)(np.array([[1, 2, 3, 4]], np.int32))
    np.testing.assert_array_equal(action, [[[1, 12], [23, 34]]])
    assert space.contains(action[0])
    space = spaces.MultiBinary((2, 2))
    action = action_mapper(action_spec(space), "unit", clip=True)(np.array([[1, 0, 0, 1]], np.int32))
    np.testing.assert_array_equal(action, [[[1, 0], [0, 1]]])
    assert space.contains(action[0])


# Plain data.

DTYPES = st.sampled_from([np.float32, np.float64, np.uint8, np.int64])


@st.composite
def boxes(draw):
    dtype = np.dtype(draw(DTYPES))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=3)))
    if dtype.kind == "f":
        ends = st.floats(-(2.0**100), 2.0**100, width=32)
        low, high = (
            np.array([draw(ends) for _ in range(max(1, int(np.prod(shape))))]).reshape(shape) for _ in range(2)
        )
        low, high = np.minimum(low, high), np.maximum(low, high)
        if draw(st.booleans()):
            low = np.full(shape, -np.inf)
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    info = np.iinfo(dtype)
    low = draw(st.integers(int(info.min), int(info.max)))
    return spaces.Box(low, draw(st.integers(low, int(info.max))), shape, dtype.type)


LEAVES = st.one_of(
    boxes(),
    st.builds(
        lambda n, s, d: spaces.Discrete(n, start=s, dtype=d),
        st.integers(1, 9),
        st.integers(-9, 9),
        st.sampled_from([np.int64, np.int32]),
    ),
    st.builds(
        lambda n, d: spaces.MultiDiscrete(n, d, start=np.arange(np.size(n)).reshape(np.shape(n))),
        st.one_of(st.just([2, 3]), st.just([[2, 3], [4, 5]])),
        st.sampled_from([np.int64, np.int32]),
    ),
    st.sampled_from(
        [spaces.MultiBinary(3), spaces.MultiBinary([3]), spaces.MultiBinary([2, 2]), spaces.Box(0, 1, (2,), np.bool_)]
    ),
)
SPACES = st.recursive(
    LEAVES,
    lambda part: st.one_of(
        st.lists(part, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.text(max_size=3), part, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(SPACES)
def test_spaces_survive_json(space):
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert observation_spec(again) == observation_spec(space)
    if isinstance(space, spaces.Box):  # equality above is only approximate
        np.testing.assert_array_equal(again.low, space.low)
        np.testing.assert_array_equal(again.high, space.high)


def test_data_of_earlier_files_have_no_type_of_discrete_spaces():
    assert space_from_json({"type": "Discrete", "n": 3, "start": 1}) == spaces.Discrete(3, start=1)
    assert space_from_json({"type": "MultiDiscrete", "nvec": [2], "start": [0]}) == spaces.MultiDiscrete([2])


@pytest.mark.parametrize(
    "data",
    [
        {"type": "Cube"},
        {},
        {"type": "Box", "shape": [2], "dtype": "object", "low": "0", "high": "1"},
        {"type": "Box", "shape": [2], "dtype": "float32", "low": ["0"], "high": "1"},
        {"type": "Discrete", "n": "x", "start": 0},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "Dict", "spaces": 3},
    ],
)
def test_data_that_are_no_space_are_refused(data):
    with pytest.raises((ValueError, KeyError, TypeError)):
        space_from_json(data)


def test_unsupported_spaces_have_no_plain_data():
    with pytest.raises(UserError):
        space_to_json(spaces.Text(3))


def test_the_largest_float_as_a_bound_means_none():
    huge = float(np.finfo(np.float64).max)
    assert mapped(spaces.Box(-huge, huge, (1,), np.float64), [[0.5]], "unit").tolist() == [[0.5]]


def test_the_order_of_a_dict_survives_json():
    """A policy reads its parts in that order; Gymnasium keeps it for keywords and sorts the keys of a dict."""
    space = spaces.Dict(pos=spaces.Box(-1, 1, (3,)), area=spaces.Box(-1, 1, (2,)))
    assert list(space.spaces) == ["pos", "area"]
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert list(again.spaces) == ["pos", "area"]
    assert observation_spec(again) == observation_spec(space)


@pytest.mark.parametrize("value", [[3, 0], [-1, 0], [0, 5]])
def test_a_number_outside_its_space_is_named(value):
    spec = observation_spec(spaces.MultiDiscrete([3, 4], start=[0, 1]))
    encoder = Encoder(spec, 1)
    into = encoder.empty()
    encoder.write(np.array([2, 4]), into, 0)
    assert into.vector.tolist() == [[0, 0, 1, 0, 0, 0, 1]]
    with pytest.raises(UserError, match="was expected"):
        encoder.write(np.array(value), into, 0)
