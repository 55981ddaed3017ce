"""Where the time of a training loop goes: timing wrappers around its parts, put on from outside and taken off again."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from p3o.device_actor import DeviceActor
from p3o.envs.atari import AtariVectorEnv
from p3o.envs.base import SplitEnv
from p3o.envs.gymnasium_env import GymnasiumVectorEnv, HostVectorEnv
from p3o.rollout import Actor
from p3o.train import Trainer
from p3o.types import Observation

PARTS = ("simulator", "acting", "normalising", "copying", "updating")  # copying: all that is none of the others
AROUND = "around the simulator"  # the vector environment's own loop
RESETS = "resets of the simulator"
CALIBRATION_CALLS = 5_000
Clock = Callable[[], float]


class Clocks:
    """Time spent in named functions, less that spent in other named functions they call, less the clocks' own."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self.each: dict[str, list[float]] = defaultdict(list)  # processor seconds of every call, where asked for
        self._nested: dict[str, int] = defaultdict(int)  # timed calls made by each named function
        self._stack: list[list[Any]] = []  # name and seconds of inner calls, outermost first

    def wrap(self, function: Callable[..., Any], name: str, keep_each: bool = False) -> Callable[..., Any]:
        """The function with its time added to `name`."""
        stack, clock = self._stack, self.clock

        def timed(*arguments: Any, **keywords: Any) -> Any:
            frame: list[Any] = [name, 0.0]
            stack.append(frame)
            processor_started = time.process_time() if keep_each else 0.0
            started = clock()
            try:
                return function(*arguments, **keywords)
            finally:
                elapsed = clock() - started
                stack.pop()
                self.seconds[name] += elapsed - frame[1]
                self.calls[name] += 1
                if stack:
                    stack[-1][1] += elapsed
                    self._nested[stack[-1][0]] += 1
                if keep_each:
                    self.each[name].append(time.process_time() - processor_started)

        return timed

    def net(self, cost: "Cost") -> dict[str, float]:
        """Seconds by name without what the clocks themselves took."""
        return {
            name: max(0.0, seconds - self.calls[name] * cost.inside - self._nested[name] * cost.outside)
            for name, seconds in self.seconds.items()
        }

    def overhead(self, cost: "Cost") -> float:
        """Seconds that all clocks together took."""
        return sum(self.calls.values()) * (cost.inside + cost.outside)


class Cost(NamedTuple):
    """Seconds that timing one call adds."""

    inside: float  # to the time of the call itself
    outside: float  # to the time of its caller


def calibrate(clock: Clock = time.perf_counter) -> Cost:
    """The cost of a timed call on this machine, now."""

    def nothing(argument: Any) -> Any:
        return argument

    def seconds(function: Callable[[Any], Any]) -> float:
        started = clock()
        for _ in range(CALIBRATION_CALLS):
            function(None)
        return (clock() - started) / CALIBRATION_CALLS

    best = Cost(float("inf"), float("inf"))
    for _ in range(5):  # the least disturbed of them
        clocks = Clocks(clock)
        plain, timed = seconds(nothing), seconds(clocks.wrap(nothing, "nothing"))
        inside = clocks.seconds["nothing"] / CALIBRATION_CALLS
        cost = Cost(max(0.0, inside - plain), max(0.0, timed - inside))
        best = min(best, cost, key=sum)
    return best


