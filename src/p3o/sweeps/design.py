"""Designs: which runs a sweep is made of, from the command line or from a TOML or YAML file of several blocks."""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p3o.config import check_variant, parse_count, parse_seeds
from p3o.errors import UserError, nearest
from p3o.jobs import Job

DEFAULTS: dict[str, Any] = {
    "envs": [],
    "algos": ["p3o"],
    "seeds": "5",
    "steps": "1e6",
    "preset": "default",
    "variant": "",
    "set": {},
    "env_set": {},
    "eval_every": None,
}
BLOCK = "block"  # the key of a file under which its blocks are
WORD_LISTS, WORDS, TABLES = ("envs", "algos"), ("preset", "variant"), ("set", "env_set")


def expand(block: Mapping[str, Any], where: str) -> list[Job]:
    """The jobs of one block: environments × algorithms × seeds; `where` is named in complaints."""
    for key in block:
        if key not in DEFAULTS:
            raise UserError(f"{where}: unknown key {key!r}{nearest(key, DEFAULTS)}; there are {', '.join(DEFAULTS)}")
    full = {**DEFAULTS, **block}
    for key in WORD_LISTS:
        full[key] = [full[key]] if isinstance(full[key], str) else full[key]
        if not isinstance(full[key], list) or not all(isinstance(word, str) for word in full[key]):
            raise UserError(f"{where}: {key} is {full[key]!r}, should be a list of names")
        if not full[key]:
            raise UserError(f"{where}: {key} is missing; at least one is needed")
    for key in WORDS:
        if not isinstance(full[key], str):
            raise UserError(f"{where}: {key} is {full[key]!r}, should be text")
    for key in TABLES:
        if not isinstance(full[key], Mapping):
            raise UserError(f"{where}: {key} is {full[key]!r}, should be a table of names and values")
        _check_plain(full[key], f"{where}: {key}")
    seeds = _seeds(full["seeds"], where)
    every = full["eval_every"]
    return [
        Job(
            env=env,
            algo=algo,
            steps=parse_count(_word(full["steps"]), f"{where}: steps"),
            seed=seed,
            preset=full["preset"],
            variant=check_variant(full["variant"], f"{where}: variant"),
            settings=dict(full["set"]),
            env_kwargs=dict(full["env_set"]),
            eval_every=None if every is None else parse_count(_word(every), f"{where}: eval_every"),
        )
        for env in full["envs"]
        for algo in full["algos"]
        for seed in seeds
    ]


def _seeds(value: Any, where: str) -> tuple[int, ...]:
    """A number, text as on the command line, or a list."""
    if isinstance(value, list):
        if not all(type(seed) is int and seed >= 0 for seed in value):
            raise UserError(f"{where}: seeds is {value!r}, should be a list of whole numbers")
        value = ",".join(str(seed) for seed in value) + ("-" + str(value[0]) if len(value) == 1 else "")
    return parse_seeds(_word(value), f"{where}: seeds")


def _word(value: Any) -> str:
    return "" if isinstance(value, bool) else str(value)


def _check_plain(table: Mapping[str, Any], where: str) -> None:
    """Dates and other things that TOML and YAML know and JSON does not cannot be kept in a run's config."""
    for key, value in table.items():
        try:
            json.dumps({key: value})
        except (TypeError, ValueError):
            raise UserError(f"{where}: {key} is {value!r}, which is no number, text, list or table") from None


def read_file(path: Path) -> tuple[list[Job], dict[str, Any]]:
    """The jobs of a design file, and the design itself; keys above the blocks hold for every block."""
    content = _load(path)
    blocks = content.pop(BLOCK, [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks) or not blocks:
        raise UserError(f"{path}: {BLOCK} should be a list of tables, as in [[{BLOCK}]]")
    for key in content:
        if key not in DEFAULTS:
            known = [*DEFAULTS, BLOCK]
            raise UserError(f"{path}: unknown key {key!r}{nearest(key, known)}; there are {', '.join(known)}")
    jobs = []
    for number, block in enumerate(blocks, 1):
        where = str(path) if len(blocks) == 1 else f"{path}, block {number}"
        jobs += expand({**content, **block}, where)
    return jobs, {**content, BLOCK: blocks}


def _load(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
    if path.suffix in (".yaml", ".yml"):
        content = _load_yaml(path, text)
    elif path.suffix == ".toml":
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is no TOML: {error}") from None
    else:
        raise UserError(f"{path}: a design is a .toml, .yaml or .yml file")
    if not isinstance(content, dict):
        raise UserError(f"{path}: holds a {type(content).__name__}, should hold names and values")
    return content


def _load_yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UserError(f"{path}: YAML needs `pip install pyyaml`; TOML needs nothing") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
