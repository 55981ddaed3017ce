"""The `paper` preset is the paper's tables, entry by entry, and where they are silent what was decided."""

import csv
import re
from importlib import resources

import pytest

from p3o.algorithms import ALGORITHMS
from p3o.config import make_config
from p3o.errors import UserError
from p3o.experiments import paper
from p3o.networks import CONVOLUTIONS
from p3o.presets import DEFAULT_IMAGE, PAPER, PRESETS, preset_settings

TABLES = resources.files("p3o.experiments") / "reference" / "paper_hyperparameters.csv"
KINDS = {"mujoco": ("vector", "gaussian"), "atari": ("image", "categorical")}

# The tables' names for settings; None: no setting (how many runs).
SETTINGS = {
    "Learning rate": "learning_rate",
    "Replay Buffer size": "replay_size",
    "Number of environments": "num_envs",
    "Number of steps per iteration": "num_steps",
    "Entropy regularization (alpha)": "entropy_coef",
    "Off policy updates per iteration (xi)": "off_policy_updates",
    "Burn-in period": "burn_in",
    "Samples from replay buffer": "replay_samples",
    "Number of samples from replay buffer": "replay_samples",
    "Discount factor (gamma)": "gamma",
    "Value loss Coefficient": "value_coef",
    "Gradient norm clipping coefficient": "max_grad_norm",
    "Advantage estimation discounting factor (tau)": "gae_lambda",
    "importance weight clipping factor": "is_clip",
    "Momentum factor in the Polyak": "polyak",
    "Max. KL between old & updated policy": "trust_region",
    "Use Trust region": "use_trust_region",
    "Random Seeds": None,
}
# The same words mean passes over a rollout in PPO and the mean number of replayed updates in ACER.
EPOCHS = {"ppo": "num_epochs", "acer": "off_policy_updates"}


def rows():
    """(suite, algorithm, name, value) of every row, `Same as A2C` looked up."""
    table = list(csv.DictReader(TABLES.read_text().splitlines()))
    values = {(row["suite"], row["algorithm"], row["name"]): row["value"] for row in table}
    return [
        (suite, algo, name, values[suite, "a2c", name] if value == "Same as A2C" else value)
        for (suite, algo, name), value in values.items()
    ]


def number(text):
    """`3 x 10^-4`, `Poisson(3)`, `True` or a plain number."""
    if text in ("True", "False"):
        return text == "True"
    if match := re.fullmatch(r"([\d.]+) x 10\^(-?\d+)", text):
        return float(f"{match[1]}e{match[2]}")
    if match := re.fullmatch(r"Poisson\((\d+)\)", text):
        return float(match[1])
    return float(text)


def resolved(algo, kinds):
    return make_config(ALGORITHMS[algo].config, PAPER[algo](*kinds))


def test_numbers_of_the_tables():
    assert number("3 x 10^-4") == 3e-4
    assert number("15 x 10^3") == 15_000
    assert number("Poisson(2)") == 2
    assert number("0.0") == 0
    assert number("True") is True


@pytest.mark.parametrize(("suite", "algo", "name", "value"), rows())
def test_paper_preset_is_the_papers_table(suite, algo, name, value):
    config = resolved(algo, KINDS[suite])
    if name == "Architecture":
        check_architecture(config, value)
        return
    setting = EPOCHS[algo] if name == "Number of training epochs per update" else SETTINGS[name]
    if setting is not None:
        assert getattr(config, setting) == pytest.approx(number(value))


def check_architecture(config, text):
    """`FC(100) - FC(100)`, or `conv (channels-sidexside-stride) ; ... ; FC (512)` with 3x1 read as 3x3."""
    convolutions = re.findall(r"conv \((\d+)-(\d+)x\d+-(\d+)\)", text)
    dense = tuple(int(n) for n in re.findall(r"FC ?\((\d+)\)", text))
    if not convolutions:
        assert config.hidden_sizes == dense
        return
    assert config.conv_channels == tuple(int(channels) for channels, _, _ in convolutions)
    assert tuple((int(side), int(stride)) for _, side, stride in convolutions) == CONVOLUTIONS
    assert (config.conv_features,) == dense


def test_the_tables_are_complete():
    """Every algorithm is in both tables but for ACER and A2CG, and every row was understood above."""
    seen = {(suite, algo) for suite, algo, _, _ in rows()}
    assert {algo for _, algo in seen} == set(PAPER) == set(ALGORITHMS)
    assert seen == {(s, a) for s in KINDS for a in PAPER} - {("mujoco", "acer"), ("atari", "a2cg")}
    assert len(rows()) == 92


