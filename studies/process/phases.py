"""The phases of a run, recorded in a file when ``hylorada bench --start`` asks for them."""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PHASES = "HYLORADA_PHASES"  # the environment variable that names the file


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Note when this part of a run begins and ends; also a decorator.

    Without a file for the phases, this costs one look at the environment.

    Args:
        name: name of the phase, as the table of ``hylorada bench --start`` shows it.
    """
    path = os.environ.get(PHASES)
    if path is None:
        yield
        return
    began = time.time()
    try:
        yield
    finally:
        _note(path, name, began)


def _note(path: str, name: str, began: float) -> None:
    """Append a line to the file; many processes write to it, each line in one call."""
    note = {
        "name": name,
        "began": began,
        "ended": time.time(),
        "process": os.getpid(),
        "main": threading.current_thread() is threading.main_thread(),
        "born": _born(),
    }
    with open(path, "ab", buffering=0) as file:
        file.write(f"{json.dumps(note)}\n".encode())


def _born() -> float:
    """Return the time at which this process began."""
    import psutil  # only where phases are noted

    return psutil.Process().create_time()
