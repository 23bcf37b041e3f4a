"""The thread that calls a tracker, here one that writes JSON lines: no MLflow is involved."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from mlflow_records import make_record, make_report
from mlflow_server import timed
from study_runs import wait_until

from studies.tracking import services
from studies.tracking.background_tracker import BackgroundTracker
from studies.trials.records import Record


class JsonLinesTracker:
    """Writes each call as a line; raises the errors that a test puts into `faults` first."""

    service = "JSON lines"

    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = str(path)
        self.faults: list[Exception] = []
        self.may_write = threading.Event()
        self.may_write.set()

    def read(self) -> None:
        self._write("read")

    def describe(self, provenance: Mapping[str, Any], params: Mapping[str, Any]) -> None:
        self._write("describe", dict(provenance), dict(params))

    def update(self, record: Record) -> None:
        self._write("update", record.name, record.step, record.state)

    def end(self, status: str) -> None:
        self._write("end", status)

    def finish(
        self,
        files: Mapping[Path, str],
        metrics: Mapping[str, float],
        time: int,
        description: str = "",
    ) -> None:
        self._write("finish", list(files.values()), dict(metrics), time, description)

    def run_ids(self) -> Mapping[str, str]:
        return {}

    def is_temporary(self, error: Exception) -> bool:
        return isinstance(error, ConnectionError)

    def reason(self, error: Exception) -> str:
        return str(error)

    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]

    def _write(self, *call: Any) -> None:
        self.may_write.wait()
        if self.faults:
            raise self.faults.pop(0)
        with self._path.open("a") as file:
            file.write(json.dumps(call) + "\n")


class JsonLinesService:
    """Keeps a study in a file beside its storage."""

    def check_address(self, uri: str) -> list[str]:
        return [] if uri.endswith(".jsonl") else [f"{uri} must end with .jsonl"]

    def check_server(self, uri: str, experiment: str) -> list[str]:
        return []

    def open(
        self, uri: str, experiment: str, storage: Path, study_id: str, say: Callable[[str], None]
    ) -> JsonLinesTracker:
        return JsonLinesTracker(storage / f"{experiment}.jsonl")

    def close_abandoned(self, uri: str, experiment: str, study_id: str) -> str | None:
        return f"{experiment} was left running"


@pytest.fixture
def lines(tmp_path: Path) -> JsonLinesTracker:
    return JsonLinesTracker(tmp_path / "study.jsonl")


def start(lines: JsonLinesTracker, said: list[str]) -> BackgroundTracker:
    return BackgroundTracker(lines, said.append, waits=(0.05, 0.1))


def test_updates_are_sent_in_order(lines: JsonLinesTracker, said: list[str]) -> None:
    tracker, record = start(lines, said), make_record("fixed-0000")
    tracker.describe({"commit": "a"}, {"model": "tiny"})
    wait_until(lambda: tracker.pending == 0)
    record.reports.append(make_report(2))
    record.state = "complete"
    tracker.catch_up([record])
    wait_until(lambda: tracker.pending == 0)
    tracker.finish([record], {Path("report.html"): ""}, {"ppl": 2.0}, description="**Better.**")
    end = ["finish", [""], {"ppl": 2.0}, record.reports[-1].time, "**Better.**"]
    updated = ["update", "fixed-0000", 2, "complete"]
    assert lines.lines() == [
        ["describe", {"commit": "a"}, {"model": "tiny"}],
        updated,
        updated,
        end,
    ]
    assert said == []


def test_newer_update_replaces_one_that_waits(lines: JsonLinesTracker, said: list[str]) -> None:
    tracker, record = start(lines, said), make_record("fixed-0000")
    lines.may_write.clear()
    tracker.describe({}, {})
    for step in (2, 4, 6):
        record.reports.append(make_report(step))
        tracker.update(record)
    assert tracker.pending == 2
    lines.may_write.set()
    tracker.abort([], "KILLED")
    assert lines.lines() == [
        ["describe", {}, {}],
        ["update", "fixed-0000", 6, "running"],
        ["end", "KILLED"],
    ]


def test_temporary_error_is_retried_after_reading(lines: JsonLinesTracker, said: list[str]) -> None:
    lines.faults = [ConnectionError("away"), ConnectionError("still away")]
    tracker, record = start(lines, said), make_record("fixed-0000")
    tracker.update(record)
    wait_until(lambda: tracker.pending == 0)
    assert lines.lines() == [["read"], ["update", "fixed-0000", 0, "running"]]
    place = f"JSON lines at {lines.address}"
    assert said == [
        f"{place} does not respond (away); training continues, 1 run waiting",
        f"{place} responds again; 1 run to send",
    ]
    tracker.finish([], {}, {})
    assert [call for call, *_ in lines.lines()] == ["read", "update", "read", "finish"]


def test_rejected_update_is_reported_and_holds_nothing_up(
    lines: JsonLinesTracker, said: list[str]
) -> None:
    lines.faults = [ValueError("too long"), ValueError("too long")]
    tracker = start(lines, said)
    tracker.describe({}, {})
    tracker.update(make_record("fixed-0000"))
    tracker.update(make_record("fixed-0001"))
    wait_until(lambda: tracker.pending == 0)
    tracker.finish([], {}, {})
    assert [call for call, *_ in lines.lines()] == ["update", "finish"]
    assert said == [
        f"JSON lines at {lines.address} rejects the study (too long); training continues",
        "2 runs incomplete in JSON lines; first: the study: too long",
    ]


def test_finish_waits_no_longer_than_patience(lines: JsonLinesTracker, said: list[str]) -> None:
    tracker, record = start(lines, said), make_record(" ")  # a name that is no parent's key
    lines.may_write.clear()
    tracker.describe({}, {})
    assert timed(lambda: tracker.finish([record], {}, {}, patience=0.2)) < 2
    lines.may_write.set()
    assert said == [
        f"2 runs not in JSON lines yet; to send the rest, run the same command once "
        f"{lines.address} responds"
    ]


def test_service_is_chosen_by_the_scheme_of_its_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: list[str]
) -> None:
    monkeypatch.setattr(services, "_SERVICES", {"jsonl": JsonLinesService()})
    uri = "jsonl:runs.jsonl"
    assert services.service_for(uri).check_address(uri) == []
    tracker = services.open_tracker(uri, "try", storage=tmp_path, study_id="0", say=said.append)
    tracker.finish([], {}, {})
    assert len((tmp_path / "try.jsonl").read_text().splitlines()) == 1
    (tmp_path / "id").write_text("0123456789abcdef")
    assert services.reconcile(uri, "try", tmp_path) == "try was left running"
    assert services.service_for("sqlite:///mlflow.db").check_address("mlruns") != []
