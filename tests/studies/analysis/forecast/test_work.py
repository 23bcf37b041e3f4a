"""The work that a study still needs and the pace of its trials, counted by hand."""

from dataclasses import replace
from typing import Any

import pytest
from campaigns import MATCHED, VALUES, Folder, report, train

from studies.analysis.forecast.work import (
    EVALUATION_SHARE,
    Pace,
    Work,
    pace_of,
    pace_so_far,
    work_left,
)
from studies.search.campaign import Campaign, Search
from studies.spec.study import Study

SIZES = {"train": 90, "validation": 10, "test": 40}


def _study(**changes: Any) -> Study:
    return Study.from_dict({**VALUES, "grace_steps": 0, **changes})


def test_a_new_study_needs_all_of_its_trials() -> None:
    study = _study(searches=3, trials=4, seeds=2, defaults={"max_steps": 8, "batch_size": 5})
    # 2 arms, 3 searches, 4 trials of 8 steps and 4 reports; then 2 runs for each winner
    search = Work("search", 24, 24 * 8, 24 * 8 * 5, 24 * 4 * 10, 24 * 4)
    confirm = Work("confirm", 12, 12 * 8, 12 * 8 * 5, 12 * (4 * 10 + 40), 12 * 4)
    assert work_left(study, {}, SIZES) == (search, confirm)


def test_finalists_and_a_profile_add_runs() -> None:
    study = _study(**MATCHED, searches=2, finalists=3, selection_seeds=2, profile=[0.5, 1.0])
    counts = {work.stage: work.trials for work in work_left(study, {}, SIZES)}
    # 2 arms in 2 searches: 3 trials; 3 finalists on 2 seeds; 2 seeds at 2 rates
    assert counts == {"search": 12, "select": 24, "confirm": 16}


def test_what_is_done_is_left_out_and_a_running_trial_counts_in_part(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    search = Search(ledger)
    first, second = (search.next_job() or pytest.fail("no job") for _ in range(2))
    for step in (2, 4, 6, 8):
        search.on_report(first[0].name, report(step))
    search.on_report(second[0].name, report(2))
    (left, _) = work_left(ledger.store.study, ledger.store.records, SIZES)
    batch = int(ledger.store.records[first[0].name].training["batch_size"])
    steps = 6 + 2 * 8  # the rest of the running trial, and two that have not been proposed
    assert left == Work("search", 3, steps, steps * batch, (3 + 2 * 4) * 10, 3 + 2 * 4)


def test_a_finished_study_has_nothing_left(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    train(Campaign(ledger))
    assert work_left(ledger.store.study, ledger.store.records, SIZES) == ()
    more = replace(ledger.store.study, seeds=3)
    (confirm,) = work_left(more, ledger.store.records, SIZES)
    assert (confirm.stage, confirm.trials) == ("confirm", 2)


def test_pace_is_the_time_of_all_reports_over_their_blocks(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    assert pace_of(ledger.store.records.values(), SIZES) is None
    search.on_report(job.name, report(2, seconds=9.0))
    search.on_report(job.name, report(4, seconds=10.0))
    records = list(ledger.store.records.values())
    blocks = 4 * int(records[0].training["batch_size"]) + EVALUATION_SHARE * 2 * 10
    pace = pace_of(records, SIZES)
    assert pace is not None
    assert pace.block_seconds == pytest.approx(10.0 / blocks)


def test_pace_so_far_leaves_out_the_start_of_trials(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    search = Search(ledger)
    first, second = (search.next_job() or pytest.fail("no job") for _ in range(2))
    # seconds: the first steps take 9, and the start of the second trial held up the first
    for step, seconds in ((2, 9.0), (4, 14.0), (6, 15.0)):
        search.on_report(first[0].name, report(step, seconds=seconds))
    search.on_report(second[0].name, report(2, seconds=9.0))
    search.on_report(second[0].name, report(4, seconds=10.1))
    assert pace_so_far(ledger.store.records, SIZES) is None  # three stretches are too few
    search.on_report(second[0].name, report(6, seconds=11.3))
    batch = int(ledger.store.records[first[0].name].training["batch_size"])
    blocks = 2 * batch + EVALUATION_SHARE * 10  # of a stretch
    pace = pace_so_far(ledger.store.records, SIZES)
    assert pace is not None
    assert pace.block_seconds == pytest.approx((1.0 + 1.1 + 1.2) / 3 / blocks)


def test_seconds_weigh_evaluated_blocks() -> None:
    work = [Work("search", 1, 10, 20, 100, 3), Work("confirm", 1, 10, 30, 0, 1)]
    assert Pace(2.0, 0.25).seconds(work) == 2.0 * (50 + 25)
    assert Pace(2.0, 0.25, 0.5).seconds(work) == 2.0 * (50 + 25) + 0.5 * 4
