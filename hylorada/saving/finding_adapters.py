"""Where a saved adapter is: a folder, or a repository of the Hugging Face hub."""

import os
import re
from pathlib import Path

from huggingface_hub import snapshot_download

from hylorada.base_models.finding import hub_is_reachable
from hylorada.base_models.loading import first_line, is_gated
from hylorada.errors import InputError

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_FILES = ["*.json", "adapter_model.safetensors", "hylorada_model.safetensors"]


def local_folder(name: str | Path) -> Path:
    """Return the folder of an adapter on this machine, with ``~`` expanded.

    Raises:
        InputError: the name is empty.
    """
    if not str(name):  # as a path it would silently mean the working folder
        raise InputError("adapter '': must name a folder, got empty text")
    return Path(name).expanduser()


def find_adapter(name: str | Path) -> Path:
    """Return the folder of a saved adapter, which need not exist.

    A text such as ``user/name``, of which there is no folder, names a repository of the hub. Its
    adapter is downloaded; if the hub is out of reach, an earlier download serves.

    Raises:
        InputError: the name is empty, or the hub has no such repository.
    """
    folder = local_folder(name)
    if isinstance(name, Path) or os.path.lexists(folder) or not _HUB_ID.fullmatch(name):
        return folder
    return _download(name)


def _download(repository: str) -> Path:
    offline = not hub_is_reachable()
    try:
        place = snapshot_download(repository, allow_patterns=_FILES, local_files_only=offline)
    except Exception as error:  # the hub's client raises errors of many kinds
        raise InputError(_problem(repository, error, offline)) from error
    return Path(place)


def _problem(repository: str, error: Exception, offline: bool) -> str:
    if is_gated(error):
        return f"adapter {repository!r}: access to {repository} needs approval and a token"
    if offline:
        return (
            f"adapter {repository!r}: no such folder, not cached, and the hub can't be "
            f"reached. Download it with: hf download {repository}"
        )
    return f"adapter {repository!r}: no such folder, and not on the hub: {first_line(error)}"
