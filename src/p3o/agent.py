"""The Python side: `P3O("HalfCheetah-v5").learn(1_000_000).predict(observation)`."""

import contextlib
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import gymnasium as gym
import numpy as np

from p3o import model as models
from p3o.checkpoint import current_folder
from p3o.config import BEFORE, MAX_COUNT
from p3o.display import make_display
from p3o.errors import UserError
from p3o.folder import FolderChanged, lock, mark_in, read_config
from p3o.jobs import EnvSource, Job, check_new, env_name, set_up
from p3o.model import Model, split_batch
from p3o.panel import Status
from p3o.report import write_report
from p3o.session import Session
from p3o.signals import StopSignals
from p3o.starting import resume as resume_session

A = TypeVar("A", bound="Agent")
LOG = logging.getLogger("p3o")
PLAN = ("steps", "schedule_start", "job", "next_evaluation", "folder", "config")  # of a session: what `learn` changes


class _ClassOnly:
    """A classmethod that raises when called on an instance, where it would look as if it changed that instance."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(self, instance: Any, owner: type) -> Callable[..., Any]:
        name = self.function.__name__

        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise TypeError(f"{name} makes a new agent: write `agent = {owner.__name__}.{name}(...)`")

        return self.function.__get__(owner, type) if instance is None else refuse


class Agent:
    """An algorithm on an environment. Nothing is written to disk unless `learn` gets a `run_dir`."""

    algo: ClassVar[str]
    variants: ClassVar[tuple[str, ...]] = ()  # further algorithms of the registry that this class stands for
    _is_replay_lost = False
    _model: Model | None = None
    _model_at: int | None = None  # the iteration after which `_model` was taken
    _mark: str | None = None  # in the run folder when this agent let go of it

    def __init__(
        self,
        env: EnvSource,
        *,
        seed: int = 0,
        preset: str = "default",
        env_kwargs: dict[str, Any] | None = None,
        **settings: Any,
    ):
        self._job = Job(env, self.algo, 0, seed, preset, settings=settings, env_kwargs=env_kwargs or {})
        check_new(self._job)
        self._session: Session | None = Session(set_up(self._job), make_display("none"), None, None)
        self._predict_rng = np.random.default_rng(np.random.SeedSequence((seed, 2)))

    @property
    def num_timesteps(self) -> int:
        """Environment steps that this agent has learned from."""
        return self._session.trainer.step + self._session.steps_before if self._session else self._loaded.step

    @property
    def mean_return(self) -> float:
        """Mean raw return of the last 100 training episodes; NaN before the first."""
        return self._session.trainer.mean_return if self._session else float("nan")

    @property
    def _loaded(self) -> Model:
        """The policy as it is now, also inside a callback of `learn`."""
        if self._session is not None and self._model_at != self._session.trainer.iteration:
            self._model, self._model_at = self._session.model(), self._session.trainer.iteration
        assert self._model is not None
        return self._model

    def learn(
        self: A,
        total_steps: int | None = None,
        callback: Callable[[Status], Any] | None = None,
        progress_bar: bool = False,
        run_dir: str | Path | None = None,
        eval_every: int | None = None,
    ) -> A:
        """Train for `total_steps` more environment steps (None: to the end of a resumed run) and return the agent.

        The learning rate falls over the steps of each call, unless `schedule_steps` is set or `lr_schedule` constant.
        `callback` gets a Status after every iteration; returning False stops the training there. The first Ctrl-C
        waits for the iteration, and with a run folder for a checkpoint, before it goes on to the caller.
        """
        if not (callback is None or callable(callback)):
            raise UserError(f"callback {callback!r}: a function of a Status is needed")
        with contextlib.ExitStack() as hold:  # the run folder is this agent's while it learns
            session = self._begin(total_steps, run_dir, eval_every, hold)
            if self._is_replay_lost:
                LOG.warning("learning goes on from a saved model: with an empty replay and optimiser")
                self._is_replay_lost = False
            session.display = make_display("auto" if progress_bar else "none")
            is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else the caller has plans for it
            with StopSignals((signal.SIGINT,) if is_ours else ()) as stop:
                session.run(stop, callback)
            is_cut_short = stop.received is not None and session.trainer.step < session.steps
            if session.folder is not None and not is_cut_short:
                write_report(session.folder)
            elif session.folder is not None:
                LOG.warning("stopped at step %s; resume(%r) goes on", f"{session.trainer.step:,}", str(session.folder))
        if stop.received is not None:
            raise KeyboardInterrupt
        return self

    def _begin(
        self,
        total_steps: int | None,
        run_dir: str | Path | None,
        eval_every: int | None,
        hold: contextlib.ExitStack,
    ) -> Session:
        """The session that goes on for so many steps, in its folder, whose lock goes to `hold`."""
        session = self._session or self._continue(self._loaded, None)
        if total_steps is None and session.steps <= session.trainer.step:
            if session.folder is None:
                raise UserError("learn needs the number of steps")
            raise UserError(f"the run is finished at step {session.trainer.step:,}; learn(n) adds n steps to it")
        number = None if total_steps is None else _whole(total_steps)
        every = None if eval_every is None else _whole(eval_every, "eval_every")
        if run_dir is not None:
            self._check_folder(session, Path(run_dir))
        if session.folder is not None:
            self._hold(session, session.folder, self._come_back(session.folder), hold)
        before = {name: vars(session)[name] for name in PLAN}
        try:
            if every is not None:
                session.set_evaluation(every)
            if number is not None and session.trainer.step + number != session.steps:
                session.add_steps(number)
            if session.folder is not None:
                session.extend_config()
            elif run_dir is not None:
                self._hold(session, Path(run_dir), session.adopt_folder(Path(run_dir)), hold)
        except BaseException:
            vars(session).update(before)  # a refused call leaves nothing behind
            raise
        is_on_the_way = session.trainer.step < before["steps"]
        if is_on_the_way and session.steps != before["steps"]:
            LOG.warning(
                "the run now ends at step %s instead of %s%s; learn() without a number keeps to the plan",
                f"{session.steps:,}",
                f"{before['steps']:,}",
                ", and its schedules begin anew" * (session.schedule_start == session.trainer.step),
            )
        return session

    def _come_back(self, folder: Path) -> contextlib.ExitStack:
        """The lock of the run's folder, unless somebody else went on with the run since this agent left it."""
        folder_lock = contextlib.ExitStack()
        try:
            folder_lock.enter_context(lock(folder, self._mark))
        except FolderChanged as error:
            env = "" if isinstance(self._job.env, str) else ", env=..."
            how = f"{type(self).__name__}.resume({str(folder)!r}{env}) takes it up as it is"
            raise UserError(f"{error}; {how}") from None
        return folder_lock

    def _hold(
        self, session: Session, folder: Path, folder_lock: contextlib.ExitStack, hold: contextlib.ExitStack
    ) -> None:
        """Until `hold` ends the folder is this agent's, which then remembers how it left it."""
        hold.enter_context(session.holding(folder_lock))
        hold.callback(self._leave, folder)

    def _leave(self, folder: Path) -> None:
        self._mark = mark_in(folder)

    def _check_folder(self, session: Session, folder: Path) -> None:
        """Refuse another folder than the one that a run began in."""
        if session.folder is None and session.trainer.step:
            raise UserError("run_dir has to be given at the first call of learn: earlier steps were not recorded")
        if session.folder is not None and session.folder.resolve() != folder.resolve():
            raise UserError(f"run_dir {folder}: this agent already writes to {session.folder}")

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, Any]:
        """The action for one raw observation, or actions for a batch; `state` is handed back (no memory is kept)."""
        policy = self._loaded
        rows, is_batch = split_batch(observation, policy.observation_space)
        actions = policy.act(rows, None if deterministic else self._predict_rng)
        return (actions if is_batch else actions[0]), state

    def save(self, path: str | Path) -> None:
        """Write the model (not the training state) to a folder."""
        try:
            models.save(self._loaded, Path(path))
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None

    @_ClassOnly
    def load(cls: Any, path: str | Path, env: EnvSource | None = None) -> Any:
        """An agent from a model folder or a run; `learn` goes on, in `env` or the model's own, from an empty replay."""
        loaded = load_model(Path(path))
        if loaded.algo not in (cls.algo, *cls.variants):
            raise UserError(f"{path} is a model of {loaded.algo}, not of {cls.algo}")
        agent = cls.__new__(cls)
        agent.algo = loaded.algo
        agent._model, agent._model_at = loaded, 0
        agent._session = None
        agent._predict_rng = np.random.default_rng(np.random.SeedSequence((0, 2)))
        if env is not None:  # else one is made when `learn` needs it: predicting does not
            agent._continue(loaded, env)
        return agent

    def _continue(self, loaded: Model, env: EnvSource | None) -> Session:
        """The session that goes on from a model."""
        source = env if env is not None else loaded.env["id"]
        if source is None:
            raise UserError("this agent was loaded without an environment: use load(path, env=...) to train it")
        settings = {**BEFORE, **loaded.settings}
        if isinstance(source, gym.vector.VectorEnv):
            settings["num_envs"] = source.num_envs
        kwargs = loaded.env["kwargs"] if env is None else {}
        self._job = Job(source, self.algo, 0, 0, loaded.preset, settings=settings, env_kwargs=kwargs)
        setup = set_up(self._job)
        loaded.check_spaces(*setup.spaces, env_name(source))
        if loaded.specs.observation.leaves != setup.specs.observation.leaves:  # equal Dicts may differ in their order
            raise UserError(f"this model has the entries of its observation in another order than {env_name(source)}")
        self._session = Session(setup, make_display("none"), None, None)
        self._session.adopt_model(loaded)
        self._is_replay_lost = True
        return self._session

    @_ClassOnly
    def resume(cls: Any, run_dir: str | Path, env: EnvSource | None = None) -> Any:
        """An agent with the whole state of a run; `learn()` then goes on exactly where it stopped."""
        algo = read_config(Path(run_dir)).get("algo")
        if isinstance(algo, str) and algo not in (cls.algo, *cls.variants):
            raise UserError(f"{run_dir} is a run of {algo}, not of {cls.algo}")
        session, folder_lock = resume_session(Path(run_dir), make_display("plain"), None, env)
        with folder_lock:
            agent = cls.__new__(cls)
            agent.algo = session.job.algo
            agent._job, agent._session = session.job, session
            agent._leave(Path(run_dir))
        agent._predict_rng = np.random.default_rng(np.random.SeedSequence((session.job.seed, 2)))
        return agent


