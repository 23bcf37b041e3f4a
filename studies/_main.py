"""The console script: help needs none of the imports, which take seconds; a signal during them leaves no traceback."""

import signal
import sys

from ._arguments import parse


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, here and later: saved, told, cleaned up
    args = parse()
    try:
        from ._cli import run

        return run(args)
    except KeyboardInterrupt:
        print("interrupted; nothing has been started", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
