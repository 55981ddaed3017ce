"""Acting on the learner's device against the plain way with whole stacks: the same episodes, the same weights."""

import jax
import numpy as np
import pytest
import stacks

from p3o.device_actor import DeviceActor
from p3o.errors import RunStopped
from p3o.rollout import Actor


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
