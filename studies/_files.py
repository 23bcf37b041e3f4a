"""Files of a study folder, written so that a crash, a full disk or a slow share loses nothing."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from os.path import isdir, isfile
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock

from hylorada import InputError
from hylorada._files import replace_file

from ._faults import StorageFault, is_storage_error
from ._typed import typed

Value = TypeVar("Value")

_BEFORE_SEARCHES = {  # how studies were run before they had these fields
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
_PAUSES_S = (0.5, 2.0, 8.0)  # between tries: a share that hiccups is waited for, a full disk is not waited for long


def study_lock(folder: Path) -> FileLock:
    """The lock that whoever runs the study of a folder holds; by itself it waits for nobody."""
    return FileLock(folder / "lock", timeout=0)


def patiently(use: Callable[[], Value], path: Path, *, what: str = "written") -> Value:
    """Write or read what may be repeated; while storage refuses it, try again a few times.

    Raises:
        StorageFault: it still refuses, naming the file, the reason and the free space.
    """
    for pause in (*_PAUSES_S, None):
        try:
            return use()
        except OSError as error:
            if not is_storage_error(error):
                raise
            if pause is None:
                raise StorageFault(f"{path} can't be {what}: {error.strerror}{_free(path)}") from error
            time.sleep(pause)
    raise AssertionError("unreachable")


def _free(path: Path) -> str:
    try:
        return f" ({shutil.disk_usage(path.parent).free / 2**20:.1f} MiB free)"
    except OSError:
        return ""


def damaged(path: Path, reason: str) -> InputError:
    """What to raise for a file whose content can't be used."""
    return InputError(f"{path} is damaged ({reason}); put it back from a copy")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn whatever comes of a lost or damaged file, from opening it to filling a dataclass, into one line naming it.

    Raises:
        InputError: instead of what was raised within.
    """
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path} is missing; put it back from a copy") from error
    except OSError as error:
        raise InputError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise damaged(path, "no UTF-8") from error
    except json.JSONDecodeError as error:
        raise damaged(path, f"no JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise damaged(path, str(error)) from error


def read_json(path: Path, kind: Any) -> Any:
    """A file's JSON as ``kind``, see :func:`studies._typed.typed`.

    Raises:
        InputError: it is missing or damaged.
    """
    with reading(path):
        return typed(kind, json.loads(path.read_text(encoding="utf-8")))


def stored_study(path: Path) -> Mapping[str, Any]:
    """The values of a study that has been run.

    Raises:
        InputError: the file is lost or damaged.
    """
    values: Mapping[str, Any] = read_json(path, Mapping[str, Any])
    kinds = {"definition": str, "trials": int, "seeds": int}
    if lost := kinds.keys() - values:
        raise damaged(path, f"no field {min(lost)!r}")
    with reading(path):
        for name, kind in kinds.items():
            typed(kind, values[name], name)
    return values if "searches" in values else {**_BEFORE_SEARCHES, **values}


def require_database(path: Path) -> None:
    """Raise unless a file that must be there begins as one of SQLite's."""
    with reading(path):
        if not is_sqlite(path):
            raise ValueError("no SQLite database")


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's databases do."""
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def require_kinds(*, files: Iterable[Path], folders: Iterable[Path]) -> None:
    """Raise for a folder in the place of a file, or the other way round; what isn't there is left alone."""
    # `os.path`, for which a path that no system takes is neither
    wrong = [f"{p} is a folder, must be a file; put it back from a copy, or remove it" for p in files if isdir(p)]
    wrong += [f"{p} is a file, must be a folder; remove it" for p in folders if isfile(p)]
    if wrong:
        raise InputError(wrong)


def read_lines(path: Path) -> list[str]:
    """The complete lines of a file; what a crash left of a last line is left out."""
    return _whole(path.read_bytes()).decode().splitlines()


def _whole(content: bytes) -> bytes:
    """Without a last line that was cut off, or of which a loss of power left zeros."""
    content = re.sub(rb"\0[\0\n]*\Z", b"", content)
    return content[: content.rfind(b"\n") + 1]


def append_line(path: Path, line: str) -> None:
    """Add a line and see it on disk; what a crash left of an unfinished line is cut off first."""

    kept: list[int] = []  # bytes that were there before the first try: one that fails late may have left a whole line

    def write() -> None:
        with path.open("ab+") as file:
            if not kept:
                file.seek(0)
                kept.append(len(_whole(file.read())))
            file.truncate(kept[0])
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    patiently(write, path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write, sync, rename: a reader sees the old content or the new."""
    patiently(lambda: replace_file(path, content.encode() if isinstance(content, str) else content), path)
