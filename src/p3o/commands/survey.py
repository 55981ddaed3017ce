"""Commands before any run: what there is, and how fast this machine trains."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from p3o.commands.options import Number, Words, parse_value
from p3o.errors import UserError, nearest


@dataclass
class Bench:
    """Show how fast this machine trains on an environment, where the time goes, and what would help."""

    env: Positional[Annotated[str | None, arg(metavar="[ENV]")]] = None
    """A Gymnasium id or module:Id; HalfCheetah-v5 where MuJoCo is installed, else CartPole-v1."""
    algos: Annotated[list[str], arg(metavar="ALGO ...")] = field(default_factory=list)
    """Algorithms to measure; all that can act in the environment unless given."""
    seconds: Number = "5"
    """Seconds of measuring for each algorithm, start-up and compilation not counted."""
    preset: str = "default"
    """Named settings: default or paper."""
    set: Words = field(default_factory=list)
    """Settings over the preset's."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environment's constructor."""
    json: bool = False
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
    runs: Annotated[str, arg(name="in", aliases=["--runs"], metavar="OUT")] = "runs"
    """Folder in which finished runs of experiments are counted."""

    def run(self) -> int:
        from p3o import listing

        known = {
            "algorithms": listing.algorithms,
            "presets": listing.presets,
            "experiments": lambda: listing.experiments(Path(self.runs)),
            "environments": listing.environments,
        }
        if self.what not in known:
            raise UserError(f"list {self.what!r}: one of {', '.join(known)} was expected{nearest(self.what, known)}")
        for line in known[self.what]():
            print(line)
        return 0
