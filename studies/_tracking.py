"""MLflow: a parent run for the study, a child for each trial; one writer, explicit run ids."""

import math
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from hylorada import InputError

from ._job import Report
from ._store import Record

_STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
_SECONDS = "time/trial_seconds"
_BATCH = 500  # metrics that MLflow takes at once, with room to spare
_VALUE_LIMIT = 500  # characters of a parameter that a page still shows


def default_uri(storage: Path) -> str:
    """SQLite in the storage folder."""
    return f"sqlite:///{storage.resolve() / 'mlflow.db'}"


def check_tracking(uri: str) -> list[str]:
    """Problems with a tracking address, without making anything there."""
    if uri.startswith(("http://", "https://")):
        return _check_server(uri)
    if uri.startswith("sqlite:"):
        return _check_sqlite(uri)
    if uri.startswith(("postgresql", "mysql", "mssql", "databricks")):
        return []
    if "://" in uri and not uri.startswith("file:"):
        return [f"tracking_uri {uri!r} is of no known kind; use sqlite:///PATH or a server, http://HOST:PORT"]
    return [
        f"tracking_uri {uri!r}: MLflow no longer serves folders of files; use sqlite:///PATH or a server "
        "(mlflow migrate-filestore --source FOLDER --target sqlite:///PATH brings earlier runs along)"
    ]


