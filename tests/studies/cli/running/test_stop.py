"""``hylorada stop`` from another terminal; the run itself is a lock that the test holds."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_studies import VALUES, make
from study_runs import wait_until

from studies.cli.commands import main
from studies.files.folder_files import STUDY, study_lock, write_json
from studies.spec.study import Study
from studies.trials.by_hand.requests import drop_stop, stop_requested, trial_stops
from studies.trials.store import Store


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Store]:
    """A study that this process runs: its store is open."""
    store = make(tmp_path / "studies" / "made", "confirm")
    yield store
    store.close()


def _stopping(name: str, storage: Path) -> tuple[list[int], threading.Thread]:
    """Stop a study in another thread; return the list that gets the exit code, and the thread."""
    codes: list[int] = []
    command = ["stop", name, f"--storage={storage}"]
    thread = threading.Thread(target=lambda: codes.append(main(command)))
    thread.start()
    return codes, thread


def test_stop_of_a_grid_asks_the_cell_that_runs(tmp_path: Path) -> None:
    grid = Study.from_dict({**VALUES, "name": "wide", "grid": {"block_size": [32, 64]}})
    folder = tmp_path / "studies" / "wide"
    folder.mkdir(parents=True)
    write_json(folder / "study.json", grid.to_dict(), STUDY)
    cells = {n: tmp_path / "studies" / f"wide.{n}" for n in (32, 64)}
    for size, place in cells.items():
        make(place, "search", name=place.name, block_size=size).close()
    with study_lock(folder), study_lock(cells[64]):
        codes, thread = _stopping("wide", tmp_path)
        wait_until(lambda: stop_requested(cells[64]), 20)
        assert not stop_requested(cells[32])
    thread.join(20)
    assert (codes, stop_requested(cells[64])) == ([0], False)


def test_stop_asks_and_waits_for_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    folder = tmp_path / "studies" / "made"
    with study_lock(folder):
        codes, thread = _stopping("made", tmp_path)
        wait_until(lambda: stop_requested(folder), 20)
        drop_stop(folder)
    thread.join(20)
    assert codes == [0]
    told = "study 'made' has stopped; its state is saved. Resume with: "
    told += f"hylorada run made --storage {tmp_path}\n"
    assert capsys.readouterr().out == told
    assert not stop_requested(folder)


@pytest.mark.parametrize("wait", ["0", "0.1"])
def test_stop_that_is_not_heeded_in_time_says_so(
    running: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], wait: str
) -> None:
    assert main(["stop", "made", f"--storage={tmp_path}", f"--wait={wait}"]) == 3
    assert f"study 'made' is still running after {wait} s" in capsys.readouterr().err
    assert stop_requested(running.folder)
    running.close()
    assert not stop_requested(running.folder)  # it ended: the next run must not stop at once


@pytest.mark.parametrize("wait", ["-1", "nan"])
def test_wait_that_is_no_time_is_refused(
    running: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], wait: str
) -> None:
    assert main(["stop", "made", f"--storage={tmp_path}", f"--wait={wait}"]) == 2
    assert f"wait must be at least 0 seconds, got {wait}" in capsys.readouterr().err
    assert not stop_requested(running.folder)


def test_stop_of_a_study_that_is_not_running_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "search").close()
    assert main(["stop", "made", f"--storage={tmp_path}"]) == 2
    assert capsys.readouterr().err == "hylorada: study 'made' is not running\n"
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
    command = f"hylorada run made --storage {tmp_path}"
    told = f"fixed-0003 stops at its next report, once you run `{command}`\n"
    assert capsys.readouterr().out == told
    assert trial_stops(tmp_path / "studies" / "made") == {"fixed-0003"}


def test_stop_of_a_finished_study_says_that_it_has_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "studies" / "made", "end").close()
    assert main(["stop", "made", f"--storage={tmp_path}"]) == 2
    assert capsys.readouterr().err == "hylorada: study 'made' is not running: it has finished\n"
