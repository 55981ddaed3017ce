"""From environment to trajectory: acting, normalising, and keeping count of episodes."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import jax
import numpy as np

from p3o.algorithms.base import Specs, example_trajectory
from p3o.config import Config
from p3o.device_actor import DeviceActor, pack
from p3o.distributions import Distribution
from p3o.envs.base import SplitEnv, VectorEnv
from p3o.errors import RunStopped
from p3o.group_threads import GroupThreads
from p3o.host_policy import HostPolicy
from p3o.normalize import Normalizer
from p3o.spaces import action_mapper
from p3o.types import Observation, Params, Step, Trajectory

Policy = Callable[[Observation], Distribution]
AnyActor: TypeAlias = Policy | DeviceActor
ALL = slice(None)


class Episode(NamedTuple):
    """A finished episode, as episodes.csv has it."""

    step: int
    env: int
    total: float  # raw, undiscounted
    length: int


class Actor:
    """The policy on the host: NumPy for vectors, a jitted function where convolutions are involved."""

    def __init__(
        self,
        policy: Callable[[Params, Observation], Distribution],
        specs: Specs,
        quick: HostPolicy | None = None,
    ):
        """`quick` is the same policy for a fixed number of vectors: `Rollout` then takes its quick way."""
        self.is_on_host = specs.observation.kind == "vector"
        self.quick = quick if self.is_on_host else None
        self._policy = policy if self.is_on_host else jax.jit(policy)
        self._params: Params = None

    def set_params(self, params: Params) -> None:
        """Copies: the learner's buffers are donated to its next update."""
        self._params = jax.tree.map(np.array, params) if self.is_on_host else params
        if self.quick is not None:
            self.quick.set_params(self._params)

    def __call__(self, observation: Observation) -> Distribution:
        policy = self._policy(self._params, observation)
        return policy if self.is_on_host else jax.tree.map(np.asarray, policy)


