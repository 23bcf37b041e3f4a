"""Runs that were deleted in MLflow's page: resuming the study restores them without duplicates."""

import pytest
from mlflow.entities import Run, ViewType
from mlflow_records import EXPERIMENT, Mlflow, make_record, make_report

from studies.tracking.parent_run import close_abandoned
from studies.tracking.runs import StudyRuns
from studies.trials.records import Record

# Raised by MLflow itself.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def _records() -> list[Record]:
    return [make_record(f"fixed-{i:04d}", "complete", reports=[make_report(2)]) for i in range(3)]


def _begin(store: Mlflow, study: str) -> StudyRuns:
    runs = store.runs(study)
    for record in _records():
        runs.update(record)
    return runs


def _resume(store: Mlflow, study: str, said: list[str]) -> StudyRuns:
    runs = store.runs(study, said)
    records = [*_records(), make_record("fixed-0003", "complete", reports=[make_report(2)])]
    for record in records:
        runs.update(record)
    store.check_whole(runs, records)
    return runs


def _all_runs(store: Mlflow, study: str) -> list[Run]:
    """Return the parent and children of a study, also deleted ones."""
    experiment = store.client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None
    return [
        run
        for key in ("study", "child_of")
        for run in store.client.search_runs(
            [experiment.experiment_id],
            f"tags.`hylorada.{key}` = '{study}'",
            run_view_type=ViewType.ALL,
        )
    ]


def _forget(store: Mlflow, run: str) -> None:
    """Remove a run for good, as ``mlflow gc`` does."""
    store.client.delete_run(run)
    store.client._tracking_client.store._hard_delete_run(run)


@pytest.mark.parametrize("children", [0, 1, 3])
def test_parent_deleted_in_the_page_is_restored_with_its_children(
    store: Mlflow, said: list[str], children: int
) -> None:
    study = f"deleted {children}"
    before = _begin(store, study)
    ids = [run.info.run_id for run in store.children(before).values()]
    for run in (before.parent, *ids[:children]):
        store.client.delete_run(run)
    after = _resume(store, study, said)
    assert after.parent == before.parent
    assert {run.info.lifecycle_stage for run in _all_runs(store, study)} == {"active"}
    assert len(_all_runs(store, study)) == 1 + 4
    trials = f" and {children} trial run{'s' * (children > 1)}" if children else ""
    assert said == [f"MLflow: restored the study's run{trials}, which had been deleted"]


def test_child_deleted_in_the_page_is_restored(store: Mlflow, said: list[str]) -> None:
    before = _begin(store, "one gone")
    deleted = store.children(before)["fixed-0001"].info.run_id
    store.client.delete_run(deleted)
    after = _resume(store, "one gone", said)
    assert store.children(after)["fixed-0001"].info.run_id == deleted
    assert len(_all_runs(store, "one gone")) == 1 + 4
    assert said == ["MLflow: restored 1 trial run, which had been deleted"]


def test_parent_that_is_gone_for_good_is_made_once_and_its_children_attached(
    store: Mlflow, said: list[str]
) -> None:
    before = _begin(store, "for good")
    ids = {run.info.run_id for run in store.children(before).values()}
    store.client.delete_run(min(ids))
    _forget(store, before.parent)
    after = _resume(store, "for good", said)
    assert after.parent != before.parent
    assert ids < {run.info.run_id for run in store.children(after).values()}
    assert len(_all_runs(store, "for good")) == 1 + 4
    assert said == ["MLflow: attached 3 trial runs, whose parent run was gone, to the study's run"]
    assert _resume(store, "for good", said).parent == after.parent
    assert len(said) == 1


def test_runs_below_a_deleted_parent_are_closed_and_it_stays_deleted(store: Mlflow) -> None:
    runs = store.runs("dead")
    runs.update(make_record())
    store.client.delete_run(runs.parent)
    parent = store.client.get_run(runs.parent)
    assert close_abandoned(store.client, parent.info.experiment_id, "dead") == 1
    assert store.children(runs)["learnable-0000"].info.status == "KILLED"
    assert store.client.get_run(runs.parent).info.lifecycle_stage == "deleted"


def test_whole_study_is_told_nothing(store: Mlflow, said: list[str]) -> None:
    _begin(store, "untouched")
    _resume(store, "untouched", said)
    assert said == []
