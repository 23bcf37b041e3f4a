"""The study folder that a command names."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from hylorada import InputError, nearest
from studies.files.folder_files import stored_study
from studies.spec.grid import cells
from studies.spec.study import Study
from studies.trials.study_folders import (
    find_study,
    is_running_again,
    require_results,
    stored_names,
    study_folder,
)


def stored_grid(folder: Path) -> Study | None:
    """Return the grid that a study's folder holds; None for an ordinary study."""
    try:
        values = stored_study(folder / "study.json")
    except InputError:  # a damaged file is reported where it is used
        return None
    return Study.from_dict(values) if values["grid"] else None


def open_study(args: argparse.Namespace, *, grids: bool = False) -> Path:
    """Return the folder of the study that the arguments name.

    Args:
        args: Arguments of the command.
        grids: Whether the command takes a grid, too.

    Raises:
        InputError: No such study has been run, its folder is damaged, or it is a grid.
    """
    folder = find_study(args.storage, args.study)
    if not grids and (grid := stored_grid(folder)):
        listed = ", ".join(cell.study.name for cell in cells(grid))
        raise InputError(f"study {args.study!r} is a grid; name one of its cells: {listed}")
    return folder


def named_studies(names: Sequence[str], storage: Path) -> list[Path]:
    """Return the folders of the studies that a user names; a grid stands for its cells.

    Args:
        names: Names of studies in the storage folder, or folders of studies anywhere.
        storage: Storage folder.

    Raises:
        InputError: It names each study that does not exist.
    """
    found = {name: _named_study(name, storage) for name in names}
    known = stored_names(storage)
    hints = {name: nearest(name, known) if known else "there is none" for name in names}
    if lost := [name for name in names if found[name] is None]:
        raise InputError([f"no study {name!r} has been run; {hints[name]}" for name in lost])
    folders: list[Path] = []
    for folder in (found[name] for name in names):
        assert folder is not None
        grid = stored_grid(folder)
        folders += [folder.parent / c.study.name for c in cells(grid)] if grid else [folder]
    return folders


def _named_study(name: str, storage: Path) -> Path | None:
    elsewhere = Path(os.path.expanduser(name))
    is_study = os.path.exists(elsewhere / "study.json")
    return study_folder(storage, name) or (elsewhere if is_study else None)


def open_finished_study(args: argparse.Namespace) -> Path:
    """Return the folder of a study that has results, and note if these may be out of date.

    Raises:
        InputError: No such study has been run, it has not finished, or its folder is damaged.
    """
    folder = open_study(args)
    require_results(folder, args.study)
    if is_running_again(folder):
        print(
            f"hylorada: note: study {args.study!r} is running again, or was interrupted since; "
            "these are its earlier results",
            file=sys.stderr,
        )
    return folder
