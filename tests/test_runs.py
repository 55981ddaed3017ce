"""Run folders written by hand, read back."""

import gzip
import json
import math
from pathlib import Path

import numpy as np
import pytest

from p3o.config import BEFORE
from p3o.errors import UserError
from p3o.runs import failed_folders, load_run, window_mean
from p3o.wording import format_clock, format_number, format_return, metric

CONFIG = {
    "format": 1,
    "algo": "p3o",
    "preset": "default",
    "variant": "",
    "seed": 3,
    "env": {"id": "HalfCheetah-v5", "kwargs": {}, "observation_space": "Box(17)", "action_space": "Box(6)"},
    "steps": 400,
    "settings": {"num_envs": 2},
}
EPISODES = "step,env,return,length,seconds\n100,0,10.0,100,1.0\n200,1,20.5,100,2.0\n200,0,-3,100,2.0\n"
UPDATES = "step,ess,kl_coef\n100,,\n200,0.75,0.25\n400,0.5,0.5\n"


def write_run(path: Path, config=CONFIG, episodes: str = EPISODES, updates: str = UPDATES) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (path / "episodes.csv").write_text(episodes)
    (path / "updates.csv").write_text(updates)
    return path


def test_a_run_folder_is_read_as_it_was_written(tmp_path):
    run = load_run(write_run(tmp_path / "run"))
    assert run.config == CONFIG | {"settings": BEFORE | CONFIG["settings"]}  # what was not yet to be set
    assert run.env_id == "HalfCheetah-v5"
    assert run.episodes["step"].tolist() == [100, 200, 200]
    assert run.episodes["env"].tolist() == [0, 1, 0]
    assert run.episodes["return_"].tolist() == [10.0, 20.5, -3.0]
    assert run.episodes["step"].dtype == np.int64
    assert list(run.updates) == ["step", "ess", "kl_coef"]
    np.testing.assert_array_equal(run.updates["ess"], [np.nan, 0.75, 0.5])
    assert run.evaluations is None
    assert run.non_finite == ()
    assert run.last_step == 400
    assert run.is_finished


def test_evaluations_are_read_when_they_are_there(tmp_path):
    path = write_run(tmp_path / "run")
    (path / "evaluations.csv").write_text("step,episode,return,length\n100,0,5.5,10\n")
    evaluations = load_run(str(path)).evaluations
    assert evaluations is not None
    assert {name: column.tolist() for name, column in evaluations.items()} == {
        "step": [100],
        "episode": [0],
        "return_": [5.5],
        "length": [10],
    }


@pytest.mark.parametrize("text", ["", "step,env,ret", "step,env,return,length,seconds\n", None])
def test_a_run_that_has_only_begun_has_no_episodes(tmp_path, text):
    path = write_run(tmp_path / "run", episodes=text or "", updates="")
    if text is None:
        (path / "episodes.csv").unlink()
        (path / "updates.csv").unlink()
    run = load_run(path)
    assert run.episodes["return_"].shape == (0,)
    assert run.updates["step"].shape == (0,)
    assert run.last_step == 0


def test_a_last_line_in_progress_is_left_out(tmp_path):
    run = load_run(write_run(tmp_path / "run", episodes=EPISODES + "300,1,4", updates=UPDATES + "50"))
    assert len(run.episodes["step"]) == len(run.updates["step"]) == 3


def test_windows_line_ends_are_read(tmp_path):
    run = load_run(write_run(tmp_path / "run", episodes=EPISODES.replace("\n", "\r\n")))
    assert run.episodes["seconds"].tolist() == [1.0, 2.0, 2.0]


def test_a_written_nan_is_told_from_an_empty_cell(tmp_path):
    run = load_run(write_run(tmp_path / "run", updates="step,kl,ess\n1,nan,\n2,1,\n3,,-inf\n"))
    assert run.non_finite == ("updates.csv: kl", "updates.csv: ess")


@pytest.mark.parametrize(("last", "is_finished"), [(416, True), (400, True), (384, False), (0, False)])
def test_a_run_is_finished_when_its_last_update_line_is_at_the_total(tmp_path, last, is_finished):
    lines = "".join(f"{step},1\n" for step in (200, last) if last)  # the total is 400
    episodes = EPISODES + "399,0,1,100,3.0\n"
    run = load_run(write_run(tmp_path / "run", episodes=episodes, updates=f"step,ess\n{lines}"))
    assert run.is_finished is is_finished


