"""The catalog: run counts and steps as the paper has them, settings equal to its tables, folders shared."""

import csv
import re

import pytest
from test_presets import EPOCHS, SETTINGS, TABLES, number

from p3o.errors import UserError
from p3o.experiments import catalog, cost, reference
from p3o.experiments.compare import compare
from p3o.jobs import resolve


@pytest.mark.parametrize(
    ("name", "runs", "steps"),
    [
        ("mujoco-table", 320, 960e6),  # 8 x 4 x 10 x 3M
        ("atari-table", 588, 16.464e9),  # 49 x 4 x 3 x 28M
        ("atari-wins", 588, 16.464e9),
        ("acer-on-policy-loss", 15, 420e6),  # 5 x 3
        ("effect-of-lambda", 24, 672e6),  # 2 x 4 x 3
        ("evolution-of-ess", 12, 336e6),  # 2 x 2 x 3
        ("gae-and-rollout-length", 48, 1.344e9),  # 2 x 2 x 4 x 3
        ("curves", 908, 17.424e9),
        ("curves-mujoco", 320, 960e6),
        ("curves-atari", 588, 16.464e9),
        ("published-comparison", 0, 0),
        ("state-distribution-bound", 0, 0),
    ],
)
def test_runs_and_steps(name, runs, steps):
    jobs = catalog.find(name).jobs()
    assert len(jobs) == runs
    assert sum(job.steps for job in jobs) == steps
    assert len({(j.env, j.algo, j.preset, j.variant, j.seed) for j in jobs}) == runs  # a folder of its own for each


def test_every_experiment_is_listed_once():
    assert list(catalog.EXPERIMENTS) == [e.name for e in catalog.EXPERIMENTS.values()]
    assert len(catalog.EXPERIMENTS) == 12


def hyperparameters():
    """{(suite, algorithm): {setting: number}} of the paper's tables."""
    tables: dict = {}
    for row in csv.DictReader(TABLES.read_text().splitlines()):
        setting = SETTINGS.get(row["name"]) or EPOCHS.get(row["algorithm"], "") * row["name"].startswith(
            "Number of tra"
        )
        if setting:
            tables.setdefault((row["suite"], row["algorithm"]), {})[setting] = number(row["value"])
    return tables


@pytest.mark.parametrize("name", [e.name for e in catalog.EXPERIMENTS.values() if e.cells])
def test_settings_of_every_cell_are_the_papers_but_where_the_variant_says(name):
    tables = hyperparameters()
    for cell in catalog.find(name).cells:
        config = cell.config()
        expected = tables[cell.suite, cell.algo] | cell.settings
        assert {k: getattr(config, k) for k in expected} == expected, cell
        assert bool(cell.settings) == bool(cell.variant)
        assert re.fullmatch(r"[\w.=+-]*", cell.variant)


def test_seeds_are_the_tables():
    rows = [r for r in csv.DictReader(TABLES.read_text().splitlines()) if r["name"] == "Random Seeds"]
    for row in rows:
        last = int(row["value"].strip("{}").split("...")[1])
        assert list(catalog.Cell(row["suite"], "x", row["algorithm"]).seeds) == list(range(last + 1))


def test_experiments_share_their_runs():
    jobs = {name: catalog.find(name).jobs() for name in catalog.EXPERIMENTS}
    assert all(job in jobs["curves"] for job in jobs["mujoco-table"])
    assert all(job in jobs["curves"] for job in jobs["atari-table"])
    assert jobs["atari-wins"] == jobs["atari-table"]
    assert jobs["curves"] == jobs["curves-atari"] + jobs["curves-mujoco"]
    assert all(job in jobs["atari-table"] for job in jobs["acer-on-policy-loss"])
    plain = [job for job in jobs["effect-of-lambda"] + jobs["gae-and-rollout-length"] if not job.variant]
    assert len(plain) == 12
    assert all(job in jobs["atari-table"] for job in plain)
    assert all(job in jobs["effect-of-lambda"] for job in jobs["evolution-of-ess"])


@pytest.mark.parametrize("name", catalog.EXPERIMENTS)
def test_every_experiment_can_be_run(name):
    """One job of each suite is checked for real: its environment, its settings."""
    experiment = catalog.EXPERIMENTS[name]
    for suite, cell in {cell.suite: cell for cell in experiment.cells}.items():
        pytest.importorskip("mujoco" if suite == "mujoco" else "ale_py", reason=f"{suite}: not installed")
        resolve(cell.jobs([0])[0])


@pytest.mark.parametrize(("name", "hours"), [("mujoco-table", 42.1), ("acer-on-policy-loss", 1598.3)])
def test_cost(name, hours):
    assert cost.core_hours(catalog.find(name)) == pytest.approx(hours, abs=0.1)


