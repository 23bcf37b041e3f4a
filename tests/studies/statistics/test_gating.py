import numpy as np
import pytest

from studies.statistics.gating import entropy_bits, information_bits, leanings

EVEN = [0.25, 0.25, 0.25, 0.25]


def test_entropy_is_that_of_each_position_on_average() -> None:
    # 2 bits, 0 bits, and half of one in two: 1 bit
    weights = np.array([EVEN, [0.0, 1.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    assert entropy_bits(weights) == pytest.approx((2 + 0 + 1) / 3)


def test_position_that_decides_the_landmark_tells_all() -> None:
    assert information_bits(np.eye(4)) == pytest.approx(2.0)


@pytest.mark.parametrize("row", [EVEN, [0.7, 0.1, 0.1, 0.1]])
def test_equal_weights_at_all_positions_tell_nothing(row: list[float]) -> None:
    assert information_bits(np.array([row] * 5)) == pytest.approx(0.0, abs=1e-12)


def test_leanings_join_neighbouring_positions_of_one_landmark() -> None:
    strong, other = [0.1, 0.5, 0.2, 0.2], [0.1, 0.4, 0.3, 0.2]
    weights = np.array([strong, other, EVEN, [0.9, 0.1, 0.0, 0.0], strong])
    found = leanings(weights)
    assert [(x.first, x.last, x.landmark) for x in found] == [(0, 1, 1), (3, 3, 0), (4, 4, 1)]
    assert [x.weight for x in found] == pytest.approx([0.45, 0.9, 0.5])


def test_weight_just_below_the_mark_is_no_leaning() -> None:
    assert leanings(np.array([[0.374, 0.226, 0.2, 0.2]])) == []
    assert len(leanings(np.array([[0.375, 0.225, 0.2, 0.2]]))) == 1
