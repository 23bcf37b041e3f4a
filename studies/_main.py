"""The console script: help needs none of the imports, which take seconds; a signal during them leaves no traceback."""

import sys

from ._arguments import parse
from ._signals import interrupt, on_end


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    on_end(interrupt)  # here and later: saved, told, cleaned up
    args = parse()
    try:
        from ._cli import run

        return run(args)
    except KeyboardInterrupt:
        print("interrupted; nothing has been started", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
