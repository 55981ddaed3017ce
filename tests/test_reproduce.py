"""`p3o reproduce` and the tables it writes, on runs that a stand-in for the sweep writes."""

import csv
import json
import types
from pathlib import Path

import numpy as np
import pytest
from commands import call, complaint

import p3o
from p3o.experiments import catalog, scores, tables
from p3o.folder import run_folder

TABLE_ALGOS = {"p3o": 3.0, "a2c": 2.0, "a2cg": 1.0, "ppo": 2.5}


def write_run(folder: Path, job, level: float, episodes: int = 120) -> None:
    """A finished run whose return rises in a straight line to `level` at its end."""
    folder.mkdir(parents=True)
    config = {"format": 1, "algo": job.algo, "preset": job.preset, "variant": job.variant, "seed": job.seed}
    config |= {"steps": job.steps, "env": {"id": job.env}, "settings": {}}
    (folder / "config.json").write_text(json.dumps(config))
    steps = np.linspace(job.steps / episodes, job.steps, episodes).astype(int)
    lines = [f"{s},0,{float(level * s / job.steps)!r},10,{i}" for i, s in enumerate(steps)]
    (folder / "episodes.csv").write_text("\n".join(["step,env,return,length,seconds", *lines]) + "\n")
    marks = np.linspace(job.steps / 10, job.steps, 10).astype(int)
    logs = [f"{s},0.{i},0.5,{job.seed + 1}" for i, s in enumerate(marks)]
    (folder / "updates.csv").write_text("\n".join(["step,ess,kl,entropy", *logs]) + "\n")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "checkpoint.json").write_text(json.dumps({"format": 1, "step": job.steps}))


class FakeSweep:
    """What p3o.sweep.run does as far as `reproduce` can see."""

    def __init__(self, failed=(), stopped=None, skip=()):
        self.failed, self.stopped, self.skip = list(failed), stopped, skip
        self.called = []

    def run(self, jobs, out, *, workers=None, ray=None, about=None):
        self.called.append((jobs, out, workers, ray, about))
        for job in jobs:
            folder = run_folder(out, job)
            if job.algo not in self.skip and not folder.exists():
                write_run(folder, job, 1000 * TABLE_ALGOS.get(job.algo, 1.0) + job.seed)
        (out / "report.html").write_text("a page")
        (out / "sweep.json").write_text(json.dumps({"format": 1, "runs": [], **about}))
        return types.SimpleNamespace(failed=self.failed, stopped=self.stopped)


@pytest.fixture
def sweep(monkeypatch):
    fake = FakeSweep()
    monkeypatch.setattr(p3o, "sweep", fake, raising=False)
    monkeypatch.setitem(__import__("sys").modules, "p3o.sweep", fake)
    return fake


def table(out):
    return list(csv.DictReader((out / "table.csv").read_text().splitlines()))


def test_mujoco_table(sweep, tmp_path):
    out = tmp_path / "out"
    result = call("reproduce", "mujoco-table", out, "--seeds", "2", "--scale", "0.01", "--workers", "3")
    assert result.code == 0
    assert result.out.splitlines()[-1] == str(out)
    ((jobs, to, workers, ray, about),) = sweep.called
    assert (to, workers, ray) == (out, 3, None)
    assert about == {"experiment": "mujoco-table", "scale": 0.01}
    assert jobs == catalog.find("mujoco-table").jobs((0, 1), 0.01)
    rows = table(out)
    assert len(rows) == 8 * 4 * 3
    last = next(r for r in rows if (r["env"], r["algo"], r["step"]) == ("HalfCheetah-v4", "p3o", "30000"))
    assert (last["seeds"], last["seeds_asked"]) == ("2", "2")
    # the last 100 of 120 episodes average 70.5/120 of the level; levels are 3000 and 3001
    assert float(last["mean"]) == pytest.approx(3000.5 * 70.5 / 120, rel=1e-4)
    assert (last["paper"], last["qprop"], last["ipg"]) == ("5051.58", "4178", "4216")
    assert last["verdict"] == "not comparable"
    text = (out / "summary.md").read_text()
    assert "nothing here is comparable" in text
    assert "64 of 64 runs are finished" in text
    assert "| 30,000 steps | 8 | 0 | 0 | 0 | – |" in text  # no intervals from two seeds
    assert "95 %" not in text
    assert "| HalfCheetah | p3o | 2 | 30,000 | 1,762.8 | 1,762.5 to 1,763.1 | 5,051.6 | not comparable" in text
    assert "| ours | range | the paper |" in text
    assert (float(last["low"]), float(last["high"]), last["spread"]) == (1762.5, 1763.09, "range")
    # 40 episodes at a third, 80 at two thirds, 120 at the end
    assert "fewer than 100 episodes, whose score is the mean of those: 64 at 33 % of training, 64 at 67 %" in text
    assert [r["short"] for r in rows[:3]] == ["2", "2", "0"]
    assert "IPG as the paper quotes" not in text  # nothing to stand beside the paper's
    assert "These runs have 0.01 of the paper's steps: not comparable with it." in text
    assert "| 8 of 8 | 8 of 8 | cannot tell: 0.01 of the paper's steps |" in text