class Rollout:
    """Collects T steps of E environments at a time into one reused trajectory."""

    def __init__(self, config: Config, specs: Specs, env: VectorEnv, normalizer: Normalizer):
        self.config = config
        self.specs = specs
        self.env = env
        self.normalizer = normalizer
        self.to_environment = action_mapper(specs.action, config.action_scale, config.action_clip, keeps_nan=False)
        self.buffers: Trajectory = example_trajectory(config, specs)
        self.observation: Observation | None = None  # normalised, where the environments stand now
        self._is_game_end = np.zeros((config.num_steps, config.num_envs), bool)  # where an episode of episodes.csv ends
        self.returns = np.zeros(config.num_envs)  # raw, of the running episodes
        self.lengths = np.zeros(config.num_envs, np.int64)
        leaves = jax.tree.leaves(self.buffers.behaviour)
        self._steps = range(config.num_steps)
        self._behaviours = [[leaf[t] for leaf in leaves] for t in self._steps]  # views, made once
        self._actions = list(self.buffers.action)
        self._vectors = [] if self.buffers.observation.vector is None else list(self.buffers.observation.vector)
        self.has_threads = True  # for groups on a device; without, they take turns
        self._threads = GroupThreads()

    def start(self) -> None:
        """Reset all environments."""
        self.observation = self._normalized(self.env.reset())

    def _normalized(self, raw: Observation) -> Observation:
        is_counted = ~self.env.is_waiting if np.count_nonzero(self.env.is_waiting) else None
        vector = None if raw.vector is None else self.normalizer.observe(raw.vector, is_counted)
        return Observation(vector, tuple(image.copy() for image in raw.images))

    @np.errstate(invalid="ignore", over="ignore")  # what is not finite stops the run with a message of its own
    def collect(self, act: AnyActor, rng: np.random.Generator, step: int) -> tuple[Trajectory, int, list[Episode]]:
        """One rollout from global step `step`: the trajectory, the step count after it, finished episodes.

        An exception (the environment's, Ctrl-C) leaves nothing half done: the next rollout starts with a reset.
        """
        before = self.normalizer.state()
        try:
            return self._collect(act, rng, step)
        except BaseException:
            self.normalizer.restore(before._replace(discounted_return=np.zeros(self.config.num_envs)))
            self.observation = None
            self.returns[:], self.lengths[:] = 0.0, 0
            raise

    def _collect(self, act: AnyActor, rng: np.random.Generator, step: int) -> tuple[Trajectory, int, list[Episode]]:
        buffers = self.buffers
        self._clear_finals()
        for flags in (buffers.terminated, buffers.truncated, buffers.is_masked, self._is_game_end):
            flags[:] = False
        noise = self.specs.action.noise(rng, (self.config.num_steps, self.config.num_envs))
        reward = np.empty((self.config.num_steps, self.config.num_envs))
        quick = act.quick if isinstance(act, Actor) else None
        if isinstance(act, DeviceActor):
            self._play_on_device(act, noise, reward)
        elif quick is not None:
            self._play_quickly(quick, noise, reward)
        else:
            self._play(act, noise, reward)
        # What no action waits for is done once a rollout, not once a step.
        is_end, is_counted = buffers.terminated | buffers.truncated, ~buffers.is_masked
        steps = step + np.cumsum(is_counted.sum(1))
        for name, leaf in (("observation", buffers.observation.vector), ("reward", reward)):
            if leaf is not None and not np.isfinite(leaf).all():
                raise RunStopped(f"step {steps[-1]:,}: {name} of the environment is not finite")
        learned = np.sign(reward) if self.config.reward_transform == "sign" else reward
        buffers.reward[:] = self.normalizer.rewards(learned, is_end, is_counted)
        trajectory = act.trajectory(buffers) if isinstance(act, DeviceActor) else buffers
        return trajectory, int(steps[-1]), self._finish_episodes(reward, is_counted, steps)

    def _play(self, act: Policy, noise: np.ndarray, reward: np.ndarray) -> None:
        """T steps, written into the buffers; raw rewards [T, E] into `reward`."""
        buffers = self.buffers
        assert self.observation is not None
        for t in self._steps:
            policy = act(self.observation)
            action = policy.sample(noise[t])
            _store(buffers.observation, t, self.observation)
            buffers.action[t] = action
            self._store_behaviour(t, policy)
            raw = self.env.step(self.to_environment(action))
            reward[t] = raw.reward
            self.observation = self._normalized(raw.observation)
            if not raw.is_quiet:
                self._store_flags(t, raw)
        _store(buffers.observation, self.config.num_steps, self.observation)

    def _play_quickly(self, policy: HostPolicy, noise: np.ndarray, reward: np.ndarray) -> None:
        """`_play` for vectors: the same numbers bit by bit, written where they belong as they come."""
        assert self.observation is not None
        spec, env, to_environment, observe = (
            self.specs.action,
            self.env,
            self.to_environment,
            self.normalizer.observe_all,
        )
        vectors, actions, behaviours = self._vectors, self._actions, self._behaviours
        is_gaussian, is_whole = spec.kind == "gaussian", spec.kind != "multi_categorical"
        if is_gaussian:  # mean + e^(log-std) · noise, with all but the sum done at once
            assert policy.log_std is not None
            noise = np.exp(policy.log_std) * noise
            self.buffers.behaviour.log_std[:] = policy.log_std
        outputs = np.empty((self.config.num_envs, spec.num_outputs), np.float32)
        vectors[0][:] = self.observation.vector
        for t in self._steps:
            action = actions[t]
            if is_whole:
                outputs = behaviours[t][0]
            policy(vectors[t], outputs)
            if is_gaussian:
                np.add(outputs, noise[t], action)
            else:
                distribution = spec.distribution(outputs, None)
                action[:] = distribution.sample(noise[t])
                if not is_whole:
                    self._store_behaviour(t, distribution)
            raw = env.step(to_environment(action))
            reward[t] = raw.reward
            if raw.is_quiet:
                observe(raw.observation.vector, vectors[t + 1])
            else:
                vectors[t + 1][:] = self._normalized(raw.observation).vector
                self._store_flags(t, raw)
        self.observation = Observation(vectors[-1].copy(), ())

    def _play_on_device(self, actor: DeviceActor, noise: np.ndarray, reward: np.ndarray) -> None:
        """`_play` for one image: what is on the device stays there; flags and rewards while it acts.

        Each group of environments has a thread of its own, or they take turns: while the device acts for one, others
        are emulated. Nothing of one shows in another, so both ways give the same.
        """
        assert self.observation is not None
        is_stack = bool(self.specs.observation.frame_stack)
        env: SplitEnv | _Whole = self.env if isinstance(self.env, SplitEnv) else _Whole(self.env, is_stack)
        actor.stand_at(self.observation.images[0])
        plays = [self._play_group(actor, env, group, noise, reward) for group in range(len(actor.groups))]
        if self.has_threads and len(plays) > 1 and actor.groups == env.parts:
            self._threads.play(plays)
        else:
            for _ in itertools.zip_longest(*plays):  # a turn of each, until all are through
                pass
        self.observation = Observation(None, (actor.stacks(),))

    def _play_group(
        self, actor: DeviceActor, env: "SplitEnv | _Whole", group: int, noise: np.ndarray, reward: np.ndarray
    ) -> Iterator[None]:
        """All steps of a group; yields where it would have to wait, and others may have their turn."""
        rows, to_environment, last = actor.groups[group], self.to_environment, self.config.num_steps - 1
        action = actor.begin(noise, group)
        yield
        env.send(to_environment(actor.fetch(action)), rows)
        for t in self._steps:
            yield
            raw = env.receive(rows)
            assert raw.newest is not None
            if t < last:
                action = actor.proceed(raw.newest, group)
            else:
                actor.finish(raw.newest, group)
            reward[t, rows] = raw.reward
            if not raw.is_quiet:
                self._store_flags(t, raw, rows)
            if t < last:
                env.send(to_environment(actor.fetch(action)), rows)

    def _store_behaviour(self, t: int, policy: Distribution) -> None:
        for buffer, leaf in zip(self._behaviours[t], jax.tree.leaves(policy), strict=True):
            buffer[...] = leaf

    def _store_flags(self, t: int, raw: Step, rows: slice = ALL) -> None:
        self.buffers.terminated[t, rows] = raw.terminated
        self.buffers.truncated[t, rows] = raw.truncated
        self.buffers.is_masked[t, rows] = raw.is_masked
        self._is_game_end[t, rows] = raw.terminated | raw.truncated if raw.is_game_end is None else raw.is_game_end
        if np.count_nonzero(raw.truncated):
            self._store_finals(t, raw, rows)

    def _clear_finals(self) -> None:
        """Those of the last rollout, so that a trajectory depends on none before it: a resumed run has seen none."""
        if self.buffers.truncated.any():
            for leaf in jax.tree.leaves(self.buffers.final_observation):
                leaf[self.buffers.truncated] = 0

    def _store_finals(self, t: int, raw: Step, rows: slice) -> None:
        finals = self.buffers.final_observation
        if finals is None:
            return
        at = raw.truncated
        if finals.vector is not None:
            finals.vector[t, rows][at] = self.normalizer.scale(raw.final_observation.vector[at])
        for buffer, image in zip(finals.images, raw.final_observation.images, strict=True):
            # of a stack of frames the newest is enough: the older ones are those of the observation before
            buffer[t, rows][at] = image[at, ..., -1] if self.specs.observation.frame_stack else image[at]

    def _finish_episodes(self, reward: np.ndarray, is_counted: np.ndarray, steps: np.ndarray) -> list[Episode]:
        """Add the rollout's raw rewards [T, E] to the running episodes; those that ended, in order of their end.

        Episodes are whole games. Masked rows add to the return, not to the length, which counts the agent's steps.
        """
        finished, ends = [], self._is_game_end
        for env in range(self.config.num_envs):
            total, length = float(self.returns[env]), int(self.lengths[env])
            rows = zip(reward[:, env].tolist(), is_counted[:, env].tolist(), ends[:, env].tolist(), strict=True)
            for t, (r, counted, ended) in enumerate(rows):
                total, length = total + r, length + counted
                if ended:
                    finished.append(Episode(int(steps[t]), env, total, length))
                    total, length = 0.0, 0
            self.returns[env], self.lengths[env] = total, length
        return sorted(finished, key=lambda episode: episode.step)  # stable: by environment where steps are equal


def _store(buffers: Observation, t: int, observation: Observation) -> None:
    if buffers.vector is not None:
        buffers.vector[t] = observation.vector
    for buffer, image in zip(buffers.images, observation.images, strict=True):
        buffer[t] = image


class _Whole:
    """An environment that steps all at once, as `_play_on_device` asks for its images: of stacks the newest frames."""

    def __init__(self, env: VectorEnv, is_stack: bool):
        self._env, self._is_stack = env, is_stack
        self.parts = [slice(0, env.num_envs)]

    def send(self, action: np.ndarray, rows: slice) -> None:
        self._action = action

    def receive(self, rows: slice) -> Step:
        raw = self._env.step(self._action)
        image = raw.observation.images[0]
        newest = image[..., -1] if self._is_stack else image.reshape(*image.shape[:2], -1)
        return raw._replace(newest=pack(newest, raw.terminated | raw.truncated))
