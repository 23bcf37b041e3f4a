"""Paths that a user names."""

import errno
import os
import re
from pathlib import Path

from hylorada.base_models.builtin_names import PYDOCS, SMOLLM2, TINY


def path_problem(path: Path) -> str | None:
    """Return why no file system takes a path, or None."""
    try:
        str(path).encode()
        os.lstat(path)
    except UnicodeEncodeError:
        return "its name is no UTF-8"
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            return error.strerror
    return next((problem for part in (path, *path.parents) if (problem := broken_link(part))), None)


def broken_link(path: Path) -> str | None:
    """Return what is wrong with a link that leads nowhere; None for all other paths."""
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
    """Return the file that an address of SQLite names, as SQLAlchemy reads it; None for any other address."""
    if not re.match(r"sqlite(\+pysqlite)?:///[^?]", uri):
        return None
    from sqlalchemy import make_url  # not above: it takes a while

    return Path(make_url(uri).database or "")


def anywhere(name: str, *, folder: bool = False) -> str:
    """A base's or a text's name as it holds in any working folder: what lies here gets its absolute path.

    Args:
        name: built in, of the hub, or of a path.
        folder: whether only a folder will do, as with a base.
    """
    path = os.path.expanduser(name)  # leaves a user who is not known alone
    here = os.path.isdir(path) if folder else os.path.exists(path)
    return os.path.abspath(path) if here and name not in (TINY, SMOLLM2, PYDOCS, "") else name


def without_folder(name: str) -> str:
    """A base's or a text's name, wherever it lies."""
    return os.path.basename(name) if os.path.isabs(name) else name
