"""The benchmarks' own arithmetic: what they fit, what they compare, what they write into a page."""

import argparse
import ast
import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from synthetic import write_run

from p3o.algorithms import ALGORITHMS
from p3o.config import make_config
from p3o.presets import preset_settings
from p3o.sweeps.design import read_file

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import atari
import common
import growth
import packed
import peers

import results


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


def test_very_long_lists_of_episodes_are_shortened(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "LONG", 1)
    run = write_run(tmp_path / "out" / "x", "Ant-v4")
    header = "step,env,return,length,seconds\n"
    (run / "episodes.csv").write_text(header + "12,0,-33.49925033,12,0.49\n30,1,1234567.8,9,1.51\n")
    results.pack(tmp_path / "out", tmp_path / "kept")
    (packed,) = (tmp_path / "kept").rglob("episodes.csv.gz")
    assert gzip.decompress(packed.read_bytes()).decode() == header + "12,0,-33.4993,12,0\n30,1,1.23457e+06,9,2\n"


def test_published_runs_are_packed_and_summed_up(tmp_path):
    out, kept = tmp_path / "out", tmp_path / "kept"
    whole = write_run(
        out / "x", "Ant-v4", steps=30_000, episodes=400, command="p3o train Ant-v4 --out /home/me/x --seed 0"
    )
    write_run(out / "y", "p3o/Ant-v2", "ppo", 3, steps=90_000, episodes=400, preset="paper", variant="odd")
    (out / "y" / "episodes.csv").write_text("step,env,return,length,seconds\n100,0,7,5,1\n15000,0,9,5,1\n")
    assert results.pack(out, kept) == 2
    ant = kept / "Ant-v4" / "p3o-default" / "seed-0"
    assert json.loads((ant / "config.json").read_text())["command"] == "p3o train Ant-v4 --seed 0"
    assert gzip.decompress((ant / "episodes.csv.gz").read_bytes()) == (whole / "episodes.csv").read_bytes()
    assert not list(kept.rglob("updates*"))
    results.pack(out, tmp_path / "more", updates=True)
    more = tmp_path / "more" / ant.relative_to(kept)
    assert gzip.decompress((more / "updates.csv.gz").read_bytes()) == (whole / "updates.csv").read_bytes()
    assert results.summarize(kept, (10_000, 30_000)) == 3
    write_run(out / "z", "Ant-v4", steps=30_000)
    with pytest.raises(SystemExit, match="another run"):
        results.pack(out, tmp_path / "other")
    shutil.rmtree(out)
    write_run(out / "x", "Ant-v4", steps=10_000, run_id="another")
    with pytest.raises(SystemExit, match="none is to be dropped"):
        results.pack(out, kept)
    rows = [
        line.split(",") for line in gzip.decompress((ant / "episodes.csv.gz").read_bytes()).decode().splitlines()[1:]
    ]
    lines = (kept / "summary.csv").read_text().splitlines()
    assert lines[0] == "env,algo,preset,variant,seed,steps,score"
    by_then = [float(row[2]) for row in rows if int(row[0]) <= 10_000][-100:]
    assert lines[1].startswith("Ant-v4,p3o,default,,0,10000,")
    assert float(lines[1].rpartition(",")[2]) == pytest.approx(sum(by_then) / len(by_then), abs=0.006)
    assert lines[2].startswith("Ant-v4,p3o,default,,0,30000,")
    assert lines[3] == "p3o/Ant-v2,ppo,paper,odd,3,10000,7.0"  # stopped on the way: no row for what it did not reach


def test_what_goes_on_inside_is_averaged_around_a_step(tmp_path):
    run = write_run(tmp_path / "out" / "x", "Ant-v4", variant="odd")
    lines = ["step,ess,kl,entropy", "40000,0.1,1,1", "50000,0.5,2,", "150000,0.7,4,8", "151000,0.9,9,9"]
    (run / "updates.csv").write_text("\n".join(lines) + "\n")
    assert results.inside(tmp_path / "out", tmp_path, (100_000, 900_000)) == 1  # the run did not get to the second
    header, line = (tmp_path / "inside.csv").read_text().splitlines()
    assert header == "env,algo,preset,variant,seed,steps,ess,kl,entropy,value_loss,grad_norm,ratio_max"
    assert line == "Ant-v4,p3o,default,odd,0,100000,0.6,3,8,,,"


