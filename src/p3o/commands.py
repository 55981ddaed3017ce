"""What each command of `p3o` takes and does; `p3o.cli` reads the words and calls them."""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol

from tyro.conf import Positional, arg, subcommand

from p3o.errors import UserError, nearest

Words = Annotated[list[str], arg(metavar="KEY=VALUE ...")]
Number = Annotated[str, arg(metavar="N")]


class Command(Protocol):
    def run(self) -> int: ...


@dataclass
class Train:
    """Train an agent: live display, checkpoints, model and report in a run folder."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """A Gymnasium id (HalfCheetah-v5, CartPole-v1, PongNoFrameskip-v4, ALE/Pong-v5) or module:Id."""
    algo: str = "p3o"
    """Algorithm; `p3o list algorithms` shows them."""
    steps: Number = "1e6"
    """Environment steps, as 300000, 3e5 or 300_000."""
    seed: Number = "0"
    """Seed of everything random in the run."""
    preset: str = "default"
    """Named settings: default or paper."""
    variant: str = ""
    """Name for a departure from the preset, used in folders and tables."""
    out: str | None = None
    """Run folder; runs/ENV/ALGO-PRESET/seed-N unless given."""
    set: Words = field(default_factory=list)
    """Settings over the preset's; `p3o list presets` shows them all."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environment's constructor."""
    eval_every: Number | None = None
    """Evaluate with deterministic actions every so many steps."""

    def run(self) -> int:
        from p3o import starting
        from p3o.config import check_variant, parse_assignments, parse_count
        from p3o.folder import command_line, default_folder
        from p3o.jobs import Job

        job = Job(
            env=self.env,
            algo=self.algo,
            steps=parse_count(self.steps, "--steps"),
            seed=parse_seed(self.seed),
            preset=self.preset,
            variant=check_variant(self.variant),
            settings=parse_assignments(self.set, "--set"),
            env_kwargs={k: parse_value(v) for k, v in parse_assignments(self.env_set, "--env-set").items()},
            eval_every=None if self.eval_every is None else parse_count(self.eval_every, "--eval-every"),
        )
        folder = Path(self.out) if self.out else default_folder(job)
        return _train(lambda display: starting.start(job, folder, display, command_line()), folder)


@dataclass
class Resume:
    """Go on exactly where a run stopped."""

    run_dir: Positional[Annotated[str, arg(metavar="RUN")]]
    """Run folder."""
    steps: Number | None = None
    """A new total of environment steps."""

    def run(self) -> int:
        from p3o import starting
        from p3o.config import parse_count

        folder = Path(self.run_dir)
        steps = None if self.steps is None else parse_count(self.steps, "--steps")
        return _train(lambda display: starting.resume(folder, display, steps), folder)


@dataclass
class Eval:
    """Play episodes with a trained agent and print their mean return."""

    run_dir: Positional[Annotated[str, arg(metavar="RUN")]]
    """Run folder or model folder."""
    episodes: Number = "100"
    """Episodes to play."""
    deterministic: bool = False
    """Take the policy's mode instead of a sample."""
    seed: Number = "0"
    """Seed of the environment and of sampled actions."""
    json: bool = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        import numpy as np

        from p3o.config import parse_count
        from p3o.evaluate import play

        episodes = parse_count(self.episodes, "--episodes")
        model, env = _model_and_env(self.run_dir)
        results = play(model, env, episodes, parse_seed(self.seed), self.deterministic)
        returns = np.array([total for total, _ in results])
        summary = {
            "env": model.env["id"],
            "episodes": episodes,
            "deterministic": self.deterministic,
            "step": model.step,
            "mean_return": float(returns.mean()),
            "std_return": float(returns.std()),
            "min_return": float(returns.min()),
            "max_return": float(returns.max()),
            "mean_length": float(np.mean([length for _, length in results])),
        }
        if self.json:
            print(json.dumps(summary | {"returns": returns.tolist()}))
        else:
            print(
                f"{summary['env']}: return {returns.mean():.2f} ± {returns.std():.2f} over {episodes} episodes "
                f"(min {returns.min():.2f}, max {returns.max():.2f}, length {summary['mean_length']:.0f})"
            )
        return 0


@dataclass
class Video:
    """Film a trained agent."""

    run_dir: Positional[Annotated[str, arg(metavar="RUN")]]
    """Run folder or model folder."""
    out: str | None = None
    """File to write (.mp4 or .gif); RUN/video.mp4 unless given."""
    episodes: Number = "1"
    """Episodes to film."""
    seed: Number = "0"
    """Seed of the environment."""

    def run(self) -> int:
        from p3o.config import parse_count
        from p3o.video import film

        episodes, seed = parse_count(self.episodes, "--episodes"), parse_seed(self.seed)
        out = Path(self.out) if self.out else Path(self.run_dir) / "video.mp4"
        film(Path(self.run_dir), out, episodes, seed)
        print(out)
        return 0


