"""The figures of a study for papers: PNG, PDF and SVG of each, and every table as CSV. Needs matplotlib."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from p3o.errors import UserError
from p3o.report.axes import short_count
from p3o.report.cells import Cell, Table
from p3o.report.chapters import Book
from p3o.report.charts import (
    Series,
    StudyChart,
    colour_of,
    dash_of,
    efficiency_chart,
    inside_charts,
    learning_charts,
    profile_chart,
)
from p3o.report.files import file_name, write_file
from p3o.report.find import Group
from p3o.report.results import Results
from p3o.report.tables import all_tables
from p3o.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2456c7", "#c2520c", "#12805c", "#8a3ab9", "#b3264f", "#0b7a99", "#86680a", "#4d5661")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (7, 2, 1.5, 2)))
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "p3o",  # the same figure is the same file
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e6e8",
    "grid.linewidth": 0.7,
    "axes.titlesize": 10,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
ACROSS = {"steps": "environment steps", "score": "normalised score", "share": "percent of training"}
METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
    "png": {"Software": None},
}


class Drawing(NamedTuple):
    name: str  # of its files
    caption: str
    figure: "Figure"
    rows: list[list[Any]]  # the numbers in it, a head first


def write_figures(book: Book, folder: Path) -> None:
    """Every figure as PNG, PDF and SVG with its numbers as CSV, and every table as CSV."""
    make_folder(folder)
    for prefix, chapter in book.numbered():
        if chapter.results is None:
            continue
        for drawing in drawings(chapter.results):
            for kind in METADATA:
                write_file(folder / f"{prefix}{drawing.name}.{kind}", saved(drawing.figure, kind), "a file")
            write_file(folder / f"{prefix}{drawing.name}.csv", as_csv(drawing.rows), "a file")
        for table in all_tables(chapter.results):
            write_file(folder / f"{prefix}table-{table.key}.csv", as_csv(table_rows(table)), "a file")


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from error


def table_rows(table: Table) -> list[list[Any]]:
    """A head and the values; a column of means has its low, high and seeds beside it (below five seeds the range)."""
    columns = range(len(table.head))
    wide = {j for j in columns if any(row[j].around for row in table.rows)}
    head = [name for j in columns for name in _heads(table.head[j], j in wide)]
    return [head, *([value for j in columns for value in _values(row[j], j in wide)] for row in table.rows)]


def _heads(name: str, is_wide: bool) -> list[str]:
    return [name, f"{name} low", f"{name} high", f"{name} seeds"] if is_wide else [name]


def _values(cell: Cell, is_wide: bool) -> list[Any]:
    low, high, seeds = cell.around or (np.nan, np.nan, "")
    return [cell.value, *("" if np.isnan(v) else v for v in (low, high)), seeds] if is_wide else [cell.value]


def as_csv(rows: list[list[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def saved(figure: "Figure", kind: str) -> bytes:
    import matplotlib

    data = io.BytesIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(data, format=kind, dpi=200, metadata=METADATA[kind])
    return data.getvalue()


def drawings(results: Results) -> Iterator[Drawing]:
    """Curves of each task, profile, aggregates, probability of improvement, and the inside of P3O."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError("figures need matplotlib: pip install matplotlib") from error
    study = results.study
    with matplotlib.rc_context(STYLE):
        for chart in learning_charts(study):
            caption = f"{chart.title}: mean return of the last 100 episodes, mean and standard deviation over seeds"
            yield Drawing(f"curve-{file_name(chart.title)}", caption, _lines([chart]), chart_rows(chart))
        if results.overall:
            chart = profile_chart(results.overall, study)
            caption = "Performance profile: share of runs above each normalised score, with 95 % intervals"
            yield Drawing("profile", caption, _lines([chart]), chart_rows(chart))
            yield _aggregates(results)
        efficiency = efficiency_chart(results.efficiency, study) if results.efficiency else None
        if efficiency and results.efficiency:
            caption = (
                "Sample efficiency: interquartile mean of scores normalised so that "
                f"{results.efficiency.how}, along training, with 95 % intervals"
            )
            yield Drawing("efficiency", caption, _lines([efficiency]), chart_rows(efficiency))
        improvements = results.improvements
        if improvements and results.lead is not None:
            lead = results.labels[results.lead]
            over = {f"over {results.labels[group]}": estimate for group, estimate in improvements.items()}
            figure = _intervals({f"P({lead} beats another)": over}, colours(results, list(improvements)), line=0.5)
            caption = f"Probability that a run of {lead} beats a run of another algorithm, with 95 % intervals"
            yield Drawing("improvement", caption, figure, _estimate_rows({"improvement": over}))
        for task, charts in inside_charts(study):
            rows = [row for chart in charts for row in chart_rows(chart)[bool(chart is not charts[0]) :]]
            caption = f"{task}: inside P3O, mean and standard deviation over seeds"
            yield Drawing(f"inside-{file_name(task)}", caption, _lines(charts), rows)


