"""``hylorada schema``: the JSON Schema of study files, for editors."""

import argparse
from typing import TYPE_CHECKING

from studies.api.definitions import definitions
from studies.cli.command import Command

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Print the JSON Schema (draft 2020-12) of study files, the files for --config.

Use it to have your editor explain, complete and check a study file while you write. Editors with a
YAML language server, such as VS Code with its YAML extension, read it from the file's first line:

  # yaml-language-server: $schema=study.schema.json

The schema holds each field's type, limits, default and meaning. `hylorada show --config FILE` also
checks how the fields fit together.
"""
_EXAMPLES = """\
  hylorada schema > study.schema.json
  (echo '# yaml-language-server: $schema=study.schema.json'; hylorada show texts) > study.yaml
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def _run(_args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json
    from studies.spec.schema.study_schema import study_schema

    print_json(study_schema(definitions()), indent=1)
    return 0


COMMAND = Command(
    name="schema",
    summary="print the JSON Schema of study files, with which editors complete and check them",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
