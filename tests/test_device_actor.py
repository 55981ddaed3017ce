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
