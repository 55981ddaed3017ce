"""`p3o bench` measures: how fast this machine trains on an environment, and where the time goes."""

import importlib.util
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o import algorithms
from p3o.clocks import PARTS, Breakdown, breakdown
from p3o.display import NoDisplay
from p3o.envs.gymnasium_env import HostVectorEnv
from p3o.errors import UserError
from p3o.folder import open_folder
from p3o.jobs import EnvSource, Job, Setup, env_name, maker, set_up
from p3o.networks import num_parameters
from p3o.recording import Recorder
from p3o.session import INTERVAL_ITERATIONS, INTERVAL_STEPS, Session

COLUMNS = (*PARTS, "logging")
SCHEDULE_STEPS = 10_000_000
BARE_SECONDS = 1.0


class Product(NamedTuple):
    """What the replayed updates reach, against plain matrix products of the same shapes."""

    gflops: float
    plain_gflops: float

    @property
    def share(self) -> float:
        return self.gflops / self.plain_gflops


class Result(NamedTuple):
    """One algorithm's picture."""

    algo: str
    num_envs: int
    num_steps: int  # an iteration takes so many of each environment
    is_shortened: bool  # the preset's iterations would have been too long for the bench
    num_parameters: int
    has_images: bool
    steps_per_second: float
    parts: dict[str, float]  # seconds of an iteration by COLUMNS
    set_up_seconds: float
    compile_seconds: float
    product: Product | None
    device: str = "cpu"
    device_reason: str = ""  # where there was a choice

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.parts.values())
        return {name: seconds / total for name, seconds in self.parts.items()}


class Picture(NamedTuple):
    """All that `p3o bench` found."""

    env: str
    preset: str
    import_seconds: float
    bare_steps_per_second: float
    results: list[Result]
    skipped: dict[str, str]  # algorithm -> why it cannot run here


def default_env() -> str:
    return "HalfCheetah-v5" if importlib.util.find_spec("mujoco") else "CartPole-v1"


def measure(
    env: EnvSource,
    algos: list[str],
    seconds: float,
    preset: str = "default",
    settings: dict[str, Any] | None = None,
    env_kwargs: dict[str, Any] | None = None,
    import_seconds: float = 0.0,
    say: Callable[[str], Any] = lambda text: None,
) -> Picture:
    """Measure algorithms (all that can act there, where none is named), some seconds each."""
    for algo in algos:
        algorithms.find(algo)
    say(f"the simulator of {env_name(env)} alone")
    bare = bare_speed(env, env_kwargs or {}, min(BARE_SECONDS, seconds))
    results, skipped = [], {}
    for algo in algos or list(algorithms.ALGORITHMS):
        say(f"{algo} on {env_name(env)}")
        job = Job(env, algo, SCHEDULE_STEPS, 0, preset, settings=settings or {}, env_kwargs=env_kwargs or {})
        try:
            results.append(measure_one(job, seconds, bare))
        except UserError as error:
            if algos:
                raise
            skipped[algo] = str(error)
    if not results:
        raise UserError(next(iter(skipped.values())))
    return Picture(env_name(env), preset, import_seconds, bare, results, skipped)


def bare_speed(source: EnvSource, kwargs: dict[str, Any], seconds: float) -> float:
    """Steps a second of one environment alone, stepped as training does, with random actions drawn beforehand."""
    make = maker(source, kwargs)
    if make is None:
        raise UserError("bench needs an environment id or a function, not a vector environment")
    env = HostVectorEnv(make, 1, np.random.SeedSequence(0))
    env.action_space.seed(0)
    actions = itertools.cycle([np.asarray(env.action_space.sample())[None] for _ in range(64)])
    env.reset()
    steps, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(1 if steps < 16 else 16):
            env.step(next(actions))
            steps += 1
    elapsed = time.perf_counter() - started
    env.close()
    return steps / elapsed


def measure_one(job: Job, seconds: float, bare: float) -> Result:
    """One algorithm: half of the seconds for its speed, the rest for where the time goes."""
    started = time.perf_counter()
    setup, is_shortened = _set_up_to_fit(job, seconds / 4 * bare)
    trainer = setup.trainer
    set_up_seconds = time.perf_counter() - started
    started = time.perf_counter()
    trainer.iterate(SCHEDULE_STEPS)
    compile_seconds = time.perf_counter() - started - trainer.seconds  # which leaves compilation out
    trainer.iterate(SCHEDULE_STEPS)
    step, started, elapsed = trainer.step, time.perf_counter(), 0.0
    while elapsed < seconds / 2:
        trainer.iterate(SCHEDULE_STEPS)
        elapsed = time.perf_counter() - started
    iteration_seconds = elapsed / ((trainer.step - step) / setup.config.steps_per_iteration)
    found = breakdown(trainer, seconds / 3, SCHEDULE_STEPS)
    logging = logging_seconds(setup, seconds / 8)
    trainer.env.close()
    return Result(
        job.algo,
        setup.config.num_envs,
        setup.config.num_steps,
        is_shortened,
        num_parameters(trainer.state.params),
        setup.specs.observation.kind == "image",
        setup.config.steps_per_iteration / (iteration_seconds + logging),
        found.parts | {"logging": logging},
        set_up_seconds,
        compile_seconds,
        replayed_product(setup, found),
        trainer.device.platform,
        trainer.placement.reason,
    )


