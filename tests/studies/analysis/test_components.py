"""Components: each comparison of a study held against the published criteria."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaigns import MATCHED, Folder, report, train

from studies.analysis.comparisons import Comparison
from studies.analysis.components import Stability, component, stability_of
from studies.analysis.results import Results, gather
from studies.files.typed_json import typed
from studies.search.campaign import Confirm, Search
from studies.statistics.change import Change
from studies.trials.messages import Report
from studies.trials.records import Record

_COMPARISON = Comparison(
    arm="global",
    reference="baseline",
    seeds=1,
    change=-3.0,
    low=-4.0,
    high=-2.5,
    by_seed=(-3.0,),
    median=-3.0,
    p_value=0.001,
    p_holm=0.004,
    smallest_visible=0.5,
    decision="strong",
    outcome="better",
    parameters_per_percent=700.0,
    positions={"lim_ppl": Change(-5.2, -6.0, -4.4, 0.01, "better")},
)
_STEADY = Stability(runs=3)


def _run(losses: list[float], state: Any = "complete") -> Record:
    reports = [Report(step=i + 1, metrics={"train/nll": x}) for i, x in enumerate(losses)]
    whose: dict[str, Any] = {"params": {}, "adapter": {}, "training": {}, "seed": 0, "data_seed": 0}
    values = {"arm": "a", "stage": "confirm", "number": 0, "state": state, "reports": reports}
    return Record(name="a-confirm-00", **whose, **values)


def test_criteria_are_answered_from_the_intervals() -> None:
    c = component(_COMPARISON, 2_100, _STEADY, _STEADY)
    assert (c.gains_ppl, c.gains_lim_ppl, c.cheap, c.stable) == ("yes", "undecided", "yes", "yes")
    assert (c.status, c.parameters, c.per_percent) == ("optional", 2_100, 700.0)
    assert c.change == Change(-3.0, -4.0, -2.5, 0.004, "better")


def test_what_was_not_measured_is_not_answered() -> None:
    c = component(replace(_COMPARISON, positions={}), 0, Stability(), _STEADY)
    assert (c.lim_ppl, c.gains_lim_ppl, c.stable) == (None, "", "")


def test_component_with_more_spikes_than_its_reference_is_not_stable() -> None:
    spiky, diverging = Stability(3, spikes=1), Stability(3, diverged=1)
    answers = [component(_COMPARISON, 0, own, _STEADY).stable for own in (spiky, diverging)]
    assert answers == ["no", "no"]
    assert component(_COMPARISON, 0, spiky, diverging).stable == "yes"


def test_runs_with_too_few_reports_are_not_judged() -> None:
    calm = [5.0, 4.9, 4.8, 4.7, 4.6]
    runs = [_run(calm), _run([*calm, 9.0]), _run(calm[:4]), _run([5.0], "diverged")]
    stability = stability_of(runs)
    assert stability == Stability(runs=3, spikes=1, diverged=1)
    assert json.loads(json.dumps(asdict(stability))) == {"runs": 3, "spikes": 1, "diverged": 1}


def _finished(folder: Folder, **changes: Any) -> Results:
    """Return results of a study in which the fixed arm is 3 % better and adds 60 parameters."""
    settings = {"comparisons": [["fixed", "baseline"]], "block_size": 41, "searches": 2}
    ledger = folder.open(**MATCHED | settings | changes)
    train(Search(ledger))
    confirm = Confirm(ledger)
    blocks = np.random.default_rng(0).normal(3, 0.3, (12, 10))
    while given := confirm.next_job():
        job, _ = given
        fixed = ledger.store.records[job.name].arm == "fixed"
        path = Path(job.folder) / "test_block_nll.npy"
        losses = 4 * (blocks + fixed * np.log(0.97))
        np.save(path, losses)
        more = {"test/nll": float(losses.sum() / 12 / 40), "train/nll": 3.0}
        last = report(8, block_nll=str(path), parameters=100 if fixed else 40, more=more)
        confirm.on_report(job.name, last)
    return gather(ledger.store, None, {}, [])


def test_study_that_asks_for_criteria_has_a_component_for_each_comparison(folder: Folder) -> None:
    results = _finished(folder, criteria=True)
    (c,) = results.components
    assert (c.arm, c.reference, c.parameters) == ("fixed", "baseline", 60)
    assert c.change.change == pytest.approx(-3.0)
    assert c.per_percent == pytest.approx(60 / 3)
    assert typed(Results, json.loads(json.dumps(asdict(results)))) == results


def test_study_that_does_not_ask_has_none(folder: Folder) -> None:
    results = _finished(folder)
    assert (results.components, results.recommendations) == ((), ())
