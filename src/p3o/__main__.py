"""`p3o` and `python -m p3o`: the command line, with Ctrl-C in hand before anything slow is imported."""

import sys
from typing import NoReturn

from p3o.signals import exit_code, interrupt_at_once


def main() -> NoReturn:
    """Entry point."""
    try:
        interrupt_at_once()
        from p3o import cli

        cli.main()
    except KeyboardInterrupt as stop:
        sys.exit(exit_code(stop))


if __name__ == "__main__":
    main()
