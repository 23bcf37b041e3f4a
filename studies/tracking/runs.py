"""The MLflow runs of one study.

Each call may be repeated: it adds what MLflow lacks, and leaves what is there unchanged.
"""

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Run, ViewType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME
from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri

from studies.process.mlflow_address import shown
from studies.tracking.mlflow_errors import is_temporary, reason_of
from studies.tracking.run_values import (
    SECONDS,
    hash_of,
    limited,
    new_and_changed,
    report_metrics,
    tags_of,
)
from studies.trials.messages import Report
from studies.trials.records import Record

_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
_STATE, _REASON = "hylorada.state", "hylorada.reason"
_RESTARTS = "hylorada.restarts"
CHILD_OF = "hylorada.child_of"  # the study's id: finds the trials even without a parent run
_TRIAL = "hylorada.trial"  # the trial's name: people rename runs in MLflow's page
_NOT_FINITE = "hylorada.not_finite"
_HASH, CLOSED_BY = "config_hash", "closed_by"
_BATCH = 500  # metrics in a request; MLflow's limit is 1,000
_PAGE = 1000  # runs in a response


@dataclass
class _Child:
    """What this process knows about a trial's run.

    Attributes:
        id: Id of the run.
        artifacts: Location of its artifacts.
        started: Start in epoch milliseconds.
        status: MLflow's status.
        state: State of the record that it was closed with.
        closed_by: Who closed it, if not the study itself.
        described: Whether it holds parameters and configuration.
        logged: Last step that it holds; -1 for none, None before that is read.
        fresh: Whether this process has created it, so that everything in it is known.
    """

    id: str
    artifacts: str
    started: int
    status: str = "RUNNING"
    state: str | None = None
    closed_by: str | None = None
    described: bool = False
    logged: int | None = None
    fresh: bool = False

    def has_ended_as(self, state: str) -> bool:
        """Return whether the run was closed with a record in this state."""
        return self.state == state and self.status == _STATUS.get(state)


