"""Write files so that a crash at any moment leaves either the old content or the new."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content: write a temporary file beside it, sync it and rename it.

    Raises:
        OSError: the content can't be written; the old file stays, and the temporary one is removed.
    """
    replace_files({path: content})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Replace files as :func:`replace_file` does, renaming none before all are written.

    A crash between two renames leaves some files with the old content and some with the new.

    Args:
        contents: content of each file.

    Raises:
        OSError: a file can't be written; the old files stay, and the temporary ones are removed.
    """
    temporary = {path: path.with_name(path.name + ".tmp") for path in contents}
    try:
        for path, content in contents.items():
            with temporary[path].open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for path, written in temporary.items():
            written.replace(path)
    except OSError:
        for written in temporary.values():
            with suppress(OSError):
                written.unlink()  # it would take up space on a full disk
        raise