def test_full_size_gets_verdicts_and_early_checkpoints_none(sweep, tmp_path):
    assert call("reproduce", "mujoco-table", tmp_path, "--seeds", "5").code == 0
    rows = [r for r in table(tmp_path) if r["env"] == "p3o/Humanoid-v2" and r["algo"] == "p3o"]
    assert [r["step"] for r in rows] == ["1000000", "2000000", "3000000"]
    assert [r["verdict"] for r in rows][:2] == ["", ""]
    assert rows[-1]["verdict"] == "ordering reproduced"  # 1764 is off 2057.17 by more than 10 %
    assert float(rows[-1]["gap"]) == pytest.approx(1763.7 - 2057.17, abs=1)
    assert rows[-1]["spread"] == "95 % interval"
    text = (tmp_path / "summary.md").read_text()
    assert "| 3,000,000 steps | 8 (8 to 8) | 0 (0 to 0) | 0 (0 to 0) | 0 (0 to 0) | – |" in text
    assert "IPG as the paper quotes" in text
    assert "| Hopper | 1,763.7 | 2,334.3 | 2,957.0 | – |" in text


def test_four_seeds_get_their_range(sweep, tmp_path):
    assert call("reproduce", "mujoco-table", tmp_path, "--seeds", "4").code == 0
    row = table(tmp_path)[2]  # levels are 3000 to 3003
    assert [float(row[name]) for name in ("low", "high")] == pytest.approx(
        [3000 * 70.5 / 120, 3003 * 70.5 / 120], rel=1e-5
    )
    assert row["spread"] == "range"
    assert (row["verdict"], "95 %" in (tmp_path / "summary.md").read_text()) == ("no verdict", False)


def test_a_stopped_sweep_writes_no_table(sweep, tmp_path):
    sweep.stopped = 15
    result = call("reproduce", "effect-of-lambda", tmp_path / "out")
    assert result.code == 143
    assert result.out.splitlines()[-1] == str(tmp_path / "out")
    assert not (tmp_path / "out" / "table.csv").exists()


def test_failed_runs_are_left_open_in_the_table(sweep, tmp_path):
    sweep.failed, sweep.skip = ["something"], ("a2cg",)
    result = call("reproduce", "mujoco-table", tmp_path, "--seeds", "1", "--scale", "0.01")
    assert result.code == 1
    assert {r["seeds"] for r in table(tmp_path) if r["algo"] == "a2cg"} == {"0"}
    text = (tmp_path / "summary.md").read_text()
    assert "24 of 32 runs are finished" in text
    assert "| HalfCheetah | a2cg | 0 | 30,000 | – | – | 181.5 | no finished run |" in text
    assert "no task has finished runs of every algorithm yet" in text


def test_a_table_that_cannot_be_written_is_one_line(sweep, tmp_path):
    (tmp_path / "table.csv").mkdir()
    result = call("reproduce", "evolution-of-ess", tmp_path, "--seeds", "1", "--scale", "0.001")
    assert f"{tmp_path / 'table.csv'} cannot be written: Is a directory" in complaint(result)


