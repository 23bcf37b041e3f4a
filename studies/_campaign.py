"""A study as one source of jobs, in two stages: search picks each arm's best, confirm trains those on paired seeds."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hylorada import derive_seed

from ._asha import Asha
from ._job import Job, Report
from ._panel import Panel
from ._records import Record, State
from ._store import Store
from ._study import Study
from ._tracking import Tracker


class Ledger:
    """Tells store, MLflow and panel what happens, in that order: the store is the truth."""

    def __init__(self, store: Store, tracker: Tracker, panel: Panel) -> None:
        self.store, self.tracker, self.panel = store, tracker, panel
        tracker.catch_up(store.records.values())

    def open(self, record: Record) -> None:
        self.tracker.tell(record)
        self.panel.update()

    def report(self, record: Record, report: Report) -> None:
        self.store.report(record.name, report)
        self.tracker.tell(record)
        self.panel.update()

    def fail(self, record: Record, reason: str, traceback: str) -> None:
        """End a trial that raised; the study's first is told at once, in full."""
        first = not any(r.state == "failed" for r in self.store.records.values())
        log = self.store.write_error(record.name, traceback)
        if first:
            self.panel.say(f"{traceback.strip()}\n{record.name} failed: {reason}\nlog: {log}; the others go on")
        self.finish(record, "failed", reason)

    def finish(self, record: Record, state: State, reason: str | None = None) -> None:
        self.store.finish(record.name, state, reason)
        self.tracker.tell(record)
        self.panel.update()


class Stage:
    """What both stages do with reports; opened again on the same ledger it goes on where things stand."""

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

    def remaining(self) -> int:
        """How many trials are still to be given; at the opening, all that have not ended."""
        raise NotImplementedError

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


