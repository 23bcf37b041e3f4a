"""What is known of all points of a study before it starts."""

import math
from typing import Any

import pytest

from studies.learnable_bucketing import STUDY
from studies.spec.overrides import override
from studies.spec.points import notes, start_problems, target_modules
from studies.spec.study import Study


def _study(**changes: Any) -> Study:
    return Study.from_dict(STUDY | changes)


def test_notes_tell_of_log_buckets_without_a_position() -> None:
    assert notes(_study()) == []
    # counted with T5's formula, position by position: B/2 exact, the rest logarithmic
    used = {
        p if p < 16 else min(31, 16 + math.floor(math.log(p / 16) / math.log(32 / 16) * 16))
        for p in range(32)
    }
    end = (
        "of 32 log buckets hold no position of a block of 32; from 128 positions on each holds one"
    )
    assert notes(_study(block_size=32)) == [f"arms.fixed: {32 - len(used)} {end}"]
    linear = {"config": {"bucket_spacing": "linear", "num_buckets": 32}}
    assert notes(_study(block_size=32, arms={"one": linear}, comparisons=[])) == []


def test_single_bucket_has_no_spacing_and_soft_buckets_have_a_temperature() -> None:
    one = {"config": {"num_buckets": 1}, "space": {"bucket_spacing": {"choice": ["linear"]}}}
    assert notes(_study(block_size=32, common={}, arms={"one": one}, comparisons=[])) == []
    arms: dict[str, Any] = {"soft": {"config": {"landmark_bucketing": "soft"}, "space": {}}}
    arms["narrow"] = {"config": {}, "space": {"temperature": {"low": 0.01, "high": 0.1}}}
    study = _study(common={}, arms=arms, defaults={"temperature": 0.5}, comparisons=[])
    assert start_problems(study) == []  # the default applies to the soft arm
    assert notes(study)[0].endswith("it applies only to soft")


def test_target_modules_are_of_all_arms_and_choices() -> None:
    assert target_modules(_study()) == set()
    searched = {"space": {"target_modules": {"choice": [["a"], ["b", "c"], None]}}}
    arms = {"one": {"config": {"target_modules": ["d"]}}, "two": searched}
    assert target_modules(_study(arms=arms, comparisons=[])) == {"a", "b", "c", "d"}


def _set(*assignments: str) -> Study:
    values, problems = override(STUDY, assignments)
    assert not problems
    return Study.from_dict(values)


@pytest.mark.parametrize(
    ("assignments", "start", "range_"),
    [
        (
            ["defaults.learning_rate=0.5"],
            "learning_rate 0.5",
            "0.0005 .. 0.004 (log) of arms baseline, fixed, learnable",
        ),
        (
            ["defaults.learning_rate=0.0004"],
            "learning_rate 0.0004",
            "0.0005 .. 0.004 (log) of arms",
        ),
        (["defaults.num_landmarks=3"], "num_landmarks 3", "4 | 8 | 16 of arms fixed, learnable"),
        (["defaults.temperature=1"], "temperature 1", "0.001 .. 0.1 (log) of arm learnable"),
        (
            ["defaults.num_buckets=40", "arms.fixed.space.num_buckets=8"],
            "num_buckets 40",
            "8 | 16 | 32 of arm learnable",
        ),
        (
            [
                "defaults.boundary_init=fixed",
                "defaults.boundary_warmup=0.9",
                "arms.learnable.space.boundary_init=fixed",
            ],
            "boundary_warmup 0.9",
            "0.1 .. 0.7 of arm learnable",
        ),
    ],
)
def test_start_outside_the_searched_range_is_a_problem(
    assignments: list[str], start: str, range_: str
) -> None:
    (problem,) = start_problems(_set(*assignments))
    assert problem.startswith(f"defaults.{start} is outside the searched range {range_}")


@pytest.mark.parametrize(
    ("declared", "inside", "outside"),
    [
        ({"low": 2, "high": 8}, 8, 9),
        ({"low": 2, "high": 8, "log": True}, 2, 1),
        ({"choice": [2, 4, 8]}, 4, 3),
    ],
)
def test_start_of_whole_numbers(declared: dict[str, Any], inside: int, outside: int) -> None:
    for value, count in ((inside, 0), (outside, 1)):
        values = {
            "defaults": {"r": value},
            "arms": {"one": {"space": {"r": declared}}},
            "comparisons": [],
        }
        assert len(start_problems(Study.from_dict(STUDY | values))) == count


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["defaults.learning_rate=0.0005"],
        ["defaults.learning_rate=0.004"],
        [
            "arms.fixed.space.num_buckets=8",
            "arms.learnable.space.num_buckets=8",
            "defaults.num_buckets=32",
        ],  # fixed so
        [
            "arms.fixed.space.num_buckets.choice=[4, 8]",
            "arms.learnable.space.num_buckets.choice=[4, 8]",
        ],  # library's
    ],
)
def test_start_inside_or_left_open_is_no_problem(assignments: list[str]) -> None:
    assert start_problems(_set(*assignments)) == []


def test_default_that_other_arms_use_is_a_note() -> None:
    study = _set("arms.fixed.space.r.choice=[16, 32]")
    assert start_problems(study) == []
    assert notes(study) == [
        "defaults.r 8 is outside the searched range 16 | 32 of arm fixed; "
        "it applies only to baseline, learnable"
    ]


def test_field_that_is_fixed_and_searched_is_a_problem() -> None:
    assert start_problems(_set("arms.fixed.config.num_buckets=8")) == [
        "arms.fixed: num_buckets is both fixed (config: 8) and searched (space: 8 | 16 | 32); "
        "remove one of the two"
    ]