def test_variants_and_logged_quantities(sweep, tmp_path):
    assert call("reproduce", "evolution-of-ess", tmp_path, "--seeds", "2", "--scale", "0.001").code == 0
    rows = table(tmp_path)
    assert {(r["algo"], r["variant"]) for r in rows} == {("p3o", ""), ("p3o", "lambda-0")}
    assert all(not r["paper"] for r in rows if r["variant"])  # the paper's number is not this variant's
    text = (tmp_path / "summary.md").read_text()
    # ess is .0 .1 … .9; the first line of ten is before 20 %; the mean of the rest is 0.5
    assert "| BeamRider | p3o lambda-0 | 0.500 (0.100 to 0.900) | 0.500 (0.500 to 0.500) | 1.50 (1 to 2) |" in text


@pytest.mark.parametrize("name", [e.name for e in catalog.EXPERIMENTS.values() if e.cells])
def test_every_experiment_writes_its_table(sweep, tmp_path, name):
    assert call("reproduce", name, tmp_path, "--seeds", "1", "--scale", "0.0001").code == 0
    experiment = catalog.find(name)
    assert len(table(tmp_path)) == 3 * len(experiment.cells)
    text = (tmp_path / "summary.md").read_text()
    assert all(claim in text for claim in experiment.claims)


def test_published_comparison_needs_no_training(sweep, tmp_path):
    result = call("reproduce", "published-comparison", tmp_path / "out")
    assert result.code == 0
    assert result.out.splitlines()[-1] == str(tmp_path / "out")
    assert sweep.called == []
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"comparison.csv", "summary.md"}


def test_bad_input_is_one_line_and_writes_nothing(sweep, tmp_path):
    out = tmp_path / "out"
    assert "did you mean mujoco-table?" in complaint(call("reproduce", "mujoco_table", out))
    assert "--scale 2" in complaint(call("reproduce", "mujoco-table", out, "--scale", "2"))
    assert "--scale" in complaint(call("reproduce", "mujoco-table", out, "--scale", "x"))
    assert "--seeds" in complaint(call("reproduce", "mujoco-table", out, "--seeds", "a"))
    assert "--workers" in complaint(call("reproduce", "mujoco-table", out, "--workers", "0"))
    assert "trains nothing" in complaint(call("reproduce", "published-comparison", out, "--seeds", "3"))
    assert not out.exists()
    file = tmp_path / "file"
    file.write_text("")
    assert "cannot be written" in complaint(call("reproduce", "published-comparison", file))
    assert sweep.called == []


def test_the_folder_of_another_experiment_is_refused(sweep, tmp_path):
    table, computed = tmp_path / "table", tmp_path / "computed"
    small = ("--scale", "0.001", "--seeds", "1")
    assert call("reproduce", "mujoco-table", table, *small).code == 0
    assert call("reproduce", "published-comparison", computed).code == 0
    before = [(folder / "summary.md").read_text() for folder in (table, computed)]
    for name in ("published-comparison", "effect-of-lambda"):
        line = complaint(call("reproduce", name, table))
        assert line.strip() == f"p3o: {table} holds mujoco-table; choose another folder for {name}"
    for name in ("state-distribution-bound", "mujoco-table"):
        assert "computed holds published-comparison; choose" in complaint(call("reproduce", name, computed))
    assert [(folder / "summary.md").read_text() for folder in (table, computed)] == before
    assert call("reproduce", "mujoco-table", table, *small).code == 0  # its own goes on
    assert call("reproduce", "published-comparison", computed).code == 0


def test_finished_runs_are_counted_from_their_checkpoints(tmp_path):
    jobs = catalog.find("effect-of-lambda").jobs()
    assert scores.count_finished(jobs, tmp_path) == 0
    for job in jobs[:3]:
        write_run(run_folder(tmp_path, job), job, 1.0)
    assert scores.count_finished(jobs, tmp_path) == 3
    assert scores.count_finished(catalog.find("effect-of-lambda").jobs(scale=0.1), tmp_path) == 0
    half = run_folder(tmp_path, jobs[0]) / "checkpoint" / "checkpoint.json"
    half.write_text(json.dumps({"format": 1, "step": 1000}))
    assert scores.count_finished(jobs, tmp_path) == 2


