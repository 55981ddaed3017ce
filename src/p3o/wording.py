"""How numbers and the columns of updates.csv are spoken of: on the terminal, in reports, in tables."""

import math
from typing import NamedTuple


class Metric(NamedTuple):
    """How to speak about one column of updates.csv."""

    symbol: str  # short enough for a terminal
    label: str
    meaning: str  # one sentence for a newcomer


METRICS = {  # in the order in which they are shown
    "ess": Metric(
        "ESS",
        "Effective sample size",
        "How much replayed data are worth next to fresh data: 1 is as good as fresh, near 0 is next to nothing.",
    ),
    "kl_coef": Metric(
        "λ",
        "KL weight λ",
        "How strongly the policy is held to the one that collected the replayed data; P3O sets it to 1 − ESS.",
    ),
    "is_clip": Metric(
        "c",
        "Importance clip c",
        "The largest weight that one replayed sample can get; P3O sets it to the ESS.",
    ),
    "kl": Metric("KL", "KL divergence", "How far the policy has moved from the one that collected the data."),
    "entropy": Metric("entropy", "Entropy", "How random the actions are; it falls as the policy makes up its mind."),
    "policy_loss": Metric(
        "policy loss", "Policy loss", "The policy-gradient objective on fresh data; its sign and size say little alone."
    ),
    "off_policy_loss": Metric(
        "off-policy loss", "Off-policy loss", "The same objective on replayed data, weighted by the clipped ratios."
    ),
    "value_loss": Metric("value loss", "Value loss", "The squared error of the critic's prediction of the return."),
    "ratio_mean": Metric(
        "mean ratio", "Mean importance ratio", "The average of π/β over replayed actions; it is 1 in expectation."
    ),
    "ratio_max": Metric(
        "max ratio", "Largest importance ratio", "The largest π/β before clipping; large values pull the ESS down."
    ),
    "off_policy_updates": Metric(
        "off-policy updates", "Off-policy updates", "How many gradient steps on replayed data each interval took."
    ),
    "clip_fraction": Metric(
        "clip fraction", "Clipped fraction", "The share of samples whose ratio was outside PPO's trust interval."
    ),
    "bias_correction_loss": Metric(
        "bias corr. loss", "Bias-correction loss", "ACER's second term: what truncating the ratios left out."
    ),
    "bias_correction_fraction": Metric(
        "bias corr. share", "Bias-corrected fraction", "The share of actions for which ACER's correction was active."
    ),
    "grad_norm": Metric(
        "grad norm", "Gradient norm", "The global length of the gradient before clipping; spikes mean unstable steps."
    ),
    "learning_rate": Metric("learning rate", "Learning rate", "The step size of the optimiser, after any decay."),
    "steps_per_second": Metric(
        "steps/s", "Steps per second", "Environment steps per second of training, all environments together."
    ),
}


def metric(name: str) -> Metric:
    """The names of a column, made from the column's own name where it is not a known one."""
    plain = name.replace("_", " ")
    return METRICS.get(name, Metric(plain, plain[:1].upper() + plain[1:], f"The column {name} of updates.csv."))


def format_number(value: float, digits: int = 3) -> str:
    """A number to be read: `digits` significant below 100, thousands separators above, – for NaN."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    size = abs(value)
    if value == int(value) and size < 1e15:
        return f"{int(value):,}"
    if size >= 100:
        return f"{value:,.1f}" if size < 100_000 else f"{value:,.0f}"
    if size < 1e-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{max(digits - 1 - math.floor(math.log10(size)), 0)}f}"


def format_return(value: float) -> str:
    """A return or a mean of returns: one decimal, two below ten."""
    return format_number(value) if not math.isfinite(value) else _fixed(value, 1 if abs(value) >= 10 else 2)


def format_share(value: float) -> str:
    """A probability or a normalised score: two decimals."""
    return _fixed(value, 2)


def _fixed(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:,.{digits}f}"  # no -0.00


def format_clock(seconds: float) -> str:
    """A duration as on a watch: 0:40, 12:05, 3:07:00."""
    if not math.isfinite(seconds):
        return "–"
    minutes, rest = divmod(max(round(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
