"""``hylorada show``: all settings of a study."""

import argparse
import sys
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import add_json, add_storage, add_study
from studies.cli.requested_study import checked_study
from studies.process.terminal_text import reads_back

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Print all settings of a study as YAML, and run nothing.

Use it to see what `hylorada run` with the same options would do, or to write a file that you edit
and run with --config.
"""
_EXAMPLES = """\
  hylorada show learnable_bucketing --trials 16 > study.yaml
  hylorada run --config study.yaml
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json
    from studies.spec.plain_yaml import to_yaml

    values = checked_study(args).to_dict()
    if args.json:
        print_json(values, indent=1)
        return 0
    if values["designs"]:
        left_out = ", ".join(values["designs"])
        note = f"hylorada: note: a study file can't hold code, so {left_out} is left out"
        print(note, file=sys.stderr)
        values["designs"] = {}
    text = to_yaml(values)
    print(text if reads_back(text, sys.stdout.encoding) else to_yaml(values, escaped=True), end="")
    return 0


COMMAND = Command(
    name="show",
    summary="print all settings of a study as YAML, to edit and run with --config",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
