"""A tracker whose MLflow database is locked, full or lost, or rejects updates."""

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from filelock import FileLock
from mlflow_records import EXPERIMENT, Mlflow, make_record, make_report, parent_of
from mlflow_server import timed, wait_for_line
from study_runs import wait_until

from hylorada import InputError
from studies.process.options import default_uri
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.runs import StudyRuns
from studies.tracking.services import reconcile
from studies.trials.records import Record

pytestmark = [
    # Raised by MLflow itself.
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated"),
    pytest.mark.usefixtures("short_waits"),
]


def _report_trials(
    tracker: BackgroundTracker, records: list[Record], steps: tuple[int, ...]
) -> None:
    """Send one report of each trial after another, as the driver does."""
    for step in steps:
        for record in records:
            record.reports.append(make_report(step))
            tracker.update(record)


def _end(tracker: BackgroundTracker, records: list[Record]) -> None:
    for record in records:
        record.state = "complete"
        tracker.update(record)


def _database(store: Mlflow) -> Path:
    return Path(store.uri.removeprefix("sqlite:///"))


def test_trials_are_told_without_waiting(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("fast", said)
    records = [make_record(f"fixed-{i:04d}") for i in range(3)]
    tracker.describe({"commit": "a"}, {"model": "tiny"})
    assert timed(lambda: _report_trials(tracker, records, (2, 4, 6))) < 1
    _end(tracker, records)
    tracker.finish(records, {}, {"test/ppl_fixed": 12.5})
    store.check_whole(tracker, records)
    parent = store.client.get_run(parent_of(tracker))
    assert (parent.info.status, parent.data.params, said) == ("FINISHED", {"model": "tiny"}, [])
    (figure,) = store.client.get_metric_history(parent_of(tracker), "test/ppl_fixed")
    assert figure.timestamp == records[0].reports[-1].time


def test_told_again_a_finished_study_changes_nothing(store: Mlflow, said: list[str]) -> None:
    records = [make_record("fixed-0000", "complete", reports=[make_report(2), make_report(4)])]
    ends = []
    for _ in range(2):
        tracker = store.tracker("again", said)
        tracker.catch_up(records)
        tracker.finish(records, {}, {"test/ppl_fixed": 12.5})
        store.check_whole(tracker, records)
        assert len(store.client.get_metric_history(parent_of(tracker), "test/ppl_fixed")) == 1
        parent = store.client.get_run(parent_of(tracker)).info
        assert parent.end_time >= parent.start_time
        ends.append((store.children(tracker)["fixed-0000"].info.end_time, parent.end_time))
    assert (ends[0] == ends[1], said) == (True, [])


def test_abort_kills_what_runs(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("aborted", said)
    records = [
        make_record("fixed-0000"),
        make_record("fixed-0001", "complete", reports=[make_report(2)]),
    ]
    tracker.update(records[0])
    records[0].reports.append(make_report(2))  # stored, but the stop came before it was sent
    tracker.abort(records, "KILLED")
    children = store.children(tracker)
    assert {n: r.info.status for n, r in children.items()} == {
        "fixed-0000": "KILLED",
        "fixed-0001": "FINISHED",
    }
    assert store.series(children["fixed-0000"], "eval/nll") == [(2, 3.0)]
    assert store.client.get_run(parent_of(tracker)).info.status == "KILLED"


def test_locked_database_is_waited_for(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("locked", said)
    records = [make_record("fixed-0000")]
    backup = sqlite3.connect(_database(store), isolation_level=None, check_same_thread=False)
    backup.execute("BEGIN EXCLUSIVE")
    assert timed(lambda: _report_trials(tracker, records, (2, 4))) < 1
    threading.Timer(2.5, backup.execute, ("COMMIT",)).start()
    _end(tracker, records)
    assert timed(lambda: tracker.finish(records, {}, {})) > 1
    store.check_whole(tracker, records)
    backup.close()


@pytest.mark.slow
def test_database_locked_for_longer_than_sqlite_waits(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("long locked", said)
    records = [make_record("fixed-0000")]
    backup = sqlite3.connect(_database(store), isolation_level=None, check_same_thread=False)
    backup.execute("BEGIN EXCLUSIVE")
    _report_trials(tracker, records, (2, 4))
    wait_for_line(
        said, "does not respond (database is locked); training continues, 1 run waiting", 60
    )
    backup.execute("COMMIT")
    backup.close()
    _end(tracker, records)
    tracker.finish(records, {}, {})
    store.check_whole(tracker, records)
    assert [line for line in said if "responds again" in line]


def test_full_disk_is_told_and_made_up_for(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("full", said)
    records = [make_record("fixed-0000")]
    _report_trials(tracker, records, (2,))
    assert isinstance(tracker.tracker, StudyRuns)
    engine = tracker.tracker.client._tracking_client.store.engine
    limit = 1  # page, so that SQLite adds none to those it has

    def restrict(connection: Any, *_: Any) -> None:
        connection.execute(f"PRAGMA max_page_count = {limit}")

    sqlalchemy.event.listen(engine, "checkout", restrict)
    _report_trials(tracker, records, tuple(range(4, 400, 2)))
    wait_for_line(
        said, "does not respond (database or disk is full); training continues, 1 run waiting"
    )
    limit = 1 << 30
    _end(tracker, records)
    tracker.finish(records, {}, {})
    store.check_whole(tracker, records)
    assert [
        part for part in ("responds again", "not in MLflow yet", "rejects") if part in "".join(said)
    ] == ["responds again"]


def test_lost_database_is_told_and_ends_nothing(tmp_path: Path, said: list[str]) -> None:
    store = Mlflow(default_uri(tmp_path), tmp_path)
    tracker = store.tracker("lost", said)
    (tmp_path / "mlflow.db").rename(tmp_path / "elsewhere.db")
    records = [make_record("fixed-0000")]
    _report_trials(tracker, records, (2,))
    wait_for_line(said, "training continues, 1 run waiting")
    for path in tmp_path.glob("mlflow.db*"):
        path.unlink()
    (tmp_path / "elsewhere.db").rename(tmp_path / "mlflow.db")
    _end(tracker, records)
    tracker.finish(records, {}, {})
    store.check_whole(tracker, records)


def test_refused_run_is_told_once_and_keeps_nothing_back(store: Mlflow, said: list[str]) -> None:
    tracker = store.tracker("refused", said)
    records = [make_record(f"fixed-{i:04d}") for i in range(2)]
    _report_trials(tracker, records, (2,))
    wait_until(lambda: len(store.children(tracker)) == 2 and tracker.pending == 0)
    # As by hand in MLflow's page.
    store.client.delete_run(store.children(tracker)["fixed-0000"].info.run_id)
    _report_trials(tracker, records, (4, 6))
    _end(tracker, records)
    tracker.finish(records, {}, {})
    store.check_whole(tracker, records[1:])
    first, last = said
    assert first.startswith(f"MLflow at {store.uri} rejects fixed-0000 (INVALID_PARAMETER_VALUE: ")
    assert first.endswith("; training continues")
    assert last.startswith(
        "1 run incomplete in MLflow; first: fixed-0000: INVALID_PARAMETER_VALUE: "
    )
    again = store.tracker("refused", said)
    again.finish(records, {}, {})
    store.check_whole(again, records)


def test_deleted_experiment_is_told_and_ends_nothing(tmp_path: Path, said: list[str]) -> None:
    store = Mlflow(default_uri(tmp_path), tmp_path)
    tracker = store.tracker("gone", said)
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    store.client.delete_experiment(experiment.experiment_id)
    records = [make_record("fixed-0000")]
    _report_trials(tracker, records, (2, 4))
    _end(tracker, records)
    assert timed(lambda: tracker.finish(records, {}, {})) < 10
    assert "rejects fixed-0000" in said[0]
    with pytest.raises(InputError, match="is deleted; restore it, or give the study another name"):
        store.tracker("gone", said)


def test_runs_of_a_process_that_is_gone_are_closed(
    store: Mlflow, said: list[str], tmp_path: Path
) -> None:
    record = make_record(reports=[make_report(2)])
    tracker = store.tracker("0123456789abcdef", said)
    tracker.update(record)
    wait_until(lambda: tracker.pending == 0)
    assert (
        reconcile(store.uri, EXPERIMENT, tmp_path) is None
    )  # a folder without an id has never run
    (tmp_path / "id").write_text("0123456789abcdef")
    assert (
        reconcile(store.uri, EXPERIMENT, tmp_path)
        == "closed 2 MLflow runs that a dead process had left running"
    )
    assert reconcile(store.uri, EXPERIMENT, tmp_path) is None
    run = store.children(tracker)[record.name]
    assert (run.info.status, run.data.tags["closed_by"]) == ("KILLED", "reconcile")
    away = "MLflow at http://127.0.0.1:9 does not respond (NewConnectionError)"
    assert reconcile("http://127.0.0.1:9", EXPERIMENT, tmp_path) == away
    assert reconcile(default_uri(tmp_path), EXPERIMENT, tmp_path) is None
    assert not (tmp_path / "mlflow.db").exists()


def test_runs_of_a_living_process_are_left_alone(
    store: Mlflow, said: list[str], tmp_path: Path
) -> None:
    tracker = store.tracker("456789ab456789ab", said)
    (tmp_path / "id").write_text("456789ab456789ab")
    with FileLock(tmp_path / "lock"):
        assert reconcile(store.uri, EXPERIMENT, tmp_path) is None
    assert store.client.get_run(parent_of(tracker)).info.status == "RUNNING"
