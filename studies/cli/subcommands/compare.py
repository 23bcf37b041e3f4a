"""``hylorada compare``: the same arms over several studies."""

import argparse
from typing import TYPE_CHECKING

from hylorada import InputError
from studies.cli.command import Command
from studies.cli.options import add_json, add_storage, path
from studies.cli.stored_studies import note_running_again
from studies.files.paths import file_problem
from studies.trials.study_folders import named_studies

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Compare the same arms over several finished studies: each study's change, the change pooled over
studies with its heterogeneity, and whether their learned boundaries agree.

Use it for studies that were run apart, such as on two texts or two bases; a study with a grid does
it for its own cells. Changes are pooled over all studies. Test PPL stands side by side only if the
studies share the test text and the base, and bits per byte if they share the test text.
"""
_EXAMPLES = """\
  hylorada compare first second third
  hylorada compare texts mlruns/studies/mine --output compared.html
      a grid counts as its cells, and a study may be given as a folder
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "study",
        nargs="+",
        metavar="STUDY",
        help="names or folders of two or more studies that have been run",
    )
    parser.add_argument(
        "--output", type=path, metavar="FILE", help="write the report with its figures as HTML"
    )
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.cells.report import print_across, write_across
    from studies.runner.cell_reports import compare_studies

    if args.output is not None and (problem := file_problem("output", args.output)):
        raise InputError(problem)
    result, cells = compare_studies(named_studies(args.study, args.storage))
    for cell in cells:
        note_running_again(cell.folder, cell.folder.name)
    if args.output is not None:
        write_across(result, cells, args.output)
    print_across(result, args.json)
    if args.output is not None and not args.json:
        print(f"report: {args.output}")
    return 0


COMMAND = Command(
    name="compare",
    summary="compare the same arms over several studies, and pool them",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
