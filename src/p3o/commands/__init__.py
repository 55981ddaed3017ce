"""What each command of `p3o` takes and does; `p3o.cli` reads the words and calls them."""

from typing import Annotated, Protocol

from tyro.conf import subcommand

from p3o.commands.many_runs import Report, Reproduce, Sweep
from p3o.commands.one_run import Eval, Resume, Train, Video
from p3o.commands.survey import Bench, List


class Command(Protocol):
    def run(self) -> int: ...


COMMANDS = {
    "train": Train,
    "resume": Resume,
    "eval": Eval,
    "video": Video,
    "sweep": Sweep,
    "reproduce": Reproduce,
    "report": Report,
    "bench": Bench,
    "list": List,
}
Commands = (
    Annotated[Train, subcommand("train")]
    | Annotated[Resume, subcommand("resume")]
    | Annotated[Eval, subcommand("eval")]
    | Annotated[Video, subcommand("video")]
    | Annotated[Sweep, subcommand("sweep")]
    | Annotated[Reproduce, subcommand("reproduce")]
    | Annotated[Report, subcommand("report")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[List, subcommand("list")]
)
