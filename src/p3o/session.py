"""A run and its folder: started, checkpointed, resumed, finished."""

import contextlib
import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from p3o import checkpoint, seeds, segments, speeds
from p3o import model as models
from p3o.display import Display, Header, Status
from p3o.errors import RunStopped, UserError
from p3o.evaluate import play
from p3o.folder import check_free, lock, open_folder, read_config
from p3o.jobs import EnvSource, Job, Setup, env_name, job_of, maker, set_up, versions
from p3o.networks import num_parameters
from p3o.placement import replay_line
from p3o.recording import Recorder, cut_back
from p3o.saving import BackgroundSaver
from p3o.signals import Stop
from p3o.train import Iteration

INTERVAL_ITERATIONS, INTERVAL_STEPS = 10, 10_000  # a line of updates.csv every so often, whichever is longer


class Session:
    """A trainer with its folder and display, from start or resume to the end of the process."""

    def __init__(self, setup: Setup, display: Display, folder: Path | None, config: dict[str, Any] | None):
        self.job, self.trainer, self.display = setup.job, setup.trainer, display
        self.setup = setup
        self.folder, self.config = folder, config
        self.recorder: Recorder | None = None
        self.steps = setup.job.steps
        self.best_evaluation: float | None = None
        self.next_evaluation = setup.job.eval_every
        self.steps_before = 0  # that a loaded model had been trained for
        self.schedule_start = 0 if config is None else int(config["schedule_start"])  # where schedules begin
        self.last_checkpoint: int | None = None
        self.saver = BackgroundSaver()
        self._segments: list[dict[str, Any]] = []  # of the replay, on disk
        self._saved_at = 0
        self._line_at = (0, 0, 0.0)  # iteration, step and seconds of the last line of updates.csv
        self._curve: tuple[list[int], list[float]] = ([], [])
        self._eval_env: gym.Env | None = None

    @property
    def schedule_steps(self) -> int:
        """Environment steps from the start of the schedules to their end."""
        return self.setup.config.schedule_steps or self.steps - self.schedule_start

    def add_steps(self, number: int) -> None:
        """A new total; unless they have a length of their own, schedules begin again for the new steps."""
        self.steps = self.trainer.step + number
        if self.setup.config.schedule_steps is None:
            self.schedule_start = self.trainer.step

    def save(self, is_waited_for: bool = True) -> None:
        """Checkpoint and model. A replay that is apart is written beside the training, unless that is to wait."""
        assert self.config is not None
        self.wait_for_save()  # counts its own time
        if self.saver.cost.number == 1:  # an early word, and one at the end
            self._tell_cost()
        started = time.perf_counter()
        self.trainer.check_params()
        write = self._prepare_save(self.config["run_id"])
        if self.trainer.is_replay_apart:
            self.saver.start(write, time.perf_counter() - started)
            if is_waited_for:
                self.wait_for_save()
        else:
            with self._writing():
                write()

    def wait_for_save(self) -> None:
        """Until the checkpoint that is being written is there."""
        with self._writing():
            self.saver.wait()

    def _prepare_save(self, run_id: str) -> Callable[[], int]:
        """All that a checkpoint holds, as it is now; returns the function that writes it and returns its bytes."""
        assert self.folder is not None
        assert self.recorder is not None
        trainer, folder, step = self.trainer, self.folder, self.trainer.step
        with self._writing():
            files = self.recorder.flush()
        tree: dict[str, Any] = {
            "trainer": trainer.snapshot(),
            "files": files,
            "job": self._identity(),
            "steps_before": self.steps_before,
            "best_evaluation": self.best_evaluation,
            "next_evaluation": self.next_evaluation,
            "line_at": list(self._line_at),
            "curve": [list(self._curve[0]), list(self._curve[1])],
        }
        saved_before = self._segments[-1]["last"] if self._segments else 0
        chunks = trainer.replay_chunks(saved_before) if trainer.is_replay_apart else []
        if trainer.is_replay_apart:
            tree = checkpoint.frozen(tree)
        model = self.model()
        self._saved_at = step

        def write() -> int:
            place = folder / "checkpoint"
            place.mkdir(parents=True, exist_ok=True)
            new = [segments.write(place, chunk) for chunk in chunks]
            if chunks:
                assert trainer.algorithm.replay is not None
                slots = trainer.algorithm.replay.slots
                self._segments = segments.needed([*self._segments, *new], chunks[-1].last, slots)
            if trainer.is_replay_apart:
                tree["segments"] = self._segments
            size = checkpoint.save(place, run_id, step, tree)
            segments.clean(place, self._segments)
            models.save(model, folder / "model")
            self.last_checkpoint = step  # last: whoever sees it may take the folder's files
            return size + sum(segment["bytes"] for segment in new)

        return write

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A disk that is full or gone stops the run in one line; the last checkpoint stays good."""
        try:
            yield
        except OSError as error:
            raise RunStopped(
                f"step {self.trainer.step:,}: {error.filename or self.folder} cannot be written: {error.strerror}"
            ) from error

    def complete(self) -> None:
        """Write what a run at its total still lacks: it was killed before the model, or the total was lowered."""
        assert self.folder is not None
        try:
            is_current = models.load(self.folder / "model").step == self.trainer.step + self.steps_before
        except UserError:
            is_current = False
        if is_current and (self.folder / "model").exists() and self._line_at[1] == self.trainer.step:
            return
        self.recorder = Recorder(self.folder, self.trainer.algorithm.metrics)
        try:
            self._write_line()
            self.save()
        finally:
            self.recorder.close()

    def _identity(self) -> dict[str, Any]:
        """What has to be the same in config.json when the run goes on."""
        assert self.config is not None
        return {key: self.config[key] for key in ("algo", "seed", "settings", "env")}

    def restore(self, steps: int | None = None) -> list[int]:
        """Go on from the folder's checkpoint, or from the start if there is none yet; `steps` is a new total."""
        assert self.folder is not None
        assert self.config is not None
        if not checkpoint.exists(self.folder / "checkpoint"):
            if (self.folder / "model").exists():
                raise UserError(f"{self.folder / 'checkpoint'} is missing: the run cannot go on without it")
            cut_back(self.folder, None)
            return []
        tree = checkpoint.load(self.folder / "checkpoint", self.config["run_id"])
        try:
            for key, value in self._identity().items():
                if tree["job"][key] != value:
                    raise UserError(
                        f"{self.folder / 'config.json'} was changed: {_change(key, tree['job'][key], value)}"
                    )
            if steps is not None and steps < tree["trainer"]["step"]:
                raise UserError(f"--steps {steps}: the run is at step {tree['trainer']['step']} already")
            self._segments = tree.get("segments", [])
            chunks = (segments.read(self.folder / "checkpoint", segment) for segment in self._segments)
            fresh = self.trainer.restore(tree["trainer"], chunks)
            self.best_evaluation, self.next_evaluation = tree["best_evaluation"], tree["next_evaluation"]
            if self.next_evaluation is None and self.job.eval_every is not None:
                self.next_evaluation = self.trainer.step + self.job.eval_every  # asked for after this checkpoint
            self.steps_before = tree["steps_before"]
            self._line_at = tuple(tree["line_at"])
            self._curve = (list(tree["curve"][0]), list(tree["curve"][1]))
            files = tree["files"]
            cut_back(self.folder, files)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{self.folder / 'checkpoint'} does not fit this run: {reason}") from None
        self.last_checkpoint = self._saved_at = self.trainer.step
        return fresh

    def model(self) -> models.Model:
        """The policy as it is now."""
        job, setup = self.job, self.setup
        return models.Model(
            job.algo,
            json.loads(json.dumps(dataclasses.asdict(setup.config))),
            {"id": job.env if isinstance(job.env, str) else None, "kwargs": job.env_kwargs},
            *setup.spaces,
            jax.tree.map(np.array, self.trainer.state.params),
            self.trainer.normalizer.state(),
            self.trainer.step + self.steps_before,
        )

    def set_evaluation(self, every: int) -> None:
        """Evaluate from here on, every so many steps."""
        if maker(self.job.env, self.job.env_kwargs) is None:
            raise UserError("eval_every needs an environment id or a function, not a vector environment")
        if every < 1:
            raise UserError(f"eval_every {every}: at least 1 is needed")
        self.job = self.job._replace(eval_every=int(every))
        self.next_evaluation = self.trainer.step + int(every)

    def adopt_folder(self, folder: Path) -> Any:
        """Start to record in a new folder; returns its lock."""
        self.config, stack = open_folder(self.setup._replace(job=self.job._replace(steps=self.steps)), folder, None)
        self.folder = folder
        return stack

    def adopt_model(self, loaded: models.Model) -> None:
        """Go on from a model: its weights and normaliser, an empty replay and a fresh optimiser."""
        self.trainer.adopt(loaded.params, loaded.normalizer)
        self.steps_before = loaded.step

    def extend_config(self) -> None:
        """Write a new total, where its schedules begin, and how often to evaluate, into config.json."""
        assert self.folder is not None
        assert self.config is not None
        now = {"steps": self.steps, "schedule_start": self.schedule_start, "eval_every": self.job.eval_every}
        if any(self.config[key] != value for key, value in now.items()):
            self.config |= now
            checkpoint.write_json(self.folder / "config.json", self.config)

    def header(self) -> Header:
        trainer, config = self.trainer, self.setup.config
        lines = [
            f"{config.num_envs} environments × {config.num_steps} steps an iteration, "
            f"{num_parameters(trainer.state.params):,} parameters on {trainer.device.platform}, "
            f"preset {self.job.preset}{', variant ' + self.job.variant if self.job.variant else ''}"
        ]
        if trainer.algorithm.replay_bytes:
            lines.append(replay_line(trainer.algorithm.replay_bytes, trainer.placement))
        if trainer.placement.reason:
            lines.append(f"learns on {trainer.placement.reason}")
        if trainer.device.platform == "cpu" and self.setup.specs.observation.kind == "image":
            seconds = speeds.seconds_per_step(env_name(self.job.env), self.job.algo, has_images=True)
            lines.append(f"images on the CPU alone: some {1 / seconds:,.0f} steps/s a core; a GPU is far faster")
        if trainer.device.platform != "cpu" and not config.deterministic:
            lines.append("on this device resume is exact only with --set deterministic=true")
        if self.folder is not None:
            lines.append(f"run folder: {self.folder}")
        return Header(f"{self.job.algo.upper()} on {env_name(self.job.env)}, seed {self.job.seed}", lines, self.steps)

    def status(self, metrics: dict[str, float]) -> Status:
        trainer = self.trainer
        speed = trainer.step / trainer.seconds if trainer.seconds else 0.0
        curve = (np.asarray(self._curve[0]), np.asarray(self._curve[1]))
        return Status(
            trainer.step,
            self.steps,
            trainer.num_episodes,
            trainer.mean_return,
            trainer.mean_length,
            speed,
            trainer.seconds,
            curve,
            metrics,
        )

    def run(self, stop: Stop, callback: Callable[[Any], Any] | None = None) -> None:
        """Train to the total, or until a signal or the callback stops it."""
        if self.folder is not None:
            self.recorder = Recorder(self.folder, self.trainer.algorithm.metrics)
        shown = [m.name for m in self.trainer.algorithm.metrics if m.is_shown]
        latest: dict[str, float] = dict.fromkeys(shown, float("nan"))
        self.display.start(self.header())
        try:
            while self.trainer.step < self.steps and stop.received is None:
                result = self.trainer.iterate(self.schedule_steps, self.schedule_start)
                self._record(result)
                # a metric of replayed updates keeps its last value through an iteration without one
                latest |= {
                    m.name: result.metrics[m.name]
                    for m in self.trainer.algorithm.metrics
                    if m.is_shown and (not m.weight or result.metrics[m.weight])
                }
                self.display.update(self.status(latest))
                if self.folder is not None and self._is_checkpoint_due() and self.trainer.step < self.steps:
                    self.save(is_waited_for=False)  # the last one is made below, together with the last line
                if callback is not None and callback(self.status(latest)) is False:
                    break
            if self.folder is not None:
                if self.trainer.step >= self.steps:
                    self._write_line()
                if self.trainer.iteration:  # a signal may come before the first
                    self.save()
                    self._tell_cost()
        except RunStopped as error:
            with contextlib.suppress(RunStopped):
                self.wait_for_save()
            raise RunStopped(f"{error}; {self._last_good()}") from error
        finally:
            with contextlib.suppress(RunStopped):  # nothing is left half done when the folder is free again
                self.wait_for_save()
            self.display.stop()
            if self.recorder is not None:
                self.recorder.close()

    def _last_good(self) -> str:
        if self.folder is None:
            return "no run folder, so no checkpoint"
        if self.last_checkpoint is None:
            return "there was no checkpoint yet"
        return f"last good checkpoint: {self.folder / 'checkpoint'} at step {self.last_checkpoint:,}"

    def _is_checkpoint_due(self) -> bool:
        every = self.setup.config.checkpoint_every
        is_due = self.trainer.step // every > self._saved_at // every
        return is_due and not self.saver.is_busy  # a slow disk makes checkpoints rarer, not training slower

    def _tell_cost(self) -> None:
        if self.trainer.is_replay_apart:
            self.display.message(self.saver.cost.line(self.trainer.seconds))

    def _record(self, result: Iteration) -> None:
        trainer = self.trainer
        if result.episodes:
            self._curve[0].append(trainer.step)
            self._curve[1].append(trainer.mean_return)
            if len(self._curve[0]) > 500:  # thin the display's curve: it is handed over at every iteration
                self._curve = (self._curve[0][::2], self._curve[1][::2])
        if self.recorder is not None:
            with self._writing():
                self.recorder.add_episodes(result.episodes, trainer.seconds)
        iteration, step, _ = self._line_at
        if trainer.iteration - iteration >= INTERVAL_ITERATIONS and trainer.step - step >= INTERVAL_STEPS:
            self._write_line()
        if self.next_evaluation is not None and trainer.step >= self.next_evaluation:
            self._evaluate()

    def _write_line(self) -> None:
        """One line of updates.csv for the interval that ends here."""
        trainer = self.trainer
        _, step, seconds = self._line_at
        if trainer.step == step:
            return
        trainer.settle()
        means = trainer.interval.means() | {
            "steps_per_second": (trainer.step - step) / max(trainer.seconds - seconds, 1e-9),
        }
        trainer.interval.clear()
        self._line_at = (trainer.iteration, trainer.step, trainer.seconds)
        if self.recorder is not None:
            rollout = {"rollout/ep_rew_mean": trainer.mean_return, "rollout/ep_len_mean": trainer.mean_length}
            with self._writing():
                self.recorder.add_update(trainer.step, means)
                self.recorder.add_events(trainer.step, means, rollout)
                self.recorder.flush()

    def _evaluate(self) -> None:
        """Seeded by the step, so that a resumed run evaluates the same episodes."""
        assert self.job.eval_every is not None
        self.trainer.check_params()  # what is not finite must not become the best
        while self.next_evaluation is not None and self.next_evaluation <= self.trainer.step:
            self.next_evaluation += self.job.eval_every
        if self._eval_env is None:
            make = maker(self.job.env, self.job.env_kwargs)
            assert make is not None
            self._eval_env = make()
        parent = seeds.derive(self.job.seed).evaluation
        key = (*parent.spawn_key, self.trainer.step)
        seed = int(np.random.SeedSequence(parent.entropy, spawn_key=key).generate_state(1)[0])
        results = play(self.model(), self._eval_env, self.setup.config.eval_episodes, seed, deterministic=True)
        mean = float(np.mean([total for total, _ in results]))
        if self.recorder is not None and self.folder is not None:
            with self._writing():
                self.recorder.add_evaluation(self.trainer.step, results)
                if self.best_evaluation is None or mean > self.best_evaluation:
                    models.save(self.model(), self.folder / "model-best")
        self.best_evaluation = mean if self.best_evaluation is None else max(self.best_evaluation, mean)
        self.display.message(f"evaluation at step {self.trainer.step:,}: mean return {mean:,.1f}")


