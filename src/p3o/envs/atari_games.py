"""Which Atari game an id and its options mean: `PongNoFrameskip-v4`, `ALE/Pong-v5`.

Both spellings get the same preprocessing (docs/atari.md); they differ in sticky actions and in the frame cap.
"""

import re
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym

from p3o.envs.quiet import quietly
from p3o.errors import UserError, extra, nearest

FRAME_SKIP = 4
NOOP_MAX = 30
MOST = 2**31 - 2  # of any whole number
MOST_NOOPS = 10_000  # a second or two of an emulator, at each start
LEAST_STEPS = 3  # of a game, in frames that are skipped at once
# What Gym had in 2019, when the paper's runs were made; ale-py registers 108,000 for these ids too.
NO_FRAMESKIP_CAPS = {"SpaceInvaders": 300_000}
NO_FRAMESKIP_CAP = 400_000
FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}  # games without a mode for one player

_ID = re.compile(
    r"(?P<ale>ALE/)?(?P<name>[A-Z][A-Za-z0-9]*?)(?P<kind>NoFrameskip|Deterministic|-ram\w*)?-v(?P<version>\d)"
)


class Game(NamedTuple):
    """A game with everything that decides how it runs."""

    rom: str
    repeat_action_probability: float = 0.0
    full_action_space: bool = False
    max_num_frames_per_episode: int = NO_FRAMESKIP_CAP
    frameskip: int = FRAME_SKIP
    noop_max: int = NOOP_MAX


OPTIONS = tuple(name for name in Game._fields if name != "rom")


def registered(env_id: str) -> dict[str, Any] | None:
    """Every option of a game as its id has it, None where the spelling is not supported."""
    match = _ID.fullmatch(_bare(env_id))
    if match is None:
        return None
    if match["ale"] and not match["kind"] and match["version"] == "5":
        own = {"repeat_action_probability": 0.25, "max_num_frames_per_episode": 108_000}
    elif not match["ale"] and match["kind"] == "NoFrameskip" and match["version"] in "04":
        cap = NO_FRAMESKIP_CAPS.get(match["name"], NO_FRAMESKIP_CAP)
        own = {"repeat_action_probability": 0.25 if match["version"] == "0" else 0.0, "max_num_frames_per_episode": cap}
    else:
        return None
    return Game._field_defaults | own


def is_atari(env_id: str) -> bool:
    """Whether an id is one of Atari's; one that others may have too (`Pong-v4`) is theirs where they registered it."""
    match = _ID.fullmatch(_bare(env_id))
    if match is None:
        return False
    if env_id in gym.registry and "ale_py" not in str(gym.registry[env_id].entry_point):
        return False
    if match["ale"] or match["kind"]:
        return True
    try:
        return match["name"] in _roms() and not _is_taken(match["name"])
    except ModuleNotFoundError:
        return False


def _is_taken(name: str) -> bool:
    """Whether another package has a task of that name (`Blackjack-v1`): a version that is not there was meant of it."""
    known = (gym.registry[env_id] for env_id in gym.registry if env_id.rpartition("-v")[0] == name)
    return any("ale_py" not in str(spec.entry_point) for spec in known)


def find_game(env_id: str, options: dict[str, Any]) -> Game:
    """The game that an Atari id means, with its options checked."""
    try:
        roms = _roms()
    except ModuleNotFoundError:
        raise UserError(f"environment {env_id!r} needs a package that is not installed: {extra('atari')}") from None
    match = _ID.fullmatch(_bare(env_id))
    assert match is not None
    name = match["name"]
    if name not in roms:
        raise UserError(f"unknown environment {env_id!r}: there is no Atari game {name!r}{nearest(name, roms)}")
    own = registered(env_id)
    if own is None:
        raise UserError(
            f"environment {env_id!r}: this spelling is not supported; use {name}NoFrameskip-v4 (as in the paper) or "
            f"ALE/{name}-v5 (sticky actions)"
        )
    game = Game(roms[name], **own | {key: _checked(env_id, key, value) for key, value in options.items()})
    if options:
        _check_lengths(env_id, game)
    return game