def test_variants():
    weights = {c.variant: c.config().kl_coef for c in catalog.find("effect-of-lambda").cells}
    assert weights == {"": "ess", "lambda-0": 0.0, "lambda-0.1": 0.1, "lambda-0.5": 0.5}
    rollouts = {
        c.variant: (c.config().use_gae, c.config().num_steps) for c in catalog.find("gae-and-rollout-length").cells
    }
    assert rollouts[""] == (True, 16)
    assert rollouts["no-gae-steps-32"] == (False, 32)
    assert len(set(rollouts.values())) == len(rollouts) == 8


def test_scale_and_seeds():
    jobs = catalog.find("mujoco-table").jobs(seeds=[3, 7], scale=0.01)
    assert len(jobs) == 64
    assert {job.seed for job in jobs} == {3, 7}
    assert {job.steps for job in jobs} == {30_000}
    # never less than one iteration: 2 x 64 for P3O, 8 x 32 for A2C, 1 x 2048 for PPO
    tiny = {job.algo: job.steps for job in catalog.find("mujoco-table").jobs(scale=1e-9)}
    assert tiny == {"p3o": 128, "a2c": 256, "a2cg": 256, "ppo": 2048}


def test_checkpoints():
    mujoco, atari = catalog.MUJOCO_TABLE[0], catalog.ATARI_TABLE[0]
    assert catalog.checkpoints(mujoco) == (1_000_000, 2_000_000, 3_000_000)
    assert catalog.checkpoints(atari) == (11_200_000, 22_400_000, 28_000_000)
    assert catalog.checkpoints(mujoco, 0.01) == (10_000, 20_000, 30_000)


def test_every_cell_of_the_tables_has_the_papers_number():
    for cell in catalog.MUJOCO_TABLE + catalog.ATARI_TABLE:
        assert reference.paper_score(cell.env, cell.algo) is not None
        assert reference.norm(cell.env) is not None


def test_unknown_experiment():
    with pytest.raises(UserError, match=r"unknown experiment 'mujoco-tabel' \(did you mean mujoco-table\?\)"):
        catalog.find("mujoco-tabel")


def verdicts(env_id, scores, **more):
    return {row.algo: row.verdict and row.verdict.name for row in compare(env_id, scores, **more)}


def test_compare_puts_the_verdict_on_each_number_of_a_task():
    near = [5000.0, 5040.0, 5060.0, 5100.0, 5055.0]  # the paper: p3o 5051.58, ppo 2022.14, a2c 1907.42
    scores = {"p3o": near, "ppo": [3000.0, 3001.0, 3002.0, 3003.0, 3004.0], "a2c": [100.0] * 5, "acer": [1.0] * 5}
    found = verdicts("HalfCheetah-v4", scores)
    # a2c's number is far off, but P3O is above it in every pair of runs, as in the paper
    assert found == {"p3o": "reproduced", "ppo": "exceeds", "a2c": "ordering reproduced", "acer": None}
    assert verdicts("HalfCheetah-v4", {"a2c": [100.0] * 5}) == {"a2c": "not reproduced"}
    assert set(verdicts("HalfCheetah-v4", scores, scale=0.5).values()) == {"not comparable", None}


def test_p3os_own_ordering_is_against_every_baseline():
    low = [1500.0 + i for i in range(5)]
    assert verdicts("HalfCheetah-v4", {"p3o": low, "a2c": [100.0] * 5})["p3o"] == "ordering reproduced"
    both = {"p3o": low, "a2c": [100.0] * 5, "ppo": [3000.0] * 5}
    assert verdicts("HalfCheetah-v4", both)["p3o"] == "not reproduced"


def test_no_ordering_is_reproduced_where_the_paper_has_p3o_behind():
    scores = {"p3o": [5.0] * 5, "ppo": [1.0] * 5}  # Freeway: the paper has P3O 0 and PPO 32.83
    assert verdicts("FreewayNoFrameskip-v4", scores) == {"p3o": "exceeds", "ppo": "not reproduced"}


def test_an_ordering_takes_enough_seeds_on_both_sides():
    low = [1500.0 + i for i in range(5)]
    few = verdicts("HalfCheetah-v4", {"p3o": low, "a2c": [100.0] * 4})
    assert few == {"p3o": "not reproduced", "a2c": "no verdict"}
    other = verdicts("HalfCheetah-v4", {"p3o": low[:4], "a2c": [100.0] * 5})
    assert other == {"p3o": "no verdict", "a2c": "not reproduced"}
    # a baseline with too few seeds takes nothing from one with enough
    three = {"p3o": low, "a2c": [100.0] * 5, "ppo": [3000.0] * 4}
    assert verdicts("HalfCheetah-v4", three)["p3o"] == "ordering reproduced"
