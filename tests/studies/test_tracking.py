"""MLflow as a study leaves it, on a real SQLite store; and the addresses that are refused."""

import functools
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from hylorada import InputError
from studies._job import Report
from studies._store import Record, State
from studies._tracking import Tracker, boundary_metrics, check_tracking, default_uri, unwritable

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")  # MLflow's own
EXPERIMENT = "étude no 1"


@dataclass(frozen=True)
class _Mlflow:
    """One store for all tests of this file; each study has a parent run of its own."""

    folder: Path
    uri: str

    def tracker(self, study: str) -> Tracker:
        return Tracker(self.uri, EXPERIMENT, artifacts=self.folder / "artifacts", study_id=study)

    @functools.cached_property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def children(self, tracker: Tracker) -> dict[str, Run]:
        experiment = self.client.get_experiment_by_name(EXPERIMENT)
        assert experiment is not None
        runs = self.client.search_runs([experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{tracker.parent}'")
        assert len({r.info.run_name for r in runs}) == len(runs)
        return {r.info.run_name: r for r in runs}

    def series(self, run: Run, metric: str) -> list[tuple[int, float]]:
        return [(m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, metric)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Mlflow]:
    folder = tmp_path_factory.mktemp("ml flow é")
    opened = _Mlflow(folder, default_uri(folder))
    yield opened
    opened.client._tracking_client.store.engine.dispose()
    assert mlflow.active_run() is None


def _record(name: str = "learnable-0000", state: State = "running", **changes: Any) -> Record:
    return Record(
        **{
            "name": name,
            "arm": "learnable",
            "stage": "search",
            "number": 0,
            "params": {"learning_rate": 0.01, "num_buckets": 4},
            "adapter": {"num_buckets": 4, "target_modules": None},
            "training": {"learning_rate": 0.01},
            "seed": 5,
            "data_seed": 6,
            "state": state,
            **changes,
        }
    )


def _report(step: int, nll: float = 3.0, **changes: Any) -> Report:
    boundaries = (1.0 + step, 4.0, 9.0 + step)
    return Report(
        **{
            "step": step,
            "metrics": {"train/nll": nll + 1, "eval/nll": nll},
            "boundaries": boundaries,
            "start_boundaries": (1.0, 4.0, 9.0),
            "seconds": step / 4,
            "parameters": 77,
            "applied": {"max_positions": 16, "learning_rate": 0.01},
            **changes,
        }
    )


def test_children_are_nested_and_described(store: _Mlflow) -> None:
    tracker = store.tracker("nested")
    record = _record()
    tracker.open(record)
    tracker.report(record.name, _report(2))
    run = store.children(tracker)["learnable-0000"]
    assert run.info.status == "RUNNING"
    assert run.data.params == {
        "num_buckets": "4",
        "target_modules": "None",
        "learning_rate": "0.01",
        "arm": "learnable",
        "seed": "5",
        "parameters": "77",
    }
    tags = {k: v for k, v in run.data.tags.items() if k.startswith(("hylorada", "applied"))}
    assert tags == {
        "hylorada.arm": "learnable",
        "hylorada.stage": "search",
        "hylorada.searched": "learning_rate,num_buckets",
        "applied.max_positions": "16",
        "applied.learning_rate": "0.01",
    }
    assert store.client.get_run(tracker.parent).data.tags["mlflow.runName"] == EXPERIMENT


def test_metrics_and_boundaries_are_series_in_optimizer_steps(store: _Mlflow) -> None:
    tracker = store.tracker("series")
    record = _record()
    tracker.open(record)
    for step, nll in ((2, 3.5), (4, 3.25), (8, 3.0)):
        tracker.report(record.name, _report(step, nll))
    run = store.children(tracker)[record.name]
    assert store.series(run, "eval/nll") == [(2, 3.5), (4, 3.25), (8, 3.0)]
    assert store.series(run, "time/trial_seconds") == [(2, 0.5), (4, 1.0), (8, 2.0)]
    assert store.series(run, "boundary/001") == [(0, 1.0), (2, 3.0), (4, 5.0), (8, 9.0)]
    assert store.series(run, "boundary/002") == [(step, 4.0) for step in (0, 2, 4, 8)]
    assert store.series(run, "boundary/outside") == [(2, 0.0), (4, 0.0), (8, pytest.approx(1 / 3))]


def test_boundary_metrics_are_in_token_positions() -> None:
    found = boundary_metrics(_report(8))
    assert {k: found[k] for k in ("boundary/001", "boundary/002", "boundary/003")} == {
        "boundary/001": 9.0,
        "boundary/002": 4.0,
        "boundary/003": 17.0,
    }
    assert found["boundary/shift"] == pytest.approx((8 + 0 + 8) / 3)
    assert boundary_metrics(_report(2))["boundary/min_gap"] == 1.0  # of the gaps 3, 1, 7 and 5
    assert boundary_metrics(_report(2, boundaries=(), start_boundaries=())) == {}


@pytest.mark.parametrize(
    ("state", "status"),
    [("complete", "FINISHED"), ("pruned", "KILLED"), ("diverged", "FAILED"), ("failed", "FAILED")],
)
def test_close_sets_status_reason_and_boundaries(store: _Mlflow, tmp_path: Path, state: State, status: str) -> None:
    tracker = store.tracker(f"close {state}")
    record = _record(reports=[_report(2), _report(4)])
    tracker.open(record)
    record.state, record.reason = state, "weil"
    tracker.close(record)
    run = store.children(tracker)[record.name]
    assert run.info.status == status
    assert (run.data.tags["hylorada.state"], run.data.tags["hylorada.reason"]) == (state, "weil")
    path = store.client.download_artifacts(run.info.run_id, "boundaries.npz", str(tmp_path))
    with np.load(path) as found:
        assert found["steps"].tolist() == [0, 2, 4]
        assert found["positions"].tolist() == [[1, 4, 9], [3, 4, 11], [5, 4, 13]]


def test_reopening_repeats_nothing_and_fills_in_what_is_missing(store: _Mlflow) -> None:
    record = _record(reports=[_report(2)])
    first = store.tracker("reopened")
    first.open(record)
    for _ in range(2):
        first.open(record)
        first.report(record.name, _report(2))
    record.reports += [_report(4), _report(6)]  # a crash kept these from MLflow
    second = store.tracker("reopened")
    second.open(record)
    assert second.parent == first.parent
    run = store.children(second)[record.name]
    assert store.series(run, "eval/nll") == [(2, 3.0), (4, 3.0), (6, 3.0)]
    assert [step for step, _ in store.series(run, "boundary/001")] == [0, 2, 4, 6]


def test_reopening_repeats_no_report_without_a_loss(store: _Mlflow) -> None:
    report = _report(3, metrics={}, done=True, diverged="non-finite gradient at step 3")
    record = _record(reports=[report])
    for _ in range(2):
        tracker = store.tracker("diverged")
        tracker.open(record)
    run = store.children(tracker)[record.name]
    assert store.series(run, "time/trial_seconds") == [(3, 0.75)]
    assert [step for step, _ in store.series(run, "boundary/001")] == [0, 3]


def test_reopening_describes_a_run_that_a_crash_left_bare(store: _Mlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = store.tracker("bare")
    monkeypatch.setattr(tracker, "_describe", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError, match="division"):
        tracker.open(_record())
    tracker = store.tracker("bare")
    tracker.open(_record())
    assert store.children(tracker)["learnable-0000"].data.params["arm"] == "learnable"


def test_catch_up_ends_what_the_store_has_ended(store: _Mlflow) -> None:
    records = [_record(f"learnable-{i:04d}", reports=[_report(2)]) for i in range(3)]
    tracker = store.tracker("caught up")
    for record in records[:2]:
        tracker.open(record)
    records[0].reports.append(_report(4))
    for record in (records[0], records[2]):
        record.state = "complete"
    tracker = store.tracker("caught up")
    tracker.catch_up(records)
    runs = store.children(tracker)
    assert [runs[r.name].info.status for r in records] == ["FINISHED", "RUNNING", "FINISHED"]
    assert [step for step, _ in store.series(runs[records[0].name], "eval/nll")] == [2, 4]
    ended = runs[records[0].name].info.end_time
    again = store.tracker("caught up")
    again.catch_up(records)
    assert store.children(again)[records[0].name].info.end_time == ended


def test_abort_kills_what_is_running_and_resuming_runs_it_again(store: _Mlflow) -> None:
    running, done = _record("learnable-0000"), _record("learnable-0001", "complete")
    tracker = store.tracker("interrupted")
    for record in (running, done):
        tracker.open(record)
    tracker.close(done)
    tracker.abort([running, done], "KILLED")
    assert {n: r.info.status for n, r in store.children(tracker).items()} == {
        "learnable-0000": "KILLED",
        "learnable-0001": "FINISHED",
    }
    assert store.client.get_run(tracker.parent).info.status == "KILLED"
    again = store.tracker("interrupted")
    again.open(running)
    assert store.client.get_run(again.parent).info.status == "RUNNING"
    assert store.children(again)["learnable-0000"].info.status == "RUNNING"


def test_studies_of_one_name_keep_their_own_parents(store: _Mlflow) -> None:
    one, two = store.tracker("one"), store.tracker("two")
    one.open(_record())
    two.open(_record())
    assert one.parent != two.parent
    assert store.children(one).keys() == store.children(two).keys() == {"learnable-0000"}


def test_values_that_are_not_finite_are_left_out(store: _Mlflow) -> None:
    tracker = store.tracker("not finite")
    record = _record()
    tracker.open(record)
    metrics = {"eval/nll": math.nan, "eval/ppl": math.inf, "train/nll": 2.0}
    tracker.report(record.name, _report(2, metrics=metrics))
    found = store.children(tracker)[record.name].data.metrics
    assert {"eval/nll", "eval/ppl"}.isdisjoint(found)
    assert found["train/nll"] == 2.0


def test_more_boundaries_than_mlflow_takes_at_once(store: _Mlflow) -> None:
    many = tuple(float(i) for i in range(1, 1400))
    tracker = store.tracker("many")
    record = _record(reports=[_report(2, boundaries=many, start_boundaries=many, applied={"max_positions": 1400})])
    tracker.open(record)
    run = store.children(tracker)[record.name]
    assert store.series(run, "boundary/1399") == [(0, 1399.0), (2, 1399.0)]
    assert sum(k.startswith("boundary/") for k in run.data.metrics) == 1399 + 3


def test_long_values_are_cut_visibly(store: _Mlflow) -> None:
    tracker = store.tracker("long")
    names = [f"layer_{i}" for i in range(2000)]
    record = _record(adapter={"target_modules": names}, params=dict.fromkeys(names, 1))
    tracker.open(record)
    data = store.children(tracker)[record.name].data
    for shown in (data.params["target_modules"], data.tags["hylorada.searched"]):
        assert len(shown) == 500
        assert shown.endswith("…")


def test_describe_keeps_what_has_changed_beside_what_was(store: _Mlflow) -> None:
    store.tracker("described").describe({"commit": "a"}, {"trials": 2, "model": "tiny"})
    tracker = store.tracker("described")
    tracker.describe({"commit": "b"}, {"trials": 3, "model": "tiny", "seeds": 5})
    data = store.client.get_run(tracker.parent).data
    assert data.params == {"trials": "2", "model": "tiny", "seeds": "5"}
    assert (data.tags["commit"], data.tags["resumed.trials"]) == ("b", "3")
    assert "resumed.model" not in data.tags


def test_finish_logs_files_and_figures_and_ends_the_parent(store: _Mlflow, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>done")
    losses = tmp_path / "fixed-0001-confirm-00" / "test_block_nll.npy"
    losses.parent.mkdir()
    losses.write_bytes(b"losses")
    tracker = store.tracker("ended")
    tracker.finish([tmp_path / "report.html", tmp_path / "missing.json"], [losses], {"test/ppl_été 2": 12.5})
    run = store.client.get_run(tracker.parent)
    assert (run.info.status, run.data.metrics) == ("FINISHED", {"test/ppl_été 2": 12.5})
    assert {a.path for a in store.client.list_artifacts(tracker.parent)} == {"report.html", "block_nll"}
    kept = store.client.list_artifacts(tracker.parent, "block_nll/fixed-0001-confirm-00")
    assert [a.path for a in kept] == ["block_nll/fixed-0001-confirm-00/test_block_nll.npy"]


def test_deleted_experiment_is_refused(store: _Mlflow) -> None:
    client = store.client
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(InputError, match="experiment 'gone' is deleted; restore it"):
        Tracker(store.uri, "gone", artifacts=None, study_id="x")


# --- addresses -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uri", ["./mlruns", "mlruns", "/tmp/mlruns", "file:///tmp/mlruns", "file:mlruns", ""])
def test_folders_are_refused_with_the_way_out(uri: str) -> None:
    (problem,) = check_tracking(uri)
    assert problem.startswith(f"tracking_uri {uri!r}: MLflow no longer serves folders of files")
    assert "sqlite:///PATH" in problem
    assert "mlflow migrate-filestore" in problem


@pytest.mark.parametrize(
    "uri", ["http://127.0.0.1:9", "https://127.0.0.1:9/x", "http://", "http://no.such.host.invalid"]
)
def test_unreachable_server_is_refused_within_seconds(uri: str) -> None:
    began = time.monotonic()
    (problem,) = check_tracking(uri)
    assert problem.startswith(f"tracking_uri {uri!r} can't be reached: ")
    assert time.monotonic() - began < 8


@pytest.fixture
def serve() -> Iterator[Callable[[int], str]]:
    """A server that answers every request with one status."""
    servers: list[HTTPServer] = []

    def start(status: int) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/health" else 404)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_healthy_server_is_accepted(serve: Callable[[int], str]) -> None:
    assert check_tracking(serve(200) + "/") == []


def test_server_that_is_no_mlflow_is_refused(serve: Callable[[int], str]) -> None:
    uri = serve(404)
    assert check_tracking(uri) == [f"tracking_uri {uri!r} answers 404 at /health"]


def test_databases_are_accepted(store: _Mlflow, tmp_path: Path) -> None:
    for uri in (store.uri, f"sqlite:///{tmp_path / 'new.db'}", "sqlite:///new.db", "postgresql://u@h/db"):
        assert check_tracking(uri) == []
    assert list(tmp_path.iterdir()) == []


def test_unusable_sqlite_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a database")
    for uri, message in (
        (f"sqlite:///{tmp_path}", "is a folder; name a file in it"),
        (f"sqlite:///{tmp_path / 'text'}", "is no SQLite database"),
        (f"sqlite:///{tmp_path / 'text' / 'x.db'}", f"can't be written: {tmp_path / 'text'} is a file"),
        (f"sqlite:///{tmp_path / 'new' / 'x.db'}", f"no folder {tmp_path / 'new'}"),
        ("sqlite:////proc/x.db", "can't be written: /proc takes no new file"),
        ("sqlite://", "names no file"),
        ("s3://bucket", "is of no known kind"),
    ):
        (problem,) = check_tracking(uri)
        assert message in problem
    assert [p.name for p in tmp_path.iterdir()] == ["text"]


def test_unwritable_leaves_no_trace(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "a" / "b") is None
    assert unwritable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
