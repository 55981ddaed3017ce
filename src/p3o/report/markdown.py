"""The study as Markdown for docs: words, figures (SVG files in a folder beside it) and tables; the same input gives the
same bytes."""

import re
from pathlib import Path

from p3o.report import words
from p3o.report.cautions import cautions
from p3o.report.figures import drawings, make_folder, saved
from p3o.report.files import write_file
from p3o.report.results import Results
from p3o.report.tables import Cell, Table, all_tables


def write_markdown(results: Results, file: Path) -> None:
    """FILE.md, and its figures in the folder FILE beside it."""
    folder = file.with_suffix("") if file.suffix else file.with_name(f"{file.name}-figures")
    figures = [(drawing.name, drawing.caption, saved(drawing.figure, "svg")) for drawing in drawings(results)]
    page = render(results, [(f"{folder.name}/{name}.svg", caption) for name, caption, _ in figures])
    make_folder(folder)
    for name, _, data in figures:
        write_file(folder / f"{name}.svg", data, "a file")
    write_file(file, page.encode("utf-8", "replace"), "a Markdown file")


def render(results: Results, figures: list[tuple[str, str]]) -> str:
    parts = [f"# {escaped(words.title(results))}", " · ".join(escaped(fact) for fact in words.facts(results))]
    parts += [escaped(sentence) for sentence in words.summary(results)]
    curves = [figure for figure in figures if "/curve-" in figure[0]]
    parts += [f"![{escaped(caption)}]({address})" for address, caption in curves]
    for table in all_tables(results):
        if table.key not in ("partial", "runs"):  # long, and in the page and the CSV files
            parts += [f"## {escaped(table.title)}", escaped(table.note), as_table(table)]
        parts += [
            f"![{escaped(caption)}]({address})"
            for address, caption in figures
            if (table.key == "aggregates" and re.search(r"/(aggregates|profile|efficiency)\.svg$", address))
            or (table.key == "improvement" and address.endswith("/improvement.svg"))
        ]
    inside = [figure for figure in figures if "/inside-" in figure[0]]
    parts += ["## Inside P3O"] * bool(inside)
    parts += [f"![{escaped(caption)}]({address})" for address, caption in inside]
    found = cautions(results)
    parts += ["## Warnings", "\n".join(f"- {escaped(warning)}" for warning in found) or "None."]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_table(table: Table) -> str:
    lines = [row([escaped(name) for name in table.head]), row(["---"] * len(table.head))]
    return "\n".join([*lines, *(row([cell_text(cell) for cell in cells]) for cells in table.rows)])


def row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def cell_text(cell: Cell) -> str:
    shown = escaped(cell.text)
    shown = f"**{shown}**" if cell.mark == "best" else shown
    note = escaped(cell.note.replace("\n", ", "))
    return f"{shown}<br>{note}" if note else shown


def escaped(text: str) -> str:
    """Nothing from outside becomes markup."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
