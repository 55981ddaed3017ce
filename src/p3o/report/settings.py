"""The settings of a study's runs: what differs between groups, what only some have, what all share."""

import json
from typing import Any

from p3o.report.cells import Table, text
from p3o.report.find import Group, Study, asked_steps
from p3o.report.results import Results


def difference_tables(results: Results) -> list[Table]:
    """Settings with different values in different groups, then those that only some algorithms have."""
    groups = results.study.groups
    values = {group: settings_of(results.study, group) for group in groups}
    names = list(dict.fromkeys(name for of in values.values() for name in of))
    differ, partial = [], []
    for name in names:
        row = [" or ".join(values[group].get(name, ["–"])) for group in groups]
        if len(set(row) - {"–"}) > 1:
            differ.append([text(name), *(text(cell) for cell in row)])
        elif len(set(row)) > 1:
            partial.append([text(name), *(text(cell) for cell in row)])
    note = "Settings with other values in other groups; – where an algorithm has no such setting."
    head = ["setting", *(results.labels[group] for group in groups)]
    return [
        Table("differences", "What differs", note, head, differ),
        Table("partial", "Settings that only some algorithms have", "", head, partial),
    ]


def common_settings(results: Results) -> list[tuple[str, str]]:
    """Settings with one value in every run."""
    found = [settings_of(results.study, group) for group in results.study.groups]
    first = found[0] if found else {}
    return [(k, v[0]) for k, v in first.items() if len(v) == 1 and all(other.get(k) == v for other in found)]


def settings_of(study: Study, group: Group) -> dict[str, list[str]]:
    """Each setting's values over the group's runs, in order of appearance; `steps` among them."""
    found: dict[str, list[str]] = {}
    for task in study.tasks_of(group):
        for run in study.cells[task, group]:
            entries = {"steps": asked_steps(run), **run.config.get("settings", {})}
            kwargs = run.config["env"].get("kwargs")
            entries |= {"env": kwargs} if kwargs else {}
            for name, value in entries.items():
                shown = shown_value(value)
                if shown not in found.setdefault(str(name), []):
                    found[str(name)].append(shown)
    return found


def shown_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
