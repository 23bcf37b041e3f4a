"""Weights & Biases as a tracker, offline: what it writes is read back from its files."""

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow_records import make_record, make_report
from study_runs import read_trials, run_cli, wait_until
from wandb_files import OfflineRun, offline_runs

from studies.cli.commands import main
from studies.tracking.background_tracker import BackgroundTracker
from studies.tracking.services import service_for
from studies.tracking.tracker import Tracker
from studies.tracking.wandb_service import WandbRuns, WandbService
from studies.trials.records import Record

URI = "wandb:team/project"
wandb = pytest.importorskip("wandb")


_KILLED = """
import os, signal, sys
from pathlib import Path
from mlflow_records import make_record, make_report
from studies.tracking.wandb_service import WandbService

storage = Path(sys.argv[1])
tracker = WandbService().open("wandb:p", "étude", storage, storage.name, print)
tracker.describe({}, {})
for name, state in (("a", "complete"), ("b", "running")):
    tracker.update(make_record(name, state, reports=[make_report(2)]))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True, scope="module")
def _offline() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        _forget_settings()
        yield
        _forget_settings()


def _forget_settings() -> None:
    """Have W&B read its environment anew, and drop the files that it leaves open."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        wandb.teardown()
        gc.collect()


@pytest.fixture
def _own_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep processes that a test starts from sharing this one's process of W&B."""
    monkeypatch.delenv("WANDB_SERVICE", raising=False)


def _open(storage: Path) -> WandbRuns:
    return WandbService().open(URI, "étude", storage, storage.name, print)


def _record(*steps: int, name: str = "fixed-0000") -> Record:
    record = make_record(name)
    record.reports += [make_report(step, nll=3 - step / 10) for step in steps]
    return record


def _runs(storage: Path) -> dict[str, OfflineRun]:
    """Return the runs by name, once W&B's process has written all ends."""
    wait_until(lambda: all(run.exit_code is not None for run in offline_runs(storage)))
    runs = offline_runs(storage)
    assert len({run.id for run in runs}) == len(runs)
    return {run.name: run for run in runs}


def test_address_chooses_the_service() -> None:
    assert isinstance(service_for(URI), WandbService)
    assert not isinstance(service_for("sqlite:///wandb:x"), WandbService)
    assert WandbService().check_address(URI) == WandbService().check_address("wandb:p") == []
    (problem,) = WandbService().check_address("wandb://team/project")
    assert problem.endswith("write wandb:PROJECT or wandb:ENTITY/PROJECT")


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    (problem,) = WandbService().check_address("wandb:p")
    assert problem.endswith("is not installed; pip install 'hylorada[wandb]'")


def test_without_a_login_the_ways_to_go_on_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert WandbService().check_server("wandb:p", "x") == []
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    _forget_settings()
    (problem,) = WandbService().check_server("wandb:p", "x")
    monkeypatch.undo()
    _forget_settings()
    assert problem.endswith("or set WANDB_API_KEY; WANDB_MODE=offline needs no login")


def test_study_is_a_group_of_runs(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "losses.npy").write_bytes(b"0")
    tracker: Tracker = _open(tmp_path)
    tracker.describe({"commit": "a"}, {"model": "tiny"})
    record = _record(2, 4)
    tracker.update(record)
    record.state = "diverged"
    record.reason = "non-finite loss"
    tracker.update(record)
    files = {tmp_path / "results.json": "", tmp_path / "losses.npy": "block_nll/a"}
    tracker.finish({**files, tmp_path / "none": ""}, {"ppl": 2.0, "p": float("nan")}, 1)
    runs = _runs(tmp_path)
    study, trial = runs["étude"], runs["fixed-0000"]
    assert (study.kind, study.exit_code, study.summary["ppl"]) == ("study", 0, 2.0)
    assert "p" not in study.summary
    assert {"model": "tiny", "commit": "a"}.items() <= study.config.items()
    assert sorted(study.files) == ["block_nll/a/losses.npy", "results.json"]
    assert (trial.group, trial.kind, trial.tags) == ("étude", "search", ("learnable",))
    assert {"num_buckets": 4, "learning_rate": 0.01, "seed": 5}.items() <= trial.config.items()
    assert trial.series("eval/nll") == [(2, 2.8), (4, 2.6)]
    assert trial.exit_code == 1
    assert trial.summary["hylorada.state"] == "diverged"
    assert trial.summary["hylorada.reason"] == "non-finite loss"


