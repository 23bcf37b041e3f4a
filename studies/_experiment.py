"""The MLflow experiment of a study: whether it takes what a study has to keep, and what its faults mean."""

import os
import re
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import requests  # MLflow's own client library
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from sqlalchemy.exc import SQLAlchemyError  # MLflow's own database library

from hylorada import InputError

from ._paths import database_path
from ._runs import StudyRuns, open_parent

_AWAY = {  # MLflow's codes for what passes; its client gives the first to a server that can't be reached
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "ABORTED",
}


def check_artifacts(uri: str, experiment: str) -> list[str]:
    """Whether a server keeps artifacts where only itself can put them; looks, and makes nothing."""
    if not _is_server(uri):
        return []
    client = MlflowClient(tracking_uri=uri)
    try:
        found = client.get_experiment_by_name(experiment)
        if found is not None and found.lifecycle_stage == "deleted":
            return [_deleted(experiment)]
        location = found.artifact_location if found else client.get_experiment("0").artifact_location
    except MlflowException as error:
        return [f"tracking_uri {uri!r} does not serve experiments: {reason_of(error)}"]
    return _location_problems(uri, experiment, str(location))


def _is_server(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))


def _deleted(experiment: str) -> str:
    return f"MLflow's experiment {experiment!r} is deleted; restore it, or name the study otherwise (--name)"


def _location_problems(uri: str, experiment: str, location: str) -> list[str]:
    """A plain path is one on the server's disk: MLflow's client would write to the same path on its own."""
    scheme = urlsplit(location).scheme
    if not _is_server(uri) or (len(scheme) > 1 and scheme != "file"):  # one letter is a disk of Windows
        return []
    return [
        f"tracking_uri {uri!r}: experiment {experiment!r} keeps artifacts at {location!r}, a path on the server, which "
        "can't be written from here; start the server with --artifacts-destination PATH and without "
        "--default-artifact-root, so that it serves them, and give the study a --name that is new to it"
    ]


def _open_experiment(client: MlflowClient, uri: str, name: str, artifacts: Path | None) -> str:
    """Id of an experiment, made if need be, that takes artifacts."""
    found = client.get_experiment_by_name(name)
    if found is None:
        found = client.get_experiment(client.create_experiment(name, None if artifacts is None else artifacts.as_uri()))
    if found.lifecycle_stage == "deleted":
        raise InputError(_deleted(name))
    location = _follow(uri, found, artifacts)
    if problems := _location_problems(uri, name, location) or _artifact_problems(uri, name, location):
        raise InputError(problems)
    return str(found.experiment_id)


def _follow(uri: str, experiment: Experiment, artifacts: Path | None) -> str:
    """Where an experiment keeps artifacts; MLflow writes full paths down, so a storage folder that moved is told it."""
    before = str(experiment.artifact_location)
    gone = urlsplit(before).scheme == "file" and not Path(url2pathname(urlsplit(before).path)).exists()
    path = database_path(uri)
    if artifacts is None or path is None or before == artifacts.as_uri() or not gone:
        return before
    now, number = artifacts.as_uri(), experiment.experiment_id
    with closing(sqlite3.connect(path, timeout=60)) as database, database:
        database.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (now, number))
        database.execute(
            "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE experiment_id = ? AND "
            "substr(artifact_uri, 1, ?) = ?",
            (now, len(before) + 1, number, len(before), before),
        )
    return now


def _artifact_problems(uri: str, experiment: str, location: str) -> list[str]:
    """Write a small artifact, read it back and remove it again."""
    try:
        repository: Any = get_artifact_repository(location, tracking_uri=uri)
        with tempfile.TemporaryDirectory() as folder:
            probe = Path(folder) / f"probe-{os.urandom(4).hex()}"
            probe.write_text("1")
            repository.log_artifact(str(probe))
            back = Path(folder) / "back"
            back.mkdir()
            read = Path(repository.download_artifacts(probe.name, str(back))).read_text()
            repository.delete_artifacts(probe.name)
    except NotImplementedError:  # of delete_artifacts, in some stores
        return []
    except Exception as error:  # of whatever library serves that kind of place
        return [f"experiment {experiment!r} of {uri}: no artifact can be kept at {location}: {reason_of(error)}"]
    return [] if read == "1" else [f"experiment {experiment!r} of {uri}: artifacts at {location} come back changed"]


def open_runs(uri: str, experiment: str, artifacts: Path | None, study_id: str) -> StudyRuns:
    """The runs of one study, its parent running.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        artifacts: folder for artifacts of a local store; None leaves it to the server.
        study_id: ties the parent run to one study folder.

    Raises:
        InputError: MLflow can't take this study now.
    """
    try:
        client = MlflowClient(tracking_uri=uri)  # opens the database, which may be damaged
        opened = _open_experiment(client, uri, experiment, artifacts and artifacts.resolve())
        return StudyRuns(client, opened, open_parent(client, opened, experiment, study_id))
    except (MlflowException, SQLAlchemyError) as error:
        raise InputError(f"MLflow at {uri} can't open experiment {experiment!r}: {reason_of(error)}") from error


def passes(error: Exception) -> bool:
    """Whether a call may succeed later: the server is away or slow, the database locked, the disk full."""
    if isinstance(error, MlflowException):
        return error.error_code in _AWAY
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def reason_of(error: BaseException) -> str:
    """Of a failed call, in few words: what MLflow's client wraps says it shortest."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, requests.RequestException):
        wrapped = re.search(r"too many \d+ error responses|(?<=Caused by )\w+", str(cause))
        return wrapped[0] if wrapped else type(cause).__name__
    text = str(getattr(cause, "orig", error)).strip().splitlines() or [""]
    code = f"{error.error_code}: " if isinstance(error, MlflowException) and not hasattr(cause, "orig") else ""
    return f"{code}{text[0]}"[:300] if text[0] else type(error).__name__
