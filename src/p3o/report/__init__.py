"""One self-contained HTML page about a run, a sweep, or any mix of them; also figures, CSV and Markdown."""

from pathlib import Path

from p3o.report.chapters import Book, find_book
from p3o.report.files import check_figures_folder, check_page_name, write_file
from p3o.report.find import Paths
from p3o.report.one_run import render_one
from p3o.report.page import render_book

__all__ = ["write_figures", "write_markdown", "write_report", "write_reports"]


def write_report(paths: Paths, out: str | Path | None = None) -> Path:
    """Write the page about the runs under `paths` and return where it is.

    Of one run the page shows everything; of several it compares them. Without `out` it is `report.html` in the folder
    that was given, or in the working directory where several were.
    """
    return write_reports(paths, out)[0]


def write_markdown(paths: Paths, file: str | Path) -> Path:
    """Write the tables and figures as Markdown, the figures as SVG in a folder beside the file."""
    from p3o.report import markdown

    check_page_name(Path(file), "a Markdown file")
    markdown.write_markdown(find_book(paths), Path(file))
    return Path(file)


def write_figures(paths: Paths, folder: str | Path) -> Path:
    """Write each figure as PNG, PDF and SVG and each table as CSV into a folder."""
    from p3o.report import figures

    check_figures_folder(Path(folder))
    figures.write_figures(find_book(paths), Path(folder))
    return Path(folder)


def write_reports(
    paths: Paths,
    out: str | Path | None = None,
    markdown_file: str | Path | None = None,
    figures_folder: str | Path | None = None,
) -> list[Path]:
    """The page, and what else is asked for, from runs that are read once; returns what was written."""
    if out is not None:
        check_page_name(Path(out), "an HTML file")
    if markdown_file is not None:
        check_page_name(Path(markdown_file), "a Markdown file")
    if figures_folder is not None:
        check_figures_folder(Path(figures_folder))
    book = find_book(paths)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    page = Path(out) if out is not None else (Path(given[0]) if len(given) == 1 else Path()) / "report.html"
    data = _page(book).encode("utf-8", "replace")  # JSON may hold half a surrogate pair
    write_file(page, data, "an HTML file")
    written = [page]
    if markdown_file is not None:
        from p3o.report import markdown

        markdown.write_markdown(book, Path(markdown_file))
        written.append(Path(markdown_file))
    if figures_folder is not None:
        from p3o.report import figures

        figures.write_figures(book, Path(figures_folder))
        written.append(Path(figures_folder))
    return written


def _page(book: Book) -> str:
    return render_one(book.study.runs[0]) if len(book.study.runs) == 1 else render_book(book)
