"""Trials that users add: their parameters, their seeds, and what is refused."""

import json
from typing import Any

import optuna
import pytest
from store_trials import ARM, VALUES, Open, make_report, run_trial

from hylorada import InputError
from studies.spec.study import Study
from studies.trials.by_hand.added import added_record, plan_addition
from studies.trials.by_hand.requests import Addition
from studies.trials.records import Record, best_record
from studies.trials.store import Store


def _added(store: Store, addition: Addition) -> Record:
    """Add the first trial of an arm."""
    name = f"{addition.arm}-added-0001"
    record = added_record(store.study, store.records, name, addition)
    store.add(record)
    return record


def _narrow(store: Store, **changes: Any) -> Record:
    """Add a trial of rank 4 to the arm `fixed`."""
    addition = plan_addition(store.study, store.records, {"r": 4, **changes}, arm="fixed")
    return _added(store, addition)


def test_addition_to_an_arm_changes_its_defaults(open_store: Open) -> None:
    """By hand: rate 3e-4 is set, 16 buckets and the rest are the space's point of the defaults."""
    store = open_store()
    addition = plan_addition(
        store.study, store.records, {"learning_rate": 3e-4, "lora_dropout": 0.1}, arm=ARM
    )
    defaults = store.study.point(ARM, {})
    assert addition.params == {**defaults, "learning_rate": 3e-4, "lora_dropout": 0.1}
    record = _added(store, addition)
    assert (record.training["learning_rate"], record.adapter["lora_dropout"]) == (3e-4, 0.1)
    assert record.adapter["landmark_bucketing"] == "learnable"
    assert (record.stage, record.number, record.winner, record.block) == ("added", 1, "", None)
    first = store.propose(ARM)
    assert (record.seed, record.data_seed) == (first.seed, first.data_seed)


def test_clone_has_its_sources_seeds_and_every_other_value(open_store: Open) -> None:
    store = open_store()
    store.propose(ARM)
    source = store.propose(ARM)  # still running
    addition = plan_addition(store.study, store.records, {"r": 4}, clone=source.name)
    record = _added(store, addition)
    assert {**record.adapter, "r": source.adapter["r"]} == source.adapter
    assert record.training == source.training
    assert (record.seed, record.data_seed) == (source.seed, source.data_seed)
    again = plan_addition(store.study, store.records, {"num_buckets": 8}, clone=record.name)
    assert again.params == {**record.params, "num_buckets": 8}
    assert again.params["r"] == 4


def test_clone_drops_parameters_whose_condition_no_longer_holds(open_store: Open) -> None:
    store = open_store()
    base = plan_addition(store.study, {}, {"boundary_init": "fixed"}, arm=ARM)
    assert 0.1 <= base.params["boundary_warmup"] <= 0.7
    source = _added(store, base)
    changed = plan_addition(store.study, store.records, {"boundary_init": "log"}, clone=source.name)
    assert "boundary_warmup" not in changed.params


def test_values_outside_of_the_space_are_kept(open_store: Open) -> None:
    store = open_store()
    addition = plan_addition(store.study, {}, {"num_buckets": 5, "learning_rate": 0.5}, arm=ARM)
    record = _added(store, addition)
    assert (record.adapter["num_buckets"], record.training["learning_rate"]) == (5, 0.5)


@pytest.mark.parametrize(
    ("changes", "place", "problems"),
    [
        ({"r": 4}, {}, ["name either the arm of the new trial (--arm) or a trial to change"]),
        ({"r": 4}, {"arm": ARM, "clone": "x"}, ["name either the arm"]),
        ({"r": 4}, {"arm": "fixd"}, ["study 'try' has no arm 'fixd'; did you mean 'fixed'?"]),
        ({"r": 4}, {"clone": "fixed-0000"}, ["no search trial 'fixed-0000'; it has none yet"]),
        ({}, {"arm": ARM}, ["set at least one field, such as --set learning_rate=3e-4"]),
        (
            {"learning_rat": 1, "r": 0, "max_steps": 9},
            {"arm": ARM},
            [
                "set: unknown field 'learning_rat'; did you mean 'learning_rate'?",
                "set.r must be",
                "set.max_steps can't be set: all trials of a study have the same number",
            ],
        ),
        ({"replication_noncausal_pooling": True}, {"arm": ARM}, ["repeats a fault"]),
        ({"max_positions": 9}, {"arm": ARM}, ["set.max_positions can't be set"]),
    ],
)
def test_bad_additions_are_refused_with_all_problems(
    changes: dict[str, Any], place: dict[str, str], problems: list[str]
) -> None:
    with pytest.raises(InputError, match=r".") as raised:
        plan_addition(Study.from_dict(VALUES), {}, changes, **place)
    assert len(raised.value.problems) == len(problems)
    for told, problem in zip(raised.value.problems, problems, strict=True):
        assert problem in told


def test_added_trial_never_wins_and_reopens(open_store: Open) -> None:
    store = open_store()
    run_trial(store, store.propose("fixed"))
    record = _narrow(store)
    for step in (2, 4, 6, 8):
        store.report(record.name, make_report(step, 0.1))
    store.finish(record.name, "complete")
    assert best_record(store.records, "fixed") == store.records["fixed-0000"]
    assert open_store().records[record.name].nll == 0.1  # files and seeds pass all checks


def _kept(store: Store) -> list[optuna.trial.FrozenTrial]:
    database = optuna.storages.RDBStorage(f"sqlite:///{store.folder / 'optuna.db'}")
    trials = optuna.load_study(
        study_name=f"{store.study.name} / fixed / added", storage=database
    ).trials
    database.engine.dispose()
    return trials


def test_optuna_holds_added_trials_apart_and_once(open_store: Open) -> None:
    """Also if a crash comes before they are written there, or the database is lost."""
    store = open_store()
    record = _narrow(store, learning_rate=0.002)
    store.report(record.name, make_report(2, 2.5))
    store.finish(record.name, "pruned", "stopped by the user")
    for _ in range(2):
        (trial,) = _kept(store)
        assert (trial.state.name, trial.value) == ("PRUNED", 2.5)
        assert (trial.params, trial.intermediate_values) == ({"learning_rate": 0.002}, {2: 2.5})
        assert trial.user_attrs["set"] == {"r": 4}
        assert (trial.user_attrs["added"], trial.user_attrs["name"]) == (True, record.name)
        store.close()
        (store.folder / "optuna.db").unlink()
        store = open_store()


def test_added_trial_with_other_seeds_is_damage(open_store: Open) -> None:
    store = open_store()
    record = _narrow(store)
    path = store.trial_folder(record.name) / "trial.json"
    values = {k: v for k, v in json.loads(path.read_text()).items() if k != "seal"}
    path.write_text(json.dumps({**values, "seed": record.seed + 1}))
    with pytest.raises(InputError, match=r"fixed-added-0001.*its seeds are not those"):
        open_store()
