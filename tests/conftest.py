"""Strictness for every test: rank promotion raises (warnings are errors by pyproject.toml)."""

import signal

import jax
import pytest
from browser import CHROMIUM

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for a shell's job in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")


def pytest_collection_modifyitems(config, items):
    if CHROMIUM is None:
        for item in items:
            if item.get_closest_marker("chromium"):
                item.add_marker(pytest.mark.skip(reason="chromium: not installed"))
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


@pytest.fixture(autouse=True, scope="session")
def _no_rank_promotion():
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", "raise")
    yield
    jax.config.update("jax_numpy_rank_promotion", before)
