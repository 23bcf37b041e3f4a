"""Means over blocks: their intervals are Student's, or those of a verdict with a single run."""

import numpy as np
import pytest
from scipy import stats

from studies.statistics.differences import Differences, Ints
from studies.statistics.intervals import block_mean, interval


def test_few_blocks_have_students_interval() -> None:
    series = np.random.default_rng(0).normal(0.2, 1.0, 15)
    found = block_mean(series)
    expected = stats.ttest_1samp(series, 0.0)
    assert found.kind == "independent"
    assert found.error == pytest.approx(stats.sem(series))
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


@pytest.mark.parametrize(
    ("documents", "kind"), [(None, "series"), (np.repeat(np.arange(20), 5), "documents")]
)
def test_interval_is_that_of_a_verdict_with_one_run(documents: Ints | None, kind: str) -> None:
    steps = np.random.default_rng(1).normal(size=100)
    series = 0.01 * np.cumsum(steps) + 0.1 * steps  # neighbours are alike
    found = block_mean(series, documents, level=0.1)
    expected = interval(Differences("a", "b", (series[None],), documents), level=0.1)
    assert found.kind == kind
    assert (found.mean, found.low, found.high, found.p) == (
        expected.mean,
        expected.low,
        expected.high,
        expected.p,
    )


@pytest.mark.parametrize(("value", "p"), [(0.0, 1.0), (2.0, 0.0)])
def test_constant_series_has_a_point_as_interval(value: float, p: float) -> None:
    found = block_mean(np.full(30, value))
    assert (found.mean, found.low, found.high) == pytest.approx((value, value, value))
    assert (found.error, found.p) == pytest.approx((0, p), abs=1e-12)


def test_one_block_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least 2 blocks, got 1"):
        block_mean(np.ones(1))
