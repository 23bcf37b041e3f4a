"""How many cores this process may use."""

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container, as seen from within


def available_cores() -> int:
    """As many as its affinity allows, and no more than a container's quota: threads beyond it would be throttled."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # there is none, or it is "max"
        return allowed
    return max(1, min(allowed, math.ceil(quota / period)))
