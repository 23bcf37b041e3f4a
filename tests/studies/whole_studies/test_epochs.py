"""A study by epochs and named seeds: equal to one by steps, and resumed as one."""

import json
import random
from pathlib import Path

import pytest
from faults import Broken, assert_same, outcome
from study_runs import SMALL, read_trials

pytestmark = pytest.mark.timeout(600)

_PACE = ("defaults.max_steps", "eval_every", "grace_steps")
_COMMON = (
    *(option for option in SMALL if not option.startswith(tuple(f"--set={p}=" for p in _PACE))),
    "--seats=1",  # one trial at a time: bit for bit equal
    "--trials=2",
    "--set=train_blocks=20",
)
_BY_EPOCHS = (*_COMMON, "--set=epochs=1")
_BY_STEPS = (*_COMMON, *(f"--set={p}={n}" for p, n in zip(_PACE, (10, 2, 2), strict=True)))
_NAMED = (*_BY_EPOCHS, "--trials=1", "--seed-list=42,123")


def _study(place: Path, model: str, options: tuple[str, ...]) -> Broken:
    return Broken(place, model, options, random.Random(0), [])


def test_epochs_train_as_the_steps_that_they_come_to(toy_model: str, tmp_path: Path) -> None:
    by_epochs = _study(tmp_path / "epochs", toy_model, _BY_EPOCHS)
    by_steps = _study(tmp_path / "steps", toy_model, _BY_STEPS)
    said = by_epochs.run_to_the_end().err
    by_steps.run_to_the_end()
    assert "budget: 1 epoch of 20 blocks are 10 steps a trial; a report every 2, " in said
    assert_same(outcome(by_epochs.storage), outcome(by_steps.storage), exact=True)
    stored = json.loads((by_epochs.folder / "study.json").read_text())
    assert (stored["epochs"], stored["defaults"]["max_steps"]) == (1, 10)
    assert (stored["eval_every"], stored["grace_steps"]) == (2, 2)


@pytest.mark.faults
def test_study_by_epochs_and_named_seeds_resumes(toy_model: str, tmp_path: Path) -> None:
    whole = _study(tmp_path / "whole", toy_model, _NAMED)
    whole.run_to_the_end()
    broken = _study(tmp_path / "broken", toy_model, _NAMED)
    assert broken.break_off("machine")
    broken.run_to_the_end()
    assert_same(outcome(broken.storage), outcome(whole.storage), exact=True)
    seeds = {t["seed"] for t in read_trials(broken.folder) if t["stage"] == "confirm"}
    assert seeds == {42, 123}
