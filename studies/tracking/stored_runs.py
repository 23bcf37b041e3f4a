"""What the storage folder's own MLflow database holds of a study, read without MLflow.

Importing MLflow and opening its store take seconds.
"""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from studies.tracking.artifacts import artifact_folder, local_path

# Tags that :mod:`studies.tracking.runs` and :mod:`studies.tracking.parent_run` write.
STUDY, TRIAL, STATE = "hylorada.study", "hylorada.trial", "hylorada.state"
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
