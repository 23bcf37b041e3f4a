"""The study folder that a command names."""

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from studies.process.mlflow_address import shown
from studies.trials.study_folders import (
    find_study,
    is_running_again,
    require_no_grid,
    require_results,
)

if TYPE_CHECKING:
    from studies.trials.records import Record


def open_study(args: argparse.Namespace, *, grids: bool = False) -> Path:
    """Return the folder of the study that the arguments name.

    Args:
        args: Arguments of the command.
        grids: Whether the command takes a grid, too.

    Raises:
        InputError: No such study has been run, its folder is damaged, or it is a grid.
    """
    folder = find_study(args.storage, args.study)
    if not grids:
        require_no_grid(folder, args.study)
    return folder


def open_finished_study(args: argparse.Namespace) -> Path:
    """Return the folder of a study that has results, and note if these may be out of date.

    Raises:
        InputError: No such study has been run, it has not finished, or its folder is damaged.
    """
    folder = open_study(args)
    require_results(folder, args.study)
    note_running_again(folder, args.study)
    return folder


def note_running_again(folder: Path, name: str) -> None:
    """Print a note if a study has begun to run again since its results were written."""
    if is_running_again(folder):
        print(
            f"hylorada: note: study {name!r} is running again, or was interrupted since; "
            "these are its earlier results",
            file=sys.stderr,
        )


def run_command(args: argparse.Namespace) -> str:
    """Return the command line that runs or resumes the study, for users to copy."""
    return shlex.join(["hylorada", "run", args.study, *place_words(args)])


def place_words(args: argparse.Namespace) -> list[str]:
    """Return the options that say where a study is, for a command line that users can copy."""
    words = _option("--storage", args.storage, Path("mlruns"))
    return words + _option("--tracking-uri", getattr(args, "tracking_uri", None), None)


def resume_line(args: argparse.Namespace, records: "Mapping[str, Record]") -> str:
    """Return the command that resumes a stored study, for users to copy."""
    from studies.analysis.progress import resume_command

    return shlex.join([*resume_command(args.study, records), *place_words(args)])


def _option(name: str, value: object, default: object) -> list[str]:
    """Return an option as words of a command line; nothing if it has its default."""
    return [] if value == default else [name, shown(str(value))]
