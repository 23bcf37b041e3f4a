"""The values of a study as MLflow's parameters, tags and metrics."""

import getpass
import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from mlflow.entities import Metric, Param, RunTag
from mlflow.utils.mlflow_tags import MLFLOW_SOURCE_NAME, MLFLOW_SOURCE_TYPE, MLFLOW_USER

from studies.trials.messages import Report
from studies.trials.records import Record

SECONDS = "time/trial_seconds"
PRIMARY = "eval/ppl"  # what runs are compared by
HASH, FORM = "config_hash", "hylorada.form"
_FORM = "2"  # raise it when the description of a trial changes, so that earlier runs are completed
_FIRST = ("nll", "ppl")  # of each split; MLflow draws a chart of every metric, sorted by name
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


def hash_of(values: Any) -> str:
    """Return a hash of a configuration; a confirm run has the same hash as the trial it repeats."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def limited(value: Any) -> str:
    """Return a value as text, visibly cut if MLflow's page would not show all of it."""
    text = str(value)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"


def origin() -> dict[str, str]:
    """Return the tags that fill the page's columns for user and source."""
    tags = {MLFLOW_SOURCE_NAME: "hylorada", MLFLOW_SOURCE_TYPE: "LOCAL"}
    with suppress(OSError, KeyError):  # in a container, a user may have no name
        tags[MLFLOW_USER] = getpass.getuser()
    return tags


def trial_params(record: Record) -> dict[str, Any]:
    """Return the parameters of a trial.

    When runs are compared, MLflow's page starts from the first three of the parameters that differ
    between them, in alphabetical order: with the adapter's own under ``method.``, the arm and the
    learning rate are among them.
    """
    method = {f"method.{k}": v for k, v in record.adapter.items()}
    return {"arm": record.arm, "seed": record.seed, **record.training, **method}


def trial_tags(record: Record) -> dict[str, Any]:
    """Return the tags that trials are filtered and grouped by, and those that mark a description.

    MLflow writes tags after parameters, so that a run with them is described completely.
    """
    config = hash_of({"adapter": record.adapter, "training": record.training})
    tags = {"arm": record.arm, "stage": record.stage, "search": record.search, "seed": record.seed}
    if record.block is not None:
        tags["block"] = record.block
    if record.winner:
        tags["clone_of" if record.stage == "added" else "winner"] = record.winner
    if record.stage == "confirm":
        tags["factor"] = record.factor
    if record.params:
        tags["searched"] = ",".join(record.params)
    return {**{f"hylorada.{k}": v for k, v in tags.items()}, HASH: config, FORM: _FORM}


def is_described(tags: Mapping[str, str]) -> bool:
    """Return whether a run has all that this version describes a trial with."""
    return HASH in tags and tags.get(FORM) == _FORM


def metric_name(name: str) -> str:
    """Return a report's metric under its name in MLflow: details of a split follow its loss."""
    split, _, figure = name.partition("/")
    return name if figure in _FIRST else f"{split}_detail/{figure}"


def report_metrics(report: Report, time: int) -> list[Metric]:
    """Return the metrics of a report.

    The perplexity comes first, because MLflow's page compares runs by the metric that was stored
    first. The seconds come last: if a run has them for a step, it has all metrics of that step.

    Args:
        report: The report.
        time: Timestamp in epoch milliseconds.
    """
    named = {metric_name(k): v for k, v in report.metrics.items()}
    first = {k: named[k] for k in (PRIMARY,) if k in named}
    values = {**first, **named, **boundary_metrics(report), SECONDS: report.seconds}
    return [Metric(k, v, time, report.step) for k, v in values.items() if math.isfinite(v)]


def boundary_metrics(report: Report) -> dict[str, float]:
    """Return the metrics of a report's learned boundaries; none without such boundaries.

    Returns:
        Their mean shift from the start and the smallest gap, in token positions, and the share of
        boundaries outside the block. The boundaries themselves are in the run's artifacts.
    """
    if not report.boundaries:
        return {}
    now, start = np.array(report.boundaries), np.array(report.start_boundaries)
    length = float(report.applied["max_positions"])
    gaps = np.diff(np.concatenate([[0.0], now, [length]]))
    return {
        "train_detail/boundary_shift": float(np.abs(now - start).mean()),
        "train_detail/boundary_min_gap": float(gaps.min()),
        "train_detail/boundary_outside": float(((now < 0) | (now > length)).mean()),
    }
