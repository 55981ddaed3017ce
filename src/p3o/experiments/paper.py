"""The paper's settings, with the table each comes from; a test holds them equal to reference/*.csv.

`p3o train ENV --preset paper` uses these. Where the tables are silent the authors' released code decides, and where
that is silent too (continuous actions) the choice is ours: see docs/decisions.md.
"""

from typing import Any, NamedTuple

# Table "P3O hyper-parameters for MuJoCo tasks"; FC(100)-FC(100), two environments, Poisson(3).
P3O_VECTOR: dict[str, Any] = {
    "hidden_sizes": (100, 100),
    "learning_rate": 3e-4,
    "replay_size": 5_000,
    "num_envs": 2,
    "num_steps": 64,
    "entropy_coef": 0.0,
    "off_policy_updates": 3.0,
    "burn_in": 2_500,
    "replay_samples": 15,
    "gamma": 0.99,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "gae_lambda": 0.95,
}

# Table "P3O hyper-parameters on Atari benchmark"; the convolutions of Table "A2C hyper-parameters on Atari benchmark".
P3O_IMAGE: dict[str, Any] = {
    "conv_channels": (32, 64, 64),
    "conv_features": 512,
    "learning_rate": 7e-4,
    "replay_size": 50_000,
    "num_envs": 16,
    "num_steps": 16,
    "entropy_coef": 0.01,
    "off_policy_updates": 2.0,
    "burn_in": 15_000,
    "replay_samples": 6,
    "gamma": 0.99,
    "value_coef": 0.5,
    "max_grad_norm": 0.5,
    "gae_lambda": 0.95,
}

# The authors' released code: torch-style RMSprop, linear decay, no rescaling or clipping, `done` at the time limit,
# separate tanh trunks for vectors and one trunk for images, orthogonal gains.
P3O_CODE: dict[str, Any] = {
    "optimizer": "rmsprop",
    "optimizer_epsilon": 1e-5,
    "rmsprop_decay": 0.99,
    "lr_schedule": "linear",
    "time_limit": "terminal",
    "action_scale": "raw",
    "action_clip": False,
    "init_log_std": 0.0,
    "policy_head_gain": 0.01,
    "use_gae": True,
    "kl_coef": "ess",
    "is_clip": "ess",
    "kl_direction": "policy_behaviour",
    "off_policy_entropy": False,
}


def p3o(observation_kind: str, action_kind: str) -> dict[str, Any]:
    """P3O as the paper ran it."""
    is_image = observation_kind == "image"
    return {
        **P3O_CODE,
        **(P3O_IMAGE if is_image else P3O_VECTOR),
        "shared_trunk": is_image,
        "value_head_gain": 1.0 if is_image else 2**0.5,
        "normalize_observation": not is_image,
        "normalize_reward": not is_image,
        # the released code divides the KL by the number of actions; for Gaussians the true KL is kept
        "kl_reduction": "sum" if action_kind == "gaussian" else "mean",
    }


class Alternative(NamedTuple):
    """A doubtful entry of the paper's tables or code, and the setting that selects the other reading."""

    algo: str
    setting: str
    doubt: str


ALTERNATIVES = (
    Alternative("p3o", "conv_channels=32,64,32", "the released code has 32 channels in the third convolution"),
    Alternative("p3o", "schedule_steps=80000000", "the released Atari command decays over 80M steps, not the 28M run"),
    Alternative("p3o", "kl_direction=behaviour_policy", "the equations print KL(β‖π), the text and code use KL(π‖β)"),
    Alternative("p3o", "kl_reduction=mean", "Gaussian KL averaged over dimensions, as the discrete code averages"),
    Alternative("p3o", "kl_reduction=sum", "the true KL for discrete actions, not divided by their number"),
    Alternative("p3o", "optimizer=adam", "only RMSprop is in the released code; MuJoCo runs are not in it"),
    Alternative("p3o", "policy_head_gain=1.0", "a possible ancestor initialises the Gaussian mean head with gain 1"),
)
