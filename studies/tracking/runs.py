"""The MLflow runs of one study.

Each call may be repeated: it adds what MLflow lacks, and leaves what is there unchanged.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import DatasetInput, LifecycleStage, Metric, Run, RunTag, ViewType
from mlflow.utils.mlflow_tags import (
    MLFLOW_PARENT_RUN_ID,
    MLFLOW_RUN_NAME,
    MLFLOW_RUN_NOTE,
)

from studies.files.paths import database_path
from studies.process.mlflow_address import shown
from studies.tracking.mlflow_errors import is_temporary, reason_of
from studies.tracking.run_values import (
    FORM,
    HASH,
    SECONDS,
    is_described,
    limited,
    new_and_changed,
    origin,
    report_metrics,
    tags_of,
    trial_params,
    trial_tags,
)
from studies.tracking.shown.boundaries import boundary_files
from studies.tracking.shown.descriptions import (
    EXPERIMENT_TAGS,
    PROVENANCE,
    begun,
    few_tags,
    inputs_of,
    linked,
    note_tags,
)
from studies.tracking.stored_runs import (
    CHILD_OF,
    STATE,
    STATUS,
    TRIAL,
    StoredRun,
    children_of,
    of_client,
)
from studies.tracking.uploads import upload, upload_content, upload_json
from studies.trials.messages import Report
from studies.trials.records import Record

_SEARCHED = ("train", "validation")  # the splits that every trial reads
_REASON = "hylorada.reason"
_RESTARTS = "hylorada.restarts"
_NOT_FINITE = "hylorada.not_finite"
_WINNER = "hylorada.winner"  # the search trial whose configuration a run repeats, on that trial too
CLOSED_BY = "closed_by"
_PAGE = 1000  # runs in a response
_READ = (TRIAL, STATE, CLOSED_BY, _WINNER, HASH, FORM, MLFLOW_PARENT_RUN_ID)  # tags


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
        won: Whether it is marked as the winner of a search.
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
    won: bool = False
    described: bool = False
    logged: int | None = None
    fresh: bool = False

    def has_ended_as(self, state: str) -> bool:
        """Return whether the run was closed with a record in this state."""
        return self.state == state and self.status == STATUS.get(state)


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
        self._inputs: Mapping[str, DatasetInput] = {}  # text and base, by context
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
        runs: dict[str, list[StoredRun]] = {}
        for run in self._stored():
            runs.setdefault(run.tags.get(TRIAL) or run.name, []).append(run)
        restored = 0
        for same in runs.values():
            same.sort(key=lambda run: (run.deleted, HASH not in run.tags))
            if same[0].deleted:
                self.client.restore_run(same[0].id)
                restored += 1
            for run in same[1:]:
                if not run.deleted:
                    self.client.delete_run(run.id)
        self._children = {name: _child(same[0]) for name, same in runs.items()}
        return restored

    def _stored(self) -> list[StoredRun]:
        """Return all runs below the parent run, deleted ones too, the latest first."""
        database = database_path(self.client.tracking_uri)
        if database is not None:
            runs = children_of(database, self._experiment, self.parent, _READ)
            if runs is not None:
                return runs
        children = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{self.parent}'"
        return [of_client(run) for run in search(self.client, self._experiment, children)]

    def update(self, record: Record) -> None:
        """Create a record's run if needed, and bring it up to date, including its end."""
        child = self._children.get(record.name) or self._create(record)
        ended = child.has_ended_as(record.state)
        if record.state == "running" and child.status != "RUNNING":
            self._reopen(child)
        if not child.described:  # new, or of an earlier version
            self._describe(child, record)
        if not ended:
            for report in record.reports:
                self._log(child, report)
            if record.state != "running":
                self._close(child, record)
        if record.stage == "confirm":
            self._mark_winner(record.winner)

    def describe(self, provenance: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Store what the study runs on; a parameter that differs from an earlier one becomes a tag.

        The provenance is one artifact. Earlier versions stored each of its values as a tag.
        """
        self._inputs = inputs_of(provenance)
        run = self.client.get_run(self.parent)
        if self._inputs:
            self.client.log_inputs(self.parent, list(self._inputs.values()))
        if provenance:
            upload_json(self.client.tracking_uri, run.info.artifact_uri, PROVENANCE, provenance)
        fresh, changed = new_and_changed(run.data.params, params)
        tags = tags_of({**origin(), **few_tags(provenance)})
        self.client.log_batch(self.parent, params=fresh, tags=[*tags, *changed])
        for key in provenance.keys() & run.data.tags.keys():
            self.client.delete_tag(self.parent, key)
        if provenance and MLFLOW_RUN_NOTE not in run.data.tags:
            self._explain(run, begun(provenance), [PROVENANCE])
        known = self.client.get_experiment(self._experiment).tags
        self._tag_experiment({k: v for k, v in EXPERIMENT_TAGS.items() if k not in known})

    def _tag_experiment(self, tags: Mapping[str, str]) -> None:
        for key, value in tags.items():
            self.client.set_experiment_tag(self._experiment, key, value)

    def end(self, status: str) -> None:
        """End the parent run and all running trials, which may be resumed later."""
        self._end_running(status)
        self.client.set_terminated(self.parent, status=status)

    def finish(
        self,
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        time: int,
        description: str = "",
    ) -> None:
        """Store files, metrics and description of the whole study, and end the parent run.

        Trials that a time limit has left running may be resumed later.

        Args:
            files: The folder among the parent's artifacts for each file; missing files are skipped.
            metrics: Metrics of the parent run.
            time: Time of the metrics and of the end in epoch milliseconds; the same in each call.
            description: The study's answer in Markdown.
        """
        self._end_running("KILLED")
        run = self.client.get_run(self.parent)
        there = {path: folder for path, folder in files.items() if path.exists()}
        for path, folder in there.items():
            upload(self.client.tracking_uri, run.info.artifact_uri, path, folder)
        finite = {k: v for k, v in metrics.items() if math.isfinite(v)}
        self.client.log_batch(
            self.parent, metrics=[Metric(k, v, time, 0) for k, v in finite.items()]
        )
        self._flag(self.parent, metrics, flagged=_NOT_FINITE in run.data.tags)
        if description:
            self._explain(run, description, [p.name for p, folder in there.items() if not folder])
        began = run.info.start_time  # later than `time` if the database is newer than the study
        self.client.set_terminated(self.parent, status="FINISHED", end_time=max(began, time))

    def _explain(self, parent: Run, description: str, files: list[str]) -> None:
        """Describe the parent run and the experiment, unless a user has described them."""
        text = linked(description, self._experiment, self.parent, files)
        if tags := note_tags(parent.data.tags, text):
            self.client.log_batch(self.parent, tags=[RunTag(k, v) for k, v in tags.items()])
        known = self.client.get_experiment(self._experiment).tags
        # Above the table of runs, the page shows one line.
        self._tag_experiment(note_tags(known, text.replace("  \n", "\n\n", 1)))

    def _end_running(self, status: str) -> None:
        for child in self._children.values():
            if child.status != "RUNNING":
                continue
            try:
                self.client.set_terminated(child.id, status=status)
            except Exception as error:  # a run that a user has deleted holds up no other
                if is_temporary(error):
                    raise
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
            TRIAL: record.name,
            CHILD_OF: self._study_id,
            **origin(),
        }
        first = record.reports[0] if record.reports else None
        started = first.time - int(1000 * first.seconds) if first and first.time else None
        run = self.client.create_run(self._experiment, start_time=started, tags=tags)
        child = self._children[record.name] = _child(of_client(run))
        child.logged, child.fresh = -1, True
        return child

    def _mark_winner(self, trial: str) -> None:
        """Mark a search trial whose configuration is trained again on fresh seeds."""
        child = self._children.get(trial)
        if child is not None and not child.won:
            self.client.set_tag(child.id, _WINNER, trial)
            child.won = True

    def _reopen(self, child: _Child) -> None:
        self.client.update_run(child.id, status="RUNNING")
        child.status = "RUNNING"
        if child.closed_by:
            self.client.delete_tag(child.id, CLOSED_BY)
            child.closed_by = None

    def _describe(self, child: _Child, record: Record) -> None:
        fields = ("arm", "stage", "seed", "data_seed", "params", "adapter", "training")
        # The whole configuration, because long parameters are cut.
        config = {f: getattr(record, f) for f in fields}
        upload_json(self.client.tracking_uri, child.artifacts, "config.json", config)
        read = ("train", "validation", "test") if record.stage == "confirm" else _SEARCHED
        if inputs := [self._inputs[split] for split in read if split in self._inputs]:
            self.client.log_inputs(child.id, inputs)
        fresh, changed = new_and_changed(self._params(child), trial_params(record))
        tags = tags_of(trial_tags(record))
        self.client.log_batch(child.id, params=fresh, tags=[*changed, *tags])
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
            uri = self.client.tracking_uri
            upload_json(uri, child.artifacts, "applied.json", report.applied)
            fresh, changed = new_and_changed(self._params(child), {"parameters": report.parameters})
            self.client.log_batch(child.id, params=fresh, tags=changed)
        # Use the report's timestamp, not the current time: MLflow deduplicates identical
        # (key, timestamp, step, value), so a retry is safe.
        metrics = report_metrics(report, report.time or child.started)
        self.client.log_batch(child.id, metrics=metrics)
        child.logged = report.step

    def _close(self, child: _Child, record: Record) -> None:
        for name, content in boundary_files(record.reports).items():
            upload_content(self.client.tracking_uri, child.artifacts, name, content)
        if record.reason:
            self.client.set_tag(child.id, _REASON, record.reason[:5000])
        if record.restarts:
            self.client.set_tag(child.id, _RESTARTS, str(record.restarts))
        omitted: dict[str, float] = {}
        for report in record.reports:
            omitted |= {k: v for k, v in report.metrics.items() if not math.isfinite(v)}
        self._flag(child.id, omitted)
        status = STATUS[record.state]
        last = record.reports[-1].time if record.reports else 0
        self.client.set_terminated(child.id, status=status, end_time=last or None)
        # The state comes last: it marks the run as complete.
        self.client.set_tag(child.id, STATE, record.state)
        child.status, child.state = status, record.state

    def run_ids(self) -> Mapping[str, str]:
        """Return the id of each trial's run that is known, by name of the trial."""
        return {name: child.id for name, child in dict(self._children).items()}

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


def _child(run: StoredRun) -> _Child:
    return _Child(
        id=run.id,
        artifacts=run.artifacts,
        started=run.started,
        status=run.status,
        state=run.tags.get(STATE),
        closed_by=run.tags.get(CLOSED_BY),
        won=_WINNER in run.tags,
        described=is_described(run.tags),
    )
