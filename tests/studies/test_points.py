"""What is known of all points of a study before it starts."""

import math
from typing import Any

from studies._points import notes, target_modules
from studies._study import Study
from studies.learnable_bucketing import STUDY


def _study(**changes: Any) -> Study:
    return Study.from_dict(STUDY | changes)


def test_notes_tell_of_log_buckets_without_a_position() -> None:
    assert notes(_study()) == []
    # counted with T5's formula, position by position: B/2 exact, the rest logarithmic
    used = {p if p < 16 else min(31, 16 + math.floor(math.log(p / 16) / math.log(32 / 16) * 16)) for p in range(32)}
    end = "of 32 log buckets hold no position of a block of 32; from 128 positions on each holds one"
    assert notes(_study(block_size=32)) == [f"arms.fixed: {32 - len(used)} {end}"]
    linear = {"config": {"bucket_spacing": "linear", "num_buckets": 32}}
    assert notes(_study(block_size=32, arms={"one": linear}, comparisons=[])) == []


def test_target_modules_are_of_all_arms_and_choices() -> None:
    assert target_modules(_study()) == set()
    searched = {"space": {"target_modules": {"choice": [["a"], ["b", "c"], None]}}}
    arms = {"one": {"config": {"target_modules": ["d"]}}, "two": searched}
    assert target_modules(_study(arms=arms, comparisons=[])) == {"a", "b", "c", "d"}
