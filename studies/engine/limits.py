"""Checks of this machine's limits, without which a private Ray would hang or fail silently."""

import os
import resource
import shutil
from pathlib import Path

from hylorada import InputError

_FREE = 50 * 2**20  # bytes of temporary files: logs, sockets and Tune's own files
_FILES = 1024  # open files of one process
_SHARE = 0.3  # of the memory, for Ray's object store
_LIBRARIES = 8 * 10**9  # bytes of addresses for Ray's and PyTorch's libraries, beside the store


def check_limits(root: Path) -> None:
    """Check that Ray can start on this machine.

    Args:
        root: folder for temporary files.

    Raises:
        InputError: one or more limits are too low; the message names each.
    """
    if problems := [*_space_problems(root), *_limit_problems()]:
        raise InputError(problems)


def _space_problems(root: Path) -> list[str]:
    free = shutil.disk_usage(root).free
    if free >= _FREE:
        return []
    return [f"{root} has {free / 2**20:.1f} MiB free, Ray needs {_FREE >> 20} MiB there; make room"]


def _limit_problems() -> list[str]:
    store = _object_store()
    needs = (
        ("open files", "-n", resource.RLIMIT_NOFILE, _FILES, 1, ""),
        ("the size of a file", "-f", resource.RLIMIT_FSIZE, store, 1024, " KiB"),
        ("memory addresses", "-v", resource.RLIMIT_AS, store + _LIBRARIES, 1024, " KiB"),
    )
    problems = []
    for what, option, number, least, unit, name in needs:
        # Only the hard limit on open files matters, because Ray raises the soft limit itself.
        limit = resource.getrlimit(number)[number == resource.RLIMIT_NOFILE]
        if limit != resource.RLIM_INFINITY and limit < least:
            got, least = limit // unit, -(-least // unit)
            needed = f"Ray needs {least:,}{name} here; raise it (ulimit {option})"
            problems.append(f"the limit on {what} is {got:,}{name}, {needed}")
    return problems


def _object_store() -> int:
    """Return the bytes of Ray's object store: a share of memory, at most all shared memory."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    shared = shutil.disk_usage("/dev/shm").total if os.path.isdir("/dev/shm") else memory
    return int(min(_SHARE * memory, shared))
