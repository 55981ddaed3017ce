"""The one training loop: rollout, update, count. Pure bookkeeping; files and the terminal are elsewhere."""

import collections
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from p3o import seeds, segments
from p3o.algorithms import Algorithm, Entry, Specs
from p3o.config import Config
from p3o.device_actor import DeviceActor, num_groups
from p3o.envs.base import VectorEnv
from p3o.errors import RunStopped
from p3o.host_replay import ROOMS, HostReplay
from p3o.metrics import LEARNING_RATE, Coming, IntervalMeans, gather, receive, send, send_gathered
from p3o.normalize import Normalizer, NormalizerState
from p3o.placement import compile_update, jit_update, place
from p3o.replay import ReplayState, put, take
from p3o.rollout import Actor, Episode, Rollout
from p3o.types import Observation, Trajectory

WINDOW = 100  # episodes in the reported mean return


class Iteration(NamedTuple):
    """What one iteration of the loop brought."""

    metrics: dict[str, float]
    episodes: list[Episode]


_take = jax.jit(take)
_put = jax.jit(put, donate_argnums=0)


class Trainer:
    """A run in memory: algorithm state, environments, normaliser, counters; all of it can be saved and restored."""

    def __init__(self, entry: Entry, config: Config, env: VectorEnv, specs: Specs, seed: int, device: str = "auto"):
        """`device` is cpu or gpu; `auto` measures."""
        self.entry, self.config, self.env, self.specs, self.seed = entry, config, env, specs, seed
        self.algorithm: Algorithm = entry.make(config, specs)
        streams = seeds.derive(seed)
        self._update: Any = None  # compiled on first use
        self._gather: Any = gather
        self.normalizer = Normalizer(
            specs.observation.vector_size,
            config.num_envs,
            config.gamma,
            config.normalize_observation,
            config.normalize_reward,
        )
        self.rollout = Rollout(config, specs, env, self.normalizer)
        self.placement = place(self.algorithm, self.rollout.buffers, specs.observation.kind, device)
        self.device = self.placement.device
        plan, is_on_host = self.algorithm.replay, self.placement.is_replay_on_host
        self.memory = HostReplay(plan) if plan is not None and is_on_host else None  # else it is in the state
        with jax.default_device(self.device):
            options = {} if self.memory is None else {"has_ring": False}
            state = self.algorithm.init(np.random.default_rng(streams.init), **options)
            self.state = jax.device_put(state, self.device)
            self.key = jax.random.wrap_key_data(jnp.asarray(streams.update.generate_state(2, np.uint32)))
        self.actor = self._make_actor()
        self.act_rng = np.random.Generator(np.random.PCG64(streams.act))
        self.step = 0
        self.iteration = 0
        self.num_episodes = 0
        self.recent: collections.deque[tuple[float, int]] = collections.deque(maxlen=WINDOW)
        self.interval = IntervalMeans((*self.algorithm.metrics, LEARNING_RATE))
        self.seconds = 0.0  # in the loop, over all sessions, compilation left out
        self.metrics: dict[str, float] = {}  # of the last update whose numbers are in
        self._coming: Coming | None = None  # those of the update after it
        self._actor_is_stale = True

    def _make_actor(self) -> Actor | DeviceActor:
        algorithm, config, specs = self.algorithm, self.config, self.specs
        if specs.observation.is_one_image:
            return DeviceActor(algorithm.policy, config, specs, self.device, num_groups(self.env, self.device))
        quick = algorithm.host_policy(config.num_envs) if algorithm.host_policy else None
        return Actor(algorithm.policy, specs, quick)

    @property
    def mean_return(self) -> float:
        return sum(r for r, _ in self.recent) / len(self.recent) if self.recent else math.nan

    @property
    def mean_length(self) -> float:
        return sum(n for _, n in self.recent) / len(self.recent) if self.recent else math.nan

    def iterate(self, schedule_steps: int, schedule_start: int = 0) -> Iteration:
        """One rollout and one update; schedules run for so many steps from their start.

        Where the device acts too, the update is still on its way when this returns, and the metrics are of the one
        before: whoever needs all of them calls `settle`.
        """
        if self._update is None:
            self._update = self._compile()
        started = time.perf_counter()
        rate = self.algorithm.learning_rate(self.step - schedule_start, schedule_steps)
        if self.config.normalizer_pace == "learning_rate":
            self.normalizer.pace = rate / self.config.learning_rate
        if self.rollout.observation is None:
            self.rollout.start()
        if self._actor_is_stale:
            self.actor.set_params(self.state.params)
        trajectory, step, episodes = self.rollout.collect(self.actor, self.act_rng, self.step)
        self.settle()  # the update before is long through: its parameters acted
        self.step = step
        self._actor_is_stale = True  # until the update is through
        arrays = self._learn(trajectory, rate)
        if isinstance(self.actor, DeviceActor):
            self._coming = send_gathered(arrays, rate, self.step, self._gather)
        else:
            self._coming = send(arrays, rate, self.step)
        if not isinstance(self.actor, DeviceActor) or not self.metrics:
            self.settle()
        self.actor.set_params(self.state.params)
        self._actor_is_stale = False
        self.iteration += 1
        for episode in episodes:
            self.recent.append((episode.total, episode.length))
        self.num_episodes += len(episodes)
        self.seconds += time.perf_counter() - started
        return Iteration(self.metrics, episodes)

    def _learn(self, trajectory: Trajectory, rate: float) -> dict[str, Any]:
        """One update, on its way to the device; returns the metrics to come."""
        state = self.state
        if self.memory is not None:
            self.memory.add(trajectory)
            state = state._replace(replay=self.memory.minibatches(self.key, self.iteration))
        with jax.default_device(self.device):
            arguments = (state, trajectory, self.key, np.int32(self.iteration), np.float32(rate))
            self.state, arrays = self._update(*arguments)
        if self.memory is not None:
            self.state = self.state._replace(replay=None)
        return arrays

    def settle(self) -> None:
        """Wait for the numbers of the last update, check them and count them in."""
        if self._coming is None:
            return
        coming, self._coming = self._coming, None
        self.metrics = receive(coming)
        self.interval.add(self.metrics)

    def _compile(self) -> Any:
        """Compile once, before the clock starts, so that speeds leave compilation out."""
        if isinstance(self.actor, DeviceActor):
            self.actor.compile(self.state.params)
        if self.memory is not None:
            return self._compile_for_minibatches(self.memory)
        with jax.default_device(self.device):
            update = compile_update(self.algorithm, self.state, self.rollout.buffers, self.key)
            if isinstance(self.actor, DeviceActor):
                self._gather = gather.lower(update.out_info[1]).compile()
        return update

    def _compile_for_minibatches(self, memory: HostReplay) -> Any:
        """Run the update once, on a copy and to no effect, for each number of minibatches that is likely to come."""
        update, rollout = jit_update(self.algorithm), self.rollout.buffers
        if isinstance(self.actor, DeviceActor):
            rollout = self.actor.trajectory(rollout)  # an array on the device is another case than one of NumPy's
        with jax.default_device(self.device):
            for room in ROOMS:
                state = jax.tree.map(jnp.copy, self.state)._replace(replay=memory.blank(room))
                update(state, rollout, self.key, np.int32(0), np.float32(0.0))
        return update

    def check_params(self) -> None:
        """Called before a checkpoint, so that every checkpoint is a good one."""
        self.settle()
        for path, leaf in jax.tree_util.tree_leaves_with_path(self.state.params):
            if not np.isfinite(np.asarray(leaf)).all():
                raise RunStopped(f"step {self.step:,}: parameter {jax.tree_util.keystr(path)} is not finite")

    @property
    def is_replay_apart(self) -> bool:
        """The replay is too large for a snapshot: `replay_chunks` has it."""
        images = self.specs.observation.kind == "image"
        return self.algorithm.replay is not None and (images or self.memory is not None)

    def _algorithm_snapshot(self) -> dict[str, Any]:
        if not self.is_replay_apart:
            return {"algorithm": [np.asarray(leaf) for leaf in jax.tree.leaves(self.state)]}
        leaves = jax.device_get(jax.tree.leaves(self.state._replace(replay=None)))
        return {"algorithm": leaves, "replay": self.num_added}

    @property
    def num_added(self) -> int:
        """Rollouts that went into the replay."""
        return int(self.state.replay.num_added) if self.memory is None else self.memory.num_added

    def replay_chunks(self, since: int) -> Iterator[segments.Chunk]:
        """The rollouts in the replay from number `since` on, each chunk copied when it is asked for.

        They stay on the device until whoever writes them asks for them: room for half a gigabyte on the host takes a
        while to get, and training is not to wait for it.
        """
        plan, last = self.algorithm.replay, self.num_added
        assert plan is not None
        for start, stop in segments.ranges(max(since, last - plan.slots), last):
            rows = np.minimum(np.arange(start, start + segments.ROLLOUTS), stop - 1) % plan.slots
            if self.memory is not None:
                leaves = [ring[rows[: stop - start]] for ring in jax.tree.leaves(self.memory.data)]
            else:  # always so many rows, so that it is compiled once
                leaves = _take(self.state.replay.data, rows)
            yield segments.Chunk(start, stop, leaves)

    def _restore_replay(self, num_added: int, chunks: Iterable[segments.Chunk]) -> None:
        plan = self.algorithm.replay
        assert plan is not None
        shapes = [(leaf.shape[1], leaf.shape[0], *leaf.shape[2:]) for leaf in jax.tree.leaves(plan.example)]
        data = self.state.replay.data if self.memory is None else self.memory.data
        found = set()
        for chunk in chunks:
            if [leaf.shape[1:] for leaf in chunk.leaves] != shapes:
                raise ValueError("the replay on disk has other shapes")
            for number in range(max(chunk.first, num_added - plan.slots), chunk.last):
                leaves = [leaf[number - chunk.first] for leaf in chunk.leaves]
                slot = number % plan.slots
                if self.memory is None:
                    data = _put(data, np.int32(slot), leaves)
                else:
                    for ring, leaf in zip(jax.tree.leaves(data), leaves, strict=True):
                        ring[slot] = leaf
                found.add(number)
        if found != set(range(max(0, num_added - plan.slots), num_added)):
            raise ValueError("rollouts of the replay are missing")
        if self.memory is None:
            self.state = self.state._replace(replay=ReplayState(data, jax.device_put(np.int32(num_added), self.device)))
        else:
            self.memory.num_added = num_added

    def snapshot(self) -> dict[str, Any]:
        """Everything that a bit-equal continuation needs, as plain data and arrays; going on does not change it.

        A replay that `is_replay_apart` is left out, but for its count.
        """
        self.settle()
        observation = self.rollout.observation
        assert observation is not None
        return {
            **self._algorithm_snapshot(),
            "key": np.asarray(jax.random.key_data(self.key)),
            "act_rng": self.act_rng.bit_generator.state,
            "normalizer": list(self.normalizer.state()),
            "environments": self.env.snapshot(),
            "observation": {"vector": observation.vector, "images": [np.array(i) for i in observation.images]},
            "returns": self.rollout.returns.copy(),
            "lengths": self.rollout.lengths.copy(),
            "step": self.step,
            "iteration": self.iteration,
            "num_episodes": self.num_episodes,
            "recent": [list(pair) for pair in self.recent],
            "interval": {"sums": dict(self.interval.sums), "weights": dict(self.interval.weights)},
            "seconds": self.seconds,
        }

    def restore(self, tree: dict[str, Any], chunks: Iterable[segments.Chunk] = ()) -> list[int]:
        """Go back to a snapshot, with its replay in chunks where that is apart.

        Returns the environments that had to start a fresh episode.
        """
        if self.is_replay_apart and "replay" not in tree:
            raise ValueError("an earlier version of p3o wrote it, with its images stored in another way")
        state = self.state._replace(replay=None) if self.is_replay_apart else self.state
        leaves, structure = jax.tree.flatten(state)
        for stored, leaf in zip(tree["algorithm"], leaves, strict=True):
            if stored.shape != leaf.shape or stored.dtype != leaf.dtype:
                raise ValueError(f"an array of shape {stored.shape} where {leaf.shape} was expected")
        with jax.default_device(self.device):
            restored = jax.device_put(jax.tree.unflatten(structure, tree["algorithm"]), self.device)
            if self.is_replay_apart:
                self.state = restored._replace(replay=self.state.replay)
                self._restore_replay(tree["replay"], chunks)
            else:
                self.state = restored
            self.key = jax.random.wrap_key_data(jnp.asarray(tree["key"]))
        self.act_rng.bit_generator.state = tree["act_rng"]
        self.normalizer.restore(NormalizerState(*tree["normalizer"]))
        fresh = self.env.restore(tree["environments"])
        stored = tree["observation"]
        self.rollout.observation = Observation(stored["vector"], tuple(stored["images"]))
        self.rollout.returns, self.rollout.lengths = tree["returns"].copy(), tree["lengths"].copy()
        if fresh:
            self._adopt_fresh_episodes(fresh)
        self.step, self.iteration, self.num_episodes = tree["step"], tree["iteration"], tree["num_episodes"]
        self.recent = collections.deque(((r, int(n)) for r, n in tree["recent"]), maxlen=WINDOW)
        self.interval.sums, self.interval.weights = (dict(tree["interval"][name]) for name in ("sums", "weights"))
        self.seconds = tree["seconds"]
        self._coming = None
        self._actor_is_stale = True
        return fresh

    def adopt(self, params: Any, normalizer: NormalizerState) -> None:
        """Take over a trained policy's weights and normaliser; replay and optimiser stay empty."""
        with jax.default_device(self.device):
            held = jax.device_put(jax.tree.map(jnp.asarray, params), self.device)
            self.state = self.algorithm.with_params(self.state, held)
        self.normalizer.restore(normalizer._replace(discounted_return=np.zeros(self.config.num_envs)))
        self._actor_is_stale = True

    def _adopt_fresh_episodes(self, envs: list[int]) -> None:
        """Environments that lost their episode stand at a new one: its first observation, nothing earned yet."""
        raw, held = self.env.current(), self.rollout.observation
        assert held is not None
        if held.vector is not None:
            held.vector[envs] = self.normalizer.scale(raw.vector[envs])  # type: ignore[index]
        for image, new in zip(held.images, raw.images, strict=True):
            image[envs] = new[envs]
        self.rollout.returns[envs] = 0.0
        self.rollout.lengths[envs] = 0
        self.normalizer.discounted_return[envs] = 0.0
