"""The stages: which trial comes next, what ends a trial, and how a restart resumes."""

import time
from typing import Any

import pytest
from campaigns import VALUES, Folder, report, train

from studies.process.errors import StudyStopped
from studies.search.campaign import Campaign, Confirm, Search, find_winners
from studies.search.ledger import Callbacks, Ledger
from studies.trials.messages import Report
from studies.trials.records import Record


def test_search_interleaves_the_arms_equally(folder: Folder) -> None:
    search = Search(folder.open(grace_steps=0))
    assert search.remaining() == 4
    assert train(search) == ["baseline-0000", "fixed-0000", "baseline-0001", "fixed-0001"]
    assert search.remaining() == 0
    assert search.next_job() is None


def test_search_tells_store_then_mlflow_then_panel(folder: Folder) -> None:
    search = Search(folder.open(grace_steps=0, trials=1))
    train(search)
    of_one = [c for c in folder.tracker.calls if c[0] == "fixed-0000"]
    steps = [("fixed-0000", s, "running") for s in (0, 2, 4, 6, 8)]
    assert of_one == [*steps, ("fixed-0000", 8, "complete")]
    assert folder.panel.drawn == 2 * 6


def test_search_calls_the_callbacks_after_it_has_stored(folder: Folder) -> None:
    calls = []
    folder.callbacks = Callbacks(
        on_report=lambda r: calls.append((r.name, r.step, r.state)),
        on_trial_end=lambda r: calls.append((r.name, r.step, r.state)),
    )
    train(Search(folder.open(grace_steps=0, trials=1)))
    of_one = [c for c in calls if c[0] == "fixed-0000"]
    reports = [("fixed-0000", s, "running") for s in (2, 4, 6, 8)]
    assert of_one == [*reports, ("fixed-0000", 8, "complete")]


def test_error_in_a_callback_leaves_a_study_that_resumes(folder: Folder) -> None:
    def fail(record: Record) -> None:
        raise RuntimeError(record.name)

    folder.callbacks = Callbacks(on_report=fail)
    with pytest.raises(RuntimeError, match="0000") as caught:
        train(Search(folder.open(grace_steps=0, trials=1)))
    (note,) = caught.value.__notes__
    assert note.startswith("Raised in your Callbacks.on_report, called with baseline-0000. ")
    folder.callbacks = Callbacks()
    search = Search(folder.open(grace_steps=0, trials=1))
    train(search)
    assert search.ended()


def test_reports_keep_the_time_at_which_they_came(folder: Folder) -> None:
    before = int(1000 * time.time())
    ledger = folder.open(grace_steps=0, trials=1)
    train(Search(ledger))
    times = [r.time for r in ledger.store.records["fixed-0000"].reports]
    assert before <= times[0] <= times[-1] <= 1000 * time.time()
    again = folder.open(grace_steps=0, trials=1)
    assert [r.time for r in again.store.records["fixed-0000"].reports] == times


