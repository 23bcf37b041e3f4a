"""The parent run of a study in MLflow: found, created, restored, or ended for a dead process."""

from collections.abc import Callable

from mlflow import MlflowClient
from mlflow.entities import Run, ViewType
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID, MLFLOW_RUN_NAME

from studies.tracking.runs import CLOSED_BY, StudyRuns, is_deleted, restore, search
from studies.tracking.stored_runs import CHILD_OF, STUDY


def find_parent(client: MlflowClient, experiment: str, study_id: str) -> Run | None:
    """Return the parent run of one study folder; a deleted one only if there is no other."""
    return min(
        search(client, experiment, f"tags.`{STUDY}` = '{study_id}'"), key=is_deleted, default=None
    )


def open_study(
    client: MlflowClient, experiment: str, name: str, study_id: str, say: Callable[[str], None]
) -> StudyRuns:
    """Return the runs of one study folder, with its parent running and all children attached.

    Args:
        client: Client of the tracking store.
        experiment: Id of the experiment.
        name: Name of the parent run if it has to be created.
        study_id: Id of the study folder.
        say: Called with a line about runs that were restored or attached.
    """
    parent = find_parent(client, experiment, study_id)
    if parent is None:
        parent = client.create_run(experiment, tags={STUDY: study_id, MLFLOW_RUN_NAME: name})
    restored = ["the study's run"] if restore(client, parent) else []
    client.update_run(parent.info.run_id, status="RUNNING")
    if CLOSED_BY in parent.data.tags:
        client.delete_tag(parent.info.run_id, CLOSED_BY)
    attached = _attach(client, experiment, parent.info.run_id, study_id)
    runs = StudyRuns(client, experiment, parent.info.run_id, study_id)
    if runs.restored:
        restored.append(_counted(runs.restored))
    if restored:
        say(f"MLflow: restored {' and '.join(restored)}, which had been deleted")
    if attached:
        say(f"MLflow: attached {_counted(attached)}, whose parent run was gone, to the study's run")
    return runs


def _counted(runs: int) -> str:
    return f"{runs} trial run{'s' if runs > 1 else ''}"


def _attach(client: MlflowClient, experiment: str, parent: str, study_id: str) -> int:
    """Move the runs of the study's trials below its parent run, and return how many moved."""
    elsewhere = f"tags.`{CHILD_OF}` = '{study_id}' and tags.`{MLFLOW_PARENT_RUN_ID}` != '{parent}'"
    runs = list(search(client, experiment, elsewhere))
    for run in runs:
        restore(client, run)
        client.set_tag(run.info.run_id, MLFLOW_PARENT_RUN_ID, parent)
    return len(runs)


def close_abandoned(client: MlflowClient, experiment: str, study_id: str) -> int:
    """End as KILLED all runs that are marked as running though their process is gone.

    Returns:
        The number of ended runs.
    """
    parent = find_parent(client, experiment, study_id)
    if parent is None:
        return 0
    running = f"tags.`{MLFLOW_PARENT_RUN_ID}` = '{parent.info.run_id}' and status = 'RUNNING'"
    abandoned = list(search(client, experiment, running, ViewType.ACTIVE_ONLY))
    if parent.info.status == "RUNNING" and not is_deleted(parent):
        abandoned.append(parent)
    for run in abandoned:
        client.set_tag(run.info.run_id, CLOSED_BY, "reconcile")
        client.set_terminated(run.info.run_id, status="KILLED")
    return len(abandoned)
