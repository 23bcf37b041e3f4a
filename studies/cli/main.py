"""The console script: help needs none of the imports, which take seconds; a signal during them leaves no traceback."""

import gc
import sys

from studies.cli.arguments import parse
from studies.process.signals import ignore_ends, interrupt, on_end
from studies.process.terminal_text import guard_streams


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    on_end(interrupt)  # here and later: saved, told, cleaned up
    guard_streams()
    args = parse()
    try:
        from studies.cli.commands import run

        return run(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def command() -> int:
    """The console script: once there is an exit code, what asks to end changes it no more.

    Returns:
        The exit code.
    """
    code = main()
    ignore_ends()
    gc.freeze()  # else Python looks for garbage among all that it has loaded before it ends: two seconds after a study
    return code


if __name__ == "__main__":
    from hylorada_command import prefer_installed

    prefer_installed()
    sys.exit(command())
