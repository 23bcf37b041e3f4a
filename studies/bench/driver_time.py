"""The driver's own time for a trial: a real search stage without training, messages or MLflow."""

import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hylorada.runtime.checksums import digest
from studies.learnable_bucketing import STUDY
from studies.progress.panel import Panel
from studies.search.campaign import Search
from studies.search.ledger import Ledger
from studies.spec.study import Study
from studies.trials.messages import Job, Report
from studies.trials.records import Record, State
from studies.trials.store import Store

TRIALS = 84  # of each arm and search
SEARCHES = 4
DEPTHS = (100, 1_000, 5_000)  # reports that a trial has when one more is timed
_SEATS = 8
_LONG_SEATS = 2
_LAST = 50  # reports at each depth of each trial, of which the median is taken


class _NoTracker:
    """A tracker of no service."""

    def catch_up(self, records: Iterable[Record]) -> None:
        """Do nothing."""

    def update(self, record: Record) -> None:
        """Do nothing."""


class _TimedLedger(Ledger):
    """A ledger that measures how long it takes to end trials."""

    finish_seconds = 0.0

    def finish(self, record: Record, state: State, reason: str | None = None) -> None:
        """Record the end of a trial."""
        began = time.perf_counter()
        super().finish(record, state, reason)
        self.finish_seconds += time.perf_counter() - began


class _Seats:
    """Seats that take jobs from a search and report made-up losses at once.

    Args:
        search: The search.
        count: Number of trials that run at the same time.

    Attributes:
        proposals: Seconds of each proposal.
        reports: For each report, the number of earlier ones of its trial, and its seconds; those of
            the last report end the trial too.
    """

    def __init__(self, search: Search, count: int) -> None:
        self._search, self._count = search, count
        self.proposals: list[float] = []
        self.reports: list[tuple[int, float]] = []

    def run(self) -> None:
        """Run all trials of the search to their ends."""
        live: deque[tuple[Job, int]] = deque()  # each with the number of its next report
        while True:
            while len(live) < self._count and (job := self._propose()) is not None:
                live.append((job, 0))
            if not live:
                return
            job, number = live.popleft()
            if not self._report(job, number):
                live.append((job, number + 1))

    def _propose(self) -> Job | None:
        began = time.perf_counter()
        handed_out = self._search.next_job()
        if handed_out is None:
            return None
        self.proposals.append(time.perf_counter() - began)
        return handed_out[0]

    def _report(self, job: Job, number: int) -> bool:
        """Report a loss, and return whether the trial has ended."""
        report = _made_up(job, number)
        began = time.perf_counter()
        stopped = self._search.on_report(job.name, report)
        self.reports.append((number, time.perf_counter() - began))
        return stopped or report.done


def _made_up(job: Job, number: int) -> Report:
    """Return a report of realistic size, whose loss is derived from the name of the trial."""
    step = job.report_steps[number]
    loss = 5 + int(digest(job.name), 16) % 997 / 997 - number / len(job.report_steps)
    return Report(
        step=step,
        metrics={"train/nll": loss, "eval/nll": loss, "eval/ppl": 2.0**loss},
        boundaries=tuple(float(8 * i) for i in range(1, 16)),
        start_boundaries=tuple(float(8 * i) for i in range(1, 16)),
        seconds=step / 10,
        parameters=51_399,
        applied={**job.adapter, **job.training},
        done=step == job.report_steps[-1],
    )


def _drive(study: Study, folder: Path, seats: int) -> tuple[_Seats, float]:
    """Run all trials of a study; return its seats, and the seconds in which trials were ended."""
    store = Store(folder, study)
    try:
        with Panel(store, Console(quiet=True), "none") as panel:
            ledger = _TimedLedger(store, _NoTracker(), panel)
            driven = _Seats(Search(ledger), seats)
            driven.run()
            return driven, ledger.finish_seconds
    finally:
        store.close()


def driver_time(
    folder: Path,
    trials: int = TRIALS,
    searches: int = SEARCHES,
    depths: Sequence[int] = DEPTHS,
) -> dict[str, Any]:
    """Return the driver's milliseconds for a trial of the built-in study, and for a late report.

    Args:
        folder: Folder for the files of the studies.
        trials: Trials of each arm and search.
        searches: Searches of the study.
        depths: Numbers of reports at which a report of a long trial is timed.
    """
    study = Study.from_dict({**STUDY, "trials": trials, "searches": searches})
    short, finish_seconds = _drive(study, folder / "short", _SEATS)
    count = len(short.proposals)
    propose, finish = 1e3 * sum(short.proposals) / count, 1e3 * finish_seconds / count
    report = 1e3 * sum(seconds for _, seconds in short.reports) / count - finish
    return {
        "trials": count,
        "seats": _SEATS,
        "reports": len(short.reports) / count,
        "propose_ms": propose,
        "reports_ms": report,
        "finish_ms": finish,
        "together_ms": propose + report + finish,
        "report_ms_after": _late_reports(folder / "long", depths),
    }


def _late_reports(folder: Path, depths: Sequence[int]) -> dict[str, float]:
    """Return the median milliseconds of a report by the number of earlier ones of its trial."""
    defaults = {**STUDY["defaults"], "max_steps": max(depths) + 1}
    arms = {"baseline": STUDY["arms"]["baseline"]}
    changes = {"eval_every": 1, "grace_steps": 0, "comparisons": [], "defaults": defaults}
    counts = {"trials": _LONG_SEATS, "searches": 1}
    study = Study.from_dict({**STUDY, **changes, **counts, "arms": arms})
    reports = _drive(study, folder, _LONG_SEATS)[0].reports
    late = {d: [s for n, s in reports if d - _LAST <= n < d] for d in depths}
    return {str(depth): 1e3 * statistics.median(seconds) for depth, seconds in late.items()}
