"""Python's garbage collector, paused while tens of thousands of records are read."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the collector, which would visit all that was read again and again.

    Records hold no reference cycles, so there is nothing to collect.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
