"""The console script: Ctrl-C or SIGTERM during the imports, which take seconds, end without a traceback too."""

import signal
import sys


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, here and later: saved, told, cleaned up
    try:
        from ._cli import main as run

        return run()
    except KeyboardInterrupt:
        print("interrupted; nothing has been started", file=sys.stderr)
        return 130
