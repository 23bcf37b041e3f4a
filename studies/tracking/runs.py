"""The MLflow runs of one study. Every call may come again: what is there already stays, what is missing is added."""

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import LifecycleStage, Metric, Param, Run, RunTag, ViewType
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME
from mlflow.utils.uri import add_databricks_profile_info_to_artifact_uri

from studies.trials.messages import Report
from studies.trials.records import Record

_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
_STATE, _REASON = "hylorada.state", "hylorada.reason"
_RESTARTS = "hylorada.restarts"
CHILD_OF = (
    "hylorada.child_of"  # id of the study: finds the trials' runs also when the parent run is gone
)
_NOT_FINITE = "hylorada.not_finite"
_HASH, CLOSED_BY = "config_hash", "closed_by"
_SECONDS = "time/trial_seconds"
_BATCH = 500  # metrics that MLflow takes at once, with room to spare
_PAGE = 1000  # runs in an answer
_VALUE_LIMIT = 500  # characters of a parameter that a page still shows


@dataclass
class _Child:
    """What is known of a trial's run.

    Attributes:
        id: of the run.
        artifacts: where its artifacts are.
        started: epoch milliseconds.
        status: MLflow's.
        state: of the record it was closed with.
        closed_by: who closed it, if not the study itself.
        described: whether parameters and configuration are there.
        logged: last step that is there; -1 for none, None where that is still to be read.
        fresh: whether it has been made here, so that it holds nothing that is not known.
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
        return self.state == state and self.status == _STATUS.get(state)


_TRIAL = "hylorada.trial"  # its name: people rename runs in MLflow's page


class StudyRuns:
    """Parent and children of one study.

    Args:
        client: of the tracking store.
        experiment: id.
        parent: id of the parent run.
        study_id: of the study folder.
    """

    def __init__(self, client: MlflowClient, experiment: str, parent: str, study_id: str) -> None:
        self.client, self.parent = client, parent
        self._experiment, self._study_id = experiment, study_id
        self._children: dict[str, _Child] = {}
        self.restored = self.read()

    def read(self) -> int:
        """See which children there are; make it one active run a name.

        A second run of one name, from a call whose answer was lost, is deleted. A run that was deleted in MLflow's page
        is restored: made anew, it would be there twice.

        Returns:
            How many were restored.
        """
        runs: dict[str, list[Run]] = {}
        for run in search(
            self.client, self._experiment, f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.parent}'"
        ):
            runs.setdefault(run.data.tags.get(_TRIAL) or run.data.tags[MLFLOW_RUN_NAME], []).append(
                run
            )
        restored = 0
        for same in runs.values():
            same.sort(key=lambda run: (is_deleted(run), _HASH not in run.data.tags))
            restored += restore(self.client, same[0])
            for run in same[1:]:
                if not is_deleted(run):
                    self.client.delete_run(run.info.run_id)
        self._children = {name: _child(same[0]) for name, same in runs.items()}
        return restored

    def bring(self, record: Record) -> None:
        """Bring the run of a record in line with it, from making the run to ending it."""
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
        """What the study ran on; a value that has changed since is kept as a tag."""
        fresh, changed = _against(self.client.get_run(self.parent).data.params, params)
        self.client.log_batch(self.parent, params=fresh, tags=[*_tags(tags), *changed])

    def end(self, status: str) -> None:
        """End the parent and what is still running: the study was stopped, or broke, and may be resumed."""
        for child in self._children.values():
            if child.status == "RUNNING":
                self.client.set_terminated(child.id, status=status)
                child.status = status
        self.client.set_terminated(self.parent, status=status)

    def finish(self, files: Mapping[Path, str], metrics: Mapping[str, float], time: int) -> None:
        """Files and figures of the whole study, and the parent's end.

        Args:
            files: and in which folder of the parent's artifacts each is kept; those that are there.
            metrics: of the parent.
            time: of the metrics and of the end, epoch milliseconds; the same whenever this is told again.
        """
        run = self.client.get_run(self.parent)
        for path, folder in files.items():
            if path.exists():
                self._upload(run.info.artifact_uri, path, folder)
        finite = {k: v for k, v in metrics.items() if math.isfinite(v)}
        self.client.log_batch(
            self.parent, metrics=[Metric(k, v, time, 0) for k, v in finite.items()]
        )
        self._flag(self.parent, metrics, flagged=_NOT_FINITE in run.data.tags)
        began = run.info.start_time  # later than `time` where the database is a new one
        self.client.set_terminated(self.parent, status="FINISHED", end_time=max(began, time))

    def _flag(self, run: str, metrics: Mapping[str, float], *, flagged: bool = False) -> None:
        """Name the metrics that are left out as a tag: MLflow shows an infinite one as 1.797e308."""
        if lost := [f"{k} = {v}" for k, v in metrics.items() if not math.isfinite(v)]:
            self.client.set_tag(run, _NOT_FINITE, _shown(", ".join(lost)))
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
        made = self.client.create_run(self._experiment, start_time=started, tags=tags)
        child = self._children[record.name] = _child(made)
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
        fresh, changed = _against(self._params(child), values)
        tags = {_HASH: _hash({"adapter": record.adapter, "training": record.training})}
        if record.params:
            tags["hylorada.searched"] = ",".join(record.params)
        self.client.log_batch(
            child.id, params=fresh, tags=[*changed, *_tags(tags)]
        )  # MLflow writes tags last
        child.described = True

    def _params(self, child: _Child) -> Mapping[str, str]:
        return {} if child.fresh else dict(self.client.get_run(child.id).data.params)

    def _log(self, child: _Child, report: Report) -> None:
        """A report's metrics, step = optimizer step; a step that is there already is left alone."""
        if child.logged is None:
            history = self.client.get_metric_history(child.id, _SECONDS)
            child.logged = max((m.step for m in history), default=-1)
        if report.step <= child.logged:
            return
        if child.logged < 0:
            fresh, changed = _against(self._params(child), {"parameters": report.parameters})
            applied = _tags({f"applied.{k}": v for k, v in report.applied.items()})
            self.client.log_batch(child.id, params=fresh, tags=[*changed, *applied])
        # never the time of sending: MLflow keeps equal (name, time, step, value) once, so a lost answer costs nothing
        metrics = _metrics(report, report.time or child.started, first=child.logged < 0)
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
        self._flag(
            child.id,
            {k: v for r in record.reports for k, v in r.metrics.items() if not math.isfinite(v)},
        )
        status = _STATUS[record.state]
        last = record.reports[-1].time if record.reports else 0
        self.client.set_terminated(child.id, status=status, end_time=last or None)
        self.client.set_tag(child.id, _STATE, record.state)  # last: it says that all is there
        child.status, child.state = status, record.state

    def _log_boundaries(self, child: _Child, reports: Sequence[Report]) -> None:
        steps = np.array([0, *(r.step for r in reports)])
        positions = np.array([reports[0].start_boundaries, *(r.boundaries for r in reports)])
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "boundaries.npz"
            np.savez(path, steps=steps, positions=positions)
            self._upload(child.artifacts, path)

    def _log_config(self, child: _Child, record: Record) -> None:
        """All that decides what a trial is, whole: parameters are cut."""
        fields = ("arm", "stage", "seed", "data_seed", "params", "adapter", "training")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.json"
            path.write_text(
                json.dumps({f: getattr(record, f) for f in fields}, indent=1), encoding="utf-8"
            )
            self._upload(child.artifacts, path)

    def _upload(self, artifacts: str, path: Path, folder: str = "") -> None:
        """Put a file among a run's artifacts.

        MLflow's client would keep a thread pool for each of 1,024 runs, and the place of a run that was copied since.
        """
        uri = self.client.tracking_uri
        place = add_databricks_profile_info_to_artifact_uri(artifacts, uri)  # type: ignore[no-untyped-call]
        repository: Any = get_artifact_repository(place, tracking_uri=uri)
        repository.log_artifact(str(path), folder or None)


