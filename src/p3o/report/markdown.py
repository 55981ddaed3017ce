"""The study as Markdown for docs: words, figures (SVG files in a folder beside it) and tables; the same input gives the
same bytes."""

import re
from collections.abc import Iterable
from pathlib import Path

from p3o.report import words
from p3o.report.cautions import cautions
from p3o.report.cells import Cell, Table
from p3o.report.chapters import Book, Chapter
from p3o.report.figures import Drawing, drawings, make_folder, saved
from p3o.report.files import write_file
from p3o.report.tables import all_tables


def write_markdown(book: Book, file: Path) -> None:
    """FILE.md, and its figures in the folder FILE beside it."""
    folder = file.with_suffix("") if file.suffix else file.with_name(f"{file.name}-figures")
    pages, figures = [], []
    for prefix, chapter in book.numbered():
        found = [(prefix + drawing.name, drawing.caption, saved(drawing.figure, "svg")) for drawing in drawn(chapter)]
        pages += render(book, chapter, [(f"{folder.name}/{name}.svg", caption) for name, caption, _ in found])
        figures += found
    head = [f"# {escaped(book.title)}", said_facts(book.facts)]
    head += ["\n".join(f"- {link(chapter.title)}" for chapter in book.chapters)] if book.is_divided else []
    page = "\n\n".join(part for part in [*head, *pages] if part) + "\n"
    make_folder(folder)
    for name, _, data in figures:
        write_file(folder / f"{name}.svg", data, "a file")
    write_file(file, page.encode("utf-8", "replace"), "a Markdown file")


def drawn(chapter: Chapter) -> Iterable[Drawing]:
    return drawings(chapter.results) if chapter.results else ()


def said_facts(found: list[str]) -> str:
    return " · ".join(escaped(fact) for fact in found)


def link(title: str) -> str:
    """To a heading, by the name that it gets where Markdown is shown: small letters and no punctuation."""
    name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
    return f"[{escaped(title)}](#{name})"


def render(book: Book, chapter: Chapter, figures: list[tuple[str, str]]) -> list[str]:
    """The paragraphs of a chapter; its headings are one deeper where the page has several."""
    results, level = chapter.results, "###" if book.is_divided else "##"
    parts = [f"## {escaped(chapter.title)}", escaped(chapter.text)] if book.is_divided else []
    if results is None:
        return [*parts, "No run of it is here yet."]
    parts += [said_facts(words.facts(results))] if book.is_divided else []
    parts += [escaped(sentence) for sentence in words.summary(results)]
    parts += images(figures, "curve-.*")
    for table in all_tables(results):
        if table.key not in ("partial", "runs"):  # long, and in the page and the CSV files
            parts += [f"{level} {escaped(table.title)}", escaped(table.note), as_table(table)]
        if table.key == "aggregates":
            parts += images(figures, "(aggregates|profile|efficiency)")
        if table.key == "improvement":
            parts += images(figures, "improvement")
    inside = images(figures, "inside-.*")
    parts += [f"{level} Inside P3O", *inside] if inside else []
    found = cautions(results)
    return [*parts, f"{level} Warnings", "\n".join(f"- {escaped(warning)}" for warning in found) or "None."]


def images(figures: list[tuple[str, str]], name: str) -> list[str]:
    """Those with a name like this, a chapter's number before it or not."""
    return [f"![{escaped(text)}]({at})" for at, text in figures if re.search(rf"/(\d+-)?{name}\.svg$", at)]


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