@dataclass
class Sweep:
    """Run environments × algorithms × seeds over every core or a Ray cluster; the same command goes on."""

    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """Folder of the sweep; its runs lie in OUT/ENV/ALGO-PRESET/seed-N."""
    envs: Annotated[list[str], arg(metavar="ENV ...")] = field(default_factory=list)
    """Gymnasium ids, or module:Id."""
    algos: Annotated[list[str], arg(metavar="ALGO ...")] = field(default_factory=list)
    """Algorithms; p3o unless given."""
    seeds: Annotated[str | None, arg(metavar="N")] = None
    """10 means 0 to 9; 5-9 and 3,7 also work; 5 unless given."""
    steps: Number | None = None
    """Environment steps of each run; 1e6 unless given."""
    preset: str | None = None
    """Named settings: default or paper."""
    variant: str | None = None
    """Name for a departure from the preset, used in folders and tables."""
    set: Words = field(default_factory=list)
    """Settings over the preset's, for every run."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environments' constructors."""
    eval_every: Number | None = None
    """Evaluate with deterministic actions every so many steps."""
    file: str | None = None
    """A TOML or YAML design of several blocks, instead of the options above."""
    workers: Number | None = None
    """Runs at once; as many as there are cores unless given."""
    ray: str | None = None
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
class Report:
    """Write one self-contained page about runs, sweeps and results folders."""

    paths: Positional[Annotated[list[str], arg(metavar="PATH ...")]]
    """Run folders, sweep folders and results folders, in any mix."""
    out: str | None = None
    """File to write; report.html in PATH unless given, here where there are several."""
    markdown: Annotated[str | None, arg(metavar="FILE.md")] = None
    """Write tables and figures as Markdown too, with SVG files in a folder beside it."""
    figures: Annotated[str | None, arg(metavar="DIR")] = None
    """Write each figure as PNG, PDF and SVG and each table as CSV too."""

    def run(self) -> int:
        from p3o.report import write_reports

        if not self.paths:
            raise UserError("report needs at least one run, sweep or results folder")
        for path in write_reports(self.paths, self.out, self.markdown, self.figures):
            print(path)
        return 0


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
class Reproduce:
    """Run one of the paper's tables or figures and write its numbers beside the paper's; the same command goes on."""

    experiment: Positional[Annotated[str, arg(metavar="EXPERIMENT")]]
    """Its name; `p3o list experiments` shows them."""
    out: Positional[Annotated[str, arg(metavar="OUT")]]
    """Folder of the runs, the report and the table."""
    seeds: Annotated[str | None, arg(metavar="N")] = None
    """10 means 0 to 9; 5-9 and 3,7 also work; the paper's unless given."""
    scale: Annotated[str, arg(metavar="X")] = "1"
    """Share of the paper's steps, as 0.01; below 1 nothing is comparable with the paper."""
    workers: Number | None = None
    """Runs at once; as many as there are cores unless given."""
    ray: str | None = None
    """Run on a Ray cluster: auto or ray://HOST:PORT."""

    def run(self) -> int:
        from p3o.config import parse_count, parse_number, parse_seeds
        from p3o.experiments.reproduce import reproduce

        seeds = None if self.seeds is None else parse_seeds(self.seeds)
        workers = None if self.workers is None else parse_count(self.workers, "--workers")
        scale = parse_number(self.scale, "--scale")
        return reproduce(self.experiment, Path(self.out), seeds, scale, workers, self.ray)


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


COMMANDS = {
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "video": Video,
    "sweep": Sweep,
    "reproduce": Reproduce,
    "report": Report,
    "bench": Bench,
    "list": List,
}
Commands = (
    Annotated[Train, subcommand("train")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Eval, subcommand("eval")]
    | Annotated[Video, subcommand("video")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[List, subcommand("list")]
)


def _train(begin: Any, folder: Path) -> int:
    """Run a session to its end or to a signal; the last line on standard output is the folder."""
    from p3o.display import make_display
    from p3o.report import write_report
    from p3o.signals import StopSignals

    display = make_display("auto")
    with StopSignals() as stop:
        session, folder_lock = begin(display)
        with folder_lock:
            if session.trainer.step >= session.steps:
                session.complete()
                display.message(
                    f"the run is finished at step {session.trainer.step:,}; --steps N goes on to a new total"
                )
            else:
                session.run(stop)
            if stop.received is not None and session.trainer.step < session.steps:
                display.message(f"stopped at step {session.trainer.step:,}; go on with: p3o resume {folder}")
                print(folder)
                return 128 + stop.received
            page = write_report(folder)
            display.message(f"report: {page}")
    print(folder)
    return 0


def _model_and_env(run_dir: str) -> tuple[Any, Any]:
    from p3o import model as models
    from p3o.agent import find_model
    from p3o.envs.gymnasium_env import make_env

    folder = Path(run_dir)
    model = models.load(find_model(folder))
    if model.env["id"] is None:
        raise UserError(f"{folder}: its environment was made in Python; load the model there with P3O.load")
    env = make_env(model.env["id"], model.env["kwargs"])
    model.check_spaces(env.observation_space, env.action_space, model.env["id"])
    return model, env


def parse_seed(text: str) -> int:
    from p3o.config import parse_number

    try:
        value = int(text)  # exact, where a float would round
    except ValueError:
        number = parse_number(text, "--seed")
        value = int(number) if number == int(number) else -1
    if not 0 <= value < 2**63:
        raise UserError(f"--seed: {text!r} is not a whole number from 0 to 2^63 - 1")
    return value


def parse_value(text: str) -> Any:
    """A constructor argument: JSON where it is that (numbers, true, null, lists), True, False or None, else text."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
