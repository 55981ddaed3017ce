"""The report of several runs: what is found, what is computed, what is said, and the files that come of it."""

import csv
import dataclasses
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import call, complaint
from synthetic import write_run, write_sweep
from test_report import Checker

from p3o import statistics
from p3o.algorithms import ALGORITHMS
from p3o.config import make_config
from p3o.errors import UserError
from p3o.experiments import reference
from p3o.presets import preset_settings
from p3o.report import departures, write_figures, write_markdown, write_report
from p3o.report.axes import log_axis
from p3o.report.cautions import cautions
from p3o.report.chapters import find_book
from p3o.report.charts import band_of, colour_of, curve_of, dash_of, learning_charts, resample
from p3o.report.cost import run_table
from p3o.report.files import file_name
from p3o.report.find import Group, find_study, score, window_at
from p3o.report.results import MIN_MAX, Results, shared_tasks
from p3o.report.tables import all_tables, paper_table
from p3o.report.words import summary, title
from p3o.runs import load_run


def returns_of(folder: Path) -> list[float]:
    return [float(line.split(",")[2]) for line in (folder / "episodes.csv").read_text().splitlines()[1:]]


def last_hundred(folder: Path) -> float:
    return float(np.mean(returns_of(folder)[-100:]))


def table(results: Results, key: str):
    return next(t for t in all_tables(results) if t.key == key)