class Search(Stage):
    """Equal numbers of trials for each arm, interleaved, so that the arms meet the same conditions.

    An arm whose space has fewer points ends when all are evaluated.

    Args:
        ledger: where everything is kept; trials left running by an earlier process go on first.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        study = self._store.study
        self._asha = _asha(study)
        searched = [r for arm in study.arms for r in self._store.of("search", arm)]
        self._feed_asha(searched)
        self._unfinished = [r for r in searched if self._goes_on(r)]

    def remaining(self) -> int:
        return len(self._unfinished) + sum(self._store.planned(arm) - count for arm, count in self._open().items())

    def next_job(self) -> tuple[Job, int] | None:
        if self._unfinished:
            return self._given(self._unfinished.pop(0))
        if not (open_arms := self._open()):
            return None
        return self._given(self._store.propose(min(open_arms, key=open_arms.__getitem__)))

    def ended(self) -> bool:
        """Whether no trial is left to be given or to end."""
        study = self._store.study
        return not self.remaining() and all(
            r.state != "running" for arm in study.arms for r in self._store.of("search", arm)
        )

    def _open(self) -> dict[str, int]:
        """Arms that are to have more trials, and how many they have."""
        counts = {arm: len(self._store.of("search", arm)) for arm in self._store.study.arms}
        return {arm: count for arm, count in counts.items() if count < self._store.planned(arm)}

    def _prunes(self, record: Record, report: Report) -> bool:
        if self._asha is None:
            return False
        return self._asha.stops(record.arm, record.name, report.step, report.metrics["eval/nll"])

    def _feed_asha(self, records: Sequence[Record]) -> None:
        """Rebuild the rungs from what is known."""
        if self._asha is None:
            return
        for record in records:
            for report in record.reports:
                if not report.diverged:
                    self._asha.stops(record.arm, record.name, report.step, report.metrics["eval/nll"])


class Confirm(Stage):
    """Each arm's winner on the same fresh seeds, to full length, with the test split read once at the end.

    Args:
        ledger: runs that are there already are not repeated.
        winners: best search trial of each arm.
    """

    def __init__(self, ledger: Ledger, winners: Sequence[Record]) -> None:
        super().__init__(ledger)
        study = self._store.study
        # seed by seed, so that a broken-off stage has whole pairs
        wanted = [self._record(w, s, study) for s in range(study.seeds) for w in winners]
        known = [self._store.records.get(r.name, r) for r in wanted]
        self._left = [r for r in known if self._goes_on(r)]
        self._drop_overtaken({r.name for r in wanted})

    def remaining(self) -> int:
        return len(self._left)

    def next_job(self) -> tuple[Job, int] | None:
        if not self._left:
            return None
        record = self._left.pop(0)
        if record.name not in self._store.records:
            self._store.add(record)
        return self._given(record)

    def _prunes(self, record: Record, report: Report) -> bool:
        return False

    def _drop_overtaken(self, wanted: set[str]) -> None:
        """End what a crash left of the runs of an earlier winner: a longer search has found a better trial."""
        for record in list(self._store.records.values()):
            if record.stage == "confirm" and record.state == "running" and record.name not in wanted:
                self._ledger.open(record)
                self._ledger.finish(record, "pruned", "its arm has found a better trial")

    @staticmethod
    def _record(winner: Record, index: int, study: Study) -> Record:
        return Record(
            name=f"{winner.name}-confirm-{index:02d}",
            arm=winner.arm,
            stage="confirm",
            winner=winner.name,
            number=index,
            params=winner.params,
            adapter=winner.adapter,
            training=winner.training,
            seed=derive_seed(study.seed, "confirm", index),
            data_seed=derive_seed(study.seed, "confirm data", index),
        )


class Campaign:
    """Both stages, one after the other, in one run of Tune.

    Args:
        ledger: where everything is kept; a campaign opened again on it goes on where things stand.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._search = Search(ledger)
        self._stage: Stage = self._search
        if self._search.ended():
            self._begin_confirm()

    @property
    def searches(self) -> bool:
        """Whether confirm has not begun."""
        return self._stage is self._search

    def remaining(self) -> int:
        """How many trials may still be given: during the search, as if every arm were to have a winner."""
        study = self._ledger.store.study
        return self._stage.remaining() + (study.seeds * len(study.arms) if self.searches else 0)

    def next_job(self) -> tuple[Job, int] | None:
        """The next trial; None also while the last trials of the search decide what is to be confirmed."""
        if self.searches and self._search.ended():
            self._tell_exhausted()
            self._begin_confirm()
        return self._stage.next_job()

    def on_report(self, name: str, report: Report) -> bool:
        return self._stage.on_report(name, report)

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        self._stage.on_failure(name, reason, traceback)

    def on_restart(self, name: str) -> None:
        self._stage.on_restart(name)

    def _begin_confirm(self) -> None:
        store, panel = self._ledger.store, self._ledger.panel
        best = winners(store).records
        self._stage = Confirm(self._ledger, best)
        if self._stage.remaining():
            panel.say(f"confirm: {', '.join(r.name for r in best)} x {store.study.seeds} fresh paired seeds")
            panel.begin("confirm", store.study.seeds * len(best))

    def _tell_exhausted(self) -> None:
        """Name the arms that had fewer trials than asked for."""
        store = self._ledger.store
        for name, arm in store.study.arms.items():
            if len(store.of("search", name)) < store.study.trials:
                points = arm.space.size()
                self._ledger.panel.say(f"{name}: search space exhausted: {points} of {points} points evaluated")


def _asha(study: Study) -> Asha | None:
    if not study.grace_steps:
        return None
    return Asha(
        study.arms,
        grace_steps=study.grace_steps,
        reduction_factor=study.reduction_factor,
        max_steps=study.max_steps,
    )


@dataclass(frozen=True)
class Winners:
    """Each arm's best trial; arms without one are named with why."""

    records: tuple[Record, ...]
    missing: tuple[str, ...]


def winners(store: Store) -> Winners:
    """The best complete trial of each arm; diverged, failed and pruned trials never count."""
    found, missing = [], []
    for arm in store.study.arms:
        best = store.best(arm)
        if best is not None:
            found.append(best)
            continue
        states = [r.state for r in store.of("search", arm)]
        counts = ", ".join(f"{states.count(s)} {s}" for s in ("diverged", "failed", "pruned") if s in states)
        missing.append(f"arm {arm!r} has no finished trial with a finite eval/ppl ({counts})")
    return Winners(tuple(found), tuple(missing))
