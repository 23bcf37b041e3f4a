from collections.abc import Iterable

import numpy as np
import pytest
from made_records import record, report

from studies.analysis.boundaries import distances, placement, spaced
from studies.trials.records import Record

T = 64


def run(number: int, start: Iterable[float], end: Iterable[float], search: int = 0) -> Record:
    made = record("learnable", number, [], stage="confirm", state="complete", search=search)
    made.reports = [report(60, 14.0, boundaries=tuple(end), start_boundaries=tuple(start))]
    return made


def test_spacings_are_those_that_an_adapter_starts_from() -> None:
    # 4 buckets of 64 positions: edges lie half a token before a bucket's first position
    assert spaced("uniform", 3, T).tolist() == [15.5, 31.5, 47.5]
    # log: the first two buckets hold one position each, the next edge is 2 * 32 ** (1 / 2) = 11.3
    assert spaced("log", 3, T).tolist() == pytest.approx([0.5, 1.5, 11.5])


def test_distance_is_the_mean_shift_from_a_spacing_in_tokens() -> None:
    log, uniform = spaced("log", 3, T), spaced("uniform", 3, T)
    found = distances([run(0, log, uniform + 2), run(1, log, uniform - 1)], T)
    assert (found["log"].start, found["uniform"].end) == pytest.approx((0, 1.5))
    assert found["uniform"].start == pytest.approx((15 + 30 + 36) / 3)


def test_boundary_beyond_the_block_counts_as_at_its_edge() -> None:
    uniform = spaced("uniform", 3, T)
    found = distances([run(0, uniform, [*uniform[:2], 900.0])], T)
    assert found["uniform"].end == pytest.approx((64 - 47.5) / 3)


def test_runs_that_learn_the_same_from_random_starts_agree_by_training() -> None:
    draws = np.random.default_rng(0)
    runs = [
        run(i, np.sort(T * draws.random(7)), np.arange(8.0, 64, 8) + draws.random(7), i // 2)
        for i in range(4)
    ]
    found = placement(runs, T, seed=0)
    for together, pairs in ((found.seeds, 2), (found.searches, 4)):
        assert together is not None
        assert together.end.pairs == pairs
        assert together.end.p_value == 0.001
        assert together.end.consistency > 0.9 > 0.5 > together.start.consistency


def test_random_boundaries_are_a_third_of_the_block_apart() -> None:
    # the mean distance of two uniform draws from [0, T] is T / 3
    found = placement([run(0, [1.0], [0.0]), run(1, [1.0], [T / 3])], T, seed=0)
    assert found.seeds is not None
    assert found.seeds.end.consistency == pytest.approx(0, abs=0.1)
    assert found.searches is None


def test_runs_with_other_numbers_of_buckets_are_compared_too() -> None:
    found = placement(
        [run(0, [32.0], [32.0]), run(1, [16.0, 48.0], [16.0, 48.0], search=1)], T, seed=0
    )
    assert found.searches is not None
    assert found.searches.end == found.searches.start
    assert found.seeds is None


def test_of_many_pairs_some_are_drawn() -> None:
    runs = [run(i, [1.0], [2.0], search=i // 8) for i in range(16)]
    found = placement(runs, T, seed=0)
    assert found.seeds is not None
    assert found.searches is not None
    assert (found.seeds.end.pairs, found.searches.end.pairs) == (2 * 8 * 7 / 2, 64)
    many = placement([run(i, [1.0], [2.0]) for i in range(16)], T, seed=0)
    assert many.seeds is not None
    assert many.seeds.end.pairs == 100  # of 120


def test_random_boundaries_are_the_same_for_the_same_study() -> None:
    runs = [run(0, [1.0, 9.0], [2.0, 9.0]), run(1, [1.0, 9.0], [1.0, 7.0])]
    assert placement(runs, T, seed=3) == placement(runs, T, seed=3) != placement(runs, T, seed=4)