def _check_sqlite(uri: str) -> list[str]:
    if not uri.startswith("sqlite:///") or uri == "sqlite:///":
        return [f"tracking_uri {uri!r} names no file; use sqlite:///PATH"]
    path = Path(uri.removeprefix("sqlite:///").partition("?")[0])
    if path.is_dir():
        return [f"tracking_uri {uri!r}: {path} is a folder; name a file in it"]
    if path.is_file() and path.stat().st_size and not _is_sqlite(path):
        return [f"tracking_uri {uri!r}: {path} is no SQLite database"]
    if problem := unwritable(path.parent):
        return [f"tracking_uri {uri!r} can't be written: {problem}"]
    return [] if path.parent.is_dir() else [f"tracking_uri {uri!r}: no folder {path.parent}"]


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def unwritable(folder: Path) -> str | None:
    """Why a folder, there or not yet there, can't be written to; None where it can. Leaves no trace."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if os.path.exists(p))
    if not os.path.isdir(existing):
        return f"{existing} is a file"
    try:
        with tempfile.TemporaryFile(dir=existing):
            return None
    except OSError as error:
        return f"{existing} takes no new file ({error.strerror})"


def _check_server(uri: str) -> list[str]:
    import requests  # MLflow's own client library

    try:
        answer = requests.get(f"{uri.rstrip('/')}/health", timeout=5)
    except requests.RequestException as error:
        return [f"tracking_uri {uri!r} can't be reached: {type(error).__name__}; is `mlflow server` running there?"]
    return [] if answer.ok else [f"tracking_uri {uri!r} answers {answer.status_code} at /health"]


class Tracker:
    """Writes one study to MLflow; opened again after a crash it goes on in the same runs.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        artifacts: folder for artifacts of a local store; None leaves it to the server.
        study_id: ties the parent run to one study folder.
    """

    def __init__(self, uri: str, experiment: str, *, artifacts: Path | None, study_id: str) -> None:
        self.client = MlflowClient(tracking_uri=uri)
        self._experiment = self._open_experiment(experiment, artifacts)
        self.parent = self._open_parent(experiment, study_id)
        self._runs: dict[str, str] = {}
        self._logged: dict[str, int] = {}
        self._described: set[str] = set()
        self._ended: set[str] = set()
        self._find_children()

    def catch_up(self, records: Iterable[Record]) -> None:
        """Bring the runs of ended records in line: a crash may have come between the store and MLflow."""
        for record in records:
            if record.state != "running" and record.name not in self._ended:
                self.open(record)
                self.close(record)

    def describe(self, tags: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """What the study ran on: tags and parameters of the parent; a value that has changed since is kept as a tag."""
        known = self.client.get_run(self.parent).data.params
        fresh = {k: v for k, v in params.items() if k not in known}
        changed = {f"resumed.{k}": v for k, v in params.items() if k in known and known[k] != _shown(v)}
        self.client.log_batch(
            self.parent,
            params=[Param(k, _shown(v)) for k, v in fresh.items()],
            tags=[RunTag(k, _shown(v)) for k, v in {**tags, **changed}.items()],
        )

    def open(self, record: Record) -> None:
        """The child run of a record: made, or reopened after a crash, with all its reports so far."""
        if record.name not in self._runs:
            self._runs[record.name] = self._create(record)
        if record.name not in self._described:
            self._describe(record)
        if record.state == "running":
            self.client.update_run(self._runs[record.name], status="RUNNING")
        for report in record.reports:
            self.report(record.name, report)

    def report(self, name: str, report: Report) -> None:
        """Log a report's metrics, step = optimizer step; a step that is logged already is left alone."""
        if report.step <= self._logged.get(name, -1):
            return
        now = int(time.time() * 1000)
        first = name not in self._logged
        metrics = [*_start_metrics(report, now)] if first and report.start_boundaries else []
        metrics += [Metric(k, v, now, report.step) for k, v in _metrics(report).items() if math.isfinite(v)]
        params = [Param("parameters", str(report.parameters))] if first else []
        applied = [RunTag(f"applied.{k}", _shown(v)) for k, v in report.applied.items()] if first else []
        self.client.log_batch(self._runs[name], params=params, tags=applied)
        for start in range(0, len(metrics), _BATCH):
            self.client.log_batch(self._runs[name], metrics=metrics[start : start + _BATCH])
        self._logged[name] = report.step

    def close(self, record: Record) -> None:
        """End the child run with the status that its record says."""
        run = self._runs[record.name]
        self.client.set_tag(run, "hylorada.state", record.state)
        if record.reason:
            self.client.set_tag(run, "hylorada.reason", record.reason[:5000])
        if any(r.boundaries for r in record.reports):
            self._log_boundaries(run, record.reports)
        self.client.set_terminated(run, status=_STATUS[record.state])
        self._ended.add(record.name)

    def abort(self, records: Sequence[Record], status: str) -> None:
        """End the parent and what is still running: the study was stopped, or broke, and may be resumed.

        The stop may have come in the middle of any call, so what is there is read anew.
        """
        self._ended.clear()
        self._find_children()
        self.catch_up(records)
        for name, run in self._runs.items():
            if name not in self._ended:
                self.client.set_terminated(run, status=status)
        self.client.set_terminated(self.parent, status=status)

    def finish(self, files: Sequence[Path], block_nll: Sequence[Path], metrics: Mapping[str, float]) -> None:
        """Files and figures of the whole study, and the parent's end.

        Args:
            files: for the parent's artifacts, as far as they are there.
            block_nll: ``TRIAL/test_block_nll.npy`` files, kept as ``block_nll/TRIAL``.
            metrics: of the parent.
        """
        for path in filter(Path.exists, files):
            self.client.log_artifact(self.parent, str(path))
        for path in filter(Path.exists, block_nll):
            self.client.log_artifact(self.parent, str(path), artifact_path=f"block_nll/{path.parent.name}")
        now = int(time.time() * 1000)
        self.client.log_batch(self.parent, metrics=[Metric(k, v, now, 0) for k, v in metrics.items()])
        self.client.set_terminated(self.parent, status="FINISHED")

    def _open_experiment(self, name: str, artifacts: Path | None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            if found.lifecycle_stage == "deleted":
                raise InputError(f"MLflow's experiment {name!r} is deleted; restore it, or name the study otherwise")
            return str(found.experiment_id)
        location = None if artifacts is None else artifacts.resolve().as_uri()
        try:
            return str(self.client.create_experiment(name, artifact_location=location))
        except MlflowException as error:
            raise InputError(f"MLflow can't make experiment {name!r}: {error.message}") from error

    def _open_parent(self, name: str, study_id: str) -> str:
        found = self.client.search_runs([self._experiment], f"tags.`hylorada.study` = '{study_id}'", max_results=1)
        if found:
            run_id = str(found[0].info.run_id)
            self.client.update_run(run_id, status="RUNNING")
            return run_id
        tags = {"hylorada.study": study_id, MLFLOW_RUN_NAME: name}
        return str(self.client.create_run(self._experiment, tags=tags).info.run_id)

    def _find_children(self) -> None:
        token = None
        while True:
            page = self.client.search_runs(
                [self._experiment],
                f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.parent}'",
                max_results=1000,
                page_token=token,
            )
            for run in page:
                name = run.data.tags[MLFLOW_RUN_NAME]
                self._runs[name] = run.info.run_id
                if "arm" in run.data.params:
                    self._described.add(name)
                if run.info.status in _STATUS.values():
                    self._ended.add(name)
                if _SECONDS in run.data.metrics:  # the last of each report's
                    history = self.client.get_metric_history(run.info.run_id, _SECONDS)
                    self._logged[name] = max(m.step for m in history)
            token = page.token
            if not token:
                return

    def _create(self, record: Record) -> str:
        tags = {
            MLFLOW_PARENT_RUN_ID: self.parent,
            MLFLOW_RUN_NAME: record.name,
            "hylorada.arm": record.arm,
            "hylorada.stage": record.stage,
        }
        return str(self.client.create_run(self._experiment, tags=tags).info.run_id)

    def _describe(self, record: Record) -> None:
        values = {**record.adapter, **record.training, "arm": record.arm, "seed": record.seed}
        params = [Param(k, _shown(v)) for k, v in values.items()]
        searched = [RunTag("hylorada.searched", _shown(",".join(record.params)))] if record.params else []
        self.client.log_batch(self._runs[record.name], params=params, tags=searched)
        self._described.add(record.name)

    def _log_boundaries(self, run: str, reports: Sequence[Report]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "boundaries.npz"
            steps = np.array([0, *(r.step for r in reports)])
            np.savez(
                path, steps=steps, positions=np.array([reports[0].start_boundaries, *(r.boundaries for r in reports)])
            )
            self.client.log_artifact(run, str(path))


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _VALUE_LIMIT else text[: _VALUE_LIMIT - 1] + "…"


def _start_metrics(report: Report, now: int) -> list[Metric]:
    return [Metric(f"boundary/{i:03d}", b, now, 0) for i, b in enumerate(report.start_boundaries, 1)]


def _metrics(report: Report) -> dict[str, float]:
    """A report's metrics with the boundaries as series of their own."""
    return {**report.metrics, **boundary_metrics(report), _SECONDS: report.seconds}


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
