"""Budgets, epochs that become steps, and the seeds that a study names."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hylorada import InputError
from studies.learnable_bucketing import STUDY
from studies.spec.budgets import (
    BUDGETS,
    budget_after,
    budget_of,
    budget_problems,
    giving_way,
    with_steps,
)
from studies.spec.common_values import rerun_seeds, search_seeds
from studies.spec.study import Study


def _study(**changes: Any) -> Study:
    return Study.from_dict({**STUDY, **changes})


def _open(**changes: Any) -> dict[str, Any]:
    """Return the shipped study without its steps, reports and rungs."""
    pace = ("eval_every", "grace_steps")
    defaults = {k: v for k, v in STUDY["defaults"].items() if k != "max_steps"}
    left = {k: v for k, v in STUDY.items() if k not in pace}
    return {**left, "defaults": defaults, "epochs": 1, **changes}


def test_published_budgets_are_named_and_ordered() -> None:
    as_published = [(b["train_blocks"], b["epochs"]) for b in BUDGETS.values()]
    assert as_published == [(500, 1), (1000, 3), (2000, 5)]
    assert [budget_after(name) for name in BUDGETS] == ["full", "extended", None]
    assert [budget_of(_study(**_open(**b))) for b in BUDGETS.values()] == list(BUDGETS)
    assert budget_of(_study()) is None
    assert budget_of(_study(**_open(train_blocks=500, epochs=2))) is None
    assert budget_problems("qiuck") == ["--budget 'qiuck' is unknown; did you mean 'quick'?"]
    assert budget_problems(None) == budget_problems("full") == []


def test_epochs_become_steps_reports_and_rungs_once() -> None:
    study = Study.from_dict(_open(train_blocks=20))
    assert (study.knows_steps, study.eval_every, study.grace_steps) == (False, None, None)
    settled = with_steps(study, 20)
    assert (settled.max_steps, settled.report_steps()) == (10, (2, 4, 6, 8, 10))
    assert settled.rungs() == (2, 4, 8)
    stored = Study.from_dict(json.loads(json.dumps(settled.to_dict())))
    assert stored == settled == with_steps(stored, 20)
    assert with_steps(_study(), 20) == _study()


def test_steps_that_are_not_those_of_the_epochs_are_refused() -> None:
    study = Study.from_dict(_open() | {"defaults": STUDY["defaults"]})
    with pytest.raises(
        InputError, match="over 20 training blocks in batches of 2 makes 10 steps, "
    ):
        with_steps(study, 20)
    assert with_steps(study, 63).max_steps == with_steps(study, 64).max_steps == 32
    late = Study.from_dict(_open(grace_steps=16, eval_every=8))
    with pytest.raises(InputError, match="grace_steps 16 exceeds max_steps 10: ASHA has no rung"):
        with_steps(late, 20)
    many = Study.from_dict(_open(epochs=10**4))
    with pytest.raises(InputError, match="max_steps must be at most 1e"):
        with_steps(many, 10**6)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"common": {"space": {"batch_size": {"choice": [1, 2]}}}}, "common.space"),
        ({"arms": {"a": {"config": {"batch_size": 4}}}, "comparisons": []}, "arms.a"),
        (
            {"arms": {"a": {"space": {"batch_size": {"choice": [2, 4]}}}}, "comparisons": []},
            "arms.a",
        ),
    ],
)
def test_epochs_need_one_batch_size_for_all_trials(changes: dict[str, Any], place: str) -> None:
    with pytest.raises(InputError, match=f"^{place}: with epochs, trials of another batch_size"):
        Study.from_dict(_open(**changes))
    Study.from_dict({**STUDY, **changes})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"train_blocks": 0}, "train_blocks must be at least 1, got 0"),
        ({"train_blocks": "9"}, "train_blocks must be a whole number or null, got '9'"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number or null, got 1.5"),
        ({"epochs": 10001}, "epochs must be at most 10000, got 10001"),
    ],
)
def test_amounts_of_training_are_whole_and_above_zero(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=r"must be") as caught:
        _study(**changes)
    assert caught.value.problems == [problem]


def _layered(base: Mapping[str, Any], **changes: Any) -> Mapping[str, Any]:
    return {**giving_way(base, {**base, **changes}), **changes}


def test_definition_gives_way_to_the_epochs_that_are_asked_for() -> None:
    study = Study.from_dict(_layered(STUDY, epochs=1))
    assert (study.epochs, study.knows_steps, study.eval_every) == (1, False, None)
    assert study.defaults["batch_size"] == STUDY["defaults"]["batch_size"]
    without_rungs = Study.from_dict(_layered({**STUDY, "grace_steps": 0}, epochs=1))
    assert with_steps(without_rungs, 100).rungs() == ()
    assert giving_way(STUDY, {**STUDY, "trials": 9}) is STUDY
    assert giving_way(STUDY, {**STUDY, "block_size": 64}) is STUDY


def test_stored_epochs_are_counted_again_where_the_text_or_the_budget_changes() -> None:
    stored = with_steps(Study.from_dict(_open(eval_every=5, grace_steps=5)), 20).to_dict()
    assert giving_way(stored, {**stored, "name": "other"}) is stored
    for changes in ({"epochs": 3}, {"train_blocks": 9}, {"data": "x.txt"}, {"block_size": 64}):
        again = Study.from_dict(_layered(stored, **changes))
        assert (again.knows_steps, again.eval_every) == (False, None)
    defaults = {**stored["defaults"], "max_steps": 15}
    by_steps = Study.from_dict(_layered(stored, defaults=defaults))
    assert (by_steps.epochs, by_steps.max_steps, by_steps.eval_every) == (None, 15, 5)


def test_named_seeds_are_the_confirm_seeds_of_the_first_search() -> None:
    study = Study.from_dict(
        {k: v for k, v in STUDY.items() if k != "seeds"} | {"seed_list": [42, 123, 456]}
    )
    assert study.seeds == 3
    runs = [[rerun_seeds(study, "confirm", s, n) for n in range(3)] for s in range(4)]
    assert runs[0] == [(42, 42), (123, 123), (456, 456)]
    # searches are independent, so no two of them share a seed
    assert len({seed for search in runs for run in search for seed in run}) == 3 + 2 * 9
    other = Study.from_dict({**study.to_dict(), "seed": 7})
    assert [[rerun_seeds(other, "confirm", s, n) for n in range(3)] for s in range(4)] == runs


def test_named_seeds_change_no_other_stage() -> None:
    plain = _study()
    named = Study.from_dict({**plain.to_dict(), "seeds": 2, "seed_list": [42, 123]})
    stages = {
        (stage, s, n): rerun_seeds(named, stage, s, n)
        for stage in ("select", "explain")
        for s in range(3)
        for n in range(9)
    }
    assert stages == {key: rerun_seeds(plain, *key) for key in stages}
    assert search_seeds(named, "fixed", 1, 2) == search_seeds(plain, "fixed", 1, 2)
    assert not {42, 123} & {seed for pair in stages.values() for seed in pair}


@pytest.mark.parametrize(
    "seeds", [[1, 1], [-1], [2**32], [True], [1.0], ["42"], 42, "42", None, list(range(10**4 + 1))]
)
def test_named_seeds_are_distinct_whole_numbers(seeds: Any) -> None:
    with pytest.raises(
        InputError, match="seed_list must hold at most 10000 distinct whole numbers"
    ):
        Study.from_dict({k: v for k, v in STUDY.items() if k != "seeds"} | {"seed_list": seeds})


def test_number_of_seeds_is_that_of_the_named_ones() -> None:
    with pytest.raises(InputError, match=r"seeds is 5, but seed_list names 2 \(42, 123\)"):
        _study(seeds=5, seed_list=[42, 123])
    assert _study(seeds=2, seed_list=[42, 123]).seeds == 2
    assert _study(seeds=5, seed_list=[]).seeds == 5
