"""A finished study is shown from its folder as long as a run would change nothing in it."""

import dataclasses
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from finished_folder import write_finished

from studies.analysis.results import read_results
from studies.files.folder_files import stored_study, study_lock
from studies.process.options import Options
from studies.runner import finished
from studies.runner.finished import finished_results, mark_finished
from studies.spec.study import Study
from studies.trials.by_hand.requests import Addition, request_addition
from studies.trials.messages import CHECKPOINT
from studies.trials.records import OPEN


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a finished study of a text of its own, whose runs MLflow holds."""
    (tmp_path / "text.txt").write_text("some text")
    folder = write_finished(tmp_path, name="made", data=str(tmp_path / "text.txt"))
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("CREATE TABLE runs (run_uuid)")
    monkeypatch.setattr("studies.tracking.stored_runs.holds_finished", lambda *_: True)
    return folder


def _study(folder: Path, **changes: Any) -> Study:
    return Study.from_dict({**stored_study(folder / "study.json"), **changes})


def _options(folder: Path, **changes: Any) -> Options:
    return Options(storage=folder.parents[1], **changes)


def test_marked_study_is_read_and_not_before(folder: Path) -> None:
    study, options = _study(folder), _options(folder)
    assert finished_results(study, options) is None
    mark_finished(study, options)
    assert finished_results(study, options) == read_results(folder / "results.json")
    assert finished_results(study, dataclasses.replace(options, seats=8)) is not None


def test_request_may_leave_open_what_the_text_decides(folder: Path) -> None:
    study = _study(folder, document_separator="auto")
    mark_finished(study, _options(folder))
    assert finished_results(study, _options(folder)) is not None


def test_trial_added_in_the_last_seconds_is_trained(folder: Path) -> None:
    """The run that ends doesn't read it any more, and its mark covers the request."""
    study, options = _study(folder), _options(folder)
    request_addition(folder, Addition(next(iter(study.arms)), "", {"learning_rate": 1e-3}))
    mark_finished(study, options)
    assert finished_results(study, options) is None


def test_checkpoints_and_locks_are_no_part_of_it(folder: Path) -> None:
    study, options = _study(folder), _options(folder)
    mark_finished(study, options)
    trial = next((folder / "trials").iterdir())
    (trial / CHECKPOINT).write_bytes(b"large")
    with study_lock(folder):
        assert finished_results(study, options) is not None


def _append(name: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        path = next(folder.glob(name))
        path.write_bytes(path.read_bytes() + b"\n")

    return append


def _lose_trial(folder: Path) -> None:
    shutil.rmtree(next(folder.glob("trials/*confirm*")))


def _change_text(folder: Path) -> None:
    (folder.parents[1] / "text.txt").write_text("other text")


def _lose_database(folder: Path) -> None:
    (folder.parents[1] / "mlflow.db").unlink()


CHANGES: dict[str, Callable[[Path], object]] = {
    "trial.json": _append("trials/*/trial.json"),
    "reports.jsonl": _append("trials/*/reports.jsonl"),
    "losses": _append("trials/*/test_block_nll.npy"),
    "results": _append("results.json"),
    "lost report": lambda folder: (folder / "report.html").unlink(),
    "lost results": lambda folder: (folder / "results.json").unlink(),
    "lost study": lambda folder: (folder / "study.json").unlink(),
    "lost trial": _lose_trial,
    "optuna.db": _append("optuna.db"),
    "open": lambda folder: (folder / OPEN).touch(),
    "mark": lambda folder: (folder / "finished").write_bytes(b"\xff"),
    "text": _change_text,
    "mlflow.db": _lose_database,
    "damaged mlflow.db": lambda folder: (folder.parents[1] / "mlflow.db").write_text("garbage"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_has_changed_needs_a_run(folder: Path, change: Callable[[Path], object]) -> None:
    study, options = _study(folder), _options(folder)
    mark_finished(study, options)
    assert finished_results(study, options) is not None
    change(folder)
    assert finished_results(study, options) is None


@pytest.mark.parametrize(
    "changes",
    [{"seeds": 3}, {"margin": 0.4}, {"subject": "Depth"}, {"eval_every": 10}, {"name": "new"}],
    ids=lambda c: next(iter(c)),
)
def test_another_request_needs_a_run(folder: Path, changes: dict[str, Any]) -> None:
    options = _options(folder)
    mark_finished(_study(folder), options)
    assert finished_results(_study(folder, **changes), options) is None


@pytest.mark.parametrize(
    "changes",
    [{"address": "auto"}, {"tracking_uri": "http://localhost:1"}, {"seats": 0}, {"seats": 2000}],
    ids=str,
)
def test_cluster_server_or_bad_option_needs_a_run(folder: Path, changes: dict[str, Any]) -> None:
    mark_finished(_study(folder), _options(folder))
    assert finished_results(_study(folder), _options(folder, **changes)) is None


def test_other_code_or_packages_need_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, options = _study(folder), _options(folder)
    mark_finished(study, options)
    monkeypatch.setattr(finished, "code_digest", lambda: "0" * 16)
    assert finished_results(study, options) is None
    mark_finished(study, options)
    monkeypatch.setattr(finished, "package_versions", lambda: {"python": "4.0"})
    assert finished_results(study, options) is None


def test_runs_that_mlflow_lacks_need_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, options = _study(folder), _options(folder)
    mark_finished(study, options)
    monkeypatch.setattr("studies.tracking.stored_runs.holds_finished", lambda *_: False)
    assert finished_results(study, options) is None


def test_study_that_another_process_has_begun_to_extend_is_not_marked(folder: Path) -> None:
    study, options = _study(folder), _options(folder)
    with study_lock(folder):
        mark_finished(study, options)
    mark_finished(_study(folder, seeds=3), options)
    assert not (folder / "finished").exists()
