"""Chapters: parts of a results folder that are compared apart, as the file chapters.toml in it says.

    title = "P3O on MuJoCo"

    [[chapter]]
    title = "Our setting"
    text = "What a reader should know before the numbers."
    envs = ["*-v4"]         # shell patterns; what is left out admits everything
    algos = ["p3o", "ppo"]
    presets = ["default"]
    variants = [""]         # the empty name is the preset as it is

A run may be in several chapters. Runs that are in none come last, in one of their own: none is dropped.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from p3o.errors import UserError, nearest
from p3o.report.find import Group, Paths, Study, find_study
from p3o.report.results import Results
from p3o.report.words import facts, title

FILE = "chapters.toml"
PATTERNS = ("envs", "algos", "presets", "variants")
KEYS = ("title", "text", *PATTERNS)
REST = "Everything else"


class Chapter(NamedTuple):
    title: str  # empty where it is the whole page
    text: str
    results: Results | None  # None before any of its runs is there


@dataclass(frozen=True)
class Book:
    """What a page is about: its runs, and the chapters in which they are compared; one without a title if undivided."""

    title: str
    study: Study
    chapters: tuple[Chapter, ...]

    @property
    def facts(self) -> list[str]:
        return facts(Results(self.study))

    @property
    def is_divided(self) -> bool:
        return bool(self.chapters[0].title)

    def numbered(self) -> list[tuple[str, Chapter]]:
        """Each chapter with what the names of its parts begin with: its number, where the page is divided."""
        return [(f"{i}-" if self.is_divided else "", chapter) for i, chapter in enumerate(self.chapters, start=1)]


def find_book(paths: Paths) -> Book:
    """The runs under the paths; divided where one folder is given that says how."""
    study = find_study(paths)
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    file = Path(given[0]) / FILE
    if len(given) == 1 and file.is_file():
        return _divided(study, file)
    results = Results(study)
    return Book(title(results), study, (Chapter("", "", results),))


def _divided(study: Study, file: Path) -> Book:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({str(error).splitlines()[0]})") from None
    _check_keys(content, ("title", "chapter"), str(file))
    blocks = content.get("chapter", [])
    if not isinstance(blocks, list) or not blocks or not all(isinstance(block, Mapping) for block in blocks):
        raise UserError(f"{file}: at least one [[chapter]] is needed")
    chapters: list[Chapter] = []
    seen: set[tuple[str, Group]] = set()
    told = study  # what sweeps tell of absent runs is said once, in the first chapter
    for number, block in enumerate(blocks, start=1):
        where = f"{file}: chapter {number}"
        patterns = _check(block, where)
        cells = {key: runs for key, runs in study.cells.items() if _is_in(patterns, *key)}
        seen.update(cells)
        chapters.append(_chapter(_text(block, "title", where), _text(block, "text", where), told, cells))
        told = Study({}) if cells else told
    rest = {key: runs for key, runs in study.cells.items() if key not in seen}
    chapters += [_chapter(REST, "", told, rest)] if rest else []
    names = [chapter.title for chapter in chapters]
    if "" in names or len(set(names)) < len(names):
        raise UserError(f"{file}: every chapter needs a title of its own")
    return Book(_text(content, "title", str(file)) or title(Results(study)), study, tuple(chapters))


def _chapter(name: str, text: str, told: Study, cells: dict[Any, Any]) -> Chapter:
    return Chapter(name, text, Results(replace(told, cells=cells)) if cells else None)


def _check(block: Mapping[str, Any], where: str) -> dict[str, list[str]]:
    """The patterns of a chapter by what they are about."""
    _check_keys(block, KEYS, where)
    patterns: dict[str, list[str]] = {}
    for key in PATTERNS:
        words = block.get(key, ["*"])
        words = [words] if isinstance(words, str) else words
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise UserError(f"{where}: {key} is {words!r}, should be a list of names or patterns")
        patterns[key] = words
    return patterns


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            raise UserError(f"{where}: unknown key {key!r}{nearest(key, known)}; there are {', '.join(known)}")


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise UserError(f"{where}: {key} is {value!r}, should be text")
    return " ".join(value.split())


def _is_in(patterns: dict[str, list[str]], task: str, group: Group) -> bool:
    values = dict(zip(PATTERNS, (task, group.algo, group.preset, group.variant), strict=True))
    return all(any(fnmatchcase(values[key], word) for word in words) for key, words in patterns.items())
