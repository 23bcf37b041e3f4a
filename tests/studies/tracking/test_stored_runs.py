"""The check that MLflow's database holds a finished study, against databases that MLflow wrote."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.entities import ViewType
from mlflow_records import EXPERIMENT, Mlflow, make_record, make_report, parent_of

from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.stored_runs import (
    STATE,
    TRIAL,
    children_of,
    holds_finished,
    may_have_running,
    of_client,
)
from studies.trials.records import Record, State

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
_STATES: tuple[State, ...] = ("complete", "pruned", "diverged", "failed")
_FILE = "results.json"


def _finish(store: Mlflow, study: str, path: Path) -> tuple[BackgroundTracker, list[Record]]:
    """Send a study with one trial in each state."""
    (path / _FILE).write_text("{}")
    records = [make_record(f"fixed-{i:04d}", state) for i, state in enumerate(_STATES)]
    for record in records:
        record.reports.append(make_report(2))
    tracker = store.tracker(study, [])
    tracker.finish(records, {path / _FILE: ""}, {"test/ppl_fixed": 12.5})
    return tracker, records


def _holds(store: Mlflow, study: str, records: list[Record], name: str = EXPERIMENT) -> bool:
    return holds_finished(store.storage, name, study, {r.name: r.state for r in records}, [_FILE])


def test_finished_study_is_held(store: Mlflow, tmp_path: Path) -> None:
    _, records = _finish(store, "held", tmp_path)
    assert _holds(store, "held", records)
    assert not _holds(store, "another", records)
    assert not _holds(store, "held", records, "another")


def test_trials_that_are_missing_or_have_changed_are_noticed(store: Mlflow, tmp_path: Path) -> None:
    _, records = _finish(store, "changed", tmp_path)
    assert not _holds(store, "changed", [*records, make_record("fixed-0004", "complete")])
    assert not _holds(store, "changed", records[1:])
    assert not _holds(store, "changed", [make_record("fixed-0000", "failed"), *records[1:]])
    assert not _holds(store, "changed", [make_record("fixed-0000", "running"), *records[1:]])


def _delete_parent(store: Mlflow, tracker: BackgroundTracker) -> None:
    store.client.delete_run(parent_of(tracker))


def _delete_trial(store: Mlflow, tracker: BackgroundTracker) -> None:
    store.client.delete_run(store.children(tracker)["learnable-0000"].info.run_id)


def _reopen_trial(store: Mlflow, tracker: BackgroundTracker) -> None:
    store.client.update_run(store.children(tracker)["learnable-0000"].info.run_id, "RUNNING")


def _open_parent(store: Mlflow, tracker: BackgroundTracker) -> None:
    store.client.update_run(parent_of(tracker), "RUNNING")


def _forget_state(store: Mlflow, tracker: BackgroundTracker) -> None:
    run = store.children(tracker)["learnable-0000"]
    store.client.delete_tag(run.info.run_id, "hylorada.state")


def _lose_artifact(store: Mlflow, tracker: BackgroundTracker) -> None:
    run = store.client.get_run(parent_of(tracker))
    (store.storage / "artifacts" / EXPERIMENT / run.info.run_id / "artifacts" / _FILE).unlink()


@pytest.mark.parametrize(
    "damage",
    [_delete_parent, _delete_trial, _reopen_trial, _open_parent, _forget_state, _lose_artifact],
)
def test_what_a_run_would_mend_is_noticed(
    store: Mlflow, tmp_path: Path, damage: Callable[[Mlflow, BackgroundTracker], None]
) -> None:
    study = damage.__name__
    (tmp_path / _FILE).write_text("{}")
    record = make_record(state="complete")
    tracker = store.tracker(study, [])
    tracker.finish([record], {tmp_path / _FILE: ""}, {})
    assert _holds(store, study, [record])
    damage(store, tracker)
    assert not _holds(store, study, [record])
    again = store.tracker(study, [])
    again.finish([record], {tmp_path / _FILE: ""}, {})
    assert _holds(store, study, [record])


def test_copied_storage_still_points_to_the_original(store: Mlflow, tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes((store.storage / "mlflow.db").read_bytes())
    _, records = _finish(store, "copied", tmp_path)
    assert _holds(store, "copied", records)
    states = {r.name: r.state for r in records}
    assert not holds_finished(tmp_path, EXPERIMENT, "copied", states, [_FILE])


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0 and garbage", b"garbage"])
def test_database_that_is_lost_or_damaged_holds_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "mlflow.db").write_bytes(content)
    assert not holds_finished(tmp_path, EXPERIMENT, "none", {}, [])
    assert (tmp_path / "mlflow.db").exists() == (content is not None)


def test_runs_below_a_parent_are_those_that_the_client_finds(store: Mlflow, tmp_path: Path) -> None:
    tracker, _ = _finish(store, "read directly", tmp_path)
    store.client.delete_run(store.children(tracker)["fixed-0001"].info.run_id)
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    below = f"tags.`mlflow.parentRunId` = '{parent_of(tracker)}'"
    by_client = store.client.search_runs([experiment.experiment_id], below, ViewType.ALL)
    read = children_of(
        store.storage / "mlflow.db", experiment.experiment_id, parent_of(tracker), [TRIAL, STATE]
    )
    assert read is not None
    kept = [replace(of_client(run), tags={}) for run in by_client]
    assert [replace(run, tags={}) for run in read] == kept
    assert [run.deleted for run in read].count(True) == 1
    tags = [{k: run.data.tags[k] for k in (TRIAL, STATE)} for run in by_client]
    assert [run.tags for run in read] == tags


@pytest.mark.parametrize("content", [None, b"", b"garbage"])
def test_runs_of_a_lost_database_are_left_to_the_client(
    tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "mlflow.db").write_bytes(content)
    assert children_of(tmp_path / "mlflow.db", "1", "parent", [TRIAL]) is None
    assert may_have_running(tmp_path, "study") == (content is not None)


def test_only_a_study_with_running_runs_may_have_some(store: Mlflow, tmp_path: Path) -> None:
    tracker = store.tracker("begun", [])
    assert may_have_running(store.storage, "begun")  # the parent
    _finish(store, "ended", tmp_path)
    assert not may_have_running(store.storage, "ended")
    tracker.abort([make_record()], "KILLED")
    assert not may_have_running(store.storage, "begun")
    store.client.update_run(store.children(tracker)["learnable-0000"].info.run_id, "RUNNING")
    assert may_have_running(store.storage, "begun")