def test_a_packed_run_is_finished_when_its_last_episode_ended_near_the_total(tmp_path):
    for steps, is_finished in ((10_200, True), (10_201, False)):
        path = write_run(tmp_path / f"{steps}", config=CONFIG | {"steps": steps})
        (path / "updates.csv").unlink()
        assert load_run(path).is_finished is is_finished
    (path / "episodes.csv").unlink()  # it has only begun: nothing is packed here
    assert not load_run(path).is_finished


def test_runs_that_a_sweep_calls_failed(tmp_path):
    assert failed_folders(tmp_path / "sweep.json") == set()
    entry = {"folder": "a", "state": "failed", "algo": "p3o", "env": "Hopper-v5", "seed": 0}
    (tmp_path / "sweep.json").write_text(json.dumps({"runs": [entry, entry | {"folder": "b", "state": "finished"}]}))
    assert failed_folders(tmp_path / "sweep.json") == {tmp_path / "a"}
    for damaged in ("[", "[]", '{"runs": 3}', '{"runs": [{"folder": "a"}]}', '{"runs": [3]}'):
        (tmp_path / "sweep.json").write_text(damaged)
        with pytest.raises(UserError, match=r"sweep\.json: damaged, not the index of a sweep"):
            failed_folders(tmp_path / "sweep.json")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json: not valid JSON at line 1"),
        ("[" * 100_000, "config.json: not valid JSON"),
        ("[]", "config.json: holds list, should be a JSON object"),
        ({**CONFIG, "format": 2}, "config.json: format is 2, this version of p3o reads format 1"),
        ({**CONFIG, "format": True}, "config.json: format is True"),
        ({"algo": "p3o"}, "config.json: format is None"),
        ({**CONFIG, "env": "Hopper"}, "config.json: env is Hopper, should be an object"),
        ({**CONFIG, "env": {}}, "config.json: env.id is missing"),
        ({**CONFIG, "steps": "1e6"}, "config.json: steps is 1e6, should be a number"),
        ({**CONFIG, "steps": math.inf}, "config.json: steps is inf"),
    ],
)
def test_a_bad_config_is_one_line_that_names_it(tmp_path, config, words):
    check_one_line(write_run(tmp_path / "run", config=config), words)


@pytest.mark.parametrize(
    ("episodes", "updates", "words"),
    [
        ("step,return\n", UPDATES, "episodes.csv line 1: header is 'step,return', should be 'step,env,return,length"),
        (EPISODES + "300,1,5.0\n", UPDATES, "episodes.csv line 5: 3 cells, should be 5"),
        (EPISODES + "300,1,x\x1b[2J,9,1\n", UPDATES, "episodes.csv line 5: return is 'x�[2J', should be a number"),
        (EPISODES + "300,1,,9,1\n", UPDATES, "episodes.csv line 5: return is '', should be a number"),
        (EPISODES + "3.5,1,1,9,1\n", UPDATES, "episodes.csv line 5: step is '3.5', should be a whole number"),
        (EPISODES + "nan,1,1,9,1\n", UPDATES, "episodes.csv line 5: step is 'nan', should be a whole number"),
        (EPISODES + "150,1,1,9,1\n", UPDATES, "episodes.csv line 5: step 150 is less than the one before"),
        (EPISODES + "\n", UPDATES, "episodes.csv line 5: 1 cells, should be 5"),
        (EPISODES, "ess,step\n", "updates.csv line 1: header is 'ess,step', should be 'step,…'"),
        (EPISODES, "step,kl,kl\n", "updates.csv line 1: header"),
        (EPISODES, "step,kl\n,1\n", "updates.csv line 2: step is '', should be a whole number"),
        (EPISODES, "step,kl\n1,one\n", "updates.csv line 2: kl is 'one', should be a number"),
    ],
)
def test_a_broken_line_is_one_line_that_names_file_and_line(tmp_path, episodes, updates, words):
    check_one_line(write_run(tmp_path / "run", episodes=episodes, updates=updates), words)


def test_what_is_no_run_folder_is_said_in_one_line(tmp_path):
    check_one_line(tmp_path / "nowhere", "nowhere: no such folder")
    check_one_line(tmp_path, "no run folder (it has no config.json)")
    (tmp_path / "file").write_text("")
    check_one_line(tmp_path / "file", "file: not a folder")
    path = write_run(tmp_path / "run")
    (path / "updates.csv").write_bytes(b"step\n\xff\n")
    check_one_line(path, "updates.csv: cannot be read (not UTF-8 text)")


