"""What Optuna's own tools show of a study: names, the metric and attributes of each trial."""

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from typing import Any

import optuna
import pytest
from store_trials import ARM, Open, loss_of, make_report, run_trial

from studies.trials.loading import ended_trials
from studies.trials.optuna_database import address
from studies.trials.records import place_name, place_of, study_title
from studies.trials.store import Store


def _studies(store: Store) -> dict[str, optuna.Study]:
    storage = address(store.folder / "optuna.db")
    names = optuna.get_all_study_names(storage)
    return {name: optuna.load_study(study_name=name, storage=storage) for name in names}


def _give_earlier_names(store: Store) -> None:
    """Rename the Optuna studies as versions before telling names did."""
    store.close()
    with closing(sqlite3.connect(store.folder / "optuna.db")) as database, database:
        for (title,) in database.execute("SELECT study_name FROM studies").fetchall():
            change = "UPDATE studies SET study_name = ? WHERE study_name = ?"
            database.execute(change, (place_of(title), title))
        database.execute("DELETE FROM study_system_attributes")


@pytest.mark.parametrize("arm", ["fixed", "été 学 x-1", "a_b 1.5", "a - b"])
@pytest.mark.parametrize("search", [0, 7, 12])
def test_place_is_read_back_from_every_name(arm: str, search: int) -> None:
    place = place_name(arm, search)
    assert place_of(study_title("my study. 1", arm, search)) == place
    assert place_of(place) == place  # as earlier versions named it


def test_studies_say_what_they_are(open_store: Open) -> None:
    found = _studies(open_store(searches=2))
    assert list(found) == [f"try / {arm} / search {s}" for s in (0, 1) for arm in (ARM, "fixed")]
    assert {tuple(study.metric_names or ()) for study in found.values()} == {("validation NLL",)}


@pytest.mark.parametrize("rebuilt", [False, True])
def test_trials_say_what_they_are(open_store: Open, rebuilt: bool) -> None:
    store = open_store()
    first, second = store.propose(ARM), store.propose("fixed")
    nll = loss_of(0)
    store.report(first.name, make_report(2, nll))
    store.report(first.name, replace(make_report(8), metrics={"eval/nll": nll, "eval/ppl": 20.5}))
    assert _attributes(store) == {"name": first.name, "seed": first.seed}
    store.finish(first.name, "complete")
    store.report(second.name, replace(make_report(8), metrics={"eval/ppl": math.inf}))
    store.finish(second.name, "diverged")
    if rebuilt:
        store.close()
        (store.folder / "optuna.db").unlink()
        store = open_store()
    wanted = {"name": first.name, "seed": first.seed, "steps": 8}
    assert _attributes(store) == {**wanted, "ppl": 20.5}
    assert _attributes(store, "fixed") == {"name": "fixed-0000", "seed": second.seed, "steps": 8}


def test_trials_name_their_runs_in_mlflow_once_these_are_known(open_store: Open) -> None:
    store = open_store()
    record = store.propose(ARM)
    run_trial(store, record)
    for _ in range(2):
        store.add_run_ids("MLflow", {record.name: "abc", "fixed-0000": "unknown", "other": "x"})
    assert _attributes(store)["mlflow_run"] == "abc"
    store.add_run_ids("MLflow", {record.name: "def"})
    assert _attributes(store)["mlflow_run"] == "def"
    assert open_store().notes == []


def _attributes(store: Store, arm: str = ARM) -> dict[str, Any]:
    return dict(_studies(store)[f"try / {arm} / search 0"].trials[0].user_attrs)


def test_database_of_an_earlier_version_resumes_under_its_names(open_store: Open) -> None:
    whole = open_store("whole")
    run_trial(whole, whole.propose(ARM))
    wanted = whole.propose(ARM).params
    store = open_store()
    run_trial(store, store.propose(ARM))
    _give_earlier_names(store)
    assert ended_trials(store.folder) == {ARM: {0}}
    store = open_store(searches=2)
    assert store.notes == []
    assert store.propose(ARM).params == wanted
    added = [f"try / {arm} / search 1" for arm in (ARM, "fixed")]
    assert list(_studies(store)) == [ARM, "fixed", *added]
    assert len(_studies(store)[ARM].trials) == 2
