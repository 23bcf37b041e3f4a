"""Requests from other terminals to the process that runs a study, as files in the study's folder.

``requests/stop.json`` ends the run, ``stop-TRIAL.json`` ends one trial, and ``add-TRIAL.json`` adds
one. The name of the file says what it is about, so a request that is written or carried out twice
has the same effect as once. The running process records the result among the study's own records
before it deletes the request: after a crash in between, the records show that it is done.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from studies.files.folder_files import read_json, write_json
from studies.trials.records import owner_of, read_id

# Stages whose trials a user may stop. Runs of the others are compared in pairs or means, which a
# missing one would distort.
STOPPABLE = ("search", "added")
_FOLDER = "requests"
_STOP, _STOP_TRIAL, _ADD = "stop", "stop-", "add-"
_LOCK_S = 10.0  # one terminal writes a request in milliseconds


@dataclass(frozen=True)
class Addition:
    """A trial that a user adds to a study.

    Attributes:
        arm: Its arm.
        clone: The trial whose configuration it changes; empty for the arm's defaults.
        params: Its parameters: a point of the arm's space, and the fields that the user has set.
    """

    arm: str
    clone: str
    params: Mapping[str, Any]


def request_stop(folder: Path) -> None:
    """Ask the process that runs a study to end as on Ctrl-C."""
    _write(folder, _STOP, {})


def stop_requested(folder: Path) -> bool:
    """Return whether the run is to end."""
    return os.path.exists(_path(folder, _STOP))


def drop_stop(folder: Path) -> None:
    """Delete a request to end the run: it holds for one run, never for the next."""
    _drop(folder, _STOP)


def request_trial_stop(folder: Path, trial: str) -> None:
    """Ask that a trial end at its next report."""
    _write(folder, _STOP_TRIAL + trial, {"trial": trial})


def trial_stops(folder: Path) -> set[str]:
    """Return the names of the trials that are to end."""
    return set(_names(folder, _STOP_TRIAL))


def drop_trial_stop(folder: Path, trial: str) -> None:
    """Delete the request to end a trial, once it has ended."""
    _drop(folder, _STOP_TRIAL + trial)


def request_addition(folder: Path, addition: Addition) -> str:
    """Ask that a trial be added, and return the name that it will have.

    Raises:
        filelock.Timeout: Another terminal has been writing a request for seconds.
    """
    (folder / _FOLDER).mkdir(exist_ok=True)
    with FileLock(folder / _FOLDER / "lock", timeout=_LOCK_S):
        # The requests are read first: the running process writes a trial before it deletes the
        # request for it, so each number is seen in at least one of the two places.
        taken = {*_names(folder, _ADD), *_listed(folder / "trials")}
        number = 1
        while (name := added_name(addition.arm, number)) in taken:
            number += 1
        _write(folder, _ADD + name, asdict(addition))
    return name


def added_name(arm: str, number: int) -> str:
    """Return the name of a trial that a user has added; the numbers of an arm start at 1."""
    return f"{arm}-added-{number:04d}"


def number_of(name: str) -> int:
    """Return the number in the name of an added trial."""
    return int(name.rpartition("-")[2])


def additions(folder: Path) -> list[str]:
    """Return the names of the trials that are to be added, sorted."""
    names = _names(folder, _ADD)
    return sorted(name for name in names if re.search(r"-added-\d{4,}\Z", name))


def waiting_lines(folder: Path) -> list[str]:
    """Return a line for each request that has not been carried out."""
    lines = [f"waiting: {name} is to be added" for name in additions(folder)]
    return lines + [f"waiting: {name} is to stop" for name in sorted(trial_stops(folder))]


def read_addition(folder: Path, name: str) -> Addition:
    """Return a request to add a trial.

    Raises:
        InputError: The file is lost or damaged.
    """
    path = _path(folder, _ADD + name)
    addition: Addition = read_json(path, Addition, _owner(folder, path.stem))
    return addition


def drop_addition(folder: Path, name: str) -> None:
    """Delete the request for a trial, once the trial has its own file."""
    _drop(folder, _ADD + name)


def set_aside(folder: Path, name: str) -> Path:
    """Rename a request for a trial that can't be carried out, and return its new path."""
    path = _path(folder, _ADD + name)
    return path.replace(path.with_suffix(".refused"))


def _path(folder: Path, stem: str) -> Path:
    return folder / _FOLDER / f"{stem}.json"


def _owner(folder: Path, stem: str) -> str:
    return owner_of(read_id(folder), f"{_FOLDER}/{stem}")


def _write(folder: Path, stem: str, values: Mapping[str, Any]) -> None:
    (folder / _FOLDER).mkdir(exist_ok=True)
    write_json(_path(folder, stem), values, _owner(folder, stem))


def _drop(folder: Path, stem: str) -> None:
    # A request that stays, e.g. on a disk that has become read-only, is dropped by the next run.
    with suppress(OSError):
        _path(folder, stem).unlink()


def _names(folder: Path, prefix: str) -> list[str]:
    """Return what the names of all requests of one kind say after their prefix."""
    files = _listed(folder / _FOLDER)
    stems = [name.removesuffix(".json") for name in files if name.endswith(".json")]
    return [stem.removeprefix(prefix) for stem in stems if stem.startswith(prefix)]


def _listed(place: Path) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.listdir(place)
    return []
