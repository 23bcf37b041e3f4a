"""A time-limited study: how it grows, when it ends, and that its numbers are a longer one's."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from campaigns import MATCHED, VALUES, RecordingPanel, RecordingTracker, report

from studies.analysis.forecast.forecast import Place
from studies.files.folder_files import planned_study, stored_plan, stored_study
from studies.process.errors import TimeUp
from studies.progress.panel import Panel
from studies.search.campaign import Campaign
from studies.search.ledger import Ledger
from studies.search.time_limit import TimeLimit, begun, grown, limit_notes
from studies.spec.study import Study
from studies.trials.records import read_records
from studies.trials.store import Store

SIZES = {"train": 90, "validation": 10, "test": 40}
STUDY = Study.from_dict({**VALUES, **MATCHED, "searches": 3, "trials": 2, "seeds": 1})
STEP_S = 1.0  # of one trial, which trains alone


class Clock:
    """A clock that each report sets forward by the time of its steps."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """One process that runs a study, with or without a time limit, one trial after another."""

    def __init__(self, folder: Path, seconds: float | None = None, study: Study = STUDY) -> None:
        self.clock, self.panel, self.given = Clock(), RecordingPanel(), list[str]()
        self.store, limit = _open(folder, study, limited=seconds is not None), None
        if seconds is not None:
            self.limit = limit = TimeLimit(
                *(seconds, self.store, SIZES, lambda: Place("CPU", 1, 2)),
                say=self.panel.say,
                clock=self.clock,
            )
        ledger = Ledger(self.store, RecordingTracker(), cast(Panel, self.panel))
        self.campaign = Campaign(ledger, limit=limit)

    def train(self, most: int = 1000) -> "Run":
        for _ in range(most):
            if (given := self.campaign.next_job()) is None:
                break
            job, seen = given
            self.given.append(job.name)
            for step in (s for s in job.report_steps if s > seen):
                self.clock.now += 2 * STEP_S
                loss = 3.0 + len(job.name) % 7 / 10 - step / 100
                self.campaign.on_report(job.name, report(step, loss, seconds=step * STEP_S))
        self.store.close()
        return self


def _open(folder: Path, study: Study, *, limited: bool) -> Store:
    if not limited:
        return Store(folder, study)
    before = None
    if (folder / "study.json").exists():
        stored = stored_study(folder / "study.json")
        before = replace(study, trials=stored["trials"], searches=stored["searches"])
    return Store(folder, begun(study, before, read_records(folder)), study)


def _decided(folder: Path) -> dict[str, Any]:
    """Return what decides each search trial of a folder, and what came of it."""
    return {
        name: (r.params, r.seed, r.data_seed, r.state, r.nll)
        for name, r in read_records(folder).items()
        if r.stage == "search"
    }


def _sizes(study: Study) -> Iterator[tuple[int, int]]:
    at: Study | None = replace(study, searches=1, trials=1)
    while at is not None:
        yield at.searches, at.trials
        at = grown(at, study)


def test_study_grows_by_a_trial_for_each_arm_and_then_by_whole_searches() -> None:
    assert list(_sizes(STUDY)) == [(1, 1), (1, 2), (2, 2), (3, 2)]


def test_study_begins_with_all_configurations_that_it_starts_from() -> None:
    """A study with fewer trials than start entries would be refused when it is read."""
    entries = [{"learning_rate": 1e-3}, {"learning_rate": 2e-3}]
    small = begun(replace(STUDY, start=tuple(entries), trials=3), None, {})
    assert (small.searches, small.trials) == (1, 2)
    assert Study.from_dict(small.to_dict()) == small


@pytest.mark.parametrize(
    ("seconds", "searches", "trials"),
    # 8 s each: 2 trials and 2 confirm runs, 4 trials and 2, 8 and 4, 12 and 6, and some for the end
    [(30, 1, 1), (90, 1, 2), (140, 2, 2), (200, 3, 2)],
)
def test_search_takes_as_much_as_fits_and_leaves_time_to_confirm_it(
    tmp_path: Path, seconds: float, searches: int, trials: int
) -> None:
    run = Run(tmp_path / "try", seconds).train()
    assert (run.store.study.searches, run.store.study.trials) == (searches, trials)
    assert len(run.given) == 2 * searches * trials + 2 * searches
    assert all("confirm" in name for name in run.given[2 * searches * trials :])
    if searches * trials > 1:
        assert run.clock.now <= seconds
    assert run.campaign.remaining() == 0


def test_folder_holds_the_study_as_it_was_run_and_the_plan(tmp_path: Path) -> None:
    run = Run(tmp_path / "try", 90.0).train()
    path = tmp_path / "try" / "study.json"
    assert (stored_study(path)["searches"], stored_study(path)["trials"]) == (1, 2)
    assert stored_plan(path) == {"searches": 3}
    assert planned_study(path)["searches"] == 3
    (note,) = limit_notes(run.store)
    assert note.startswith("this is the verdict on 1 of 3 searches")
    assert "time limit: 1 of 3 searches" in run.panel.said[0]


def test_a_later_run_without_the_limit_ends_as_if_there_had_been_none(tmp_path: Path) -> None:
    Run(tmp_path / "limited", 90.0).train()
    again = Run(tmp_path / "limited").train()
    whole = Run(tmp_path / "whole").train()
    assert _decided(tmp_path / "limited") == _decided(tmp_path / "whole")
    assert {n for n in whole.given if "confirm" in n} <= read_records(tmp_path / "limited").keys()
    assert stored_plan(tmp_path / "limited" / "study.json") == {}
    assert limit_notes(again.store) == []


def test_a_limited_run_that_was_killed_resumes_the_search_that_it_was_in(tmp_path: Path) -> None:
    for most in (1, 2, 3, 5, 7):
        folder = tmp_path / str(most)
        Run(folder, 140.0).train(most)
        Run(folder, 140.0).train()
        whole = Run(tmp_path / f"{most}-whole").train()
        done = _decided(folder)
        assert done.items() <= _decided(whole.store.folder).items()
        assert {name.partition("-s")[2][:1] or "0" for name in done} >= {"0"}


def test_an_interrupted_study_without_a_limit_gets_its_first_searches_confirmed(
    tmp_path: Path,
) -> None:
    Run(tmp_path / "try").train(7)  # one trial of each arm in all three searches, and one more
    run = Run(tmp_path / "try", 80.0).train()
    assert run.given[0].startswith("fixed-0001")
    assert (run.store.study.searches, run.store.study.trials) == (1, 2)
    assert len([n for n in run.given if "confirm" in n]) == 2
    Run(tmp_path / "try").train()
    whole = Run(tmp_path / "whole").train()
    assert _decided(tmp_path / "try") == _decided(whole.store.folder)


def test_nothing_grows_before_a_report_tells_the_pace(tmp_path: Path) -> None:
    run = Run(tmp_path / "try", 200.0)
    first, second = (run.campaign.next_job() or pytest.fail("no job") for _ in range(2))
    assert [job.name for job, _ in (first, second)] == ["baseline-0000", "fixed-0000"]
    assert run.campaign.next_job() is None
    assert run.campaign.remaining() > 0  # so that the loop waits
    run.campaign.on_report(first[0].name, report(2, seconds=2.0))
    job, _ = run.campaign.next_job() or pytest.fail("no job")
    assert job.name == "baseline-0001"
    run.store.close()


def test_time_is_up_when_only_the_report_fits(tmp_path: Path) -> None:
    run = Run(tmp_path / "try", 90.0)
    run.clock.now = 83.0
    run.limit.check()
    run.clock.now = 84.5
    with pytest.raises(TimeUp):
        run.limit.check()
    run.store.close()


def test_sampler_depends_on_the_planned_trials(tmp_path: Path) -> None:
    """TPE starts after a third of the trials, which a limited study must not count as fewer."""
    study = replace(STUDY, trials=18, searches=1)
    Run(tmp_path / "limited", 300.0, study).train()
    whole = Run(tmp_path / "whole", None, study).train()
    limited = _decided(tmp_path / "limited")
    assert 14 < len(limited) < 36
    assert limited.items() <= _decided(whole.store.folder).items()
