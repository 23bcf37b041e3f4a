"""MLflow beside a study: where it is, and a tracker that brings it in line with the study folder, now or later."""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import requests  # MLflow's own client library
from filelock import Timeout
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy import make_url  # MLflow's own database library
from sqlalchemy.exc import ArgumentError, NoSuchModuleError
from urllib3.exceptions import LocationParseError  # below requests

from ._experiment import open_runs, passes, reason_of
from ._files import is_sqlite, study_lock
from ._paths import database_path, path_problem
from ._records import Record, read_id
from ._runs import close_abandoned

_WAITS_S = (5.0, 30.0)  # before the first and the last of the retries
_PATIENCE_S = 60.0  # without an answer, at a study's end
_HURRY_S = 8.0  # the same when it is broken off
_END, _STUDY, _CHECK = "", " ", "  "  # what is due of the parent, beside the names of trials


def check_tracking(uri: str) -> list[str]:
    """Problems with a tracking address, without making anything there."""
    if uri.startswith(("http://", "https://")):
        return _check_server(uri)
    if uri.startswith(("sqlite:", "sqlite+pysqlite:")):
        return _check_sqlite(uri)
    if uri.startswith("databricks"):
        return []
    if uri.startswith(("postgresql", "mysql", "mssql")):
        return _check_database(uri)
    if "://" in uri and not uri.startswith("file:"):
        return [f"tracking_uri {uri!r} is of no known kind; use sqlite:///PATH or a server, http://HOST:PORT"]
    return [
        f"tracking_uri {uri!r}: MLflow no longer serves folders of files; use sqlite:///PATH or a server "
        "(mlflow migrate-filestore --source FOLDER --target sqlite:///PATH brings earlier runs along)"
    ]


def _check_database(uri: str) -> list[str]:
    """Whether it can be read as an address and its driver is there; whether it answers shows when it is opened."""
    try:
        make_url(uri).get_dialect().import_dbapi()
    except (NoSuchModuleError, ImportError) as error:
        return [f"tracking_uri {uri!r} needs a driver that is not installed: {error}"]
    except (ArgumentError, ValueError):
        return [f"tracking_uri {uri!r} is no address of a database; write it like postgresql://USER@HOST:PORT/DATABASE"]
    return []


def _check_sqlite(uri: str) -> list[str]:
    if (path := database_path(uri)) is None:
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


def _check_server(uri: str) -> list[str]:
    try:
        answer = requests.get(f"{uri.rstrip('/')}/health", timeout=5)
    except (requests.RequestException, LocationParseError) as error:  # requests lets the second through
        return [f"tracking_uri {uri!r} can't be reached: {type(error).__name__}; is `mlflow server` running there?"]
    return [] if answer.ok else [f"tracking_uri {uri!r} answers {answer.status_code} at /health"]


