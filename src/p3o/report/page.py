"""The page of a study: one HTML file that needs nothing else."""

from typing import Any

from p3o.report import words
from p3o.report.cautions import cautions
from p3o.report.chapters import Book, Chapter
from p3o.report.charts import (
    StudyChart,
    colour_of,
    dash_of,
    efficiency_chart,
    inside_charts,
    learning_charts,
    profile_chart,
)
from p3o.report.find import Group
from p3o.report.results import Results
from p3o.report.settings import common_settings
from p3o.report.tables import all_tables
from p3o.report.templates import template
from p3o.runs import Run


def render_book(book: Book) -> str:
    """The page as text; it depends on nothing but the runs' files."""
    parts = [_part(f"part-{number}" if number else "", chapter) for number, chapter in book.numbered()]
    return template("study.html.j2").render(
        title=book.title,
        facts=book.facts,
        is_divided=book.is_divided,
        chapters=parts,
        points={part["prefix"]: part["points"] for part in parts if part["points"]},
        colour=colour_of,
        dash=dash_of,
    )


def _part(prefix: str, chapter: Chapter) -> dict[str, Any]:
    """What the page shows of a chapter; the names of its parts begin with `prefix`, so that no two are alike."""
    named = {"title": chapter.title, "text": chapter.text, "prefix": prefix}
    results = chapter.results
    if results is None:
        return {**named, "points": None}
    study = results.study
    curves = learning_charts(study)
    inside = inside_charts(study)
    profile = profile_chart(results.overall, study) if results.overall else None
    efficiency = efficiency_chart(results.efficiency, study) if results.efficiency else None
    tables = {table.key: table for table in all_tables(results)}
    charts = [
        *curves,
        *(chart for chart in (profile, efficiency) if chart),
        *(chart for _, row in inside for chart in row),
    ]
    return {
        **named,
        "facts": words.facts(results),
        "summary": words.summary(results),
        "tiles": words.tiles(results),
        "warnings": cautions(results),
        "legend": [(i, results.labels[group]) for i, group in enumerate(study.groups)],
        "curves": curves,
        "has_log": any("log" in chart.y for chart in curves),
        "has_time": any("time" in chart.grid for chart in curves),
        "scores": [table for key, table in tables.items() if key.startswith("scores")],
        "tables": tables,
        "profile": profile,
        "efficiency": efficiency,
        "scale": results.efficiency.how if results.efficiency else "",
        "inside": inside,
        "common": common_settings(results),
        "commands": commands(study.cells),
        "points": points(charts, results),
    }


def points(charts: list[StudyChart], results: Results) -> dict[str, Any]:
    labels = [results.labels[group] for group in results.study.groups]
    return {"groups": labels, "charts": {chart.key: chart.points() for chart in charts}}


def commands(cells: dict[tuple[str, Group], tuple[Run, ...]]) -> list[str]:
    """The command of each cell's first run."""
    found = [str(runs[0].config.get("command") or "") for runs in cells.values()]
    return [command for command in dict.fromkeys(found) if command]
