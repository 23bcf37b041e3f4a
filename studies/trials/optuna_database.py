"""``optuna.db``, the trial files' data for Optuna's samplers; it can be rebuilt from the files."""

import json
import shlex
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial
from sqlalchemy.engine import URL  # Optuna's own database library

from hylorada import InputError
from studies.files.folder_files import damaged, is_sqlite
from studies.spec.space import Space
from studies.spec.study import Study
from studies.trials.records import Record, is_finite, records_of, study_title

OPTUNA_STATES = {
    "running": TrialState.RUNNING,
    "complete": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.FAIL,
    "failed": TrialState.FAIL,
}
METRIC = "validation NLL"  # what a trial's value is
_OUTSIDE = {  # SQLite's codes for faults outside a database, not in it
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def address(path: Path) -> str:
    """Return a database's URL, with characters such as ``%`` and ``?`` in its path escaped."""
    return URL.create("sqlite", database=str(path)).render_as_string()


class _Unsynced(sqlite3.Connection):
    """A connection that doesn't wait for the disk, because the trial files do.

    A transaction outlives the death of the process. What a power loss takes or garbles is written
    again from the trial files when the study is opened.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous = OFF")


def connect(path: Path) -> optuna.storages.RDBStorage:
    """Open a database, which another connection may lock for a moment, or create one.

    Raises:
        InputError: It was made by another version of Optuna.
    """
    storage = optuna.storages.RDBStorage(
        address(path),
        engine_kwargs={"connect_args": {"timeout": 60, "factory": _Unsynced}},
        skip_compatibility_check=True,
        # Nothing is added to an older schema.
        skip_table_creation=path.exists() and path.stat().st_size > 0,
    )
    try:
        _check_version(path, storage)
    except BaseException:
        disconnect(storage)
        raise
    return storage


def disconnect(storage: optuna.storages.RDBStorage) -> None:
    """Close all connections."""
    storage.remove_session()
    storage.engine.dispose()


def _check_version(path: Path, storage: optuna.storages.RDBStorage) -> None:
    current, needed = storage.get_current_version(), storage.get_head_version()
    if current == needed:
        return
    known = current in storage.get_all_versions()
    upgrade = shlex.join(["optuna", "storage", "upgrade", "--storage", address(path)])
    remedy = f"upgrade it: {upgrade}" if known else "upgrade Optuna: pip install -U optuna"
    raise InputError(
        f"{path} has schema {current!r}, Optuna {optuna.__version__} needs {needed!r}; {remedy}; "
        "or delete it: it is rebuilt from the trial files"
    )


def fault(path: Path, *, expected: bool) -> str | None:
    """Return what makes a database unusable before it is opened; None if it may be sound.

    Args:
        path: Path of the database.
        expected: Whether there are trials, so that the database must exist.
    """
    if not path.exists():
        return "is missing" if expected else None
    if path.stat().st_size == 0 and not expected:
        return None
    return None if is_sqlite(path) else "is damaged (not a SQLite database)"


def fault_of(error: BaseException) -> str | None:
    """Return what an error says about a database's content; None if the fault lies outside it."""
    for cause in _causes(error):
        if isinstance(cause, OSError):
            return None
        if (
            isinstance(cause, sqlite3.Error)
            and getattr(cause, "sqlite_errorcode", 0) & 0xFF in _OUTSIDE
        ):
            return None
    last = list(_causes(error))[-1]
    return f"is damaged ({' '.join(str(last).split())[:200] or type(last).__name__})"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = getattr(error, "orig", None) or error.__cause__ or error.__context__


def check_pages(storage: optuna.storages.RDBStorage) -> None:
    """Let SQLite check its own structures for damage.

    Raises:
        ValueError: They are damaged.
    """
    with storage.engine.connect() as connection:
        result = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
    if result != "ok":
        raise ValueError(result)


def rebuild(path: Path, study: Study, records: Mapping[str, Record]) -> None:
    """Make the database from the records; an old one is kept beside it as ``optuna.db.damaged``.

    Raises:
        InputError: A record does not fit the study.
    """
    frozen = {}
    for search in range(study.searches):
        for arm in study.arms:
            searched = records_of(records, "search", arm, search)
            trials = [expected(path.parent, study, record) for record in searched]
            frozen[study_title(study.name, arm, search)] = trials
    for suffix in ("", "-journal", "-wal", "-shm"):
        if (part := path.with_name(path.name + suffix)).exists():
            part.replace(path.with_name(f"{path.name}.damaged{suffix}"))
    storage = connect(path)
    try:
        for title, trials in frozen.items():
            create_study(storage, title).add_trials(trials)
    finally:
        disconnect(storage)


def create_study(storage: optuna.storages.RDBStorage, title: str) -> optuna.Study:
    """Create an arm's Optuna study in one search."""
    created = optuna.create_study(storage=storage, study_name=title, direction="minimize")
    with warnings.catch_warnings():  # Optuna calls it experimental since version 3.2
        warnings.simplefilter("ignore", ExperimentalWarning)
        created.set_metric_names([METRIC])
    return created


def known_attributes(name: str, seed: int) -> dict[str, Any]:
    """Return the user attributes that a trial has from its start."""
    return {"name": name, "seed": seed}


def attributes(record: Record) -> dict[str, Any]:
    """Return a record's user attributes in Optuna: what its tools should show beside a trial."""
    shown = known_attributes(record.name, record.seed)
    if record.state != "running":
        shown["steps"] = record.step
        ppl = record.reports[-1].metrics.get("eval/ppl") if record.reports else None
        if is_finite(ppl):  # JSON, which Optuna stores, has no infinity
            shown["ppl"] = ppl
    return shown


def losses(record: Record) -> dict[int, float]:
    """Return a record's validation NLL by step."""
    return {r.step: nll for r in record.reports if (nll := r.metrics.get("eval/nll")) is not None}


def final_value(record: Record) -> float | None:
    """Return the value that Optuna must hold for a record; None if it has none, or not a number."""
    state, value = OPTUNA_STATES[record.state], None
    if state == TrialState.COMPLETE:
        value = record.nll
    elif state == TrialState.PRUNED:
        last = max(losses(record).items(), default=None)
        value = None if last is None else last[1]
    return value if value == value else None  # Optuna rejects NaN as a trial's value


def expected(folder: Path, study: Study, record: Record) -> FrozenTrial:
    """Return the trial that Optuna must hold for a record.

    Raises:
        InputError: The record's parameters are not a point of its arm's space.
    """
    params, distributions = _drawn(folder, study.space(record.arm), record)
    return create_trial(
        state=OPTUNA_STATES[record.state],
        value=final_value(record),
        params=params,
        distributions=distributions,
        intermediate_values=losses(record),
        user_attrs=attributes(record),
    )


def _drawn(folder: Path, space: Space, record: Record) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a record's parameters and their distributions as Optuna stores them."""
    try:
        labels = {n: space.parameters[n].values.label(v) for n, v in record.params.items()}
        trial = FixedTrial(labels)
        # Optuna only warns about a value outside the space.
        with warnings.catch_warnings(action="error"):
            if space.sample(trial) != record.params:
                raise ValueError(f"{dict(record.params)} is not a point of it")
    except (KeyError, TypeError, ValueError, UserWarning) as error:
        path = folder / "trials" / record.name / "trial.json"
        raise damaged(path, f"its params don't fit the arm's search space: {error}") from error
    return dict(trial.params), dict(trial.distributions)


def differing(stored: FrozenTrial, wanted: FrozenTrial) -> str | None:
    """Return the first field in which two trials differ, of Optuna and the trial files, or None."""
    for name in ("state", "params", "distributions", "intermediate_values", "value"):
        here, there = getattr(wanted, name), getattr(stored, name)
        # Compared as text where need be, in which NaN equals NaN.
        if here != there and _text(here) != _text(there):
            return name
    return None


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
