"""Settings: frozen dataclasses whose fields know their help sentence and their range."""

import dataclasses
import math
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from p3o.errors import UserError, nearest

C = TypeVar("C", bound="Config")
MAX_NAME = 150  # bytes of a variant: file systems take 255 for a whole name
MAX_SEEDS = 10_000  # of one list: more are a slip of the pen
MAX_COUNT = 10**12  # the same of steps: years of the fastest machine


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    length: int | None = None,
) -> Any:
    """A dataclass field with one sentence of help and the values it may take."""
    limits = {
        "help": help,
        "choices": choices,
        "minimum": minimum,
        "maximum": maximum,
        "above": above,
        "length": length,
    }
    return dataclasses.field(default=default, metadata=limits)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """What every algorithm shares. Defaults are the `default` preset for vector observations."""

    num_envs: int = setting(2, "Environments stepped side by side (K).", minimum=1, maximum=4096)
    num_steps: int = setting(64, "Steps each environment takes per iteration (T).", minimum=1, maximum=1_000_000)
    gamma: float = setting(0.99, "Discount factor.", minimum=0, maximum=1)
    learning_rate: float = setting(3e-4, "Step size at the start.", above=0, maximum=10)
    lr_schedule: str = setting("linear", "How the step size falls to schedule_steps.", choices=("linear", "constant"))
    schedule_steps: int | None = setting(
        None, "Environment steps over which schedules run; the run's length unless set.", minimum=1
    )
    optimizer: str = setting("adam", "Optimiser.", choices=("adam", "adam_tf", "rmsprop", "rmsprop_tf"))
    optimizer_epsilon: float = setting(1e-5, "Term that keeps the optimiser's denominator from zero.", above=0)
    rmsprop_decay: float = setting(0.99, "Decay of RMSprop's mean of squares.", minimum=0, maximum=1)
    max_grad_norm: float = setting(0.5, "Global norm at which gradients are clipped.", above=0)
    grad_clip: str = setting(
        "joint",
        "Clip the gradients of policy and value network by their joint norm, or each network's by its own.",
        choices=("joint", "separate"),
    )
    value_coef: float = setting(0.5, "Weight of the mean squared value error.", minimum=0)
    entropy_coef: float = setting(0.0, "Weight α of the entropy bonus.", minimum=0)
    hidden_sizes: tuple[int, ...] = setting((100, 100), "Widths of the tanh layers for vector observations.", minimum=1)
    conv_channels: tuple[int, ...] = setting(
        (32, 64, 64), "Channels of the three convolutions for images.", minimum=1, length=3
    )
    conv_features: int = setting(512, "Width of the dense layer after the convolutions.", minimum=1)
    shared_trunk: bool = setting(False, "Policy and value share all layers but their heads.")
    policy_head_gain: float = setting(0.01, "Orthogonal gain of the policy head.", minimum=0)
    value_head_gain: float = setting(1.0, "Orthogonal gain of the value head.", minimum=0)
    init_log_std: float = setting(-1.0, "Initial log standard deviation of Gaussian policies.", minimum=-20, maximum=5)
    normalize_observation: bool = setting(True, "Scale vector observations by their running mean and deviation.")
    normalizer_pace: str = setting(
        "learning_rate",
        "What a new observation counts in the running mean and deviation: as much as any other, or less as the "
        "learning rate falls.",
        choices=("constant", "learning_rate"),
    )
    normalize_reward: bool = setting(True, "Scale rewards by the running deviation of the discounted return.")
    reward_transform: str = setting(
        "raw",
        "What learning takes for a reward, before any scaling: the reward itself or its sign; scores stay raw.",
        choices=("raw", "sign"),
    )
    time_limit: str = setting(
        "bootstrap",
        "At a truncation: bootstrap from the value of the final observation, or treat it as terminal.",
        choices=("bootstrap", "terminal"),
    )
    action_scale: str = setting(
        "unit", "Box actions: the policy's [-1, 1] is mapped to the box (unit), or raw values.", choices=("unit", "raw")
    )
    action_clip: bool = setting(True, "Clip Box actions to the bounds before the environment sees them.")
    checkpoint_every: int = setting(20_000, "Environment steps between checkpoints.", minimum=1)
    eval_episodes: int = setting(10, "Episodes of each evaluation under --eval-every.", minimum=1)
    device: str = setting(
        "auto",
        "Where to learn: auto takes a GPU for images, and for vectors if an update is measured to be faster there.",
        choices=("auto", "cpu", "gpu"),
    )
    precision: str = setting(
        "float32",
        "Products of image networks: float32; tf32, a GPU's rounded float32; or bfloat16.",
        choices=("float32", "tf32", "bfloat16"),
    )
    deterministic: bool = setting(False, "On a GPU: bit-equal results at some cost in speed (a CPU always is).")

    @property
    def steps_per_iteration(self) -> int:
        return self.num_envs * self.num_steps


# What runs did before these settings were there to be set: they are in no config.json of theirs.
BEFORE = {"grad_clip": "joint", "normalizer_pace": "constant", "reward_transform": "raw"}


def _allowed(annotation: Any) -> tuple[Any, ...]:
    """The member types of a field: `float | str` -> (float, str)."""
    origin = get_origin(annotation)
    if origin is Union or (origin is not None and origin.__name__ == "UnionType"):
        return get_args(annotation)
    return (annotation,)


def parse_number(text: str, what: str) -> float:
    """`3e6`, `3_000_000` or `0.5` as a float; anything else is the user's mistake."""
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{what}: {text!r} is not a number") from None
    if not math.isfinite(value):
        raise UserError(f"{what}: {text!r} is not finite")
    return value


