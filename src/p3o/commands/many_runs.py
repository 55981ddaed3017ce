"""Commands about many runs: sweep over them, run the paper's, write a page about them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from p3o.commands.options import NumberOrNone, PathOrNone, Words, parse_value
from p3o.errors import UserError


@dataclass
class Sweep:
    """Run environments × algorithms × seeds over every core or a Ray cluster; the same command goes on."""

    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """Folder of the sweep; its runs lie in OUT/ENV/ALGO-PRESET/seed-N."""
    envs: Annotated[list[str], arg(metavar="ENV ...", help_behavior_hint="")] = field(default_factory=list)
    """Gymnasium ids, or module:Id."""
    algos: Annotated[list[str], arg(metavar="ALGO ...", help_behavior_hint="")] = field(default_factory=list)
    """Algorithms; p3o unless given."""
    seeds: NumberOrNone = None
    """10 means 0 to 9; 5-9 and 3,7 also work; 5 unless given."""
    steps: NumberOrNone = None
    """Environment steps of each run; 1e6 unless given."""
    preset: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Named settings: default or paper; default unless given."""
    variant: Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")] = None
    """Name for a departure from the preset, used in folders and tables."""
    set: Words = field(default_factory=list)
    """Settings over the preset's, for every run."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environments' constructors."""
    eval_every: NumberOrNone = None
    """Evaluate with deterministic actions every so many steps."""
    file: PathOrNone = None
    """A TOML or YAML design of several blocks, instead of the options above."""
    workers: NumberOrNone = None
    """Runs at once; as many as there are cores unless given."""
    ray: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Run on a Ray cluster: auto, local or ray://HOST:PORT."""

    def run(self) -> int:
        import shlex

        from p3o import sweep
        from p3o.config import parse_count
        from p3o.folder import command_line

        jobs, design = self._design()
        workers = None if self.workers is None else parse_count(self.workers, "--workers")
        about = {"design": design, "command": shlex.join(command_line())}
        result = sweep.run(jobs, Path(self.out), workers=workers, ray=self.ray, about=about)
        print(self.out)
        return 128 + result.stopped if result.stopped is not None else int(bool(result.failed))

    def _design(self) -> tuple[list[Any], dict[str, Any]]:
        from p3o.config import parse_assignments
        from p3o.sweeps import design

        names = ("envs", "algos", "seeds", "steps", "preset", "variant", "set", "env_set", "eval_every")
        given: dict[str, Any] = {name: getattr(self, name) for name in names if getattr(self, name) not in (None, [])}
        if self.file is not None:
            if given:
                option = next(iter(given)).replace("_", "-")
                raise UserError(f"--file: the design is in {self.file}, so --{option} belongs there")
            return design.read_file(Path(self.file))
        if "set" in given:
            given["set"] = parse_assignments(given["set"], "--set")
        if "env_set" in given:
            words = parse_assignments(given["env_set"], "--env-set")
            given["env_set"] = {key: parse_value(value) for key, value in words.items()}
        return design.expand(given, "sweep"), given


@dataclass
class Reproduce:
    """Run one of the paper's tables or figures and write its numbers beside the paper's; the same command goes on."""

    experiment: Positional[Annotated[str, arg(metavar="EXPERIMENT")]]
    """Its name; `p3o list experiments` shows them."""
    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """Folder of the runs, the report and the table."""
    seeds: NumberOrNone = None
    """10 means 0 to 9; 5-9 and 3,7 also work; the paper's unless given."""
    scale: Annotated[str, arg(metavar="X")] = "1"
    """Share of the paper's steps, as 0.01; below 1 nothing is comparable with the paper."""
    workers: NumberOrNone = None
    """Runs at once; as many as there are cores unless given."""
    ray: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    """Run on a Ray cluster: auto or ray://HOST:PORT."""

    def run(self) -> int:
        from p3o.config import parse_count, parse_number, parse_seeds
        from p3o.experiments.reproduce import reproduce

        seeds = None if self.seeds is None else parse_seeds(self.seeds)
        workers = None if self.workers is None else parse_count(self.workers, "--workers")
        scale = parse_number(self.scale, "--scale")
        return reproduce(self.experiment, Path(self.out), seeds, scale, workers, self.ray)


@dataclass
class Report:
    """Write one self-contained page about runs, sweeps and results folders."""

    paths: Positional[Annotated[list[str], arg(metavar="PATH ...")]]
    """Run folders, sweep folders and results folders, in any mix."""
    out: PathOrNone = None
    """File to write; report.html in PATH unless given, here where there are several."""
    markdown: Annotated[str | None, arg(metavar="FILE.md", help_behavior_hint="")] = None
    """Write tables and figures as Markdown too, with SVG files in a folder beside it."""
    figures: Annotated[str | None, arg(metavar="DIR", help_behavior_hint="")] = None
    """Write each figure as PNG, PDF and SVG and each table as CSV too."""

    def run(self) -> int:
        from p3o.report import write_reports

        if not self.paths:
            raise UserError("report needs at least one run, sweep or results folder")
        if "" in self.paths:
            raise UserError("report: the name of a folder is missing")
        for path in write_reports(self.paths, self.out, self.markdown, self.figures):
            print(path)
        return 0
