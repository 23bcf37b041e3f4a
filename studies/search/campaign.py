"""A study as a source of jobs in stages: search, select winners, confirm them on fresh seeds.

A fourth stage, used only by ``hylorada explain``, trains the configurations that explain a winner.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from studies.process.listing import first_names
from studies.search.added import Added
from studies.search.ledger import Ledger, Stage
from studies.search.pruners import make_pruner
from studies.search.time_limit import TimeLimit
from studies.spec.study import Study
from studies.trials.messages import Job, Report
from studies.trials.records import Record, place_name, ranked
from studies.trials.reruns import confirm_records, select_records
from studies.trials.store import Store
from studies.trials.winners import Winner, best_block, counting, wanted_runs, winners

_MOST_NAMED = 6  # winners, in the line that announces the confirm stage


class Search(Stage):
    """The search stage: independent searches with the same number of trials for each arm.

    They are interleaved, so that all run under the same conditions. An arm whose space has fewer
    points ends when all of them are evaluated.

    Args:
        ledger: ledger of the study. Trials left running by an earlier process are handed out first.
        limit: time limit, within which the search grows; None searches the whole study.
    """

    title = "search"

    def __init__(self, ledger: Ledger, limit: TimeLimit | None = None) -> None:
        super().__init__(ledger)
        self._limit = limit
        self._pruner = make_pruner(self._store.plan)
        self._unfinished: list[Record] = []
        self._resume(range(self._store.study.searches))

    def grow(self) -> None:
        """Add trials or searches to a time-limited study for as long as there is time for them."""
        while self._limit and not self._unfinished and not self._open_places():
            larger = self._limit.next_study()
            if larger is None:
                return
            before = self._store.study.searches
            self._store.grow(larger)
            self._resume(range(before, larger.searches))

    def remaining(self) -> int:
        """Return the number of unfinished and unproposed trials not yet handed out.

        Of a study that may still grow, the planned trials count too.
        """
        return (
            len(self._unfinished)
            + self._to_come()
            + sum(
                self._store.planned(arm, search) - count
                for (search, arm), count in self._open_places().items()
            )
        )

    def next_job(self) -> tuple[Job, int] | None:
        """Return an unfinished trial's job, else a new one for the place with the fewest trials."""
        if self._unfinished:
            return self._hand_out(self._unfinished.pop(0))
        if not (places := self._open_places()):
            return None
        search, arm = min(places, key=lambda place: places[place])  # the first of several
        return self._hand_out(self._store.propose(arm, search))

    def _open_places(self) -> dict[tuple[int, str], int]:
        """Return each search and arm that still needs trials, with its number of trials so far."""
        study = self._store.study
        counts = {
            (search, arm): len(self._store.searched(arm, search))
            for search in range(study.searches)
            for arm in study.arms
        }
        return {(s, arm): n for (s, arm), n in counts.items() if n < self._store.planned(arm, s)}

    def _to_come(self) -> int:
        """Return the number of trials by which a time-limited study may still grow."""
        if self._limit is None or self._limit.closed:
            return 0
        study, plan = self._store.study, self._store.plan
        return len(study.arms) * (plan.searches * plan.trials - study.searches * study.trials)

    def _mine(self) -> Iterable[Record]:
        """Return the trials of the searches that are run; later ones may have been begun before."""
        return (r for r in super()._mine() if r.search < self._store.study.searches)

    def _resume(self, searches: Iterable[int]) -> None:
        """Resume searches from their stored trials: rebuild the rungs, and note what to finish."""
        places = [(search, arm) for search in searches for arm in self._store.study.arms]
        searched = [r for search, arm in places for r in self._store.of("search", arm, search)]
        self._feed_pruner(searched)
        self._unfinished += [r for r in searched if self._is_unfinished(r)]

    def _prunes(self, record: Record, report: Report) -> bool:
        if self._pruner is None:
            return False
        group = place_name(record.arm, record.search)
        return self._pruner.stops(group, record.name, report.step, report.metrics["eval/nll"])

    def _feed_pruner(self, records: Sequence[Record]) -> None:
        """Rebuild the rungs from stored reports."""
        for record in records:
            for report in record.reports:
                if not report.diverged:
                    self._prunes(record, report)


