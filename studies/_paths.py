"""Paths that a user names."""

import os
from pathlib import Path


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
