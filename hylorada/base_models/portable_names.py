"""Names of bases and texts that another machine understands: built-in names, hub ids, relative paths."""

import os
from pathlib import Path

from hylorada.base_models.builtin_names import PYDOCS, SMOLLM2, TINY


def portable_path(name: str, folder: Path) -> str:
    """Return the name of a base or text as it may stand in a folder that is published.

    Args:
        name: built in, of the hub, or of a path.
        folder: that the path is to be relative to.

    Returns:
        A path beginning with a dot where there is such a file or folder: ``../models/x``, or ``./x`` alone where the
        two places have nothing but the root in common, so that the way there tells nothing of this machine. Else the
        name as it is, less the folders of an absolute path.
    """
    path = os.path.expanduser(name)
    if name in (TINY, SMOLLM2, PYDOCS, "") or not os.path.exists(path):
        return f"./{os.path.basename(path)}" if os.path.isabs(path) else name
    place, start = os.path.abspath(path), os.path.abspath(folder)
    common = os.path.commonpath([place, start])
    if os.path.dirname(common) == common:
        return f"./{os.path.basename(place)}"
    relative = Path(os.path.relpath(place, start)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def located(name: str, folder: Path) -> str:
    """Return what :func:`portable_path` made of a name, a path made absolute."""
    return os.path.abspath(folder / name) if name.startswith(("./", "../")) else name
