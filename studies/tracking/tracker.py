"""MLflow beside a study: where it is, and a tracker that brings it in line with the study folder, now or later."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from filelock import Timeout
from mlflow import MlflowClient

from studies.files.folder_files import study_lock
from studies.files.paths import database_path
from studies.process.mlflow_address import shown
from studies.tracking.checks import check_tracking
from studies.tracking.experiment import open_runs, passes, reason_of
from studies.tracking.parent_run import close_abandoned
from studies.trials.records import Record, read_id

_WAITS_S = (5.0, 30.0)  # before the first and the last of the retries
_PATIENCE_S = 60.0  # without an answer, at a study's end
_HURRY_S = 8.0  # the same when it is broken off
_END, _STUDY, _CHECK = "", " ", "  "  # what is due of the parent, beside the names of trials


class Tracker:
    """Writes one study to MLflow; opened again after a crash it goes on in the same runs.

    It is told records, never waits, and brings MLflow in line with them in a thread of its own: training does not
    stand still while MLflow is slow, away or locked. The study folder holds all that is told, so what has not been
    sent when the process ends is sent when the study is opened again.

    Args:
        uri: of the tracking store.
        experiment: name; the study's.
        storage: folder of the study's storage; a database's artifacts are kept in it.
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
        storage: Path,
        study_id: str,
        say: Callable[[str], None],
        waits: tuple[float, float] = _WAITS_S,
    ) -> None:
        self._uri, self._say, self._waits = shown(uri), say, waits
        self._runs = open_runs(uri, experiment, storage, study_id, say)
        self.parent = self._runs.parent
        self._due: dict[str, Callable[[], object]] = {}  # what MLflow is still to be told, in order
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
        self._tell(
            record.name, partial(self._runs.bring, replace(record, reports=list(record.reports)))
        )

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
        self._end(
            records,
            partial(self._runs.finish, files, metrics, last or int(1000 * time.time())),
            patience,
        )

    def _tell(self, key: str, send: Callable[[], object]) -> None:
        with self._changed:
            self._due[key] = send
            self._changed.notify_all()

    def _end(self, records: Sequence[Record], send: Callable[[], object], patience: float) -> None:
        """Tell the last, wait until all is sent or MLflow has been silent for too long, and let the thread go."""
        with self._changed:
            self._retry_at, self._waits = 0.0, (self._waits[0], self._waits[0])
            self._due.pop(_END, None)
        if (
            self._doubtful
        ):  # a server that hung may have done since what it was asked before, in any order
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
                self._say(
                    f"{what} not whole in MLflow; first {name.strip() or 'the study'}: {reason}"
                )

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

    def _next(self) -> tuple[str, Callable[[], object]] | None:
        with self._changed:
            while not self._ended:
                pause = self._retry_at - time.monotonic() if self._due else None
                if pause is not None and (pause <= 0 or not self._wait):
                    return next(iter(self._due.items()))
                self._changed.wait(pause)
            return None

    def _sent(self, key: str, send: Callable[[], object]) -> None:
        with self._changed:
            self._refused.pop(key, None)
            self._settle(key, send)

    def _settle(self, key: str, send: Callable[[], object]) -> None:
        """MLflow has answered: this is not due any more, unless there is news of it."""
        if self._wait:
            self._say(f"MLflow at {self._uri} answers again; {_counted(self._due)} to send")
        self._wait, self._heard_at = 0.0, time.monotonic()
        if self._due.get(key) is send:
            del self._due[key]
        self._changed.notify_all()

    def _failed(self, key: str, send: Callable[[], object], error: Exception) -> None:
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
    try:
        client = MlflowClient(tracking_uri=uri)
        found = client.get_experiment_by_name(experiment)
        closed = close_abandoned(client, str(found.experiment_id), study_id) if found else 0
    except Exception as error:  # of MLflow, its database library, or a plugin of its
        return f"MLflow at {shown(uri)} does not answer ({reason_of(error)})"
    return f"closed {closed} MLflow runs that a process left running" if closed else None