def check_one_line(path: Path, words: str):
    with pytest.raises(UserError) as caught:
        load_run(path)
    message = str(caught.value)
    assert words in message
    assert message.isprintable()
    assert len(message) < 500


def test_window_mean_by_hand():
    steps = [10, 20, 20, 30]
    returns = [1.0, 2.0, 6.0, 10.0]
    # Windows of two: none before 10; {1} at 10; {2, 6} at 20, both of that step; {6, 10} from 30 on.
    at = [9, 10, 19, 20, 29, 30, 1000]
    np.testing.assert_array_equal(window_mean(steps, returns, at, window=2), [np.nan, 1, 1, 4, 4, 8, 8])
    # Fewer than a hundred: all of them, (1 + 2 + 6 + 10) / 4.
    assert window_mean(steps, returns, 30) == 4.75
    assert np.isnan(window_mean([], [], 30))


def test_window_mean_leaves_the_hundred_and_first_episode_out():
    steps = np.arange(1, 102)
    returns = np.concatenate([[1000.0], np.ones(100)])
    assert window_mean(steps, returns, 100) == (1000 + 99) / 100
    assert window_mean(steps, returns, 101) == 1.0


def test_a_return_that_is_not_finite_spoils_only_the_windows_that_hold_it():
    mean = window_mean([1, 2, 3, 4], [1.0, np.inf, 3.0, 5.0], [1, 2, 3, 4], window=2)
    np.testing.assert_array_equal(mean, [1, np.nan, np.nan, 4])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.8712, "0.871"),
        (3.14159, "3.14"),
        (12.345, "12.3"),
        (1834.21, "1,834.2"),
        (4_512_000.4, "4,512,000"),
        (32.0, "32"),
        (-0.0213, "-0.0213"),
        (6.5e-5, "6.50e-5"),
        (math.nan, "–"),
        (-math.inf, "-∞"),
    ],
)
def test_numbers_are_written_to_be_read(value, text):
    assert format_number(value) == text


def test_returns_and_clocks_are_written_to_be_read():
    assert [format_return(v) for v in (1834.25, -20.96, 0.734, math.nan)] == ["1,834.2", "-21.0", "0.73", "–"]
    assert [format_clock(v) for v in (40, 725.4, 11_220, math.nan)] == ["0:40", "12:05", "3:07:00", "–"]


def test_an_unknown_column_gets_a_name_made_from_its_own():
    assert metric("kl_coef").symbol == "λ"
    assert metric("trace_length") == ("trace length", "Trace length", "The column trace_length of updates.csv.")


def test_compressed_files_are_read_where_there_are_no_others(tmp_path):
    path = write_run(tmp_path / "run")
    plain = load_run(path)
    for name in ("episodes.csv", "updates.csv"):
        (path / f"{name}.gz").write_bytes(gzip.compress((path / name).read_bytes()))
        (path / name).unlink()
    packed = load_run(path)
    for name, column in plain.episodes.items():
        np.testing.assert_array_equal(packed.episodes[name], column)
    np.testing.assert_array_equal(packed.updates["ess"], plain.updates["ess"])
    (path / "episodes.csv").write_text("step,env,return,length,seconds\n")
    assert load_run(path).episodes["step"].size == 0  # the plain file goes first


@pytest.mark.parametrize(
    ("episodes", "complaint"),
    [
        ("100,0,10.0,100,1.0\n\n", "line 3: 1 cells"),
        ("100,0,10.0,100,1.0\n200,0,10.0,100\n", "line 3: 4 cells"),
        ("100,0,10.0,100,1.0\n200.5,0,10.0,100,1.0\n", "line 3: step is '200.5'"),
        ("100,0,10.0,100,1.0\n50,0,10.0,100,1.0\n", "line 3: step 50 is less"),
        ("100,0,10.0,100,1.0\n#,0,10.0,100,1.0\n", "line 3: step is '#'"),
        ("100,-1,10.0,100,1.0\n", "line 2: env is '-1'"),
        ("\n", "line 2: 1 cells"),
    ],
)
def test_reading_many_lines_at_once_hides_no_mistake(tmp_path, episodes, complaint):
    header = "step,env,return,length,seconds\n"
    with pytest.raises(UserError, match=complaint):
        load_run(write_run(tmp_path / "run", episodes=header + episodes))
