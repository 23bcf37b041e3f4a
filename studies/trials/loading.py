"""The records of a study folder for commands that only read it, checked against its database."""

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from hylorada import InputError
from studies.files.folder_files import content_of, is_sqlite, reading, study_command
from studies.trials.records import (
    ADDED,
    Record,
    Records,
    lost_trials,
    place_of,
    read_records,
    trial_files,
)

_ENDED = (
    "SELECT study_name, number FROM trials JOIN studies USING (study_id) "
    f"WHERE state IN ('COMPLETE', 'PRUNED', 'FAIL') AND study_name NOT LIKE '%{ADDED}'"
)


def load_records(folder: Path) -> Records:
    """Return all records of a study folder, by name, without opening it for writing.

    Raises:
        InputError: Files are damaged or lost.
    """
    # Read the database first: a trial that ends meanwhile reaches its file before the database.
    ended = ended_trials(folder)
    records = read_records(folder)
    if lost := lost_trials(folder, ended, records):
        raise InputError(lost)
    return records


def ended_trials(folder: Path) -> dict[str, set[int]]:
    """Return the numbers of the ended trials by arm and search (:func:`place_name`).

    The result is empty while the database is lost, locked or damaged, which `run` handles.
    """
    ended: dict[str, set[int]] = {}
    uri = f"{(folder / 'optuna.db').absolute().as_uri()}?mode=ro"
    with (
        suppress(sqlite3.DatabaseError, UnicodeDecodeError),
        closing(sqlite3.connect(uri, uri=True)) as database,
    ):
        for title, number in database.execute(_ENDED):
            ended.setdefault(place_of(title), set()).add(number)
    return ended


def database_fault(folder: Path, records: Mapping[str, Record]) -> str | None:
    """Return a line about a lost or damaged database, for commands that only read."""
    path = folder / "optuna.db"
    if not records or (is_sqlite(path) and not _unreadable(path)):
        return None
    return (
        f"{path} is missing or damaged; `{study_command(folder)}` rebuilds it from the trial files"
    )


def _unreadable(path: Path) -> bool:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.execute(_ENDED).fetchall()
    except sqlite3.OperationalError:
        return False  # the database is locked
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return True
    return False


class End(NamedTuple):
    """How a trial has ended, or that it still runs."""

    state: str
    reason: str
    stage: str


def trial_ends(folder: Path) -> dict[str, End]:
    """Return how each trial has ended, by name, from its trial.json alone.

    This is for a command that has just checked all files, which takes longer.

    Raises:
        InputError: A file is damaged.
    """
    ends = {}
    for path in trial_files(folder / "trials"):
        with reading(path), suppress(FileNotFoundError, NotADirectoryError):
            values = json.loads(content_of(path))
            ends[values["name"]] = End(
                values["state"], values["reason"] or "", values.get("stage", "search")
            )
    return ends


def failures(ends: Mapping[str, End]) -> dict[str, list[str]]:
    """Return the names of the failed trials, by reason, given what `trial_ends` returns.

    A trial's own name is replaced in its reason, so that equal errors have equal reasons.
    """
    names: dict[str, list[str]] = {}
    for name, end in ends.items():
        if end.state == "failed":
            names.setdefault(end.reason.replace(name, "TRIAL"), []).append(name)
    return names
