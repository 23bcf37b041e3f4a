"""Values of trials as reports show them, without the libraries that draw."""

import math
from typing import Any

from studies.trials.records import Record


def value_text(value: Any) -> str:
    """Return a value as a study file shows it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def state_text(state: str, *, running: bool) -> str:
    """Return a trial's state for a table; open trials of a study that isn't running are paused."""
    return "paused" if state == "running" and not running else state


def last(record: Record, metric: str) -> float | None:
    """Return a metric of the last report; None if it is missing or not finite."""
    value = record.reports[-1].metrics.get(metric) if record.reports else None
    return value if value is not None and math.isfinite(value) else None
