"""A real host on Ray whose passes fail as a whole or whose device is lost, with a fake engine."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import hosts
import pytest
from hosts import REPORTS

pytestmark = [pytest.mark.timeout(400), pytest.mark.faults]


def _run(kind: str, folder: Path, seats: int = 3, how: str = "spare") -> dict[str, Any]:
    script = Path(hosts.__file__)
    arguments = [kind, str(folder), str(seats), how]
    done = subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, timeout=380
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_trial_that_breaks_its_pack_fails_alone_and_a_lost_device_costs_no_trial(
    tmp_path: Path,
) -> None:
    result = _run("once", tmp_path)
    whole = list(REPORTS)
    assert result["events"] == {"a": whole, "b": [4, "ValueError: no such shape"], "c": whole}
    assert result["stopped"] is None
    assert (tmp_path / "lost").exists()


def test_trial_that_costs_each_host_its_device_fails_alone(tmp_path: Path) -> None:
    result = _run("always", tmp_path)
    whole, lost = list(REPORTS), "DeviceLost: CUDA error: an illegal memory access was encountered"
    assert result["events"] == {
        "a": whole,
        "b": [4, "ValueError: no such shape"],
        "c": [4, 8, lost],
    }
    assert result["stopped"] is None


def test_trial_whose_waiting_process_dies_is_not_overtaken(tmp_path: Path) -> None:
    """Tune gives such a trial up; later proposals must still take its result into account."""
    result = _run("never", tmp_path, seats=1, how="kill")
    assert result["ended"] == ["a", "b", "c"]
    whole = list(REPORTS)
    assert result["events"] == {"a": whole, "b": whole, "c": whole}
    assert result["stopped"] is None


def test_trial_that_waits_for_others_to_end_is_given_then(tmp_path: Path) -> None:
    result = _run("never", tmp_path, how="late")
    assert sorted(result["ended"][:2]) == ["a", "b"]
    assert result["events"] == {name: list(REPORTS) for name in "abc"}
    assert result["stopped"] is None


def test_every_seat_is_taken_where_trials_end_faster_than_processes_start(tmp_path: Path) -> None:
    """Tune itself would end the process that is starting for the next trial with each trial."""
    result = _run("never", tmp_path, seats=4, how="many")
    assert result["processes"] == 4
    assert len(result["events"]) < 1000
    assert result["stopped"] is None