def parse_count(text: str, what: str) -> int:
    """A whole number of at least 1, written plainly or as `3e6`."""
    value = parse_number(str(text), what)
    if value != int(value) or value < 1:
        raise UserError(f"{what}: {text!r} is not a whole number of at least 1")
    if value > MAX_COUNT:
        raise UserError(f"{what}: {text!r} is more than {MAX_COUNT:,}")
    return int(value)


def parse_seeds(text: str, what: str = "--seeds") -> tuple[int, ...]:
    """`10` as 0 to 9; `5-9`, `3,7` and `0-2,7` as what they say."""
    if "," not in text and "-" not in text.strip("-"):
        count = parse_count(text, what)
        if count > MAX_SEEDS:
            raise UserError(f"{what}: {text!r} is more than {MAX_SEEDS:,} seeds")
        return tuple(range(count))
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = (word.strip() for word in part.partition("-"))
        last = last if "-" in part else first
        if not (first.isdecimal() and last.isdecimal()) or int(first) > int(last):
            raise UserError(f"{what}: {part.strip()!r} in {text!r} is no seed and no range such as 5-9")
        if int(last) - int(first) >= MAX_SEEDS or int(last) >= 2**63:
            raise UserError(f"{what}: {part.strip()!r} is too large")
        seeds += range(int(first), int(last) + 1)
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise UserError(f"{what}: seed {twice} is there twice in {text!r}")
    return tuple(seeds)


def check_variant(name: str, what: str = "--variant") -> str:
    if not all(c.isalnum() or c in "-_.=+" for c in name):
        raise UserError(f"{what} {name!r}: letters, digits and - _ . = + only, since it names a folder")
    if len(name.encode()) > MAX_NAME:
        raise UserError(f"{what} {name[:20]}…: too long for the name of a folder; at most {MAX_NAME} bytes")
    return name


def _convert(name: str, value: Any, annotation: Any) -> Any:
    """Bring a value from the command line, JSON or Python to the field's type, or raise a UserError."""
    allowed = _allowed(annotation)
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if type(None) in allowed:
            return None
        raise UserError(f"setting {name}: None is not allowed")
    if any(get_origin(a) is tuple for a in allowed):
        parts = value.strip("()[] ").split(",") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise UserError(f"setting {name}: {value!r} is not a list of whole numbers, as in 64,64")
        if parts == [""] and value == "":
            raise UserError(f"setting {name}: a value is missing; () is the empty list")
        return tuple(_convert(name, part, int) for part in parts if part != "")
    if bool in allowed:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        if isinstance(value, bool):
            return value
        if str(value).lower() in words:
            return words[str(value).lower()]
        raise UserError(f"setting {name}: {value!r} is neither true nor false")
    if isinstance(value, bool):
        raise UserError(f"setting {name}: {value!r} is not a number")
    if int in allowed or float in allowed:
        try:
            number = parse_number(str(value), f"setting {name}")
        except UserError:
            if str in allowed and isinstance(value, str):
                return value
            raise
        if float in allowed:
            return number
        if number != int(number):
            raise UserError(f"setting {name}: {value!r} is not a whole number")
        return int(number)
    if isinstance(value, str):
        return value
    raise UserError(f"setting {name}: {value!r} is not text")


def _check_range(name: str, value: Any, limits: Any, may_be_number: bool) -> None:
    if value is None:
        return
    if isinstance(value, str):
        if limits["choices"] and value not in limits["choices"]:
            neither = "neither a number nor" if may_be_number else "not one of"
            raise UserError(
                f"setting {name}: {value!r} is {neither} {', '.join(limits['choices'])}"
                + nearest(value, limits["choices"])
            )
        return
    if limits["length"] is not None and len(value) != limits["length"]:
        raise UserError(f"setting {name}: {limits['length']} numbers are needed, not {len(value)}")
    for number in value if isinstance(value, tuple) else (value,):
        if limits["minimum"] is not None and number < limits["minimum"]:
            raise UserError(f"setting {name}: {number:g} is below {limits['minimum']:g}")
        if limits["maximum"] is not None and number > limits["maximum"]:
            raise UserError(f"setting {name}: {number:g} is above {limits['maximum']:g}")
        if limits["above"] is not None and number <= limits["above"]:
            raise UserError(f"setting {name}: {number:g} is not above {limits['above']:g}")


def make_config(cls: type[C], *layers: dict[str, Any]) -> C:
    """Build a config from layers of overrides, the later ones winning; every value converted and checked."""
    hints = get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            if name not in fields:
                raise UserError(f"unknown setting {name!r}{nearest(name, fields)}; `p3o list presets` shows them all")
            value = _convert(name, value, hints[name])
            _check_range(name, value, fields[name].metadata, float in _allowed(hints[name]))
            values[name] = value
    return cls(**values)


def parse_assignments(words: list[str], flag: str) -> dict[str, str]:
    """`["gamma=0.98", ...]` as a dict; the last of equal keys wins."""
    result = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UserError(f"{flag}: {word!r} is not of the form key=value")
        result[key.strip().replace("-", "_")] = value.strip()
    return result


def describe(cls: type[Config]) -> list[tuple[str, Any, str, tuple[str, ...]]]:
    """(name, default, help, choices) of every setting, for listings."""
    return [(f.name, f.default, f.metadata["help"], f.metadata["choices"]) for f in dataclasses.fields(cls)]
