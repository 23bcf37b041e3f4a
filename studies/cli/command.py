"""What a command of the command line consists of."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Run: TypeAlias = "Callable[[argparse.Namespace, Console], int]"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command, as a module of :mod:`studies.cli.subcommands` defines it.

    ``hylorada --help`` imports all of these modules, so each imports whatever takes long only when
    its command runs.

    Attributes:
        name: what the user types.
        summary: one line for the list of commands.
        description: what the command does and when to use it.
        examples: command lines with a note each; empty for none.
        add_arguments: adds the command's options to its parser.
        run: runs the command; takes the arguments and a console on standard error, and returns the
            exit code.
        heeds_environment: whether ``MLFLOW_TRACKING_URI`` stands in for ``--tracking-uri``.
    """

    name: str
    summary: str
    description: str
    examples: str = ""
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Run
    heeds_environment: bool = False
