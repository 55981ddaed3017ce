"""The page of several runs in headless Chromium: drawn, switched, toggled, read, and nothing asked of the network."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from commands import call
from synthetic import write_run, write_sweep

from p3o.report import write_report

pytestmark = pytest.mark.chromium
TASKS = ["CartPole-v1", "Acrobot-v1"]
ALGOS = ["p3o", "ppo", "a2c"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Returns are positive on CartPole, so that it has a logarithmic scale, and not on Acrobot."""
    root = tmp_path_factory.mktemp("sweeps") / "sweep"
    write_sweep(root, ["Acrobot-v1"], ALGOS, 3, {"p3o": -100.0, "ppo": -200.0, "a2c": -300.0})
    write_sweep(root, ["CartPole-v1"], ALGOS, 3)
    for file in (root / "CartPole-v1").rglob("episodes.csv"):
        head, *lines = file.read_text().splitlines()
        cells = [line.split(",") for line in lines]
        file.write_text("\n".join([head, *(",".join([*c[:2], str(abs(float(c[2])) + 1), *c[3:]]) for c in cells), ""]))
    return root


@pytest.fixture(scope="module")
def browser():
    with Browser() as found:
        yield found


@pytest.fixture
def page(browser, sweep, tmp_path):
    """The page, freshly opened; afterwards nothing went wrong and nothing but the page was asked for."""
    file = write_report(sweep, tmp_path / "page.html")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(file)
    yield browser
    assert browser.errors == []
    assert browser.requests == [file.resolve().as_uri()]


CART = '.plot[data-chart="task-1"]'  # tasks are in the order of their names


def lines(page: Browser, chart: str = CART, kind: str = "line") -> list[str]:
    """The paths of a chart's lines that can be seen."""
    return page.run(
        f"[...document.querySelectorAll('{chart} .series')].filter(g => g.style.display !== 'none')"
        f".flatMap(g => [...g.querySelectorAll('.{kind}')].map(p => p.getAttribute('d'))).filter(Boolean)"
    )


def labels(page: Browser, side: str, chart: str = CART) -> list[str]:
    return page.run(f"[...document.querySelectorAll('{chart} .{side}-labels span')].map(s => s.textContent)")


def ends(path: str) -> tuple[float, float]:
    """The last point of a path in a square of 1000, y downwards."""
    x, y = path.rsplit("L", 1)[1].split(" ")
    return float(x), float(y)


def test_curves_are_drawn_and_the_script_redraws_them_as_they_were(page):
    before = lines(page)
    assert len(before) == 3
    assert all(path.count("L") > 150 for path in before)
    assert len(lines(page, kind="band")) == 3
    box = page.run(f"(b => [b.width, b.height])(document.querySelector('{CART} svg').getBoundingClientRect())")
    assert min(box) > 200
    heights = [ends(path)[1] for path in before]
    assert heights == sorted(heights)  # P3O highest, then PPO, then A2C
    ticks = labels(page, "y")
    page.click('[data-y="log"]')
    page.click('[data-y="linear"]')
    assert labels(page, "y") == ticks
    for ours, theirs in zip(lines(page), before, strict=True):
        mine, its = (np.array(path[1:].replace("L", " ").split(" "), float) for path in (ours, theirs))
        np.testing.assert_allclose(mine, its, atol=0.2)  # the script has five digits


def test_a_seed_is_toggled(page):
    assert lines(page, kind="seed") == []
    page.click('button[data-run="task-1/0/2"]')
    (path,) = lines(page, kind="seed")
    assert path.count("L") > 150
    assert page.run("document.querySelector('button[data-run=\"task-1/0/2\"]').getAttribute('aria-pressed')") == "true"
    assert lines(page, '.plot[data-chart="task-0"]', "seed") == []
    page.click('button[data-run="task-1/0/2"]')
    assert lines(page, kind="seed") == []
    page.click("#seeds")
    assert len(lines(page, kind="seed")) == 9
    assert page.run("document.querySelectorAll('button[data-run][aria-pressed=true]').length") == 18
    page.click('button[data-run="task-1/0/2"]')
    assert len(lines(page, kind="seed")) == 8
    page.click("#seeds")
    page.click("#seeds")
    assert lines(page, kind="seed") == []


def test_a_group_is_toggled_in_every_chart(page):
    charts = page.run("[...document.querySelectorAll('.plot')].map(p => p.dataset.chart)")
    page.click('.chip[data-group="0"]')
    for chart in charts:
        wanted = 0 if chart.startswith("inside") else 2
        assert len(lines(page, f'.plot[data-chart="{chart}"]')) == wanted
    page.click('.chip[data-group="0"]')
    assert len(lines(page)) == 3


