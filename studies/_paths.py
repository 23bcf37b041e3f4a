"""Paths that a user names."""

import os
from pathlib import Path

from hylorada._names import PYDOCS, SMOLLM2, TINY


def path_problem(path: Path) -> str | None:
    """What no database and no file system takes."""
    if "?" in str(path):
        return "its name has a question mark, where the path of a database ends"
    try:
        str(path).encode()
        os.lstat(path)
    except UnicodeEncodeError:
        return "its name is no UTF-8"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror
    return None


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
