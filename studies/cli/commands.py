"""The command line: reads and runs one command, and turns errors into messages and exit codes."""

import argparse
import errno
import sys
from collections.abc import Sequence

from hylorada import InputError
from studies.cli.arguments import COMMANDS, parse
from studies.process.environment import prepare_environment
from studies.process.errors import StudyStopped, is_storage_error
from studies.process.mlflow_address import heed_environment
from studies.process.terminal_text import guarded_streams, silence
from studies.reporting.terminal import Terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Read and run one command.

    Args:
        arguments: words after the program's name; None takes those of this process.

    Returns:
        The exit code.
    """
    with guarded_streams():
        return run(parse(arguments))


def run(args: argparse.Namespace) -> int:
    """Run a command whose arguments have been read.

    Returns:
        The exit code.
    """
    prepare_environment()
    command = COMMANDS[args.command]
    try:
        if command.heeds_environment:
            args.tracking_uri = heed_environment(args.tracking_uri)
        code = command.run(args, Terminal(stderr=True))
        sys.stdout.flush()  # an error here can still be reported
    except InputError as error:
        for problem in dict.fromkeys(error.problems):
            print(f"hylorada: {problem}", file=sys.stderr)
        return 2
    except StudyStopped as error:
        print(f"hylorada: {error}", file=sys.stderr)
        return 3
    except BrokenPipeError:
        silence(sys.stdout)
        return 0
    except OSError as error:
        return _report_storage(error)
    return code


def _report_storage(error: OSError) -> int:
    """Report a file that can't be used, or an output that can't be written.

    Returns:
        The exit code: 2 if the user named a wrong path, 3 if the disk or share is at fault.

    Raises:
        OSError: The error is neither; it is a bug.
    """
    is_users = isinstance(error, PermissionError) or error.errno == errno.ENAMETOOLONG
    if not (is_users or is_storage_error(error)):
        raise error
    if error.filename is not None:
        print(f"hylorada: {error.filename} can't be used: {error.strerror}", file=sys.stderr)
        return 2 if is_users else 3
    silence(sys.stdout)
    print(f"hylorada: the output can't be written: {error.strerror}", file=sys.stderr)
    return 3
