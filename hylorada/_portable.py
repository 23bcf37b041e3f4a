"""Names of bases and texts that another machine understands: built-in names, hub ids, relative paths."""

import contextlib
import os
from pathlib import Path

from transformers import PreTrainedModel

from ._bases import find_base
from ._errors import InputError
from ._names import SMOLLM2, TINY


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
    if not name or not os.path.exists(path):
        return f"./{os.path.basename(path)}" if os.path.isabs(path) else name
    place, start = os.path.abspath(path), os.path.abspath(folder)
    common = os.path.commonpath([place, start])
    if os.path.dirname(common) == common:
        return f"./{os.path.basename(place)}"
    relative = Path(os.path.relpath(place, start)).as_posix()
    return relative if relative.startswith("..") else f"./{relative}"


def located(name: str, folder: Path) -> str:
    """Return the name that :func:`portable_path` made of one, as it holds in the current working folder."""
    return os.path.normpath(folder / name) if name.startswith(("./", "../")) else name


def portable_base(base: PreTrainedModel, folder: Path) -> str | None:
    """Return the portable name of a base that has been loaded; None where it came from nowhere."""
    name = base.name_or_path or ""
    for builtin in (TINY, SMOLLM2):
        with contextlib.suppress(InputError, OSError):  # not installed, or no path
            if os.path.samefile(find_base(builtin).location, name):
                return builtin
    return portable_path(name, folder) or None
