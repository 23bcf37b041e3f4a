"""A thread that keeps a tracker up to date with a study, so that training never waits for it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

from studies.process.phases import phase
from studies.tracking.tracker import Tracker
from studies.trials.records import Record

_WAITS_S = (5.0, 30.0)  # before the first retry, and at most between two
_PATIENCE_S = 60.0  # without an answer, when a study finishes
_ABORT_PATIENCE_S = 8.0  # the same when it is aborted


class _ParentUpdate(Enum):
    """An update of the parent run; the update of a trial has the trial's name as its key."""

    DESCRIBE = auto()
    READ = auto()
    END = auto()


_Key = str | _ParentUpdate
_Send = Callable[[], object]


class BackgroundTracker:
    """Sends the updates of one study to its tracker, in a thread of its own.

    No method waits for the tracker except `abort` and `finish`, so training continues while the
    service is slow, away or locked. Only the latest update of each run is kept until it is sent.
    The study folder holds all data as well: updates that have not been sent when the process ends
    are sent by `catch_up` when the study is opened again.

    Args:
        tracker: Tracker of the study, which from now on is called by the thread alone.
        say: Called with each line for the user.
        waits: Seconds before the first retry, doubled for each further one, and their maximum.
    """

    def __init__(
        self,
        tracker: Tracker,
        say: Callable[[str], None],
        waits: tuple[float, float] = _WAITS_S,
    ) -> None:
        self.tracker = tracker
        self._say, self._waits = say, waits
        self._place = f"{tracker.service} at {tracker.address}"
        self._due: dict[_Key, _Send] = {}  # the updates still to be sent, in order
        self._rejected: dict[_Key, str] = {}  # why the service rejected an update
        self._doubtful = False  # a call got no answer: whether it took effect is unknown
        self._wait = 0.0  # until the next retry; 0 while the service answers
        self._retry_at = self._heard_at = time.monotonic()
        self._ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._work, name="tracker", daemon=True).start()

    @property
    def pending(self) -> int:
        """Number of updates still to be sent."""
        with self._changed:
            return len(self._due)

    def describe(self, provenance: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        """Send what the study runs on: provenance and parameters of the parent run."""
        self._add(_ParentUpdate.DESCRIBE, partial(self.tracker.describe, provenance, params))

    def update(self, record: Record) -> None:
        """Send the state of a trial: whether it is running or has ended, and its reports so far."""
        snapshot = replace(record, reports=list(record.reports))
        self._add(record.name, partial(self.tracker.update, snapshot))

    def catch_up(self, records: Iterable[Record]) -> None:
        """Send all ended records: a crash may have come between study folder and tracker."""
        for record in records:
            if record.state != "running":
                self.update(record)

    def abort(self, records: Sequence[Record], status: str) -> None:
        """End the parent run and all running trials: the study stopped or failed.

        It may be resumed later. Waits a few seconds for the service, no longer.

        Args:
            records: All records of the study.
            status: ``KILLED`` or ``FAILED``.
        """
        self._end(records, partial(self.tracker.end, status), _ABORT_PATIENCE_S)

    @phase("MLflow finish")
    def finish(
        self,
        records: Sequence[Record],
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        patience: float = _PATIENCE_S,
        description: str = "",
    ) -> None:
        """Send files, metrics and description of the whole study, and end the parent run.

        Args:
            records: All records of the study.
            files: The folder among the parent's artifacts for each file; missing files are skipped.
            metrics: Metrics of the parent run.
            patience: Seconds to wait for the service without an answer from it.
            description: The study's answer in Markdown; empty if there is none.
        """
        last = max((r.time for record in records for r in record.reports), default=0)
        end = last or int(1000 * time.time())
        send = partial(self.tracker.finish, files, metrics, end, description)
        self._end(records, send, patience)

    def _add(self, key: _Key, send: _Send) -> None:
        with self._changed:
            self._due[key] = send
            self._changed.notify_all()

    def _end(self, records: Sequence[Record], send: _Send, patience: float) -> None:
        """Queue the last updates, wait until all are sent or patience ends, and end the thread."""
        with self._changed:
            self._retry_at, self._waits = 0.0, (self._waits[0], self._waits[0])
            self._due.pop(_ParentUpdate.END, None)
        if self._doubtful:  # a server that hung may since have carried out old calls, in any order
            self._add(_ParentUpdate.READ, self.tracker.read)
        for record in records:
            self.update(record)
        self._add(_ParentUpdate.END, send)
        self._await_all(patience)
        with self._changed:
            self._ended = True
            self._changed.notify_all()
            self._say_what_is_missing()

    def _say_what_is_missing(self) -> None:
        service, address = self.tracker.service, self.tracker.address
        if self._due:
            self._say(
                f"{_counted(self._due)} not in {service} yet; to send the rest, run the same "
                f"command once {address} responds"
            )
        if self._rejected:
            key, reason = next(iter(self._rejected.items()))
            self._say(
                f"{_counted(self._rejected)} incomplete in {service}; first: {_name(key)}: {reason}"
            )

    def _await_all(self, patience: float) -> None:
        said = False
        with self._changed:
            self._heard_at = time.monotonic()
            while self._due and (left := self._heard_at + patience - time.monotonic()) > 0:
                if self._wait and not said:
                    runs = _counted(self._due)
                    self._say(f"waiting up to {patience:.0f} s for {self._place}; {runs} waiting")
                    said = True
                self._changed.wait(min(left, 1.0))

    def _work(self) -> None:
        """Send the due updates one after another until the study has ended; the thread's loop."""
        while (update := self._next()) is not None:
            key, send = update
            try:
                if self._wait:
                    self.tracker.read()
                send()
            except Exception as error:  # no fault of tracking may end training; all are reported
                self._failed(key, send, error)
            else:
                self._sent(key, send)

    def _next(self) -> tuple[_Key, _Send] | None:
        """Wait for an update that may be sent now, and return it; None once the study has ended."""
        with self._changed:
            while not self._ended:
                pause = self._retry_at - time.monotonic() if self._due else None
                if pause is not None and (pause <= 0 or not self._wait):
                    return next(iter(self._due.items()))
                self._changed.wait(pause)
            return None

    def _sent(self, key: _Key, send: _Send) -> None:
        with self._changed:
            self._rejected.pop(key, None)
            self._settle(key, send)

    def _settle(self, key: _Key, send: _Send) -> None:
        """Drop an update that the service has answered, unless a newer one has replaced it."""
        if self._wait:
            self._say(f"{self._place} responds again; {_counted(self._due)} to send")
        self._wait, self._heard_at = 0.0, time.monotonic()
        if self._due.get(key) is send:
            del self._due[key]
        self._changed.notify_all()

    def _failed(self, key: _Key, send: _Send, error: Exception) -> None:
        reason = self.tracker.reason(error)
        with self._changed:
            if not self.tracker.is_temporary(error):
                if reason not in self._rejected.values():
                    what = f"{_name(key)} ({reason})"
                    self._say(f"{self._place} rejects {what}; training continues")
                self._rejected[key] = reason
                self._settle(key, send)
                return
            if not self._wait:
                self._say(
                    f"{self._place} does not respond ({reason}); training continues, "
                    f"{_counted(self._due)} waiting"
                )
            self._doubtful = True
            self._wait = min(2 * self._wait or self._waits[0], self._waits[1])
            self._retry_at = time.monotonic() + self._wait
            self._changed.notify_all()


def _name(key: _Key) -> str:
    return key if isinstance(key, str) else "the study"


def _counted(keys: Iterable[_Key]) -> str:
    """Return the number of runs that keys stand for; all updates of the parent are one run."""
    count = len({key if isinstance(key, str) else None for key in keys})
    return f"{count} run{'s' if count > 1 else ''}"
