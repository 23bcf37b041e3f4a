"""The start list of a study: what it may hold, and which values the first trials get from it."""

from typing import Any

import pytest

from hylorada import InputError
from studies.spec.common_values import common_values, given_values
from studies.spec.study import Study

_RATE = {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}}
_INIT = {
    "num_buckets": {"choice": [8, 16, 32]},
    "boundary_init": {"choice": ["log", "fixed"]},
    "boundary_warmup": {"low": 0.1, "high": 0.7, "when": {"boundary_init": "fixed"}},
}
_VALUES: dict[str, Any] = {
    "definition": "mine",
    "name": "try",
    "trials": 4,
    "defaults": {"learning_rate": 2e-3, "num_buckets": 16},
    "common": {"space": _RATE},
    "arms": {
        "baseline": {"config": {"landmarks": False}},
        "fixed": {"space": {"num_buckets": {"choice": [8, 16]}}},
        "learnable": {"config": {"landmark_bucketing": "learnable"}, "space": _INIT},
    },
}
_START = [
    {"learning_rate": 1e-3, "num_buckets": 8},
    {"learning_rate": 5e-3, "arms": {"learnable": {"num_buckets": 32, "boundary_init": "fixed"}}},
]


def _study(*start: Any, **changes: Any) -> Study:
    return Study.from_dict({**_VALUES, "start": list(start), **changes})


def _problem(*start: Any, **changes: Any) -> str:
    with pytest.raises(InputError, match="start") as raised:
        _study(*start, **changes)
    (problem,) = raised.value.problems
    return problem


@pytest.mark.parametrize("search", [0, 3])
def test_first_blocks_have_the_entries_and_the_next_one_the_defaults(search: int) -> None:
    study = _study(*_START)
    rates = [common_values(study, search, block) for block in range(3)]
    assert rates == [{"learning_rate": 1e-3}, {"learning_rate": 5e-3}, {"learning_rate": 2e-3}]
    for block, rate in enumerate(rates):
        given = {arm: given_values(study, arm, search, block) for arm in study.arms}
        assert all(values["learning_rate"] == rate["learning_rate"] for values in given.values())
        assert given["fixed"]["num_buckets"] == (8, 16, 16)[block]
        assert given["learnable"]["num_buckets"] == (8, 32, 16)[block]
        assert given["learnable"]["boundary_init"] == ("log", "fixed", "log")[block]
    assert "boundary_warmup" not in _study(*_START).start[1]["arms"]["learnable"]


def test_later_blocks_are_those_of_the_study_without_a_start_list() -> None:
    plain, started = _study(), _study(*_START)
    for search in (0, 1):
        later = [common_values(started, search, block) for block in range(3, 9)]
        assert later == [common_values(plain, search, block) for block in range(3, 9)]
        assert given_values(started, "fixed", search, 3) == later[0]  # its sampler draws the rest


def test_trials_of_an_unmatched_study_start_there_too() -> None:
    study = _study({"arms": {"fixed": {"learning_rate": 1e-4}}}, matched=False)
    assert given_values(study, "fixed", 0, 0) == {"learning_rate": 1e-4, "num_buckets": 16}
    assert given_values(study, "baseline", 0, 0) == {"learning_rate": 2e-3}
    assert given_values(study, "fixed", 0, 1) == {"learning_rate": 2e-3, "num_buckets": 16}
    assert given_values(study, "fixed", 0, 2) == {}


def test_values_get_the_type_of_their_space() -> None:
    study = _study({"arms": {"learnable": {"num_buckets": 32.0}}, "learning_rate": 0.01})
    found = study.start[0]["arms"]["learnable"]["num_buckets"]
    assert (found, type(found)) == (32, int)
    assert Study.from_dict(study.to_dict()) == study


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (3, "start[0] must map searched parameters to values, got 3"),
        ({}, "start[0] must map searched parameters to values, got {}"),
        ({"from": 3}, "start[0].from must be the name of a study, got 3"),
        (
            {"learning_rat": 1e-3},
            "start[0]: no arm searches 'learning_rat'; did you mean 'learning_rate'?",
        ),
        (
            {"learning_rate": 1},
            "start[0].learning_rate 1 is outside the searched range 0.0001 .. 0.01 (log) of arms "
            "baseline, fixed, learnable",
        ),
        (
            {"num_buckets": 32},
            "start[0].num_buckets 32 is outside the searched range 8 | 16 of arm fixed",
        ),
        ({"arms": [1]}, "start[0].arms must map arms to their values, got [1]"),
        ({"arms": {"fixd": {}}}, "start[0].arms: unknown arm 'fixd'; did you mean 'fixed'?"),
        (
            {"arms": {"fixed": 8}},
            "start[0].arms.fixed must map searched parameters to values, got 8",
        ),
        (
            {"arms": {"fixed": {"boundary_init": "log"}}},
            "start[0].arms.fixed: this arm does not search 'boundary_init'; one of: learning_rate, "
            "num_buckets",
        ),
        (
            {"arms": {"fixed": {"learning_rate": 1e-3}}},
            "start[0].arms.fixed.learning_rate: all arms share it, so give it outside of arms",
        ),
        (
            {"arms": {"fixed": {"num_buckets": 9}}},
            "start[0].arms.fixed.num_buckets 9 is outside the searched range 8 | 16",
        ),
        (
            {"boundary_warmup": 0.3},
            "start[0].boundary_warmup is searched only when boundary_init is 'fixed'",
        ),
        (
            {"arms": {"learnable": {"boundary_init": "log", "boundary_warmup": 0.3}}},
            "start[0].arms.learnable.boundary_warmup is searched only when boundary_init is "
            "'fixed'",
        ),
    ],
)
def test_entry_that_no_trial_could_have_is_refused(entry: Any, problem: str) -> None:
    assert _problem(entry) == problem


def test_list_must_be_one_and_fit_the_trials() -> None:
    assert _problem(start={"r": 1}) == "start must be a list of configurations, got {'r': 1}"
    assert _problem(*[{"learning_rate": 1e-3}] * 3, trials=2) == (
        "start has 3 entries, more than the 2 trials of a search; raise trials, or leave entries "
        "out"
    )


def test_start_list_changes_the_fingerprint_and_its_absence_does_not() -> None:
    plain = _study()
    earlier = Study.from_dict({k: v for k, v in plain.to_dict().items() if k != "start"})
    assert earlier.fingerprint() == plain.fingerprint() != _study(*_START).fingerprint()
