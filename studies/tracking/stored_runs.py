"""What the storage folder's own MLflow database holds of a study, read without MLflow.

Importing MLflow and opening its store take seconds.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from studies.tracking.artifacts import artifact_folder, local_path

if TYPE_CHECKING:
    from mlflow.entities import Run

# Tags that :mod:`studies.tracking.runs` and :mod:`studies.tracking.parent_run` write.
STUDY, TRIAL, STATE = "hylorada.study", "hylorada.trial", "hylorada.state"
CHILD_OF = "hylorada.child_of"  # the study's id: finds the trials even without a parent run
# MLflow's status of a run by the state of its trial.
STATUS = {"complete": "FINISHED", "pruned": "KILLED", "diverged": "FAILED", "failed": "FAILED"}
_PARENT = """
    SELECT run_uuid, artifact_uri FROM runs JOIN tags USING (run_uuid)
    JOIN experiments USING (experiment_id)
    WHERE tags.key = ? AND tags.value = ? AND experiments.name = ?
    AND experiments.artifact_location = ? AND experiments.lifecycle_stage = 'active'
    AND runs.lifecycle_stage = 'active' AND runs.status = 'FINISHED'
"""
_CHILDREN = """
    SELECT trial.value, state.value, status FROM runs
    JOIN tags AS parent USING (run_uuid)
    JOIN tags AS trial USING (run_uuid)
    JOIN tags AS state USING (run_uuid)
    WHERE parent.key = 'mlflow.parentRunId' AND parent.value = ? AND trial.key = ?
    AND state.key = ? AND runs.lifecycle_stage = 'active'
"""
_BELOW = """
    SELECT run_uuid, runs.name, artifact_uri, start_time, status, lifecycle_stage,
    tags.key, tags.value
    FROM tags AS parent JOIN runs USING (run_uuid) JOIN tags USING (run_uuid)
    WHERE parent.key = 'mlflow.parentRunId' AND parent.value = ? AND runs.experiment_id = ?
    AND tags.key IN ({}) ORDER BY start_time DESC, run_uuid
"""
_RUNNING = """
    SELECT 1 FROM tags JOIN runs USING (run_uuid)
    WHERE tags.key IN (?, ?) AND tags.value = ? AND runs.status = 'RUNNING'
    AND runs.lifecycle_stage = 'active' LIMIT 1
"""


def holds_finished(
    storage: Path, name: str, study_id: str, trials: Mapping[str, str], files: Iterable[str]
) -> bool:
    """Return whether the database holds a study and all its trials as finished.

    The parent's status and the state of a trial are what a tracker writes last.

    Args:
        storage: storage folder with ``mlflow.db``.
        name: name of the study.
        study_id: id of the study folder.
        trials: state of each of its trials, by name.
        files: names of the files that its parent run must have as artifacts.
    """
    database = storage.resolve() / "mlflow.db"
    place = artifact_folder(storage, name).as_uri()
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            parents = connection.execute(_PARENT, (STUDY, study_id, name, place)).fetchall()
            if len(parents) != 1:
                return False
            parent, artifacts = parents[0]
            children = connection.execute(_CHILDREN, (parent, TRIAL, STATE)).fetchall()
    except sqlite3.Error:
        return False
    folder = local_path(artifacts)
    if folder is None or not all((folder / file).exists() for file in files):
        return False
    return sorted(children) == sorted((t, state, STATUS.get(state)) for t, state in trials.items())


@dataclass(frozen=True)
class StoredRun:
    """A trial's run as a tracking store holds it.

    Attributes:
        id: Id of the run.
        name: Its name, which people change in MLflow's page.
        artifacts: Location of its artifacts.
        started: Start in epoch milliseconds.
        status: MLflow's status.
        deleted: Whether it was deleted in MLflow's page; it can be restored.
        tags: Its tags, as far as they were asked for.
    """

    id: str
    name: str
    artifacts: str
    started: int
    status: str
    deleted: bool
    tags: dict[str, str] = field(default_factory=dict)


def of_client(run: "Run") -> StoredRun:
    """Return a run that MLflow's client has read."""
    info = run.info
    place = (info.run_id, info.run_name, info.artifact_uri, info.start_time, info.status)
    return StoredRun(*place, info.lifecycle_stage == "deleted", run.data.tags)


def children_of(
    database: Path, experiment: str, parent: str, tags: Sequence[str]
) -> list[StoredRun] | None:
    """Return the runs below a parent run, the latest first; None if the database can't be read.

    MLflow's client takes two milliseconds a run, because it reads all that a run holds.

    Args:
        database: SQLite file of MLflow.
        experiment: Id of the experiment.
        parent: Id of the parent run.
        tags: The tags to read.
    """
    query = _BELOW.format(", ".join("?" * len(tags)))
    address = f"{database.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True)) as stored:
            rows = stored.execute(query, (parent, experiment, *tags)).fetchall()
    except sqlite3.Error:
        return None
    runs: dict[str, StoredRun] = {}
    for run, name, artifacts, started, status, stage, key, value in rows:
        if run not in runs:
            runs[run] = StoredRun(run, name, artifacts, started, status, stage == "deleted")
        runs[run].tags[key] = value
    return list(runs.values())


def may_have_running(storage: Path, study_id: str) -> bool:
    """Return False if the storage folder's own database holds no running run of a study.

    The answer is True if the database can't be read: MLflow then says why.
    """
    database = storage.resolve() / "mlflow.db"
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as stored:
            return bool(stored.execute(_RUNNING, (STUDY, CHILD_OF, study_id)).fetchone())
    except sqlite3.Error:
        return True
