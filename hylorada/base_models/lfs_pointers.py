"""Git LFS pointers: small text files in place of files that a clone has not downloaded."""

from pathlib import Path

_BEGINNINGS = (
    b"version https://git-lfs.github.com/spec/",
    b"version https://hawser.github.com/spec/",
)


def pointer_problem(path: Path) -> str | None:
    """Return a message for the user if a file is a Git LFS pointer, else None.

    A file that can't be read gives None: the caller's own attempt to read it reports the error.
    """
    try:
        with path.open("rb") as stream:
            beginning = stream.read(max(map(len, _BEGINNINGS)))
    except (OSError, ValueError):
        return None
    if not beginning.startswith(_BEGINNINGS):
        return None
    return (
        f"{path.name} is a Git LFS pointer, not the file itself; run `git lfs pull` in its folder"
    )