def test_chapters_do_not_touch_each_other(browser, tmp_path):
    root = write_sweep(tmp_path / "sweep", ["CartPole-v1"], ["p3o", "ppo"], 2)
    (root / "chapters.toml").write_text("[[chapter]]\ntitle = 'One'\n[[chapter]]\ntitle = 'Two'\nalgos = ['p3o']\n")
    browser.open(write_report(root, tmp_path / "page.html"))
    first, second = (f'[data-chapter="part-{i}-"]' for i in (1, 2))
    browser.click(f"{first} .chip[data-group='0']")
    browser.click(f"{second} .seeds")

    def count(chapter: str, what: str) -> int:
        return browser.run(f"""document.querySelectorAll('{chapter} [data-chart="task-0"] {what}').length""")

    hidden = '[style*="display: none"]'
    assert [count(first, f".series{hidden}"), count(second, f".series{hidden}")] == [1, 0]
    assert [count(first, ".seed"), count(second, ".seed")] == [0, 2]
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


def test_logarithmic_scale_where_all_is_positive(page):
    plain, ticks = lines(page), labels(page, "y")
    page.click('[data-y="log"]')
    assert lines(page) != plain
    assert labels(page, "y") != ticks
    numbers = [float(label.replace(",", "")) for label in labels(page, "y")]
    assert all(b / a <= 10 for a, b in itertools.pairwise(numbers))
    other = '.plot[data-chart="task-0"]'
    assert any(float(label.replace(",", "")) < 0 for label in labels(page, "y", other))
    assert "linear: not all positive" in page.run("document.querySelector('[data-unit=\"task-0\"]').textContent")


def test_wall_time_across(page):
    plain = lines(page)
    assert labels(page, "x")[-1] == "10k"
    page.click('[data-x="time"]')
    assert lines(page) != plain
    assert all(label.endswith(" s") for label in labels(page, "x"))  # 10,000 steps at 4,000 a second
    assert "wall time" in page.run("document.querySelector('[data-unit=\"task-1\"]').textContent")
    page.click('[data-x="steps"]')
    assert labels(page, "x")[-1] == "10k"


def test_the_table_and_the_curve_say_what_the_csv_files_say(page, sweep):
    rows = page.run(
        "[...document.querySelectorAll('#table-scores tbody tr')]"
        ".map(r => [...r.children].map(c => c.firstChild.textContent.trim()))"
    )
    assert [row[0] for row in rows] == ["Acrobot-v1", "CartPole-v1"]
    for row in rows:
        for algo, shown in zip(ALGOS, row[2:], strict=True):
            files = sorted((sweep / row[0] / f"{algo}-default").glob("*/episodes.csv"))
            each = [np.loadtxt(file, delimiter=",", skiprows=1)[-100:, 2].mean() for file in files]
            assert float(shown.replace(",", "")) == pytest.approx(np.mean(each), abs=0.051)
            if row[0] == "CartPole-v1" and algo == "p3o":
                said = page.run(f"document.querySelector('{CART} .probe').getAttribute('aria-valuetext')")
                assert said.startswith(f"step 10,000, P3O {np.mean(each):.4g}"[:22])
                assert float(said.split("P3O ")[1].split(" ")[0]) == pytest.approx(np.mean(each), rel=1e-3)


def test_the_pointer_and_the_keys_read_values(page):
    page.run(f"document.querySelector('{CART}').scrollIntoView({{block: 'center', behavior: 'instant'}})")
    x, y, width, height = page.run(
        f"(b => [b.x, b.y, b.width, b.height])(document.querySelector('{CART} .probe').getBoundingClientRect())"
    )
    page.move(x + width / 2, y + height / 2)
    said = page.run(f"document.querySelector('{CART} .said').innerText")
    assert said.startswith("step 5,0")
    assert all(name in said for name in ("P3O", "PPO", "A2C", "±"))
    page.run(f"document.querySelector('{CART} .probe').focus()")
    page.press("Home")
    page.press("ArrowRight")
    assert page.run("document.activeElement.getAttribute('aria-valuenow')") == "1"
    assert page.run("document.activeElement.getAttribute('aria-valuetext')").startswith("step 100")


