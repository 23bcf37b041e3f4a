"""The console script: Ctrl-C during the imports, which take seconds, ends without a traceback too."""

import sys


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    try:
        from ._cli import main as run

        return run()
    except KeyboardInterrupt:
        print("interrupted; nothing has been started", file=sys.stderr)
        return 130
