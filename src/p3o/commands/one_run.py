"""Commands about one run: train it, go on with it, play with its agent, film it."""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from p3o.commands.options import Number, NumberOrNone, PathOrNone, Switch, Text, Words, parse_seed, parse_value
from p3o.errors import UserError


@dataclass
class Train:
    """Train an agent: live display, checkpoints, model and report in a run folder."""

    env: Positional[Annotated[str, arg(metavar="ENV")]]
    """A Gymnasium id (HalfCheetah-v5, CartPole-v1, PongNoFrameskip-v4, ALE/Pong-v5) or module:Id."""
    algo: Text = "p3o"
    """Algorithm; `p3o list algorithms` shows them."""
    steps: Number = "1e6"
    """Environment steps, as 300000, 3e5 or 300_000."""
    seed: Number = "0"
    """Seed of everything random in the run."""
    preset: Text = "default"
    """Named settings: default or paper."""
    variant: Annotated[str, arg(metavar="NAME", help_behavior_hint="")] = ""
    """Name for a departure from the preset, used in folders and tables."""
    out: PathOrNone = None
    """Run folder; runs/ENV/ALGO-PRESET/seed-N unless given."""
    set: Words = field(default_factory=list)
    """Settings over the preset's; `p3o list presets` shows them all."""
    env_set: Words = field(default_factory=list)
    """Arguments of the environment's constructor."""
    eval_every: NumberOrNone = None
    """Evaluate with deterministic actions every so many steps, and keep the best policy in RUN/model-best."""

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
        if self.out == "":
            raise UserError("--out: the name of a folder is missing")
        folder = Path(self.out) if self.out else default_folder(job)
        return _train(lambda display: starting.start(job, folder, display, command_line()), folder)


@dataclass
class Resume:
    """Go on exactly where a run stopped."""

    run_dir: Positional[Annotated[str, arg(metavar="RUN")]]
    """Run folder."""
    steps: NumberOrNone = None
    """A new total of environment steps; the run's own unless given."""

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
    deterministic: Switch = False
    """Take the policy's mode instead of a sample."""
    seed: Number = "0"
    """Seed of the environment and of sampled actions."""
    json: Switch = False
    """Print one JSON object instead of a sentence."""

    def run(self) -> int:
        import numpy as np

        from p3o.config import parse_count
        from p3o.evaluate import Patience, play

        episodes = parse_count(self.episodes, "--episodes")
        model, env = _model_and_env(self.run_dir)
        results = play(model, env, episodes, parse_seed(self.seed), self.deterministic, on_frame=Patience("playing"))
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
                f"{summary['env']}: return {returns.mean():.2f} ± {returns.std():.2f} "
                f"over {episodes} episode{'s' * (episodes > 1)} "
                f"(min {returns.min():.2f}, max {returns.max():.2f}, length {summary['mean_length']:.0f})"
            )
        return 0


@dataclass
class Video:
    """Film a trained agent; its actions are deterministic, in an Atari game drawn."""

    run_dir: Positional[Annotated[str, arg(metavar="RUN")]]
    """Run folder or model folder."""
    out: PathOrNone = None
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


def _train(begin: Any, folder: Path) -> int:
    """Run a session to its end or to a signal; the last line on standard output is the folder."""
    from p3o.display import make_display
    from p3o.report import write_report
    from p3o.signals import StopSignals

    display = make_display("auto")
    with StopSignals() as stop:
        session, folder_lock = begin(display)
        with session.holding(folder_lock):
            if session.trainer.step >= session.steps:
                session.complete(stop)
                display.message(
                    f"the run is finished at step {session.trainer.step:,}; --steps N goes on to a new total"
                )
            else:
                session.run(stop)
            if stop.received is not None and session.trainer.step < session.steps:
                place = shlex.quote(str(folder))
                display.message(f"stopped at step {session.trainer.step:,}; go on with: p3o resume {place}")
                print(folder)
                return 128 + stop.received
            page = write_report(folder)
            display.message(f"report: {page}")
        print(folder)  # as long as a signal that comes late is caught
    return 0


def _model_and_env(run_dir: str) -> tuple[Any, Any]:
    from p3o.agent import load_model
    from p3o.envs.making import make_env
    from p3o.jobs import class_name

    folder = Path(run_dir)
    model = load_model(folder)
    if model.env["id"] is None:
        how = f"{class_name(model.algo)}.load"
        raise UserError(f"{folder}: its environment was made in Python; load the model there with {how}")
    env = make_env(model.env["id"], model.env["kwargs"])
    model.check_spaces(env.observation_space, env.action_space, model.env["id"])
    return model, env
