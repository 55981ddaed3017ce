"""The published comparison: a table worked by hand, and the counts that the paper's own numbers give."""

from pathlib import Path

import pytest

from p3o.experiments import published as pub
from p3o.experiments.reference import paper_column, published


def test_tally_by_hand():
    ours = {"a": 3.0, "b": 1.0, "c": 0.0, "d": 5.0}
    theirs = {"a": 1.0, "b": 2.0, "c": 0.0, "e": 9.0}
    assert pub.tally(ours, theirs) == (1, 1, ("c",), ("d",))
    assert pub.tally(ours, theirs).text == "1:1"


def test_summary_by_hand():
    low, high = published("random"), published("human")
    games = ("Alien", "Pong", "Breakout", "Qbert")
    shares = (0.0, 0.5, 1.0, 2.0)
    column = {g: low[g] + share * (high[g] - low[g]) for g, share in zip(games, shares, strict=True)}
    found = pub.summary(column)
    assert found[:4] == pytest.approx((0.75, 0.75, 0.875, 1 - 2.5 / 4))
    assert pub.summary({"Alien": 0.0, "Pong": 1.0}).zeros == ("Alien",)


def test_close_games_by_hand():
    columns = {"a": {"x": 100.0, "y": -10.0, "z": 0.0}, "b": {"x": 96.0, "y": -20.0, "z": 0.0}}
    assert pub.close_games(columns, 0.05) == 1
    assert pub.close_games(columns, 0.01) == 0


@pytest.mark.parametrize(
    ("opponent", "text", "num_ties"),
    [
        ("c51", "18:30", 1),
        ("ddqn", "33:15", 0),
        ("sil", "23:24", 1),
        ("human", "32:17", 0),
        ("dopamine_c51_112M", "35:14", 0),
    ],
)
def test_the_papers_table_against_published_columns(opponent, text, num_ties):
    found = pub.tally(paper_column("atari", "p3o"), published(opponent))
    assert found.text == text
    assert len(found.ties) == num_ties


def test_write(tmp_path):
    assert [file.name for file in pub.write(tmp_path)] == ["comparison.csv", "summary.md"]
    table = (tmp_path / "comparison.csv").read_text().splitlines()
    assert "c51,18,30,1,18:30,IceHockey," in table
    assert len(table) == 1 + 13 + 3
    text = (tmp_path / "summary.md").read_text()
    assert "| 33:15 | – | 32:17 | **does not agree** (Pitfall not published) |" in text
    assert "| 18:30 | IceHockey | 18:30 | agrees |" in text
    assert "- median over the 8 tasks of P3O's number over PPO's: 2.04" in text
    assert "- median over the 8 tasks of P3O's number over A2C's: 2.23" in text
    assert "- A2C without GAE against A2CG, tasks won : lost: 8:0" in text
    assert "- P3O against the quoted Q-Prop: 4:1" in text


def test_the_page_about_the_paper_has_what_the_command_prints(tmp_path):
    pub.write(tmp_path)
    page = (Path(__file__).parent.parent / "docs" / "paper.md").read_text(encoding="utf-8").splitlines()
    printed = (tmp_path / "summary.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in printed if line.startswith(("|", "- ", "Games")) and line not in page] == []