def test_search_ends_a_diverged_trial_with_its_reason(folder: Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    report = Report(step=3, done=True, diverged="non-finite training loss at step 3")
    assert not search.on_report(job.name, report)
    record = ledger.store.records[job.name]
    assert (record.state, record.reason) == ("diverged", "non-finite training loss at step 3")
    assert folder.tracker.calls[-1] == (job.name, 3, "diverged")


def test_search_prunes_what_is_worse_at_a_rung(folder: Folder) -> None:
    ledger = folder.open(trials=3)
    search = Search(ledger)
    jobs = [search.next_job() or pytest.fail("no job") for _ in range(6)]
    of_fixed = [job.name for job, _ in jobs if job.name.startswith("fixed")]
    assert [
        search.on_report(name, report(2, nll))
        for name, nll in zip(of_fixed, (3.0, 2.0, 4.0), strict=True)
    ] == [
        False,
        False,
        True,
    ]
    assert ledger.store.records[of_fixed[2]].state == "pruned"
    assert folder.tracker.calls[-1] == (of_fixed[2], 2, "pruned")
    assert not search.on_report(jobs[0][0].name, report(2, 99.0))  # another arm's first


def test_search_without_asha_prunes_nothing(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    train(Search(ledger), lambda name: 3.0 + int(name[-1]))
    assert {r.state for r in ledger.store.records.values()} == {"complete"}


def test_search_takes_failures_once(folder: Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    search.on_report(job.name, report(2))
    search.on_failure(job.name, "out of memory", "Traceback of the first")
    calls = len(folder.tracker.calls)
    assert not search.on_report(job.name, report(4))
    search.on_failure(job.name, "again", "another")
    record = ledger.store.records[job.name]
    assert (record.state, record.reason, record.step) == ("failed", "out of memory", 2)
    assert (
        ledger.store.trial_folder(job.name) / "error.txt"
    ).read_text() == "Traceback of the first"
    assert len(folder.tracker.calls) == calls


def test_study_stops_once_more_trials_have_failed_than_allowed(folder: Folder) -> None:
    folder.max_failures = 1
    search = Search(folder.open())
    first, second = (search.next_job() or pytest.fail("no job") for _ in range(2))
    search.on_failure(first[0].name, "out of memory", "Traceback")
    with pytest.raises(StudyStopped, match="2 trials have failed, more than --max-failures 1"):
        search.on_failure(second[0].name, "no such shape", "Traceback")
    ledger = folder.open()  # both failures are stored, so it stops again
    assert [r.state for r in ledger.store.records.values()] == ["failed", "failed"]
    with pytest.raises(StudyStopped, match="fixed-0000: no such shape"):
        ledger.check_failures()
    folder.max_failures = 2
    folder.open().check_failures()


def test_no_failure_is_allowed_with_a_limit_of_0(folder: Folder) -> None:
    folder.max_failures = 0
    search = Search(folder.open())
    job, _ = search.next_job() or pytest.fail("no job")
    with pytest.raises(StudyStopped, match="1 trial has failed, more than --max-failures 0"):
        search.on_failure(job.name, "out of memory", "Traceback")


def test_search_ignores_a_step_it_has_seen(folder: Folder) -> None:
    ledger = folder.open()
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    search.on_report(job.name, report(4, 3.0))
    calls = len(folder.tracker.calls)
    assert not search.on_report(job.name, report(4, 9.0))
    assert not search.on_report(job.name, report(2, 9.0))
    assert ledger.store.records[job.name].nll == 3.0
    assert len(folder.tracker.calls) == calls


def test_search_goes_on_with_unfinished_trials_first(folder: Folder) -> None:
    search = Search(folder.open(grace_steps=0))
    first, second = (search.next_job() or pytest.fail("no job") for _ in range(2))
    search.on_report(second[0].name, report(2))
    search.on_report(second[0].name, report(4))
    again = Search(folder.open(grace_steps=0))
    assert again.remaining() == 4
    assert again.next_job() == (first[0], 0)
    assert again.next_job() == (second[0], 4)
    assert train(again) == ["baseline-0001", "fixed-0001"]


@pytest.mark.parametrize(
    ("last", "state"),
    [
        (report(8), "complete"),
        (Report(step=3, done=True, diverged="non-finite gradient at step 3"), "diverged"),
    ],
)
def test_search_ends_what_a_crash_left_at_its_last_report(
    folder: Folder, last: Report, state: str
) -> None:
    ledger = folder.open(trials=1)
    job, _ = Search(ledger).next_job() or pytest.fail("no job")
    ledger.store.report(job.name, last)  # and then the process dies
    ledger = folder.open(trials=1)
    assert folder.tracker.calls == [("catch_up", [job.name])]
    search = Search(ledger)
    assert ledger.store.records[job.name].state == state
    assert folder.tracker.calls[1:] == [
        (job.name, last.step, "running"),
        (job.name, last.step, state),
    ]
    assert train(search) == ["fixed-0000"]


def test_search_rebuilds_the_rungs(folder: Folder) -> None:
    def after(ledger: Ledger, nll: float) -> bool:
        search = Search(ledger)
        job, _ = search.next_job() or pytest.fail("no job")
        assert job.name == "baseline-0003"
        return search.on_report(job.name, report(2, nll))

    losses = {"0000": 3.0, "0001": 2.0, "0002": 1.0}
    study = {"arms": {"baseline": VALUES["arms"]["baseline"]}}
    train(Search(folder.open(**study, trials=3)), lambda name: losses[name[-4:]])
    assert after(folder.open(**study, trials=4), 2.5)  # 2.0 is the middle of those before
    ledger = folder.open(**study, trials=5)
    search = Search(ledger)
    job, _ = search.next_job() or pytest.fail("no job")
    assert not search.on_report(job.name, report(2, 1.9))


def test_search_does_not_repeat_a_finished_study(folder: Folder) -> None:
    train(Search(folder.open(grace_steps=0)))
    again = Search(folder.open(grace_steps=0))
    assert (again.remaining(), again.next_job()) == (0, None)
    more = Search(folder.open(grace_steps=0, trials=3))
    assert train(more) == ["baseline-0002", "fixed-0002"]


def _loss(name: str) -> float:
    """Return a loss that makes each arm's second trial its best."""
    return {"0000": 3.0, "0001": 2.0, "0002": 1.0}[name.split("-")[1]]


def _searched(folder: Folder, **changes: Any) -> Ledger:
    ledger = folder.open(grace_steps=0, **changes)
    train(Search(ledger), _loss)
    return ledger


def test_confirm_gives_all_arms_the_same_fresh_seeds(folder: Folder) -> None:
    ledger = _searched(folder)
    confirm = Confirm(ledger)
    assert confirm.remaining() == 4
    assert train(confirm) == [
        f"{arm}-0001-confirm-{s:02d}" for s in (0, 1) for arm in ("baseline", "fixed")
    ]
    runs = {arm: ledger.store.of("confirm", arm) for arm in ("baseline", "fixed")}
    seeds = {arm: [(r.seed, r.data_seed) for r in records] for arm, records in runs.items()}
    assert seeds["baseline"] == seeds["fixed"]
    every = [r.seed for r in ledger.store.of("search", "baseline")] + [
        s for s, _ in seeds["baseline"]
    ]
    assert len(set(every)) == 4
    assert len({d for _, d in seeds["baseline"]}) == 2


def test_confirm_trains_the_winner_to_full_length_on_the_test_split(folder: Folder) -> None:
    ledger = _searched(folder, arms={"baseline": VALUES["arms"]["baseline"]})
    winner = find_winners(ledger.store).winners[0, "baseline"].record
    confirm = Confirm(ledger)
    job, seen = confirm.next_job() or pytest.fail("no job")
    assert (job.last_split, seen, job.report_steps) == ("test", 0, (2, 4, 6, 8))
    assert (job.adapter, job.training) == (winner.adapter, winner.training)
    # as bad as it may be, it isn't stopped
    assert not any(confirm.on_report(job.name, report(step, 99.0)) for step in job.report_steps)
    assert ledger.store.records[job.name].state == "complete"
    assert ledger.store.best("baseline") == winner  # the search's, not a confirm run


def test_confirm_repeats_nothing_and_adds_seeds(folder: Folder) -> None:
    ledger = _searched(folder)
    confirm = Confirm(ledger)
    job, _ = confirm.next_job() or pytest.fail("no job")
    train(confirm)
    ledger = folder.open(grace_steps=0)
    assert Confirm(ledger).next_job() == (job, 0)  # given, but never ended
    train(Confirm(ledger))
    ledger = folder.open(grace_steps=0, seeds=3)
    more = Confirm(ledger)
    assert train(more) == ["baseline-0001-confirm-02", "fixed-0001-confirm-02"]


def test_confirm_trains_a_new_winner_of_a_longer_search(folder: Folder) -> None:
    ledger = _searched(folder)
    train(Confirm(ledger))
    ledger = _searched(folder, trials=3)
    assert [w.record.name for w in find_winners(ledger.store).winners.values()] == [
        "baseline-0002",
        "fixed-0002",
    ]
    again = Confirm(ledger)
    names = [f"{arm}-0002-confirm-{seed:02d}" for seed in range(2) for arm in ("baseline", "fixed")]
    assert train(again) == names


def test_winners_explain_missing_arms(folder: Folder) -> None:
    ledger = folder.open(trials=3, grace_steps=0)
    search = Search(ledger)
    reports = {
        "baseline-0000": Report(step=1, done=True, diverged="non-finite gradient at step 1"),
        "baseline-0001": report(8, float("nan")),
    }
    while given := search.next_job():
        name = given[0].name
        if name == "baseline-0002":
            search.on_failure(name, "crashed", "Traceback")
        else:
            search.on_report(name, reports.get(name, report(8)))
    outcome = find_winners(ledger.store)
    assert list(outcome.winners) == [(0, "fixed")]
    assert outcome.missing == (
        "arm 'baseline' has no finished trial with a finite eval/ppl (2 diverged, 1 failed)",
    )


_SEARCHED = ["baseline-0000", "fixed-0000", "baseline-0001", "fixed-0001"]
_CONFIRMED = [f"{arm}-0001-confirm-{seed:02d}" for seed in (0, 1) for arm in ("baseline", "fixed")]


def test_campaign_searches_and_then_confirms(folder: Folder) -> None:
    campaign = Campaign(folder.open(grace_steps=0))
    assert (campaign.is_searching, campaign.remaining()) == (True, 8)
    assert train(campaign, _loss) == _SEARCHED + _CONFIRMED
    assert (campaign.is_searching, campaign.remaining()) == (False, 0)
    assert folder.panel.said == [
        "confirm: baseline-0001, fixed-0001 x 2 fresh paired seeds",
        "confirm of 4",
    ]


def test_campaign_names_a_handful_of_many_winners(folder: Folder) -> None:
    arms = {f"arm{n}": {"config": {"num_buckets": 2 + n}} for n in range(9)}
    campaign = Campaign(folder.open(arms=arms, trials=1, grace_steps=0))
    train(campaign, lambda _: 3.0)
    named = ", ".join(f"arm{n}-0000" for n in range(6))
    assert folder.panel.said == [
        f"confirm: {named} and 3 more x 2 fresh paired seeds",
        "confirm of 18",
    ]


def test_campaign_confirms_nothing_before_the_last_trial_has_ended(folder: Folder) -> None:
    campaign = Campaign(folder.open(grace_steps=0))
    *ended, last = (campaign.next_job() or pytest.fail("no job") for _ in range(4))
    for job, _ in ended:
        campaign.on_report(job.name, report(8))
    assert (campaign.next_job(), campaign.is_searching, campaign.remaining()) == (None, True, 4)
    campaign.on_report(last[0].name, report(8, 2.0))
    job, seen = campaign.next_job() or pytest.fail("no job")
    assert (job.name, seen, campaign.remaining()) == ("baseline-0000-confirm-00", 0, 3)


def test_campaign_goes_on_in_either_stage(folder: Folder) -> None:
    def given(campaign: Campaign, count: int) -> list[str]:
        return [(campaign.next_job() or pytest.fail("no job"))[0].name for _ in range(count)]

    assert given(Campaign(folder.open(grace_steps=0)), 3) == _SEARCHED[:3]
    campaign = Campaign(folder.open(grace_steps=0))
    assert campaign.remaining() == 8
    assert given(campaign, 4) == sorted(_SEARCHED)
    assert train(Campaign(folder.open(grace_steps=0)), _loss) == sorted(_SEARCHED) + _CONFIRMED
    assert Campaign(folder.open(grace_steps=0)).remaining() == 0
    assert folder.panel.said == []  # a study that is done says nothing
    more = Campaign(folder.open(grace_steps=0, seeds=3))
    assert not more.is_searching
    assert train(more) == ["baseline-0001-confirm-02", "fixed-0001-confirm-02"]


def test_campaign_ends_where_no_arm_has_a_winner(folder: Folder) -> None:
    few = {"arms": {"one": {"space": {"r": {"choice": [4, 8]}}}}, "trials": 5}
    campaign = Campaign(folder.open(**few))
    while given := campaign.next_job():
        campaign.on_failure(given[0].name, "crashed", "Traceback")
    assert (campaign.remaining(), campaign.is_searching) == (0, False)
    assert folder.panel.said[-1] == "one: search space exhausted: 2 of 2 points evaluated"
    assert [text for text in folder.panel.said if "confirm" in text] == []
    Campaign(folder.open(**few))
    assert folder.panel.said == []
