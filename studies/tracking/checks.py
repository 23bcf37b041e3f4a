"""Whether MLflow at an address can take a study: checked before any compute, and without making anything there."""

import os
import tempfile
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

import requests  # MLflow's own client library
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from sqlalchemy import make_url  # MLflow's own database library
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from hylorada import nearest
from studies.files.folder_files import is_sqlite
from studies.files.paths import database_path, path_problem
from studies.process.mlflow_address import DATABASES, is_database, shown
from studies.tracking.experiment import deleted, location_problems, reason_of

_SERVERS = ("http", "https", "databricks")
_REFUSED = (
    "UNAUTHENTICATED",
    "CUSTOMER_UNAUTHORIZED",
    "PERMISSION_DENIED",
)  # MLflow's codes for 401 and 403
_LOGIN = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, hold the login"
_CERTIFICATE = "MLFLOW_TRACKING_SERVER_CERT_PATH names a certificate to trust, MLFLOW_TRACKING_INSECURE_TLS=true trusts any"


def check_tracking(uri: str) -> list[str]:
    """Return what is wrong with an address by itself. Nothing is made or asked there."""
    if uri.startswith(("sqlite:", "sqlite+pysqlite:")):
        return _check_sqlite(uri)
    if uri.startswith(DATABASES):
        return _check_database(uri)
    try:
        scheme = uri if uri.startswith("databricks-") and ":" not in uri else urlsplit(uri).scheme
    except ValueError as error:
        return [f"tracking_uri {shown(uri)!r} is not an address: {error}"]
    plugins = {plugin.name for plugin in entry_points(group="mlflow.tracking_store")}
    if scheme in {*_SERVERS, *plugins} or uri == "databricks":
        return []
    if scheme != "file" and ("://" in uri or scheme.startswith("databricks")):
        known = {*_SERVERS, *DATABASES, "sqlite", *plugins}
        return [f"tracking_uri {shown(uri)!r} is of no known kind; {nearest(scheme, known)}"]
    return [
        f"tracking_uri {uri!r}: MLflow no longer serves folders of files; use sqlite:///PATH or a server "
        "(mlflow migrate-filestore --source FOLDER --target sqlite:///PATH brings earlier runs along)"
    ]


def check_server(uri: str, experiment: str) -> list[str]:
    """Return why a study can't be kept on a server, asked through MLflow's client and with all its settings."""
    if is_database(uri):
        return []
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment) or _default_experiment(client)
    except Exception as error:  # of MLflow, or of a plugin of its
        return [_refusal(uri, error)]
    if found is None:
        return []
    if found.name == experiment and found.lifecycle_stage == "deleted":
        return [deleted(experiment)]
    return location_problems(uri, experiment, str(found.artifact_location))


def _default_experiment(client: MlflowClient) -> Experiment | None:
    """Return MLflow's own first experiment, if this user sees it: new ones keep artifacts in the same place."""
    found = client.search_experiments(max_results=1, filter_string="name = 'Default'")
    return found[0] if found else None


def _refusal(uri: str, error: Exception) -> str:
    """Return one line on a failed call: what the server said, and which of MLflow's settings may help."""
    reason, cause = reason_of(error), error.__cause__ or error.__context__
    if isinstance(cause, requests.exceptions.SSLError):
        return f"tracking_uri {shown(uri)!r} can't be trusted: {reason}; {_CERTIFICATE}"
    if isinstance(cause, requests.RequestException):
        return f"tracking_uri {shown(uri)!r} can't be reached: {reason}; is `mlflow server` running there?"
    refused = isinstance(error, MlflowException) and error.error_code in _REFUSED
    return f"tracking_uri {shown(uri)!r} refuses: {reason}" + (f"; {_LOGIN}" if refused else "")


def _check_database(uri: str) -> list[str]:
    """Check the form of the address and its driver; whether the database answers shows when it is opened."""
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        return [f"tracking_uri {shown(uri)!r} needs a driver that is not installed: {error}"]
    except (ArgumentError, ValueError):
        example = "postgresql://USER@HOST:PORT/DATABASE"
        return [f"tracking_uri {shown(uri)!r} is no address of a database; write it like {example}"]
    return []


def _check_sqlite(uri: str) -> list[str]:
    path = database_path(uri)
    if path is None:
        return [f"tracking_uri {uri!r} names no file; use sqlite:///PATH"]
    if problem := path_problem(path):
        return [f"tracking_uri {uri!r} can't be used: {problem}"]
    if path.is_dir():
        return [f"tracking_uri {uri!r}: {path} is a folder; name a file in it"]
    if path.is_file() and path.stat().st_size and not is_sqlite(path):
        return [f"tracking_uri {uri!r}: {path} is no SQLite database"]
    if problem := unwritable(path.parent):
        return [f"tracking_uri {uri!r} can't be written: {problem}"]
    return [] if path.parent.is_dir() else [f"tracking_uri {uri!r}: no folder {path.parent}"]


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