def pack(folder: Path) -> None:
    """As results/ has it: episodes compressed, no updates."""
    file = folder / "episodes.csv"
    (folder / "episodes.csv.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
    file.unlink()
    (folder / "updates.csv").unlink()


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("sweeps") / "sweep"
    return write_sweep(root, ["CartPole-v1", "Acrobot-v1"], ["p3o", "ppo", "a2c"], 3)


def test_runs_are_found_and_grouped_by_task_algorithm_preset_and_variant(tmp_path, sweep):
    write_run(tmp_path / "one", variant="lambda-0")
    study = find_study([sweep, tmp_path / "one"])
    assert study.tasks == ["Acrobot-v1", "CartPole-v1"]
    assert list(study.labels().values()) == ["P3O", "P3O lambda-0", "PPO", "A2C"]
    assert [len(cell) for cell in study.cells.values()] == [3, 3, 3, 3, 1, 3, 3]
    assert [run.config["seed"] for run in study.cells["CartPole-v1", Group("ppo", "default", "")]] == [0, 1, 2]
    write_run(tmp_path / "two", preset="paper")
    labels = find_study([sweep, tmp_path / "two"]).labels().values()
    assert list(labels) == ["P3O default", "P3O paper", "PPO default", "A2C default"]


def test_the_same_run_counts_once_and_two_experiments_are_kept_apart(tmp_path, sweep):
    assert len(find_study([sweep, sweep / "CartPole-v1", sweep]).runs) == 18
    write_run(tmp_path / "again" / "seed-0", run_id="another")
    study = find_study([sweep, tmp_path / "again"])
    assert list(study.labels().values()) == ["P3O (again)", "P3O (sweep)", "PPO", "A2C"]
    packed = write_run(tmp_path / "packed")
    pack(packed)
    copies = [packed, sweep / "CartPole-v1" / "p3o-default" / "seed-0"]
    for study in (find_study(copies), find_study(copies[::-1])):  # one run, by its run_id
        assert len(study.runs) == 1
        assert study.runs[0].updates["step"].size == 10  # the fuller copy
        assert study.num_repeated == 1


def test_compact_runs_have_the_same_scores(tmp_path, sweep):
    for path in sorted(sweep.rglob("config.json")):
        folder = tmp_path / "compact" / path.parent.relative_to(sweep)
        folder.mkdir(parents=True)
        for file in path.parent.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        pack(folder)
    ours, theirs = (Results(find_study(root)) for root in (tmp_path / "compact", sweep))
    assert table(ours, "scores").rows == table(theirs, "scores").rows
    page = write_report(tmp_path / "compact").read_text()
    assert "Learning curves" in page
    assert "Inside P3O" not in page


def test_steps_and_returns_alone_are_runs_too(tmp_path):
    for name, level in (("sb3-ppo", 100), ("p3o-ppo", 50)):
        folder = tmp_path / "results" / "CartPole-v1" / name
        folder.mkdir(parents=True)
        for seed in range(2):
            last = 99_900 + seed
            lines = "".join(f"{int(step)},{level}\n" for step in np.linspace(10, last, 200))
            (folder / f"seed-{seed}.csv.gz").write_bytes(gzip.compress(f"step,return\n{lines}".encode()))
    results = Results(find_study(tmp_path / "results"))
    assert results.study.common_steps("CartPole-v1") == 100_000
    row = table(results, "scores").rows[0]
    assert [cell.text for cell in row[2:]] == ["50.0", "100.0"]
    assert "wall time</button>" not in write_report(tmp_path / "results").read_text()
    (folder / "seed-1.csv.gz").write_bytes(gzip.compress(b"step,return\n5,1\n3,1\n"))
    with pytest.raises(UserError, match=r"seed-1\.csv\.gz: damaged \(steps must not decrease\)"):
        find_study(tmp_path / "results")


def test_the_score_at_a_step_is_the_mean_of_the_last_hundred_episodes_before_it(tmp_path):
    folder = write_run(tmp_path / "run", episodes=400, steps=10_000)
    run, returns = load_run(folder), np.array(returns_of(folder))
    steps = run.episodes["step"]
    assert score(run, 10_000) == pytest.approx(returns[-100:].mean())
    there = returns[steps <= 5000]
    assert score(run, 5000) == pytest.approx(there[-100:].mean())
    assert np.isnan(score(run, 20_000))
    curve = curve_of(run, "steps", np.array([5000.0, 10_000.0, 20_000.0]))
    np.testing.assert_allclose(curve, [there[-100:].mean(), returns[-100:].mean(), np.nan])
    early = curve_of(run, "time", np.array([5000 / 4000]))  # 4,000 steps a second; times are rounded to 0.01 s
    assert early[0] == pytest.approx(there[-100:].mean(), rel=0.02)


def test_episodes_that_ended_past_the_total_are_in_no_score(tmp_path):
    """A run ends with the iteration that gets to its total, and so a little after it."""
    folder = write_run(tmp_path / "runs" / "0", episodes=120)
    before = score(load_run(folder), 10_000)
    with (folder / "episodes.csv").open("a") as file:
        file.writelines(f"{10_000 + i},0,1e6,10,3\n" for i in range(1, 40))
    with (folder / "updates.csv").open("a") as file:
        file.write("10050" + 14 * ",1" + "\n")
    run = load_run(folder)
    assert run.last_step == 10_050
    assert score(run, 10_000) == before
    assert window_at(run, 10_000) == 100
    late = write_run(tmp_path / "runs" / "1", seed=1)
    (late / "episodes.csv").write_text("step,env,return,length,seconds\n10001,0,5,9,3\n")
    assert np.isnan(score(load_run(late), 10_000))
    assert load_run(late).is_finished
    results = Results(find_study(tmp_path / "runs"))
    assert results.final["CartPole-v1"][Group("p3o", "default", "")].tolist() == [before]
    said = "1 of 2 runs has no episode that had ended where they are compared, so no score: P3O on CartPole-v1 seed 1."
    assert said in cautions(results)


def test_the_band_is_one_standard_deviation_over_seeds(sweep):
    chart = next(c for c in learning_charts(find_study(sweep)) if c.title == "CartPole-v1")
    p3o = chart.series[0]
    seeds = np.stack([by["steps"] for _, by in p3o.seeds])
    assert seeds.shape == (3, 200)
    band = p3o.on["steps"]
    np.testing.assert_allclose(band.mean[-1], seeds[:, -1].mean())
    np.testing.assert_allclose(band.high[-1] - band.mean[-1], seeds[:, -1].std(ddof=1))
    ends = [last_hundred(sweep / "CartPole-v1" / "p3o-default" / f"seed-{i}") for i in range(3)]
    np.testing.assert_allclose(band.mean[-1], np.mean(ends))


def test_a_mean_begins_with_the_last_seed_and_ends_when_most_have_ended():
    nan = np.nan
    band = band_of(np.array([[nan, 1, 1, 1, 1], [2, 3, 3, 3, nan], [3, 5, 5, nan, nan]]))
    np.testing.assert_allclose(band.mean, [nan, 3, 3, 2, nan])


def test_over_wall_time_a_run_that_has_ended_keeps_its_score(tmp_path):
    for seed in range(2):
        folder = write_run(tmp_path / "runs" / f"{seed}", seed=seed)
        if seed:  # twice as slow
            head, *lines = (folder / "episodes.csv").read_text().splitlines()
            slow = [",".join([*line.split(",")[:4], str(2 * float(line.split(",")[4]))]) for line in lines]
            (folder / "episodes.csv").write_text("\n".join([head, *slow, ""]))
    (chart,) = learning_charts(find_study(tmp_path / "runs"))
    (series,) = chart.series
    ends = [last_hundred(tmp_path / "runs" / f"{seed}") for seed in range(2)]
    assert series.on["time"].mean[-1] == pytest.approx(np.mean(ends))
    fast, slow = (by["time"] for _, by in series.seeds)
    assert np.isnan(fast[-1])  # its own line ends with it
    assert slow[-1] == pytest.approx(ends[1])


def test_updates_are_averaged_within_grid_cells():
    grid = np.array([10.0, 20, 30, 40])
    values = resample(np.array([5.0, 10, 15, 35]), np.array([1.0, 3, 7, 9]), grid)
    np.testing.assert_allclose(values, [2, 7, 8, 9])  # the third cell is empty: half way between its neighbours
    np.testing.assert_allclose(resample(np.array([15.0]), np.array([7.0]), grid), [np.nan, 7, np.nan, np.nan])


def test_tables_say_what_the_csv_files_say(sweep):
    results = Results(find_study(sweep))
    scores = table(results, "scores")
    assert scores.head == ["environment", "steps", "P3O", "PPO", "A2C"]
    for row in scores.rows:
        for algo, cell in zip(("p3o", "ppo", "a2c"), row[2:], strict=True):
            folders = sorted((sweep / row[0].text / f"{algo}-default").iterdir())
            each = [last_hundred(folder) for folder in folders]
            assert cell.value == pytest.approx(np.mean(each))
            assert cell.note == f"{min(each):,.1f} to {max(each):,.1f}"
            assert cell.mark == ("best" if algo == "p3o" else "")  # levels are 300, 200 and 100
    runs = run_table(results)
    assert len(runs.rows) == 18
    first = sweep / "Acrobot-v1" / "p3o-default" / "seed-0"
    assert runs.rows[0][5].value == pytest.approx(last_hundred(first))
    assert runs.rows[0][4].value == 150
    cost = table(results, "cost")
    seconds = [float((d / "episodes.csv").read_text().splitlines()[-1].split(",")[4]) for d in first.parent.iterdir()]
    assert cost.rows[0][6].value == pytest.approx(sum(seconds))


def test_only_what_differs_is_in_the_table_of_differences(tmp_path):
    write_run(tmp_path / "a", settings={"gamma": 0.9, "rate": 1, "replay": 5})
    write_run(tmp_path / "b", algo="ppo", settings={"gamma": 0.9, "rate": 2, "clip": 0.2})
    results = Results(find_study(tmp_path))
    assert [[cell.text for cell in row] for row in table(results, "differences").rows] == [["rate", "1", "2"]]
    assert [row[0].text for row in table(results, "partial").rows] == ["replay", "clip"]


def test_words_name_the_winner_and_how_sure_it_is(tmp_path, sweep):
    said = " ".join(summary(Results(find_study(sweep))))
    assert "18 runs of 10,000 environment steps: three algorithms on two environments" in said
    assert "not finished" not in said
    assert "P3O has the highest score on 2 of 2 environments; PPO and A2C on none." in said
    assert "A run of P3O beats a run of PPO with probability 1.00 and of A2C with 1.00." in said
    assert "Three seeds are too few for a verdict, which takes 5, and for intervals that are more than rough." in said
    assert "[" not in said  # no interval at all
    assert "95 % interval" not in said
    assert "P3O's effective sample size settled between" in said
    five = write_sweep(tmp_path / "five", ["CartPole-v1"], ["p3o", "ppo"], 5, {"p3o": 100.0, "ppo": 300.0})
    results = Results(find_study(five))
    said = " ".join(summary(results))
    assert "PPO has the highest score on CartPole-v1; it stays highest in 100 % of resampled sets of seeds" in said
    assert table(results, "improvement").rows[0][3].text == "worse"
    assert results.overall is None  # one task
    assert "P3O beats a run of PPO with probability 0.00 [0.00, 0.00]" in said
    four = write_sweep(tmp_path / "four", ["CartPole-v1"], ["p3o", "ppo"], 4, {"p3o": 100.0, "ppo": 300.0})
    said = " ".join(summary(Results(find_study(four))))
    assert "PPO has the highest score on CartPole-v1. Scores: PPO" in said  # too few to resample


def test_words_count_the_runs_that_are_on_their_way(tmp_path):
    write_sweep(tmp_path, ["CartPole-v1"], ["p3o"], 3)
    for place in list(tmp_path.rglob("config.json"))[:2]:
        config = json.loads(place.read_text())
        place.write_text(json.dumps(config | {"steps": 20_000}))
    said = " ".join(summary(Results(find_study(tmp_path))))
    assert "Three runs of 10k to 20k environment steps (2 not finished): one environment" in said


def test_wins_are_counted_with_an_interval(sweep):
    rows = table(Results(find_study(sweep)), "wins").rows
    assert [[cell.text for cell in row] for row in rows] == [
        ["P3O", "2", "[2, 2]", "2", "1.00"],
        ["PPO", "0", "[0, 0]", "2", "0.00"],
        ["A2C", "0", "[0, 0]", "2", "0.00"],
    ]


@pytest.mark.parametrize("slow", ["p3o", "a2c"])
def test_nobody_wins_where_a_run_on_its_way_is_higher_already(slow, tmp_path):
    root = write_sweep(tmp_path / "s", ["CartPole-v1", "Acrobot-v1"], ["p3o", "ppo", "a2c"], 1)
    short = next(path for path in root.rglob("episodes.csv") if "Acrobot" in str(path) and slow in str(path))
    lines = short.read_text().splitlines(keepends=True)
    short.write_text("".join(lines[: len(lines) * 9 // 10]))
    updates = short.with_name("updates.csv")
    lines = updates.read_text().splitlines(keepends=True)
    updates.write_text("".join(lines[: len(lines) * 9 // 10]))
    results = Results(find_study(root))
    assert {task: len(row) for task, row in results.final.items()} == {"CartPole-v1": 3, "Acrobot-v1": 2}
    is_higher = slow == "p3o"
    assert list(results.wins.p_win) == (["CartPole-v1"] if is_higher else ["Acrobot-v1", "CartPole-v1"])
    said = "P3O has the highest score on " + ("CartPole-v1." if is_higher else "2 of 2 environments;")
    assert said in " ".join(summary(results))
    rows = {row[0].text: row[2:] for row in table(results, "scores").rows}
    marks = {task: [cell.mark for cell in cells] for task, cells in rows.items()}
    assert marks == {"CartPole-v1": ["best", "", ""], "Acrobot-v1": ["" if is_higher else "best", "", ""]}


def test_lines_of_many_groups_differ_in_colour_or_dashes():
    assert len({(colour_of(i), dash_of(i)) for i in range(32)}) == 32


def test_one_seed_each_has_no_interval(tmp_path):
    root = write_sweep(tmp_path / "one", ["HalfCheetah-v4", "Hopper-v4"], ["p3o", "ppo"], 1)
    page = write_report(root).read_text()
    Checker().check(page)
    overall = Results(find_study(root)).overall
    assert overall
    assert all(np.isnan(a.iqm.low) for a in overall.aggregates.values())
    assert "nan" not in re.sub(r"<script.*", "", page, flags=re.DOTALL)
    write_figures(root, tmp_path / "figures")


def test_atari_is_normalised_by_human_play(tmp_path):
    root = write_sweep(tmp_path / "atari", ["PongNoFrameskip-v4"], ["p3o", "ppo"], 2, {"p3o": 20.0, "ppo": 10.0})
    for seed in range(2):
        for algo in ("p3o", "ppo"):
            write_run(root / "ALE-Breakout-v5" / algo / f"seed-{seed}", "ALE/Breakout-v5", algo, seed)
    overall = Results(find_study(root)).overall
    assert overall
    assert overall.how == "random play is 0, human play is 1"
    assert overall.tasks == ["ALE/Breakout-v5", "PongNoFrameskip-v4"]
    write_markdown(root, tmp_path / "page.md")
    assert (tmp_path / "page" / "curve-ALE-Breakout-v5.svg").exists()


def test_aggregates_use_the_scale_of_the_tasks(tmp_path, sweep):
    overall = Results(find_study(sweep)).overall
    assert overall
    assert overall.how == MIN_MAX
    assert max(v.max() for row in overall.scores.values() for v in row.values()) == 1.0
    root = write_sweep(tmp_path / "mujoco", ["HalfCheetah-v4", "Hopper-v5"], ["p3o", "ppo"], 2)
    results = Results(find_study(root))
    overall = results.overall
    assert overall
    assert overall.how == "random play is 0, the paper's P3O at 3M steps is 1"
    group = Group("p3o", "default", "")
    norm = reference.norm("HalfCheetah-v4")
    assert norm
    ours = np.array([last_hundred(root / "HalfCheetah-v4" / "p3o-default" / f"seed-{i}") for i in range(2)])
    np.testing.assert_allclose(overall.scores[group]["HalfCheetah-v4"], (ours - norm.low) / (norm.high - norm.low))
    assert overall.aggregates[group] == statistics.aggregates(overall.scores[group])


def test_sample_efficiency_is_the_iqm_along_training(tmp_path, sweep):
    assert Results(find_study(sweep)).efficiency is None  # no published scale
    tasks = ["HalfCheetah-v4", "Hopper-v4", "CartPole-v1"]
    root = write_sweep(tmp_path / "mujoco", tasks, ["p3o", "ppo"], 3, {"p3o": 900.0, "ppo": 300.0}, episodes=300)
    results = Results(find_study(root))
    found = results.efficiency
    assert found
    assert found.tasks == ("HalfCheetah-v4", "Hopper-v4")
    assert (found.shares[0], found.shares[12], found.shares[-1]) == (4, 52, 100)
    group = Group("p3o", "default", "")
    for index, step in ((12, 5200), (-1, 10_000)):
        normal = {}
        for task in found.tasks:
            norm = reference.norm(task)
            assert norm
            each = np.array([score(run, step) for run in results.study.cells[task, group]])
            normal[task] = (each - norm.low) / (norm.high - norm.low)
        value, low, high = (part[index] for part in found.curves[group])
        assert value == pytest.approx(np.sort(np.concatenate(list(normal.values())))[1:5].mean())  # of six runs
        assert (value, low, high) == statistics.iqm_interval(normal)
        assert low < value < high
    folder = write_figures(root, tmp_path / "figures")
    with (folder / "efficiency.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["algorithm"] == "P3O"][-1]
    assert (float(last["share"]), float(last["mean"])) == (100, pytest.approx(value))
    page = write_report(root).read_text()
    Checker().check(page)
    assert ">Sample efficiency</h3>" in page
    assert "page/efficiency.svg" in write_markdown(root, tmp_path / "page.md").read_text()


def test_groups_without_two_common_tasks_are_left_out():
    a, b, c = (Group(name, "", "") for name in "abc")
    assert shared_tasks({a: ["x", "y", "z"], b: ["y", "z"], c: ["z"]}) == ([a, b], ["y", "z"])
    assert shared_tasks({a: ["x", "y"], b: ["y"]}) == ([a], ["x", "y"])
    assert shared_tasks({a: ["x"]}) == ([], [])


def test_verdicts_stand_beside_the_papers_numbers(tmp_path):
    printed = reference.paper_score("Hopper-v4", "p3o")
    assert printed
    shape = {"episodes": 300, "steps": 3_000_000}
    write_sweep(tmp_path / "same", ["Hopper-v4"], ["p3o"], 5, {"p3o": 2 * printed}, **shape)
    (row,) = paper_table(Results(find_study(tmp_path / "same"))).rows
    assert row[6].value == printed
    assert row[8].text == "exceeds"
    assert row[7].value == pytest.approx(row[5].value - printed)
    write_sweep(tmp_path / "few", ["Hopper-v4"], ["p3o"], 2, {"p3o": 2 * printed}, **shape)
    assert paper_table(Results(find_study(tmp_path / "few"))).rows[0][8].text == "no verdict"
    levels = {"p3o": 0.2 * printed, "ppo": 0.1 * printed}
    write_sweep(tmp_path / "low", ["Hopper-v4"], ["p3o", "ppo"], 5, levels, **shape)
    ours, theirs = paper_table(Results(find_study(tmp_path / "low"))).rows
    assert (ours[8].text, theirs[8].text) == ("ordering reproduced", "ordering reproduced")
    levels = {"p3o": 0.1 * printed, "ppo": 0.2 * printed}
    write_sweep(tmp_path / "wrong", ["Hopper-v4"], ["p3o", "ppo"], 5, levels, **shape)
    ours, theirs = paper_table(Results(find_study(tmp_path / "wrong"))).rows
    assert (ours[8].text, theirs[8].text) == ("not reproduced", "not reproduced")
    write_sweep(tmp_path / "short", ["Hopper-v4"], ["p3o"], 5, steps=1_000_000)
    (row,) = paper_table(Results(find_study(tmp_path / "short"))).rows
    assert row[8].text == "not comparable"
    assert row[8].note == "0.333 of the paper's steps"
    write_sweep(tmp_path / "tiny", ["Hopper-v4"], ["p3o"], 5, steps=1000)
    assert paper_table(Results(find_study(tmp_path / "tiny"))).rows[0][8].note == "0.000333 of the paper's steps"


def test_a_departure_from_the_preset_gets_no_verdict_and_is_named(tmp_path):
    printed = reference.paper_score("Hopper-v4", "p3o")
    assert printed
    settings = {"num_envs": 2, "gamma": 0.5, "learning_rate": 0.0003, "checkpoint_every": 7, "hidden_sizes": [100, 100]}
    settings |= {"grad_clip": "separate", "normalizer_pace": "learning_rate"}
    env = {"id": "Ant-v4", "kwargs": {"healthy_reward": 0.0}}
    for seed in range(5):
        shape = {"seed": seed, "episodes": 300, "steps": 3_000_000}
        write_run(tmp_path / "a" / f"{seed}", "Hopper-v4", level=2 * printed, settings=settings, **shape)
        write_run(tmp_path / "b" / f"{seed}", "Hopper-v4", "ppo", level=0.1 * printed, **shape)
        write_run(tmp_path / "c" / f"{seed}", "Ant-v4", env=env, **shape)
        write_run(tmp_path / "d" / f"{seed}", "Walker2d-v4", preset="paper", schedule_start=1_000_000, **shape)
        write_run(tmp_path / "e" / f"{seed}", "Swimmer-v4", preset="paper", level=1e4, **shape)
    results = Results(find_study(tmp_path))
    rows = {(row[0].text, row[1].text): row for row in paper_table(results).rows}
    hopper = rows["Hopper-v4", "P3O default"]
    assert [hopper[i].text for i in (2, 7, 8)] == ["default", "–", "departure"]
    assert hopper[8].note == "gamma 0.5, not 0.99"
    assert hopper[8].mark == ""
    assert rows["Hopper-v4", "PPO default"][8].text == "not reproduced"  # a departing P3O proves no ordering
    assert rows["Ant-v4", "P3O default"][8].note == "environment's healthy_reward 0"
    assert rows["Walker2d-v4", "P3O paper"][8].note == "schedules begun anew at step 1M"
    assert rows["Swimmer-v4", "P3O paper"][8].text == "exceeds"
    said = " ".join(summary(results))
    assert "with our preset default, not the paper's settings, on -v4: 2 without a verdict" in said
    assert "with the paper's settings on -v4: 1 exceeded and 1 without a verdict" in said
    assert "Departures from the preset: P3O default on Ant-v4 (environment's healthy_reward 0); P3O" in said


def atari_run(folder, env_id, preset="default", seed=0, env=None, **changed):
    """A run on a game with every setting that its preset has there, but for those changed."""
    layer = preset_settings("p3o", preset, "image", "categorical", True)
    settings = dataclasses.asdict(make_config(ALGORITHMS["p3o"].config, layer | changed))
    shape = {"steps": 28_000_000, "episodes": 300, "preset": preset, "env": {"id": env_id, "kwargs": env or {}}}
    return write_run(folder, env_id, seed=seed, settings=json.loads(json.dumps(settings)), **shape)


@pytest.mark.parametrize(
    ("preset", "env_id", "options", "told"),
    [
        ("default", "PongNoFrameskip-v4", {}, ()),
        ("paper", "PongNoFrameskip-v4", {}, ()),
        ("paper", "SpaceInvadersNoFrameskip-v4", {}, ()),
        ("paper", "PongNoFrameskip-v4", {"frameskip": 3}, ("environment's frameskip 3",)),
        ("paper", "PongNoFrameskip-v4", {"frameskip": 4}, ()),  # which it is anyway
        ("paper", "PongNoFrameskip-v0", {}, ("environment's repeat_action_probability 0.25",)),
        (
            "paper",
            "ALE/Pong-v5",
            {},
            (
                "environment's repeat_action_probability 0.25",
                "environment's max_num_frames_per_episode 108000",
            ),
        ),
        ("paper", "ALE/Pong-v5", {"repeat_action_probability": 0.0, "max_num_frames_per_episode": 400_000}, ()),
    ],
)
def test_departures_of_games_are_those_from_the_papers_games(tmp_path, preset, env_id, options, told):
    atari_run(tmp_path / "a", env_id, preset, env=options)
    study = find_study(tmp_path)
    assert [departures.departures(runs, group) for (_, group), runs in study.cells.items()] == [told]


def test_departures_are_those_of_the_runs_that_have_the_score(tmp_path):
    """One that departs but stopped on the way says nothing about the score of the others."""
    atari_run(tmp_path / "a", "PongNoFrameskip-v4", "paper")
    stopped = atari_run(tmp_path / "b", "PongNoFrameskip-v4", "paper", 1, precision="tf32")
    for name in ("episodes.csv", "updates.csv"):
        lines = (stopped / name).read_text().splitlines(True)
        (stopped / name).write_text("".join(lines[: len(lines) // 2]))
    row = paper_table(Results(find_study(tmp_path))).rows[0]
    assert "tf32" not in row[8].note
    atari_run(tmp_path / "c", "PongNoFrameskip-v4", "paper", 2, precision="tf32")
    row = paper_table(Results(find_study(tmp_path))).rows[0]
    assert row[8].note == "precision tf32, not float32"


def test_a_run_that_was_given_another_total_on_the_way_departs(tmp_path):
    told = {"at_step": 1_000_000, "steps": 3_000_000, "planned": 1_000_000}
    write_run(tmp_path / "a", "Hopper-v4", steps=3_000_000, resumes=[told])
    write_run(tmp_path / "b", "Ant-v4", steps=3_000_000, resumes=[{"at_step": 5, "steps": 3_000_000}])
    study = find_study(tmp_path)
    found = {task: departures.departures(runs, group) for (task, group), runs in study.cells.items()}
    assert found == {"Hopper-v4": ("3M steps, not the 1M it set out for",), "Ant-v4": ()}


def test_resumes_that_are_damaged_are_passed_over(tmp_path):
    odd = [5, {"at_step": [1], "steps": 3, "planned": 2}, {"at_step": 1, "planned": 2}, {"at_step": 7, "steps": 9}]
    run = write_run(tmp_path / "a", "Hopper-v4", resumes=odd)
    assert [tuple(one) for one in load_run(run).resumes] == [(7, 9, None)]
    assert call("report", tmp_path).code == 0
    assert call("report", run).code == 0


def test_a_total_that_was_set_there_and_back_at_one_step_is_no_departure(tmp_path):
    there, back = ({"at_step": 9, "steps": to, "planned": was} for was, to in ((3_000_000, 10**6), (10**6, 3_000_000)))
    write_run(tmp_path / "a", "Hopper-v4", steps=3_000_000, resumes=[there, back])
    ((_, group), runs), *_ = find_study(tmp_path).cells.items()
    assert departures.departures(runs, group) == ()


def test_resumes_that_are_no_list_are_one_line(tmp_path):
    write_run(tmp_path / "a", "Hopper-v4", resumes=5)
    assert "resumes is 5, should be a list" in complaint(call("report", tmp_path))


def test_runs_behind_links_are_found_once(tmp_path):
    write_run(tmp_path / "elsewhere" / "seed-1", seed=1)
    write_run(tmp_path / "here" / "seed-0", seed=0)
    (tmp_path / "here" / "seed-1").symlink_to(tmp_path / "elsewhere" / "seed-1")
    (tmp_path / "here" / "round").symlink_to(tmp_path / "here")
    for root in (tmp_path / "here", tmp_path):
        study = find_study(root)
        assert (len(study.runs), study.num_repeated) == (2, 0)


def test_links_are_not_followed_in_circles_or_out_of_the_folder_again(tmp_path, monkeypatch):
    write_run(tmp_path / "here" / "seed-0", seed=0)
    write_run(tmp_path / "elsewhere" / "seed-1", seed=1)
    write_run(tmp_path / "not-asked" / "seed-2", seed=2)
    (tmp_path / "here" / "up").symlink_to(tmp_path)
    (tmp_path / "here" / "round").symlink_to(tmp_path / "here" / "seed-0")
    (tmp_path / "here" / "out").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "elsewhere")
    seen = []
    walk = os.walk

    def watched(*arguments, **options):
        for place in walk(*arguments, **options):
            seen.append(os.path.realpath(place[0]))
            yield place

    monkeypatch.setattr(os, "walk", watched)
    study = find_study(tmp_path / "here")
    assert sorted(run.config["seed"] for run in study.runs) == [0, 1]
    places = ["here", "here/seed-0", "elsewhere", "elsewhere/seed-1"]
    assert set(seen) == {os.path.realpath(tmp_path / place) for place in places}
    assert len(seen) <= 6  # a folder behind a second link is not gone through


def test_a_sweep_behind_a_link_is_told_of_once(tmp_path):
    (tmp_path / "sweep").mkdir()
    entry = {"folder": "x", "state": "failed", "algo": "p3o", "env": "A-v0", "seed": 0}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps({"runs": [entry]}))
    write_run(tmp_path / "sweep" / "y")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(tmp_path / "sweep")
    study = find_study([tmp_path / "sweep", tmp_path / "other"])
    assert study.absent == ("p3o on A-v0 seed 0",)
    assert len(study.failed) == 1


def test_bare_runs_have_the_names_of_their_own_folders(tmp_path):
    """Whatever links lead to them; each algorithm of a task with a length of its own."""
    for algo, last in (("p3o", 100_000), ("a2c", 200_000)):
        folder = tmp_path / "all" / "CartPole-v1" / algo
        folder.mkdir(parents=True)
        (folder / "seed-0.csv.gz").write_bytes(gzip.compress(f"step,return\n{last},5\n".encode()))
    for name in ("all/A", "all/b", "all/latest"):
        (tmp_path / name).symlink_to(tmp_path / "all" / "CartPole-v1" / "p3o")
    study = find_study(tmp_path / "all")
    assert {(run.env_id, run.config["algo"], run.config["steps"]) for run in study.runs} == {
        ("CartPole-v1", "p3o", 100_000),
        ("CartPole-v1", "a2c", 200_000),
    }
    assert all(run.is_finished for run in study.runs)


def test_a_wrong_place_for_a_part_of_a_report_leaves_the_page_as_it_is(tmp_path):
    run = write_run(tmp_path / "run")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    for option, place in (("--markdown", "folder"), ("--figures", "file"), ("--out", "folder")):
        assert place in complaint(call("report", run, option, tmp_path / place))
    assert not (run / "report.html").exists()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_report_on_no_name_is_refused():
    assert "missing" in complaint(call("report", ""))


def test_the_newer_mujoco_tasks_are_not_set_beside_the_paper(tmp_path):
    for env_id in ("Hopper-v4", "Hopper-v5", "ALE/Pong-v5"):
        write_run(tmp_path / env_id.replace("/", "-"), env_id, steps=3_000_000)
    results = Results(find_study(tmp_path))
    assert [row[0].text for row in paper_table(results).rows] == ["ALE/Pong-v5", "Hopper-v4"]
    assert "Of two numbers that the paper prints" in " ".join(summary(results))


def test_the_settings_of_the_synthetic_runs_are_the_presets(tmp_path):
    for i, algo in enumerate(("p3o", "ppo", "a2c", "a2cg")):
        for preset in ("default", "paper"):
            write_run(tmp_path / f"{i}-{preset}", "Hopper-v4", algo, preset=preset)
    study = find_study(tmp_path)
    assert {departures.departures(runs, group) for (_, group), runs in study.cells.items()} == {()}


def test_mujoco_and_atari_have_checkpoints(tmp_path):
    write_run(tmp_path / "a", "Hopper-v4", steps=3_000_000, episodes=900)
    write_run(tmp_path / "b", "PongNoFrameskip-v4", steps=1000)
    results = Results(find_study(tmp_path))
    assert results.checkpoints("Hopper-v4") == [("1M", 1_000_000), ("2M", 2_000_000), ("the end", 3_000_000)]
    assert results.checkpoints("PongNoFrameskip-v4") == [("40 %", 400), ("80 %", 800), ("the end", 1000)]
    keys = [t.key for t in all_tables(results) if t.key.startswith("scores")]
    assert keys == ["scores", "scores-1M", "scores-2M", "scores-40-percent", "scores-80-percent"]
    run = load_run(tmp_path / "a")
    wanted = run.episodes["return_"][run.episodes["step"] <= 1_000_000][-100:].mean()
    assert table(results, "scores-1M").rows[0][2].value == pytest.approx(wanted)
    assert "fewer than 100 episodes" not in table(results, "scores-1M").note
    assert "1 run had fewer than 100 episodes by then." in table(results, "scores-40-percent").note  # 150 in all


def test_warnings_name_the_runs(tmp_path):
    write_run(tmp_path / "0", seed=0, updates=100)
    write_run(tmp_path / "1", seed=1, episodes=40, versions={"ale-py": "0.12.1"}, updates=100)
    write_run(tmp_path / "2", seed=2, versions={"jax": "0.9.0", "ale-py": "0.9.0"}, updates=100)
    write_run(tmp_path / "3", seed=0, algo="ppo", steps=20_000, updates=100)
    write_run(
        tmp_path / "4",
        seed=1,
        algo="ppo",
        steps=20_000,
        settings={"gamma": 0.5, "normalizer_pace": "learning_rate", "checkpoint_every": 7},  # the last one is harmless
        updates=100,
    )
    lines = (tmp_path / "2" / "updates.csv").read_text().splitlines(keepends=True)
    (tmp_path / "2" / "updates.csv").write_text("".join(lines[:50]) + lines[50].replace("0.4", "nan"))
    for name in ("2", "0"):
        episodes = (tmp_path / name / "episodes.csv").read_text().splitlines(keepends=True)
        (tmp_path / name / "episodes.csv").write_text("".join(episodes[: 1 + (75 if name == "2" else 150)]))
    found = "\n".join(cautions(Results(find_study(tmp_path))))
    stopped = load_run(tmp_path / "2")
    stands = f"{stopped.episodes['return_'].mean():.1f} at step {stopped.last_step:,}"  # 75 episodes: the mean of all
    words = f"not finished; scores past the last step are left out: P3O on CartPole-v1 seed 2 ({stands})."
    assert f"1 of 5 runs is {words}" in found
    assert "1 of 5 runs recorded values that are not finite numbers: P3O on CartPole-v1 seed 2." in found
    assert "4 of 5 runs have fewer than 100 episodes where they are compared" in found  # PPO has 150 in twice the steps
    assert "PPO on CartPole-v1 has no seed 2" in found
    assert "compared where the shortest ends: CartPole-v1 (P3O 10,000, PPO 20,000) at step 10,000" in found
    assert "Seeds of one group have different settings: PPO on CartPole-v1 (num_envs, gamma, learning_rate)." in found
    assert "different versions: jax 0.11.2, 0.9.0; ale-py 0.12.1, 0.9.0." in found
    write_sweep(tmp_path / "clean", ["CartPole-v1"], ["p3o", "ppo"], 2)
    assert cautions(Results(find_study(tmp_path / "clean"))) == []


def test_a_warning_where_kl_is_summed_in_one_group_and_averaged_in_another(tmp_path):
    for seed, (variant, way) in enumerate((("", "mean"), ("", "mean"), ("kl-sum", "sum"))):
        write_run(tmp_path / str(seed), seed=seed, variant=variant, settings={"kl_reduction": way})
    write_run(tmp_path / "ppo", algo="ppo", settings={})
    (line,) = [line for line in cautions(Results(find_study(tmp_path))) if "KL" in line]
    assert line.endswith("not all on one scale: CartPole-v1 (mean P3O, sum P3O kl-sum).")
    shutil.rmtree(tmp_path / "2")
    assert "KL" not in "".join(cautions(Results(find_study(tmp_path))))


def test_what_a_sweep_says_of_runs_that_are_not_there(tmp_path):
    write_sweep(tmp_path, ["CartPole-v1"], ["p3o"], 2)
    entry = {"algo": "p3o", "env": "CartPole-v1", "state": "finished", "reason": ""}
    folder = "CartPole-v1/p3o-default/seed-"
    there = [entry | {"seed": i, "folder": f"{folder}{i}"} for i in range(2)]
    gone = entry | {"seed": 2, "folder": f"{folder}2", "state": "failed", "reason": "killed by signal 9"}
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "runs": [*there, gone]}))
    assert cautions(Results(find_study(tmp_path))) == [
        "1 run that the sweep asked for is not there: p3o on CartPole-v1 seed 2.",
        "1 run failed: p3o on CartPole-v1 seed 2 (killed by signal 9).",
    ]
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(UserError, match=r"sweep\.json: damaged"):
        find_study(tmp_path)


def test_a_run_that_its_sweep_calls_failed_is_not_in_the_score_at_the_end(tmp_path):
    root = write_sweep(tmp_path / "sweep", ["CartPole-v1"], ["p3o"], 2)
    folders = [f"CartPole-v1/p3o-default/seed-{seed}" for seed in range(2)]
    states = ("failed", "finished")
    entries = [
        {"algo": "p3o", "env": "CartPole-v1", "seed": i, "folder": folders[i], "state": states[i]} for i in range(2)
    ]
    (root / "sweep.json").write_text(json.dumps({"format": 1, "runs": entries}))
    results = Results(find_study(root))
    assert table(results, "scores").rows[0][2].value == pytest.approx(last_hundred(root / folders[1]))
    assert [row[-1].text for row in run_table(results).rows] == ["no", "yes"]
    assert "1 of 2 runs is not finished" in "\n".join(cautions(results))


def test_a_run_that_raised_early_is_not_finished(tmp_path):
    """Its total is shorter than a logging interval, so updates.csv has no line."""
    folder = write_run(tmp_path / "run", steps=5000)
    (folder / "updates.csv").write_text("step,ess\n")
    lines = (folder / "episodes.csv").read_text().splitlines(keepends=True)
    (folder / "episodes.csv").write_text("".join(lines[:20]))
    assert table(Results(find_study(folder)), "scores").rows[0][2].text == "–"


def test_an_unfinished_seed_is_not_in_the_score_at_the_end(tmp_path):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"{seed}", seed=seed, episodes=300, updates=100)
    for file in ("episodes.csv", "updates.csv"):
        path = tmp_path / "runs" / "2" / file
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[: len(lines) // 2]))
    row = table(Results(find_study(tmp_path / "runs")), "scores").rows[0]
    assert row[2].value == pytest.approx(np.mean([last_hundred(tmp_path / "runs" / f"{i}") for i in range(2)]))


def test_the_page_is_well_formed_self_contained_and_the_same_each_time(tmp_path, sweep):
    first = write_report(sweep, tmp_path / "a.html").read_bytes()
    assert write_report([sweep], tmp_path / "b.html").read_bytes() == first
    page = first.decode()
    Checker().check(page)
    headings = ["Summary", "Learning curves", "Scores", "How sure", "Inside P3O", "Settings", "Speed and cost"]
    places = [page.index(f">{heading}</h2>") for heading in headings]
    assert places == sorted(places)
    assert page.count('class="band"') == page.count('class="line dash-') - 3  # and one in each button of the legend
    assert len(re.findall(r'<path class="band" d="M', page)) == 2 * 3 + 3 + 2 * 5  # curves, profile, inside of P3O


def test_nothing_from_the_files_becomes_markup(tmp_path):
    hostile = "</script><script>alert(1)</script>&\"'<b>"
    for seed in range(2):
        config = {
            "env": {"id": hostile, "kwargs": {}},
            "algo": hostile,
            "variant": hostile,
            "command": hostile + "\ud800",
        }
        settings = {hostile: [hostile, seed]}
        write_run(tmp_path / "runs" / f"{seed}", seed=seed, run_id=f"{seed}", settings=settings, **config)
    page = write_report(tmp_path / "runs").read_text(encoding="utf-8")
    Checker().check(page)
    assert page.count("<script") == 2
    assert "<b>" not in re.sub(r'<div class="chips"[^>]*><b>', "", page)
    text = write_markdown(tmp_path / "runs", tmp_path / "page.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<(?!br>)", text)


def test_runs_that_have_only_begun_make_a_page(tmp_path):
    for seed in range(2):
        folder = write_run(tmp_path / "runs" / f"{seed}", seed=seed)
        (folder / "episodes.csv").write_text("step,env,return,length,seconds\n")
        (folder / "updates.csv").write_text("")
    page = write_report(tmp_path / "runs").read_text()
    Checker().check(page)
    assert "No run has a score yet." in page
    assert "There is nothing to draw before the first episode ends." in page
    write_figures(tmp_path / "runs", tmp_path / "figures")


def test_runs_on_their_way_are_said_to_be(tmp_path):
    for seed in range(2):
        folder = write_run(tmp_path / "runs" / f"{seed}", seed=seed, steps=10_000)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"steps": 20_000}))
    page = write_report(tmp_path / "runs").read_text()
    assert "No run has come to its end yet; the warnings below say where each stands." in page
    assert "2 of 2 runs are not finished" in page


def test_where_the_page_goes(tmp_path, sweep, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, two = write_run(tmp_path / "one"), write_run(tmp_path / "two", seed=1)
    assert write_report([one, two]) == Path("report.html")
    assert write_report(one) == one / "report.html"
    assert write_report([one]) == one / "report.html"
    assert "Inside the algorithm" in (one / "report.html").read_text()  # the page of one run
    result = call("report", one, two, "--out", "x.html", "--markdown", "y.md", "--figures", "z")
    assert (result.code, result.out.split()) == (0, ["x.html", "y.md", "z"])


def test_bad_input_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no runs in it" in complaint(call("report", tmp_path / "empty"))
    assert "no such folder" in complaint(call("report", tmp_path / "nowhere", tmp_path / "empty"))
    write_run(tmp_path / "sweep" / "good")
    (write_run(tmp_path / "sweep" / "bad", seed=1) / "episodes.csv").write_text("step,env\n1,2\n")
    assert "bad/episodes.csv line 1: header is" in complaint(call("report", tmp_path / "sweep"))
    pack(write_run(tmp_path / "cut"))
    whole = (tmp_path / "cut" / "episodes.csv.gz").read_bytes()
    (tmp_path / "cut" / "episodes.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "episodes.csv.gz: cannot be read (damaged)" in complaint(call("report", tmp_path / "cut"))
    (tmp_path / "cut" / "episodes.csv.gz").write_bytes(b"not packed")
    assert "episodes.csv.gz: cannot be read (damaged)" in complaint(call("report", tmp_path / "cut"))
    good = tmp_path / "sweep" / "good"
    assert "cannot be written" in complaint(call("report", good, "--out", good / "episodes.csv" / "x.html"))


def test_markdown_is_the_same_each_time_and_its_figures_are_there(tmp_path, sweep):
    file = write_markdown(sweep, tmp_path / "page.md")
    files = {p.name: p.read_bytes() for p in (tmp_path / "page").iterdir()}
    text = file.read_bytes()
    write_markdown(sweep, file)
    assert file.read_bytes() == text
    assert {p.name: p.read_bytes() for p in (tmp_path / "page").iterdir()} == files
    named = re.findall(r"\]\(page/([^)]+)\)", text.decode())
    assert sorted(named) == sorted(files)
    assert {"curve-CartPole-v1.svg", "inside-CartPole-v1.svg", "aggregates.svg", "profile.svg"} <= set(files)
    score_of = np.mean([last_hundred(d) for d in (sweep / "CartPole-v1" / "p3o-default").iterdir()])
    assert re.search(rf"\| CartPole-v1 \| 10k \| \*\*{score_of:,.1f}\*\*<br>", text.decode())


def test_names_of_files_keep_letters_of_any_script():
    assert [file_name(text) for text in ("uni:环境-v0", "uni:学习-v0", "ALE/Pong-v5", "../..")] == [
        "uni-环境-v0",
        "uni-学习-v0",
        "ALE-Pong-v5",
        "unnamed",
    ]


def test_figures_and_tables_for_papers(tmp_path, sweep):
    folder = write_figures(sweep, tmp_path / "figures")
    names = {p.name for p in folder.iterdir()}
    assert {f"curve-CartPole-v1.{kind}" for kind in ("png", "pdf", "svg", "csv")} <= names
    assert (folder / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "profile.pdf").read_bytes().startswith(b"%PDF")
    with (folder / "table-scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    each = [last_hundred(d) for d in (sweep / "CartPole-v1" / "ppo-default").iterdir()]
    wanted = np.mean(each)
    found = [float(rows[1][f"PPO{name}"]) for name in ("", " low", " high", " seeds")]
    np.testing.assert_allclose(found, [wanted, min(each), max(each), 3])  # few seeds: the range
    with (folder / "table-improvement.csv").open() as file:
        assert [row["probability low"] for row in csv.DictReader(file)] == ["1.0", "1.0"]
    with (folder / "curve-CartPole-v1.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["algorithm"] == "PPO"][-1]
    assert (float(last["steps"]), float(last["mean"])) == (10_000, pytest.approx(wanted))


def test_tables_for_papers_have_intervals_and_seeds(tmp_path):
    shape = {"episodes": 300, "steps": 3_000_000}
    root = write_sweep(tmp_path / "five", ["Hopper-v4", "Ant-v4"], ["p3o"], 5, {"p3o": 4000.0}, **shape)
    folder = write_figures(root, tmp_path / "figures")
    each = [last_hundred(d) for d in (root / "Hopper-v4" / "p3o-default").iterdir()]
    near = statistics.mean_interval(each)
    for key, name in (("scores", "P3O"), ("paper", "ours")):
        with (folder / f"table-{key}.csv").open() as file:
            row = list(csv.DictReader(file))[1]
        assert row["environment"] == "Hopper-v4"
        found = [float(row[f"{name}{part}"]) for part in ("", " low", " high", " seeds")]
        np.testing.assert_allclose(found, [*near, 5], rtol=0.01)  # seeds are in another order
    with (folder / "table-aggregates.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["IQM low"]) < float(row["IQM"]) < float(row["IQM high"])
    assert row["IQM seeds"] == "5"
    assert "Training time" in write_report(root).read_text()


def test_without_matplotlib_figures_are_one_line_and_the_page_is_there(tmp_path, sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert write_report(sweep, tmp_path / "page.html").exists()
    with pytest.raises(UserError, match="figures need matplotlib"):
        write_figures(sweep, tmp_path / "figures")


def test_the_page_does_not_import_matplotlib(tmp_path, sweep):
    script = (
        "import sys; from p3o.report import write_report; write_report(sys.argv[1], sys.argv[2]);"
        "assert 'matplotlib' not in sys.modules and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, str(sweep), str(tmp_path / "page.html")], check=True)


def test_logarithmic_ticks_over_little_and_much():
    assert [label for _, label in log_axis(1, 1000).ticks] == ["1", "10", "100", "1,000"]
    assert [label for _, label in log_axis(10, 80).ticks] == ["10", "20", "50", "100"]
    axis = log_axis(10, 80)
    np.testing.assert_allclose([10 * place for place, _ in axis.ticks], axis.place(np.array([10.0, 20, 50, 100])))
    ticks = log_axis(100, 130).ticks
    assert len(ticks) >= 3
    assert all(0 <= place <= 100 for place, _ in ticks)


@pytest.mark.slow
def test_320_runs_take_less_than_a_minute_and_2_gb(tmp_path):
    script = Path(__file__).parent.parent / "benchmarks" / "report_size.py"
    said = subprocess.run([sys.executable, str(script)], check=True, capture_output=True, text=True).stdout
    found = re.match(r"320 runs: ([\d.]+) s, peak (\d+) MiB, page ([\d.]+) MB", said)
    assert found, said
    assert float(found[1]) < 60
    assert int(found[2]) < 2048
    assert float(found[3]) < 5


def test_settings_that_are_newer_than_a_run_are_what_they_were_before(tmp_path):
    """So a run of before is not taken for one of today's default."""
    write_run(tmp_path / "new", "Hopper-v4", variant="new")
    old = write_run(tmp_path / "old", "Hopper-v4")
    config = json.loads((old / "config.json").read_text())
    del config["settings"]["normalizer_pace"]
    (old / "config.json").write_text(json.dumps(config))
    study = find_study(tmp_path)
    told = {departures.departures(runs, group) for (_, group), runs in study.cells.items()}
    assert told == {(), ("normalizer_pace constant, not learning_rate",)}


# Chapters -------------------------------------------------------------------------------------------------------------

CHAPTERS = """
title = "All of it"
[[chapter]]
title = "As it is"
text = "Compared to the end."
variants = [""]
envs = ["CartPole-*"]
[[chapter]]
title = "Changed"
algos = "p3o"
variants = ["", "lambda-*"]
[[chapter]]
title = "Still to come"
presets = ["paper"]
"""


@pytest.fixture
def divided(tmp_path) -> Path:
    """P3O and PPO to 10,000 steps, two changes of P3O to 5,000, and a run that no chapter asks for."""
    root = write_sweep(tmp_path / "results", ["CartPole-v1"], ["p3o", "ppo"], 2)
    for name in ("lambda-0", "lambda-1"):
        for seed in range(2):
            folder = root / "CartPole-v1" / f"p3o-default-{name}" / f"seed-{seed}"
            write_run(folder, "CartPole-v1", variant=name, seed=seed, steps=5_000)
    write_run(root / "Acrobot-v1" / "ppo-default" / "seed-0", "Acrobot-v1", "ppo")
    (root / "chapters.toml").write_text(CHAPTERS)
    return root


def test_chapters_are_compared_apart_and_no_run_is_dropped(divided):
    book = find_book(divided)
    assert book.title == "All of it"
    assert [chapter.title for chapter in book.chapters] == ["As it is", "Changed", "Still to come", "Everything else"]
    whole, changed, coming, rest = (chapter.results for chapter in book.chapters)
    assert [row[1].text for row in table(whole, "scores").rows] == ["10k"]  # not where the shorter changes end
    assert table(whole, "scores").head[2:] == ["P3O", "PPO"]
    assert [row[1].text for row in table(changed, "scores").rows] == ["5k"]
    assert table(changed, "scores").head[2:] == ["P3O", "P3O lambda-0", "P3O lambda-1"]
    assert coming is None
    assert list(rest.study.cells) == [("Acrobot-v1", Group("ppo", "default", ""))]
    assert not any("Lengths differ" in warning for warning in cautions(whole))
    (divided / "chapters.toml").unlink()
    (chapter,) = find_book(divided).chapters
    assert [row[1].text for row in table(chapter.results, "scores").rows] == ["10k", "5k"]


def test_runs_that_a_sweep_misses_are_told_once_in_the_first_chapter_that_has_any(divided):
    gone = {"env": "CartPole-v1", "algo": "p3o", "seed": 9, "folder": "gone", "state": "waiting"}
    (divided / "sweep.json").write_text(json.dumps({"format": 1, "runs": [gone]}))
    empty = "[[chapter]]\ntitle = 'None'\nenvs = ['no']\n"
    (divided / "chapters.toml").write_text(empty + CHAPTERS[CHAPTERS.index("[[") :])
    said = [cautions(c.results) if c.results else [] for c in find_book(divided).chapters]
    assert [any("is not there: p3o on CartPole-v1 seed 9" in line for line in lines) for lines in said] == [
        *(False, True, False, False, False)
    ]


def test_a_divided_page_has_every_chapter_once_in_every_form(divided, tmp_path):
    page = write_report(divided, tmp_path / "page.html").read_text()
    Checker().check(page)
    assert re.findall(r'<h1 id="part-\d-chapter">([^<]+)</h1>', page) == [c.title for c in find_book(divided).chapters]
    assert page.count("No run of it is here yet.") == 1
    text = write_markdown(divided, tmp_path / "page.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == [c.title for c in find_book(divided).chapters]
    assert "- [Still to come](#still-to-come)" in text
    assert text.count("### Scores at the end") == 3
    figures = re.findall(r"\]\(page/([^)]+)\)", text)
    assert len(figures) == len(set(figures))
    assert sorted(figures) == sorted(file.name for file in (tmp_path / "page").iterdir())
    assert {"1-curve-CartPole-v1.svg", "2-curve-CartPole-v1.svg", "4-curve-Acrobot-v1.svg"} <= set(figures)
    found = {file.name for file in write_figures(divided, tmp_path / "figures").iterdir()}
    assert {"1-table-scores.csv", "2-table-scores.csv", "2-improvement.pdf", "4-table-runs.csv"} <= found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "at least one [[chapter]] is needed"),
        ("chapter = 3", "at least one [[chapter]] is needed"),
        ("title = 3\n[[chapter]]\ntitle = 'x'", "title is 3, should be text"),
        ("[[chapter]]\nenvs = ['*']", "every chapter needs a title of its own"),
        ("[[chapter]]\ntitle = 'x'\n[[chapter]]\ntitle = 'x'", "every chapter needs a title of its own"),
        ("[[chapter]]\ntitle = 'x'\nenv = ['*']", "chapter 1: unknown key 'env' (did you mean envs?); there are title"),
        ("[[chapter]]\ntitle = 'x'\nenvs = 3", "chapter 1: envs is 3, should be a list of names or patterns"),
        ("[[chapter]]\ntitle = 'x'\nenvs = []", "chapter 1: envs is [], should be a list of names or patterns"),
        ("[[chapter]", "chapters.toml: cannot be read"),
    ],
)
def test_chapters_that_cannot_be_are_one_line(content, words, divided):
    (divided / "chapters.toml").write_text(content)
    assert words in complaint(call("report", divided))


def test_variants_are_not_called_algorithms(tmp_path, sweep):
    assert "three algorithms on two environments" in summary(Results(find_study(sweep)))[0]
    for i in range(5):
        write_run(tmp_path / "of-one" / f"{i}", variant=f"v{i}" if i else "")
    results = Results(find_study(tmp_path / "of-one"))
    assert title(results) == "Five variants of P3O on CartPole-v1"
    assert "five variants of P3O on one environment" in summary(results)[0]
    results = Results(find_study([sweep, tmp_path / "of-one"]))
    assert "seven variants of three algorithms on two environments" in summary(results)[0]
    write_run(tmp_path / "again", run_id="another")  # one algorithm and seed from two paths
    results = Results(find_study([sweep, tmp_path / "again"]))
    assert "four groups of three algorithms on two environments" in summary(results)[0]


def test_many_groups_on_few_tasks_stand_below_each_other(tmp_path):
    for i in range(7):
        write_run(tmp_path / f"{i}", variant=f"v{i}" if i else "", level=10.0 + i)
    scores = table(Results(find_study(tmp_path)), "scores")
    assert scores.head == ["algorithm", "CartPole-v1, 10k"]
    assert [row[0].text for row in scores.rows] == ["P3O", *(f"P3O v{i}" for i in range(1, 7))]
    assert [row[1].mark for row in scores.rows] == [""] * 6 + ["best"]
    means = [last_hundred(tmp_path / f"{i}") for i in range(7)]
    np.testing.assert_allclose([row[1].value for row in scores.rows], means)


def test_a_page_is_never_written_over_the_files_of_a_run(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "model").mkdir(exist_ok=True)
    (run / "model" / "model.json").write_text("{}")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    for words in (
        ("--out", run / "episodes.csv"),
        ("--markdown", run / "config.json"),
        ("--figures", run),
        ("--figures", run / "model"),
    ):
        assert str(words[1]) in complaint(call("report", run, *words))
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    for write, place in ((write_markdown, run / "config.json"), (write_figures, run / "model")):
        with pytest.raises(UserError, match="json"):
            write(run, place)
    assert call("report", run, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures").code == 0
    assert call("report", run, "--out", tmp_path / "page.html", "--figures", tmp_path / "figures").code == 0
