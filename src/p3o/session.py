"""A run and its folder, while it trains: recorded, checkpointed, evaluated, finished."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from p3o import model as models
from p3o.display import Display
from p3o.errors import RunStopped, UserError, is_out_of_memory, out_of_memory
from p3o.evaluate import evaluate
from p3o.folder import fixed_part, leave_mark, open_folder, write_config
from p3o.header import header
from p3o.jobs import Setup, maker
from p3o.panel import Status
from p3o.recording import Recorder, cut_back
from p3o.saving import Checkpoints
from p3o.signals import Stop
from p3o.train import Iteration

MEMORY = ("num_envs", "num_steps", "replay_size")  # settings that decide how much of it a run needs
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
        self.checkpoints = Checkpoints(setup.trainer)
        self._line_at = (0, 0, 0.0)  # iteration, step and seconds of the last line of updates.csv
        self._began_at = (0, 0.0)  # step and seconds of the start or resume
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
        assert self.folder is not None
        assert self.config is not None
        self.wait_for_save()  # counts its own time
        if self.checkpoints.saver.cost.number == 1:  # an early word, and one at the end
            self._tell_cost()
        started = time.perf_counter()
        self.trainer.check_params()
        write = self.checkpoints.prepare(self.folder, self.config["run_id"], self._entries(), self.model())
        self.checkpoints.saver.start(write, time.perf_counter() - started)
        if is_waited_for or not self.trainer.is_replay_apart:
            self.wait_for_save()

    @contextlib.contextmanager
    def holding(self, folder_lock: contextlib.ExitStack) -> Iterator[None]:
        """The folder's lock, kept as long as anything is being written, even if nobody waits for that any more."""
        try:
            yield
        finally:
            self.checkpoints.saver.then(folder_lock.close)

    def wait_for_save(self) -> None:
        """Until the checkpoint that is being written is there."""
        with self._writing():
            self.checkpoints.saver.wait()

    def _entries(self) -> dict[str, Any]:
        """What a checkpoint holds beside the trainer."""
        assert self.config is not None
        assert self.recorder is not None
        with self._writing():
            files = self.recorder.flush()
        return {
            "files": files,
            "job": fixed_part(self.config),
            "steps_before": self.steps_before,
            "best_evaluation": self.best_evaluation,
            "next_evaluation": self.next_evaluation,
            "line_at": list(self._line_at),
            "curve": [list(self._curve[0]), list(self._curve[1])],
        }

    def restore(self, tree: dict[str, Any]) -> list[int]:
        """Go back to a checkpoint, files too; returns the environments that had to start a fresh episode."""
        assert self.folder is not None
        fresh = self.checkpoints.restore(self.folder, tree)
        self.best_evaluation, self.next_evaluation = tree["best_evaluation"], tree["next_evaluation"]
        if self.job.eval_every is None:  # killed before config.json had it
            self.next_evaluation = None
        elif self.next_evaluation is None:
            self.next_evaluation = self.trainer.step + self.job.eval_every  # asked for after this checkpoint
        self.steps_before = tree["steps_before"]
        self._line_at = tuple(tree["line_at"])
        self._curve = (list(tree["curve"][0]), list(tree["curve"][1]))
        cut_back(self.folder, tree["files"])
        return fresh

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """What cannot be used stops the run: an environment that leaves its own space, a folder no longer its own."""
        try:
            yield
        except UserError as error:
            raise RunStopped(f"after step {self.trainer.step:,}: {error}") from error

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A disk that is full or gone stops the run in one line; the last checkpoint stays good."""
        try:
            with self._stopping():
                yield
        except OSError as error:
            raise RunStopped(
                f"step {self.trainer.step:,}: {error.filename or self.folder} cannot be written: {error.strerror}"
            ) from error

    def _open_files(self, folder: Path | None) -> None:
        if folder is None:
            self.recorder = None  # one of a folder that came to nothing
            return
        if self.recorder is not None and not self.recorder.is_whole:
            raise UserError(f"{folder}: lines that it had no room for are lost; `resume` goes on from its checkpoint")
        leave_mark(folder)
        with self._writing():
            self.recorder = Recorder(folder, self.trainer.algorithm.metrics)

    def complete(self, stop: Stop) -> None:
        """Write what a run at its total still lacks: it was killed before the model, or the total was lowered."""
        assert self.folder is not None
        try:
            is_current = models.load(self.folder / "model").step == self.trainer.step + self.steps_before
        except UserError:
            is_current = False
        is_evaluated = self.next_evaluation is None or self.next_evaluation > self.trainer.step
        if is_evaluated and is_current and (self.folder / "model").exists() and self._line_at[1] == self.trainer.step:
            return
        self._open_files(self.folder)
        assert self.recorder is not None
        try:
            with self._stopping():
                self._evaluate_if_due(stop)
            self._write_line()
            self.save()
        finally:
            self.recorder.close()

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
            job.preset,
        )

    def set_evaluation(self, every: int) -> None:
        """Evaluate from here on, every so many steps."""
        if maker(self.job.env, self.job.env_kwargs) is None:
            raise UserError("eval_every needs an environment id or a function, not a vector environment")
        self.job = self.job._replace(eval_every=every)
        self.next_evaluation = self.trainer.step + every

    def adopt_folder(self, folder: Path) -> Any:
        """Start to record in a new folder; returns its lock."""
        setup = self.setup._replace(job=self.job._replace(steps=self.steps))
        self.config, stack = open_folder(setup, folder, None, self.steps_before)
        self.folder = folder
        if self.steps_before:  # else a run that is killed early would begin again from nothing
            try:
                self._catch_up(folder)
            except BaseException:
                self.checkpoints.saver.then(stack.close)
                self.checkpoints = Checkpoints(self.trainer)  # of a folder to come
                raise
        return stack

    def _catch_up(self, folder: Path) -> None:
        """A checkpoint of now, if the last one is older: what config.json says from here on is about what follows."""
        if self.checkpoints.last == self.trainer.step or not (self.trainer.iteration or self.steps_before):
            return
        self._open_files(folder)
        assert self.recorder is not None
        try:
            if self.trainer.rollout.observation is None:  # at the start, or after an exception
                self.trainer.rollout.start()
            self.save()
        finally:
            self.recorder.close()

    def adopt_model(self, loaded: models.Model) -> None:
        """Go on from a model: its weights and normaliser, an empty replay and a fresh optimiser."""
        self.trainer.adopt(loaded.params, loaded.normalizer)
        self.steps_before = loaded.step

    def extend_config(self) -> None:
        """Write a new total, where its schedules begin, and how often to evaluate, into config.json."""
        assert self.folder is not None
        assert self.config is not None
        now = {"steps": self.steps, "schedule_start": self.schedule_start, "eval_every": self.job.eval_every}
        if any(self.config.get(key) != value for key, value in now.items()):
            self._catch_up(self.folder)
            write_config(self.folder, self.config | now)
            self.config |= now

    def status(self, metrics: dict[str, float]) -> Status:
        trainer = self.trainer
        step, seconds = self._began_at
        speed = (trainer.step - step) / (trainer.seconds - seconds) if trainer.seconds > seconds else 0.0
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
        self._open_files(self.folder)
        shown = [m.name for m in self.trainer.algorithm.metrics if m.is_shown]
        latest: dict[str, float] = dict.fromkeys(shown, float("nan"))
        every = self.setup.config.checkpoint_every
        self._began_at = (self.trainer.step, self.trainer.seconds)
        self.display.start(header(self.setup, self.steps, self.folder))
        try:
            with self._stopping():
                self._evaluate_if_due(stop)  # one that a signal had cut short
            while self.trainer.step < self.steps and stop.received is None:
                with self._stopping():
                    result = self.trainer.iterate(self.schedule_steps, self.schedule_start)
                    self._record(result)
                    self._evaluate_if_due(stop)
                # a metric of replayed updates keeps its last value through an iteration without one
                latest |= {
                    m.name: result.metrics[m.name]
                    for m in self.trainer.algorithm.metrics
                    if m.is_shown and (not m.weight or result.metrics[m.weight])
                }
                self.display.update(self.status(latest))
                if callback is not None and callback(self.status(latest)) is False:
                    break
                if self.folder is None or self.trainer.step >= self.steps:
                    continue
                if self.checkpoints.is_due(every):
                    self.save(is_waited_for=False)  # the last one is made below, together with the last line
                with self._writing():
                    self.checkpoints.write_ahead(self.folder)
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
        except Exception as error:  # the environment's own, most likely: its traceback is the user's to read
            with contextlib.suppress(RunStopped):
                self.wait_for_save()
            if is_out_of_memory(error):
                sizes = ", ".join(name for name in MEMORY if hasattr(self.setup.config, name))
                what = f"{out_of_memory(error)}; less is needed with smaller {sizes}"
                raise RunStopped(f"{what}; {self._last_good()}") from error
            error.add_note(f"p3o: step {self.trainer.step:,} was the last whole one; {self._last_good()}")
            raise
        finally:
            try:
                with contextlib.suppress(RunStopped):
                    self.wait_for_save()
            finally:  # someone who presses Ctrl-C again and again does not wait
                self.display.stop()
                if self.recorder is not None:
                    self.recorder.close()

    def _last_good(self) -> str:
        if self.folder is None:
            return "no run folder, so no checkpoint"
        if self.checkpoints.last is None:
            return "there was no checkpoint yet"
        return f"last good checkpoint: {self.folder / 'checkpoint'} at step {self.checkpoints.last:,}"

    def _tell_cost(self) -> None:
        if self.setup.specs.observation.kind == "image" or self.trainer.is_replay_apart:
            self.display.message(self.checkpoints.saver.cost.line(self.trainer.seconds - self._began_at[1]))

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

    def _evaluate_if_due(self, stop: Stop) -> None:
        if self.next_evaluation is not None and self.trainer.step >= self.next_evaluation:
            self._evaluate(stop)

    def _evaluate(self, stop: Stop) -> None:
        """Play and record, and keep the policy that does best. A wish to stop leaves all but the last to the resume."""
        assert self.job.eval_every is not None
        self.trainer.check_params()  # what is not finite must not become the best
        if self._eval_env is None:
            make = maker(self.job.env, self.job.env_kwargs)
            assert make is not None
            self._eval_env = make()
        results = evaluate(
            self.model(),
            self._eval_env,
            self.setup.config.eval_episodes,
            self.job.seed,
            self.trainer.step,
            self.display.message,
            lambda: stop.received is not None and self.trainer.step < self.steps,
        )
        if results is None:
            return
        while self.next_evaluation is not None and self.next_evaluation <= self.trainer.step:
            self.next_evaluation += self.job.eval_every
        mean = float(np.mean([total for total, _ in results]))
        if not math.isfinite(mean):
            if self.folder is not None:  # a resume goes on after this evaluation, or finds the run finished
                if self.trainer.step >= self.steps:
                    self._write_line()
                self.save()
            raise RunStopped(f"evaluation at step {self.trainer.step:,}: the mean return is {mean}, no finite number")
        if self.recorder is not None and self.folder is not None:
            with self._writing():
                self.recorder.add_evaluation(self.trainer.step, results)
                if self.best_evaluation is None or mean > self.best_evaluation:
                    models.save(self.model(), self.folder / "model-best")
        self.best_evaluation = mean if self.best_evaluation is None else max(self.best_evaluation, mean)
        self.display.message(f"evaluation at step {self.trainer.step:,}: mean return {mean:,.1f}")
