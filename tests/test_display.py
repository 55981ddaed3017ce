"""What the displays print, on a recorded console and with a clock that the test moves."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

from p3o.display import Header, LiveDisplay, PlainDisplay, make_display
from p3o.errors import UserError
from p3o.panel import History, Status, braille_chart, spark_line

HEADER = Header("P3O on HalfCheetah-v5, seed 0", ["run folder: runs/[a]", "replay: 5,000 trajectories"], 300_000)
METRICS = {
    "ess": 0.871,
    "kl_coef": 0.129,
    "is_clip": 0.871,
    "kl": 0.0213,
    "entropy": 3.14,
    "off_policy_updates": 32.0,
    "value_loss": math.nan,
    "steps_per_second": 4512.0,
}


def status(step: int = 120_064, metrics=METRICS, episodes: int = 120, **changes) -> Status:
    x = np.linspace(1000, max(step, 2000), 50)
    fields = {
        "step": step,
        "total_steps": 300_000,
        "episodes": episodes,
        "mean_return": 1834.21 if episodes else math.nan,
        "mean_length": 1000.0 if episodes else math.nan,
        "steps_per_second": 4512.3,
        "seconds": 26.6,
        "curve": (x, np.sqrt(x)) if episodes else (np.empty(0), np.empty(0)),
        "metrics": metrics,
    }
    return Status(**{**fields, **changes})


class Clock:
    """Time that passes only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def recorded(**options) -> Console:
    return Console(file=io.StringIO(), record=True, **{"width": 100, "height": 40, **options})


def test_plain_line_says_where_the_run_stands():
    console = recorded()
    display = make_display("plain", console)
    display.start(HEADER)
    display.update(status())
    display.stop()
    assert console.export_text().splitlines() == [
        "P3O on HalfCheetah-v5, seed 0",
        "run folder: runs/[a]",  # not taken for markup
        "replay: 5,000 trajectories",
        # (300,000 - 120,064) / 4512.3 = 39.9 s
        "step 120,064/300,000  return 1,834.2  ess 0.87  λ 0.13  kl 0.021  entropy 3.1  4,512 steps/s  0:40 left",
    ]


def test_plain_lines_come_first_every_five_seconds_and_last():
    console, clock = recorded(), Clock()
    display = PlainDisplay(console, clock)
    for tenth in range(103):  # 0.0 s to 10.2 s
        clock.now = 100 + tenth / 10
        display.update(status(step=1000 + tenth))
    display.message("hello")
    display.stop()
    display.stop()
    lines = [line.split("/")[0] for line in console.export_text().splitlines()]
    assert lines == ["step 1,000", "step 1,050", "step 1,100", "hello", "step 1,102"]


def test_plain_line_before_the_first_episode_and_for_another_algorithm():
    console = recorded()
    display = PlainDisplay(console)
    display.update(status(step=0, episodes=0, metrics={"clip_fraction": 0.25}, steps_per_second=0.0))
    assert console.export_text() == "step 0/300,000  return –  clip fraction 0.25  0 steps/s  – left\n"


def test_plain_line_without_unicode():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    PlainDisplay(Console(file=file)).update(status())
    file.seek(0)
    assert "lambda 0.13" in file.read()


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("no_color", [False, True])
def test_live_panel_fits_and_shows_the_quantities(width, no_color):
    console = recorded(width=width, height=24, force_terminal=True, no_color=no_color)
    display = make_display("live", console)
    display.start(HEADER)
    for step in (1000, 50_000, 120_064):
        display.update(status(step))
    display.stop()
    text = console.export_text()
    panel = text[text.rindex("╭") :].splitlines()  # the last of those drawn
    assert len(panel) <= 24
    assert {len(line) for line in panel} == {min(width, 120)}
    for word in ("ESS", "λ", "120,064", "1,834.2", "4,512 steps/s", "0:40 left"):
        assert word in "\n".join(panel), word
    assert "\n".join(panel).count("steps/s") == 1  # beside the bar, and not again among the metrics
    assert any(0x2801 <= ord(c) <= 0x28FF for c in text)