class Tracker:
    """Writes one study to MLflow; opened again after a crash it goes on in the same runs.

    It is told records, never waits, and brings MLflow in line with them in a thread of its own: training does not
    stand still while MLflow is slow, away or locked. The study folder holds all that is told, so what has not been
    sent when the process ends is sent when the study is opened again.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        artifacts: folder for artifacts of a local store; None leaves it to the server.
        study_id: ties the parent run to one study folder.
        say: takes a line for the user.
        waits: seconds before the first retry and, after doubling, the longest between two.

    Raises:
        InputError: MLflow can't take this study now.
    """

    def __init__(
        self,
        uri: str,
        experiment: str,
        *,
        artifacts: Path | None,
        study_id: str,
        say: Callable[[str], None],
        waits: tuple[float, float] = _WAITS_S,
    ) -> None:
        self._uri, self._say, self._waits = uri, say, waits
        self._runs = open_runs(uri, experiment, artifacts, study_id)
        self.parent = self._runs.parent
        self._due: dict[str, Callable[[], None]] = {}  # what MLflow is still to be told, in order
        self._refused: dict[str, str] = {}
        self._doubtful = False  # a call had no answer: what became of it is not known
        self._wait = 0.0  # until the next retry; 0 while MLflow answers
        self._retry_at = self._heard_at = time.monotonic()
        self._ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="mlflow", daemon=True).start()

    def describe(self, tags: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """What the study ran on: tags and parameters of the parent; a value that has changed since is kept as a tag."""
        self._tell(_STUDY, partial(self._runs.describe, tags, params))

    def tell(self, record: Record) -> None:
        """How a trial stands: that it runs, its reports so far, its end."""
        self._tell(record.name, partial(self._runs.bring, replace(record, reports=list(record.reports))))

    def catch_up(self, records: Iterable[Record]) -> None:
        """Tell of all ended records: a crash may have come between the study folder and MLflow."""
        for record in records:
            if record.state != "running":
                self.tell(record)

    def abort(self, records: Sequence[Record], status: str) -> None:
        """End the parent and what is still running: the study was stopped, or broke, and may be resumed.

        Waits a few seconds for MLflow, no longer.
        """
        self._end(records, partial(self._runs.end, status), _HURRY_S)

    def finish(
        self,
        records: Sequence[Record],
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        patience: float = _PATIENCE_S,
    ) -> None:
        """Files and figures of the whole study, and the parent's end.

        Args:
            records: all.
            files: for the parent's artifacts, and in which folder there; as far as they exist.
            metrics: of the parent.
            patience: seconds to wait for MLflow without an answer from it.
        """
        last = max((r.time for record in records for r in record.reports), default=0)
        self._end(records, partial(self._runs.finish, files, metrics, last or int(1000 * time.time())), patience)

    def _tell(self, key: str, send: Callable[[], None]) -> None:
        with self._changed:
            self._due[key] = send
            self._changed.notify_all()

    def _end(self, records: Sequence[Record], send: Callable[[], None], patience: float) -> None:
        """Tell the last, wait until all is sent or MLflow has been silent for too long, and let the thread go."""
        with self._changed:
            self._retry_at, self._waits = 0.0, (self._waits[0], self._waits[0])
            self._due.pop(_END, None)
        if self._doubtful:  # a server that hung may have done since what it was asked before, in any order
            self._tell(_CHECK, self._runs.read)
        for record in records:
            self.tell(record)
        self._tell(_END, send)
        self._await_all(patience)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            if self._due:
                self._say(
                    f"{_counted(self._due)} not in MLflow yet; the same command sends them once {self._uri} answers"
                )
            for name, reason in list(self._refused.items())[:1]:
                what = _counted(self._refused)
                self._say(f"{what} not whole in MLflow; first {name.strip() or 'the study'}: {reason}")

    def _await_all(self, patience: float) -> None:
        said = False
        with self._changed:
            self._heard_at = time.monotonic()
            while self._due and (left := self._heard_at + patience - time.monotonic()) > 0:
                if self._wait and not said:
                    self._say(
                        f"waiting up to {patience:.0f} s for MLflow at {self._uri}; {_counted(self._due)} waiting"
                    )
                    said = True
                self._changed.wait(min(left, 1.0))

    def _work(self) -> None:
        """The thread: tells MLflow what is due, one thing after another."""
        while (following := self._next()) is not None:
            key, send = following
            try:
                if self._wait:
                    self._runs.read()
                send()
            except Exception as error:  # no fault of tracking may end training; all are told
                self._failed(key, send, error)
            else:
                self._sent(key, send)

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        with self._changed:
            while not self._ended:
                pause = self._retry_at - time.monotonic() if self._due else None
                if pause is not None and (pause <= 0 or not self._wait):
                    return next(iter(self._due.items()))
                self._changed.wait(pause)
            return None

    def _sent(self, key: str, send: Callable[[], None]) -> None:
        with self._changed:
            self._refused.pop(key, None)
            self._settle(key, send)

    def _settle(self, key: str, send: Callable[[], None]) -> None:
        """MLflow has answered: this is not due any more, unless there is news of it."""
        if self._wait:
            self._say(f"MLflow at {self._uri} answers again; {_counted(self._due)} to send")
        self._wait, self._heard_at = 0.0, time.monotonic()
        if self._due.get(key) is send:
            del self._due[key]
        self._changed.notify_all()

    def _failed(self, key: str, send: Callable[[], None], error: Exception) -> None:
        reason = reason_of(error)
        with self._changed:
            if not passes(error):
                if reason not in self._refused.values():
                    self._say(
                        f"MLflow at {self._uri} refuses {key.strip() or 'the study'} ({reason}); training goes on"
                    )
                self._refused[key] = reason
                self._settle(key, send)
                return
            if not self._wait:
                self._say(
                    f"MLflow at {self._uri} does not answer ({reason}); training goes on, {_counted(self._due)} waiting"
                )
            self._doubtful = True
            self._wait = min(2 * self._wait or self._waits[0], self._waits[1])
            self._retry_at = time.monotonic() + self._wait
            self._changed.notify_all()


def _counted(keys: Iterable[str]) -> str:
    count = len({key.strip() for key in keys})  # what there is about the parent counts as one
    return f"{count} run{'s' if count > 1 else ''}"


def reconcile(uri: str, experiment: str, folder: Path) -> str | None:
    """End the runs of a study whose process is gone; what there is to say about it.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        folder: of the study; whoever runs it holds its lock.
    """
    if (study_id := read_id(folder)) is None:
        return None
    try:
        with study_lock(folder):
            return _reconcile(uri, experiment, study_id)
    except (Timeout, PermissionError):  # it runs, or is somebody else's
        return None


def _reconcile(uri: str, experiment: str, study_id: str) -> str | None:
    if (path := database_path(uri)) is not None and not path.exists():
        return None
    if problems := check_tracking(uri):
        return problems[0]
    client = MlflowClient(tracking_uri=uri)
    try:
        found = client.get_experiment_by_name(experiment)
        closed = close_abandoned(client, str(found.experiment_id), study_id) if found else 0
    except (MlflowException, OSError) as error:
        return f"MLflow at {uri} does not answer ({reason_of(error)})"
    return f"closed {closed} MLflow runs that a process left running" if closed else None
