"""The memory of this process."""

import resource
import sys


def process_peak() -> int:
    """Return the peak memory of this process in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, other systems KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
