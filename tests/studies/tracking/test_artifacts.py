"""Artifacts of a moved or copied storage folder: nothing is written to their former location."""

import hashlib
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import optuna
import pytest
from mlflow import MlflowClient
from mlflow_records import make_record, make_report

from hylorada import InputError
from studies.files.folder_files import require_database
from studies.process.errors import as_stop
from studies.process.options import default_uri
from studies.tracking.artifacts import follow_storage
from studies.tracking.experiment import open_runs
from studies.tracking.runs import StudyRuns

# Raised by MLflow itself.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

_PAGE = 4096  # bytes of a SQLite page
_STUDIES = ("étude 1", "100 % #2")


def _open(storage: Path, study: str, uri: str | None = None) -> StudyRuns:
    (storage / "studies" / study).mkdir(parents=True, exist_ok=True)
    return open_runs(uri or default_uri(storage), study, storage, f"id of {study}", print)


def _finish(storage: Path, study: str, text: str, uri: str | None = None) -> StudyRuns:
    """Write a study of one trial to MLflow, from its start to its end."""
    runs = _open(storage, study, uri)
    runs.update(make_record("fixed-0000", "complete", reports=[make_report(2)]))
    report = storage / "studies" / study / "report.html"
    report.write_text(text)
    runs.finish({report: ""}, {"test/ppl": 12.5}, 1_700_000_000_000)
    return runs


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage folder with two studies."""
    storage = tmp_path_factory.mktemp("original") / "my runs é"
    for study in _STUDIES:
        _finish(storage, study, f"report of {study}")
    return storage


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the storage folder; the original beside it must stay unchanged."""
    before = _contents(original)
    yield Path(shutil.copytree(original, tmp_path / "copy"))
    assert _contents(original) == before


def _contents(folder: Path) -> dict[str, str]:
    """Return the digest of every file, and every folder."""
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in folder.rglob("*")
    }


def _places(storage: Path) -> set[str]:
    """Return the artifact locations in the database."""
    with closing(sqlite3.connect(storage / "mlflow.db")) as database:
        rows = database.execute(
            "SELECT artifact_location FROM experiments UNION SELECT artifact_uri FROM runs"
        )
        return {row[0] for row in rows}


def _read_report(storage: Path, study: str) -> str:
    """Return the report as MLflow's page reads it.

    MLflow's client would cache the locations of runs by their ids.
    """
    client = MlflowClient(default_uri(storage))
    experiment = client.get_experiment_by_name(study)
    assert experiment is not None
    (parent,) = client.search_runs(
        [experiment.experiment_id], "tags.`hylorada.study` like 'id of%'"
    )
    return Path(url2pathname(urlsplit(parent.info.artifact_uri).path), "report.html").read_text()


def _all_within(storage: Path) -> bool:
    return all(
        place.startswith(f"{storage.resolve().as_uri()}/artifacts/") for place in _places(storage)
    )


def test_copied_study_writes_nothing_into_the_original(copy: Path) -> None:
    _finish(copy, _STUDIES[0], "new report")
    assert _all_within(copy)
    assert len(_places(copy)) == 7  # MLflow's own experiment, and each study's with two runs
    assert _read_report(copy, _STUDIES[0]) == "new report"
    assert _read_report(copy, _STUDIES[1]) == f"report of {_STUDIES[1]}"


def test_copy_of_a_copy_and_a_moved_copy_follow_too(copy: Path, tmp_path: Path) -> None:
    follow_storage(copy)
    inner = Path(shutil.copytree(copy, copy / "inner"))  # its path begins with the other's
    follow_storage(inner)
    assert _all_within(inner)
    moved = Path(shutil.move(inner, tmp_path / "inner"))
    follow_storage(moved)
    assert _all_within(moved)
    assert _all_within(copy)
    shutil.rmtree(copy)
    outer = Path(shutil.move(moved, copy))
    follow_storage(outer)
    assert _read_report(outer, _STUDIES[1]) == f"report of {_STUDIES[1]}"


def test_folder_that_moved_up_into_its_parent_follows(copy: Path, tmp_path: Path) -> None:
    deep = Path(shutil.move(copy, tmp_path / "a" / "b"))
    follow_storage(deep)
    shutil.move(deep, tmp_path / "kept")
    (tmp_path / "a").rmdir()
    storage = Path(shutil.move(tmp_path / "kept", tmp_path / "a"))
    follow_storage(storage)
    assert _all_within(storage)