class StudyRuns:
    """A `Tracker` that keeps one study in MLflow, as a parent run with a child for each trial.

    Args:
        client: Client of the tracking store.
        experiment: Id of the experiment.
        parent: Id of the parent run.
        study_id: Id of the study folder.
    """

    service = "MLflow"

    def __init__(self, client: MlflowClient, experiment: str, parent: str, study_id: str) -> None:
        self.client, self.parent = client, parent
        self._experiment, self._study_id = experiment, study_id
        self._children: dict[str, _Child] = {}
        self.restored = self.read()

    @property
    def address(self) -> str:
        """Address of the tracking store, without passwords."""
        return shown(self.client.tracking_uri)

    def read(self) -> int:
        """Read which children exist, and leave one active run for each name.

        A second run of the same name, created by a call whose answer was lost, is deleted. A run
        that was deleted in MLflow's page is restored, because a new one would be its duplicate.

        Returns:
            The number of restored runs.
        """
        runs: dict[str, list[Run]] = {}
        children = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.parent}'"
        for run in search(self.client, self._experiment, children):
            name = run.data.tags.get(_TRIAL) or run.data.tags[MLFLOW_RUN_NAME]
            runs.setdefault(name, []).append(run)
        restored = 0
        for same in runs.values():
            same.sort(key=lambda run: (is_deleted(run), _HASH not in run.data.tags))
            restored += restore(self.client, same[0])
            for run in same[1:]:
                if not is_deleted(run):
                    self.client.delete_run(run.info.run_id)
        self._children = {name: _child(same[0]) for name, same in runs.items()}
        return restored

    def update(self, record: Record) -> None:
        """Create a record's run if needed, and bring it up to date, including its end."""
        child = self._children.get(record.name) or self._create(record)
        if child.has_ended_as(record.state):
            return
        if record.state == "running" and child.status != "RUNNING":
            self._reopen(child)
        if not child.described:
            self._describe(child, record)
        for report in record.reports:
            self._log(child, report)
        if record.state != "running":
            self._close(child, record)

    def describe(self, tags: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Store what the study runs on; a value that differs from an earlier one becomes a tag."""
        fresh, changed = new_and_changed(self.client.get_run(self.parent).data.params, params)
        self.client.log_batch(self.parent, params=fresh, tags=[*tags_of(tags), *changed])

    def end(self, status: str) -> None:
        """End the parent run and all running trials, which may be resumed later."""
        self._end_running(status)
        self.client.set_terminated(self.parent, status=status)

    def finish(self, files: Mapping[Path, str], metrics: Mapping[str, float], time: int) -> None:
        """Store files and metrics of the whole study, and end the parent run.

        Trials that a time limit has left running may be resumed later.

        Args:
            files: The folder among the parent's artifacts for each file; missing files are skipped.
            metrics: Metrics of the parent run.
            time: Time of the metrics and of the end in epoch milliseconds; the same in each call.
        """
        self._end_running("KILLED")
        run = self.client.get_run(self.parent)
        for path, folder in files.items():
            if path.exists():
                self._upload(run.info.artifact_uri, path, folder)
        finite = {k: v for k, v in metrics.items() if math.isfinite(v)}
        self.client.log_batch(
            self.parent, metrics=[Metric(k, v, time, 0) for k, v in finite.items()]
        )
        self._flag(self.parent, metrics, flagged=_NOT_FINITE in run.data.tags)
        began = run.info.start_time  # later than `time` if the database is newer than the study
        self.client.set_terminated(self.parent, status="FINISHED", end_time=max(began, time))

    def _end_running(self, status: str) -> None:
        for child in self._children.values():
            if child.status == "RUNNING":
                self.client.set_terminated(child.id, status=status)
                child.status = status

    def _flag(self, run: str, metrics: Mapping[str, float], *, flagged: bool = False) -> None:
        """List non-finite metrics in a tag: MLflow would show an infinite one as 1.797e308."""
        if omitted := [f"{k} = {v}" for k, v in metrics.items() if not math.isfinite(v)]:
            self.client.set_tag(run, _NOT_FINITE, limited(", ".join(omitted)))
        elif flagged:
            self.client.delete_tag(run, _NOT_FINITE)

    def _create(self, record: Record) -> _Child:
        tags = {
            MLFLOW_PARENT_RUN_ID: self.parent,
            MLFLOW_RUN_NAME: record.name,
            _TRIAL: record.name,
            CHILD_OF: self._study_id,
            "hylorada.arm": record.arm,
            "hylorada.stage": record.stage,
            "hylorada.search": str(record.search),
        }
        if record.block is not None:
            tags["hylorada.block"] = str(record.block)
        first = record.reports[0] if record.reports else None
        started = first.time - int(1000 * first.seconds) if first and first.time else None
        run = self.client.create_run(self._experiment, start_time=started, tags=tags)
        child = self._children[record.name] = _child(run)
        child.logged, child.fresh = -1, True
        return child

    def _reopen(self, child: _Child) -> None:
        self.client.update_run(child.id, status="RUNNING")
        child.status = "RUNNING"
        if child.closed_by:
            self.client.delete_tag(child.id, CLOSED_BY)
            child.closed_by = None

    def _describe(self, child: _Child, record: Record) -> None:
        self._log_config(child, record)
        values = {**record.adapter, **record.training, "arm": record.arm, "seed": record.seed}
        fresh, changed = new_and_changed(self._params(child), values)
        tags = {_HASH: hash_of({"adapter": record.adapter, "training": record.training})}
        if record.params:
            tags["hylorada.searched"] = ",".join(record.params)
        # MLflow writes tags last, so the hash marks the description as complete.
        self.client.log_batch(child.id, params=fresh, tags=[*changed, *tags_of(tags)])
        child.described = True

    def _params(self, child: _Child) -> Mapping[str, str]:
        return {} if child.fresh else dict(self.client.get_run(child.id).data.params)

    def _log(self, child: _Child, report: Report) -> None:
        """Log a report's metrics by optimizer step, unless MLflow holds that step already."""
        if child.logged is None:
            history = self.client.get_metric_history(child.id, SECONDS)
            child.logged = max((m.step for m in history), default=-1)
        if report.step <= child.logged:
            return
        if child.logged < 0:
            fresh, changed = new_and_changed(self._params(child), {"parameters": report.parameters})
            applied = tags_of({f"applied.{k}": v for k, v in report.applied.items()})
            self.client.log_batch(child.id, params=fresh, tags=[*changed, *applied])
        # Use the report's timestamp, not the current time: MLflow deduplicates identical
        # (key, timestamp, step, value), so a retry is safe.
        metrics = report_metrics(report, report.time or child.started, first=child.logged < 0)
        for start in range(0, len(metrics), _BATCH):
            self.client.log_batch(child.id, metrics=metrics[start : start + _BATCH])
        child.logged = report.step

    def _close(self, child: _Child, record: Record) -> None:
        if any(r.boundaries for r in record.reports):
            self._log_boundaries(child, record.reports)
        if record.reason:
            self.client.set_tag(child.id, _REASON, record.reason[:5000])
        if record.restarts:
            self.client.set_tag(child.id, _RESTARTS, str(record.restarts))
        omitted: dict[str, float] = {}
        for report in record.reports:
            omitted |= {k: v for k, v in report.metrics.items() if not math.isfinite(v)}
        self._flag(child.id, omitted)
        status = _STATUS[record.state]
        last = record.reports[-1].time if record.reports else 0
        self.client.set_terminated(child.id, status=status, end_time=last or None)
        # The state comes last: it marks the run as complete.
        self.client.set_tag(child.id, _STATE, record.state)
        child.status, child.state = status, record.state

    def _log_boundaries(self, child: _Child, reports: Sequence[Report]) -> None:
        steps = np.array([0, *(r.step for r in reports)])
        positions = np.array([reports[0].start_boundaries, *(r.boundaries for r in reports)])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "boundaries.npz"
            np.savez(path, steps=steps, positions=positions)
            self._upload(child.artifacts, path)

    def _log_config(self, child: _Child, record: Record) -> None:
        """Store the whole configuration of a trial as a file: long parameters are cut."""
        fields = ("arm", "stage", "seed", "data_seed", "params", "adapter", "training")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            values = {f: getattr(record, f) for f in fields}
            path.write_text(json.dumps(values, indent=1), encoding="utf-8")
            self._upload(child.artifacts, path)

    def _upload(self, artifacts: str, path: Path, folder: str = "") -> None:
        """Add a file to a run's artifacts.

        `MlflowClient.log_artifact` is not used: it would cache a thread pool for each of up to
        1,024 runs, and the former location of a run whose artifacts have moved.
        """
        uri = self.client.tracking_uri
        place = add_databricks_profile_info_to_artifact_uri(artifacts, uri)  # type: ignore[no-untyped-call]
        repository: Any = get_artifact_repository(place, tracking_uri=uri)
        repository.log_artifact(str(path), folder or None)

    def is_temporary(self, error: Exception) -> bool:
        """Return whether a failed call may succeed later."""
        return is_temporary(error)

    def reason(self, error: Exception) -> str:
        """Return why a call failed, in few words."""
        return reason_of(error)


def search(
    client: MlflowClient, experiment: str, condition: str, view: int = ViewType.ALL
) -> Iterator[Run]:
    """Yield all runs of an experiment that meet a condition, by default deleted ones too."""
    token = None
    while True:
        page = client.search_runs(
            [experiment], condition, view, max_results=_PAGE, page_token=token
        )
        yield from page
        token = page.token
        if not token:
            return


def is_deleted(run: Run) -> bool:
    """Return whether a run was deleted in MLflow's page; it can be restored."""
    return bool(run.info.lifecycle_stage == LifecycleStage.DELETED)


def restore(client: MlflowClient, run: Run) -> bool:
    """Restore a run if it was deleted, and return whether it was."""
    if is_deleted(run):
        client.restore_run(run.info.run_id)
    return is_deleted(run)


def _child(run: Run) -> _Child:
    tags = run.data.tags
    return _Child(
        id=run.info.run_id,
        artifacts=run.info.artifact_uri,
        started=run.info.start_time,
        status=run.info.status,
        state=tags.get(_STATE),
        closed_by=tags.get(CLOSED_BY),
        described=_HASH in tags,
    )
