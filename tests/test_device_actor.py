"""Acting on the learner's device against the plain way with whole stacks: the same episodes, the same weights."""

import gc
import signal
import threading
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import stacks

from p3o import algorithms, clocks, train
from p3o.config import make_config
from p3o.device_actor import DeviceActor, Landing, num_groups, pack
from p3o.envs.base import halves
from p3o.errors import RunStopped
from p3o.group_threads import play_until
from p3o.rollout import Actor
from p3o.types import Observation, Step


def run(trainer, iterations):
    """Episodes and replayed updates; nobody waits for an update but the next rollout."""
    episodes, counts = [], []
    for _ in range(iterations):
        result = trainer.iterate(10_000)
        episodes += result.episodes
        counts.append(result.metrics.get("off_policy_updates"))
    trainer.settle()
    return episodes, counts


@pytest.mark.parametrize(
    ("algo", "time_limit"),
    [
        ("p3o", "bootstrap"),
        ("ppo", "terminal"),
        ("a2c", "bootstrap"),
        pytest.param("p3o", "terminal", marks=pytest.mark.slow),
        pytest.param("acer", "bootstrap", marks=pytest.mark.slow),
        pytest.param("ppo", "bootstrap", marks=pytest.mark.slow),
    ],
)
def test_the_device_acts_and_learns_as_the_plain_way_does(algo, time_limit):
    """Whole stacks, stored whole and acted on by the host, are the naive version of everything here."""
    trainers = [stacks.make_trainer(algo, size, time_limit=time_limit) for size in (stacks.STACK, 0)]
    check_same_runs(trainers)


@pytest.mark.parametrize("algo", ["a2c", pytest.param("p3o", marks=pytest.mark.slow)])
def test_images_that_are_no_stacks_stay_on_the_device_too(algo):
    trainers = [stacks.make_trainer(algo, 0, is_plain=is_plain, time_limit="bootstrap") for is_plain in (False, True)]
    check_same_runs(trainers)
    ours, _ = trainers
    assert ours.rollout.observation.images[0].shape == (3, stacks.SIDE, stacks.SIDE, stacks.STACK)
    other = stacks.make_trainer(algo, 0, is_plain=False, seed=1, time_limit="bootstrap")
    stored = ours.snapshot()
    assert other.restore(stored, list(ours.replay_chunks(0)) if algo == "p3o" else ()) == []
    assert run(other, 3)[0] == run(ours, 3)[0]
    for a, b in zip(*(jax.tree.leaves(t.state) for t in (ours, other)), strict=True):
        np.testing.assert_array_equal(a, b)


def check_same_runs(trainers):
    assert [type(t.actor) for t in trainers] == [DeviceActor, Actor]
    (ours, _), (theirs, _) = (run(t, 9) for t in trainers)
    assert ours == theirs
    assert trainers[0].interval.means() == trainers[1].interval.means()
    assert len(ours) > 10
    leaves = [jax.tree.leaves(jax.tree.map(np.asarray, t.state.params)) for t in trainers]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("algo", ["p3o", pytest.param("acer", marks=pytest.mark.slow)])
