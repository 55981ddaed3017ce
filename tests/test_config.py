"""Settings: conversion, ranges, hints, and that bad input of any kind is one line."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p3o.algorithms import ALGORITHMS
from p3o.algorithms.p3o import P3OConfig
from p3o.config import Config, describe, make_config, parse_assignments, parse_count, parse_number
from p3o.errors import UserError

CONFIGS = {"base": Config} | {name: entry.config for name, entry in ALGORITHMS.items()}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("num_envs", "4", 4),
        ("num_envs", 4.0, 4),
        ("num_steps", "1_000", 1000),
        ("checkpoint_every", "3e6", 3_000_000),
        ("gamma", "0.5", 0.5),
        ("gamma", 1, 1.0),
        ("shared_trunk", "True", True),
        ("shared_trunk", "no", False),
        ("shared_trunk", "1", True),
        ("shared_trunk", False, False),
        ("schedule_steps", "none", None),
        ("schedule_steps", None, None),
        ("schedule_steps", "8e7", 80_000_000),
        ("hidden_sizes", "64,32", (64, 32)),
        ("hidden_sizes", "(64, 32)", (64, 32)),
        ("hidden_sizes", "[64]", (64,)),
        ("hidden_sizes", [64, 32], (64, 32)),
        ("hidden_sizes", "()", ()),
        ("hidden_sizes", "64,", (64,)),
        ("conv_channels", "32,64,32", (32, 64, 32)),
        ("optimizer", "rmsprop_tf", "rmsprop_tf"),
        ("kl_coef", "ess", "ess"),
        ("kl_coef", "0.5", 0.5),
        ("kl_coef", 0, 0.0),
        ("is_clip", "1e9", 1e9),
    ],
)
def test_values_are_converted(name, value, expected):
    result = getattr(make_config(P3OConfig, {name: value}), name)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_envs", "0", "num_envs: 0 is below 1"),
        ("num_envs", "2.5", "num_envs: '2.5' is not a whole number"),
        ("num_envs", "many", "num_envs: 'many' is not a number"),
        ("num_envs", "none", "num_envs: None is not allowed"),
        ("num_envs", True, "num_envs: True is not a number"),
        ("num_envs", "1e300", "is above 4096"),
        ("gamma", "1.01", "gamma: 1.01 is above 1"),
        ("gamma", "nan", "gamma: 'nan' is not finite"),
        ("gamma", "inf", "not finite"),
        ("learning_rate", "0", "learning_rate: 0 is not above 0"),
        ("learning_rate", "1e400", "not finite"),
        ("shared_trunk", "maybe", "shared_trunk: 'maybe' is neither true nor false"),
        ("hidden_sizes", "64,0", "hidden_sizes: 0 is below 1"),
        ("hidden_sizes", "64;64", "hidden_sizes: '64;64' is not a number"),
        ("hidden_sizes", 64, "hidden_sizes: 64 is not a list of whole numbers, as in 64,64"),
        ("conv_channels", "32,64", "conv_channels: 3 numbers are needed, not 2"),
        ("conv_channels", "()", "conv_channels: 3 numbers are needed, not 0"),
        ("optimizer", "adm", "optimizer: 'adm' is not one of adam, adam_tf, rmsprop, rmsprop_tf (did you mean adam?)"),
        ("kl_coef", "es", "kl_coef: 'es' is neither a number nor ess"),
        ("kl_coef", "-1", "kl_coef: -1 is below 0"),
        ("gama", "1", "unknown setting 'gama' (did you mean gamma?)"),
        ("xyzzy", "1", "unknown setting 'xyzzy'; "),
    ],
)
def test_bad_values_are_named(name, value, message):
    with pytest.raises(UserError) as error:
        make_config(P3OConfig, {name: value})
    assert message in str(error.value)


def test_later_layers_win():
    config = make_config(P3OConfig, {"gamma": 0.5, "num_envs": 3}, {"gamma": 0.7}, {})
    assert (config.gamma, config.num_envs) == (0.7, 3)
    # A bad value is refused even where a later layer would replace it.
    with pytest.raises(UserError):
        make_config(P3OConfig, {"gamma": 2}, {"gamma": 0.5})


@pytest.mark.parametrize("name", CONFIGS)
def test_defaults_pass_their_own_checks_and_survive_json(name):
    default = CONFIGS[name]()
    assert make_config(CONFIGS[name], dataclasses.asdict(default)) == default
    assert make_config(CONFIGS[name], json.loads(json.dumps(dataclasses.asdict(default)))) == default


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_has_a_sentence_of_help(name):
    for field, default, help, choices in describe(CONFIGS[name]):
        assert help.endswith("."), field
        assert "\n" not in help
        assert not choices or default in choices or not isinstance(default, str), field


def test_steps_per_iteration():
    assert make_config(Config, {"num_envs": 2, "num_steps": 64}).steps_per_iteration == 128


NAMES = sorted({field.name for config in CONFIGS.values() for field in dataclasses.fields(config)})
VALUES = st.one_of(
    st.text(max_size=20),
    st.floats().map(str),
    st.integers().map(str),
    st.lists(st.integers(-5, 10**30), max_size=4).map(lambda x: ",".join(map(str, x))),
    st.sampled_from(["ess", "none", "true", "adam", "1e9", "1e309", "-0", "1_0", "(", "[],", ",", "٣", "\n", "0x10"]),
)


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(CONFIGS)), st.one_of(st.sampled_from(NAMES), st.text(max_size=15)), VALUES)
def test_any_assignment_gives_a_config_or_one_line(algorithm, name, value):
    cls = CONFIGS[algorithm]
    config, message = None, ""
    try:
        config = make_config(cls, parse_assignments([f"{name}={value}"], "--set"))
    except UserError as error:
        message = str(error)
    # A config that was accepted is accepted again as it is.
    assert len(message.splitlines()) == 1 or make_config(cls, dataclasses.asdict(config)) == config


def test_assignments():
    assert parse_assignments(["a=1", "b-c=x=y", "a = 2 "], "--set") == {"a": "2", "b_c": "x=y"}
    for word in ("a", "=1", ""):
        with pytest.raises(UserError, match=r"--set: .* is not of the form key=value"):
            parse_assignments([word], "--set")


def test_numbers_and_counts():
    assert parse_number("3e6", "x") == 3e6
    assert parse_number("3_000", "x") == 3000
    assert parse_count("3e6", "--steps") == 3_000_000
    assert parse_count("1e12", "--steps") == 10**12
    for text in ("0", "-1", "1.5", "nan", "1e999", "x", "", "1e13"):
        with pytest.raises(UserError, match="--steps"):
            parse_count(text, "--steps")
