"""``hylorada status``: how far a study has come."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.grids import print_grid_status
from studies.cli.options import add_json, add_storage, add_study_name
from studies.cli.stored_studies import open_study, resume_line, run_command
from studies.files.folder_files import stored_plan, stored_study
from studies.process.options import default_uri
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.study_folders import has_finished, is_running, stored_grid

if TYPE_CHECKING:
    from rich.console import Console

    from studies.trials.records import Record

_DESCRIPTION = """\
Print the trials of a study and how far each stage has come; if it isn't running, print the command
that resumes it. Of a grid, print how far each cell has come.

Use it while a study runs, or after it was interrupted. It also ends MLflow runs that a killed
process has left open.
"""
_JSON_FIELDS = ("name", "arm", "stage", "state", "reason", "step", "nll", "restarts", "params")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    add_storage(parser)
    add_json(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.reporting.printed import print_json
    from studies.trials.by_hand.requests import waiting_lines
    from studies.trials.integrity import incomplete_runs
    from studies.trials.loading import database_fault, load_records

    folder = open_study(args, grids=True)
    if grid := stored_grid(folder):
        return _run_of_grid(args, grid, folder)
    study = Study.from_dict(stored_study(folder / "study.json"))
    unfinished = not has_finished(folder)
    # This comes first, because a running process changes what is read next.
    running = unfinished and is_running(folder)
    records = load_records(folder)
    if fault := database_fault(folder, records):
        print(f"hylorada: note: {fault}", file=sys.stderr)
    for name, loss in () if running else incomplete_runs(folder, study, records):
        print(f"hylorada: note: {loss}; `{run_command(args)}` trains {name} again", file=sys.stderr)
    if unfinished and not running:
        _close_abandoned(args, args.study, folder)
    if args.json:
        values = [{f: getattr(r, f) for f in _JSON_FIELDS} for r in records.values()]
        print_json(values, indent=1)
    else:
        _print_status(args, study, records, resumable=unfinished and not running)
        if running and not records:
            print("No trial has begun: the arms are checked on the base first.")
        if not running:
            _print_plan(args, folder)
        for line in waiting_lines(folder):
            print(line)
    return 0


def _print_plan(args: argparse.Namespace, folder: Path) -> None:
    """Print what a time limit has left out."""
    if plan := stored_plan(folder / "study.json"):
        counts = " and ".join(f"{count} {name}" for name, count in plan.items())
        command = run_command(args)
        print(f"Kept small by a time limit. To continue to {counts}: {command}")


def _print_status(
    args: argparse.Namespace, study: Study, records: "Mapping[str, Record]", *, resumable: bool
) -> None:
    from studies.analysis.progress import stage_lines
    from studies.reporting.tables import searched_sheet
    from studies.reporting.terminal import Drawing, Terminal

    Terminal().print(Drawing(searched_sheet(records, study)))
    for line in stage_lines(study, records):
        print(line)
    if resumable:
        print(f"Not running. Resume with: {resume_line(args, records)}")
    if restarts := [r.restarts for r in records.values() if r.restarts]:
        print(
            f"{sum(restarts)} restart{'s' * (sum(restarts) > 1)} in {len(restarts)} "
            f"trial{'s' * (len(restarts) > 1)} that lost their process or machine"
        )


def _run_of_grid(args: argparse.Namespace, grid: Study, folder: Path) -> int:
    from studies.trials.records import OPEN

    running = is_running(folder)
    for cell in cells(grid):
        of_cell = folder.parent / cell.study.name
        if (of_cell / OPEN).exists():
            _close_abandoned(args, cell.study.name, of_cell)
    resume = run_command(args)
    return print_grid_status(grid, args, running=running, resume=resume)


def _close_abandoned(args: argparse.Namespace, name: str, folder: Path) -> None:
    """End the MLflow runs that a killed process could not end, and say how many there were."""
    from studies.tracking.stored_runs import may_have_running
    from studies.trials.records import read_id

    own = default_uri(args.storage)
    uri, study_id = args.tracking_uri or own, read_id(folder)
    if study_id is None or (uri == own and not may_have_running(args.storage, study_id)):
        return
    from studies.tracking.services import reconcile  # imports MLflow, which takes seconds

    if message := reconcile(uri, name, folder):
        print(f"hylorada: {message}", file=sys.stderr)


COMMAND = Command(
    name="status",
    summary="print how far a study has come, and the command that resumes it",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
    heeds_environment=True,
)