def _change(key: str, before: Any, now: Any) -> str:
    """Which setting differs, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        absent = "absent"
        name = next(n for n in sorted(before.keys() | now.keys()) if before.get(n, absent) != now.get(n, absent))
        return f"{key} {name} is {now.get(name, absent)}, the checkpoint was made with {before.get(name, absent)}"
    return f"{key} is {now}, the checkpoint was made with {before}"


def start(job: Job, folder: Path, display: Display, command: list[str] | None = None) -> tuple[Session, Any]:
    """A new run in a new folder; returns it with its lock."""
    check_free(folder)
    setup = set_up(job)
    config, stack = open_folder(setup, folder, command)
    return Session(setup, display, folder, config), stack


def resume(
    folder: Path, display: Display, steps: int | None = None, env: EnvSource | None = None
) -> tuple[Session, Any]:
    """The run in a folder, brought to its last checkpoint; returns it with its lock."""
    config = read_config(folder)
    stack = contextlib.ExitStack()
    stack.enter_context(lock(folder))
    try:
        return _resume_locked(folder, config, display, steps, env), stack
    except BaseException:
        stack.close()
        raise


def _resume_locked(
    folder: Path, config: dict[str, Any], display: Display, steps: int | None, env: EnvSource | None
) -> Session:
    job = job_of(config, folder, env)
    setup = set_up(job, config.get("device", "cpu"), config.get("cores"))
    has_lost_gpu = config.get("device") == "gpu" and setup.trainer.device.platform == "cpu"
    if has_lost_gpu:
        display.message("this run was on a GPU, and there is none here; it goes on on the CPU, but not bit for bit")
    if config["env"]["observation_space"] != str(setup.spaces[0]) or config["env"]["action_space"] != str(
        setup.spaces[1]
    ):
        raise UserError(
            f"{folder}: the run was on spaces {config['env']['observation_space']} and "
            f"{config['env']['action_space']}, the environment has {setup.spaces[0]} and {setup.spaces[1]}"
        )
    session = Session(setup, display, folder, config)
    fresh = session.restore(steps)
    if fresh:
        display.message(
            "the environment cannot be brought back to where it was: the episodes that were running start afresh"
        )
    changed = has_lost_gpu
    if steps is not None and steps != job.steps:
        if setup.config.schedule_steps is None and setup.config.lr_schedule != "constant":
            display.message(f"the new total of {steps:,} steps is the new horizon of the learning-rate schedule")
        config["steps"] = session.steps = steps
        changed = True
    if config["versions"] != versions():
        display.message("this resume runs under other versions than before; it goes on, but not bit for bit")
        changed = True
    if changed:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = {"at_step": session.trainer.step, "steps": session.steps, "versions": versions(), "time": now}
        if has_lost_gpu:
            entry["device"] = config["device"] = "cpu"
        config["resumes"].append(entry)
        checkpoint.write_json(folder / "config.json", config)
    return session
