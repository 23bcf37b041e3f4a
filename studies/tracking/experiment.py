"""The MLflow experiment of a study, checked to accept the study's artifacts when it is opened."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mlflow import MlflowClient
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from hylorada import InputError
from studies.files.folder_files import require_database
from studies.process.errors import is_storage_error
from studies.process.mlflow_address import is_database, is_server, shown
from studies.tracking.artifacts import artifact_folder, follow_storage, location_in, owns_database
from studies.tracking.mlflow_errors import reason_of
from studies.tracking.parent_run import open_study
from studies.tracking.runs import StudyRuns


def deleted(experiment: str) -> str:
    """Return the message about an experiment that was deleted in MLflow's page."""
    return (
        f"MLflow's experiment {experiment!r} is deleted; restore it, or give the study another "
        "name (--name)"
    )


def location_problems(uri: str, experiment: str, location: str) -> list[str]:
    """Return the problem of an artifact location that is a plain path on a server's disk.

    MLflow's client would write to the same path on this machine.
    """
    scheme = urlsplit(location).scheme
    # A scheme of one letter is a drive of Windows.
    if not is_server(uri) or (len(scheme) > 1 and scheme != "file"):
        return []
    return [
        f"tracking_uri {shown(uri)!r}: experiment {experiment!r} keeps artifacts at {location!r}, "
        "a path on the server, which can't be written from here; start the server with "
        "--artifacts-destination PATH and without --default-artifact-root, so that it serves them, "
        "and give the study a --name that is new to it"
    ]


def _open_experiment(client: MlflowClient, uri: str, name: str, storage: Path) -> str:
    """Return the id of the study's experiment, created if need be, after testing its artifacts."""
    own = owns_database(storage, uri)
    if own:
        follow_storage(storage)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        place = artifact_folder(storage, name).as_uri() if is_database(uri) else None
        experiment = client.get_experiment(client.create_experiment(name, place))
    if experiment.lifecycle_stage == "deleted":
        raise InputError(deleted(name))
    location = str(experiment.artifact_location)
    if is_database(uri) and not own:
        location = location_in(uri, experiment, storage)
    if problems := location_problems(uri, name, location) or _artifact_problems(
        uri, name, location
    ):
        raise InputError(problems)
    return str(experiment.experiment_id)


def _artifact_problems(uri: str, experiment: str, location: str) -> list[str]:
    """Return the problem of an artifact location: write a small artifact, read it, delete it."""
    try:
        repository: Any = get_artifact_repository(location, tracking_uri=uri)
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder) / f"probe-{os.urandom(4).hex()}"
            probe.write_text("1")
            repository.log_artifact(str(probe))
            back = Path(folder) / "back"
            back.mkdir()
            content = Path(repository.download_artifacts(probe.name, str(back))).read_text()
            repository.delete_artifacts(probe.name)
    except NotImplementedError:  # raised by delete_artifacts in some stores
        return []
    except Exception as error:  # raised by the library that serves this kind of location
        return [
            f"experiment {experiment!r} of {shown(uri)}: can't write artifacts to "
            f"{shown(location)}: {reason_of(error)}"
        ]
    if content == "1":
        return []
    return [
        f"experiment {experiment!r} of {shown(uri)}: artifacts written to {shown(location)} differ "
        "when they are read back"
    ]


def open_runs(
    uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
) -> StudyRuns:
    """Open the runs of a study, new ones or those of an earlier process.

    Args:
        uri: Address of the tracking store.
        experiment: Name of the experiment, which is the study's.
        storage: Folder of the study's storage; artifacts of a database are kept in it.
        study_id: Id that ties the parent run to one study folder.
        say: Called with each line for the user.

    Raises:
        InputError: MLflow can't hold this study now.
    """
    database = storage / "mlflow.db"
    if owns_database(storage, uri) and database.is_file() and database.stat().st_size:
        require_database(database)  # before MLflow opens it
    try:
        client = MlflowClient(tracking_uri=uri)
        return open_study(
            client, _open_experiment(client, uri, experiment, storage), experiment, study_id, say
        )
    except InputError:
        raise
    except Exception as error:  # raised by MLflow, its database library or one of its plugins
        if is_storage_error(error):
            raise
        raise InputError(
            f"MLflow at {shown(uri)} can't open experiment {experiment!r}: {reason_of(error)}"
        ) from error
