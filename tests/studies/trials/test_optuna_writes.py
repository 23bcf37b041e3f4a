"""The rows of a search in ``optuna.db`` are those that Optuna's own methods write."""

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from plain_search import CHANGES, TRIALS, end, plain_search
from store_trials import ARM, Open

_COLUMNS = {
    "trials": "number, state",
    "trial_params": "number, param_id, param_name, param_value, distribution_json",
    "trial_values": "number, objective, value, value_type",
    "trial_intermediate_values": "number, step, intermediate_value, intermediate_value_type",
    "trial_system_attributes": "number, key, value_json",
}


def _rows(path: Path, columns: str, table: str) -> list[Any]:
    joined = table if table == "trials" else f"{table} JOIN trials USING (trial_id)"
    with closing(sqlite3.connect(path)) as database:
        return database.execute(
            f"SELECT {columns} FROM {joined} JOIN studies USING (study_id) "
            f"WHERE study_name NOT LIKE '%/ baseline /%' ORDER BY {columns}"
        ).fetchall()


@pytest.fixture
def paths(open_store: Open, tmp_path: Path) -> tuple[Path, Path]:
    """Return two databases of one search: a store's, and one that Optuna itself has written."""
    store = open_store(**CHANGES["matched"])
    for number in range(TRIALS):
        store.propose(ARM)
        if number >= 2:
            end(store, number - 2)
    plain_search(store.study, tmp_path / "plain.db")
    return store.folder / "optuna.db", tmp_path / "plain.db"


def test_rows_are_equal(paths: tuple[Path, Path]) -> None:
    for table, columns in _COLUMNS.items():
        ours, theirs = (_rows(path, columns, table) for path in paths)
        assert ours == theirs, table
        assert len(ours) >= TRIALS / 2


def test_times_have_the_same_form(paths: tuple[Path, Path]) -> None:
    columns = "datetime_start, datetime_complete"
    ours, theirs = (_rows(path, columns, "trials") for path in paths)
    assert [len(start) for start, _ in ours] == [len(start) for start, _ in theirs]
    assert [end is None for _, end in ours] == [end is None for _, end in theirs]
    began = [datetime.fromisoformat(rows[0][0]) for rows in (ours, theirs)]
    assert abs((began[0] - began[1]).total_seconds()) < 3600