class P3O(Agent):
    """Policy-on Policy-off Policy Optimization."""

    algo = "p3o"


class A2C(Agent):
    """Advantage actor-critic; with `use_gae=True` the algorithm `a2cg`."""

    algo = "a2c"
    variants = ("a2cg",)

    def __init__(self, env: EnvSource, *, use_gae: bool = False, **arguments: Any):
        if not isinstance(use_gae, bool):
            raise UserError(f"use_gae {use_gae!r}: True or False is needed")
        if use_gae:
            self.algo = "a2cg"  # type: ignore[misc] # one class, two registry entries
        super().__init__(env, **arguments)


class PPO(Agent):
    """Proximal policy optimisation."""

    algo = "ppo"


class ACER(Agent):
    """Actor-critic with experience replay, for discrete actions."""

    algo = "acer"


def _whole(steps: Any, name: str = "total_steps") -> int:
    """A number of steps; 1e6 is one too."""
    is_number = isinstance(steps, int | float | np.number) and not isinstance(steps, bool)
    if not is_number or not float(steps).is_integer() or steps < 1:
        raise UserError(f"{name} {steps!r}: a whole number of at least 1 is needed")
    if steps > MAX_COUNT:
        raise UserError(f"{name} {steps!r} is more than {MAX_COUNT:,}")
    return int(steps)


def load_model(path: Path) -> Model:
    """The model in a folder or a run; one of another algorithm or environment was not made by the run."""
    folder = find_model(path)
    loaded = models.load(folder)
    if folder != path and loaded.env["id"] is not None:
        config = read_config(path)
        made = (config.get("algo"), config["env"].get("id"), config["env"].get("kwargs"))
        if made != (loaded.algo, loaded.env["id"], loaded.env["kwargs"]):
            arguments = (loaded.env["kwargs"], made[2])
            its, the_runs = ("", "") if arguments[0] == arguments[1] else (f" with {kwargs}" for kwargs in arguments)
            raise UserError(
                f"{folder} is of another run: a model of {loaded.algo} on {loaded.env['id']}{its}, the run is of "
                f"{made[0]} on {made[1]}{the_runs}"
            )
    return loaded


def find_model(path: Path) -> Path:
    """The model folder that a path means: itself, or the one inside a run."""
    if not current_folder(path).exists():
        raise UserError(f"{path}: no such folder; a model folder or a run was expected")
    is_run = (path / "config.json").exists()
    if is_run and not current_folder(path / "model").exists():
        raise UserError(f"{path} has no model yet: the run has not reached its first checkpoint")
    return path / "model" if is_run else path
