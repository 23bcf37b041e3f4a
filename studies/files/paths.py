"""Checks of paths given by the user."""

import errno
import os
import re
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from hylorada.base_models.builtin_names import SMOLLM2, TEXTS, TINY


def path_problem(path: Path) -> str | None:
    """Return why a path is invalid on every file system, or None."""
    try:
        str(path).encode()
        os.lstat(path)
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            return error.strerror
    return next((problem for part in (path, *path.parents) if (problem := broken_link(part))), None)


def broken_link(path: Path) -> str | None:
    """Return what is wrong with a dangling link; None for all other paths."""
    if not os.path.islink(path) or os.path.exists(path):
        return None
    try:
        os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return f"{path} is a link that leads back to itself"
        if error.errno != errno.ENOENT:
            return f"{path} is a link to {os.readlink(path)}: {error.strerror}"
    return f"{path} is a link to {os.readlink(path)}, which is missing"


def database_path(uri: str) -> Path | None:
    """Return the file of an SQLite address as SQLAlchemy parses it; None for any other address."""
    if not re.match(r"sqlite(\+pysqlite)?:///[^?]", uri):
        return None
    from sqlalchemy import make_url  # slow to import

    return Path(make_url(uri).database or "")


def anywhere(name: str, *, folder: bool = False) -> str:
    """Return the name of a base or text so that it is valid in any working folder.

    A name that exists here as a path becomes absolute; any other is returned as it is.

    Args:
        name: a built-in name, a hub id or a path.
        folder: whether only a folder counts as a path, as with a base.
    """
    path = os.path.expanduser(name)  # leaves the name of an unknown user as it is
    here = os.path.isdir(path) if folder else os.path.exists(path)
    return os.path.abspath(path) if here and name not in (TINY, SMOLLM2, *TEXTS, "") else name


def with_absolute_paths(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a study's plain values, in which every base and text is valid in any working folder.

    Args:
        values: fields of a study, or what a user has given for them.
    """
    result = dict(values)
    for name in ("model", "data"):
        find = partial(anywhere, folder=name == "model")
        if isinstance(result.get(name), str):
            result[name] = find(result[name])
        grid = result.get("grid")
        if isinstance(grid, Mapping) and isinstance(spanned := grid.get(name), list):
            paths = [find(v) if isinstance(v, str) else v for v in spanned]
            result["grid"] = {**grid, name: paths}
    return result


def without_folder(name: str) -> str:
    """Return the name of a base or text without its folder."""
    return os.path.basename(name) if os.path.isabs(name) else name


def file_problem(field: str, file: Path) -> str | None:
    """Return why a file can't be written, for a check before long work; None if it can."""
    if os.path.isdir(file) or not file.name:
        return f"{field} {str(file)!r}: this is a folder; name a file"
    if not file.absolute().parent.is_dir():
        return f"{field} {str(file)!r}: its folder does not exist"
    return None


def unwritable(folder: Path) -> str | None:
    """Return why a folder, which need not exist yet, can't be written to; None if it can.

    The check leaves no trace.
    """
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.exists(p))
    if not os.path.isdir(existing):
        return f"{existing} is a file"
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"no file can be created in {existing} ({error.strerror})"