def _check_lengths(env_id: str, game: Game) -> None:
    """A game that is over before the player's turn would begin again for ever."""
    least = frames_of_a_start(game.rom) + game.noop_max + LEAST_STEPS * game.frameskip
    if game.max_num_frames_per_episode < least:
        raise UserError(
            f"environment {env_id!r}: option max_num_frames_per_episode: {game.max_num_frames_per_episode} leaves no "
            f"time to play; with frameskip {game.frameskip} and noop_max {game.noop_max} it is at least {least}"
        )


def _bare(env_id: str) -> str:
    """The id without ale-py's module in front; other modules have games of their own."""
    return env_id.removeprefix("ale_py:")


@cache
def _roms() -> dict[str, str]:
    """The emulator's games by the name that ids have."""
    with quietly():
        from ale_py import roms
        from ale_py.registration import rom_id_to_name

        return {rom_id_to_name(rom): rom for rom in roms.get_all_rom_ids() if rom not in FOR_TWO}


def _checked(env_id: str, key: str, value: Any) -> Any:
    where = f"environment {env_id!r}: option {key}"
    if key not in OPTIONS:
        raise UserError(f"{where} is unknown{nearest(key, OPTIONS)}; there are {', '.join(OPTIONS)}")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "full_action_space":
        if not isinstance(value, bool):
            raise UserError(f"{where}: {value!r} is neither true nor false")
        return value
    if key == "repeat_action_probability":
        if not is_number or not 0 <= value < 1:
            raise UserError(f"{where}: {value!r} is not a number of at least 0 and below 1")
        return float(value)
    least, most = (0, MOST_NOOPS) if key == "noop_max" else (1, MOST)
    if not is_number or not least <= value <= most or value != int(value):  # NaN is not in the range either
        raise UserError(f"{where}: {value!r} is not a whole number of at least {least} and at most {most}")
    return int(value)


def action_names(rom: str, is_full: bool) -> tuple[str, ...]:
    """What each action of a game does: NOOP, FIRE, ..."""
    return _cartridge(rom).all_actions if is_full else _cartridge(rom).actions


def frames_of_a_start(rom: str) -> int:
    """Frames that a game has behind it before the first no-op: the emulator presses a few buttons to start some."""
    return _cartridge(rom).start_frames


def screen(rom: str) -> tuple[int, int]:
    """Height and width of a game's picture: 210 × 160 in most games, taller in some."""
    return _cartridge(rom).screen


class _Cartridge(NamedTuple):
    """What the emulator knows of a game."""

    actions: tuple[str, ...]
    all_actions: tuple[str, ...]
    screen: tuple[int, int]
    start_frames: int  # without sticky actions, which make DoubleDunk's start longer by chance


@cache
def _cartridge(rom: str) -> _Cartridge:
    import ale_py

    with quietly():
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        ale = ale_py.ALEInterface()
        ale.setFloat("repeat_action_probability", 0.0)
        ale.loadROM(ale_py.roms.get_rom_path(rom))
        ale.reset_game()
        sets = (ale.getMinimalActionSet(), ale.getLegalActionSet())
        actions, all_actions = (tuple(action.name for action in one) for one in sets)
        height, width = ale.getScreenDims()
        return _Cartridge(actions, all_actions, (int(height), int(width)), int(ale.getEpisodeFrameNumber()))


def spellings(name: str) -> list[str]:
    """The ids that train of a game that was named without a version; none where it is no game."""
    match = _ID.fullmatch(f"{_bare(name)}-v5")
    try:
        is_game = match is not None and match["name"] in _roms()
    except ModuleNotFoundError:
        is_game = False
    if match is None or not is_game:
        return []
    return [f"{match['name']}NoFrameskip-v4", f"ALE/{match['name']}-v5"]


def names() -> list[str]:
    """All ids, in both spellings; none where the emulator is not installed."""
    try:
        roms = sorted(_roms())
    except ModuleNotFoundError:
        return []
    return [f"{name}NoFrameskip-v4" for name in roms] + [f"ALE/{name}-v5" for name in roms]
