"""Whole studies on a real MLflow server behind a login, TLS or a gateway, and a copied one."""

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from gateway import Gateway, basic, write_certificate
from mlflow_records import Mlflow
from mlflow_server import Server
from study_runs import SMALL, Done, FinishedStudy, read_trials, run_cli

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = Server(tmp_path_factory.mktemp("server"))
    yield started
    started.kill()


def _run(name: str, model: str, storage: Path, *more: str) -> Done:
    small = (
        "--trials=1",
        "--seeds=2",
        *(option for option in SMALL if not option.startswith(("--trials", "--seeds"))),
    )
    return run_cli(
        "run",
        "learnable_bucketing",
        f"--name={name}",
        f"--model={model}",
        f"--storage={storage}",
        *small,
        *more,
    )


def _check_whole(server: Server, name: str, storage: Path) -> None:
    """Check that the server holds each trial once and the report, and that no database is local."""
    client = Mlflow(server.uri).client
    experiment = client.get_experiment_by_name(name)
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    trials = [trial["name"] for trial in read_trials(storage / "studies" / name)]
    assert sorted(run.info.run_name for run in runs) == sorted([name, *trials])
    (parent,) = [run for run in runs if run.info.run_name == name]
    assert parent.info.status == "FINISHED"
    assert "report.html" in [file.path for file in client.list_artifacts(parent.info.run_id)]
    assert not (storage / "mlflow.db").exists()


def _check_secret(storage: Path, done: Done, secret: str) -> None:
    """Check that neither the study's files nor the printed lines contain a secret."""
    assert secret not in done.out + done.err
    assert [
        p for p in storage.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()
    ] == []


def test_study_behind_a_login(
    server: Server, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = Gateway(server.port, authorization=basic("ada", "geheim-1"))
    refused = _run("login", toy_model, tmp_path / "refused", f"--tracking-uri={gateway.uri}")
    assert refused.code == 2
    assert f"tracking_uri {gateway.uri!r} rejects the request: 401: You are not" in refused.err
    assert "You are not authenticated. Ask the admin.; " in refused.err
    assert not (tmp_path / "refused").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gateway.uri)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "geheim-1")
    done = _run("login", toy_model, tmp_path / "runs")
    assert done.code == 0, done.err
    assert f"hylorada: note: MLflow at {gateway.uri}, from MLFLOW_TRACKING_URI\n" in done.err
    _check_whole(server, "login", tmp_path / "runs")
    _check_secret(tmp_path / "runs", done, "geheim-1")
    gateway.close()


def test_study_behind_a_gateway_that_passes_on_the_api_alone_with_a_login_in_the_address(
    server: Server, toy_model: str, tmp_path: Path
) -> None:
    gateway = Gateway(server.port, authorization=basic("ada", "geheim-2"), only="/api/")
    done = _run(
        "gateway", toy_model, tmp_path, f"--tracking-uri=http://ada:geheim-2@{gateway.host}"
    )
    assert done.code == 0, done.err
    _check_whole(server, "gateway", tmp_path)
    _check_secret(tmp_path, done, "geheim-2")
    results = json.loads((tmp_path / "studies" / "gateway" / "results.json").read_text())
    assert f"--tracking-uri=http://***@{gateway.host}" in results["provenance"]["command"]
    assert not [path for path in gateway.refused if path == "/health"]
    gateway.close()


def test_study_behind_a_certificate_of_its_own(
    server: Server, toy_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "server.pem")
    gateway = Gateway(server.port, certificate=certificate)
    refused = _run("tls", toy_model, tmp_path / "runs", f"--tracking-uri={gateway.uri}")
    assert refused.code == 2
    assert (
        "can't be trusted: certificate verify failed: self-signed certificate; MLFLOW_TRACKING_SERV"
        in refused.err
    )
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    done = _run("tls", toy_model, tmp_path / "runs", f"--tracking-uri={gateway.uri}")
    assert done.code == 0, done.err
    _check_whole(server, "tls", tmp_path / "runs")
    gateway.close()


def test_extending_a_copied_study_writes_nothing_into_the_original(
    finished: FinishedStudy, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(finished.storage, tmp_path / "copy"))
    before = _contents(finished.storage)
    done = run_cli("extend", finished.name, "--seeds=3", f"--storage={copy}")
    assert done.code == 0, done.err
    assert _contents(finished.storage) == before
    with closing(sqlite3.connect(copy / "mlflow.db")) as database:
        places = database.execute(
            "SELECT artifact_location FROM experiments UNION SELECT artifact_uri FROM runs"
        )
        assert {place.startswith(f"{copy.as_uri()}/artifacts/") for (place,) in places} == {True}
    (report,) = copy.glob("artifacts/*/*/artifacts/report.html")
    assert report.read_text() == (copy / "studies" / finished.name / "report.html").read_text()


def _contents(folder: Path) -> dict[str, str]:
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() if p.is_file() else ""
        for p in folder.rglob("*")
    }