# What the tables do not say, by algorithm, observation and action: the decisions that the results rest on.
DECIDED = {
    ("p3o", "vector", "gaussian"): {
        "optimizer": "rmsprop",  # torch style: zeros at the start, ε outside the root
        "optimizer_epsilon": 1e-5,
        "rmsprop_decay": 0.99,
        "lr_schedule": "linear",
        "init_log_std": 0.0,
        "action_scale": "raw",
        "action_clip": False,
        "time_limit": "terminal",
        "kl_direction": "policy_behaviour",  # KL(π‖β)
        "kl_reduction": "sum",  # over action dimensions
        "kl_coef": "ess",
        "is_clip": "ess",
        "off_policy_entropy": False,
        "use_gae": True,
        "shared_trunk": False,
        "policy_head_gain": 0.01,
        "value_head_gain": 2**0.5,
        "grad_clip": "joint",
        "normalize_observation": True,
        "normalizer_pace": "constant",
        "normalize_reward": True,
        "schedule_steps": None,
    },
    ("p3o", "vector", "categorical"): {
        "kl_reduction": "mean",  # over actions, as the released code
        "hidden_sizes": (100, 100),
        "learning_rate": 3e-4,
        "num_steps": 64,
        "normalize_observation": True,
        "normalize_reward": True,
    },
    ("p3o", "image", "categorical"): {
        "optimizer": "rmsprop",
        "policy_head_gain": 0.01,
        "value_head_gain": 1.0,
        "grad_clip": "joint",
        "kl_direction": "policy_behaviour",
        "kl_reduction": "mean",
        "shared_trunk": True,
        "normalize_observation": False,
        "normalize_reward": False,
        "time_limit": "terminal",
    },
    ("a2c", "vector", "gaussian"): {
        "optimizer": "rmsprop_tf",
        "optimizer_epsilon": 1e-5,
        "rmsprop_decay": 0.99,
        "lr_schedule": "linear",
        "grad_clip": "joint",
        "policy_head_gain": 0.01,
        "value_head_gain": 1.0,
        "use_gae": False,
        "shared_trunk": True,
        "action_scale": "raw",
        "action_clip": False,
        "init_log_std": 0.0,
        "time_limit": "terminal",
        "normalize_observation": True,
        "normalizer_pace": "constant",
        "normalize_reward": True,
    },
    ("a2cg", "vector", "gaussian"): {
        "optimizer": "rmsprop",  # the P3O authors' own A2C
        "optimizer_epsilon": 1e-5,
        "rmsprop_decay": 0.99,
        "lr_schedule": "linear",
        "grad_clip": "joint",
        "use_gae": True,
        "gae_lambda": 0.95,
        "shared_trunk": False,
        "policy_head_gain": 0.01,
        "value_head_gain": 2**0.5,
        "time_limit": "terminal",
        "action_scale": "raw",
        "action_clip": False,
        "init_log_std": 0.0,
    },
    ("ppo", "vector", "gaussian"): {
        "optimizer": "adam_tf",
        "optimizer_epsilon": 1e-5,
        "lr_schedule": "linear",
        "grad_clip": "joint",
        "clip_value": True,
        "normalize_advantage": True,
        "shared_trunk": False,
        "policy_head_gain": 0.01,
        "value_head_gain": 1.0,
        "num_minibatches": 32,
        "clip_range": 0.2,
        "clip_schedule": "constant",
        "time_limit": "terminal",
        "action_scale": "raw",
        "init_log_std": 0.0,
    },
    ("ppo", "image", "categorical"): {"clip_range": 0.1, "clip_schedule": "linear", "shared_trunk": True},
    ("acer", "vector", "categorical"): {
        "hidden_sizes": (64, 64),  # the Atari table with a small network
        "burn_in": 10_000,
        "optimizer": "rmsprop_tf",
        "optimizer_epsilon": 1e-5,
        "rmsprop_decay": 0.99,
        "lr_schedule": "constant",
        "grad_clip": "joint",
        "policy_head_gain": 0.01,
        "value_head_gain": 1.0,
        "shared_trunk": True,
        "num_envs": 16,
        "num_steps": 20,
        "normalize_observation": True,
        "time_limit": "terminal",
    },
}


@pytest.mark.parametrize("key", DECIDED, ids="-".join)
def test_where_the_tables_are_silent(key):
    algo, *kinds = key
    config = resolved(algo, kinds)
    assert {name: getattr(config, name) for name in DECIDED[key]} == DECIDED[key]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_preset_gives_a_config_for_every_kind(algo, preset):
    for observation_kind in ("vector", "image"):
        for action_kind in ("gaussian", "categorical", "bernoulli", "multi_categorical"):
            settings = preset_settings(algo, preset, observation_kind, action_kind)
            config = make_config(ALGORITHMS[algo].config, settings)
            assert config.shared_trunk or observation_kind == "vector"
    assert preset_settings(algo, "default", "vector", "gaussian") == {}
    assert set(DEFAULT_IMAGE) == set(ALGORITHMS)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_paper_preset_leaves_nothing_to_our_defaults(algo):
    """A change of our own defaults must not move the paper's results."""
    free = {"schedule_steps", "checkpoint_every", "eval_episodes", "deterministic", "device", "replay_device"}
    without_effect = {
        "a2c": {"gae_lambda"},  # n-step returns
        "ppo": {"rmsprop_decay"},  # Adam
        "acer": {"init_log_std", "action_scale", "action_clip"},  # discrete actions
    }
    free |= without_effect.get(algo, set())
    vector, image = (set(PAPER[algo](*kinds)) for kinds in KINDS.values())
    names = set(ALGORITHMS[algo].config.__dataclass_fields__)
    assert names - vector - free <= {"conv_channels", "conv_features"}
    assert names - image - free <= {"hidden_sizes"}


def test_alternatives_can_be_set_and_differ_from_the_preset():
    for algo, assignment, doubt in paper.ALTERNATIVES:
        name, _, value = assignment.partition("=")
        assert doubt
        readings = [resolved(algo, kinds) for kinds in (*KINDS.values(), ("vector", "categorical"))]
        other = make_config(ALGORITHMS[algo].config, {name: value})
        assert any(getattr(reading, name) != getattr(other, name) for reading in readings), assignment


def test_an_unknown_preset_is_named():
    with pytest.raises(UserError, match=r"unknown preset 'papr' \(did you mean paper\?\)"):
        preset_settings("p3o", "papr", "vector", "gaussian")
