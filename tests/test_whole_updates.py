"""One whole update of each algorithm beside the same written a second time, plainly, from the papers' formulas.

Networks and optimisers have tests of their own and serve both writings; losses, targets, weights and the order of the
steps are written out here; targets and weights row by row, in float64.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from p3o import optimizers
from p3o.algorithms import ALGORITHMS, Specs, ppo
from p3o.algorithms.base import example_trajectory
from p3o.config import make_config
from p3o.distributions import Categorical
from p3o.networks import make_network
from p3o.spaces import action_spec, observation_spec

SPECS = Specs(observation_spec(spaces.Box(-1, 1, (3,))), action_spec(spaces.Discrete(3)))
STEPS, ENVS, GAMMA, RATE = 6, 2, 0.9, np.float32(0.02)
# weights that no factor of a formula could be mistaken for
ODD = {"gamma": GAMMA, "value_coef": 0.3, "entropy_coef": 0.07, "max_grad_norm": 1e9, "time_limit": "terminal"}


class Case:
    """An algorithm with a rollout in which episodes end in both ways, by actions of another policy."""

    def __init__(self, algo, are_alike=False, **settings):
        shape = {"num_envs": ENVS, "num_steps": STEPS, "hidden_sizes": (8,), "optimizer": "rmsprop"}
        self.config = make_config(ALGORITHMS[algo].config, {**shape, **ODD, **settings})
        self.algorithm = ALGORITHMS[algo].make(self.config, SPECS)
        self.network = make_network(SPECS.observation, SPECS.action, self.config, is_q=algo == "acer")
        rng = np.random.default_rng(1)
        rollout = example_trajectory(self.config, SPECS)
        rollout.observation.vector[:] = rng.normal(size=rollout.observation.vector.shape)
        rollout.action[:] = rng.integers(0, 3, rollout.action.shape)
        rollout.reward[:] = rng.normal(size=rollout.reward.shape) - 1
        rollout.terminated[2, 0] = rollout.truncated[3, 1] = True
        rollout = rollout._replace(behaviour=Categorical(rng.normal(size=(STEPS, ENVS, 3)).astype(np.float32)))
        if are_alike:  # both environments: whatever a replay of this rollout alone draws, it is the same
            rollout = jax.tree.map(lambda leaf: np.repeat(leaf[:, :1], ENVS, axis=1), rollout)
        self.rollout = jax.tree.map(jnp.asarray, rollout)
        params = self.network.init(rng)
        params["policy_head"]["weight"] = rng.normal(size=params["policy_head"]["weight"].shape).astype(np.float32)
        self.params = jax.tree.map(jnp.asarray, params)
        self.outputs = jax.jit(self._outputs)
        self.is_end = (rollout.terminated | rollout.truncated).astype(float)

    def update(self):
        state = self.algorithm.init(np.random.default_rng(0))
        if self.algorithm.with_params is not None:
            state = self.algorithm.with_params(state, self.params)
        else:
            state = state._replace(params=self.params)
        return jax.jit(self.algorithm.update)(state, self.rollout, jax.random.key(3), RATE)

    def _outputs(self, params):
        """log π of every action and V (Q for ACER)."""
        policy, value = self.network.policy_and_value(params, self.rollout.observation)
        return policy.logits - jax.scipy.special.logsumexp(policy.logits, -1, keepdims=True), value


def row(values, action):
    """The entries of the actions taken."""
    return jnp.take_along_axis(values, jnp.asarray(action)[..., None], -1)[..., 0]


def entropy(log_probs):
    return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def float64(array):
    return np.asarray(array, np.float64)


def n_step_returns(case, value):
    """R_t = r_t + γ R_{t+1}, from V of the last observation, 0 after an end."""
    returns, following = np.zeros((STEPS, ENVS)), value[-1]
    for t in reversed(range(STEPS)):
        following = case.rollout.reward[t] + GAMMA * (1 - case.is_end[t]) * following
        returns[t] = following
    return returns


def generalised_advantage(case, value, tau):
    """Â_t = Σ (γτ)^k δ_{t+k} up to the end of the episode, δ_t = r_t + γ V_{t+1} − V_t."""
    advantage, following = np.zeros((STEPS, ENVS)), np.zeros(ENVS)
    for t in reversed(range(STEPS)):
        going_on = 1 - case.is_end[t]
        delta = case.rollout.reward[t] + GAMMA * going_on * value[t + 1] - value[t]
        following = delta + GAMMA * tau * going_on * following
        advantage[t] = following
    return advantage


def on_policy_loss(case):
    def loss(params, advantage, returns):
        log_probs, value = case.outputs(params)
        policy = -jnp.mean(advantage * row(log_probs[:-1], case.rollout.action))
        return policy + 0.3 * jnp.mean((returns - value[:-1]) ** 2) - 0.07 * jnp.mean(entropy(log_probs[:-1]))

    return loss


def descend(case, steps):
    """Parameters after a step on each (loss, function of the parameters then that gives its other arguments)."""
    optimizer, params = optimizers.make_optimizer(case.config), case.params
    opt_state = optimizer.init(params)

    @functools.partial(jax.jit, static_argnums=0)
    def step(loss, params, opt_state, *rest):
        return optimizers.apply(optimizer, params, opt_state, jax.grad(loss)(params, *rest), RATE)

    for loss, prepare in steps:
        rest = map(jnp.asarray, prepare(params))
        params, opt_state = step(loss, params, opt_state, *rest)
    return params


def assert_same(found, expected, start):
    """Equal to a thousandth of the way that each array went."""
    for a, b, c in zip(*map(jax.tree.leaves, (found, expected, start)), strict=True):
        way = np.abs(float64(b) - float64(c)).max()
        assert way > 1e-4
        np.testing.assert_allclose(a, b, atol=1e-3 * way)


@pytest.mark.parametrize("algo", ["a2c", "a2cg"])
def test_a2c(algo):
    case = Case(algo, gae_lambda=0.6)

    def targets(params):
        value = float64(case.outputs(params)[1])
        if algo == "a2cg":
            advantage = generalised_advantage(case, value, 0.6)
            return advantage, advantage + value[:-1]
        returns = n_step_returns(case, value)  # whatever gae_lambda says
        return returns - value[:-1], returns

    state, _ = case.update()
    assert_same(state.params, descend(case, [(on_policy_loss(case), targets)]), case.params)


@pytest.mark.parametrize(("clip_value", "clip_schedule"), [(True, "constant"), (False, "linear")])
def test_ppo(clip_value, clip_schedule):
    case = Case(
        "ppo",
        num_epochs=3,
        num_minibatches=4,
        clip_range=0.1,
        clip_schedule=clip_schedule,
        clip_value=clip_value,
        gae_lambda=0.6,
        learning_rate=2 * float(RATE),
    )
    epsilon = 0.05 if clip_schedule == "linear" else 0.1  # the rate has fallen to a half
    old_value = float64(case.outputs(case.params)[1])
    advantages = generalised_advantage(case, old_value, 0.6)
    targets = (advantages + old_value[:-1]).ravel()
    # of the policy that acted, which is not that of the parameters here
    logits = float64(case.rollout.behaviour.logits)
    old = row(logits - np.log(np.exp(logits).sum(-1, keepdims=True)), case.rollout.action).ravel()

    def loss(params, rows):
        log_probs, value = case.outputs(params)
        log_probs, value = log_probs[:-1].reshape(-1, 3)[rows], value[:-1].ravel()[rows]
        advantage = jnp.asarray(advantages).ravel()[rows]
        advantage = (advantage - advantage.mean()) / advantage.std()
        ratio = jnp.exp(row(log_probs, case.rollout.action.ravel()[rows]) - old[rows])
        clipped = jnp.clip(ratio, 1 - epsilon, 1 + epsilon)
        policy = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
        target, before = jnp.asarray(targets)[rows], jnp.asarray(old_value[:-1]).ravel()[rows]
        error = (value - target) ** 2
        if clip_value:
            near = before + jnp.clip(value - before, -epsilon, epsilon)
            error = jnp.maximum(error, (near - target) ** 2)
        return policy + 0.3 * 0.5 * jnp.mean(error) - 0.07 * jnp.mean(entropy(log_probs))

    batches = np.asarray(ppo.minibatch_rows(jax.random.key(3), case.config))
    assert batches.shape == (12, 3)
    state, metrics = case.update()
    assert_same(state.params, descend(case, [(loss, lambda _, rows=rows: (rows,)) for rows in batches]), case.params)
    assert float(metrics["clip_range"]) == pytest.approx(epsilon)
    assert float(metrics["clip_fraction"]) > 0.3  # the clip takes part


def acer_step(case, average, trust_region, clip):
    """ACER's gradient as that of a linear function of π and of the Q loss; without the code's 1e-6 in divisions."""
    rollout = case.rollout

    def weights(params):
        log_probs, q = map(float64, case.outputs(params))
        probs, mean_probs = np.exp(log_probs), np.exp(float64(case.outputs(average)[0]))
        logits = float64(rollout.behaviour.logits)
        behaviour = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        step, target = np.zeros((STEPS, ENVS, 3)), np.zeros((STEPS, ENVS))
        was_projected = 0
        for env in range(ENVS):
            following = np.sum(probs[-1, env] * q[-1, env])
            for t in reversed(range(STEPS)):
                pi, mu, a = probs[t, env], behaviour[t, env], rollout.action[t, env]
                value, ratio = np.sum(pi * q[t, env]), pi / mu
                target[t, env] = rollout.reward[t, env] + GAMMA * (1 - case.is_end[t, env]) * following
                following = min(1, ratio[a]) * (target[t, env] - q[t, env, a]) + value
                gradient = np.maximum(0, 1 - clip / ratio) * (q[t, env] - value)  # Σ_a π ∇ log π = ∇ Σ_a π
                gradient[a] += min(clip, ratio[a]) * (target[t, env] - value) / pi[a]
                gradient += 0.07 * (-np.log(pi) - 1)
                k = -mean_probs[t, env] / pi
                excess = max(0, (k @ gradient - trust_region) / (k @ k))
                was_projected += excess > 0
                step[t, env] = gradient - excess * k
        case.projected = was_projected / (STEPS * ENVS)
        return step, target

    def loss(params, step, target):
        log_probs, q = case.outputs(params)
        policy = -jnp.sum(step * jnp.exp(log_probs[:-1])) / (STEPS * ENVS)
        return policy + 0.3 * 0.5 * jnp.mean((target - row(q[:-1], rollout.action)) ** 2)

    return loss, weights


def test_acer():
    case = Case("acer", is_clip=1.2, trust_region=0.1, replay_size=STEPS, burn_in=0, off_policy_updates=0.0)
    state, metrics = case.update()
    assert_same(state.params, descend(case, [acer_step(case, case.params, 0.1, 1.2)]), case.params)
    assert 0 < case.projected < 1  # both kinds of rows are there
    assert float(metrics["trust_region_fraction"]) == pytest.approx(case.projected)
    assert 0 < float(metrics["bias_correction_fraction"]) < 1


def replayed_step(case, tau):
    """The second and third term of eq. (14) with the value loss."""
    logits = float64(case.rollout.behaviour.logits)
    beta = logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def weights(params):
        log_probs, value = map(float64, case.outputs(params))
        ratio = np.exp(float64(row(log_probs[:-1] - beta, case.rollout.action)))
        ess = ratio.sum() ** 2 / (ratio.size * (ratio**2).sum())
        assert 0.1 < ess < 0.9
        advantage = generalised_advantage(case, value, tau)
        return np.minimum(ratio, ess) * advantage, advantage + value[:-1], 1 - ess

    def loss(params, weight, returns, kl_weight):
        log_probs, value = case.outputs(params)
        policy = -jnp.mean(weight * row(log_probs[:-1], case.rollout.action))
        kl = jnp.mean(jnp.sum(jnp.exp(log_probs[:-1]) * (log_probs[:-1] - beta), -1))
        return policy + kl_weight * kl + 0.3 * jnp.mean((returns - value[:-1]) ** 2)

    return loss, weights


def test_p3o():
    case = Case("p3o", are_alike=True, gae_lambda=0.6, replay_size=STEPS, burn_in=0, off_policy_updates=4.0)

    def targets(params):
        value = float64(case.outputs(params)[1])
        advantage = generalised_advantage(case, value, 0.6)
        return advantage, advantage + value[:-1]

    state, metrics = case.update()
    count = int(metrics["off_policy_updates"])
    assert count > 1
    steps = [(on_policy_loss(case), targets)] + [replayed_step(case, 0.6)] * count
    assert_same(state.params, descend(case, steps), case.params)


def test_columns_of_a_replayed_minibatch():
    assert Case("p3o", replay_samples=5, replay_size=60, burn_in=12).algorithm.replay.num_columns == 5 * ENVS
    assert Case("acer", replay_size=60, burn_in=12).algorithm.replay.num_columns == ENVS


def test_each_algorithm_decays_its_rate_by_its_own_rule():
    # 12 steps an iteration, 120 steps: ten iterations. P3O: k/11 in iteration k; A2C, ACER: the last step of the
    # iteration, counted from 0, over 120; PPO: the iterations before, over ten.
    expected = {
        "p3o": (10 / 11, 7 / 11),
        "a2c": (109 / 120, 73 / 120),
        "a2cg": (109 / 120, 73 / 120),
        "acer": (109 / 120, 73 / 120),
        "ppo": (1.0, 0.7),
    }
    assert set(expected) == set(ALGORITHMS)
    for algo, rates in expected.items():
        settings = {"replay_size": 60, "burn_in": 12} if algo in ("p3o", "acer") else {}
        settings |= {"num_minibatches": 4} if algo == "ppo" else {}
        rate = Case(algo, learning_rate=1.0, lr_schedule="linear", **settings).algorithm.learning_rate
        assert [rate(step, 120) for step in (0, 36)] == pytest.approx(rates), algo