def test_repeated_calls_add_only_what_is_missing(tmp_path: Path) -> None:
    tracker, record = _open(tmp_path), _record(2)
    for step in (4, 6):
        tracker.update(record)
        tracker.update(record)
        record.reports.append(make_report(step))
    record.state = "complete"
    tracker.update(record)
    tracker.update(record)
    (run,) = _runs(tmp_path).values()
    assert [step for step, _ in run.series("eval/nll")] == [2, 4, 6]


@pytest.mark.usefixtures("_own_service")
def test_next_process_takes_over_what_a_killed_one_has_left(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    wait_until(lambda: any(run.exit_code == 0 for run in offline_runs(tmp_path)))
    (written,) = [run for run in offline_runs(tmp_path) if run.name == "a"]
    tracker = BackgroundTracker(_open(tmp_path), print)
    tracker.describe({}, {"model": "tiny"})
    records = [_record(2, name="a"), _record(2, 4, name="b")]
    for record in records:
        record.state = "complete"
    tracker.finish(records, {}, {"ppl": 2.0})
    runs = _runs(tmp_path)
    assert sorted(runs) == ["a", "b", "étude"]
    assert runs["a"] == written
    assert [step for step, _ in runs["b"].series("eval/nll")] == [2, 4]
    assert (runs["b"].exit_code, runs["étude"].config["model"]) == (0, "tiny")


def test_aborted_study_ends_its_runs(tmp_path: Path) -> None:
    tracker = _open(tmp_path)
    tracker.describe({}, {})
    tracker.update(_record(2))
    tracker.end("KILLED")
    runs = _runs(tmp_path)
    assert {run.exit_code for run in runs.values()} == {1}
    assert {run.summary["hylorada.state"] for run in runs.values()} == {"killed"}


def test_rejections_are_told_from_outages(tmp_path: Path) -> None:
    tracker, errors = _open(tmp_path), wandb.errors
    assert tracker.is_temporary(errors.CommError("timed out\nlog"))
    assert tracker.is_temporary(ConnectionError())
    assert not tracker.is_temporary(errors.AuthenticationError("wrong key"))
    assert not tracker.is_temporary(errors.CommError("run x was previously created and deleted"))
    assert tracker.reason(errors.CommError("timed out\nlog")) == "timed out"
    assert tracker.reason(ConnectionError()) == "ConnectionError"


@pytest.mark.usefixtures("_own_service")
@pytest.mark.timeout(300)
def test_whole_study_is_kept(toy_model: str, tmp_path: Path) -> None:
    small = ("--trials=1", "--searches=1", "--seeds=1", "--block-size=32", "--set=profile=[1.0]")
    fast = ("max_steps=4", "num_buckets=8")
    sizes = ("eval_every=2", "grace_steps=0", "eval_blocks=4", "test_blocks=8")
    settings = [*(f"--set=defaults.{s}" for s in fast), *(f"--set={s}" for s in sizes)]
    place = (f"--model={toy_model}", f"--storage={tmp_path}", "--tracking-uri=wandb:project")
    done = run_cli("run", "learnable_bucketing", *small, *settings, *place)
    assert done.code == 0, done.err
    assert "W&B: wandb:project" in done.out
    assert not os.path.exists(tmp_path / "mlflow.db")
    runs, trials = _runs(tmp_path), read_trials(tmp_path / "studies" / "learnable_bucketing")
    assert sorted(runs) == sorted([*(t["name"] for t in trials), "learnable_bucketing"])
    assert all([s for s, _ in runs[t["name"]].series("eval/nll")] == [2, 4] for t in trials)
    assert {"results.json", "report.html"} <= set(runs["learnable_bucketing"].files)


def test_page_of_mlflow_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", f"--tracking-uri={URI}"]) == 2
    assert capsys.readouterr().err.endswith("W&B has its own web UI: open it in a browser\n")
