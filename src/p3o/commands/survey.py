"""Commands before any run: what there is, and how fast this machine trains."""

import json
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from p3o.commands.options import Number, Switch, Text, Words, parse_value
from p3o.errors import UserError, nearest


@dataclass
class Bench:
    """Show how fast this machine trains on an environment, where the time goes, and what would help."""

    env: Positional[Annotated[str | None, arg(metavar="[ENV]", help_behavior_hint="")]] = None
    """A Gymnasium id or module:Id; HalfCheetah-v5 where MuJoCo is installed, else CartPole-v1."""
    algos: Annotated[list[str], arg(metavar="ALGO ...", help_behavior_hint="")] = field(default_factory=list)
    """Algorithms to measure; all that can act in the environment unless given."""
    seconds: Number = "5"
    """Seconds of measuring for each algorithm, start-up and compilation not counted."""
    preset: Text = "default"
    """Named settings: default or paper."""
    set: Words = field(default_factory=list)
    """Settings over the preset's."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environment's constructor."""
    json: Switch = False
    """Print one JSON object instead of a table."""

    def run(self) -> int:
        import time

        from p3o.config import parse_assignments, parse_number

        seconds = parse_number(self.seconds, "--seconds")
        if not 0 < seconds <= 3600:
            raise UserError(f"--seconds: {self.seconds!r} is not a number above 0 and up to 3600")
        settings = parse_assignments(self.set, "--set")
        env_kwargs = {k: parse_value(v) for k, v in parse_assignments(self.env_set, "--env-set").items()}
        started = time.perf_counter()
        from rich.console import Console

        from p3o import bench, findings

        imports = time.perf_counter() - started
        # lines, where there is somebody to read them: a moving display would take part of what is measured
        is_watched = sys.stderr is not None and sys.stderr.isatty()
        picture = bench.measure(
            self.env or bench.default_env(),
            self.algos,
            seconds,
            self.preset,
            settings,
            env_kwargs,
            imports,
            (lambda text: print(f"measuring {text}", file=sys.stderr)) if is_watched else (lambda text: None),
        )
        if self.json:
            print(json.dumps(findings.as_json(picture)))
        else:
            findings.show(picture, Console())
        return 0


@dataclass
class List:
    """Show what there is: algorithms, presets with all settings, the paper's experiments, or environments."""

    what: Positional[Annotated[str, arg(metavar="[algorithms|presets|experiments|environments]")]] = "algorithms"
    """What to list."""
    algos: Annotated[list[str], arg(metavar="ALGO ...", help_behavior_hint="")] = field(default_factory=list)
    """Algorithms whose settings `list presets` shows; all unless given."""
    runs: Annotated[str | None, arg(name="in", aliases=["--runs"], metavar="OUT", help_behavior_hint="")] = None
    """Folder in which `list experiments` counts finished runs; runs unless given."""

    def run(self) -> int:
        from p3o import listing

        width = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
        known = {
            "algorithms": listing.algorithms,
            "presets": lambda: listing.presets(self.algos, width),
            "experiments": lambda: listing.experiments(Path(self.runs or "runs")),
            "environments": listing.environments,
        }
        if self.what not in known:
            raise UserError(f"list {self.what!r}: one of {', '.join(known)} was expected{nearest(self.what, known)}")
        if self.algos and self.what != "presets":
            raise UserError(f"--algos goes with `list presets`, not with `list {self.what}`")
        if self.runs is not None and self.what != "experiments":
            raise UserError(f"--in goes with `list experiments`, not with `list {self.what}`")
        if self.what == "experiments":
            self._check_folder()
        for line in known[self.what]():
            print(line)
        return 0

    def _check_folder(self) -> None:
        """Without --in there may be no folder yet: then nothing is done."""
        if self.runs == "":
            raise UserError("--in: the name of a folder is missing")
        folder = Path(self.runs or "runs")
        if folder.exists() and not folder.is_dir():
            raise UserError(f"--in {folder}: not a folder")
        if self.runs is not None and not folder.exists():
            raise UserError(f"--in {folder}: no such folder")
