"""Where a study's events are kept and told, and what its stages have in common."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from studies.reporting.live_panel import Panel
from studies.trials.messages import Job, Report
from studies.trials.records import Record, State
from studies.trials.store import Store


class TrialTracker(Protocol):
    """The part of a tracker that a ledger calls."""

    def catch_up(self, records: Iterable[Record]) -> None:
        """Send all ended records: a crash may have come before they were sent."""

    def update(self, record: Record) -> None:
        """Send the state of a trial."""


class Ledger:
    """Tells store, MLflow and panel what happens, in that order: the store is the truth."""

    def __init__(self, store: Store, tracker: TrialTracker, panel: Panel) -> None:
        self.store, self.tracker, self.panel = store, tracker, panel
        tracker.catch_up(store.records.values())

    def open(self, record: Record) -> None:
        self.tracker.update(record)
        self.panel.update()

    def report(self, record: Record, report: Report) -> None:
        self.store.report(record.name, report)
        self.tracker.update(record)
        self.panel.update()

    def fail(self, record: Record, reason: str, traceback: str) -> None:
        """End a trial that raised; the study's first is told at once, in full."""
        first = not any(r.state == "failed" for r in self.store.records.values())
        log = self.store.write_error(record.name, traceback)
        if first:
            self.panel.say(
                f"{traceback.strip()}\n{record.name} failed: {reason}\nlog: {log}; the others go on"
            )
        self.finish(record, "failed", reason)

    def finish(self, record: Record, state: State, reason: str | None = None) -> None:
        self.store.finish(record.name, state, reason)
        self.tracker.update(record)
        self.panel.update()


class Stage:
    """What all stages do with reports; constructed again on the same ledger, a stage resumes where things stand."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._store = ledger.store

    def on_report(self, name: str, report: Report) -> bool:
        """Keep a report and end the trial where that is due."""
        record = self._store.records[name]
        if record.state != "running" or report.step <= record.step:
            return False
        # decided before the report is kept: after a crash the decision is there or the report comes again
        pruned = not report.done and self._prunes(record, report)
        self._ledger.report(record, replace(report, pruned=pruned, time=int(1000 * time.time())))
        self._end_if_due(record)
        return pruned

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        record = self._store.records[name]
        if record.state == "running":
            self._ledger.fail(record, reason, traceback)

    def on_restart(self, name: str) -> None:
        self._store.restart(name)

    title: str

    def remaining(self) -> int:
        """Return the number of trials not yet handed out; right after construction, all that have not ended."""
        raise NotImplementedError

    def ended(self) -> bool:
        """Return whether no trial is left to be handed out or to end."""
        return not self.remaining() and not any(r.state == "running" for r in self._mine())

    def _mine(self) -> Iterable[Record]:
        return (r for r in self._store.records.values() if r.stage == self.title)

    def next_job(self) -> tuple[Job, int] | None:
        """The next trial to go on with, and the last step of it that is known."""
        raise NotImplementedError

    def _prunes(self, record: Record, report: Report) -> bool:
        raise NotImplementedError

    def _end_if_due(self, record: Record) -> None:
        """End a trial whose last report says so."""
        last = record.reports[-1]
        if last.diverged:
            self._ledger.finish(record, "diverged", last.diverged)
        elif last.done:
            self._ledger.finish(record, "complete")
        elif last.pruned:
            self._ledger.finish(record, "pruned")

    def _goes_on(self, record: Record) -> bool:
        """Whether there is work left; a crash may have come between a trial's last report and its end."""
        if record.state == "running" and record.reports:
            self._ledger.open(record)
            self._end_if_due(record)
        return record.state == "running"

    def _given(self, record: Record) -> tuple[Job, int]:
        self._ledger.open(record)
        return self._store.job(record), record.step
