"""Samplers and pruners are chosen by name."""

import math
from typing import Any

import pytest
from campaigns import VALUES, Folder, train

from hylorada import InputError
from studies.search.campaign import Search
from studies.search.pruners import PRUNERS, make_pruner
from studies.spec import study as declared
from studies.spec.study import Study
from studies.trials.sampling.sampler import SAMPLERS, SampledArm, make_sampler


def _study(**changes: Any) -> Study:
    return Study.from_dict(VALUES | changes)


def test_every_declared_name_is_implemented() -> None:
    assert sorted(SAMPLERS) == sorted(declared.SAMPLERS)
    assert sorted(PRUNERS) == sorted(declared.PRUNERS)


@pytest.mark.parametrize("field", ["sampler", "pruner"])
def test_unknown_name_is_refused_with_the_nearest(field: str) -> None:
    near = {"sampler": ("randon", "random"), "pruner": ("ash", "asha")}[field]
    with pytest.raises(
        InputError, match=f"{field} '{near[0]}' is unknown; did you mean '{near[1]}'"
    ):
        _study(**{field: near[0]})


def test_study_without_a_pruner_has_no_rungs() -> None:
    changes = {"grace_steps": 2, "eval_every": 2}
    assert make_pruner(_study(**changes)) is not None
    assert _study(**changes).rungs()
    assert make_pruner(_study(**changes, pruner="none")) is None
    assert _study(**changes, pruner="none").rungs() == ()


def test_without_a_pruner_the_worst_trial_trains_to_its_end(folder: Folder) -> None:
    ledger = folder.open(grace_steps=2, eval_every=2, pruner="none")
    train(Search(ledger), lambda name: float(name[-4:]))
    assert {r.state for r in ledger.store.records.values()} == {"complete"}


def test_random_sampler_draws_uniformly_from_the_log_range(folder: Folder) -> None:
    """Of 60 proposals, each quarter of the range holds 15, with a standard deviation of 3.4."""
    ledger = folder.open(sampler="random", trials=61, grace_steps=0)
    train(Search(ledger), lambda name: 1.0 if name.endswith("0000") else 2.0)
    (low, high), counts = (1e-4, 1e-2), [0] * 4
    for record in ledger.store.of("search", "baseline", 0)[1:]:
        rate = record.params["learning_rate"]
        counts[min(3, int(4 * _share(rate, low, high)))] += 1
    assert sum(counts) == 60
    assert min(counts) >= 5


def _share(value: float, low: float, high: float) -> float:
    return math.log(value / low) / math.log(high / low)


def test_samplers_differ_only_in_what_proposes() -> None:
    arm = SampledArm(seed=0, name="a", names=("r",), trials=8)
    made = {name: vars(make_sampler(name, arm, 1)) for name in SAMPLERS}
    kinds = {
        n: type(held.get("_together", held.get("_point"))).__name__ for n, held in made.items()
    }
    assert kinds == {"tpe": "_TPE", "random": "RandomSampler", "qmc": "SobolPoint"}
