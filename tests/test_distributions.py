"""Log-probability, entropy and KL against hand-worked numbers, SciPy and numerical integration."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from p3o.distributions import Bernoulli, Categorical, DiagonalGaussian, MultiCategorical

LOG2, LOG3 = math.log(2), math.log(3)
JUST_BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


def random_pair(kind, seed, batch=(5, 2)):
    """Two random distributions of a kind and an action, float32 as in a rollout."""
    rng = np.random.default_rng(seed)

    def draw(size, spread=1.0):
        return (spread * rng.standard_normal((*batch, size))).astype(np.float32)

    if kind == "gaussian":
        pair = [DiagonalGaussian(draw(3), draw(3, 0.3)) for _ in range(2)]
        return *pair, draw(3)
    if kind == "categorical":
        return Categorical(draw(4)), Categorical(draw(4)), rng.integers(4, size=batch).astype(np.int32)
    if kind == "bernoulli":
        return Bernoulli(draw(3)), Bernoulli(draw(3)), rng.integers(2, size=(*batch, 3)).astype(np.int32)
    pair = [MultiCategorical((Categorical(draw(2)), Categorical(draw(5)))) for _ in range(2)]
    return *pair, np.stack([rng.integers(n, size=batch) for n in (2, 5)], axis=-1).astype(np.int32)


KINDS = ("gaussian", "categorical", "bernoulli", "multi_categorical")


def test_gaussian_by_hand():
    # One dimension, μ = 1, σ = 2, a = 3: z = 1, log p = −½ − log 2 − ½ log 2π.
    policy = DiagonalGaussian(np.array([[1.0]]), np.array([[LOG2]]))
    half_log_2pi = 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(policy.log_prob(np.array([[3.0]])), [-0.5 - LOG2 - half_log_2pi])
    # Entropy ½ + ½ log 2π + log σ.
    np.testing.assert_allclose(policy.entropy(), [0.5 + half_log_2pi + LOG2])
    np.testing.assert_allclose(policy.mode(), [[1.0]])
    np.testing.assert_allclose(policy.sample(np.array([[-1.5]])), [[-2.0]])  # 1 + 2·(−1.5)


def test_gaussian_kl_by_hand_in_both_directions():
    # p = N(0, 1) × N(1, 1), q = N(1, 2²) × N(1, 1).
    # KL(p‖q) = log 2 + (1 + 1)/(2·4) − ½ = log 2 − ¼ in the first dimension and 0 in the second.
    # KL(q‖p) = −log 2 + (4 + 1)/2 − ½ = 2 − log 2.
    p = DiagonalGaussian(np.array([0.0, 1.0]), np.array([0.0, 0.0]))
    q = DiagonalGaussian(np.array([1.0, 1.0]), np.array([LOG2, 0.0]))
    np.testing.assert_allclose(p.kl(q), LOG2 - 0.25)
    np.testing.assert_allclose(q.kl(p), 2 - LOG2)
    np.testing.assert_allclose(p.kl(q, "mean"), (LOG2 - 0.25) / 2)
    np.testing.assert_allclose(q.kl(p, "mean"), (2 - LOG2) / 2)
    np.testing.assert_allclose(p.kl(p), 0.0)


def test_gaussian_kl_by_numerical_integration():
    p, q = (DiagonalGaussian(np.array([m]), np.array([math.log(s)])) for m, s in ((0.3, 0.7), (-0.5, 1.3)))

    def integrand(x):
        log_p, log_q = (stats.norm.logpdf(x, d.mean[0], math.exp(d.log_std[0])) for d in (p, q))
        return math.exp(log_p) * (log_p - log_q)

    np.testing.assert_allclose(p.kl(q), integrate.quad(integrand, -12, 12)[0], rtol=1e-8)


def test_gaussian_against_scipy():
    policy, _, action = random_pair("gaussian", 0)
    log_prob = stats.norm.logpdf(action, policy.mean, np.exp(policy.log_std)).sum(-1)
    np.testing.assert_allclose(policy.log_prob(action), log_prob, rtol=1e-5)
    np.testing.assert_allclose(policy.entropy(), stats.norm.entropy(0, np.exp(policy.log_std)).sum(-1), rtol=1e-5)


def test_categorical_by_hand():
    # p = (½, ¼, ¼), q = (¼, ½, ¼), given by unnormalised logits.
    p, q = Categorical(np.log([4.0, 2.0, 2.0])), Categorical(np.log([1.0, 2.0, 1.0]))
    np.testing.assert_allclose(p.probs(), [0.5, 0.25, 0.25])
    np.testing.assert_allclose([p.log_prob(np.array(a)) for a in range(3)], [-LOG2, -2 * LOG2, -2 * LOG2])
    np.testing.assert_allclose(p.entropy(), 1.5 * LOG2)  # ½ log 2 + 2 · ¼ · 2 log 2
    # KL(p‖q) = ½ log 2 − ¼ log 2 + 0 = ¼ log 2; by symmetry the other direction is the same.
    np.testing.assert_allclose(p.kl(q), 0.25 * LOG2)
    np.testing.assert_allclose(p.kl(q, "mean"), 0.25 * LOG2 / 3)  # over the number of actions
    assert p.mode() == 0
    # An asymmetric pair: u = (½, ½), v = (¾, ¼): KL(u‖v) = ½ log(2/3) + ½ log 2 = log 2 − ½ log 3,
    # KL(v‖u) = ¾ log(3/2) + ¼ log ½ = ¾ log 3 − log 2.
    u, v = Categorical(np.zeros(2)), Categorical(np.log([3.0, 1.0]))
    np.testing.assert_allclose(u.kl(v), LOG2 - 0.5 * LOG3)
    np.testing.assert_allclose(v.kl(u), 0.75 * LOG3 - LOG2)


def test_categorical_against_scipy():
    p, q, _ = random_pair("categorical", 1)
    np.testing.assert_allclose(p.entropy(), stats.entropy(p.probs(), axis=-1), rtol=1e-5)
    np.testing.assert_allclose(p.kl(q), stats.entropy(p.probs(), q.probs(), axis=-1), rtol=1e-4)


def test_bernoulli_by_hand():
    # Yes with ¾ (logit log 3) and ½ (logit 0): log p(1, 0) = log ¾ + log ½.
    p = Bernoulli(np.array([LOG3, 0.0]))
    np.testing.assert_allclose(p.log_prob(np.array([1, 0])), math.log(0.75) + math.log(0.5))
    np.testing.assert_allclose(p.log_prob(np.array([0, 1])), math.log(0.25) + math.log(0.5))
    np.testing.assert_allclose(p.entropy(), stats.bernoulli.entropy([0.75, 0.5]).sum())
    # KL of a Bernoulli is that of a Categorical with two actions: see the asymmetric pair above.
    q = Bernoulli(np.array([0.0, 0.0]))
    np.testing.assert_allclose(p.kl(q), 0.75 * LOG3 - LOG2)
    np.testing.assert_allclose(q.kl(p), LOG2 - 0.5 * LOG3)
    np.testing.assert_allclose(p.kl(q, "mean"), (0.75 * LOG3 - LOG2) / 2)  # two actions a choice
    np.testing.assert_array_equal(p.mode(), [1, 0])
    np.testing.assert_array_equal(p.sample(np.array([0.74, 0.51])), [1, 0])
    np.testing.assert_array_equal(p.sample(np.array([0.76, 0.49])), [0, 1])


def test_bernoulli_far_from_even_stays_finite_with_its_gradient():
    logits = np.array([-200.0, 200.0], np.float32)
    for value in (Bernoulli(logits).entropy(), Bernoulli(logits).kl(Bernoulli(logits / 2))):
        assert np.isfinite(value)
    np.testing.assert_array_equal(Bernoulli(logits).sample(np.array([0.0, 0.999])), [0, 1])
    entropy, kl = jax.grad(lambda x: Bernoulli(x).entropy()), jax.grad(lambda x: Bernoulli(x).kl(Bernoulli(x * 0)))
    np.testing.assert_allclose(entropy(jnp.asarray(logits)), 0, atol=1e-6)
    assert np.isfinite(kl(jnp.asarray(logits))).all()


def test_multi_categorical_is_the_sum_of_its_factors():
    p, q, action = random_pair("multi_categorical", 2)
    for name, both in (
        ("log_prob", (p.log_prob(action), sum(f.log_prob(action[..., i]) for i, f in enumerate(p.factors)))),
        ("entropy", (p.entropy(), p.factors[0].entropy() + p.factors[1].entropy())),
        ("kl", (p.kl(q), p.factors[0].kl(q.factors[0]) + p.factors[1].kl(q.factors[1]))),
        # each factor over the number of its own actions, 2 and 5
        ("mean", (p.kl(q, "mean"), p.factors[0].kl(q.factors[0]) / 2 + p.factors[1].kl(q.factors[1]) / 5)),
    ):
        np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-7, err_msg=name)
    np.testing.assert_array_equal(p.mode(), np.stack([f.logits.argmax(-1) for f in p.factors], axis=-1))


@pytest.mark.parametrize("kind", KINDS)
def test_kl_is_zero_to_itself_and_positive_otherwise(kind):
    p, q, _ = random_pair(kind, 3)
    np.testing.assert_allclose(p.kl(p), 0, atol=1e-6)
    assert (p.kl(q) > 0).all()
    assert not np.allclose(p.kl(q), q.kl(p))


@pytest.mark.parametrize("kind", KINDS)
def test_numpy_and_jax_agree_and_have_the_shape_of_the_batch(kind):
    p, q, action = random_pair(kind, 4)
    jax_p, jax_q = jax.tree.map(jnp.asarray, (p, q))
    values = {
        "log_prob": (p.log_prob(action), jax_p.log_prob(jnp.asarray(action))),
        "entropy": (p.entropy(), jax_p.entropy()),
        "kl": (p.kl(q), jax_p.kl(jax_q)),
        "kl mean": (p.kl(q, "mean"), jax_p.kl(jax_q, "mean")),
    }
    for name, (on_numpy, on_jax) in values.items():
        assert isinstance(on_numpy, np.ndarray), name
        assert isinstance(on_jax, jax.Array), name
        assert on_numpy.shape == on_jax.shape == (5, 2), name
        assert on_jax.dtype == np.float32, name
        np.testing.assert_allclose(on_numpy, on_jax, rtol=1e-5, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(p.mode(), jax_p.mode())


def test_categorical_samples_have_the_frequencies_of_the_policy():
    probs = np.array([0.5, 0.0, 0.3, 0.2])
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(probs), -1e30).astype(np.float32)
    # Evenly spread noise leaves only rounding: each frequency is right to one in a thousand.
    noise = (np.arange(10_000, dtype=np.float32) + 0.5) / 10_000
    sample = Categorical(np.broadcast_to(logits, (10_000, 4))).sample(noise)
    np.testing.assert_allclose(np.bincount(sample, minlength=4) / 10_000, probs, atol=1e-3)
    assert (np.diff(sample) >= 0).all()  # the inverse of a cumulative distribution is monotone
    assert sample.dtype == np.int32


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=300),
    st.sampled_from([0.0, 0.5, float(JUST_BELOW_ONE)]),
)
def test_categorical_samples_stay_in_range(logits, noise):
    policy = Categorical(np.array(logits, np.float32))
    for dtype in (np.float32, np.float64):
        sample = policy.sample(np.asarray(noise, dtype))
        assert 0 <= sample < len(logits)
        assert policy.probs()[sample] > 0


def test_a_single_noise_per_factor_samples_multi_categorical():
    p = MultiCategorical((Categorical(np.zeros((1, 2))), Categorical(np.zeros((1, 4)))))
    np.testing.assert_array_equal(p.sample(np.array([[0.6, 0.6]])), [[1, 2]])
    np.testing.assert_array_equal(p.sample(np.array([[0.4, JUST_BELOW_ONE]])), [[0, 3]])


def test_huge_logits_do_not_overflow():
    p = Categorical(np.array([1000.0, 0.0, -1000.0], np.float32))
    np.testing.assert_allclose(p.probs(), [1, 0, 0])
    np.testing.assert_allclose(p.entropy(), 0, atol=1e-6)
    assert p.log_prob(np.array(2)) == -2000