class Rerun(Stage):
    """The base class of stages that train winners or finalists again on fresh seeds to full length.

    Args:
        ledger: ledger of the study. Runs that it already has are not repeated.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        wanted = self._wanted()
        known = [self._store.records.get(r.name, r) for r in wanted]
        self._left = [r for r in known if self._is_unfinished(r)]
        self._drop_overtaken({r.name for r in wanted})

    def _wanted(self) -> list[Record]:
        """Return the records of all runs of this stage in starting order."""
        raise NotImplementedError

    def remaining(self) -> int:
        """Return the number of runs not yet handed out."""
        return len(self._left)

    def next_job(self) -> tuple[Job, int] | None:
        """Return the job of the next run, or None."""
        if not self._left:
            return None
        record = self._left.pop(0)
        if record.name not in self._store.records:
            self._store.add(record)
        return self._hand_out(record)

    def _prunes(self, record: Record, report: Report) -> bool:
        return False

    def _drop_overtaken(self, wanted: set[str]) -> None:
        """End runs of an earlier winner that a crash left running.

        A longer search has found a better trial since.
        """
        for record in list(self._mine()):
            left_out = record.search >= self._store.study.searches  # by a time limit, for now
            if record.state == "running" and record.name not in wanted and not left_out:
                self._ledger.open(record)
                self._ledger.finish(record, "pruned", "its arm has found a better trial")


class Select(Rerun):
    """The stage that trains the finalists of each search and arm on fresh selection seeds.

    A single finalist is the winner without training.
    """

    title = "select"

    def _wanted(self) -> list[Record]:
        return select_records(self._store.study, self._store.records)


class Confirm(Rerun):
    """The stage that trains the winners of each search on the same fresh seeds.

    Only these runs read the test split, once, at their end.
    """

    title = "confirm"

    def _wanted(self) -> list[Record]:
        return confirm_records(self._store.study, self._store.records)


class Explain(Rerun):
    """The stage that trains configurations around a winner on fresh seeds.

    Runs of this stage that an earlier command has begun are finished too.

    Args:
        ledger: ledger of the study. Runs that it already has are not repeated.
        requested: the records of all requested runs in starting order.
    """

    title = "explain"

    def __init__(self, ledger: Ledger, requested: Sequence[Record] = ()) -> None:
        self._requested = requested
        super().__init__(ledger)

    def _wanted(self) -> list[Record]:
        return list({r.name: r for r in (*_begun(self._store), *self._requested)}.values())


def _begun(store: Store) -> list[Record]:
    return [r for r in store.records.values() if r.stage == "explain" and r.state == "running"]


class Campaign:
    """All stages, one after the other, in one run of Tune.

    Args:
        ledger: ledger of the study. A new campaign on the same ledger resumes from its records.
        explain: the records of the runs that explain a winner.
        limit: time limit, within which the search grows; None searches the whole study.
    """

    def __init__(
        self, ledger: Ledger, explain: Sequence[Record] = (), limit: TimeLimit | None = None
    ) -> None:
        self._ledger, self._limit = ledger, limit
        self._explain = len({r.name for r in (*_begun(ledger.store), *explain)})
        self._later: list[Callable[[Ledger], Rerun]] = [
            Select,
            Confirm,
            partial(Explain, requested=explain),
        ]
        self._stage: Stage = Search(ledger, limit)
        self._added = Added(ledger)
        self._enter_next_stages()
        if self._stage.ended() and (count := self._added.remaining()):
            ledger.panel.begin(self._added.title, count)

    @property
    def is_searching(self) -> bool:
        """Whether the campaign is still in the search stage."""
        return isinstance(self._stage, Search)

    def remaining(self) -> int:
        """Return an upper bound on the trials left to hand out, as if every arm had a winner."""
        store = self._ledger.store
        study = store.plan if self._limit and not self._limit.closed else store.study
        most = (wanted_runs(study, "select"), wanted_runs(study, "confirm"), self._explain)
        return (
            self._stage.remaining()
            + sum(most[len(most) - len(self._later) :])
            + self._added.remaining()
        )

    def receive(self) -> bool:
        """Carry out what users have requested meanwhile, and return whether there are new jobs."""
        self._ledger.receive()
        return self._added.receive()

    def next_job(self) -> tuple[Job, int] | None:
        """Return the next job, or None at the end and while a stage waits for its last trials."""
        if isinstance(self._stage, Search):
            self._stage.grow()
        if self.is_searching and self._stage.ended():
            self._report_exhausted_spaces()
        self._enter_next_stages()
        return self._added.next_job() or self._stage.next_job()

    def on_report(self, name: str, report: Report) -> bool:
        """Pass a report to the trial's stage, and return whether to stop the trial."""
        return self._stage_of(name).on_report(name, report)

    def on_failure(self, name: str, reason: str, traceback: str) -> None:
        """Pass a trial's failure to its stage."""
        self._stage_of(name).on_failure(name, reason, traceback)

    def on_restart(self, name: str) -> None:
        """Pass a trial's restart to its stage."""
        self._stage_of(name).on_restart(name)

    def _stage_of(self, name: str) -> Stage:
        """Return the stage of a trial that has been handed out: the current one, or a user's."""
        is_added = self._ledger.store.records[name].stage == self._added.title
        return self._added if is_added else self._stage

    def _enter_next_stages(self) -> None:
        """Enter the next stage for as long as the current one has ended."""
        while self._later and self._stage.ended():
            self._stage = self._later.pop(0)(self._ledger)
            if self._stage.remaining():
                self._announce()

    def _announce(self) -> None:
        store, panel, title = self._ledger.store, self._ledger.panel, self._stage.title
        if title == "confirm":
            best = [w.record.name for w in winners(store.study, store.records).values()]
            panel.say(f"confirm: {first_names(best, _MOST_NAMED)} x {_times(store.study)}")
        ended = sum(r.state != "running" for r in counting(store.study, store.records, title))
        panel.begin(title, ended + self._stage.remaining())

    def _report_exhausted_spaces(self) -> None:
        """Report the arms whose space had fewer points than the study has trials."""
        store = self._ledger.store
        for name in () if store.study.blocks else store.study.arms:
            if len(store.of("search", name, 0)) < store.study.trials:
                points = store.study.space(name).size()
                self._ledger.panel.say(
                    f"{name}: search space exhausted: {points} of {points} points evaluated"
                )


