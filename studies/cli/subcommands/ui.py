"""``hylorada ui``: the MLflow UI for the studies in a storage folder."""

import argparse
from typing import TYPE_CHECKING

from hylorada import InputError
from studies.cli.command import Command
from studies.cli.options import add_storage
from studies.process.options import WANDB

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Serve the MLflow UI with all trials, curves and files of your studies, until Ctrl-C.

With the name of a study, the printed addresses lead to its trials and to its answer.
Use it to look into single trials; the answer of a study is in its report.html, too.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study", nargs="?", metavar="STUDY", help="name of a study that has been run"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=5000,
        metavar="PORT",
        help="port to listen on; default: %(default)s",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="HOST",
        help="address to listen on; default: %(default)s (this machine only)",
    )
    add_storage(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    if (args.tracking_uri or "").startswith(WANDB):
        raise InputError(f"{args.tracking_uri}: W&B has its own web UI: open it in a browser")
    from studies.tracking.page import serve_page

    return serve_page(args)


COMMAND = Command(
    name="ui",
    summary="serve the MLflow UI with the trials of all studies, on this machine",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
