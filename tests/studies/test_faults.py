"""A study whose driver, machine, hosts or trial processes are killed ends as the unbroken one; see faults.py."""

import random
from pathlib import Path

import pytest
from faults import ONE_SEAT, PACKED, Broken, assert_same, outcome

pytestmark = pytest.mark.timeout(600)


def _unbroken(model: str, place: Path, options: tuple[str, ...]) -> Broken:
    study = Broken(place / "unbroken", model, options, random.Random(0), [])
    study.run_to_the_end()
    return study


def test_study_ends_as_unbroken_whatever_dies(toy_model: str, tmp_path: Path) -> None:
    """TPE, ASHA and random streams go on exactly: one seat, so that trials come in one order."""
    whole = _unbroken(toy_model, tmp_path, ONE_SEAT)
    broken = Broken(tmp_path / "broken é", toy_model, ONE_SEAT, random.Random(1), [])
    for victim in ("driver", "machine", "driver"):
        broken.break_off(victim)
    assert broken.wound(["host", "trial"], 4) >= 2
    assert_same(outcome(broken.storage), outcome(whole.storage), exact=True)


def test_packs_end_as_unbroken_when_hosts_and_trials_die(toy_model: str, tmp_path: Path) -> None:
    whole = _unbroken(toy_model, tmp_path, PACKED)
    broken = Broken(tmp_path / "broken", toy_model, PACKED, random.Random(2), [])
    broken.break_off("driver")
    assert broken.wound(["host", "trial"], 5) >= 3
    assert_same(outcome(broken.storage), outcome(whole.storage), exact=False)
