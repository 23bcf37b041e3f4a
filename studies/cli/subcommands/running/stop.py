"""``hylorada stop``: end a running study, or one of its trials, from another terminal."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from studies.cli.command import Command
from studies.cli.options import add_storage, add_study_name
from studies.cli.stored_studies import resume_line, run_command
from studies.spec.grid import cells
from studies.trials.study_folders import find_study, has_finished, stored_grid

if TYPE_CHECKING:
    from rich.console import Console

_DESCRIPTION = """\
Stop a running study from another terminal, as Ctrl-C in its own terminal does: its state is saved,
and the same `hylorada run` command resumes it. With --trial, stop only that trial.

Use it when the study runs in the background, in a batch job or on a cluster. It needs to see only
the study's folder. The stopped `hylorada run` ends with exit code 130. If the study is still
running after --wait seconds, the exit code of `stop` is 3, and the request stays.

A stopped trial ends at its next report and keeps its reports. It counts as one that ASHA has
stopped: it can't become a winner, and it does not start again. If you stop the trials of one arm
more eagerly than those of another, you bias the comparison; the report says which ones were
stopped. Runs of the later stages can't be stopped alone, because the verdict compares them in
pairs.
"""
_EXAMPLES = """\
  hylorada stop learnable_bucketing
  hylorada stop learnable_bucketing --trial fixed-0003
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_study_name(parser)
    parser.add_argument(
        "--trial", metavar="TRIAL", help="stop only this trial, such as learnable-s1-0003"
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for the study to end; default: %(default)g",
    )
    add_storage(parser)


def _run(args: argparse.Namespace, _console: "Console") -> int:
    from studies.api.running import stop_study

    if args.trial is not None:
        return _stop_trial(args)
    if stop_study(args.study, storage=args.storage, wait=args.wait):
        folder = find_study(args.storage, args.study)
        if _has_finished(folder):
            print(f"study {args.study!r} finished before it read the request")
        else:
            resume = _resume_line(args, folder)
            print(f"study {args.study!r} has stopped; its state is saved. Resume with: {resume}")
        return 0
    print(
        f"hylorada: study {args.study!r} is still running after {args.wait:g} s; it ends as soon "
        "as it reads the request",
        file=sys.stderr,
    )
    return 3


def _has_finished(folder: Path) -> bool:
    """Return whether a study, or each cell of a grid, has its final results."""
    grid = stored_grid(folder)
    parts = [folder.parent / c.study.name for c in cells(grid)] if grid else [folder]
    return all(map(has_finished, parts))


def _resume_line(args: argparse.Namespace, folder: Path) -> str:
    from studies.trials.loading import load_records

    return run_command(args) if stored_grid(folder) else resume_line(args, load_records(folder))


def _stop_trial(args: argparse.Namespace) -> int:
    from studies.api.running import stop_trial

    running = stop_trial(args.study, args.trial, storage=args.storage)
    command = run_command(args)
    later = "" if running else f", once you run `{command}`"
    print(f"{args.trial} stops at its next report{later}")
    return 0


COMMAND = Command(
    name="stop",
    summary="stop a running study, or one of its trials, from another terminal",
    description=_DESCRIPTION,
    examples=_EXAMPLES,
    add_arguments=_add_arguments,
    run=_run,
)
