"""``hylorada watch``: the progress of a study from another terminal."""

import argparse
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.grids import print_grid_status
from studies.cli.options import add_storage, add_study_name
from studies.cli.stored_studies import open_study, place_words, resume_line, run_command
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.study_folders import has_finished, is_running, stored_grid

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Show the progress of a running study from any terminal that sees its folder: a live panel with the
stage, its trials and the best trial of each arm, or off a terminal a line a minute.

Use it when the study runs in the background or on a cluster. It ends when the study does. Ctrl-C
ends only the watching. Of a study that is not running, it shows the state once. Of a grid, it shows
the cell that runs.
"""
_PAUSE_S = 1.0  # between the cells of a grid


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    add_storage(parser)
    parser.set_defaults(json=False)  # read where the state of a grid is printed


def _run(args: argparse.Namespace, _console: "Console") -> int:
    folder = open_study(args, grids=True)
    try:
        if grid := stored_grid(folder):
            return _watch_grid(args, grid, folder)
        return _watch(args, folder)
    except KeyboardInterrupt:
        print(f"stopped watching; study {args.study!r} is not affected")
        return 0


def _watch_grid(args: argparse.Namespace, grid: Study, folder: Path) -> int:
    from studies.progress.watch import watch_study
    from studies.reporting.terminal import Terminal

    terminal = Terminal()
    places = [folder.parent / cell.study.name for cell in cells(grid)]
    while is_running(folder):
        for place in (p for p in places if (p / "study.json").exists() and is_running(p)):
            watch_study(place, terminal)
        time.sleep(_PAUSE_S)
    resume = run_command(args)
    return print_grid_status(grid, args, running=False, resume=resume)


def _watch(args: argparse.Namespace, folder: Path) -> int:
    from studies.analysis.progress import stage_lines
    from studies.progress.watch import watch_study
    from studies.reporting.terminal import Terminal
    from studies.trials.by_hand.requests import waiting_lines

    terminal = Terminal()
    view = watch_study(folder, terminal)
    terminal.print(view.summary())
    for line in (*stage_lines(view.study, view.records), *waiting_lines(folder)):
        print(line)
    results = shlex.join(["hylorada", "report", args.study, *place_words(args)])
    print(
        f"Finished. See the results with: {results}"
        if has_finished(folder)
        else f"Not running. Resume with: {resume_line(args, view.records)}"
    )
    return 0


COMMAND = Command(
    name="watch",
    summary="show the progress of a running study, live, from another terminal",
    description=_DESCRIPTION,
    add_arguments=_add_arguments,
    run=_run,
)