def test_a_replay_in_host_memory_draws_and_learns_the_same(algo):
    """The ring wraps twice; numbers of replayed steps and every weight are those of the ring in the state."""
    ours, theirs = (stacks.make_trainer(algo, replay_device=place) for place in ("host", "auto"))
    assert ours.memory is not None
    assert theirs.memory is None
    assert jax.tree.leaves(ours.state.replay) == []
    (found, counts), (expected, expected_counts) = (run(trainer, 9) for trainer in (ours, theirs))
    assert found == expected
    assert counts == expected_counts
    assert len(set(counts)) > 2
    for a, b in zip(*(jax.tree.leaves(t.state.params) for t in (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # compiled apart, for each number of minibatches
    for a, b in zip(jax.tree.leaves(ours.memory.data), jax.tree.leaves(theirs.state.replay.data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_metrics_come_one_iteration_late_and_in_time_for_a_checkpoint():
    late, plain = stacks.make_trainer("a2c"), stacks.make_trainer("a2c", 0)
    expected = [plain.iterate(10_000).metrics for _ in range(4)]
    found = [late.iterate(10_000).metrics for _ in range(4)]
    assert found == [expected[0], expected[0], expected[1], expected[2]]
    late.settle()
    assert late.metrics == expected[3]
    assert late.interval.means() == plain.interval.means()


def test_a_number_that_is_not_finite_stops_the_run_before_it_is_saved():
    trainer = stacks.make_trainer("a2c")
    for _ in range(2):
        trainer.iterate(10_000)
    trainer.env.step = explode(trainer.env.step)
    trainer.iterate(10_000)  # its loss is infinite, and nobody has looked yet
    with pytest.raises(RunStopped, match=r"^step \d+: (value_loss|grad_norm|policy_loss) is (inf|nan)"):
        trainer.check_params()


def explode(step):
    """Rewards whose squares are beyond float32."""
    return lambda action: step(action)._replace(reward=np.full(3, 1e30))


def test_snapshots_and_chunks_bring_a_run_back():
    """The replay in pieces, twice, the ring wrapped in between: what was written first is partly overwritten."""
    for place in ("auto", "host"):
        trainer, other = (stacks.make_trainer("p3o", replay_device=place) for _ in range(2))
        for _ in range(3):
            trainer.iterate(10_000)
        chunks = list(trainer.replay_chunks(0))
        for _ in range(2):
            trainer.iterate(10_000)
        snapshot = trainer.snapshot()
        chunks += list(trainer.replay_chunks(chunks[-1].last))
        assert [(chunk.first, chunk.last) for chunk in chunks] == [(0, 3), (3, 5)]
        kept = [chunk._replace(leaves=[np.array(leaf) for leaf in chunk.leaves]) for chunk in chunks]
        expected, _ = run(trainer, 3)
        with pytest.raises(ValueError, match="missing"):
            other.restore(snapshot, kept[1:])
        other = stacks.make_trainer("p3o", replay_device=place, seed=1)
        assert other.restore(snapshot, kept) == []
        assert run(other, 3)[0] == expected
        for a, b in zip(jax.tree.leaves(trainer.state), jax.tree.leaves(other.state), strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_bfloat16_network_is_near_the_float32_one_and_its_state_stays_float32():
    full, half = (stacks.make_trainer("a2c", precision=p) for p in ("float32", "bfloat16"))
    a, b = (trainer.iterate(10_000).metrics for trainer in (full, half))
    assert a["entropy"] != b["entropy"]
    assert a["entropy"] == pytest.approx(b["entropy"], abs=0.02)
    assert {leaf.dtype for leaf in jax.tree.leaves(half.state.params)} == {np.dtype(np.float32)}


@pytest.mark.slow
def test_host_memory_compiles_before_the_first_iteration_and_not_after():
    trainer = stacks.make_trainer("p3o", replay_device="host")
    trainer._update = trainer._compile()
    before = trainer._update._cache_size()
    counts = set(run(trainer, 25)[1])
    assert len(counts) > 3
    assert trainer._update._cache_size() == before


class Halves:
    """Two `StackEnv`s as one environment, stepped at once, one by one or at the same time."""

    def __init__(self, num_envs, seed=0, ends=0.25):
        self.num_envs, size = num_envs, num_envs // 2
        self.halves = [stacks.StackEnv(size, seed + i, ends) for i in range(2)]
        self.rows = [slice(0, size), slice(size, num_envs)]
        self.observation_space, self.action_space = self.halves[0].observation_space, self.halves[0].action_space
        self.parts = halves(num_envs)
        self.under_way = {}
        self.log = []
        self.threads = {}  # that received, by first row
        self.meet = {}  # what happens in `receive`, by first row

    @property
    def is_waiting(self):
        return np.concatenate([half.is_waiting for half in self.halves])

    def send(self, action, rows):
        assert rows.start not in self.under_way
        self.under_way[rows.start] = action
        self.log.append(f"send {rows.start}")

    def receive(self, rows):
        self.threads.setdefault(rows.start, set()).add(threading.current_thread())
        self.meet.get(rows.start, lambda: None)()
        self.log.append(f"receive {rows.start}")
        action = self.under_way.pop(rows.start)
        raws = [
            h.step(action[: h.num_envs] if r.start == rows.start else action[h.num_envs :])
            for h, r in zip(self.halves, self.rows, strict=True)
            if rows.start <= r.start < rows.stop
        ]
        joined = [np.concatenate(parts) for parts in zip(*(raw[1:4] for raw in raws), strict=True)]
        now, finals = (
            np.concatenate([getattr(raw, name).images[0] for raw in raws])
            for name in ("observation", "final_observation")
        )
        masked = np.concatenate([raw.is_masked for raw in raws])
        newest = pack(now[..., -1], joined[1] | joined[2])
        return Step(None, *joined, Observation(None, (finals,)), masked, newest=newest)

    def step(self, action):
        raise NotImplementedError

    def reset(self):
        self.under_way.clear()
        for half in self.halves:
            half.reset()
        return self.current()

    def current(self):
        return Observation(None, (np.concatenate([half.stack for half in self.halves]),))

    def snapshot(self):
        return {"halves": [half.snapshot() for half in self.halves]}

    def restore(self, snapshot):
        for half, stored in zip(self.halves, snapshot["halves"], strict=True):
            half.restore(stored)
        return []

    def close(self):
        pass


def make_halves(monkeypatch, groups, seed=0, has_threads=True):
    monkeypatch.setattr(train, "num_groups", lambda env, device: groups)
    entry = algorithms.find("a2c")
    config = make_config(entry.config, stacks.SETTINGS, {"num_envs": 8})
    trainer = train.Trainer(entry, config, Halves(8, seed), stacks.specs_of(), seed)
    if groups not in compiled:
        if not update:
            update.append(trainer._compile())
        else:
            trainer.actor.compile(trainer.state.params)
        compiled[groups] = [vars(trainer.actor)[name] for name in stacks.PARTS]
    trainer._update = update[0]
    vars(trainer.actor).update(zip(stacks.PARTS, compiled[groups], strict=True))
    trainer.rollout.has_threads = has_threads
    return trainer


update = []  # compiled once; takes what any number of groups made
compiled = {}  # what acts, by number of groups


def test_halves_in_turn_are_the_whole(monkeypatch):
    """The same episodes and, to rounding (products of 4 rows and of 8), the same weights; and exact resume."""
    halved, whole = (make_halves(monkeypatch, groups) for groups in (2, 1))
    assert [len(t.actor.groups) for t in (halved, whole)] == [2, 1]
    ours, theirs = (run(trainer, 4)[0] for trainer in (halved, whole))
    assert ours == theirs
    assert len(ours) > 10
    for a, b in zip(*(jax.tree.leaves(t.state.params) for t in (halved, whole)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    for first in ("0", "4"):  # each in order; the two in any
        assert [line for line in halved.env.log if line.endswith(first)] == [f"send {first}", f"receive {first}"] * 20
    other = make_halves(monkeypatch, 2, seed=1)
    other.restore(halved.snapshot())
    assert run(other, 3)[0] == run(halved, 3)[0]
    for a, b in zip(jax.tree.leaves(other.state), jax.tree.leaves(halved.state), strict=True):
        np.testing.assert_array_equal(a, b)


def test_halves_are_for_a_gpu_and_enough_environments():
    gpu, cpu = (SimpleNamespace(platform=name) for name in ("gpu", "cpu"))
    assert [num_groups(Halves(n), gpu) for n in (6, 8, 16)] == [1, 2, 2]
    assert num_groups(Halves(16), cpu) == 1
    assert num_groups(stacks.StackEnv(16), gpu) == 1  # steps all at once
    odd = stacks.StackEnv(9)
    odd.send, odd.receive, odd.parts = None, None, halves(9)
    assert num_groups(odd, gpu) == 1


# Halves in threads ----------------------------------------------------------------------------------------------------


def trajectories(trainer, iterations):
    """What the learner got, and the weights at the end."""
    collect, kept = trainer.rollout.collect, []

    def copied(*arguments):
        found = collect(*arguments)
        kept.append(jax.tree.map(np.array, found[0]))
        return found

    trainer.rollout.collect = copied
    episodes, _ = run(trainer, iterations)
    return kept, episodes, jax.tree.map(np.array, trainer.state.params)


def check_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_halves_in_threads_are_halves_in_turn_to_the_bit_whichever_is_slow(monkeypatch):
    plain = make_halves(monkeypatch, 2, has_threads=False)
    expected = trajectories(plain, 3)
    assert plain.env.threads == {0: {threading.current_thread()}, 4: {threading.current_thread()}}
    turns = plain.env.log[: 2 * 2 * 5]
    assert turns[:2] == ["send 0", "send 4"]
    assert turns[2:18] == ["receive 0", "send 0", "receive 4", "send 4"] * 4
    assert turns[18:] == ["receive 0", "receive 4"]
    for slow in ((), (0,), (4,)):
        trainer = make_halves(monkeypatch, 2)
        trainer.env.meet = dict.fromkeys(slow, lambda: time.sleep(0.01))
        check_equal(trajectories(trainer, 3), expected)
        assert not any(threading.current_thread() in threads for threads in trainer.env.threads.values())
        if slow:  # the other was far ahead
            assert trainer.env.log[: 2 * 2 * 5][-4:] == [f"{what} {slow[0]}" for what in ("send", "receive") * 2]


def test_halves_play_at_the_same_time(monkeypatch):
    trainer, barrier = make_halves(monkeypatch, 2), threading.Barrier(2)
    trainer.env.meet = dict.fromkeys((0, 4), lambda: barrier.wait(20))  # nobody gets by alone
    run(trainer, 2)
    before = {first: set(threads) for first, threads in trainer.env.threads.items()}
    run(trainer, 2)
    assert len(set.union(*trainer.env.threads.values()) | set.union(*before.values())) == 2  # always the same


def test_groups_that_are_no_parts_take_turns(monkeypatch):
    trainer = make_halves(monkeypatch, 2)
    trainer.env.parts = [slice(0, 8)]
    run(trainer, 1)
    assert trainer.env.threads == {0: {threading.current_thread()}, 4: {threading.current_thread()}}


def test_clocks_see_halves_in_turn(monkeypatch):
    trainer = make_halves(monkeypatch, 2)
    run(trainer, 1)
    trainer.env.threads.clear()
    parts = clocks.breakdown(trainer, 0.0, 10_000).parts
    assert trainer.env.threads == {0: {threading.current_thread()}, 4: {threading.current_thread()}}
    assert parts["acting"] > 0
    assert trainer.rollout.has_threads


def fail_at(number, what):
    """A function that does `what` at its so-manieth call, and takes its time."""
    calls = iter(range(10_000))

    def meet():
        time.sleep(0.01)
        if next(calls) == number:
            what()

    return meet


def check_ended_and_goes_on(trainer, monkeypatch):
    """Nothing plays on after an exception; the next rollout starts with a reset and is like any other."""
    log = list(trainer.env.log)
    time.sleep(0.05)
    assert trainer.env.log == log
    assert len(log) < 2 * 2 * 5 * 2  # the second rollout came to no end, in neither half
    assert all([line.endswith(first) for line in log].count(True) < 2 * 5 * 2 for first in ("0", "4"))
    assert trainer.rollout.observation is None
    trainer.env.meet = {}
    other = make_halves(monkeypatch, 2, has_threads=False)
    run(trainer, 1)
    other.env.restore(trainer.env.snapshot())
    other.state, other.act_rng.bit_generator.state = trainer.state, trainer.act_rng.bit_generator.state
    other.rollout.observation = trainer.env.current()
    other.rollout.returns[:], other.rollout.lengths[:] = trainer.rollout.returns, trainer.rollout.lengths
    found, expected = (t.rollout.collect(t.actor, t.act_rng, 0) for t in (trainer, with_params(other)))
    check_equal(*(jax.tree.map(np.array, one[0]) for one in (found, expected)))


def with_params(trainer):
    trainer.actor.set_params(trainer.state.params)
    return trainer


@pytest.mark.parametrize("first", [0, 4])
def test_what_a_half_raises_ends_both(first, monkeypatch):
    trainer = make_halves(monkeypatch, 2)
    run(trainer, 1)

    def stop():
        raise RunStopped(f"half {first}")

    trainer.env.meet = {first: fail_at(1, stop), 4 - first: fail_at(-1, stop)}
    with pytest.raises(RunStopped, match=f"half {first}"):
        trainer.iterate(10_000)
    check_ended_and_goes_on(trainer, monkeypatch)


def test_an_interrupt_waits_for_both(monkeypatch):
    """Also a second one while it waits."""
    trainer = make_halves(monkeypatch, 2)
    run(trainer, 1)
    main, is_inside = threading.main_thread(), []
    assert threading.current_thread() is main

    def interrupt():
        is_inside.append(True)
        for _ in range(3):
            signal.pthread_kill(main.ident, signal.SIGINT)
            time.sleep(0.05)
        is_inside.clear()

    trainer.env.meet = {0: fail_at(1, interrupt), 4: fail_at(-1, interrupt)}
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            trainer.iterate(10_000)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only a thread that plays on sends more
        assert not is_inside
    finally:
        while is_inside:
            time.sleep(0.01)
        signal.signal(signal.SIGINT, previous)
    check_ended_and_goes_on(trainer, monkeypatch)


def test_a_thread_that_comes_late_does_not_begin():
    """Its rollout was stopped while it waited for its turn."""
    for stop, expected in (([True], []), ([], [1, 2, 3])):
        played = []
        play_until(stop, threading.Lock(), (played.append(number) for number in (1, 2, 3)))
        assert played == expected


def test_threads_end_with_their_trainer(monkeypatch):
    trainer = make_halves(monkeypatch, 2)
    run(trainer, 1)
    threads = set.union(*trainer.env.threads.values())
    assert all(thread.is_alive() for thread in threads)
    del trainer
    gc.collect()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_new_frames_do_not_land_on_those_before():
    """The device may still read the last ones; the third may take the place of the first."""
    landing = Landing((2, 5), jax.devices("cpu")[0])
    packed = np.arange(10, dtype=np.uint8).reshape(2, 5)
    first, second = landing.put(packed), landing.put(packed + 100)
    assert np.array_equal(first, packed)
    assert np.array_equal(second, packed + 100)
    packed[:] = 7
    assert landing.put(packed) is first
    assert np.array_equal(second, np.arange(100, 110).reshape(2, 5))
    assert np.array_equal(jax.jit(lambda x: x + 1)(first), packed + 1)


def test_an_interrupt_between_a_call_and_its_result_loses_no_buffers(monkeypatch):
    """The call has taken the carry over by then; in one group it is on the main thread, which Ctrl-C reaches."""
    trainer = make_halves(monkeypatch, 1)
    run(trainer, 1)
    calls = trainer.actor._calls[0]

    def interrupted(*arguments):
        calls.proceed(*arguments)
        raise KeyboardInterrupt

    trainer.actor._calls = [calls._replace(proceed=interrupted)]
    with pytest.raises(KeyboardInterrupt):
        trainer.iterate(10_000)
    trainer.actor._calls = [calls]
    run(trainer, 2)
