"""Files of a study folder, written so that a crash, a full disk or a slow share loses nothing."""

import json
import os
import re
import shlex
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from filelock import FileLock, Timeout

from hylorada import InputError
from hylorada.runtime.atomic_files import replace_file
from hylorada.runtime.checksums import sealed, unsealed
from studies.files.paths import broken_link
from studies.files.typed_json import typed
from studies.process.errors import StorageFault, is_storage_error

Value = TypeVar("Value")
STUDY = "study"  # owner of the checksum of study.json
# Field of study.json for the larger counts of a study that --time-limit has kept small.
PLANNED = "planned"

_BEFORE_SEARCHES = {  # values for studies that were run before these fields existed
    "common": {"space": {}},
    "matched": False,
    "searches": 1,
    "finalists": 1,
    "selection_seeds": 1,
    "profile": [1.0],
    "margin": 0.5,
    "looks": [],
    "spread_test": False,
}
_LOCK_S = 5.0  # `status` holds the lock while it ends the MLflow runs of a dead process
# Pauses between tries: long enough for a hiccup of a file share, short enough for a full disk.
_PAUSES_S = (0.5, 2.0, 8.0)
_TAIL = 1 << 14  # bytes at the end of a file in which to look for the end of its last line first


def study_lock(folder: Path) -> FileLock:
    """Return the lock held by the process that runs a folder's study; acquiring it doesn't wait."""
    return FileLock(folder / "lock", timeout=0)


def hold_study(folder: Path, name: str) -> FileLock:
    """Acquire the lock of a study to run it, and return it.

    Args:
        folder: folder of the study, created if it is missing.
        name: name of the study.

    Raises:
        InputError: another process runs the study.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = study_lock(folder)
    try:
        lock.acquire(timeout=_LOCK_S)
    except Timeout as error:
        raise InputError(f"study {name!r} is being run by another process ({folder})") from error
    return lock


def require_not_run(folder: Path, name: str) -> None:
    """Raise if another process runs a study, before this one begins anything slow.

    Only :func:`hold_study` keeps a process that starts later from running it.

    Raises:
        InputError: Another process runs the study.
    """
    if not os.path.exists(folder / "lock"):
        return
    with suppress(OSError):  # reported where the folder is used
        hold_study(folder, name).release()


def patiently(use: Callable[[], Value], path: Path, *, what: str = "written") -> Value:
    """Call a function that writes or reads a file, and repeat it a few times if the storage fails.

    Raises:
        StorageFault: the storage still fails; the message names the file, the reason and the free
            space.
    """
    for pause in (*_PAUSES_S, None):
        try:
            return use()
        except OSError as error:
            if not is_storage_error(error):
                raise
            if pause is None:
                raise StorageFault(
                    f"{path} can't be {what}: {error.strerror}{_free(path)}"
                ) from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def _free(path: Path) -> str:
    try:
        return f" ({shutil.disk_usage(path.parent).free / 2**20:.1f} MiB free)"
    except OSError:
        return ""


def damaged(path: Path, reason: str, remedy: str = "") -> InputError:
    """Return the error for a file with unusable content, with what the user can do about it."""
    return InputError(f"{path} is damaged ({reason}); {remedy or remedy_for(path)}")


def remedy_for(path: Path) -> str:
    """Return what the user can do about a lost or damaged file of a study."""
    if path.name == "results.json":
        return f"delete it: `{study_command(path.parent)}` computes it again from the trials"
    if path.name == "explain.json":
        return (
            f"delete it: `{study_command(path.parent, 'explain')}` computes it again from its runs"
        )
    if path.parent.parent.name == "trials" and "-explain-" in path.parent.name:
        return train_again(path, "explain")
    if path.parent.parent.name == "trials" and "-confirm-" in path.parent.name:
        return train_again(path)
    return "restore it from a backup"


def train_again(path: Path, command: str = "run") -> str:
    """Return the remedy for a file of a run that the study can repeat with the same result."""
    command_line = study_command(path.parents[2], command)
    return (
        f"restore it from a backup, or delete the folder {path.parent}: `{command_line}` "
        "trains that run again"
    )


def study_command(folder: Path, command: str = "run", *options: str) -> str:
    """Return a command line for the study in a folder, for users to copy."""
    storage = folder.parent.parent
    is_default = storage.absolute() == Path("mlruns").absolute()
    place = [] if is_default else ["--storage", str(storage)]
    return shlex.join(["hylorada", command, folder.name, *options, *place])


@contextmanager
def reading(path: Path | str, remedy: str = "") -> Iterator[None]:
    """Turn any error caused by a lost or damaged file into one line that names the file.

    Args:
        path: The file that is read in this context.
        remedy: What the user can do about it; by default the result of `remedy_for`.

    Raises:
        InputError: Replaces the error raised in the context.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; {remedy or remedy_for(Path(path))}") from error
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise damaged(Path(path), "not UTF-8", remedy) from error
    except json.JSONDecodeError as error:
        raise damaged(Path(path), f"not JSON: {error.msg}", remedy) from error
    except (ValueError, RecursionError) as error:
        raise damaged(Path(path), str(error), remedy) from error