def test_a_checkpoint_that_a_run_has_not_reached_has_no_score(tmp_path):
    experiment = catalog.find("mujoco-table")._replace(cells=catalog.MUJOCO_TABLE[:1])
    job = experiment.jobs([0])[0]
    folder = run_folder(tmp_path, job)
    write_run(folder, job._replace(steps=2_100_000), 1.0)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"steps": job.steps}))
    (result,) = scores.collect(experiment, tmp_path, [0], 1.0)
    assert [s.size for s in result.scores] == [1, 1, 0]


def test_runs_that_were_cut_or_failed_are_neither_finished_nor_scored(tmp_path):
    experiment = catalog.find("mujoco-table")._replace(cells=catalog.MUJOCO_TABLE[:1])
    cut, failed, whole = experiment.jobs([0, 1, 2], 0.01)
    for job in (cut, failed, whole):
        write_run(run_folder(tmp_path, job), job, 1000.0)
    for name in ("episodes.csv", "updates.csv"):
        file = run_folder(tmp_path, cut) / name
        lines = file.read_text().splitlines(keepends=True)
        file.write_text("".join(lines[: 1 + 9 * (len(lines) - 1) // 10]))  # to step 27,000 of 30,000
    entry = {"algo": "p3o", "env": failed.env, "seed": 1, "state": "failed"}
    entry["folder"] = run_folder(tmp_path, failed).relative_to(tmp_path).as_posix()
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 1, "runs": [entry]}))
    (result,) = scores.collect(experiment, tmp_path, [0, 1, 2], 0.01)
    assert (result.finished, [s.size for s in result.scores]) == (1, [3, 3, 1])


def test_episodes_past_the_total_are_in_no_score(tmp_path):
    experiment = catalog.find("mujoco-table")._replace(cells=catalog.MUJOCO_TABLE[:1])
    jobs = experiment.jobs([0, 1], 0.01)
    for job in jobs:
        write_run(run_folder(tmp_path, job), job, 1000.0, episodes=90 if job.seed else 120)
        with (run_folder(tmp_path, job) / "episodes.csv").open("a") as file:
            file.writelines(f"{job.steps + i},0,1e6,10,500\n" for i in range(1, 30))
    (result,) = scores.collect(experiment, tmp_path, [0, 1], 0.01)
    assert result.final == pytest.approx([1000 * 70.5 / 120, 1000 * 45.5 / 90], rel=1e-4)
    assert result.short[-1] == 1  # 119 episodes in all, 90 of them in time


def test_list_experiments(tmp_path):
    jobs = catalog.find("effect-of-lambda").jobs()
    write_run(run_folder(tmp_path, jobs[0]), jobs[0], 1.0)
    result = call("list", "experiments", "--in", tmp_path)
    assert result.code == 0
    lines = result.out.splitlines()
    for name, experiment in catalog.EXPERIMENTS.items():
        (line,) = [line for line in lines if line.startswith(name + " ")]
        assert experiment.item in line
    assert "with --in OUT those that\n      `p3o reproduce EXPERIMENT OUT` has made." in result.out
    (line,) = [line for line in lines if line.startswith("effect-of-lambda")]
    assert line.split()[3:6] == ["24", "1", "672M"]
    (line,) = [line for line in lines if line.startswith("mujoco-table")]
    assert " 320 " in line
    assert "960M" in line


def test_list_experiments_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("list", "experiments")
    assert result.code == 0
    assert max(map(len, result.out.splitlines())) <= 80
    (tmp_path / "runs").write_text("")
    assert "not a folder" in complaint(call("list", "experiments"))


def test_a_run_too_short_for_an_episode_is_said_to_be_so(tmp_path):
    experiment = catalog.find("mujoco-table")._replace(cells=catalog.MUJOCO_TABLE[:1])
    (job,) = experiment.jobs([0], 0.001)
    write_run(run_folder(tmp_path, job), job, 1.0)
    (run_folder(tmp_path, job) / "episodes.csv").write_text("step,env,return,length,seconds\n")
    results = scores.collect(experiment, tmp_path, [0], 0.001)
    tables.write(experiment, results, tmp_path, 0.001)
    text = (tmp_path / "summary.md").read_text()
    assert "1 of 1 runs are finished" in text
    assert "| HalfCheetah | p3o | 0 | 3,000 | – | – | 5,051.6 | no episode has ended |" in text
