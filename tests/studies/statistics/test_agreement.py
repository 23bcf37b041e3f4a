import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from studies.statistics.agreement import agreement, distance, mean_distance, pairs_of
from studies.statistics.differences import Floats


def draws(count: int, size: int, seed: int) -> Floats:
    return 128 * np.random.default_rng(seed).random((count, size))


def test_distance_of_equal_sizes_is_the_mean_shift_of_sorted_boundaries() -> None:
    assert distance(np.array([16.0, 8.0]), np.array([10.0, 17.0])) == pytest.approx((2 + 1) / 2)


def test_distance_of_other_sizes_is_the_area_between_the_steps() -> None:
    # shares: 1/2 from 4 on against 1 from 6 on: area 2 * 1/2 + 4 * 1/2
    assert distance(np.array([4.0, 10.0]), np.array([6.0])) == pytest.approx(3.0)


@pytest.mark.parametrize("sizes", [(7, 7), (7, 15), (31, 3), (1, 2)])
def test_distance_equals_scipys(sizes: tuple[int, int]) -> None:
    first, second = draws(20, sizes[0], 0), draws(20, sizes[1], 1)
    expected = [wasserstein_distance(a, b) for a, b in zip(first, second, strict=True)]
    assert distance(first, second) == pytest.approx(expected)


def test_mean_distance_is_that_of_the_pairs() -> None:
    sets = [np.array([4.0]), np.array([6.0]), np.array([12.0])]
    assert mean_distance(sets, [(0, 1), (0, 2)]) == pytest.approx((2 + 8) / 2)
    assert mean_distance(
        [np.array([[4.0], [5.0]]), np.array([[6.0], [6.0]])], [(0, 1)]
    ).tolist() == [2, 1]


def test_equal_sets_agree_wholly() -> None:
    pairs = [(0, 1), (0, 2), (1, 2)]
    random = mean_distance([draws(99, 7, i) for i in range(3)], pairs)
    found = agreement([np.arange(7.0)] * 3, random, pairs)
    assert (found.consistency, found.p_value, found.pairs) == (1.0, 0.01, 3)


def test_consistency_is_relative_to_the_mean_of_random_sets() -> None:
    # random pairs are 4, 8 and 12 apart, ours 6
    found = agreement([np.array([20.0]), np.array([26.0])], np.array([4.0, 8.0, 12.0]), [(0, 1)])
    assert found.consistency == pytest.approx(1 - 6 / 8)
    assert found.p_value == pytest.approx(2 / 4)


def test_random_sets_agree_by_chance_as_often_as_the_p_value_says() -> None:
    pairs, sizes = [(0, 1), (1, 2)], (7, 7, 15)
    random = mean_distance([draws(199, size, seed) for seed, size in enumerate(sizes)], pairs)
    studies = [
        [draws(1, size, 1000 + 10 * study + i)[0] for i, size in enumerate(sizes)]
        for study in range(400)
    ]
    found = [agreement(sets, random, pairs) for sets in studies]
    assert 0.02 <= np.mean([f.p_value <= 0.05 for f in found]) <= 0.085
    assert abs(np.mean([f.consistency for f in found])) < 0.05


def test_pairs_within_and_across_searches() -> None:
    within, across = pairs_of([0, 0, 1])
    assert (within, across) == ([(0, 1)], [(0, 2), (1, 2)])


def test_agreement_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`pairs` must hold at least one pair"):
        agreement([np.arange(3.0)], np.ones(9), [])