def chart_rows(chart: StudyChart) -> list[list[Any]]:
    kind = next(iter(chart.grid))
    rows: list[list[Any]] = [["quantity", "algorithm", kind, "mean", "low", "high"]]
    for series in chart.series:
        for i, at in enumerate(chart.grid[kind].tolist()):
            if kind in series.on and np.isfinite(series.on[kind].mean[i]):
                numbers = [float(values[i]) for values in series.on[kind]]
                cells = ["" if np.isnan(value) else value for value in numbers]
                rows.append([chart.names.symbol if chart.names else chart.unit, series.label, at, *cells])
    return rows


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _lines(charts: list[StudyChart]) -> "Figure":
    """One panel a chart, one line a group; the legend only where there is something to tell apart."""
    is_one = len(charts) == 1
    figure = _figure(4.6 if is_one else 2.5 * len(charts), 3.1 if is_one else 2.2)
    axes = figure.subplots(1, len(charts), squeeze=False)[0]
    for axis, chart in zip(axes, charts, strict=True):
        kind = next(iter(chart.grid))
        for series in chart.series:
            if kind in series.on:
                _line(axis, chart.grid[kind], series, kind)
        if chart.first_y.is_log:
            axis.set_yscale("log")
        axis.set_title(chart.title)
        axis.set_xlabel(ACROSS[kind])
        if kind == "steps":
            axis.xaxis.set_major_formatter(lambda value, _: short_count(value))
            axis.locator_params(axis="x", nbins=6 if is_one else 3)
            axis.set_xlim(left=0)
        if is_one:
            axis.set_ylabel(chart.unit)
    if len(charts[0].series) > 1 or is_one:
        axes[0].legend(fontsize=8)
    return figure


def _line(axis: "Axes", x: Any, series: Series, kind: str) -> None:
    colour, dash = COLOURS[colour_of(series.colour)], DASHES[dash_of(series.colour)]
    mean, low, high = series.on[kind]
    axis.plot(x, mean, color=colour, linestyle=dash, linewidth=1.4, label=series.label)
    axis.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)


def _aggregates(results: Results) -> Drawing:
    overall = results.overall
    assert overall is not None
    names = {"iqm": "IQM", "median": "median", "mean": "mean", "optimality_gap": "optimality gap (less is better)"}
    panels = {
        title: {results.labels[group]: getattr(found, name) for group, found in overall.aggregates.items()}
        for name, title in names.items()
    }
    caption = f"All environments together, scores normalised so that {overall.how}; 95 % intervals"
    figure = _intervals(panels, colours(results, list(overall.aggregates)))
    return Drawing("aggregates", caption, figure, _estimate_rows(panels))


def colours(results: Results, groups: list[Group]) -> list[str]:
    """The groups' colours, the same in every figure."""
    return [COLOURS[colour_of(results.study.groups.index(group))] for group in groups]


def _intervals(panels: dict[str, dict[str, Estimate]], hues: list[str], line: float | None = None) -> "Figure":
    """Dots with intervals, one row a name, one panel a quantity."""
    names = list(next(iter(panels.values())))
    figure = _figure(2.4 * len(panels) + (2.2 if len(panels) == 1 else 0.8), 0.8 + 0.32 * len(names))
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (title, rows) in zip(axes, panels.items(), strict=True):
        for i, estimate in enumerate(rows.values()):
            colour = hues[i]
            if np.isfinite(estimate.low):
                axis.plot([estimate.low, estimate.high], [i, i], color=colour, alpha=0.45, linewidth=4)
            axis.plot([estimate.value], [i], "o", color=colour, markersize=5)
        if line is not None:
            axis.axvline(line, color="#5c646e", linewidth=0.8, linestyle="--")
            axis.set_xlim(-0.02, 1.02)
        axis.set_title(title)
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(len(names) - 0.4, -0.6)
    return figure


def _estimate_rows(panels: dict[str, dict[str, Estimate]]) -> list[list[Any]]:
    rows: list[list[Any]] = [["quantity", "algorithm", "value", "low", "high"]]
    for quantity, of in panels.items():
        rows += [[quantity, name, *("" if np.isnan(v) else v for v in estimate)] for name, estimate in of.items()]
    return rows
