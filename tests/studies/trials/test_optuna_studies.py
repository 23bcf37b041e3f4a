"""A search's proposals and Optuna's database: a crash loses and repeats nothing."""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import optuna
import pytest
from optuna.trial import TrialState
from store_trials import (
    ARM,
    VALUES,
    Open,
    check_agreement,
    loss_of,
    make_report,
    opened_study,
    optuna_trial,
    optuna_trials,
    run_trial,
    sampler_of,
    statements,
)

from studies.spec.common_values import given_values
from studies.spec.study import Study
from studies.trials.optuna_studies import OptunaStudies
from studies.trials.records import Record, State
from studies.trials.store import Store

_FEW: dict[str, Any] = {
    "arms": {
        ARM: {
            "space": {
                "learning_rate": {"low": 1e-3, "high": 1e-3},
                "num_buckets": {"choice": [8, 16]},
                "boundary_init": {"choice": ["log", "fixed"]},
                "boundary_warmup": {"choice": [0.1, 0.2, 0.4], "when": {"boundary_init": "fixed"}},
            },
        },
        "fixed": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    },
}


def _point(record: Record) -> tuple[Any, ...]:
    return tuple(record.params.get(n) for n in ("num_buckets", "boundary_init", "boundary_warmup"))


@pytest.mark.parametrize("ends", [True, False])
def test_small_space_is_drawn_without_repeats(open_store: Open, ends: bool) -> None:
    """Trials end before the next one, or none ends; the folder is reopened every third time."""
    store = open_store(trials=16, **_FEW)
    drawn: list[tuple[Any, ...]] = []
    while len(drawn) < store.planned(ARM):
        record = store.propose(ARM)
        if ends:
            run_trial(store, record)
        drawn.append(_point(record))
        if len(drawn) % 3 == 0:
            store = open_store(trials=16, **_FEW)
    warmups = [("log", None), *(("fixed", w) for w in (0.1, 0.2, 0.4))]
    assert sorted(drawn, key=str) == sorted(((n, *w) for n in (8, 16) for w in warmups), key=str)
    assert store.planned("fixed") == 16


def test_small_space_is_searched_in_another_order_by_another_seed(open_store: Open) -> None:
    def order(folder: str, seed: int) -> list[tuple[Any, ...]]:
        store = open_store(folder, trials=8, seed=seed, **_FEW)
        return [_point(store.propose(ARM)) for _ in range(8)]

    assert order("a", 1) == order("b", 1) != order("c", 2)


