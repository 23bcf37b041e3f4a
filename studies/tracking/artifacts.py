"""Where a study's artifacts are: MLflow keeps absolute places, which follow a moved or copied storage folder."""

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

_DEFAULT = "0"  # id of MLflow's own first experiment, whose place is the folder where the database was made


def artifact_folder(storage: Path, study: str) -> Path:
    """Return the folder of a study's artifacts, as MLflow's databases name it."""
    return storage.resolve() / "artifacts" / study


def owns_database(storage: Path, uri: str) -> bool:
    """Return whether an address is that of the storage folder's own ``mlflow.db``."""
    path = database_path(uri)
    # realpath: Path.resolve raises for links that lead back to themselves
    return path is not None and os.path.realpath(path) == os.path.join(
        os.path.realpath(storage), "mlflow.db"
    )


def follow_storage(storage: Path) -> None:
    """Let the storage folder's own ``mlflow.db`` keep every artifact in this folder, wherever it has been before.

    A copied folder would otherwise write into the original, and a moved one would show no artifacts.

    Raises:
        InputError: the database can't be read, or must be changed and can't be.
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
        raise InputError(f"{database} can't be brought in line with its folder: {error}") from error


def move_artifacts(connection: sqlite3.Connection, experiment: str, before: str, now: str) -> None:
    """Change the place of an experiment and of those of its runs that keep artifacts there."""
    connection.execute(
        "UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", (now, experiment)
    )
    connection.execute(
        "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) WHERE experiment_id = ? AND "
        "substr(artifact_uri, 1, ?) = ?",
        (now, len(before) + 1, experiment, len(before) + 1, f"{before}/"),
    )


def _moves(connection: sqlite3.Connection, storage: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each experiment whose place is not in the storage folder but should be, with that place and the new one."""
    rows = connection.execute("SELECT experiment_id, artifact_location FROM experiments")
    places = {str(number): str(place) for number, place in rows}
    root, former = storage.as_uri(), _former_roots(places, storage)
    for number, place in places.items():
        old = next((r for r in former if place.startswith(f"{r}/")), None)
        if place.startswith(f"{root}/") and (
            old is None or len(old) < len(root)
        ):  # it is here already
            continue
        if old is not None:
            yield number, place, root + place.removeprefix(old)
        elif (
            number == _DEFAULT
            and not connection.execute("SELECT 1 FROM runs WHERE experiment_id = 0").fetchone()
        ):
            yield number, place, f"{root}/artifacts/{_DEFAULT}"


def _former_roots(places: Mapping[str, str], storage: Path) -> list[str]:
    """Return the other storage folders in which the studies of this one kept artifacts, the deepest first."""
    roots = set()
    for place in places.values():
        root, kind, study = ["", "", *place.rsplit("/", 2)][-3:]
        here = [storage / kind / unquote(study), storage / "studies" / unquote(study)]
        if (
            place.startswith("file:")
            and kind == "artifacts"
            and any(path.is_dir() for path in here)
        ):
            roots.add(root)
    return sorted(roots - {storage.as_uri()}, key=len, reverse=True)


def location_in(uri: str, experiment: Any, storage: Path) -> str:
    """Return where an experiment of a user's own database keeps artifacts, after that has followed a moved folder.

    Raises:
        InputError: that is in another storage folder, which is still there and may be another study's.
    """
    before, now = (
        str(experiment.artifact_location),
        artifact_folder(storage, experiment.name).as_uri(),
    )
    path = local_path(before)
    if path is None or before == now or path.parts[-2:] != ("artifacts", experiment.name):
        return before
    if path.exists() or (database := database_path(uri)) is None:
        raise InputError(
            f"experiment {experiment.name!r} of {shown(uri)} keeps its artifacts in another storage folder, {path}; "
            "go on with the study there, or leave --tracking-uri out, or give the study another --name"
        )
    with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
        move_artifacts(connection, str(experiment.experiment_id), before, now)
    return now


def local_path(place: str) -> Path | None:
    """Return the path of a place on this machine's disks, None for any other place."""
    return Path(url2pathname(urlsplit(place).path)) if urlsplit(place).scheme == "file" else None