def test_storage_named_by_a_link_or_from_the_working_folder_is_the_same(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(copy)
    _finish(tmp_path / "link", _STUDIES[1], "by link")
    places = _places(copy)
    monkeypatch.chdir(copy.parent)
    _finish(Path("copy"), _STUDIES[1], "by name")
    assert _places(copy) == places
    assert _all_within(copy)


def test_following_twice_writes_once(copy: Path) -> None:
    follow_storage(copy)
    before = _contents(copy)
    follow_storage(copy)
    assert _contents(copy) == before


def test_places_of_the_users_own_experiments_stay(copy: Path, tmp_path: Path) -> None:
    client = MlflowClient(default_uri(copy))
    for name, place in (
        ("mine", "s3://bucket/artifacts/mine"),
        ("far", (tmp_path / "artifacts" / "far").as_uri()),
    ):
        client.create_experiment(name, place)
    follow_storage(copy)
    assert {"s3://bucket/artifacts/mine", (tmp_path / "artifacts" / "far").as_uri()} < _places(copy)


def test_study_renamed_in_the_page_follows(copy: Path) -> None:
    client = MlflowClient(default_uri(copy))
    experiment = client.get_experiment_by_name(_STUDIES[0])
    assert experiment is not None
    client.rename_experiment(experiment.experiment_id, "something else")
    follow_storage(copy)
    assert _all_within(copy)


def test_users_own_database_refuses_a_copy_and_follows_a_moved_folder(
    copy: Path, tmp_path: Path
) -> None:
    database = shutil.copy(
        copy / "mlflow.db", tmp_path / "mine.db"
    )  # with the original's locations
    uri = f"sqlite:///{database}"
    with pytest.raises(
        InputError, match=r"in another storage folder, .*my runs é/artifacts/étude 1"
    ):
        _open(copy, _STUDIES[0], uri)
    follow_storage(copy)
    shutil.copy(copy / "mlflow.db", tmp_path / "mine.db")
    moved = Path(shutil.move(copy, tmp_path / "moved"))
    runs = _finish(moved, _STUDIES[0], "moved", uri)
    assert runs.client.get_run(runs.parent).info.artifact_uri.startswith(
        f"{moved.as_uri()}/artifacts/"
    )
    assert not copy.exists()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: _PAGE * 20])


def _zero_page(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        (page,) = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'tags'"
        ).fetchone()
    _overwrite(path, _PAGE * (page - 1), bytes(_PAGE))


def _overwrite(path: Path, at: int, content: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _zero_page,
        lambda path: _overwrite(path, 16, b"\1"),  # the page size
        lambda path: _overwrite(path, 0, b"R"),
        lambda path: path.write_bytes(b"SQLite format 3\0" + b"garbage" * 1000),
    ],
)
def test_damaged_database_is_named_before_anything_is_written(
    copy: Path, damage: Callable[[Path], object]
) -> None:
    path = copy / "mlflow.db"
    damage(path)
    before = _contents(copy)
    with pytest.raises(
        InputError, match=rf"{path} is damaged \(.+\); restore it from a backup, or move it away"
    ):
        _open(copy, _STUDIES[0])
    assert _contents(copy) == before


def test_lost_database_is_written_anew(copy: Path) -> None:
    """The message about a damaged database promises this."""
    (copy / "mlflow.db").unlink()
    runs = _finish(copy, _STUDIES[0], "anew")
    assert {r.info.run_name for r in runs.client.search_runs(["1"])} == {"étude 1", "fixed-0000"}
    assert _read_report(copy, _STUDIES[0]) == "anew"


@pytest.mark.parametrize("name", ["mlflow", "optuna"])
def test_error_of_a_damaged_database_names_it(
    copy: Path, optuna_tables: Path, tmp_path: Path, name: str
) -> None:
    source = copy / "mlflow.db" if name == "mlflow" else optuna_tables
    uri = f"sqlite:///{shutil.copy(source, tmp_path / 'damaged.db')}"
    _cut(tmp_path / "damaged.db")
    with pytest.raises(Exception, match=r"malformed|.") as raised:
        MlflowClient(uri).search_experiments() if name == "mlflow" else optuna.get_all_study_names(
            uri
        )
    assert re.match(rf"{name}\.db is damaged: .*malformed", str(as_stop(raised.value)))


def test_locked_database_is_no_damaged_one(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(
        sqlite3, "connect", lambda path, **options: connect(path, **{**options, "timeout": 0.0})
    )
    with closing(connect(copy / "mlflow.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        require_database(copy / "mlflow.db")
        with pytest.raises(
            InputError, match="can't be pointed to the artifacts in its folder: database is locked"
        ):
            follow_storage(copy)


def test_empty_database_is_no_damaged_one(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"")
    follow_storage(tmp_path)
