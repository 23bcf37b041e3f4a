"""Git LFS pointers: the small text files that stand where a clone has not fetched the real ones."""

from pathlib import Path

_BEGINNINGS = (
    b"version https://git-lfs.github.com/spec/",
    b"version https://hawser.github.com/spec/",
)


def pointer_problem(path: Path) -> str | None:
    """Return what to tell the user if a file is a Git LFS pointer, else None; an unreadable file is left to others."""
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
