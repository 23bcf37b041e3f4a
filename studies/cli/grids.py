"""What commands do for a grid: run it, print its report, and tell how far its cells have come."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.cli.options import run_options
from studies.cli.stored_studies import note_running_again, run_command
from studies.cli.study_runs import print_places, run_or_say_why
from studies.files.folder_files import stored_study
from studies.process.options import Options
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.study_folders import has_finished, is_running

if TYPE_CHECKING:
    from studies.analysis.cells.across import Across


def run_grid_and_print(
    study: Study, args: argparse.Namespace, run: "Callable[[Options], Across]"
) -> int:
    """Run a grid and print its results.

    Args:
        study: the grid to run.
        args: arguments of the command.
        run: trains the cells.

    Returns:
        The exit code.
    """
    from studies.reporting.cells.report import print_across
    from studies.reporting.printed import printing, tell_failures

    options = run_options(args)
    result = run_or_say_why(study, options, run)
    if isinstance(result, int):
        return result

    def show() -> None:
        print_across(result, args.json)
        print_places(options.study_folder(study.name), args)

    printing(show)
    crashed = [tell_failures(options.study_folder(cell.study)) for cell in result.cells]
    return 3 if any(crashed) or (study.comparisons and not result.comparisons) else 0


def print_grid_report(study: Study, folder: Path, args: argparse.Namespace) -> int:
    """Print the tables and findings of a grid that has been run.

    A note names each cell that is running again. If some cells have not finished, how far each cell
    has come is printed instead.

    Returns:
        The exit code.

    Raises:
        InputError: the files of a cell are damaged.
    """
    from studies.reporting.cells.report import print_across
    from studies.runner.cell_reports import report_grid

    results = [folder.parent / c.study.name / "results.json" for c in cells(study)]
    ended = sum(path.exists() for path in results)
    if ended < len(results):
        return _print_partly(study, args, ended, running=is_running(folder))
    result = report_grid(study, Options(storage=args.storage))
    for cell in result.cells:
        note_running_again(folder.parent / cell.study, cell.study)
    print_across(result, args.json)
    if not args.json and (folder / "report.html").exists():
        print(f"report: {folder / 'report.html'}")
    return 0


def _print_partly(study: Study, args: argparse.Namespace, ended: int, *, running: bool) -> int:
    """Print how far each cell of an unfinished grid has come."""
    from studies.reporting.printed import print_json

    if args.json:
        print_json(
            {"partial": True, "running": running, "cells": _cell_states(study, args.storage)}
        )
        return 0
    print(f"PARTIAL: grid {study.name!r} has finished {ended} of {len(cells(study))} cells.")
    if ended:
        print("`hylorada report CELL` prints the results of a finished cell.")
    return print_grid_status(study, args, running=running, resume=run_command(args))


def print_grid_status(study: Study, args: argparse.Namespace, *, running: bool, resume: str) -> int:
    """Print how far each cell of a grid has come.

    Args:
        study: the grid.
        args: arguments of the command.
        running: whether a process runs it now.
        resume: the command that resumes it.

    Returns:
        The exit code.
    """
    from studies.reporting.printed import print_json

    states = _cell_states(study, args.storage)
    if args.json:
        print_json(states, indent=1)
        return 0
    for state in states:
        print(f"{state['study']} ({state['cell']}): {state['state']}")
        for line in state["stages"]:
            print(f"  {line}")
    if not running and any(state["state"] != "finished" for state in states):
        print(f"Not running. Resume with: {resume}")
    return 0


def _cell_states(study: Study, storage: Path) -> list[dict[str, Any]]:
    from studies.analysis.progress import stage_lines
    from studies.trials.loading import load_records

    states = []
    for cell in cells(study):
        folder = storage / "studies" / cell.study.name
        state, stages = "not begun", list[str]()
        if (folder / "study.json").exists():
            state = "finished" if has_finished(folder) else "unfinished"
            stored = Study.from_dict(stored_study(folder / "study.json"))
            stages = stage_lines(stored, load_records(folder))
        states.append(
            {"study": cell.study.name, "cell": cell.label, "state": state, "stages": stages}
        )
    return states