@pytest.mark.parametrize("size", [(20, 5), (60, 8), (60, 24)])
def test_live_panel_stands_small_terminals_and_empty_runs(size):
    console = recorded(width=size[0], height=size[1], force_terminal=True)
    display = LiveDisplay(console)
    display.start(HEADER)
    display.update(status(step=0, episodes=0, metrics={}, steps_per_second=math.nan, total_steps=0))
    display.update(status(step=1, episodes=1, curve=(np.array([1]), np.array([5.0]))))
    display.stop()


def test_live_panel_is_drawn_four_times_a_second_and_keeps_the_last_state():
    console, clock = recorded(force_terminal=True), Clock()
    display = LiveDisplay(console, clock)
    drawn = []
    draw = display._draw
    display._draw = lambda: (drawn.append(clock.now - 100), draw())  # type: ignore[method-assign,func-returns-value]
    display.start(HEADER)
    for hundredth in range(101):
        clock.now = 100 + hundredth / 100
        display.update(status(step=1000 + hundredth))
    assert drawn == [0, 0.25, 0.5, 0.75, 1]
    display.update(status(step=77_777))
    display.message("[checkpoint] written")
    display.stop()
    text = console.export_text()
    assert "[checkpoint] written" in text
    assert "77,777" in text[text.rindex("╭") :]


def test_auto_is_plain_without_a_terminal_and_none_is_silent(capsys):
    assert isinstance(make_display("auto"), PlainDisplay)
    assert isinstance(make_display("auto", recorded(force_terminal=True)), PlainDisplay)
    for kind in ("plain", "live", "none"):
        display = make_display(kind)
        display.start(HEADER)
        display.update(status())
        display.stop()
        out, err = capsys.readouterr()
        assert out == ""  # standard output is for the path of the run folder
        assert ("HalfCheetah" in err) == (kind != "none")


@pytest.mark.parametrize(("term", "kind"), [("xterm-256color", LiveDisplay), ("dumb", PlainDisplay)])
def test_auto_is_live_on_a_terminal_that_is_not_dumb(monkeypatch, term, kind):
    monkeypatch.setenv("TERM", term)
    file = io.StringIO()
    file.isatty = lambda: True  # type: ignore[method-assign]
    assert isinstance(make_display("auto", Console(file=file)), kind)


def test_an_unknown_kind_is_one_line():
    with pytest.raises(UserError, match=r"display 'plane' is unknown; .* \(did you mean plain\?\)"):
        make_display("plane")  # type: ignore[arg-type]


def test_braille_chart_of_a_rising_line():
    # Two characters by one: four columns of dots at levels 0, 1, 2, 3, each joined to the one before.
    # Dots 7 (0x40) and 6 (0x20) in the first cell, 2 (0x02) and 4 (0x08) in the second.
    assert braille_chart(np.array([0.0, 3.0]), np.array([0.0, 3.0]), 2, 1) == [chr(0x2860) + chr(0x280A)]


def test_braille_chart_of_a_flat_line_and_of_a_jump():
    flat = braille_chart(np.array([0.0, 1.0]), np.array([5.0, 5.0]), 3, 3)
    assert [line.strip() != "" for line in flat] == [False, True, False]
    jump = braille_chart(np.array([0.0, 0.5, 0.501, 1.0]), np.array([0.0, 0.0, 1.0, 1.0]), 4, 3)
    assert all(line.strip() for line in jump)  # the rise is closed through the middle row


def test_spark_line():
    assert spark_line([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert spark_line([0, 0, 7, 7], 2) == "▁█"
    assert spark_line([3.0, 3.0], 5) == "▄▄"
    assert spark_line([], 5) == spark_line([1.0], 0) == ""


def test_history_spans_the_run_in_bounded_space():
    history = History(capacity=8)
    for step in range(1000):
        history.add(status(step, metrics={"kl": float(step)}))
        history.add(status(step, metrics={"kl": -1.0}))  # the same step again adds nothing
    values = history.values("kl")
    assert len(values) <= 8
    assert values[0] == 0
    assert values[-1] > 800
    assert len(set(np.diff(values))) == 1
