"""The report page, read as text and parsed as HTML."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from p3o.errors import UserError
from p3o.report import write_report
from p3o.report.axes import line_path, linear_axis, value_axis
from p3o.wording import format_return, format_share

COLUMNS = (
    "ess,kl_coef,is_clip,kl,entropy,policy_loss,value_loss,off_policy_loss,ratio_mean,ratio_max,off_policy_updates,"
    "grad_norm,learning_rate,steps_per_second"
)
P3O_LINE = "0.87,0.13,0.87,0.021,3.1,0.01,0.4,0.02,1.0,3.2,32,0.5,0.0007,4512"
VOID = {"meta", "link", "br", "path"}  # path is closed by itself
HOSTILE = "</script><script>alert(1)</script>&\"'<b>"


def write_run(path: Path, episodes=(), updates: str | None = None, evaluations: str = "", **config) -> Path:
    path.mkdir()
    default = {
        "format": 1,
        "algo": "p3o",
        "preset": "default",
        "variant": "",
        "seed": 0,
        "env": {"id": "HalfCheetah-v5", "kwargs": {}, "observation_space": "Box(17)", "action_space": "Box(6)"},
        "steps": 1000,
        "settings": {"num_envs": 16, "hidden": [64, 64]},
        "versions": {"p3o": "0.1.0"},
        "machine": {"cpu": "a chip"},
        "command": "p3o train HalfCheetah-v5",
        "started": "2026-02-03T14:05:11",
    }
    (path / "config.json").write_text(json.dumps({**default, **config}))
    lines = [f"{step},0,{value},10,{step / 100}\n" for step, value in episodes]
    (path / "episodes.csv").write_text("step,env,return,length,seconds\n" + "".join(lines))
    if updates is None:
        updates = f"step,{COLUMNS}\n" + "".join(f"{step},{P3O_LINE}\n" for step in range(100, 1001, 100))
    (path / "updates.csv").write_text(updates)
    if evaluations:
        (path / "evaluations.csv").write_text("step,episode,return,length\n" + evaluations)
    return path


def page_of(path: Path) -> str:
    page = write_report(path).read_text(encoding="utf-8")
    Checker().check(page)
    return page


class Checker(HTMLParser):
    """Well-formed, every id once, every reference to an id answered, nothing loaded from elsewhere."""

    def check(self, page: str) -> None:
        self.open: list[str] = []
        self.ids: list[str] = []
        self.wanted: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []
        assert len(set(self.ids)) == len(self.ids)
        assert set(self.wanted) <= set(self.ids)
        assert not re.search(r"https?://|url\(|@import|src=", page)
        assert len(page.encode()) < 500_000
        points = re.search(r'<script type="application/json" id="points">(.*?)</script>', page, re.DOTALL)
        assert points
        json.loads(points[1], parse_constant=pytest.fail)

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("aria-labelledby", "aria-describedby"):
                self.wanted += value.split()
            if name == "href" and value.startswith("#"):
                self.wanted.append(value[1:])

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_says_in_words_what_happened(tmp_path):
    # 150 episodes with returns 0..149: the last hundred are 50..149, their mean 99.5.
    episodes = [(6 * (i + 1), float(i)) for i in range(150)]
    path = write_run(tmp_path / "run", episodes)
    assert write_report(path) == path / "report.html"
    page = page_of(path)
    assert "P3O was trained on HalfCheetah-v5 for 1,000 environment steps." in page
    assert "the mean return of the last 100 of its 150 episodes, is 99.5." in page
    assert "The curve was highest at step 900, with 99.5." in page
    assert (
        "The effective sample size settled at 0.87: replayed data were worth 87 % of fresh data, "
        "so the clip c was 0.87 and the KL weight λ 0.13." in page
    )
    assert "at 100 steps a second" in page  # step 900 after 9 seconds
    assert "<td>[64, 64]</td>" in page
    assert "p3o train HalfCheetah-v5" in page
    assert "None: the run is finished" in page
    for label in ("Effective sample size", "KL weight λ", "Importance clip c", "Gradient norm", "Learning rate"):
        assert f"<h3>{label}" in page
    headings = [page.index(f">{h}</h2>") for h in ("Summary", "Learning curve", "Inside the algorithm", "Settings")]
    assert headings == sorted(headings)


def test_a_fixed_clip_is_not_said_to_follow_from_the_ess(tmp_path):
    page = page_of(write_run(tmp_path / "run", [(5, 1.0)], "step,ess,is_clip,kl_coef\n100,0.5,1,0\n"))
    assert "worth 50 % of fresh data, while in this run the clip c was 1.00 and the KL weight λ 0.00." in page


def test_the_page_is_the_same_each_time_and_goes_where_it_is_told(tmp_path):
    path = write_run(tmp_path / "run", [(5, 1.0), (6, 2.0)])
    first = write_report(path).read_bytes()
    out = write_report(path, tmp_path / "page.html")
    assert out == tmp_path / "page.html"
    assert out.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["page.html", "run"]


def test_the_folder_of_the_page_is_made(tmp_path):
    assert write_report(write_run(tmp_path / "run"), tmp_path / "new" / "pages" / "page.html").is_file()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    path = write_run(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/page\.html: cannot be written \(.+\)"):
        write_report(path, tmp_path / "file" / "page.html")
    with pytest.raises(UserError, match="is a folder"):
        write_report(path, tmp_path)


def test_zero_episodes_and_one_episode(tmp_path):
    page = page_of(write_run(tmp_path / "none", updates=""))
    assert "No episode has ended yet" in page
    assert page.count("No episode has ended yet, so there is no score.") == 2  # in the summary and among warnings
    assert "its files end at step 0 of 1,000" in page
    page = page_of(write_run(tmp_path / "one", [(40, -7.25)]))
    assert "Only one episode has ended; its return was -7.25." in page
    assert "the final score rests on 1." in page


def test_warnings_for_an_unfinished_run_and_for_values_that_are_not_finite(tmp_path):
    updates = "step,kl,ess\n100,nan,\n200,0.5,\n300,inf,\n"
    page = page_of(write_run(tmp_path / "run", [(5, 1.0), (9, float("nan"))], updates))
    assert "for 300 environment steps of the 1,000 asked for" in page
    assert "The run is not finished: its files end at step 300 of 1,000." in page
    assert "not finite numbers were recorded in episodes.csv: return, updates.csv: kl." in page
    assert "3 warnings" in page
    assert "<h3>KL divergence" in page
    assert "<h3>Effective sample size" not in page  # a column without a number has no chart


def test_the_page_says_where_a_killed_run_goes_on(tmp_path):
    run = write_run(tmp_path / "run", steps=2000)
    assert "last checkpoint" not in write_report(run).read_text()
    (run / "checkpoint").mkdir()
    for index in ("{", "[]", '{"step": "x"}'):
        (run / "checkpoint" / "checkpoint.json").write_text(index)
        assert "last checkpoint" not in write_report(run).read_text()
    (run / "checkpoint" / "checkpoint.json").write_text('{"step": 1250}')
    page = write_report(run).read_text()
    assert "Its last checkpoint is at step 1,250; `p3o resume` with its folder goes on from there." in page


def test_the_page_says_what_the_command_does_not_tell(tmp_path):
    """`p3o resume RUN --steps 40000` after `p3o train ... --steps 20000`."""
    resumes = [{"at_step": 12_345, "steps": 20_000}, {"at_step": 20_000, "steps": 40_000, "planned": 20_000}, 3, {}]
    page = write_report(write_run(tmp_path / "run", steps=40_000, resumes=resumes)).read_text()
    assert "<p>Resumed at step 12,345, to a total of 20,000.</p>" in page
    assert "<p>Resumed at step 20,000, to a total of 40,000 instead of 20,000, schedules included.</p>" in page
    assert page.count("<p>Resumed at") == 2


@pytest.mark.parametrize(
    ("value", "share", "as_return"), [(-0.001, "0.00", "0.00"), (-0.3, "-0.30", "-0.30"), (12.34, "12.34", "12.3")]
)
def test_nothing_is_a_negative_zero(value, share, as_return):
    assert (format_share(value), format_return(value)) == (share, as_return)


def test_another_algorithm_gets_charts_of_its_own_columns(tmp_path):
    updates = "step,trace_length,entropy\n500,0.1,1\n1000,0.2,0.5\n"
    page = page_of(write_run(tmp_path / "run", [(5, 1.0), (900, 2.0)], updates, algo="ppo"))
    assert "PPO was trained on" in page
    assert "<h3>Trace length" in page
    assert page.index("<h3>Entropy") < page.index("<h3>Trace length")
    assert "effective sample size" not in page


def test_evaluations_are_marked_at_their_means(tmp_path):
    evaluations = "500,0,10,5\n500,1,20,5\n"
    page = page_of(write_run(tmp_path / "run", [(5, 1.0), (900, 30.0)], evaluations=evaluations))
    assert "evaluation, deterministic actions" in page
    assert "evaluation at 500: 15.0" in page
    assert "evaluation, deterministic" not in page_of(write_run(tmp_path / "other", [(5, 1.0)]))


def test_nothing_from_the_files_becomes_markup(tmp_path):
    config = {
        "env": {"id": HOSTILE, "kwargs": {HOSTILE: HOSTILE}},
        "algo": HOSTILE,
        "variant": HOSTILE,
        "command": HOSTILE + "\ud800",
        "settings": {HOSTILE: [HOSTILE]},
        "started": HOSTILE,
    }
    column = HOSTILE.replace(",", "")
    page = page_of(write_run(tmp_path / "run", [(5, 1.0)], f"step,{column}\n10,1\n", **config))
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "<b>" not in page.replace("<b>1</b>", "")  # the last value beside a chart's name


def test_a_long_run_is_thinned(tmp_path):
    rng = np.random.default_rng(0)
    episodes = list(enumerate(rng.normal(size=20_000).round(3)))
    updates = f"step,{COLUMNS}\n" + "".join(f"{step},{P3O_LINE}\n" for step in range(5000))
    page = page_of(write_run(tmp_path / "run", episodes, updates, steps=20_000))  # under 500 kB, checked there
    dots = re.search(r'class="dots" d="([^"]*)"', page)
    assert dots
    assert dots[1].count("M") == 1500


def test_ticks_are_round_numbers():
    axis = linear_axis(0, 300_000, 4)
    assert [label for _, label in axis.ticks] == ["0", "100,000", "200,000", "300,000"]
    np.testing.assert_allclose([place for place, _ in axis.ticks], [0, 100 / 3, 200 / 3, 100])
    assert [label for _, label in linear_axis(-0.3, 0.31, 4).ticks] == ["-0.2", "0", "0.2"]
    assert [label for _, label in linear_axis(1e-5, 7e-4, 4).ticks] == ["2e-4", "4e-4", "6e-4"]


def test_axes_of_constant_and_of_very_uneven_values():
    flat = value_axis(np.array([2.0, np.nan, 2.0]), 5)
    np.testing.assert_allclose(flat.place(np.array([2.0])), 500)
    log = value_axis(np.array([0.1, 10.0, 1000.0]), 5, may_be_log=True)
    assert log.is_log
    np.testing.assert_allclose(log.place(np.array([10.0])), 500)
    assert [label for _, label in log.ticks] == ["0.1", "1", "10", "100", "1,000"]


def test_a_line_is_broken_at_gaps_and_a_lone_point_is_a_dot():
    x = np.array([0.0, 1, 2, 3, 4])
    assert line_path(x, np.array([0, 10, np.nan, 30, np.nan])) == "M0.0 1000.0L1.0 990.0M3.0 970.0h0"
