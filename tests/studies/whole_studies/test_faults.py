"""A study with killed processes or a full disk ends as an uninterrupted one does.

See faults.py, which has the long version too.
"""

import random
import re
import shutil
from pathlib import Path

import pytest
from faults import ONE_SEAT, PACKED, REPLICATED, STARTED, Broken, assert_same, outcome
from study_runs import run_cli, small_disk

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]


def _unbroken(model: str, place: Path, options: tuple[str, ...]) -> Broken:
    study = Broken(place / "unbroken", model, options, random.Random(0), [])
    study.run_to_the_end()
    return study


def _check_status(broken: Broken) -> None:
    """Check that `status` closes the MLflow runs that a dead process has left running."""
    if broken.steps():
        status = run_cli("status", broken.folder.name, f"--storage={broken.storage}")
        assert (status.code, len(status.err.splitlines())) == (0, 1)
        assert re.fullmatch(
            r"hylorada: closed \d+ MLflow runs? that a dead process had left running\n", status.err
        )


def _run_out_of_disk(broken: Broken) -> None:
    """Leave room for a few more files only, and free it again once the study has stopped."""
    filler = broken.storage / "filler"
    filler.write_bytes(bytes(shutil.disk_usage(broken.storage).free - 300 * 1024))
    done = run_cli(*broken.command())
    filler.unlink()
    assert done.code == 3, done.err
    assert "No space left on device" in done.err or "disk is full" in done.err
    assert "the study stopped; state saved. Resume with: hylorada run" in done.err
    assert "Traceback" not in done.err


def test_study_ends_as_unbroken_whatever_dies(toy_model: str, tmp_path: Path) -> None:
    """TPE, ASHA and random streams resume exactly; one seat gives the trials one order."""
    whole = _unbroken(toy_model, tmp_path, ONE_SEAT)
    with small_disk(tmp_path / "disk é", "64m") as small:
        broken = Broken(tmp_path / "disk é", toy_model, ONE_SEAT, random.Random(1), [])
        for victim in ("driver", "machine"):
            broken.break_off(victim)
            _check_status(broken)
        if small:
            _run_out_of_disk(broken)
        assert broken.wound(["host", "trial"], 4) >= 2
        assert_same(outcome(broken.storage), outcome(whole.storage), exact=True)


def test_started_study_ends_as_unbroken(toy_model: str, tmp_path: Path) -> None:
    """It begins with the entries of its start list, and a Sobol sequence proposes the rest."""
    whole = _unbroken(toy_model, tmp_path, STARTED)
    broken = Broken(tmp_path / "broken", toy_model, STARTED, random.Random(3), [])
    for victim in ("driver", "machine"):
        broken.break_off(victim)
    broken.run_to_the_end()
    actual = outcome(broken.storage)
    assert_same(actual, outcome(whole.storage), exact=True)
    blocks = {arm: actual.optuna[f"broken / {arm} / search 0"] for arm in ("fixed", "learnable")}
    assert [t["params"]["learning_rate"] for t in blocks["fixed"][:3]] == [1e-3, 2e-3, 2e-3]
    buckets = {arm: [t["params"]["num_buckets"] for t in ts[:3]] for arm, ts in blocks.items()}
    assert buckets == {"fixed": [4, 8, 8], "learnable": [4, 4, 8]}


def test_searches_added_under_kills_equal_those_had_from_the_start(
    toy_model: str, tmp_path: Path
) -> None:
    """Two searches run, then ``resolve`` adds a third; both commands are killed on the way."""
    whole = _unbroken(toy_model, tmp_path, (*REPLICATED, "--searches=3"))
    broken = Broken(
        tmp_path / "broken", toy_model, (*REPLICATED, "--searches=2"), random.Random(4), []
    )
    broken.break_off("driver")
    broken.run_to_the_end()
    broken.resolving = True
    assert broken.break_off("machine")
    broken.run_to_the_end()
    actual, expected = outcome(broken.storage), outcome(whole.storage)
    assert actual.trials == expected.trials
    assert actual.optuna == expected.optuna
    assert actual.results["arms"] == expected.results["arms"]
    for ours, theirs in zip(
        actual.results["comparisons"], expected.results["comparisons"], strict=True
    ):
        assert (ours["searches"], ours["by_search"]) == (3, theirs["by_search"])
        # This study has looked at two and at three searches, which share 5 %; the other has looked
        # once.
        assert (ours["level"], theirs["level"]) == (pytest.approx(0.0275, abs=1e-3), 0.05)


@pytest.mark.slow
def test_packs_end_as_unbroken_when_hosts_and_trials_die(toy_model: str, tmp_path: Path) -> None:
    whole = _unbroken(toy_model, tmp_path, PACKED)
    broken = Broken(tmp_path / "broken", toy_model, PACKED, random.Random(2), [])
    broken.break_off("driver")
    assert broken.wound(["host", "trial"], 4) >= 2
    assert_same(outcome(broken.storage), outcome(whole.storage), exact=False)