def _times(study: Study) -> str:
    seeds = "1 fresh paired seed" if study.seeds == 1 else f"{study.seeds} fresh paired seeds"
    if study.seed_list:
        seeds = f"the named paired seeds {', '.join(map(str, study.seed_list))}"
    rates = ", ".join(f"{f:g}" for f in sorted(study.factors))
    return f"{seeds}, each at {rates} times the learning rate" if len(study.factors) > 1 else seeds


@dataclass(frozen=True)
class SearchOutcome:
    """The outcome of all searches.

    Attributes:
        winners: winner of each search and arm.
        missing: the reason for each arm without a winner.
    """

    winners: dict[tuple[int, str], Winner]
    missing: tuple[str, ...]


def find_winners(store: Store) -> SearchOutcome:
    """Return the winners of all searches; diverged, failed and pruned trials never win."""
    study = store.study
    best, missing = winners(study, store.records), []
    for search in range(study.searches):
        for arm in study.arms:
            if (search, arm) in best:
                continue
            if (
                study.blocks
                and best_block(study, store.records, search) is None
                and ranked(store.records, arm, search)
            ):
                missing.append(f"search {search} has no block that all its arms have finished")
                continue
            states = [r.state for r in store.of("search", arm, search)]
            counts = ", ".join(
                f"{states.count(s)} {s}" for s in ("diverged", "failed", "pruned") if s in states
            )
            where = f" in search {search}" if study.searches > 1 else ""
            missing.append(
                f"arm {arm!r} has no finished trial with a finite eval/ppl{where} ({counts})"
            )
    return SearchOutcome(best, tuple(dict.fromkeys(missing)))
