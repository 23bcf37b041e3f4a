"""A run's time limit: how far a study may grow within it, and when to report what there is.

A time-limited run begins with the first trial of every arm in the first search. Whenever all trials
have been handed out, it adds one more trial for each arm, or one more search once all trials of a
search are there, if everything down to the confirm runs is expected to fit into the time left.
Otherwise the search ends, and the winners are confirmed. So the verdict always rests on whole
searches with the same number of trials for every arm.

Such a study is one with fewer searches, as its folder says, and a later run enlarges it as
``hylorada extend`` would. No number of a trial depends on the limit.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from studies.analysis.forecast.forecast import OVERHEAD, Place
from studies.analysis.forecast.work import Pace, Sizes, pace_of, pace_so_far, work_left
from studies.files.folder_files import study_command
from studies.process.errors import TimeUp
from studies.spec.study import Study
from studies.trials.records import Record, planned_trials, records_of
from studies.trials.reruns import confirm_records
from studies.trials.store import Store

_REPORT_S = 6.0  # for the results, the report, MLflow's last runs and the end of Ray
_MARGIN = 1.1  # the first reports tell the pace to about a tenth


class TimeLimit:
    """The time limit of a run.

    Args:
        ends: Time on ``clock`` by which the run should have ended.
        store: Store of the study; its ``plan`` is the largest study that is run.
        sizes: Number of blocks of each split.
        place: Returns where trials train.
        say: Prints a line.
        clock: Returns the time in seconds.

    Attributes:
        closed: Whether the study will not grow any more in this run.
    """

    def __init__(
        self,
        ends: float,
        store: Store,
        sizes: Sizes,
        place: Callable[[], Place],
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ends, self._store, self._sizes = ends, store, sizes
        self._place, self._say, self._clock = place, say, clock
        self._base_seconds = 0.0  # to evaluate the base alone, which comes after the confirm runs
        self.closed = False

    def check(self) -> None:
        """Raise if only the time for the report is left.

        Raises:
            TimeUp: It is.
        """
        if self._time_left() <= 0:
            raise TimeUp

    def next_study(self) -> Study | None:
        """Return the study with the next trials or search, if these fit into the time left.

        Returns:
            None if they don't, or if it is too early to tell.
        """
        store = self._store
        if self.closed:
            return None
        records = store.records.values()
        larger, steady = grown(store.study, store.plan), pace_so_far(store.records, self._sizes)
        pace = steady or pace_of(records, self._sizes)
        if pace is not None and not (store.folder / "base.json").exists():
            self._base_seconds = pace.block_seconds * pace.evaluation_share * self._sizes["test"]
        if larger is not None and pace is not None and self._fits(larger, pace):
            return larger
        # First reports are slow, so they may show that a study fits, but not that it doesn't.
        if larger is not None and steady is None and any(r.state == "running" for r in records):
            return None
        self.closed = True
        if larger is not None:
            self._say(f"time limit: {so_far(store)}; confirming what they found")
        return None

    def _fits(self, study: Study, pace: Pace) -> bool:
        work = work_left(study, self._store.records, self._sizes)
        # The last trials of the search don't fill the pack.
        tail = study.max_steps * max(int(study.fields(arm)["batch_size"]) for arm in study.arms)
        seconds = OVERHEAD * pace.seconds(work) / self._place().hosts + tail * pace.block_seconds
        return _MARGIN * seconds <= self._time_left()

    def _time_left(self) -> float:
        """Return the seconds until only the time for the base and the report is left."""
        return self._ends - self._clock() - _REPORT_S - self._base_seconds


def begun(planned: Study, before: Study | None, records: Mapping[str, Record]) -> Study:
    """Return the study with which a time-limited run begins, which is at most the planned one.

    It keeps as many trials as the first search has begun (at least one, and all of ``start``), and
    the leading searches that have finished that many. A stored study whose trials have all ended
    is kept.

    Args:
        planned: The largest study to run.
        before: The study as it is stored; None before its first run.
        records: All records of the study, by name.
    """
    if before is not None and records and _has_ended(before, records):
        return before
    counts = [len(records_of(records, "search", arm, 0)) for arm in planned.arms]
    trials = min(planned.trials, max(1, len(planned.start), *counts))
    study = replace(planned, trials=trials)
    searches = 1
    while searches < planned.searches and _has_ended(
        replace(study, searches=searches + 1), records
    ):
        searches += 1
    return replace(study, searches=searches)


def grown(study: Study, planned: Study) -> Study | None:
    """Return the next larger study on the way to the planned one; None at its end."""
    if study.trials < planned.trials:
        return replace(study, trials=study.trials + 1)
    if study.searches < planned.searches:
        return replace(study, searches=study.searches + 1)
    return None


def so_far(store: Store) -> str:
    """Return how much of the planned study is run, such as "2 of 5 searches"."""
    study, planned = store.study, store.plan
    searches = f"{study.searches} of {planned.searches} searches"
    if study.trials == planned.trials:
        return searches
    trials = f"{study.trials} of {planned.trials} trials for each arm"
    return trials if planned.searches == 1 else f"{searches} with {trials}"


def limit_notes(store: Store) -> list[str]:
    """Return notes for the reader of a verdict on less than was planned."""
    study, notes = store.study, []
    again = f"`{study_command(store.folder)}` trains the others"
    if study != store.plan:
        notes.append(f"this is the verdict on {so_far(store)} that were planned; {again}")
    runs = confirm_records(study, store.records)
    names = {r.name for r in runs}
    ended = sum(r.name in names and r.state != "running" for r in store.records.values())
    if ended < len(runs):
        notes.append(
            f"the time limit came when {ended} of {len(runs)} confirm runs had ended; {again}"
        )
    return notes


def _has_ended(study: Study, records: Mapping[str, Record]) -> bool:
    """Return whether all search trials of a study have ended."""
    for search in range(study.searches):
        for arm in study.arms:
            trials = records_of(records, "search", arm, search)
            ended = sum(r.state != "running" for r in trials)
            if ended < max(len(trials), planned_trials(study, records, arm, search)):
                return False
    return True
