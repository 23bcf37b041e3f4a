"""The folders of studies that have been run."""

import argparse
import os
import sys
from pathlib import Path

from hylorada import InputError, nearest
from studies.files.folder_files import require_kinds, require_readable


def study_folder(storage: Path, name: str) -> Path | None:
    """Return the folder of the study of this name; None if none has been run."""
    folder = storage / "studies" / name
    require_readable(storage, folder.parent, folder)
    inside = name not in ("", ".", "..") and Path(name).name == name
    return folder if inside and os.path.exists(folder / "study.json") else None


def stored_names(storage: Path) -> list[str]:
    """Return the names of the studies in a storage folder, sorted."""
    return sorted(p.parent.name for p in (storage / "studies").glob("*/study.json"))


def require_folders(storage: Path) -> None:
    """Raise if the storage folder or its ``studies`` is a file.

    Raises:
        InputError: It names the file.
    """
    require_kinds(files=(), folders=(storage, storage / "studies"))


def open_study(args: argparse.Namespace) -> Path:
    """Return the folder of the study that the arguments name.

    Raises:
        InputError: No such study has been run, or its folder is damaged.
    """
    from studies.trials.records import check_kinds

    folder = study_folder(args.storage, args.study)
    if folder is None:
        require_folders(args.storage)
        names = stored_names(args.storage)
        hint = nearest(args.study, names) if names else f"there is none in {args.storage}"
        raise InputError(f"no study {args.study!r} has been run; {hint}")
    check_kinds(folder)
    return folder


def open_finished_study(args: argparse.Namespace) -> Path:
    """Return the folder of a study that has results, and note if these may be out of date.

    Raises:
        InputError: No such study has been run, it has not finished, or its folder is damaged.
    """
    from studies.trials.records import OPEN

    folder = open_study(args)
    require_results(folder, args.study)
    if (folder / OPEN).exists():
        print(
            f"hylorada: note: study {args.study!r} is running again, or was interrupted since; "
            "these are its earlier results",
            file=sys.stderr,
        )
    return folder


def require_results(folder: Path, name: str) -> None:
    """Raise if a study has no results yet.

    Raises:
        InputError: The study has not finished.
    """
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {name!r} has not finished; see `hylorada status {name}`, or run it to its end"
        )
