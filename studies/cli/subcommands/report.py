"""``hylorada report``: the results of a finished study."""

import argparse
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.grids import print_grid_report
from studies.cli.options import add_json, add_storage, add_study_name
from studies.cli.stored_studies import open_finished_study, open_study
from studies.trials.study_folders import stored_grid

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Print the table and the verdict of a finished study, and the path of its report. Of a grid, print
the tables over its cells and the pooled effects.

Use it to read the results again; nothing is trained.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.analysis.results import read_results
    from studies.reporting.printed import print_results

    folder = open_study(args, grids=True)
    if grid := stored_grid(folder):
        return print_grid_report(grid, folder, args)
    folder = open_finished_study(args)
    print_results(read_results(folder / "results.json"), args.json)
    if not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


COMMAND = Command(
    name="report",
    summary="print the table and the verdict of a finished study",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