@contextlib.contextmanager
def timed(trainer: Trainer, clock: Clock = time.perf_counter) -> Iterator[Clocks]:
    """Clocks on the parts of a trainer that has run before: all knowledge of its insides is here.

    Groups that would play in threads take turns meanwhile: a clock knows one thread, and parts must not overlap.
    """
    clocks, undo = Clocks(clock), contextlib.ExitStack()

    def replace(owner: Any, name: str, part: str) -> None:
        _put(undo, owner, name, clocks.wrap(getattr(owner, name), part))

    rollout, vector = trainer.rollout, trainer.rollout.env
    _put(undo, rollout, "has_threads", False)
    replace(vector, "step", AROUND)
    if isinstance(vector, SplitEnv):  # of emulation only what is waited for counts: the rest is while the device acts
        replace(vector, "send", AROUND)
        replace(vector, "receive", AROUND)
    members: list[Any] = []
    if isinstance(vector, HostVectorEnv):
        members = list(vector.envs)
        if vector._quick_steps is not None:  # steps all of them, without their wrappers
            replace(vector._quick_steps, "step", "simulator")
    elif isinstance(vector, GymnasiumVectorEnv):
        members = [vector.env]
    elif isinstance(vector, AtariVectorEnv):
        for emulator in vector._emulators:
            replace(emulator, "receive", "simulator")
            replace(emulator, "first", RESETS)
    for env in members:
        replace(env, "step", "simulator")
        replace(env, "reset", RESETS)
    for name, method in vars(type(trainer.normalizer)).items():
        if callable(method) and not name.startswith("_") and name not in ("state", "restore"):
            replace(trainer.normalizer, name, "normalising")
    replace(rollout, "to_environment", "acting")
    actor = trainer.actor
    if isinstance(actor, DeviceActor):
        for name in ("stand_at", "begin", "proceed", "fetch", "finish"):
            replace(actor, name, "acting")
    else:
        replace(type(rollout.buffers.behaviour), "sample", "acting")
        if actor.quick is not None:
            _put(undo, actor, "quick", _TimedCall(actor.quick, clocks, "acting"))
        _put(undo, trainer, "actor", _timed_actor(actor, clocks))
    update = trainer._update
    _put(
        undo,
        trainer,
        "_update",
        clocks.wrap(lambda *arguments: jax.block_until_ready(update(*arguments)), "updating", keep_each=True),
    )
    with undo:
        yield clocks


class _TimedCall:
    """An object whose call is timed; all else goes to the object itself."""

    def __init__(self, target: Any, clocks: Clocks, part: str):
        self._target = target
        self._call = clocks.wrap(target, part)

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def _timed_actor(actor: Actor, clocks: Clocks) -> Actor:
    """An actor that shares all its attributes with the given one, and whose call is timed."""
    call = clocks.wrap(actor, "acting")

    class TimedActor(Actor):
        def __call__(self, observation: Observation) -> Any:
            return call(observation)

    twin = TimedActor.__new__(TimedActor)
    twin.__dict__ = actor.__dict__
    return twin


def _put(undo: contextlib.ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute, to be what it was when `undo` closes."""
    if name in vars(owner):
        undo.callback(setattr, owner, name, vars(owner)[name])
    else:
        undo.callback(delattr, owner, name)
    setattr(owner, name, value)


class Breakdown(NamedTuple):
    """Seconds of an iteration by part, and what the updates took one by one."""

    parts: dict[str, float]  # by PARTS
    iterations: int
    steps: int
    update_seconds: list[float]  # of the processor: other programs' turns would hide what one step takes
    metrics: list[dict[str, float]]  # of the same updates

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())


def breakdown(
    trainer: Trainer, seconds: float, schedule_steps: int = 10_000_000, clock: Clock = time.perf_counter
) -> Breakdown:
    """Run whole iterations of a warm trainer for some seconds and say where their time went.

    Groups that play in threads take turns on one thread meanwhile, so their parts add up to more than an iteration
    takes otherwise. With `time.process_time` as the clock other programs on the same core do not count, nor does time
    asleep.
    """
    cost = calibrate(clock)
    metrics: list[dict[str, float]] = []
    first_step = trainer.step
    with timed(trainer, clock) as clocks:
        started = clock()
        while not metrics or clock() - started < seconds:
            metrics.append(trainer.iterate(schedule_steps).metrics)
        total = clock() - started
    net = clocks.net(cost)
    if not clocks.calls["simulator"]:  # its members cannot be reached: all of it is the simulator
        net["simulator"] = net.pop(AROUND)
    net["simulator"] += net.pop(RESETS, 0.0)
    parts = {name: net.get(name, 0.0) / len(metrics) for name in PARTS}
    whole = max(0.0, total - clocks.overhead(cost)) / len(metrics)
    parts["copying"] = max(0.0, whole - sum(parts.values()))
    return Breakdown(parts, len(metrics), trainer.step - first_step, clocks.each["updating"], metrics)
