"""A real MLflow server that hangs, dies, loses answers, or puts artifacts on its own disk."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_records import EXPERIMENT, Mlflow, make_record, make_report, parent_of
from mlflow_server import Server, Wire, timed, wait_for_line
from study_runs import wait_until

from hylorada import InputError
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.checks import check_server
from studies.tracking.experiment import open_runs
from studies.trials.records import Record

pytestmark = [pytest.mark.timeout(240), pytest.mark.faults, pytest.mark.usefixtures("short_waits")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that serves artifacts, but locates new experiments where only it can write."""
    folder = tmp_path_factory.mktemp("server")
    started = Server(
        folder,
        "--artifacts-destination",
        str(folder / "served"),
        "--default-artifact-root",
        str(folder / "plain"),
    )
    Mlflow(started.uri).client.create_experiment(
        EXPERIMENT, artifact_location="mlflow-artifacts:/study"
    )
    yield started
    started.kill()


@pytest.fixture(autouse=True)
def _awake(server: Server) -> Iterator[None]:
    """Wake or restart the server after each test."""
    yield
    server.wake()
    if not server.lives():
        server.start()


def _report(tracker: BackgroundTracker, records: list[Record], *steps: int) -> None:
    for step in steps:
        for record in records:
            record.reports.append(make_report(step))
            tracker.update(record)


def _finish(tracker: BackgroundTracker, records: list[Record], patience: float = 60) -> None:
    for record in records:
        record.state = "complete"
        tracker.update(record)
    tracker.finish(records, {}, {}, patience)


def _wait_sent(tracker: BackgroundTracker) -> None:
    wait_until(lambda: tracker.pending == 0, 60)


def test_server_that_hangs_loses_and_doubles_nothing(server: Server, said: list[str]) -> None:
    store = Mlflow(server.uri)
    tracker = store.tracker("hangs", said)
    records = [make_record(f"fixed-{i:04d}") for i in range(3)]
    _report(tracker, records[:2], 2)
    _wait_sent(tracker)
    server.hang()
    assert timed(lambda: _report(tracker, records, 4, 6)) < 1
    wait_for_line(said, "does not respond (ReadTimeoutError); training continues, 3 runs waiting")
    server.wake()
    wait_for_line(said, "responds again; 3 runs to send")
    _finish(tracker, records)
    store.check_whole(tracker, records)
    assert store.client.get_run(parent_of(tracker)).info.status == "FINISHED"


def test_server_that_dies_is_sent_the_rest_when_it_is_back(server: Server, said: list[str]) -> None:
    store = Mlflow(server.uri)
    tracker = store.tracker("dies", said)
    records = [make_record(f"fixed-{i:04d}") for i in range(2)]
    _report(tracker, records, 2)
    _wait_sent(tracker)
    server.kill()
    _report(tracker, records, 4)
    records.append(make_record("fixed-0002"))
    _report(tracker, records, 6)
    wait_for_line(said, "; training continues")
    # A new connection was rejected, or an old one broke.
    assert re.search(
        r"does not respond \((NewConnectionError|ProtocolError)\); training continues", said[0]
    )
    server.start()
    _finish(tracker, records)
    store.check_whole(tracker, records)


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    passes = Wire(server.port)
    yield passes
    passes.close()


@pytest.mark.parametrize("path", ["runs/create", "runs/log-batch", "runs/update", "artifacts/"])
def test_lost_answer_gives_nothing_twice(
    server: Server, wire: Wire, said: list[str], path: str
) -> None:
    tracker = Mlflow(wire.uri).tracker(f"lost {path}", said)
    wire.lose(path, 2)
    records = [make_record(f"fixed-{i:04d}") for i in range(2)]
    _report(tracker, records, 2, 4)
    _finish(tracker, records)
    assert wire.lost == 2
    Mlflow(server.uri).check_whole(tracker, records)
    assert sum("does not respond (ProtocolError); training continues" in line for line in said) in (
        1,
        2,
    )


def test_server_away_at_the_end_is_sent_the_rest_by_the_next_run(
    server: Server, said: list[str]
) -> None:
    store = Mlflow(server.uri)
    tracker = store.tracker("away at the end", said)
    records = [make_record(f"fixed-{i:04d}") for i in range(2)]
    _report(tracker, records, 2)
    _wait_sent(tracker)
    server.hang()
    _report(tracker, records, 4)
    assert timed(lambda: _finish(tracker, records, patience=3)) < 6
    server.wake()
    assert said[-2] == f"waiting up to 3 s for MLflow at {server.uri}; 3 runs waiting"
    assert said[-1] == (
        "3 runs not in MLflow yet; to send the rest, run the same command once "
        f"{server.uri} responds"
    )
    again = store.tracker("away at the end", said)
    again.catch_up(records)
    again.finish(records, {}, {})
    store.check_whole(again, records)
    assert store.client.get_run(parent_of(again)).info.status == "FINISHED"


def test_abort_does_not_hang_with_its_server(server: Server, said: list[str]) -> None:
    store = Mlflow(server.uri)
    tracker = store.tracker("aborted", said)
    records = [make_record("fixed-0000")]
    _report(tracker, records, 2)
    _wait_sent(tracker)
    server.hang()
    _report(tracker, records, 4)
    assert timed(lambda: tracker.abort(records, "KILLED")) < 12
    server.wake()
    assert "2 runs not in MLflow yet" in said[-1]
    again = store.tracker("aborted", said)
    _finish(again, records)
    store.check_whole(again, records)


def test_server_that_is_away_at_the_start_is_refused(said: list[str]) -> None:
    with pytest.raises(
        InputError, match=r"MLflow at http://127.0.0.1:9 can't open .* NewConnectionError"
    ):
        Mlflow("http://127.0.0.1:9").tracker("x", said)


def test_artifacts_on_the_servers_own_disk_are_refused(server: Server, tmp_path: Path) -> None:
    client, there = Mlflow(server.uri).client, tmp_path / "there"
    for name, location in (("plain", str(there)), ("file", there.as_uri())):
        experiment = client.create_experiment(name, artifact_location=location)
        (problem,) = check_server(server.uri, name)
        assert problem.startswith(
            f"tracking_uri {server.uri!r}: experiment {name!r} keeps artifacts at '"
        )
        assert "start the server with --artifacts-destination PATH" in problem
        with pytest.raises(InputError, match="keeps artifacts at"):
            open_runs(server.uri, name, tmp_path, "x", print)
        assert client.search_runs([experiment]) == []
    assert not there.exists()


def test_server_with_a_plain_artifact_root_is_refused_for_a_new_study(server: Server) -> None:
    (problem,) = check_server(server.uri, "new")
    assert f"experiment 'new' keeps artifacts at '{server.folder / 'plain'}" in problem
    assert Mlflow(server.uri).client.get_experiment_by_name("new") is None
    assert check_server(server.uri, EXPERIMENT) == []
    assert not (server.folder / "plain").exists()


def test_artifacts_are_tried_out_before_anything_is_trained(server: Server) -> None:
    client = Mlflow(server.uri).client
    client.create_experiment("elsewhere", artifact_location="s3://no-such-bucket/x")
    with pytest.raises(
        InputError, match=r"experiment 'elsewhere' of .*: can't write artifacts to s3://"
    ):
        open_runs(server.uri, "elsewhere", Path(), "x", print)
    runs = open_runs(server.uri, EXPERIMENT, Path(), "probed", print)
    assert client.list_artifacts(runs.parent) == []
    assert str(client.get_run(runs.parent).info.artifact_uri).startswith("mlflow-artifacts:/")
    assert list((server.folder / "served").rglob("probe-*")) == []