def test_everything_can_be_reached_by_keyboard_and_has_a_name(page):
    nameless = page.run(
        "[...document.querySelectorAll('button, [role], summary, svg[role]')].filter(e => !(e.textContent.trim() || "
        "e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).map(e => e.outerHTML.slice(0, 80))"
    )
    assert nameless == []
    unreachable = page.run("[...document.querySelectorAll('.probe, button')].filter(e => e.tabIndex < 0).length")
    assert unreachable == 0
    assert page.run("document.querySelectorAll('.plot').length") == page.run(
        "[...document.querySelectorAll('.plot')].filter(p => p.closest('figure').querySelector('details table')).length"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_have_readable_colours(page, scheme, tmp_path):
    page.colours(scheme)
    texts = ["body", ".says", ".chip", ".results td", ".results small", ".lead p"]
    colours = page.run(f"{texts}.map(s => getComputedStyle(document.querySelector(s)).color)")
    paper = page.run("getComputedStyle(document.body).backgroundColor")
    lines_of = page.run(f"[...document.querySelectorAll('{CART} .line')].map(p => getComputedStyle(p).stroke)")
    assert (luminance(paper) > 0.5) == (scheme == "light")
    assert all(contrast(colour, paper) >= 4.5 for colour in colours)
    assert all(contrast(colour, paper) >= 3 for colour in lines_of)
    page.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 20_000
    page.colours("light")


def test_it_does_not_scroll_sideways_on_a_phone_and_prints(page):
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
    assert page.run("document.documentElement.scrollWidth") <= 391
    page.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    assert len(page.call("Page.printToPDF")["data"]) > 10_000


def test_the_page_of_one_run_works_too(browser, tmp_path):
    file = write_report(write_run(tmp_path / "run"), tmp_path / "one.html")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(file)
    assert browser.run("document.querySelector('.plot.large .line').getAttribute('d').split('L').length") > 100
    browser.run("document.querySelector('.plot.large .probe').focus()")
    assert "mean of last 100" in browser.run("document.querySelector('.plot.large .said').innerText")
    theme = "document.documentElement.dataset.theme"
    browser.click("#theme")
    assert browser.run(theme) in ("light", "dark")
    assert browser.errors == []
    assert browser.requests == [file.resolve().as_uri()]


@pytest.mark.slow
def test_a_sweep_that_was_trained(browser, tmp_path):
    """Two environments, three algorithms, three seeds of real training, small."""
    small = ("--set", "num_envs=2", "num_steps=32", "hidden_sizes=8")
    for task in TASKS:
        for algo in ALGOS:
            for seed in range(3):
                folder = tmp_path / "sweep" / task / f"{algo}-default" / f"seed-{seed}"
                extra = {"p3o": ("replay_size=256", "burn_in=64"), "ppo": ("num_minibatches=4",)}.get(algo, ())
                words = ("--algo", algo, "--steps", 5000, "--seed", seed, "--out", folder)
                assert call("train", task, *words, *small, *extra).code == 0
    file = write_report(tmp_path / "sweep")
    browser.errors.clear()
    browser.requests.clear()
    browser.open(file)
    assert len(lines(browser)) == 3
    browser.click("#seeds")
    assert len(lines(browser, kind="seed")) == 9
    browser.click('[data-x="time"]')
    browser.click('[data-y="log"]')
    assert len(lines(browser)) == 3
    shown = browser.run(
        "document.querySelector('#table-scores tbody tr:nth-child(2) td:nth-child(3)').firstChild.textContent"
    )
    files = sorted((tmp_path / "sweep" / "CartPole-v1" / "p3o-default").glob("*/episodes.csv"))
    episodes = [np.loadtxt(file, delimiter=",", skiprows=1) for file in files]
    each = [rows[rows[:, 0] <= 5000][-100:, 2].mean() for rows in episodes]  # none that ended past the total
    assert float(shown) == pytest.approx(np.mean(each), abs=0.051)
    assert browser.errors == []
    assert browser.requests == [file.resolve().as_uri()]


def luminance(colour: str) -> float:
    """Relative luminance of an rgb() colour, as WCAG defines it."""
    channels = np.array(json.loads(f"[{colour[colour.index('(') + 1 : -1]}]")[:3]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_sample_efficiency_curve_is_drawn_and_says_its_interval(browser, tmp_path):
    root = write_sweep(tmp_path / "mujoco", ["HalfCheetah-v4", "Hopper-v4"], ["p3o", "ppo"], 3)
    browser.errors.clear()
    browser.open(write_report(root))
    chart = '.plot[data-chart="efficiency"]'
    before = lines(browser, chart)
    assert len(before) == 2
    assert all(path.count("L") > 15 for path in before)
    browser.run("document.querySelector('button[data-x=time]').click()")
    after = lines(browser, chart)  # over wall time too it is over percent of training
    assert [ends(path) for path in after] == [pytest.approx(ends(path), abs=0.2) for path in before]
    assert labels(browser, "x", chart)[-1] == "100 %"
    said = browser.run(f"document.querySelector('{chart} .probe').getAttribute('aria-valuetext')")
    assert said.startswith("at 100 % of training, P3O ")
    assert "[" in said
    assert "±" not in said
    assert browser.errors == []
