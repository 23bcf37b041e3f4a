"""A study of two arms, and trials that a test reports to its store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import optuna
import sqlalchemy
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from studies.spec.study import Study
from studies.trials.messages import Report
from studies.trials.optuna_database import address, disconnect
from studies.trials.records import Record, State, study_title
from studies.trials.sampling.sampler import SampledArm, make_sampler
from studies.trials.store import Store

ARM = "learnable"
VALUES: dict[str, Any] = {
    "definition": "learnable_bucketing",
    "name": "try",
    "trials": 12,
    "eval_every": 2,
    "grace_steps": 2,
    "defaults": {"max_steps": 8},
    "arms": {
        ARM: {
            "config": {"landmark_bucketing": "learnable"},
            "space": {
                "learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
                "num_buckets": {"choice": [8, 16]},
                "boundary_init": {"choice": ["log", "fixed"]},
                "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
            },
        },
        "fixed": {"space": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}},
    },
}
Open = Callable[..., Store]


def make_report(step: int, nll: float = 3.0, **changes: Any) -> Report:
    """Return a report of a step; that of step 8 is the last."""
    return Report(step=step, metrics={"eval/nll": nll}, done=step == 8, **changes)


def loss_of(number: int) -> float:
    """Return a different loss for each trial, in no order."""
    return 3.0 + (number * 7 % 11) / 10


def run_trial(store: Store, record: Record, state: State = "complete", steps: int = 8) -> None:
    """Report a trial's losses and end it."""
    for step in range(2, steps + 1, 2):
        store.report(record.name, make_report(step, loss_of(record.number)))
    store.finish(record.name, state)


@contextmanager
def opened_study(store: Store, arm: str = ARM) -> Iterator[optuna.Study]:
    """Open an arm's study in Optuna's database as another program would."""
    database = optuna.storages.RDBStorage(
        address(store.folder / "optuna.db"), skip_table_creation=True
    )
    title = study_title(store.study.name, arm, 0)
    try:
        yield optuna.load_study(study_name=title, storage=database)
    finally:
        disconnect(database)


def sampler_of(study: Study, number: int, arm: str = ARM) -> BaseSampler:
    """Return the sampler that must draw a trial of the first search."""
    space = study.arms[arm].space
    points = None if study.blocks else space.size()
    names = tuple(space.parameters)
    sampled = SampledArm(seed=study.seed, name=arm, names=names, trials=study.trials, points=points)
    return make_sampler(study.sampler, sampled, number)


@contextmanager
def statements(event: str = "before_cursor_execute") -> Iterator[list[str]]:
    """Collect what is sent to any database in this context: its statements, or its commits."""
    sent: list[str] = []

    def collect(*arguments: Any) -> None:
        sent.append(str(arguments[2:3]))

    sqlalchemy.event.listen(sqlalchemy.Engine, event, collect)
    try:
        yield sent
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, event, collect)


def optuna_trials(store: Store, arm: str = ARM) -> list[optuna.trial.FrozenTrial]:
    """Return the trials that another process reads from Optuna's database."""
    database = optuna.storages.RDBStorage(
        f"sqlite:///{store.folder / 'optuna.db'}",
        skip_compatibility_check=True,
        skip_table_creation=True,
    )
    trials = optuna.load_study(
        study_name=study_title(store.study.name, arm, 0), storage=database
    ).trials
    database.engine.dispose()
    return trials


def optuna_trial(store: Store, number: int) -> optuna.trial.FrozenTrial:
    """Return one trial that another process reads from Optuna's database."""
    return optuna_trials(store)[number]


def check_agreement(store: Store) -> None:
    """Check that Optuna and the files hold the same trials, values and states."""
    states = {
        "running": TrialState.RUNNING,
        "complete": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
    }
    for arm in store.study.arms:
        trials = optuna_trials(store, arm)
        records = store.of("search", arm)
        assert [t.number for t in trials] == [r.number for r in records]
        for trial, record in zip(trials, records, strict=True):
            assert trial.state == states.get(record.state, TrialState.FAIL)
            assert trial.params == record.params
            assert trial.intermediate_values == {
                r.step: r.metrics["eval/nll"] for r in record.reports
            }
