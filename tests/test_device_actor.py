"""Acting on the learner's device against the plain way with whole stacks: the same episodes, the same weights."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
import stacks

from p3o import algorithms, train
from p3o.config import make_config
from p3o.device_actor import DeviceActor, num_groups, pack
from p3o.errors import RunStopped
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
        chunks = trainer.replay_chunks(0)
        for _ in range(2):
            trainer.iterate(10_000)
        snapshot = trainer.snapshot()
        chunks += trainer.replay_chunks(chunks[-1].last)
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
    """Two `StackEnv`s as one environment, stepped at once or one by one."""

    def __init__(self, num_envs, seed=0, ends=0.25):
        self.num_envs, size = num_envs, num_envs // 2
        self.halves = [stacks.StackEnv(size, seed + i, ends) for i in range(2)]
        self.rows = [slice(0, size), slice(size, num_envs)]
        self.observation_space, self.action_space = self.halves[0].observation_space, self.halves[0].action_space
        self.under_way = {}
        self.log = []

    @property
    def is_waiting(self):
        return np.concatenate([half.is_waiting for half in self.halves])

    def send(self, action, rows):
        assert rows.start not in self.under_way
        self.under_way[rows.start] = action
        self.log.append(f"send {rows.start}")

    def receive(self, rows):
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


def make_halves(monkeypatch, groups, seed=0):
    monkeypatch.setattr(train, "num_groups", lambda env, device: groups)
    entry = algorithms.find("a2c")
    config = make_config(entry.config, stacks.SETTINGS, {"num_envs": 8})
    trainer = train.Trainer(entry, config, Halves(8, seed), stacks.specs_of(), seed)
    if not update:
        update.append(trainer._compile())
    trainer._update = update[0]
    return trainer


update = []  # compiled once; takes what any number of groups made


def test_halves_in_turn_are_the_whole(monkeypatch):
    """The same episodes and, to rounding (products of 4 rows and of 8), the same weights; and exact resume."""
    halved, whole = (make_halves(monkeypatch, groups) for groups in (2, 1))
    assert [len(t.actor.groups) for t in (halved, whole)] == [2, 1]
    ours, theirs = (run(trainer, 4)[0] for trainer in (halved, whole))
    assert ours == theirs
    assert len(ours) > 10
    for a, b in zip(*(jax.tree.leaves(t.state.params) for t in (halved, whole)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    turns = halved.env.log[: 2 * 2 * 5]
    assert turns[:2] == ["send 0", "send 4"]
    assert turns[2:18] == ["receive 0", "send 0", "receive 4", "send 4"] * 4
    assert turns[18:] == ["receive 0", "receive 4"]
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
    odd.send = odd.receive = None
    assert num_groups(odd, gpu) == 1