def read_json(path: Path, kind: Any, owner: str | None = None) -> Any:
    """Read a file's JSON as ``kind``; see :func:`studies.files.typed_json.typed`.

    Args:
        path: The file.
        kind: A type, or a dataclass.
        owner: What the file's checksum is bound to; None for a file without one.

    Raises:
        InputError: The file is missing or damaged.
    """
    with reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        if owner is not None:
            values = unsealed(typed(Mapping[str, Any], values), owner)
        return typed(kind, values)


def write_json(path: Path, values: Mapping[str, Any], owner: str) -> None:
    """Write JSON values with a checksum that is bound to their owner."""
    write_atomically(path, json.dumps(sealed(values, owner), indent=1))


def stored_study(path: Path) -> dict[str, Any]:
    """Return the values of a study that has been run.

    Raises:
        InputError: The file is lost or damaged.
    """
    # Before these fields existed, an end token separated any two rows, TPE and ASHA searched, and
    # no report had a table of components, trials read all of the training split for a number of
    # steps, no study was a grid, every search began with the defaults, the backward pass
    # recomputed nothing, and a base had one device.
    values: dict[str, Any] = {
        "criteria": False,
        "grid": {},
        "document_separator": "eos",
        "sampler": "tpe",
        "pruner": "asha",
        "train_blocks": None,
        "epochs": None,
        "seed_list": [],
        "designs": {},
        "start": [],
        "gradient_checkpointing": False,
        "device_map": "none",
        **read_json(path, Mapping[str, Any], STUDY),
    }
    values.pop("id", None)
    values.pop(PLANNED, None)
    kinds = {"definition": str, "trials": int, "seeds": int}
    if lost := kinds.keys() - values:
        raise damaged(path, f"no field {min(lost)!r}")
    with reading(path):
        for name, kind in kinds.items():
            typed(kind, values[name], name)
    return values if "searches" in values else {**_BEFORE_SEARCHES, **values}


def stored_plan(path: Path) -> dict[str, int]:
    """Return the counts that a stored study was to have, where ``--time-limit`` kept it smaller.

    Raises:
        InputError: The file is lost or damaged.
    """
    values = read_json(path, Mapping[str, Any], STUDY)
    with reading(path):
        return dict(typed(Mapping[str, int], values.get(PLANNED, {}), PLANNED))


def planned_study(path: Path) -> dict[str, Any]:
    """Return the values of a study that has been run, with the counts that it was to have.

    Raises:
        InputError: The file is lost or damaged.
    """
    return {**stored_study(path), **stored_plan(path)}


def stored_id(path: Path) -> str | None:
    """Return the id stored in ``study.json``; None in folders of earlier versions.

    Raises:
        InputError: The file is lost or damaged.
    """
    values = read_json(path, Mapping[str, Any], STUDY)
    with reading(path):
        return None if values.get("id") is None else typed(str, values["id"], "id")