def test_the_table_of_games_has_every_group_at_every_checkpoint(tmp_path):
    lines = [
        "PongNoFrameskip-v4,a2c,paper,,1,1000000,-20",
        "PongNoFrameskip-v4,p3o,paper,,0,1000000,10",
        "PongNoFrameskip-v4,p3o,paper,,1,1000000,11",
        "PongNoFrameskip-v4,p3o,paper,,0,2000000,20",
        "PongNoFrameskip-v4,p3o,paper,lambda-0,0,1000000,-3.25",
    ]
    (tmp_path / "summary.csv").write_text("\n".join([",".join(results.COLUMNS), *lines]) + "\n")
    for seed, last in ((0, 2_400_000), (1, 1_200_000), (2, 900_000)):  # 100 games of 5, and one of -95 before them
        run = write_run(tmp_path / f"seed-{seed}", "PongNoFrameskip-v4", preset="paper", seed=seed, steps=5_000_000)
        games = [f"{last - 1000 + n},0,{5 if n else -95},10,1.0" for n in range(101)]
        (run / "episodes.csv").write_text("\n".join(["step,env,return,length,seconds", *games]) + "\n")
        (run / "updates.csv").write_text(f"step\n{last}\n")
    assert results.games(tmp_path)[0] == "| game | run | seeds | the paper, 28M | 1M | 2M | end of the longest |"
    assert results.games(tmp_path)[2:] == [
        "| PongNoFrameskip-v4 | p3o, paper | 3 | 20.9 | 10.5 (2 of 3) | 20.0 (1 of 3) | 5.0 at 2.40M |",
        "| PongNoFrameskip-v4 | p3o, paper, lambda-0 | 1 | 20.9 | -3.2 | – | – |",
        "| PongNoFrameskip-v4 | a2c, paper | 1 | 20.2 | -20.0 | – | – |",
    ]


def test_the_table_of_ends_has_the_run_that_came_furthest_of_each_column(tmp_path):
    def play(name, score, last, env="PongNoFrameskip-v4", algo="p3o", **options):
        run = write_run(tmp_path / name, env, algo, steps=5_000_000, **{"preset": "paper", **options})
        (run / "episodes.csv").write_text(f"step,env,return,length,seconds\n{last},0,{score},10,1.0\n")
        (run / "updates.csv").write_text(f"step\n{last}\n")

    play("a", 20.25, 2_400_000)
    play("b", 3, 1_200_000, seed=1)
    play("c", 4, 5_000_000, preset="default")
    play("d", 1234, 1_000_000, algo="ppo", variant="odd", env="QbertNoFrameskip-v4")
    header, _, *lines = results.ends(tmp_path, "paper", ["p3o", "ppo:odd"])
    assert header == "| game | p3o | ppo, odd |"
    assert lines == [
        "| PongNoFrameskip-v4 | 20.2 at 2.40M · 20.9 | – · 20.7 |",
        "| QbertNoFrameskip-v4 | – · 27,619 | 1,234 at 1.00M · 21,830 |",
    ]
    assert results.ends(tmp_path, "paper", [])[0] == header  # all that there are
    assert results.ends(tmp_path, "default", [])[2:] == ["| PongNoFrameskip-v4 | 4.0 at 5.00M · 20.9 |"]


def test_the_table_of_ess_has_the_tenths_of_the_longest_run(tmp_path):
    lines_of = (["100000,nan", "200000,0.5", "201000,0.7", "930000,0.6", "1000100,1"], ["990000,0.1"])
    for seed, lines in enumerate(lines_of):
        run = write_run(tmp_path / str(seed), "PongNoFrameskip-v4", preset="paper", seed=seed, steps=1_000_000)
        (run / "episodes.csv").write_text("step,env,return,length,seconds\n1,0,1,1,1\n")
        (run / "updates.csv").write_text("\n".join(["step,ess", *lines]) + "\n")
    longer = write_run(
        tmp_path / "longer", "PongNoFrameskip-v4", preset="paper", variant="odd", settings={"schedule_steps": 5_000_000}
    )
    (longer / "updates.csv").write_text("step,ess\n1200000,0.4\n")
    other = write_run(tmp_path / "default", "PongNoFrameskip-v4", steps=1_000_000)
    (other / "updates.csv").write_text("step,ess\n999999,0.3\n")
    line, odd = results.ess(tmp_path)[2:]
    assert line == "| PongNoFrameskip-v4 | – | 0.50 | 0.70 | – | – | 0.60 | – | – | – | 1.00 | 0.70 |"
    assert odd == "| PongNoFrameskip-v4, odd | – | 0.40 | – | – | – | – | – | – | – | – | 0.40 |"


