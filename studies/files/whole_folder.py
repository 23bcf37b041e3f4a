"""A folder of files that is replaced as a whole, and only if nothing of the user's is lost."""

import ctypes
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hylorada import InputError
from hylorada.runtime.checksums import digest
from studies.files.paths import path_problem, unwritable
from studies.process.listing import first_names

_RECORD = "files.json"  # which files were written, their checksums, and for which study
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # from Linux's fcntl.h and fs.h
_SHOWN = 3  # files that a message names


def refuse_foreign(folder: Path, owner: str) -> None:
    """Refuse a folder that holds anything but what :func:`write_folder` has written there.

    Raises:
        InputError: The folder can't be replaced; the message says why.
    """
    if problem := _problem(folder, owner):
        raise InputError(problem)


def write_folder(folder: Path, files: Mapping[str, bytes], owner: str) -> None:
    """Write a folder of files, replacing an earlier one of the same owner.

    The files are written beside it first. A crash at any moment leaves the old folder or the new;
    on a disk that can't exchange two folders in one step, the old one may be restored only by the
    next call.

    Args:
        folder: Folder to write; its parents are created.
        files: Content by path inside the folder.
        owner: Whose files these are.

    Raises:
        InputError: The folder holds files that were not written here, or were changed since.
    """
    refuse_foreign(folder, owner)
    place = folder.resolve()
    beside, old = (place.with_name(f".{place.name}.{end}") for end in ("new", "old"))
    if old.exists() and not place.exists():
        old.rename(place)
        refuse_foreign(folder, owner)
    _fill(beside, files, owner)
    _put(beside, place, old)


def _fill(folder: Path, files: Mapping[str, bytes], owner: str) -> None:
    """Write files and their record into a folder of its own."""
    _remove(folder)
    record = {"study": owner, "files": {name: digest(files[name]) for name in sorted(files)}}
    try:
        for name, content in {**files, _RECORD: json.dumps(record, indent=1).encode()}.items():
            _write(folder / name, content)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)  # it would take up space on a full disk
        raise


def _put(new: Path, place: Path, old: Path) -> None:
    """Put a folder in its place, and remove the one that was there."""
    if not place.exists():
        new.rename(place)
    elif not _exchange(new, place):
        _remove(old)
        place.rename(old)
        new.rename(place)
    _remove(new)
    _remove(old)


def _problem(folder: Path, owner: str) -> str | None:
    """Return why a folder can't be replaced; None if it can, or does not exist."""
    name = repr(str(folder))
    if problem := path_problem(folder):
        return f"{name} can't be written: {problem}"
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not existing.is_dir():
        return f"{str(existing)!r} is a file, must be a folder"
    if problem := unwritable(folder.absolute().parent):
        return f"{name} can't be written: {problem}"
    if not folder.exists():
        return None
    place = folder.resolve()
    if place in (Path.cwd(), *Path.cwd().parents) or os.path.ismount(place):
        return f"{name} can't be replaced while it is in use; name a new folder in it"
    present = {str(p.relative_to(place)) for p in place.rglob("*") if _is_file(p)}
    study, written = _written(place)
    if present and study != owner:
        return f"{name} is not empty and holds no figures of study {owner!r}; name a new folder"
    foreign = sorted(present - written.keys() - {_RECORD})
    changed = [n for n in sorted(present & written.keys()) if _digest(place / n) != written[n]]
    if foreign or changed:
        what = f"files of yours ({first_names(foreign or changed, _SHOWN)})"
        return f"{name} holds {what}, which would be lost; move them, or name a new folder"
    return None


def _written(folder: Path) -> tuple[str | None, dict[str, str]]:
    """Return the owner and the checksums of the files that were written; None without a record."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads((folder / _RECORD).read_bytes())
        return str(record["study"]), {str(k): str(v) for k, v in record["files"].items()}
    return None, {}


def _is_file(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir()


def _digest(path: Path) -> str:
    return digest(path.read_bytes())


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _remove(folder: Path) -> None:
    """Remove a folder if it exists."""
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False where the system or its disk can't."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)
