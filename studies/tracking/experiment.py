"""The MLflow experiment of a study: whether it takes what a study has to keep, and what its faults mean."""

import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests  # MLflow's own client library
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

from hylorada import InputError
from studies.files.folder_files import require_database
from studies.process.errors import is_storage_error
from studies.process.mlflow_address import is_database, is_server, redact, shown
from studies.tracking.artifacts import artifact_folder, follow_storage, location_in, owns_database
from studies.tracking.parent_run import open_study
from studies.tracking.runs import StudyRuns

_AWAY = {  # MLflow's codes for what passes; its client gives the first to a server that can't be reached
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "CANCELLED",
    "ABORTED",
}
_CAUSES = (  # in the text of a failed request, the most telling first
    r"too many \d+ error responses",
    r"certificate verify failed[^(\n]*",
    r"(?<=Caused by )\w+",
)


def deleted(experiment: str) -> str:
    """Return the refusal of an experiment that was deleted in MLflow's page."""
    return f"MLflow's experiment {experiment!r} is deleted; restore it, or name the study otherwise (--name)"


def location_problems(uri: str, experiment: str, location: str) -> list[str]:
    """Refuse a plain path, which is on the server's disk: MLflow's client would write to the same path on this one."""
    scheme = urlsplit(location).scheme
    if not is_server(uri) or (
        len(scheme) > 1 and scheme != "file"
    ):  # one letter is a disk of Windows
        return []
    return [
        f"tracking_uri {shown(uri)!r}: experiment {experiment!r} keeps artifacts at {location!r}, a path on the "
        "server, which can't be written from here; start the server with --artifacts-destination PATH and without "
        "--default-artifact-root, so that it serves them, and give the study a --name that is new to it"
    ]


def _open_experiment(client: MlflowClient, uri: str, name: str, storage: Path) -> str:
    """Return the id of the study's experiment, which takes artifacts; it is made if need be."""
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
        why = reason_of(error)
        return [
            f"experiment {experiment!r} of {shown(uri)}: no artifact can be kept at {shown(location)}: {why}"
        ]
    if read == "1":
        return []
    return [
        f"experiment {experiment!r} of {shown(uri)}: artifacts at {shown(location)} come back changed"
    ]


def open_runs(
    uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
) -> StudyRuns:
    """Return the runs of one study, its parent running.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        storage: folder of the study's storage; a database's artifacts are kept in it.
        study_id: ties the parent run to one study folder.
        say: takes a line for the user.

    Raises:
        InputError: MLflow can't take this study now.
    """
    database = storage / "mlflow.db"
    if owns_database(storage, uri) and database.is_file() and database.stat().st_size:
        require_database(database)  # before MLflow looks into it
    try:
        client = MlflowClient(tracking_uri=uri)
        return open_study(
            client, _open_experiment(client, uri, experiment, storage), experiment, study_id, say
        )
    except InputError:
        raise
    except Exception as error:  # of MLflow, its database library, or a plugin of its
        if is_storage_error(error):
            raise
        raise InputError(
            f"MLflow at {shown(uri)} can't open experiment {experiment!r}: {reason_of(error)}"
        ) from error


def passes(error: Exception) -> bool:
    """Whether a call may succeed later: the server is away or slow, the database locked, the disk full."""
    if isinstance(error, MlflowException):
        return error.error_code in _AWAY
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)


def reason_of(error: BaseException) -> str:
    """Return why a call failed, in few words: the cause that MLflow's client wraps, or what the server said."""
    cause = error.__cause__ or error.__context__
    if isinstance(cause, requests.RequestException):
        matches = (re.search(pattern, str(cause)) for pattern in _CAUSES)
        return next((match[0].strip() for match in matches if match), type(cause).__name__)
    if answer := re.search(r"(?:code (\d+) .*?)?Response body: '(.*)'", str(error), re.DOTALL):
        return f"{answer[1] or 'no JSON'}: {_one_line(answer[2]) or 'without a word'}"
    text = str(getattr(cause, "orig", error)).strip().splitlines() or [""]
    code = (
        f"{error.error_code}: "
        if isinstance(error, MlflowException) and not hasattr(cause, "orig")
        else ""
    )
    return _one_line(code + text[0].removeprefix(code)) if text[0] else type(error).__name__


def _one_line(text: str) -> str:
    """Return a server's answer as one printable line: without a page's tags and styles, and without passwords."""
    words = re.sub(r"(?s)<(style|script).*?</\1>|<[^>]*>", " ", text)
    printable = "".join(letter if letter.isprintable() else " " for letter in words)
    return redact(" ".join(printable.split()))[:300]