def test_the_table_of_groups_has_the_variants_of_one_preset_beside_the_paper(tmp_path):
    lines = [
        "Hopper-v4,a2c,paper,,0,3000000,300",
        "Hopper-v4,p3o,paper,,0,3000000,2300",
        "Hopper-v4,p3o,paper,,1,3000000,2500",
        "Hopper-v4,p3o,paper,,1,1000000,9",
        "p3o/Ant-v2,p3o,paper,odd,0,3000000,4000",
        "Hopper-v4,p3o,default,,0,3000000,1",
        "Swimmer-v4,ppo,paper,,0,3000000,1",
    ]
    (tmp_path / "summary.csv").write_text("\n".join([",".join(results.COLUMNS), *lines]) + "\n")
    found = results.groups(tmp_path, "paper", ["Hopper-v4", "p3o/Ant-v2"], 3_000_000)
    assert found[0] == "| at 3M steps | Hopper-v4 | p3o/Ant-v2 |"
    assert found[2:] == [
        "| p3o | 2,400 (2, 2,300 to 2,500) · 2,334 | – · 4,727 |",
        "| p3o, odd | – · 2,334 | 4,000 (1) · 4,727 |",
        "| a2c | 300 (1) · 1,708 | – · 1,811 |",
    ]
    assert results.groups(tmp_path, "default", ["Hopper-v4"], 3_000_000)[2:] == ["| p3o | 1 (1) |"]
    assert (
        results.groups(tmp_path, "paper", [], 3_000_000)[0] == "| at 3M steps | Hopper-v4 | Swimmer-v4 | p3o/Ant-v2 |"
    )


def test_the_table_of_published_runs_says_what_is_passed_and_from_how_many_seeds(tmp_path):
    lines = [f"Ant-v4,p3o,default,,{seed},3000000,{5000 + seed}" for seed in range(5)]
    lines += [
        "Ant-v4,p3o,default,lambda-0,0,3000000,9",
        "Ant-v4,ppo,default,,0,3000000,9",
        "Ant-v4,p3o,paper,,0,3000000,9",
    ]
    lines += ["Swimmer-v4,p3o,default,,0,1000000,60", "Swimmer-v4,p3o,default,,0,3000000,70.4"]
    lines += ["Walker2d-v4,p3o,default,,1,3000000,4700", "InvertedPendulum-v4,p3o,default,,0,3000000,983"]
    (tmp_path / "summary.csv").write_text("\n".join([",".join(results.COLUMNS), *lines]) + "\n")
    rows = {line.split(" | ")[0]: line for line in results.table(tmp_path)}
    ours = "5,002 (5, 5,000 to 5,004) | above the paper | exceeds"
    assert rows["| Ant-v4"] == f"| Ant-v4 | 4,727 | 5,064 | 9 (1) | – | {ours} |"
    assert rows["| Swimmer-v4"] == "| Swimmer-v4 | 117 | 112 | – | 60 (1) | 70 (1) | below, 1 of 5 seeds | no verdict |"
    assert rows["| Walker2d-v4"].endswith("| – | 4,700 (1) | above both, 1 of 5 seeds | no verdict |")
    # above the best published, not the paper
    assert rows["| InvertedPendulum-v4"].endswith("| below, 1 of 5 seeds | no verdict |")
    assert rows["| Humanoid-v4"].endswith("| – | – | – | – |")
    rows = {line.split(" | ")[0]: line for line in results.table(tmp_path, "lambda-0")}
    assert rows["| Ant-v4"] == "| Ant-v4 | 4,727 | 5,064 | – | – | 9 (1) | below, 1 of 5 seeds | no verdict |"


