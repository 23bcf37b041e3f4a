"""The folders of studies that have been run."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from filelock import Timeout

from hylorada import InputError, nearest
from studies.files.folder_files import (
    planned_study,
    require_kinds,
    require_readable,
    stored_study,
    study_command,
    study_lock,
)
from studies.spec.grid import cells
from studies.spec.study import FREE, GROWING, Study


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


def find_study(storage: Path, name: str) -> Path:
    """Return the folder of a study that has been run.

    Raises:
        InputError: No such study has been run, or its folder is damaged.
    """
    from studies.trials.records import check_kinds  # slow to import

    folder = study_folder(storage, name)
    if folder is None:
        require_folders(storage)
        names = stored_names(storage)
        hint = nearest(name, names) if names else f"there is none in {storage}"
        raise InputError(f"no study {name!r} has been run; {hint}")
    check_kinds(folder)
    return folder


def as_begun(
    values: Mapping[str, Any], folder: Path | None, *, asked_for: bool
) -> Mapping[str, Any]:
    """Return a study's values with what the study in a folder keeps, so that it resumes.

    A study that has been begun keeps its counts where they are larger, and the looks that it has
    declared, because they share the level. The values of a definition, which no user has asked for,
    give way to all that a study may change freely, and to the whole study if it was begun before
    arms shared a space.

    Args:
        values: Plain values of a study.
        folder: Folder of the study; None if it has not been begun.
        asked_for: Whether a user has asked for these values; otherwise they are a definition's,
            which are changed later.
    """
    if folder is None:
        return values
    if asked_for:  # a time limit's plan is kept beside the study
        stored = stored_study(folder / "study.json")
        larger = {name: max(values[name], stored[name]) for name in GROWING}
        if values["seed_list"]:  # decides the number of seeds
            del larger["seeds"]
        return {**values, **larger, "looks": values["looks"] or stored["looks"]}
    stored = planned_study(folder / "study.json")
    if stored["definition"] != values["definition"]:
        return values
    if not stored["common"]["space"] and values["common"]["space"]:
        return stored
    return {**values, **{name: stored[name] for name in FREE if name != "subject"}}


def is_running(folder: Path) -> bool:
    """Return whether a process runs this study, which then holds its lock.

    In a folder without write access this can't be told, and the answer is yes until the study has
    finished.
    """
    try:
        with study_lock(folder):
            return False
    except Timeout:
        return True
    except OSError:
        return not has_finished(folder)


def is_running_again(folder: Path) -> bool:
    """Return whether a study with results is running again, or was interrupted since."""
    from studies.trials.records import OPEN  # slow to import

    return (folder / OPEN).exists()


def has_finished(folder: Path) -> bool:
    """Return whether a study has results, and has not been continued since."""
    return (folder / "results.json").exists() and not is_running_again(folder)


def require_results(folder: Path, name: str) -> None:
    """Raise if a study has no results yet.

    Raises:
        InputError: The study has not finished.
    """
    if not (folder / "results.json").exists():
        raise InputError(
            f"study {name!r} has not finished; see `{study_command(folder, 'status')}`, or run it "
            f"to its end: `{study_command(folder)}`"
        )


def stored_grid(folder: Path) -> Study | None:
    """Return the grid that a study's folder holds; None for an ordinary study."""
    try:
        values = stored_study(folder / "study.json")
    except InputError:  # a damaged file is reported where it is used
        return None
    return Study.from_dict(values) if values["grid"] else None


def require_no_grid(folder: Path, name: str) -> None:
    """Raise if a study is a grid, of which only the cells have results and adapters.

    Raises:
        InputError: It names the cells.
    """
    if grid := stored_grid(folder):
        listed = ", ".join(cell.study.name for cell in cells(grid))
        raise InputError(f"study {name!r} is a grid; name one of its cells: {listed}")


def named_studies(names: Sequence[str], storage: Path) -> list[Path]:
    """Return the folders of the studies that a user names; a grid stands for its cells.

    Args:
        names: Names of studies in the storage folder, or folders of studies anywhere.
        storage: Storage folder.

    Raises:
        InputError: It names each study that does not exist.
    """
    by_name = {name: named_study(name, storage) for name in names}
    known = stored_names(storage)
    hints = {name: nearest(name, known) if known else "there is none" for name in names}
    if lost := [name for name in names if by_name[name] is None]:
        raise InputError([f"no study {name!r} has been run; {hints[name]}" for name in lost])
    folders: list[Path] = []
    for folder in (by_name[name] for name in names):
        assert folder is not None
        grid = stored_grid(folder)
        folders += [folder.parent / c.study.name for c in cells(grid)] if grid else [folder]
    return folders


def named_study(name: str, storage: Path) -> Path | None:
    """Return the folder of the study that a user names, by its name or its folder; None if none."""
    elsewhere = Path(os.path.expanduser(name))
    is_study = os.path.exists(elsewhere / "study.json")
    return study_folder(storage, name) or (elsewhere if is_study else None)
