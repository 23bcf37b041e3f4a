import numpy as np
import pytest
from scipy import stats

from studies.statistics.robust import hodges_lehmann, replicate_sd


def test_hodges_lehmann_gives_hand_value() -> None:
    # pairwise means of 0, 1, 5: 0, 0.5, 1, 2.5, 3, 5
    assert hodges_lehmann(np.array([5.0, 0.0, 1.0])).value == pytest.approx(1.75)
    assert hodges_lehmann(np.array([2.5])).value == 2.5


def test_six_replicates_span_their_whole_range() -> None:
    result = hodges_lehmann(np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.6]))
    assert (result.low, result.high) == (1.0, 9.0)


def test_fewer_replicates_have_no_interval() -> None:
    assert hodges_lehmann(np.arange(5.0)).low is None
    assert hodges_lehmann(np.arange(6.0), level=0.02).high is None
    assert hodges_lehmann(np.arange(7.0), level=0.02).high == 6


@pytest.mark.parametrize("count", [6, 8, 13, 24])
@pytest.mark.parametrize("level", [0.05, 0.02])
def test_interval_holds_what_wilcoxons_test_keeps(count: int, level: float) -> None:
    values = np.random.default_rng(count).normal(size=count)
    result = hodges_lehmann(values, level)
    if result.low is None or result.high is None:
        assert (count, level) == (6, 0.02)
        return
    for end, inwards in ((result.low, 1e-9), (result.high, -1e-9)):
        assert stats.wilcoxon(values - end - inwards, method="exact").pvalue > level
        assert stats.wilcoxon(values - end + inwards, method="exact").pvalue <= level


def test_one_outlier_moves_it_little() -> None:
    values = np.append(np.zeros(7), 2.0)
    assert hodges_lehmann(values).value == 0
    assert values.mean() == 0.25


def test_hodges_lehmann_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="at least one replicate"):
        hodges_lehmann(np.array([]))


def test_replicate_sd_needs_two() -> None:
    assert replicate_sd(np.array([1.0, 3.0])) == pytest.approx(np.sqrt(2))
    assert replicate_sd(np.array([1.0])) is None