def test_the_designs_of_published_runs_are_what_they_say():
    mujoco = {"a-p3o": 40, "b-ppo": 24, "c-paper": 63, "d-ablations": 60, "e-v5": 48}
    games = {"a-pong-breakout": 2, "b-games": 12, "c-lambda": 1, "d-ess": 2, "e-acer-clip": 2}
    for folder, sizes, kinds in (
        ("mujoco", mujoco, ("vector", "gaussian")),
        ("games", games, ("image", "categorical")),
    ):
        for name, size in sizes.items():
            jobs, _ = read_file(Path(__file__).parents[1] / "benchmarks" / folder / f"{name}.toml")
            assert len(jobs) == size
            for job in jobs:
                make_config(ALGORITHMS[job.algo].config, preset_settings(job.algo, job.preset, *kinds), job.settings)


def test_the_atari_benchmark_covers_what_it_says_and_its_games_fit_the_loop():
    options = argparse.Namespace(env="synthetic", seconds=1.0, tiny=True, algos=list(atari.ALGORITHMS), short=False)
    options.set, options.groups, options.one_thread = [], 0, False
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
    halved, whole, action = atari.Synthetic(8, 36), atari.Synthetic(8, 36), np.arange(8)
    stacks = [whole.step(action).observation.images[0].copy() for _ in range(3)]
    for rows in halved.parts:  # one after the other, as if its thread were far ahead
        for stack in stacks:
            halved.send(action[rows], rows)
            step = halved.receive(rows)
            np.testing.assert_array_equal(step.newest[:, :-1].reshape(4, 36, 36), stack[rows, ..., -1])
            np.testing.assert_array_equal(step.reward, action[rows] * 0.1)
    assert halved.snapshot() == whole.snapshot() == {"time": 3}
    parts = {"emulation": 1.0, "acting": 2.0, "updating": 3.0, "rest": 0.5}
    line = {"speed": 9000.4, "iteration_ms": 28.0, "parts_ms": parts, "device": "gpu"}
    assert atari.table({"p3o": line})[-1] == "| p3o | 9,000 | 28.00 | 1.00 | 2.00 | 3.00 | 0.50 | gpu |"


def test_the_speed_of_packed_runs_is_that_between_their_lines(tmp_path):
    assert packed.last_step(tmp_path / "updates.csv") is None
    (tmp_path / "updates.csv").write_text("step,ess\n10000,0.5\n20000,0.5\n300")  # the last line is being written
    assert packed.last_step(tmp_path / "updates.csv") == 20_000
    assert packed.speed([(5.0, 10_000)]) is None
    assert packed.speed([(5.0, 10_000), (7.0, 20_000), (10.0, 35_000)]) == 5_000
    before, after = [100, 0, 100, 500, 0, 0, 0, 0], [400, 50, 150, 900, 100, 0, 0, 100]
    assert packed.shares(before, after) == {"idle": 0.5, "stolen": 0.1, "busy_seconds": 4.0}


def test_every_benchmark_finds_what_it_imports_from_the_library():
    """In a process of its own: some set up JAX. What others made is not needed for that."""
    pytest.importorskip("ale_py", reason="atari: ale-py is not installed")
    folder = Path(__file__).parents[1] / "benchmarks"
    names = sorted(path.stem for path in folder.glob("*.py") if not path.stem.startswith("torch_"))
    assert len(names) > 15
    words = f"import sys, types; sys.path.insert(0, {str(folder)!r}); sys.modules['cv2'] = types.ModuleType('cv2')"
    command = [sys.executable, "-c", f"{words}; import {', '.join(names)}"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_what_a_benchmark_imports_from_the_library_only_when_it_runs_is_there_too():
    folder = Path(__file__).parents[1] / "benchmarks"
    missing, seen = [], 0
    for path in folder.glob("*.py"):
        inner = (
            node
            for function in ast.walk(ast.parse(path.read_text()))
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "p3o"
        )
        for line in map(ast.unparse, inner):
            seen += 1
            try:
                exec(line, {})
            except ImportError as error:
                missing.append(f"{path.name}: {error}")
    assert seen > 10
    assert missing == []
