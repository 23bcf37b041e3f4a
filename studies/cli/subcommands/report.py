"""``hylorada report``: the results of a study, or what there is of them before its end."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.grids import print_grid_report
from studies.cli.options import add_json, add_storage, add_study_name
from studies.cli.stored_studies import open_finished_study, open_study, resume_line
from studies.files.folder_files import stored_study
from studies.spec.study import Study
from studies.trials.study_folders import is_running, is_running_again, stored_grid

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Print the table and the verdict of a finished study, and the path of its report. Of a grid, print
the tables over its cells and the pooled effects.

Use it to read the results again; nothing is trained. Before the end of a study, also while it runs,
it prints a partial report: the best trial of each arm and search by validation loss, and what is
still missing. There is no verdict then, because the test split is compared once, at the end. With
--json, "partial" is true until the study has reached its end.
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
    if not (folder / "results.json").exists():
        return _report_partly(args, folder)
    folder = open_finished_study(args)
    results = read_results(folder / "results.json")
    print_results(results, as_json=args.json, running_again=is_running_again(folder))
    if not args.json:
        print(f"report: {folder / 'report.html'}")
    return 0


def _report_partly(args: argparse.Namespace, folder: Path) -> int:
    """Print what a study that has not finished has found so far."""
    from studies.analysis.notes import users_choices
    from studies.analysis.progress import partial_results
    from studies.reporting.partial_report import print_partial
    from studies.reporting.printed import print_json
    from studies.trials.loading import load_records

    running = is_running(folder)  # before the files are read
    study = Study.from_dict(stored_study(folder / "study.json"))
    records = load_records(folder)
    partial = partial_results(study, records, users_choices(study, records))
    if args.json:
        print_json({**partial.to_dict(), "running": running}, indent=1)
        return 0
    print_partial(study, partial)
    resume = f"Not running. Resume with: {resume_line(args, records)}"
    print("The study is running." if running else resume)
    return 0


COMMAND = Command(
    name="report",
    summary="print the table and the verdict of a study; before its end, a partial report",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
