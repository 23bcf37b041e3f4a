"""A time-limited study that is killed, or ends before its plan, goes on as if it had no limit."""

import json
import random
from pathlib import Path

import pytest
from faults import Broken, assert_same, outcome
from study_runs import SMALL, run_cli

pytestmark = [pytest.mark.timeout(600), pytest.mark.faults]

# One trial at a time gives one order of reports within each search.
_OPTIONS = (*SMALL, "--trials=2", "--searches=2", "--seeds=1", "--seats=1")


def test_limited_study_ends_as_unbroken_after_kills_and_a_limit_that_is_too_short(
    toy_model: str, tmp_path: Path
) -> None:
    whole = Broken(tmp_path / "whole", toy_model, _OPTIONS, random.Random(0), [])
    whole.run_to_the_end()
    broken = Broken(tmp_path / "broken", toy_model, _OPTIONS, random.Random(5), [])
    late = run_cli(*broken.command(), "--time-limit=7s")
    assert late.code == 3, late.err
    assert "the time limit has come before any two arms could be compared" in late.err
    assert "Traceback" not in late.err
    broken.options = (*_OPTIONS, "--time-limit=1h")  # more than enough for both searches
    for victim in ("driver", "machine"):
        broken.break_off(victim)
    done = broken.run_to_the_end()
    assert "time limit" not in done.out
    assert_same(outcome(broken.storage), outcome(whole.storage), exact=True)


@pytest.mark.slow
def test_short_limit_ends_in_time_with_a_verdict_and_a_later_run_continues(
    tmp_path: Path,
) -> None:
    """The bound is generous: other work on the machine slows the whole run."""
    place = (f"--storage={tmp_path}", "--time-limit=60s")
    done = run_cli("run", "learnable_bucketing", *place)
    assert done.code == 0, done.err
    assert done.seconds < 90
    assert "this is the verdict on" in done.out
    folder = tmp_path / "studies" / "learnable_bucketing"
    before = json.loads((folder / "results.json").read_text())
    assert before["comparisons"]
    study = json.loads((folder / "study.json").read_text())
    assert study["planned"]["searches"] == 5
    status = run_cli("status", "learnable_bucketing", f"--storage={tmp_path}")
    assert "Kept small by a time limit. To continue to 5 searches" in status.out
