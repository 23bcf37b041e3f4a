"""The number of CPU cores that this process may use."""

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # the container's quota, as seen from within


def available_cores() -> int:
    """Return the number of cores that the process's affinity and its container's quota allow.

    The kernel would throttle threads beyond the quota.
    """
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    try:
        quota, period = map(int, _QUOTA.read_text().split())
    except (OSError, ValueError):  # there is no quota, or it is "max"
        return allowed
    return max(1, min(allowed, math.ceil(quota / period)))
