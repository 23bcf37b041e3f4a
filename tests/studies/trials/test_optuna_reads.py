"""The trials that are read from ``optuna.db`` are those that Optuna's own methods read."""

import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from studies.trials.optuna_database import connect, disconnect
from studies.trials.optuna_reads import read_trials


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[optuna.storages.RDBStorage]:
    storage = connect(tmp_path / "optuna.db")
    yield storage
    disconnect(storage)


def _fill(study: optuna.Study) -> None:
    """Add trials of every state, with every kind of parameter, value and loss."""
    for number in range(12):
        trial = study.ask()
        trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)
        trial.suggest_categorical("landmarks", [None, True, "many", 3, 0.5])
        if number % 2:
            trial.suggest_int("r", 2, 64, step=2)
        trial.set_user_attr("name", f"né-{number}")
        for step in (50, 25):
            trial.report(8.0 / (step + number), step)
        if number % 4 == 1:
            study.tell(trial, 3.0 + number)
        elif number % 4 == 2:
            study.tell(trial, state=TrialState.PRUNED)
        elif number % 4 == 3:
            study.tell(trial, state=TrialState.FAIL)
    odd = study.ask()
    for step, loss in enumerate((math.inf, -math.inf, math.nan)):
        odd.report(loss, step)
    study.tell(odd, math.inf)
    study.enqueue_trial({"learning_rate": 1e-3}, user_attrs={"given": True})


def test_trials_are_those_that_optuna_reads(storage: optuna.storages.RDBStorage) -> None:
    first, second = (optuna.create_study(storage=storage, study_name=n) for n in ("one", "two"))
    _fill(first)
    _fill(second)
    for study in (first, second):
        theirs, ours = study.get_trials(), read_trials(storage, study._study_id)
        assert {t.state for t in theirs} == set(TrialState)
        assert [repr(t) for t in ours] == [repr(t) for t in theirs]  # text, in which NaN is NaN
        kinds = {type(kind) for trial in ours for kind in trial.distributions.values()}
        assert kinds == {FloatDistribution, CategoricalDistribution, IntDistribution}


@pytest.mark.parametrize(
    "garbage",
    [
        "trials SET state = 'ASLEEP'",
        "trials SET datetime_start = 'noon'",
        "trial_params SET distribution_json = '{'",
        "trial_values SET value = NULL",
        "trial_values SET value_type = 'INF_POS'",
        "trial_user_attributes SET value_json = ''",
        "trial_intermediate_values SET intermediate_value = 'low'",
    ],
)
def test_garbled_rows_are_refused(
    garbage: str, storage: optuna.storages.RDBStorage, tmp_path: Path
) -> None:
    study = optuna.create_study(storage=storage)
    _fill(study)
    with closing(sqlite3.connect(tmp_path / "optuna.db")) as database:
        table = garbage.partition(" ")[0]
        database.execute(f"UPDATE {garbage} WHERE rowid = (SELECT MIN(rowid) FROM {table})")
        database.commit()
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_trials(storage, study._study_id)
