"""The values of a study as MLflow's parameters, tags and metrics."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from mlflow.entities import Metric, Param, RunTag

from studies.trials.messages import Report

SECONDS = "time/trial_seconds"
_VALUE_LIMIT = 500  # characters of a parameter that MLflow's page still shows


def new_and_changed(
    known: Mapping[str, str], params: Mapping[str, Any]
) -> tuple[list[Param], list[RunTag]]:
    """Return the parameters that a run lacks, and the changed ones as tags.

    MLflow doesn't allow a logged parameter to change.
    """
    values = {k: limited(v) for k, v in params.items()}
    changed = [RunTag(f"resumed.{k}", v) for k, v in values.items() if known.get(k, v) != v]
    return [Param(k, v) for k, v in values.items() if k not in known], changed


def tags_of(values: Mapping[str, Any]) -> list[RunTag]:
    """Return values as tags."""
    return [RunTag(k, limited(v)) for k, v in values.items()]


def hash_of(values: Mapping[str, Any]) -> str:
    """Return a hash of a configuration; a confirm run has the same hash as the trial it repeats."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def limited(value: Any) -> str:
    """Return a value as text, visibly cut if MLflow's page would not show all of it."""
    text = str(value)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"


def report_metrics(report: Report, time: int, *, first: bool) -> list[Metric]:
    """Return the metrics of a report.

    The seconds come last: if a run has them for a step, it has all metrics of that step.

    Args:
        report: The report.
        time: Timestamp in epoch milliseconds.
        first: Whether to add the boundaries before training as step 0.
    """
    metrics = []
    if first:
        for i, boundary in enumerate(report.start_boundaries, 1):
            metrics.append(Metric(f"boundary/{i:03d}", boundary, time, 0))
    values = {**report.metrics, **boundary_metrics(report), SECONDS: report.seconds}
    for name, value in values.items():
        if math.isfinite(value):
            metrics.append(Metric(name, value, time, report.step))
    return metrics


def boundary_metrics(report: Report) -> dict[str, float]:
    """Return the metrics of a report's learned boundaries; none without such boundaries.

    Returns:
        ``boundary/001`` and so on in token positions, their mean shift from the start, the smallest
        gap, and the share of boundaries outside the block.
    """
    if not report.boundaries:
        return {}
    now, start = np.array(report.boundaries), np.array(report.start_boundaries)
    length = float(report.applied["max_positions"])
    gaps = np.diff(np.concatenate([[0.0], now, [length]]))
    return {
        **{f"boundary/{i:03d}": float(b) for i, b in enumerate(now, 1)},
        "boundary/shift": float(np.abs(now - start).mean()),
        "boundary/min_gap": float(gaps.min()),
        "boundary/outside": float(((now < 0) | (now > length)).mean()),
    }