def _search(
    store: Store, upto: int, crash: Callable[[Store], Store] | None = None, at: int = 7
) -> list[Any]:
    """Return the proposals of a search with one trial in progress, and perhaps a crash halfway."""
    while len(store.of("search", ARM)) < upto:
        if crash and len(store.of("search", ARM)) == at:
            store, crash = crash(store), None
            continue
        store.propose(ARM)
        _end_the_others(store)
    check_agreement(store)
    return [r.params for r in store.of("search", ARM)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The proposals of an undisturbed search; TPE replaces random sampling after four trials."""
    store = Store(tmp_path_factory.mktemp("unbroken"), Study.from_dict(VALUES))
    proposals = _search(store, 10)
    store.close()
    return proposals


def test_reopened_search_proposes_what_an_unbroken_one_does(
    open_store: Open, unbroken: list[Any]
) -> None:
    assert _search(open_store(), 10, lambda _: open_store()) == unbroken


def _end_the_others(store: Store) -> None:
    """Do what `_search` does after a proposal."""
    *others, last = store.of("search", ARM)
    for r in others:
        if r.state == "running":
            pruned = r.number % 3 == 1
            run_trial(store, r, "pruned" if pruned else "complete", 4 if pruned else 8)
    store.report(last.name, make_report(2, loss_of(last.number)))


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [0, 2, 7])
def test_crash_before_a_proposal_has_its_file(
    open_store: Open, unbroken: list[Any], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    def crash(store: Store) -> Store:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "add", Mock(side_effect=_Killed))
            with pytest.raises(_Killed, match=r"^$"):
                store.propose(ARM)
        drawn = optuna_trial(store, at).params
        store = open_store()
        assert store.of("search", ARM)[at].params == drawn
        check_agreement(store)
        _end_the_others(store)
        return store

    assert _search(open_store(), 10, crash, at) == unbroken


@pytest.mark.parametrize(("at", "suggested"), [(0, 1), (2, 1), (7, 0), (7, 1)])
def test_crash_while_a_proposal_is_drawn_leaves_nothing(
    open_store: Open, unbroken: list[Any], monkeypatch: pytest.MonkeyPatch, at: int, suggested: int
) -> None:
    def crash(store: Store) -> Store:
        _draw_partly(monkeypatch, suggested, lambda: store.propose(ARM))
        assert len(optuna_trials(store)) == at
        return open_store()

    assert _search(open_store(), 10, crash, at) == unbroken


def _draw_partly(
    monkeypatch: pytest.MonkeyPatch, suggested: int, draw: Callable[[], object]
) -> None:
    """Draw a proposal, and die after some of its parameters."""
    calls, original = iter(range(suggested)), optuna.Trial._suggest

    def suggest(trial: optuna.Trial, name: str, distribution: Any) -> Any:
        if next(calls, None) is None:
            raise _Killed
        return original(trial, name, distribution)

    with monkeypatch.context() as patch:
        patch.setattr(optuna.Trial, "_suggest", suggest)
        with pytest.raises(_Killed, match=r"^$"):
            draw()


@pytest.mark.parametrize(("at", "suggested"), [(0, None), (0, 1), (2, 1), (7, 0), (7, 1)])
def test_earlier_version_died_while_it_proposed(
    open_store: Open,
    unbroken: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    suggested: int | None,
) -> None:
    """It queued, asked for and drew a trial in the database, in a transaction each."""

    def crash(store: Store) -> Store:
        with opened_study(store) as kept:
            if given := given_values(store.study, ARM, 0, at):
                kept.enqueue_trial(given)
            if suggested is not None:
                kept.sampler = sampler_of(store.study, at)
                _draw_partly(
                    monkeypatch, suggested, lambda: store.study.space(ARM).sample(kept.ask())
                )
        store = open_store()
        assert store.notes == []
        check_agreement(store)
        _end_the_others(store)
        return store

    assert _search(open_store(), 10, crash, at) == unbroken


def test_crash_before_asking(
    open_store: Open, unbroken: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "ask", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError, match="division"):
            store.propose(ARM)
    store = open_store()
    assert store.records == {}
    assert [store.propose(ARM).params for _ in range(2)] == unbroken[:2]


def test_a_report_reads_no_other_trial(open_store: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    names = [store.propose(ARM).name for _ in range(2)]
    with monkeypatch.context() as patch:
        patch.setattr(optuna.Study, "get_trials", lambda *_, **__: 1 / 0)
        for name in names:
            store.report(name, make_report(2, 3.5))
    assert [optuna_trial(store, n).intermediate_values for n in (0, 1)] == [{2: 3.5}] * 2
    check_agreement(store)


def test_a_report_is_one_statement_after_any_number_of_others(open_store: Open) -> None:
    store = open_store(eval_every=1, grace_steps=0, defaults={"max_steps": 400})
    names = [store.propose(ARM).name for _ in range(2)]
    counts = []
    for step in range(1, 301):
        with statements() as executed:
            for name in names:
                store.report(name, make_report(step, 3 + 1 / step))
        counts.append(len(executed))
    assert counts == [len(names)] * 300
    check_agreement(store)


def test_a_proposal_and_an_end_cost_the_same_after_any_number_of_trials(open_store: Open) -> None:
    store = open_store(trials=40)
    proposals, ends = [], []
    for _ in range(40):
        with statements("commit") as commits, statements() as executed:
            record = store.propose("fixed")
        proposals.append((len(commits), len(executed)))
        for step in (2, 4, 6, 8):
            store.report(record.name, make_report(step, loss_of(record.number)))
        with statements() as executed:
            store.finish(record.name, "complete")
        ends.append(len(executed))
    # The first one reads the database; TPE, which begins after ten, has an attribute to store.
    assert proposals[1:10] == [(1, proposals[1][1])] * 9
    assert proposals[10:] == [(1, proposals[1][1] + 1)] * 30
    assert len(set(ends)) == 1


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 2.5])
def test_any_loss_is_stored_as_optuna_stores_it(open_store: Open, loss: float) -> None:
    store = open_store()
    names = [store.propose(ARM).name for _ in range(2)]
    store.report(names[0], make_report(2, loss))
    with opened_study(store) as kept:
        optuna.Trial(kept, kept.get_trials(deepcopy=False)[1]._trial_id).report(loss, 2)
    with closing(sqlite3.connect(store.folder / "optuna.db")) as database:
        ours, theirs = database.execute(
            "SELECT step, intermediate_value, intermediate_value_type "
            "FROM trial_intermediate_values ORDER BY trial_id"
        )
    assert ours == theirs


def test_report_after_the_end_stays_out_of_optuna(open_store: Open) -> None:
    store = open_store()
    name = store.propose(ARM).name
    store.report(name, make_report(2, 3.5))
    store.finish(name, "pruned")
    store.report(name, make_report(4, 3.25))
    assert optuna_trial(store, 0).intermediate_values == {2: 3.5}


def test_crash_before_optuna_hears_a_report(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    name = store.propose(ARM).name
    store.report(name, make_report(2, 3.5))
    monkeypatch.setattr(OptunaStudies, "report", lambda *_: None)
    store.report(name, make_report(4, 3.25))
    monkeypatch.undo()
    assert optuna_trial(store, 0).intermediate_values == {2: 3.5}
    store = open_store()
    assert optuna_trial(store, 0).intermediate_values == {2: 3.5, 4: 3.25}
    assert store.records[name].step == 4
    check_agreement(store)


@pytest.mark.parametrize("state", ["complete", "pruned", "diverged", "failed"])
def test_crash_before_optuna_hears_the_end(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    store = open_store()
    record = store.propose(ARM)
    monkeypatch.setattr(OptunaStudies, "finish", lambda *_: None)
    run_trial(store, record, state)
    monkeypatch.undo()
    assert optuna_trial(store, 0).state == TrialState.RUNNING
    store = open_store()
    assert optuna_trial(store, 0).state.is_finished()
    assert optuna_trial(store, 0).value == (3.0 if state in ("complete", "pruned") else None)
    check_agreement(store)
