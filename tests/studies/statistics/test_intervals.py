import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from studies.statistics.differences import Differences, Floats
from studies.statistics.intervals import Uncertainty, interval, uncertainty

RNG = np.random.default_rng(0)


def flat(values: Floats) -> Floats:
    """Spread seed means [S] over 30 blocks without any block noise."""
    return np.repeat(values[:, None], 30, axis=1)


def test_searches_without_block_noise_give_students_t() -> None:
    values = RNG.normal(size=(3, 4))
    result = interval(Differences("a", "b", tuple(flat(v) for v in values)))
    test = stats.ttest_1samp(values.mean(axis=1), 0)
    assert result.p == pytest.approx(test.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(test.confidence_interval(0.95)))


def test_seeds_of_one_search_without_block_noise_give_students_t() -> None:
    values = RNG.normal(size=5)
    result = interval(Differences("a", "b", (flat(values),)), level=0.02)
    test = stats.ttest_1samp(values, 0)
    assert result.p == pytest.approx(test.pvalue)
    assert (result.low, result.high) == pytest.approx(tuple(test.confidence_interval(0.98)))


def test_one_run_of_few_blocks_gives_students_t_over_blocks() -> None:
    values = RNG.normal(size=(1, 15))
    result = interval(Differences("a", "b", (values,)))
    assert result.p == pytest.approx(stats.ttest_1samp(values[0], 0).pvalue)


def test_seeds_are_nested_in_searches() -> None:
    searches = (flat(np.array([1.0, 3.0])), flat(np.array([10.0, 11.0, 12.0])))
    parts = uncertainty(Differences("a", "b", searches))
    assert interval(Differences("a", "b", searches)).mean == pytest.approx((2 + 11) / 2)
    assert parts.replicates == pytest.approx(np.var([2, 11], ddof=1) / 2)
    assert parts.replicates_df == 1


def test_shared_block_noise_does_not_shrink_with_more_searches() -> None:
    shared = RNG.normal(size=300)
    few = uncertainty(Differences("a", "b", tuple(shared + np.zeros((2, 300)) for _ in range(2))))
    many = uncertainty(Differences("a", "b", tuple(shared + np.zeros((2, 300)) for _ in range(8))))
    assert many.blocks == pytest.approx(few.blocks)
    assert few.replicates == pytest.approx(0, abs=1e-20)
    assert few.error > 0.03


def test_own_noise_of_runs_is_not_counted_twice() -> None:
    totals = [
        uncertainty(Differences("a", "b", tuple(RNG.normal(size=(4, 2, 100))))) for _ in range(300)
    ]
    truth = 1 / (4 * 2 * 100)
    assert np.mean([t.replicates for t in totals]) == pytest.approx(truth, rel=0.15)
    assert (
        np.mean([t.replicates + t.blocks for t in totals]) < 1.4 * truth
    )  # truncated at 0: a little above


def test_p_value_gives_hand_value() -> None:
    parts = Uncertainty(replicates=3.0, replicates_df=2, blocks=1.0, blocks_df=8)
    expected = 0.75 * 2 * stats.t.sf(2.5, 2) + 0.25 * 2 * stats.t.sf(2.5, 8)
    assert parts.p_value(-2.5) == pytest.approx(expected)
    assert parts.error == 2


@given(
    st.floats(0, 10),
    st.integers(1, 9),
    st.floats(1e-6, 10),
    st.integers(4, 40),
    st.sampled_from([0.05, 0.02, 0.001]),
)
def test_critical_value_inverts_the_p_value(
    a: float, a_df: int, b: float, b_df: int, level: float
) -> None:
    parts = Uncertainty(a, a_df, b, b_df)
    assert parts.p_value(parts.critical(level)) == pytest.approx(level)


def test_interval_excludes_zero_exactly_when_p_is_below_the_level() -> None:
    for _ in range(100):
        result = interval(
            Differences("a", "b", tuple(0.1 + RNG.normal(size=(3, 2, 40)))), level=0.2
        )
        assert (result.p < 0.2) == (result.low > 0 or result.high < 0)


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (0.01, 0.0)])
def test_constant_differences_give_a_point(value: float, p: float) -> None:
    result = interval(Differences("a", "b", (np.full((2, 12), value),) * 2))
    assert result.p == pytest.approx(p, abs=1e-12)
    assert (result.low, result.high) == pytest.approx((value, value))
