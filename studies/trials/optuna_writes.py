"""What a running study writes to ``optuna.db``: a transaction for each proposal, report and end.

Optuna's own methods read the trial again for each value that they store, and most of them commit
that value alone. These functions write the same rows to the tables of Optuna's schema, whose
version is checked when the database is opened.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.distributions import distribution_to_json
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.engine import Connection  # Optuna's own database library

_ADD_TRIAL = (
    "INSERT INTO trials (number, study_id, state, datetime_start) VALUES (?, ?, 'RUNNING', ?)"
)
_ADD_PARAMETER = (
    "INSERT INTO trial_params (trial_id, param_name, param_value, distribution_json) "
    "VALUES (?, ?, ?, ?)"
)
_END_TRIAL = "UPDATE trials SET state = ?, datetime_complete = ? WHERE trial_id = ?"


def _upsert(table: str, keys: tuple[str, str], values: tuple[str, ...]) -> str:
    """Return the statement that writes a row, or new values to the one that has these keys."""
    columns, marks = ", ".join((*keys, *values)), ", ".join("?" * len(keys + values))
    new = ", ".join(f"{name} = excluded.{name}" for name in values)
    return (
        f"INSERT INTO {table} ({columns}) VALUES ({marks}) "
        f"ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {new}"
    )


_SET_USER_ATTRIBUTE = _upsert("trial_user_attributes", ("trial_id", "key"), ("value_json",))
_SET_SYSTEM_ATTRIBUTE = _upsert("trial_system_attributes", ("trial_id", "key"), ("value_json",))
_SET_VALUE = _upsert("trial_values", ("trial_id", "objective"), ("value", "value_type"))
_SET_LOSS = _upsert(
    "trial_intermediate_values",
    ("trial_id", "step"),
    ("intermediate_value", "intermediate_value_type"),
)


def write_proposal(storage: optuna.storages.RDBStorage, study: int, trial: FrozenTrial) -> int:
    """Write a running trial with all of its parameters.

    Args:
        storage: The database.
        study: Optuna's id of the study.
        trial: The trial, without losses.

    Returns:
        Optuna's id of the trial.
    """
    with storage.engine.begin() as connection:
        added = connection.exec_driver_sql(_ADD_TRIAL, (trial.number, study, _now()))
        trial_id = int(added.lastrowid)
        parameters = [
            (trial_id, name, kind.to_internal_repr(trial.params[name]), distribution_to_json(kind))
            for name, kind in trial.distributions.items()
        ]
        _execute_all(connection, _ADD_PARAMETER, parameters)
        for statement, attributes in (
            (_SET_USER_ATTRIBUTE, trial.user_attrs),
            (_SET_SYSTEM_ATTRIBUTE, trial.system_attrs),
        ):
            _execute_all(connection, statement, _attribute_rows({trial_id: attributes}))
    return trial_id


def write_loss(storage: optuna.storages.RDBStorage, trial: int, step: int, nll: float) -> None:
    """Write the loss of a report, which costs the same after any number of others.

    Args:
        storage: The database.
        trial: Optuna's id of the trial.
        step: Step of the report.
        nll: Validation NLL of the report, finite or not.
    """
    with storage.engine.begin() as connection:
        connection.exec_driver_sql(_SET_LOSS, (trial, step, *_stored(nll)))


def write_end(
    storage: optuna.storages.RDBStorage,
    trial: int,
    state: TrialState,
    value: float | None,
    attributes: Mapping[str, Any],
) -> None:
    """Write how a trial has ended.

    Args:
        storage: The database.
        trial: Optuna's id of the trial.
        state: Its final state.
        value: Its value; None if it has none.
        attributes: Its user attributes.
    """
    with storage.engine.begin() as connection:
        _execute_all(connection, _SET_USER_ATTRIBUTE, _attribute_rows({trial: attributes}))
        if value is not None:
            connection.exec_driver_sql(_SET_VALUE, (trial, 0, *_stored(value)))
        connection.exec_driver_sql(_END_TRIAL, (state.name, _now(), trial))


def write_attributes(
    storage: optuna.storages.RDBStorage, by_trial: Mapping[int, Mapping[str, Any]]
) -> None:
    """Write user attributes of trials, also of ended ones, which Optuna's own method refuses.

    Args:
        storage: The database.
        by_trial: Attributes by Optuna's id of a trial.
    """
    rows = _attribute_rows(by_trial)
    if rows:
        with storage.engine.begin() as connection:
            _execute_all(connection, _SET_USER_ATTRIBUTE, rows)


def _attribute_rows(by_trial: Mapping[int, Mapping[str, Any]]) -> list[tuple[int, str, str]]:
    return [
        (trial, key, json.dumps(value))
        for trial, values in by_trial.items()
        for key, value in values.items()
    ]


def _execute_all(connection: Connection, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
    if rows := list(rows):
        connection.exec_driver_sql(statement, rows)


def _stored(value: float) -> tuple[float | None, str]:
    """Return a number and its type as Optuna stores them: only a finite number as itself."""
    if math.isfinite(value):
        return value, "FINITE"
    return None, "NAN" if math.isnan(value) else "INF_POS" if value > 0 else "INF_NEG"


def _now() -> str:
    """Return the time as Optuna stores it: UTC, without saying so."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