def _set_up_to_fit(job: Job, most_steps: float) -> tuple[Setup, bool]:
    """The job with replayed updates from the start, and with shorter iterations where the environment is slow."""
    entry = algorithms.find(job.algo)
    fields = entry.config.__dataclass_fields__
    if "burn_in" in fields and "burn_in" not in job.settings:
        job = job._replace(settings=job.settings | {"burn_in": 1})  # replayed updates cost the same later on
    setup = set_up(job)
    config = setup.config
    if config.steps_per_iteration <= most_steps:
        return setup, False
    parts = getattr(config, "num_minibatches", 1)
    unit = parts // math.gcd(parts, config.num_envs)  # minibatches are of one size
    num_steps = max(int(most_steps / config.num_envs) // unit, math.ceil(2 / unit)) * unit
    if num_steps >= config.num_steps:
        return setup, False
    setup.trainer.env.close()
    return set_up(job._replace(settings=job.settings | {"num_steps": num_steps})), True


def logging_seconds(setup: Setup, seconds: float) -> float:
    """Seconds an iteration that a run folder costs: episodes, lines, events and checkpoints, in a temporary one."""
    per_iteration: list[float] = []
    per_line: list[float] = []
    config = setup.config
    with tempfile.TemporaryDirectory(prefix="p3o-bench-") as parent:
        folder = Path(parent) / "run"
        entries, lock = open_folder(setup, folder, None)
        with lock:
            session = Session(setup, NoDisplay(), folder, entries)
            session.recorder = Recorder(folder, setup.trainer.algorithm.metrics)
            setup.trainer.iterate(SCHEDULE_STEPS)
            session._write_line()  # the first imports the event writer
            ended = time.perf_counter() + seconds
            while len(per_iteration) < 2 or time.perf_counter() < ended:
                result = setup.trainer.iterate(SCHEDULE_STEPS)
                started = time.perf_counter()
                session._record(result)
                session.status(result.metrics)
                per_iteration.append(time.perf_counter() - started)
                if len(per_line) < 5:
                    per_line.append(_seconds(session._write_line))
            per_save = [_seconds(session.save) for _ in range(2)]
            session.recorder.close()
    line_every = max(INTERVAL_ITERATIONS, INTERVAL_STEPS / config.steps_per_iteration)
    save_every = max(1.0, config.checkpoint_every / config.steps_per_iteration)
    rare = statistics.median(per_line) / line_every + min(per_save) / save_every
    return statistics.fmean(per_iteration) + rare


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def layer_shapes(setup: Setup) -> list[tuple[int, int, bool]]:
    """(inputs, outputs, whether its inputs get a gradient) of every dense layer, for vector observations."""
    config, specs = setup.config, setup.specs
    widths = (specs.observation.vector_size, *config.hidden_sizes)
    trunk = [(a, b, index > 0) for index, (a, b) in enumerate(itertools.pairwise(widths))]
    heads = [(widths[-1], outputs, len(widths) > 1) for outputs in (specs.action.num_outputs, 1)]
    return trunk * (1 if config.shared_trunk else 2) + heads


def replayed_product(setup: Setup, found: Breakdown) -> Product | None:
    """How fast P3O's replayed steps multiply matrices; None for other algorithms, images and too few updates.

    Judged by processor time, so None on a GPU too.
    """
    on_cpu = setup.trainer.device.platform == "cpu"
    if setup.job.algo != "p3o" or setup.specs.observation.kind != "vector" or not on_cpu:
        return None
    each = step_seconds([m["off_policy_updates"] for m in found.metrics], found.update_seconds)
    if each is None:
        return None
    config: Any = setup.config
    rows = (config.num_steps + 1) * config.replay_samples * config.num_envs
    shapes = layer_shapes(setup)
    flops = sum(2 * rows * a * b * (3 if has_gradient else 2) for a, b, has_gradient in shapes)
    return Product(flops / each / 1e9, flops / plain_products_seconds(rows, shapes, setup.trainer.device) / 1e9)


def step_seconds(counts: list[float], seconds: list[float]) -> float | None:
    """Seconds of one more replayed step: the median slope over pairs of updates (Theil and Sen)."""
    x, y = np.array(counts[-300:]), np.array(seconds[-300:])
    i, j = np.triu_indices(len(x), 1)
    differ = x[i] != x[j]
    if not differ.any():
        return None
    slope = float(np.median((y[i] - y[j])[differ] / (x[i] - x[j])[differ]))
    return slope if slope > 0 else None


def plain_products_seconds(rows: int, shapes: list[tuple[int, int, bool]], device: Any) -> float:
    """Processor seconds of the products that a forward and a backward pass need, and of nothing else."""
    rng = np.random.default_rng(0)

    def array(*shape: int) -> Any:
        return jnp.asarray(rng.standard_normal(shape), jnp.float32)

    @jax.jit
    def products(layers: list[Any]) -> list[Any]:
        forward = [x @ weight for x, weight, _, _ in layers]
        backward = [x.T @ out for x, _, out, _ in layers]
        inputs = [out @ weight.T for _, weight, out, has_gradient in layers if has_gradient is not None]
        return forward + backward + inputs

    with jax.default_device(device):
        # a None is no array, so that jit tells layers with and without the gradient apart
        layers = [(array(rows, a), array(a, b), array(rows, b), 0.0 if g else None) for a, b, g in shapes]
        jax.block_until_ready(products(layers))
        seconds = []
        for _ in range(100):
            started = time.process_time()
            jax.block_until_ready(products(layers))
            seconds.append(time.process_time() - started)
        return min(seconds)  # the most that they reach
