"""Checks, before any compute and without side effects, that MLflow can hold a study."""

from importlib.metadata import entry_points
from urllib.parse import urlsplit

import requests  # MLflow's own client library
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from sqlalchemy import make_url  # MLflow's own database library
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from hylorada import nearest
from studies.files.folder_files import is_sqlite
from studies.files.paths import database_path, path_problem, unwritable
from studies.process.mlflow_address import DATABASES, is_database, shown
from studies.tracking.experiment import deleted, location_problems
from studies.tracking.mlflow_errors import reason_of

_SERVERS = ("http", "https", "databricks")
# MLflow's codes for 401 and 403
_UNAUTHORIZED = ("UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED", "PERMISSION_DENIED")
_LOGIN = (
    "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, hold the "
    "login"
)
_CERTIFICATE = (
    "MLFLOW_TRACKING_SERVER_CERT_PATH names a certificate to trust, "
    "MLFLOW_TRACKING_INSECURE_TLS=true trusts any"
)


def check_tracking(uri: str) -> list[str]:
    """Return the problems visible in an address alone, without connecting to it."""
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
        return [f"tracking_uri {shown(uri)!r} has an unknown scheme; {nearest(scheme, known)}"]
    return [
        f"tracking_uri {uri!r}: MLflow no longer supports folders of files; use sqlite:///PATH or "
        "a server (mlflow migrate-filestore --source FOLDER --target sqlite:///PATH copies earlier "
        "runs)"
    ]


def check_server(uri: str, experiment: str) -> list[str]:
    """Return why a server can't hold a study, queried through MLflow's client and its settings."""
    if is_database(uri):
        return []
    try:
        client = MlflowClient(tracking_uri=uri)
        stored = client.get_experiment_by_name(experiment) or _default_experiment(client)
    except Exception as error:  # raised by MLflow or one of its plugins
        return [_failure(uri, error)]
    if stored is None:
        return []
    if stored.name == experiment and stored.lifecycle_stage == "deleted":
        return [deleted(experiment)]
    return location_problems(uri, experiment, str(stored.artifact_location))


def _default_experiment(client: MlflowClient) -> Experiment | None:
    """Return MLflow's experiment "Default", or None if this user may not see it.

    Its artifact location is of the same kind as that of any new experiment.
    """
    experiments = client.search_experiments(max_results=1, filter_string="name = 'Default'")
    return experiments[0] if experiments else None


def _failure(uri: str, error: Exception) -> str:
    """Return a line about a failed call: the server's message and MLflow settings that may help."""
    reason, cause = reason_of(error), error.__cause__ or error.__context__
    if isinstance(cause, requests.exceptions.SSLError):
        return f"tracking_uri {shown(uri)!r} can't be trusted: {reason}; {_CERTIFICATE}"
    if isinstance(cause, requests.RequestException):
        hint = "is `mlflow server` running there?"
        return f"tracking_uri {shown(uri)!r} can't be reached: {reason}; {hint}"
    unauthorized = isinstance(error, MlflowException) and error.error_code in _UNAUTHORIZED
    problem = f"tracking_uri {shown(uri)!r} rejects the request: {reason}"
    return f"{problem}; {_LOGIN}" if unauthorized else problem


def _check_database(uri: str) -> list[str]:
    """Check the form and the driver of a database's address, without connecting to it."""
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        return [f"tracking_uri {shown(uri)!r} needs a driver that is not installed: {error}"]
    except (ArgumentError, ValueError):
        example = "postgresql://USER@HOST:PORT/DATABASE"
        return [f"tracking_uri {shown(uri)!r} is not a database address; write it like {example}"]
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
        return [f"tracking_uri {uri!r}: {path} is not a SQLite database"]
    if problem := unwritable(path.parent):
        return [f"tracking_uri {uri!r} can't be written: {problem}"]
    return [] if path.parent.is_dir() else [f"tracking_uri {uri!r}: no folder {path.parent}"]
