"""The locations of a study's artifacts.

MLflow stores absolute locations, so they are updated after a storage folder is moved or copied.
"""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from hylorada import InputError
from studies.files.paths import database_path
from studies.process.mlflow_address import shown

_DEFAULT = "0"  # id of MLflow's first experiment, located where the database was created


def artifact_folder(storage: Path, study: str) -> Path:
    """Return the folder of a study's artifacts, under the name stored in MLflow's databases."""
    return storage.resolve() / "artifacts" / study


def owns_database(storage: Path, uri: str) -> bool:
    """Return whether an address is that of the storage folder's own ``mlflow.db``."""
    path = database_path(uri)
    own = os.path.join(os.path.realpath(storage), "mlflow.db")
    # `Path.resolve` would raise for a link that leads back to itself.
    return path is not None and os.path.realpath(path) == own


def follow_storage(storage: Path) -> None:
    """Point the storage folder's own ``mlflow.db`` to the artifacts in this folder.

    A copied folder would otherwise write into the original, and a moved one would show no
    artifacts.

    Raises:
        InputError: The database can't be read, or needs a change and can't be written.
    """
    database = storage.resolve() / "mlflow.db"
    try:
        with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
            if connection.execute(
                "SELECT 1 FROM sqlite_master WHERE name = 'experiments'"
            ).fetchone():
                for experiment, before, now in list(_moves(connection, storage.resolve())):
                    move_artifacts(connection, experiment, before, now)
    except sqlite3.Error as error:
        raise InputError(
            f"{database} can't be pointed to the artifacts in its folder: {error}"
        ) from error


def move_artifacts(connection: sqlite3.Connection, experiment: str, before: str, now: str) -> None:
    """Change the location of an experiment and of all its runs that store artifacts there."""
    connection.execute(
        "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (now, experiment)
    )
    connection.execute(
        "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE experiment_id = ? AND "
        "substr(artifact_uri, 1, ?) = ?",
        (now, len(before) + 1, experiment, len(before) + 1, f"{before}/"),
    )


def _moves(connection: sqlite3.Connection, storage: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each experiment to move into the storage folder, with its old and new location."""
    rows = connection.execute("SELECT experiment_id, artifact_location FROM experiments")
    places = {str(number): str(place) for number, place in rows}
    root, former = storage.as_uri(), _former_roots(places, storage)
    for number, place in places.items():
        old = next((r for r in former if place.startswith(f"{r}/")), None)
        if place.startswith(f"{root}/") and (old is None or len(old) < len(root)):
            continue  # it is in this folder already
        if old is not None:
            yield number, place, root + place.removeprefix(old)
        elif (
            number == _DEFAULT
            and not connection.execute("SELECT 1 FROM runs WHERE experiment_id = 0").fetchone()
        ):
            yield number, place, f"{root}/artifacts/{_DEFAULT}"


def _former_roots(places: Mapping[str, str], storage: Path) -> list[str]:
    """Return the other storage folders that held this folder's studies, longest URI first."""
    roots = set()
    for place in places.values():
        root, kind, study = ["", "", *place.rsplit("/", 2)][-3:]
        here = [storage / kind / unquote(study), storage / "studies" / unquote(study)]
        known = any(path.is_dir() for path in here)
        if place.startswith("file:") and kind == "artifacts" and known:
            roots.add(root)
    return sorted(roots - {storage.as_uri()}, key=len, reverse=True)


def location_in(uri: str, experiment: Any, storage: Path) -> str:
    """Return the artifact location of an experiment in a user's own database.

    It is updated first if the storage folder was moved.

    Raises:
        InputError: It is in another storage folder that still exists, and may be another study's.
    """
    before = str(experiment.artifact_location)
    now = artifact_folder(storage, experiment.name).as_uri()
    path = local_path(before)
    if path is None or before == now or path.parts[-2:] != ("artifacts", experiment.name):
        return before
    if path.exists() or (database := database_path(uri)) is None:
        raise InputError(
            f"experiment {experiment.name!r} of {shown(uri)} keeps its artifacts in another "
            f"storage folder, {path}; resume the study there, or leave --tracking-uri out, or give "
            "the study another --name"
        )
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        move_artifacts(connection, str(experiment.experiment_id), before, now)
    return now


def local_path(place: str) -> Path | None:
    """Return the path of a location on this machine's disks, None for any other location."""
    return Path(url2pathname(urlsplit(place).path)) if urlsplit(place).scheme == "file" else None
