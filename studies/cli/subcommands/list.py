"""``hylorada list``: study definitions, and the studies in the storage folder."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from studies.api.definitions import definitions
from studies.cli.command import Command
from studies.cli.options import add_json, add_storage
from studies.files.folder_files import require_readable
from studies.trials.study_folders import require_folders, stored_names

if TYPE_CHECKING:
    from rich.console import Console

_STUDIES = Path(__file__).parents[2]
_DESCRIPTION = """\
List the study definitions that you can run, and the studies in the storage folder.

Use it to find the name that the other commands take, and the examples to start your own from.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json

    descriptions = {name: known.description for name, known in definitions().items()}
    require_readable(args.storage, args.storage / "studies")
    require_folders(args.storage)
    names = stored_names(args.storage)
    if args.json:
        print_json({"definitions": descriptions, "studies": names})
        return 0
    print("definitions:")
    for name, description in descriptions.items():
        print(f"  {name:24} {description}")
    print(f"studies in {args.storage}:" + ("" if names else " none"))
    for name in names:
        print(f"  {name}")
    print(f"examples to copy: {_STUDIES / 'examples'}")
    print(f"files for clusters: {_STUDIES / 'clusters'}")
    return 0


COMMAND = Command(
    name="list",
    summary="list study definitions, and the studies in the storage folder",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
