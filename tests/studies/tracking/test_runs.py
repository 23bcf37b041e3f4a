"""The MLflow runs of a study, on a real SQLite store."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow_records import EXPERIMENT, Mlflow, count_writes, make_record, make_report

from hylorada import InputError
from studies.tracking.experiment import open_runs
from studies.tracking.parent_run import close_abandoned
from studies.tracking.run_values import boundary_metrics
from studies.trials.records import State

# Raised by MLflow itself.
pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")


def test_children_are_nested_and_described(store: Mlflow, tmp_path: Path) -> None:
    runs = store.runs("nested")
    runs.update(make_record(reports=[make_report(2)]))
    run = store.children(runs)["learnable-0000"]
    assert run.info.status == "RUNNING"
    assert run.data.params == {
        "arm": "learnable",
        "seed": "5",
        "learning_rate": "0.01",
        "method.num_buckets": "4",
        "method.target_modules": "None",
        "parameters": "77",
    }
    tags = {k: v for k, v in run.data.tags.items() if k.startswith("hylorada")}
    assert tags == {
        "hylorada.trial": "learnable-0000",
        "hylorada.child_of": "nested",
        "hylorada.arm": "learnable",
        "hylorada.stage": "search",
        "hylorada.search": "0",
        "hylorada.seed": "5",
        "hylorada.searched": "learning_rate,num_buckets",
        "hylorada.form": "2",
    }
    path = store.client.download_artifacts(run.info.run_id, "applied.json", str(tmp_path))
    applied = json.loads(Path(path).read_text())
    assert applied == {"max_positions": 16, "learning_rate": 0.01}
    assert store.client.get_run(runs.parent).data.tags["mlflow.runName"] == EXPERIMENT


def test_metrics_are_series_in_optimizer_steps(store: Mlflow) -> None:
    runs = store.runs("series")
    record = make_record()
    for step, nll in ((2, 3.5), (4, 3.25), (8, 3.0)):
        record.reports.append(make_report(step, nll))
        runs.update(record)
    run = store.children(runs)[record.name]
    assert store.series(run, "eval/nll") == [(2, 3.5), (4, 3.25), (8, 3.0)]
    assert store.series(run, "time/trial_seconds") == [(2, 0.5), (4, 1.0), (8, 2.0)]
    outside = [(2, 0.0), (4, 0.0), (8, pytest.approx(1 / 3))]
    assert store.series(run, "train_detail/boundary_outside") == outside


def test_the_loss_of_a_split_is_its_first_chart(store: Mlflow) -> None:
    """MLflow draws one chart for each metric, and sorts sections and charts by name."""
    figures = ("bits_per_byte", "lim_ppl", "nll", "ppl", "ppl_bin_0", "ppl_middle")
    metrics = {f"{split}/{f}": 1.0 for split in ("eval", "test") for f in figures}
    runs = store.runs("sorted")
    runs.update(make_record(reports=[make_report(2, metrics={"train/nll": 2.0, **metrics})]))
    shown = sorted(store.children(runs)["learnable-0000"].data.metrics)
    assert shown[:2] == ["eval/nll", "eval/ppl"]
    sections = list(dict.fromkeys(name.partition("/")[0] for name in shown))
    details = ["eval", "eval_detail", "test", "test_detail", "time", "train", "train_detail"]
    assert sections == details
    assert len(shown) == 2 * len(figures) + 1 + 1 + 3


def test_boundary_metrics_are_in_token_positions() -> None:
    metrics = boundary_metrics(make_report(8))
    assert metrics["train_detail/boundary_shift"] == pytest.approx((8 + 0 + 8) / 3)
    # At step 2 the gaps are 3, 1, 7 and 5.
    assert boundary_metrics(make_report(2))["train_detail/boundary_min_gap"] == 1.0
    assert boundary_metrics(make_report(2, boundaries=(), start_boundaries=())) == {}


@pytest.mark.parametrize(
    ("state", "status"),
    [("complete", "FINISHED"), ("pruned", "KILLED"), ("diverged", "FAILED"), ("failed", "FAILED")],
)
def test_close_sets_status_reason_and_boundaries(
    store: Mlflow, tmp_path: Path, state: State, status: str
) -> None:
    runs = store.runs(f"close {state}")
    record = make_record(reports=[make_report(2), make_report(4)])
    runs.update(record)
    record.state, record.reason, record.restarts = state, "weil", 2
    runs.update(record)
    run = store.children(runs)[record.name]
    assert run.info.status == status
    assert run.data.tags["hylorada.restarts"] == "2"
    # The first report came half a second after the start.
    assert (run.info.start_time, run.info.end_time) == (1_700_000_001_500, 1_700_000_004_000)
    assert (run.data.tags["hylorada.state"], run.data.tags["hylorada.reason"]) == (state, "weil")
    path = store.client.download_artifacts(run.info.run_id, "boundaries.npz", str(tmp_path))
    with np.load(path) as boundaries:
        assert boundaries["steps"].tolist() == [0, 2, 4]
        assert boundaries["positions"].tolist() == [[1, 4, 9], [3, 4, 11], [5, 4, 13]]


def test_reopening_repeats_nothing_and_fills_in_what_is_missing(store: Mlflow) -> None:
    record = make_record(reports=[make_report(2)])
    first = store.runs("reopened")
    for _ in range(3):
        first.update(record)
    record.reports += [make_report(4), make_report(6)]  # a crash came before these were sent
    second = store.runs("reopened")
    second.update(record)
    assert second.parent == first.parent
    run = store.children(second)[record.name]
    assert store.series(run, "eval/nll") == [(2, 3.0), (4, 3.0), (6, 3.0)]


def test_reopening_repeats_no_report_without_a_loss(store: Mlflow) -> None:
    report = make_report(3, metrics={}, done=True, diverged="non-finite gradient at step 3")
    record = make_record(reports=[report])
    for _ in range(2):
        runs = store.runs("diverged")
        runs.update(record)
    run = store.children(runs)[record.name]
    assert store.series(run, "time/trial_seconds") == [(3, 0.75)]


def test_reopening_describes_a_run_that_a_crash_left_bare(
    store: Mlflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = store.runs("bare")
    monkeypatch.setattr(runs, "_describe", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        runs.update(make_record())
    runs = store.runs("bare")
    runs.update(make_record())
    assert store.children(runs)["learnable-0000"].data.params["arm"] == "learnable"


def test_what_has_ended_is_left_as_it_is(store: Mlflow) -> None:
    done, late = (
        make_record("learnable-0000", "complete", reports=[make_report(2)]),
        make_record("learnable-0001"),
    )
    runs = store.runs("ended once")
    for record in (done, late):
        runs.update(record)
    late.reports, late.state = [make_report(2)], "pruned"
    runs = store.runs("ended once")
    writes = count_writes(runs)
    runs.update(done)
    assert writes == []
    runs.update(late)
    store.check_whole(runs, [done, late])


def test_an_earlier_end_gives_way_to_the_true_one(store: Mlflow) -> None:
    record = make_record(reports=[make_report(2)])
    runs = store.runs("killed, then done")
    runs.update(record)
    runs.end("KILLED")
    record.state = "pruned"  # KILLED as well, but MLflow does not know its state yet
    runs = store.runs("killed, then done")
    runs.update(record)
    run = store.children(runs)[record.name]
    assert (run.info.status, run.data.tags["hylorada.state"]) == ("KILLED", "pruned")
    assert [a.path for a in store.client.list_artifacts(run.info.run_id)] == [
        "applied.json",
        "boundaries.npz",
        "boundaries.png",
        "config.json",
    ]


def test_end_kills_what_is_running_and_resuming_runs_it_again(store: Mlflow) -> None:
    running, done = make_record("learnable-0000"), make_record("learnable-0001", "complete")
    runs = store.runs("interrupted")
    for record in (running, done):
        runs.update(record)
    runs.end("KILLED")
    assert {n: r.info.status for n, r in store.children(runs).items()} == {
        "learnable-0000": "KILLED",
        "learnable-0001": "FINISHED",
    }
    assert store.client.get_run(runs.parent).info.status == "KILLED"
    again = store.runs("interrupted")
    again.update(running)
    assert store.client.get_run(again.parent).info.status == "RUNNING"
    assert store.children(again)["learnable-0000"].info.status == "RUNNING"


def test_second_run_of_a_name_is_deleted(store: Mlflow) -> None:
    record = make_record(reports=[make_report(2)])
    runs = store.runs("twice")
    runs.update(record)
    tags = {"mlflow.parentRunId": runs.parent, "mlflow.runName": record.name}
    experiment = store.children(runs)[record.name].info.experiment_id
    store.client.create_run(experiment, tags=tags)  # by a call whose answer was lost
    runs.read()
    record.reports.append(make_report(4))
    runs.update(record)
    store.check_whole(runs, [record])


def test_renamed_runs_stay_those_of_their_trials(store: Mlflow) -> None:
    """Two runs that a user gave the same name are not duplicates."""
    records = [make_record(name=f"learnable-000{n}", reports=[make_report(2)]) for n in range(2)]
    runs = store.runs("renamed")
    for record in records:
        runs.update(record)
    before = {run.info.run_id for run in store.children(runs).values()}
    for run in store.children(runs).values():
        store.client.set_tag(run.info.run_id, "mlflow.runName", "good one")
    runs.read()
    for record in records:
        record.reports.append(make_report(4))
        runs.update(record)
    renamed = store.client.search_runs(
        [run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{runs.parent}'"
    )
    assert {run.info.run_id for run in renamed} == before
    assert [run.data.metrics["eval/nll"] for run in renamed] == [records[0].nll] * 2


def test_reports_of_earlier_versions_have_the_time_of_their_run(store: Mlflow) -> None:
    record = make_record(reports=[make_report(2, time=0)])
    runs = store.runs("without times")
    runs.update(record)
    run = store.children(runs)[record.name]
    (metric,) = store.client.get_metric_history(run.info.run_id, "eval/nll")
    assert metric.timestamp == run.info.start_time > 1_700_000_000_000


def test_a_changed_parameter_is_kept_beside_what_was(store: Mlflow) -> None:
    runs = store.runs("changed")
    runs.update(make_record())
    run = store.children(runs)["learnable-0000"]
    # As if its process had died before the description was complete.
    store.client.delete_tag(run.info.run_id, "config_hash")
    runs = store.runs("changed")
    runs.update(make_record(training={"learning_rate": 0.5}))
    data = store.children(runs)["learnable-0000"].data
    assert (data.params["learning_rate"], data.tags["resumed.learning_rate"]) == ("0.01", "0.5")


def test_whole_configuration_is_kept_and_told_apart(store: Mlflow, tmp_path: Path) -> None:
    names = [f"layer_{i}" for i in range(1000)]  # some 9,000 characters
    runs = store.runs("configurations")
    for i, last in enumerate(("a", "b", "b")):
        runs.update(
            make_record(f"fixed-{i:04d}", adapter={"target_modules": [*names, last]}, seed=i)
        )
    children = store.children(runs)
    shown = {r.data.params["method.target_modules"] for r in children.values()}
    assert len(shown) == 1  # all are cut at the same place
    hashes = [children[f"fixed-{i:04d}"].data.tags["config_hash"] for i in range(3)]
    assert hashes[0] != hashes[1] == hashes[2]
    path = store.client.download_artifacts(
        children["fixed-0001"].info.run_id, "config.json", str(tmp_path)
    )
    config = json.loads(Path(path).read_text())
    assert config["adapter"] == {"target_modules": [*names, "b"]}
    assert (config["seed"], config["training"]) == (1, {"learning_rate": 0.01})


def test_abandoned_runs_are_closed_and_go_on(store: Mlflow) -> None:
    running, done = make_record("learnable-0000"), make_record("learnable-0001", "complete")
    runs = store.runs("abandoned")
    for record in (running, done):
        runs.update(record)
    experiment = store.client.get_run(runs.parent).info.experiment_id
    assert close_abandoned(store.client, experiment, "abandoned") == 2
    assert close_abandoned(store.client, experiment, "abandoned") == 0
    children = store.children(runs)
    for run in (children["learnable-0000"], store.client.get_run(runs.parent)):
        assert (run.info.status, run.data.tags["closed_by"]) == ("KILLED", "reconcile")
    assert "closed_by" not in children["learnable-0001"].data.tags
    again = store.runs("abandoned")
    again.update(running)
    for run in (store.children(again)["learnable-0000"], store.client.get_run(runs.parent)):
        assert run.info.status == "RUNNING"
        assert "closed_by" not in run.data.tags


def test_studies_of_one_name_keep_their_own_parents(store: Mlflow) -> None:
    one, two = store.runs("one"), store.runs("two")
    one.update(make_record())
    two.update(make_record())
    assert one.parent != two.parent
    assert store.children(one).keys() == store.children(two).keys() == {"learnable-0000"}


def test_values_that_are_not_finite_are_left_out_and_named(store: Mlflow) -> None:
    runs = store.runs("not finite")
    metrics = {"eval/nll": math.nan, "eval/ppl": math.inf, "train/nll": 2.0}
    runs.update(make_record(state="diverged", reports=[make_report(2, metrics=metrics)]))
    data = store.children(runs)["learnable-0000"].data
    assert {"eval/nll", "eval/ppl"}.isdisjoint(data.metrics)
    assert data.metrics["train/nll"] == 2.0
    assert data.tags["hylorada.not_finite"] == "eval/nll = nan, eval/ppl = inf"


def test_infinite_test_ppl_is_left_out_and_named_until_it_is_finite(store: Mlflow) -> None:
    """SQLite would store 1.797e308 for it."""
    runs = store.runs("infinite")
    runs.finish(
        {}, {"test/ppl_a": math.inf, "test/change_a_vs_b_percent": math.nan, "test/ppl_b": 7.5}, 1
    )
    data = store.client.get_run(runs.parent).data
    assert data.metrics == {"test/ppl_b": 7.5}
    assert data.tags["hylorada.not_finite"] == "test/ppl_a = inf, test/change_a_vs_b_percent = nan"
    runs.finish({}, {"test/ppl_a": 8.5, "test/ppl_b": 7.5}, 2)
    data = store.client.get_run(runs.parent).data
    assert data.metrics == {"test/ppl_a": 8.5, "test/ppl_b": 7.5}
    assert "hylorada.not_finite" not in data.tags


def test_a_thousand_boundaries_are_one_picture_and_three_charts(store: Mlflow) -> None:
    many = tuple(float(i) for i in range(1, 1400))
    boundaries: dict[str, Any] = {
        "boundaries": many,
        "start_boundaries": many,
        "applied": {"max_positions": 1400},
    }
    runs = store.runs("many")
    runs.update(make_record(state="complete", reports=[make_report(2, **boundaries)]))
    run = store.children(runs)["learnable-0000"]
    assert sum("boundar" in name for name in run.data.metrics) == 3
    files = [file.path for file in store.client.list_artifacts(run.info.run_id)]
    assert [file for file in files if file.endswith(".png")] == ["boundaries.png"]


def test_long_values_are_cut_visibly(store: Mlflow) -> None:
    runs = store.runs("long")
    names = [f"layer_{i}" for i in range(2000)]
    record = make_record(adapter={"target_modules": names}, params=dict.fromkeys(names, 1))
    runs.update(record)
    data = store.children(runs)[record.name].data
    for shown in (data.params["method.target_modules"], data.tags["hylorada.searched"]):
        assert len(shown) == 500
        assert shown.endswith("…")


def test_describe_keeps_what_has_changed_beside_what_was(store: Mlflow) -> None:
    store.runs("described").describe({}, {"trials": 2, "model": "tiny"})
    runs = store.runs("described")
    runs.describe({}, {"trials": 3, "model": "tiny", "seeds": 5})
    data = store.client.get_run(runs.parent).data
    assert data.params == {"trials": "2", "model": "tiny", "seeds": "5"}
    assert data.tags["resumed.trials"] == "3"
    assert "resumed.model" not in data.tags


def test_finish_logs_files_and_figures_and_ends_the_parent(store: Mlflow, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>done")
    losses = tmp_path / "fixed-0001-confirm-00" / "test_block_nll.npy"
    losses.parent.mkdir()
    losses.write_bytes(b"losses")
    runs = store.runs("ended")
    files = {
        tmp_path / "report.html": "",
        tmp_path / "missing.json": "",
        losses: f"block_nll/{losses.parent.name}",
    }
    for _ in range(2):
        runs.finish(files, {"test/ppl_été 2": 12.5}, 1_700_000_000_000)
    history = store.client.get_metric_history(runs.parent, "test/ppl_été 2")
    assert [(m.timestamp, m.value) for m in history] == [(1_700_000_000_000, 12.5)]
    run = store.client.get_run(runs.parent)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"test/ppl_été 2": 12.5})
    assert {a.path for a in store.client.list_artifacts(runs.parent)} == {
        "report.html",
        "block_nll",
    }
    artifacts = store.client.list_artifacts(runs.parent, "block_nll/fixed-0001-confirm-00")
    assert [a.path for a in artifacts] == ["block_nll/fixed-0001-confirm-00/test_block_nll.npy"]


def test_deleted_experiment_is_refused(store: Mlflow) -> None:
    client = store.client
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(InputError, match="experiment 'gone' is deleted; restore it"):
        open_runs(store.uri, "gone", store.storage, "x", print)
