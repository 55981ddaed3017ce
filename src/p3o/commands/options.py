"""Kinds of options that commands share, and what their text means."""

import json
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, arg

from p3o.errors import UserError

# what is not given by default has no default to be told
Words = Annotated[list[str], arg(metavar="KEY=VALUE ...", help_behavior_hint="")]
Number = Annotated[str, arg(metavar="N")]
NumberOrNone = Annotated[str | None, arg(metavar="N", help_behavior_hint="")]
Text = Annotated[str, arg(metavar="NAME")]
PathOrNone = Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")]
Switch = Annotated[bool, FlagCreatePairsOff, arg(help_behavior_hint="")]


def parse_seed(text: str) -> int:
    from p3o.config import parse_number

    try:
        value = int(text)  # exact, where a float would round
    except ValueError:
        number = parse_number(text, "--seed")
        value = int(number) if number == int(number) else -1
    if not 0 <= value < 2**63:
        raise UserError(f"--seed: {text!r} is not a whole number from 0 to 2^63 - 1")
    return value


def parse_value(text: str) -> Any:
    """A constructor argument: JSON where it is that (numbers, true, null, lists), True, False or None, else text."""
    words = {"True": True, "False": False, "None": None}
    if text in words:
        return words[text]
    try:
        return json.loads(text)
    except ValueError:
        return text