def search(
    client: MlflowClient, experiment: str, condition: str, view: int = ViewType.ALL
) -> Iterator[Run]:
    """Yield all runs of an experiment that meet a condition; also deleted ones, if not told otherwise."""
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
    """Return whether a run was deleted in MLflow's page, where it can be brought back."""
    return bool(run.info.lifecycle_stage == LifecycleStage.DELETED)


def restore(client: MlflowClient, run: Run) -> bool:
    """Bring a deleted run back, and return whether it was deleted."""
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


def _against(
    known: Mapping[str, str], params: Mapping[str, Any]
) -> tuple[list[Param], list[RunTag]]:
    """Parameters can't change in MLflow: those that are new, and as tags those that have changed since."""
    shown = {k: _shown(v) for k, v in params.items()}
    changed = [RunTag(f"resumed.{k}", v) for k, v in shown.items() if known.get(k, v) != v]
    return [Param(k, v) for k, v in shown.items() if k not in known], changed


def _tags(values: Mapping[str, Any]) -> list[RunTag]:
    return [RunTag(k, _shown(v)) for k, v in values.items()]


def _hash(values: Mapping[str, Any]) -> str:
    """Equal for equal configurations: a confirm run has that of the trial it repeats."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"


def _metrics(report: Report, time: int, *, first: bool) -> list[Metric]:
    """What MLflow is told of a report; the seconds come last, so that they tell whether all is there."""
    start = (
        {f"boundary/{i:03d}": b for i, b in enumerate(report.start_boundaries, 1)} if first else {}
    )
    values = {**report.metrics, **boundary_metrics(report), _SECONDS: report.seconds}
    return [Metric(k, v, time, 0) for k, v in start.items()] + [
        Metric(k, v, time, report.step) for k, v in values.items() if math.isfinite(v)
    ]


def boundary_metrics(report: Report) -> dict[str, float]:
    """``boundary/001``.. in token positions, their mean shift, the smallest gap, and the share outside the block."""
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
