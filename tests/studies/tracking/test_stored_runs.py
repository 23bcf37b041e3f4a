"""The check that MLflow's database holds a finished study, against databases that MLflow wrote."""

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow_records import EXPERIMENT, Mlflow, make_record, make_report, parent_of

from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.stored_runs import holds_finished
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
