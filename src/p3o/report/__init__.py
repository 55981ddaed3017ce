"""One self-contained HTML page about a run, a sweep, or any mix of them; also figures, CSV and Markdown."""

import os
from pathlib import Path

from p3o.errors import UserError
from p3o.report.find import Paths, Study, find_study
from p3o.report.one_run import render_one
from p3o.report.page import render_study
from p3o.report.results import Results

__all__ = ["write_figures", "write_markdown", "write_report"]


def write_report(paths: Paths, out: str | Path | None = None) -> Path:
    """Write the page about the runs under `paths` and return where it is.

    Of one run the page shows everything; of several it compares them. Without `out` it is `report.html` in the folder
    that was given, or in the working directory where several were.
    """
    page = render(find_study(paths))
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    path = Path(out) if out is not None else (Path(given[0]) if len(given) == 1 else Path()) / "report.html"
    write_file(path, page.encode("utf-8", "replace"), "an HTML file")  # JSON may hold half a surrogate pair
    return path


def render(study: Study) -> str:
    return render_one(study.runs[0]) if len(study.runs) == 1 else render_study(Results(study))


def write_file(path: Path, data: bytes, kind: str) -> None:
    """The whole file or nothing: a reader never sees half of it."""
    if path.is_dir():
        raise UserError(f"{path}: is a folder, should be the name of {kind}")
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def write_markdown(paths: Paths, file: str | Path) -> Path:
    raise NotImplementedError


def write_figures(paths: Paths, folder: str | Path) -> Path:
    raise NotImplementedError
