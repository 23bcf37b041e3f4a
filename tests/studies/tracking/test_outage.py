"""Whole studies through the command line whose MLflow server disappears halfway."""

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow_records import STATUS
from mlflow_server import Server
from study_runs import SMALL, Command, read_trials, run_cli, wait_until

from studies.tracking.run_values import metric_name
from studies.trials.records import read_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _check_equal(uri: str, folder: Path) -> None:
    """Check that MLflow holds each trial as one run with its end, and each metric once."""
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("learnable_bucketing")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], max_results=1000)
    names = sorted(r.info.run_name for r in runs)
    assert names == sorted(["learnable_bucketing", *(t["name"] for t in read_trials(folder))])
    for run in runs:
        if run.info.run_name == "learnable_bucketing":
            assert run.info.status == "FINISHED"
            continue
        record = read_record(folder / "trials" / run.info.run_name / "trial.json")
        assert run.info.status == STATUS[record.state]
        for metric in record.reports[-1].metrics:
            kept = [
                (m.step, m.value, m.timestamp)
                for m in client.get_metric_history(run.info.run_id, metric_name(metric))
            ]
            assert kept == [
                (r.step, r.metrics[metric], r.time) for r in record.reports if metric in r.metrics
            ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    started = Server(tmp_path / "server")
    yield started
    started.kill()


def _start(model: str, storage: Path, uri: str) -> subprocess.Popen[str]:
    """Start a study, and return once three of its trials have reported."""
    process = Command(*_command(model, storage, uri))
    reports = storage / "studies" / "learnable_bucketing" / "trials"
    wait_until(
        lambda: len(list(reports.glob("*/reports.jsonl"))) >= 3 or process.poll() is not None, 200
    )
    return process


def _command(model: str, storage: Path, uri: str) -> list[str]:
    options = [f"--model={model}", f"--storage={storage}", f"--tracking-uri={uri}"]
    return ["run", "learnable_bucketing", "--json", *options, *SMALL]


def test_study_outlives_a_minute_of_its_server(
    server: Server, toy_model: str, tmp_path: Path
) -> None:
    process = _start(toy_model, tmp_path, server.uri)
    folder = tmp_path / "studies" / "learnable_bucketing"
    before = len(read_trials(folder))
    server.hang()
    time.sleep(60)
    during = len(read_trials(folder))
    server.wake()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert json.loads(out)["arms"]  # MLflow itself prints nothing to stdout
    assert during > before
    assert f"MLflow at {server.uri} does not respond (" in err
    assert "; training continues, " in err
    assert f"MLflow at {server.uri} responds again; " in err
    assert "not in MLflow yet" not in err
    _check_equal(server.uri, folder)


def test_study_ends_without_its_server_and_the_same_command_sends_the_rest(
    server: Server, toy_model: str, tmp_path: Path
) -> None:
    process = _start(toy_model, tmp_path, server.uri)
    folder = tmp_path / "studies" / "learnable_bucketing"
    server.kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert (
        f"not in MLflow yet; to send the rest, run the same command once {server.uri} responds"
        in err
    )
    files = {p: p.stat().st_mtime_ns for p in folder.glob("trials/*/*")}
    server.start()
    again = run_cli(*_command(toy_model, tmp_path, server.uri))
    assert again.code == 0, again.err
    assert {p: p.stat().st_mtime_ns for p in folder.glob("trials/*/*")} == files
    _check_equal(server.uri, folder)
