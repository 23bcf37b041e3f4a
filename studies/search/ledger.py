"""The ledger that records a study's events, and the base class of its stages."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from studies.process.errors import StudyStopped
from studies.progress.panel import Panel
from studies.trials.by_hand.requests import STOPPABLE, drop_trial_stop, trial_stops
from studies.trials.messages import Job, Report
from studies.trials.records import STOPPED, Record, State
from studies.trials.store import Store


class TrialTracker(Protocol):
    """The part of a tracker that a ledger calls."""

    def catch_up(self, records: Iterable[Record]) -> None:
        """Send all ended records: a crash may have come before they were sent."""

    def update(self, record: Record) -> None:
        """Send the state of a trial."""


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Functions of the calling program that a study calls; an error in one stops the study.

    Attributes:
        on_report: Called with a trial's record after each of its reports was stored.
        on_trial_end: Called with a trial's record after its end was stored: complete, pruned,
            diverged or failed.
    """

    on_report: Callable[[Record], None] | None = None
    on_trial_end: Callable[[Record], None] | None = None


NO_CALLBACKS = Callbacks()


class Ledger:
    """Records every event in the store, in MLflow and in the panel, in that order.

    The store comes first because a study resumes from it. The calling program's own functions come
    last.

    Args:
        store: Store of the study.
        tracker: Tracker of its trials.
        panel: Panel that shows its progress.
        callbacks: Functions of the calling program.
        max_failures: Number of failed trials above which the study stops; None for no limit.
    """

    def __init__(
        self,
        store: Store,
        tracker: TrialTracker,
        panel: Panel,
        callbacks: Callbacks = NO_CALLBACKS,
        max_failures: int | None = None,
    ) -> None:
        self.store, self.tracker, self.panel = store, tracker, panel
        self._callbacks, self._max_failures = callbacks, max_failures
        self._stops: set[str] = set()
        self.receive()
        tracker.catch_up(store.records.values())

    def receive(self) -> None:
        """Read which trials users want to stop, and drop the requests about those that can't be."""
        self._stops = trial_stops(self.store.folder)
        for name in sorted(self._stops):
            record = self.store.records.get(name)
            if record is None or record.state != "running" or record.stage not in STOPPABLE:
                self._drop_stop(name)

    def stops(self, record: Record) -> bool:
        """Return whether a user has asked to stop a trial."""
        return record.name in self._stops

    def _drop_stop(self, name: str) -> None:
        drop_trial_stop(self.store.folder, name)
        self._stops.discard(name)

    def open(self, record: Record) -> None:
        """Record that a trial has been handed out."""
        self.tracker.update(record)
        self.panel.update()

    def report(self, record: Record, report: Report) -> None:
        """Record a report of a trial."""
        self.store.report(record.name, report)
        self.tracker.update(record)
        self.panel.update()
        _call_back("on_report", self._callbacks.on_report, record)

    def check_failures(self) -> None:
        """Raise if too many trials of the study have failed, in this run and before.

        Trials that users have added don't count.

        Raises:
            StudyStopped: They have.
        """
        records = self.store.records.values()
        failed = [r for r in records if r.state == "failed" and r.stage != "added"]
        if self._max_failures is not None and len(failed) > self._max_failures:
            count = f"{len(failed)} trial{'s have' if len(failed) > 1 else ' has'} failed"
            raise StudyStopped(
                f"{count}, more than --max-failures {self._max_failures} allows; for example "
                f"{failed[-1].name}: {failed[-1].reason}. Give a larger number to continue"
            )

    def fail(self, record: Record, reason: str, traceback: str) -> None:
        """Record the failure of a trial; print the traceback if it is the study's first failure.

        Raises:
            StudyStopped: Too many trials have failed.
        """
        first = not any(r.state == "failed" for r in self.store.records.values())
        log = self.store.write_error(record.name, traceback)
        if first:
            self.panel.say(
                f"{traceback.strip()}\n{record.name} failed: {reason}\n"
                f"log: {log}; other trials continue"
            )
        self.finish(record, "failed", reason)
        self.check_failures()

    def finish(self, record: Record, state: State, reason: str | None = None) -> None:
        """Record the end of a trial."""
        self.store.finish(record.name, state, reason)
        if self.stops(record):
            self._drop_stop(record.name)
        self.tracker.update(record)
        self.panel.update()
        _call_back("on_trial_end", self._callbacks.on_trial_end, record)


def _call_back(name: str, function: Callable[[Record], None] | None, record: Record) -> None:
    """Call a function of the calling program; an error in it says whose it is."""
    if function is None:
        return
    try:
        function(record)
    except Exception as error:
        error.add_note(
            f"Raised in your Callbacks.{name}, called with {record.name}. The study has stopped; "
            "its state is saved, and the same call resumes it without repeating that callback."
        )
        raise


class Stage:
    """The base class of stages, which handles reports.

    Constructed again on the same ledger, a stage resumes from the stored records.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = ledger.store

    def on_report(self, name: str, report: Report) -> bool:
        """Record a report, end the trial if it is due, and return whether the trial is pruned."""
        record = self._store.records[name]
        if record.state != "running" or report.step <= record.step:
            return False
        # The decision is stored with the report: after a crash either both are there, or the report
        # comes again.
        # The pruner sees every report, because its rungs are rebuilt from all of them.
        pruned = not report.done and (self._prunes(record, report) or self._ledger.stops(record))
        self._ledger.report(record, replace(report, pruned=pruned, time=int(1000 * time.time())))
        self._end_if_due(record)
        return pruned

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """Record the failure of a trial."""
        record = self._store.records[name]
        if record.state == "running":
            self._ledger.fail(record, reason, traceback)

    def on_restart(self, name: str) -> None:
        """Record the restart of a trial."""
        self._store.restart(name)

    title: str

    def remaining(self) -> int:
        """Return the number of trials not yet handed out (all unfinished ones at first)."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Return whether all trials have been handed out and have ended."""
        return not self.remaining() and not any(r.state == "running" for r in self._mine())

    def _mine(self) -> Iterable[Record]:
        return (r for r in self._store.records.values() if r.stage == self.title)

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job and its last known step, or None."""
        raise NotImplementedError

    def _prunes(self, record: Record, report: Report) -> bool:
        raise NotImplementedError

    def _end_if_due(self, record: Record) -> None:
        """End a trial if its last report says that it diverged, is done or was pruned."""
        last = record.reports[-1]
        if last.diverged:
            self._ledger.finish(record, "diverged", last.diverged)
        elif last.done:
            self._ledger.finish(record, "complete")
        elif last.pruned:
            reason = STOPPED if self._ledger.stops(record) else None
            self._ledger.finish(record, "pruned", reason)

    def _is_unfinished(self, record: Record) -> bool:
        """Return whether a trial still has to train, after ending one that a crash left open.

        A crash may come between a trial's last report and its end.
        """
        if record.state == "running" and record.reports:
            self._ledger.open(record)
            self._end_if_due(record)
        return record.state == "running"

    def _hand_out(self, record: Record) -> tuple[Job, int]:
        self._ledger.open(record)
        return self._store.job(record), record.step
