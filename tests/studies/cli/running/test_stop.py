"""``hylorada stop`` from another terminal; the run itself is a lock that the test holds."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_studies import make
from study_runs import wait_until

from studies.cli.commands import main
from studies.files.folder_files import study_lock
from studies.trials.requests import drop_stop, stop_requested, trial_stops
from studies.trials.store import Store


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Store]:
    """A study that this process runs: its store is open."""
    store = make(tmp_path / "studies" / "made", "confirm")
    yield store
    store.close()


def test_stop_asks_and_waits_for_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    folder = tmp_path / "studies" / "made"
    lock = study_lock(folder)
    lock.acquire()
    codes: list[int] = []
    command = ["stop", "made", f"--storage={tmp_path}"]
    thread = threading.Thread(target=lambda: codes.append(main(command)))
    thread.start()
    wait_until(lambda: stop_requested(folder), 20)
    drop_stop(folder)
    lock.release()
    thread.join(20)
    assert codes == [0]
    told = "study 'made' has stopped; its state is saved. Resume with: hylorada run made\n"
    assert capsys.readouterr().out == told
    assert not stop_requested(folder)


def test_stop_that_is_not_heeded_in_time_says_so(
    running: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stop", "made", f"--storage={tmp_path}", "--wait=0.1"]) == 3
    assert "study 'made' is still running after 0.1 s" in capsys.readouterr().err
    assert stop_requested(running.folder)
    running.close()
    assert not stop_requested(running.folder)  # it ended: the next run must not stop at once


def test_stop_of_a_study_that_is_not_running_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    assert main(["stop", "made", f"--storage={tmp_path}"]) == 2
    problem = "study 'made' is not running; resume it with: hylorada run made"
    assert capsys.readouterr().err == f"hylorada: {problem}\n"
    assert not (tmp_path / "studies" / "made" / "requests").exists()


@pytest.mark.parametrize(
    ("trial", "problem"),
    [
        ("fixed-0009", "study 'made' has no trial 'fixed-0009'; did you mean"),
        ("fixed-0000", "fixed-0000 has ended already (complete)"),
        (
            "fixed-0003-confirm-01",
            "fixed-0003-confirm-01 is a confirm run and can't be stopped alone",
        ),
    ],
)
def test_trials_that_can_not_be_stopped_are_refused(
    running: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    trial: str,
    problem: str,
) -> None:
    if "confirm" in trial:
        trial = next(r.name for r in running.records.values() if r.state == "running")
        problem = problem.replace("fixed-0003-confirm-01", trial)
    assert main(["stop", "made", f"--storage={tmp_path}", "--trial", trial]) == 2
    assert capsys.readouterr().err.startswith(f"hylorada: {problem}")
    assert trial_stops(running.folder) == set()


def test_stop_of_a_trial_is_kept_for_a_study_that_is_not_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    assert main(["stop", "made", f"--storage={tmp_path}", "--trial=fixed-0003"]) == 0
    told = "fixed-0003 stops at its next report, once you run `hylorada run made`\n"
    assert capsys.readouterr().out == told
    assert trial_stops(tmp_path / "studies" / "made") == {"fixed-0003"}
