"""The command line: `p3o train ENV`, and what comes after it."""

import contextlib
import dataclasses
import errno
import io
import os
import re
import sys
from typing import Any, NoReturn

import tyro

from p3o.commands import COMMANDS, Command, Commands
from p3o.errors import RunStopped, UserError, is_out_of_memory, nearest, out_of_memory
from p3o.signals import exit_code, interrupt_at_once

WORD_FLAGS = ("--set", "--env-set")  # take key=value words, and may be given more than once
LIST_FLAGS = ("--envs", "--algos")  # take names, and may be given more than once
# what a file system says of places that the user named; anything else is worth a traceback
REFUSALS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)


def parse(arguments: list[str]) -> Command:
    """The command, or a UserError with the first thing that is wrong; --help prints and exits."""
    if not arguments:
        arguments = ["--help"]
    if arguments == ["--version"]:
        from p3o import __version__

        print(f"p3o {__version__}")
        raise SystemExit(0)
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(
                Commands,
                prog="p3o",
                description="P3O and its baselines: train, resume, evaluate, film, sweep, reproduce, report.",
                args=gather_words(arguments),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_first_complaint(errors.getvalue(), arguments)) from None


def gather_words(arguments: list[str]) -> list[str]:
    """`--set a=1 --set b=2` as `--set a=1 b=2`: of a repeated option tyro would keep the last and drop the others."""
    rest: list[str] = []
    gathered: dict[str, list[str]] = {}
    flag = None
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for word in arguments[:end]:
        name, equals, value = word.partition("=")
        if name in WORD_FLAGS + LIST_FLAGS:
            flag = name
            gathered.setdefault(flag, []).extend([value] if equals else [])
        elif flag and not word.startswith("-") and (flag in LIST_FLAGS or "=" in word or not gathered[flag]):
            gathered[flag].append(word)
        else:
            flag = None
            rest.append(word)
    for name, words in gathered.items():
        if not words:
            raise UserError(f"{name}: {'a name' if name in LIST_FLAGS else 'key=value'} is missing")
        rest += [name, *words]
    return rest + arguments[end:]


def _is_required(field: Any) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _first_complaint(text: str, arguments: list[str]) -> str:
    """tyro's box of several lines as one."""
    commands = tuple(COMMANDS)
    if arguments[0] not in commands and not arguments[0].startswith("-"):
        return f"unknown command {arguments[0]!r}{nearest(arguments[0], commands)}; there are {', '.join(commands)}"
    lines = [line.strip("│| ") for line in text.splitlines()[1:]]  # the first is the box's title
    said = " ".join(line for line in lines if line.strip("╭╮╰╯─+- "))
    said = re.split(r" Perhaps you meant| Arguments similar to| Available subcommands| For full helptext", said)[0]
    unknown = re.match(r"Unrecognized (?:or misplaced )?options: (\S*[^\s,])", said)
    if unknown and arguments[0] in commands:
        fields = dataclasses.fields(COMMANDS[arguments[0]])
        options = [f.name.replace("_", "-") for f in fields if not _is_required(f)]
        word = unknown[1]
        if "--" in arguments and word.lstrip("-") in options:
            return f"{word} stands after --, where nothing is an option; put it before"
        hint = nearest(word.lstrip("-"), options, "--") if word.startswith("-") else ""
        return f"{arguments[0]} does not know {word!r}{hint}; `p3o {arguments[0]} --help` shows what it takes"
    missing = re.match(r"Missing from p3o \w+: (\S+)", said)
    if missing:
        return f"{arguments[0]} needs {missing[1]}; `p3o {arguments[0]} --help` shows what it takes"
    return said or f"cannot understand {' '.join(arguments)}"


def main() -> NoReturn:
    """Entry point: user errors are one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.encoding.lower().startswith("utf"):
        sys.stdout.reconfigure(errors="backslashreplace")  # a ± that cannot be written is no reason to fail
    try:
        code = parse(sys.argv[1:]).run()
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
    except UserError as error:
        print(f"p3o: {error}", file=sys.stderr)
        code = 2
    except RunStopped as error:
        print(f"p3o: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt as stop:
        goes_on = sys.argv[1:2] in (["train"], ["resume"], ["sweep"], ["reproduce"])
        print("p3o: stopped at once" + "; what a run folder holds goes on with `p3o resume`" * goes_on, file=sys.stderr)
        code = exit_code(stop)
    except BrokenPipeError:  # the reader of a pipe has left; Python's own flush at the end is to find no pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 1
    except OSError as error:
        if error.errno not in REFUSALS or error.filename is None:
            raise
        print(f"p3o: {error.filename}: {error.strerror}", file=sys.stderr)
        code = 2
    except Exception as error:
        if not is_out_of_memory(error):  # a run under way says it itself
            raise
        print(f"p3o: {out_of_memory(error)}", file=sys.stderr)
        code = 1
    sys.exit(code)


if __name__ == "__main__":
    interrupt_at_once()
    main()
