"""The console script.

Help does not wait for imports that take seconds, and a signal during them leaves no traceback.
"""

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
    # A signal raises KeyboardInterrupt from here on, so that state is saved and reported.
    on_end(interrupt)
    guard_streams()
    args = parse()
    try:
        from studies.cli.commands import run

        return run(args)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def command() -> int:
    """Run the command line as the console script does.

    Signals that arrive after the exit code is known are ignored.

    Returns:
        The exit code.
    """
    code = main()
    ignore_ends()
    # Without this, Python collects garbage among everything it has loaded before it exits, which
    # takes two seconds after a study.
    gc.freeze()
    return code


if __name__ == "__main__":
    from hylorada_command import prefer_installed

    prefer_installed()
    sys.exit(command())
