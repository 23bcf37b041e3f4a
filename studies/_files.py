"""Files of a study folder, written so that a crash, a full disk or a slow share loses nothing."""

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hylorada._files import replace_file

from ._faults import StorageFault, is_storage_error

Value = TypeVar("Value")

_PAUSES_S = (0.5, 2.0, 8.0)  # between tries: a share that hiccups is waited for, a full disk is not waited for long


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


def read_lines(path: Path) -> list[str]:
    """The complete lines of a file; a last line cut off by a crash is left out."""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1].decode().splitlines()


def append_line(path: Path, line: str) -> None:
    """Add a line and see it on disk; what a crash left of an unfinished line is cut off first."""

    kept: list[int] = []  # bytes that were there before the first try: one that fails late may have left a whole line

    def write() -> None:
        with path.open("ab+") as file:
            if not kept:
                file.seek(0)
                kept.append(file.read().rfind(b"\n") + 1)
            file.truncate(kept[0])
            file.write(line.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    patiently(write, path)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write, sync, rename: a reader sees the old content or the new."""
    patiently(lambda: replace_file(path, content.encode() if isinstance(content, str) else content), path)
