"""Write files so that a crash at any moment leaves either the old content or the new."""

import os
from contextlib import suppress
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content: write a temporary file beside it, sync it and rename it.

    Raises:
        OSError: the content can't be written; the old file stays, and the temporary one is removed.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()  # it would take up space on a full disk
        raise
