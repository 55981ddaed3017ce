"""The benchmarks' own arithmetic: what they fit, what they compare, what they write into a page."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import atari
import common
import growth
import peers


def test_a_section_is_replaced_between_its_markers_and_nothing_else(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a begin -->\nold\n<!-- a end -->\nafter\n<!-- b begin --><!-- b end -->\n")
    common.write_section(page, "a", ["new", "lines"])
    expected = "before\n<!-- a begin -->\nnew\nlines\n<!-- a end -->\nafter\n<!-- b begin --><!-- b end -->\n"
    assert page.read_text() == expected
    common.write_section(page, "a", ["new", "lines"])
    assert page.read_text() == expected
    with pytest.raises(SystemExit, match="c begin"):
        common.write_section(page, "c", ["new"])
    assert page.read_text() == expected


def test_the_page_has_the_markers_that_the_benchmarks_fill():
    text = (Path(__file__).parents[1] / "docs" / "performance.md").read_text()
    for name in ("peers", "growth"):
        assert text.count(f"<!-- {name} begin -->") == 1
        assert text.count(f"<!-- {name} end -->") == 1


def test_exponents_are_those_of_the_last_three_points():
    # flat at first, then 3 x²
    values = (1, 2, 4, 8, 16)
    points = [{"value": x, "seconds": 100.0 if x < 4 else 3.0 * x**2} for x in values]
    assert growth.exponent(points, "seconds") == pytest.approx(2.0)
    linear = growth.SERIES["rollout"]
    assert not growth.is_fast_enough(linear, points)
    assert growth.is_fast_enough(growth.SERIES["width"], points)
    assert growth.is_fast_enough(linear, [p | {"seconds": 5.0 + p["value"]} for p in points])


def test_ratios_are_of_medians_and_bars_are_held_against_them():
    parts = {"simulator": 6.0, "acting": 1.0, "normalising": 1.0, "copying": 1.0, "updating": 1.0, "logging": 0.0}
    results = {one.name: [{"speed": 100.0}] * 3 for one in peers.contestants("HalfCheetah-v5")}
    for one in peers.contestants("HalfCheetah-v5"):
        if one.library == "p3o":
            results[one.name] = [{"speed": speed, "parts": parts, "product": None} for speed in (500.0, 700.0, 5000.0)]
    del results["SBX PPO 1×2048, 10 epochs"]  # not installed
    lines = "\n".join(peers.tables("HalfCheetah-v5", results))
    assert "| P3O 2×64 / SB3 PPO 1×2048, 10 epochs | **7.0×** | 5.0 to 50.0 | ≥ 6: met |" in lines
    assert "| PPO 1×2048, 10 epochs / SB3 PPO 1×2048, 10 epochs | **7.0×** | 5.0 to 50.0 | ≥ 8: not met |" in lines
    assert "SBX" not in lines
    assert "| A2C 8×32 | 60.0% | 10.0% | 10.0% | 10.0% | 10.0% | 0.0% | ≥ 65%: not met |" in lines


def test_contestants_of_a_ratio_have_the_same_shape():
    for ratios in peers.RATIOS.values():
        for ours, theirs, _ in ratios:
            if ours.algo == theirs.algo:
                assert ours[2:] == theirs[2:]
                assert peers.settings_of(ours)["num_envs"] == theirs.num_envs


def test_the_atari_benchmark_covers_what_it_says_and_its_games_fit_the_loop():
    options = argparse.Namespace(env="synthetic", seconds=1.0, tiny=True, algos=list(atari.ALGORITHMS), short=False)
    jobs = atari.plan(options)
    assert [job["name"] for job in jobs[:4]] == list(atari.ALGORITHMS)
    assert {"tf32", "bfloat16"} <= {job["settings"].get("precision") for job in jobs}
    assert any(job["settings"].get("replay_device") == "host" for job in jobs)
    for job in jobs:
        trainer = atari.set_up(job).trainer
        assert trainer.specs.observation.frame_stack == 4
        assert (trainer.memory is not None) == (job["settings"].get("replay_device") == "host")
    env = atari.Synthetic(3, 36)
    first = env.reset().images[0].copy()
    second = env.step(np.zeros(3)).observation.images[0]
    np.testing.assert_array_equal(second[..., :-1], first[..., 1:])
    parts = {"emulation": 1.0, "acting": 2.0, "updating": 3.0, "rest": 0.5}
    line = {"speed": 9000.4, "iteration_ms": 28.0, "parts_ms": parts, "device": "gpu"}
    assert atari.table({"p3o": line})[-1] == "| p3o | 9,000 | 28.00 | 1.00 | 2.00 | 3.00 | 0.50 | gpu |"
