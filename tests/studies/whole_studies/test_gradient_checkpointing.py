"""A study whose backward passes recompute layers has the results of one that keeps everything."""

import random
from pathlib import Path

import pytest
from faults import Broken, assert_same, outcome
from study_runs import SMALL

_OPTIONS = (*SMALL, "--seats=1", "--trials=1", "--seeds=1")  # one trial at a time: equal bits


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_study_that_recomputes_layers_has_the_same_results(toy_model: str, tmp_path: Path) -> None:
    outcomes = []
    for name, more in (("plain", ()), ("recomputing", ("--set=gradient_checkpointing=true",))):
        study = Broken(tmp_path / name, toy_model, (*_OPTIONS, *more), random.Random(0), [])
        study.run_to_the_end()
        outcomes.append(outcome(study.storage))
    assert_same(outcomes[1], outcomes[0], exact=True)
