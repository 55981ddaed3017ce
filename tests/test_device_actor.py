"""Acting on the learner's device against the plain way with whole stacks: the same episodes, the same weights."""

import jax
import numpy as np
import pytest
import stacks

from p3o.device_actor import DeviceActor
from p3o.rollout import Actor


def run(trainer, iterations):
    episodes, metrics = [], []
    for _ in range(iterations):
        episodes += trainer.iterate(10_000).episodes
        trainer.settle()
        metrics.append(trainer.metrics)
    return episodes, metrics


@pytest.mark.parametrize(
    ("algo", "time_limit"),
    [("p3o", "bootstrap"), ("p3o", "terminal"), ("acer", "bootstrap"), ("ppo", "bootstrap"), ("a2c", "terminal")],
)
def test_the_device_acts_and_learns_as_the_plain_way_does(algo, time_limit):
    """Whole stacks, stored whole and acted on by the host, are the naive version of everything here."""
    trainers = [stacks.make_trainer(algo, size, time_limit=time_limit) for size in (stacks.STACK, 0)]
    assert [type(t.actor) for t in trainers] == [DeviceActor, Actor]
    (ours, our_metrics), (theirs, their_metrics) = (run(t, 9) for t in trainers)
    assert ours == theirs
    assert our_metrics == their_metrics
    assert len(ours) > 10
    leaves = [jax.tree.leaves(jax.tree.map(np.asarray, t.state.params)) for t in trainers]
    for a, b in zip(*leaves, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("algo", ["p3o", "acer"])
def test_a_replay_in_host_memory_draws_and_learns_the_same(algo):
    """The ring wraps twice; numbers of replayed steps and every weight are those of the ring in the state."""
    ours, theirs = (stacks.make_trainer(algo, replay_device=place) for place in ("host", "auto"))
    assert ours.memory is not None
    assert theirs.memory is None
    assert jax.tree.leaves(ours.state.replay) == []
    (found, metrics), (expected, expected_metrics) = (run(trainer, 9) for trainer in (ours, theirs))
    assert found == expected
    assert [m["off_policy_updates"] for m in metrics] == [m["off_policy_updates"] for m in expected_metrics]
    assert len({m["off_policy_updates"] for m in metrics}) > 3
    for a, b in zip(*(jax.tree.leaves(t.state.params) for t in (ours, theirs)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # compiled apart, for each number of minibatches
    for a, b in zip(jax.tree.leaves(ours.memory.data), jax.tree.leaves(theirs.state.replay.data), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
