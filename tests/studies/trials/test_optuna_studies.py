"""A search's proposals and Optuna's database: a crash loses and repeats nothing."""

from collections.abc import Callable
from typing import Any

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
    optuna_trial,
    run_trial,
)

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
        record = store.propose(ARM)
        for r in store.of("search", ARM)[:-1]:
            if r.state == "running":
                run_trial(
                    store,
                    r,
                    "pruned" if r.number % 3 == 1 else "complete",
                    4 if r.number % 3 == 1 else 8,
                )
        store.report(record.name, make_report(2, loss_of(record.number)))
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


@pytest.mark.parametrize(("at", "suggested"), [(0, 1), (2, 1), (7, 0), (7, 1)])
def test_crash_before_a_proposal_is_written_down(
    open_store: Open, unbroken: list[Any], monkeypatch: pytest.MonkeyPatch, at: int, suggested: int
) -> None:
    class Killed(BaseException):
        pass

    def crash(store: Store) -> Store:
        calls = iter(range(suggested))
        original = optuna.Trial._suggest

        def suggest(trial: optuna.Trial, name: str, distribution: Any) -> Any:
            if next(calls, None) is None:
                raise Killed
            return original(trial, name, distribution)

        with monkeypatch.context() as patch:
            patch.setattr(optuna.Trial, "_suggest", suggest)
            with pytest.raises(Killed, match=r"^$"):
                store.propose(ARM)
        store = open_store()
        check_agreement(store)
        # as `_search` does after a proposal
        for r in store.of("search", ARM)[:-1]:
            if r.state == "running":
                run_trial(
                    store,
                    r,
                    "pruned" if r.number % 3 == 1 else "complete",
                    4 if r.number % 3 == 1 else 8,
                )
        store.report(store.of("search", ARM)[-1].name, make_report(2, loss_of(at)))
        return store

    assert _search(open_store(), 10, crash, at) == unbroken


def test_crash_between_queueing_and_asking(
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
