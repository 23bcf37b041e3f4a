"""Portable names of bases and texts: built-in names, hub ids and relative paths."""

import os
from pathlib import Path

from hylorada.base_models.builtin_names import SMOLLM2, TEXTS, TINY


def portable_path(name: str, folder: Path) -> str:
    """Return the name to write for a base or text in a folder that may be published.

    Args:
        name: a built-in name, a hub id, or a path.
        folder: the folder that a path is made relative to.

    Returns:
        For a file or folder that exists, a relative path that begins with a dot: ``../models/x``,
        or just ``./x`` where the two places share only the root, so that the path reveals nothing
        about this machine. Otherwise the name itself; of an absolute path, only its last part.
    """
    path = os.path.expanduser(name)
    if name in (TINY, SMOLLM2, *TEXTS, "") or not os.path.exists(path):
        return f"./{os.path.basename(path)}" if os.path.isabs(path) else name
    place, start = os.path.abspath(path), os.path.abspath(folder)
    common = os.path.commonpath([place, start])
    if os.path.dirname(common) == common:
        return f"./{os.path.basename(place)}"
    relative = Path(os.path.relpath(place, start)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def located(name: str, folder: Path) -> str:
    """Return the name behind a result of :func:`portable_path`, with a path made absolute."""
    return os.path.abspath(folder / name) if name.startswith(("./", "../")) else name
