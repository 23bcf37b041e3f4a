"""Requests to a running study: carried out once, whenever the process dies."""

from collections.abc import Mapping
from typing import Any

import pytest
from campaigns import MATCHED, Folder, report, train

from studies.analysis.notes import users_choices
from studies.search.added import Added
from studies.search.campaign import Campaign, Search, find_winners
from studies.search.ledger import Ledger
from studies.trials.by_hand.added import plan_addition
from studies.trials.by_hand.requests import (
    additions,
    request_addition,
    request_trial_stop,
    trial_stops,
)

_ADDED = "fixed-added-0001"


def _add(ledger: Ledger, changes: Mapping[str, Any] | None = None, **place: str) -> str:
    store = ledger.store
    addition = plan_addition(
        store.study, store.records, changes or {"r": 4}, **(place or {"arm": "fixed"})
    )
    return request_addition(store.folder, addition)


def _given(campaign: Campaign | Search) -> str:
    job, _ = campaign.next_job() or pytest.fail("no job")
    return job.name


def test_added_trial_is_the_next_one_and_runs_to_its_end(folder: Folder) -> None:
    """ASHA would stop it at its first report, and its other stages would wait for it."""
    ledger = folder.open(trials=3)
    campaign = Campaign(ledger)
    first = [_given(campaign) for _ in range(2)]
    assert not campaign.receive()
    name = _add(ledger)
    assert (campaign.receive(), campaign.receive(), additions(ledger.store.folder)) == (
        True,
        False,
        [],
    )
    assert _given(campaign) == name == _ADDED
    assert not any(campaign.on_report(name, report(step, 99.0)) for step in (2, 4, 6, 8))
    assert ledger.store.records[name].state == "complete"
    assert first == ["baseline-0000", "fixed-0000"]


def test_added_trial_changes_nothing_in_the_study(folder: Folder) -> None:
    """It is far better than any other, and the winners and their runs stay the same."""
    train(Campaign(folder.open(**MATCHED)))
    expected = {r.name: r.params for r in folder.ledger.store.records.values()}
    folder.renew()
    ledger = folder.open(**MATCHED)
    campaign = Campaign(ledger)
    _add(ledger)
    campaign.receive()
    train(campaign, lambda name: 0.1 if "added" in name else 3.0)
    records = ledger.store.records
    assert {n: r.params for n, r in records.items() if n != _ADDED} == expected
    assert _ADDED not in {w.record.name for w in find_winners(ledger.store).winners.values()}
    assert users_choices(ledger.store.study, records) == [
        "arm 'fixed': a user added 1 trial, which took no part in the choice of winners, so every "
        "arm still had the same budget"
    ]


def test_addition_to_a_finished_study_is_all_that_is_left(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    train(Campaign(ledger))
    assert _add(ledger) == _ADDED
    campaign = Campaign(folder.open(grace_steps=0))
    assert (campaign.remaining(), folder.panel.said[-1]) == (1, "added of 1")
    assert train(campaign) == [_ADDED]
    assert Campaign(folder.open(grace_steps=0)).remaining() == 0


def test_addition_whose_process_died_before_it_dropped_the_request_is_one_trial(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = folder.open()
    name = _add(ledger)
    with monkeypatch.context() as patch:
        patch.setattr("studies.search.added.drop_addition", lambda *_: None)
        Added(ledger)
    ledger = folder.open()
    assert (additions(ledger.store.folder), ledger.store.records[name].state) == ([name], "running")
    added = Added(ledger)
    assert (added.remaining(), additions(ledger.store.folder)) == (1, [])
    assert train(added) == [name]


def test_damaged_addition_is_told_and_the_study_goes_on(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0, trials=1)
    name = _add(ledger)
    (ledger.store.folder / "requests" / f"add-{name}.json").write_text("{")
    assert train(Campaign(ledger)) == [
        *("baseline-0000", "fixed-0000"),
        *(f"{arm}-0000-confirm-{s:02d}" for s in (0, 1) for arm in ("baseline", "fixed")),
    ]
    assert folder.panel.said[0].startswith(f"{name} can't be added: ")
    assert name not in ledger.store.records


def test_stopped_trial_ends_at_its_next_report_for_good(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0)
    campaign = Campaign(ledger)
    name, other = _given(campaign), _given(campaign)
    assert not campaign.on_report(name, report(2))
    request_trial_stop(ledger.store.folder, name)
    campaign.receive()
    assert campaign.on_report(name, report(4))
    assert not campaign.on_report(other, report(4))
    record = ledger.store.records[name]
    assert (record.state, record.reason, record.step) == ("pruned", "stopped by the user", 4)
    assert trial_stops(ledger.store.folder) == set()
    assert name not in train(Campaign(folder.open(grace_steps=0)))
    assert users_choices(ledger.store.study, ledger.store.records)[0].startswith(
        "arm 'baseline': a user stopped 1 of 1 search trials (baseline-0000)"
    )


def test_stop_survives_a_death_before_and_after_the_report(folder: Folder) -> None:
    """The request is read again, or the report says that the trial was stopped at it."""
    ledger = folder.open(grace_steps=0)
    name = _given(Search(ledger))
    request_trial_stop(ledger.store.folder, name)
    ledger = folder.open(grace_steps=0)  # it has died before it read the request
    assert _given(search := Search(ledger)) == name
    ledger.store.report(name, report(2, pruned=True))  # and now before it ended the trial
    assert not search.ended()
    ledger = folder.open(grace_steps=0)
    assert name not in train(Search(ledger))
    record = ledger.store.records[name]
    assert (record.state, record.reason) == ("pruned", "stopped by the user")
    assert trial_stops(ledger.store.folder) == set()


def test_rungs_count_a_stopped_trial_as_they_do_when_rebuilt(folder: Folder) -> None:
    """ASHA stops what is above the median of the losses before.

    By hand: with the stopped trial's 1.0, the medians are 0.95 and 0.93; without, 0.9 and 0.915.
    """
    arms = {"arms": {"fixed": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2}}}}}
    ledger = folder.open(**arms, trials=4)
    search = Search(ledger)
    names = [_given(search) for _ in range(3)]
    request_trial_stop(ledger.store.folder, names[0])
    ledger.receive()
    assert search.on_report(names[0], report(2, 1.0))
    assert not search.on_report(names[1], report(2, 0.9))
    assert not search.on_report(names[2], report(2, 0.93))
    for name in names[1:]:
        search.on_failure(name, "crashed", "Traceback")
    search = Search(folder.open(**arms, trials=4))
    assert not search.on_report(_given(search), report(2, 0.925))


def test_runs_of_the_confirm_stage_are_not_stopped(folder: Folder) -> None:
    ledger = folder.open(grace_steps=0, trials=1)
    campaign = Campaign(ledger)
    train_two = [_given(campaign) for _ in range(2)]
    for name in train_two:
        for step in (2, 4, 6, 8):
            campaign.on_report(name, report(step))
    name = _given(campaign)
    request_trial_stop(ledger.store.folder, name)
    campaign.receive()
    assert "confirm" in name
    assert not campaign.on_report(name, report(2))
    assert trial_stops(ledger.store.folder) == set()