def require_readable(*folders: Path) -> None:
    """Raise for a folder without permission to read or enter it, which would look empty.

    Other faults are left to later checks.

    Raises:
        InputError: A folder can't be read; the message names it.
    """
    for folder in folders:
        try:
            os.listdir(f"{folder}/.")  # the dot also needs permission to enter the folder
        except PermissionError as error:
            raise InputError(f"{folder} can't be read: {error.strerror}") from error
        except (OSError, ValueError):
            pass


def require_database(path: Path) -> None:
    """Raise for a damaged ``mlflow.db``; leave one that is locked or can't be opened to MLflow.

    Raises:
        InputError: The file is not an SQLite database, or SQLite finds damage in its structures.
    """
    with reading(
        path,
        "restore it from a backup, or move it away: `hylorada run NAME` then writes the runs again",
    ):
        if not is_sqlite(path):
            raise ValueError("not an SQLite database")
        with suppress(sqlite3.OperationalError):
            if (state := _quick_check(path)) != "ok":
                raise ValueError(" ".join(state.split()))


def _quick_check(path: Path) -> str:
    """Return SQLite's verdict on a database's structures, "ok" or the first problem."""
    try:
        with closing(
            sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", timeout=60, uri=True)
        ) as connection:
            return str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        return str(error)


def is_sqlite(path: Path) -> bool:
    """Return whether a file exists and begins as SQLite's databases do."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"
    return False


def require_kinds(*, files: Sequence[Path], folders: Sequence[Path]) -> None:
    """Raise if a path is a folder but must be a file, the reverse, or a dangling link.

    Paths that don't exist are fine.

    Raises:
        InputError: One or more paths are of the wrong kind.
    """
    # `os.path` returns False for an invalid path, where `Path` would raise.
    wrong = [
        f"{p} is a folder, must be a file; restore it from a backup, or remove it"
        for p in files
        if isdir(p)
    ]
    wrong += [f"{p} is a file, must be a folder; remove it" for p in folders if isfile(p)]
    wrong += [
        f"{problem}; repair or remove the link"
        for p in (*files, *folders)
        if (problem := broken_link(p))
    ]
    if wrong:
        raise InputError(wrong)


def content_of(path: Path | str) -> bytes:
    """Return the content of a file; for a small one this is faster than `Path.read_bytes`."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def read_lines(path: Path | str) -> list[str]:
    """Return the complete lines of a file, without a last line that a crash has cut off."""
    return _complete_lines(content_of(path)).decode().splitlines()


def _complete_lines(content: bytes) -> bytes:
    """Return content without a last line that was cut off or that a power loss left as zeros."""
    if b"\0" in content:
        content = re.sub(rb"\0[\0\n]*\Z", b"", content)
    return content[: content.rfind(b"\n") + 1]


def _complete_size(file: BinaryIO) -> int:
    """Return the size of a file's complete lines, reading no more than its end if that is sound."""
    size, length = file.seek(0, os.SEEK_END), _TAIL
    while True:
        start = max(0, size - length)
        file.seek(start)
        complete = _complete_lines(file.read())
        # Zeros and line breaks alone may continue zeros that begin before this part.
        if start == 0 or complete.strip(b"\0\n"):
            return start + len(complete)
        length *= 2


def append_line(path: Path, line: str) -> None:
    """Append a line and sync it to disk, after cutting off a line that a crash left unfinished."""
    # The size is taken before the first try: a try that fails late may have
    # written a whole line, which the next try must cut off.
    sizes: list[int] = []

    def write() -> None:
        with path.open("ab+") as file:
            if not sizes:
                sizes.append(_complete_size(file))
            file.truncate(sizes[0])
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    patiently(write, path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write, sync and rename, so that a reader sees the old content or the new."""
    patiently(
        lambda: replace_file(path, content.encode() if isinstance(content, str) else content), path
    )
