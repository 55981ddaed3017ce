"""Printed numbers are found under every spelling of an environment, and only there."""

import csv
from importlib import resources

import pytest

from p3o.experiments import reference


@pytest.mark.parametrize(
    ("env_id", "algo", "score"),
    [
        ("HalfCheetah-v2", "p3o", 5051.58),
        ("HalfCheetah-v4", "ppo", 2022.14),
        ("HalfCheetah-v5", "a2cg", 181.46),
        ("Half-Cheetah", "a2c", 1907.42),
        ("Walker2d-v4", "p3o", 3770.86),
        ("InvertedDoublePendulum-v4", "p3o", 8114.05),
        ("InvertedPendulum-v5", "p3o", 985.14),
        ("Ant-v4", "a2cg", -253.54),
        ("PongNoFrameskip-v4", "p3o", 20.95),
        ("ALE/Pong-v5", "acer", 20.80),
        ("PongDeterministic-v4", "a2c", 20.21),
        ("ale_py:ALE/Pong-v5", "ppo", 20.69),
        ("MontezumaRevengeNoFrameskip-v4", "p3o", 805.33),
        ("Humanoid-v4", "acer", None),  # the paper has no ACER on MuJoCo
        ("HumanoidStandup-v4", "p3o", None),
        ("HopperBulletEnv-v0", "p3o", None),
        ("Pong-ramNoFrameskip-v4", "p3o", None),
        ("PhoenixNoFrameskip-v4", "p3o", None),  # published elsewhere, not in the paper
        ("CartPole-v1", "p3o", None),
    ],
)
def test_paper_score(env_id, algo, score):
    assert reference.paper_score(env_id, algo) == score


def test_every_row_of_the_papers_tables_is_found_by_its_environment():
    assert reference.paper_tasks("mujoco") == tuple(reference.MUJOCO_TASKS.values())
    assert len(reference.paper_tasks("atari")) == 49
    for name, row in reference.MUJOCO_TASKS.items():
        assert reference.paper_score(f"{name}-v4", "p3o") == reference.paper_column("mujoco", "p3o")[row]
    for game in reference.paper_tasks("atari"):
        assert reference.paper_score(f"{game}NoFrameskip-v4", "p3o") == reference.paper_column("atari", "p3o")[game]


def test_quoted_columns_are_the_papers_and_agree_with_its_larger_table():
    assert reference.quoted_score("HalfCheetah-v4", "qprop") == 4178
    assert reference.quoted_score("Humanoid-v4", "ipg") == 1651
    assert reference.quoted_score("Hopper-v4", "ipg") is None  # printed as -
    assert reference.quoted_score("Swimmer-v4", "qprop") is None
    for task in ("HalfCheetah-v4", "Walker2d-v4", "Hopper-v4", "Ant-v4", "Humanoid-v4"):
        for algo in ("a2c", "ppo", "p3o"):
            assert reference.quoted_score(task, algo) == pytest.approx(reference.paper_score(task, algo), abs=0.5)


def test_norms():
    human = reference.norm("ALE/Alien-v5")
    assert human == (227.8, 7127.7, "human play")
    ours = reference.norm("Hopper-v4")
    assert ours is not None
    assert ours.high == 2334.32
    assert ours.low == reference.random_score("Hopper-v4")
    assert reference.norm("CartPole-v1") is None


def test_random_scores_were_measured_for_both_versions():
    text = (resources.files("p3o.experiments") / "reference" / "random_mujoco.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert {row["env"] for row in rows} == {f"{t}-{v}" for t in reference.MUJOCO_TASKS for v in ("v4", "v5")}
    assert {row["episodes"] for row in rows} == {"100"}
    assert reference.random_score("Ant-v5") != reference.random_score("Ant-v4")
    assert reference.random_score("Ant-v2") == reference.random_score("Ant-v4")


def test_random_play_is_below_the_papers_p3o_everywhere_but_where_the_paper_scores_nothing():
    for suite, ending in (("mujoco", "-v4"), ("atari", "NoFrameskip-v4")):
        names = reference.MUJOCO_TASKS if suite == "mujoco" else reference.paper_tasks("atari")
        below = [n for n in names if reference.paper_score(n + ending, "p3o") <= reference.random_score(n + ending)]
        assert below == ([] if suite == "mujoco" else ["Enduro", "Freeway", "Venture"])


def test_paper_wins():
    assert reference.paper_wins()["p3o"] == {"won_final": 27, "won_40pct": 32, "won_80pct": 28}
