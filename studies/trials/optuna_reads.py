"""The trials of ``optuna.db``, read with a query for each table.

Optuna's own reading makes an object of each row and parses the distribution of each parameter of
each trial, twice. These functions read the same rows from the tables of Optuna's schema, whose
version is checked when the database is opened.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.trial import FrozenTrial, TrialState

_TRIALS = (
    "SELECT trial_id, number, state, datetime_start, datetime_complete FROM trials "
    "WHERE study_id = ? ORDER BY number"
)
_UNUSUAL = {"INF_POS": math.inf, "INF_NEG": -math.inf, "NAN": math.nan}


def read_trials(storage: optuna.storages.RDBStorage, study: int) -> list[FrozenTrial]:
    """Return the trials of an Optuna study, by number.

    Args:
        storage: The database.
        study: Optuna's id of the study.

    Raises:
        ValueError, KeyError, IndexError, TypeError: A row holds what Optuna never writes.
    """
    with storage.engine.connect() as connection:

        def rows(table: str, columns: str, order: str) -> dict[int, list[tuple[Any, ...]]]:
            """Return the rows of a table by trial."""
            query = (
                f"SELECT trial_id, {columns} FROM {table} JOIN trials USING (trial_id) "
                f"WHERE study_id = ? ORDER BY {order}"
            )
            by_trial: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
            for trial_id, *values in connection.exec_driver_sql(query, (study,)):
                by_trial[trial_id].append(tuple(values))
            return by_trial

        trials = connection.exec_driver_sql(_TRIALS, (study,)).all()
        params = rows("trial_params", "param_name, param_value, distribution_json", "param_id")
        values = rows("trial_values", "value, value_type", "objective")
        losses = rows(
            "trial_intermediate_values",
            "step, intermediate_value, intermediate_value_type",
            "step",
        )
        user = rows("trial_user_attributes", "key, value_json", "trial_user_attribute_id")
        system = rows("trial_system_attributes", "key, value_json", "trial_system_attribute_id")
    kinds: dict[str, BaseDistribution] = {}  # by JSON text, which thousands of trials share
    drawn = {trial_id: list(_drawn(own, kinds)) for trial_id, own in params.items()}
    return [
        FrozenTrial(
            number=number,
            state=TrialState[state],
            value=None,
            values=[_number(*row) for row in values[trial_id]] or None,
            datetime_start=_time(start),
            datetime_complete=_time(complete),
            params={n: kind.to_external_repr(v) for n, v, kind in drawn.get(trial_id, ())},
            distributions={n: kind for n, _, kind in drawn.get(trial_id, ())},
            user_attrs={key: json.loads(text) for key, text in user[trial_id]},
            system_attrs={key: json.loads(text) for key, text in system[trial_id]},
            intermediate_values={step: _number(v, kind) for step, v, kind in losses[trial_id]},
            trial_id=trial_id,
        )
        for trial_id, number, state, start, complete in trials
    ]


def _drawn(
    rows: list[tuple[Any, ...]], kinds: dict[str, BaseDistribution]
) -> Iterator[tuple[str, float, BaseDistribution]]:
    """Yield the name, value and distribution of each parameter of a trial."""
    for name, value, text in rows:
        if text not in kinds:
            kinds[text] = json_to_distribution(text)
        yield name, value, kinds[text]


def _number(value: float | None, kind: str) -> float:
    """Return a number from its value and type as Optuna stores them."""
    if value is None:
        return _UNUSUAL[kind]
    if kind != "FINITE":
        raise ValueError(f"{value} is stored as {kind}")
    return float(value)


def _time(text: str | None) -> datetime | None:
    """Return a stored time, which is UTC, as Optuna does: local, without saying so."""
    if text is None:
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
