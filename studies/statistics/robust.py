"""A centre and an interval that single outliers hardly move."""

import math
from dataclasses import dataclass

import numpy as np

from studies.statistics.differences import Floats

MIN_REPLICATES = 6


@dataclass(frozen=True)
class HodgesLehmann:
    """The Hodges-Lehmann estimate of the centre, with its exact interval where there is one.

    Attributes:
        value: Median of the means of all pairs of replicates, including each with itself.
        low: Lower end of the interval; None with too few replicates for its level.
        high: Upper end; None with too few replicates.
    """

    value: float
    low: float | None
    high: float | None


def hodges_lehmann(values: Floats, level: float = 0.05) -> HodgesLehmann:
    """Estimate the centre of symmetrically distributed replicates [U].

    The interval inverts Wilcoxon's signed-rank test: with k the largest rank sum for which 2 P(W <=
    k) <= `level`, it runs from the (k+1)th smallest to the (k+1)th largest pairwise mean. Its
    coverage is exact, at least 1 - `level`, for any continuous symmetric distribution. It covers
    the replicates only, not the choice of test blocks. With fewer than 6 replicates (7 at a level
    of 2 %) no interval is possible.
    Source: Hodges and Lehmann (1963), "Estimates of Location Based on Rank Tests".
    """
    if values.size == 0:
        raise ValueError("`values` must hold at least one replicate")
    first, second = np.triu_indices(values.size)
    means = np.sort((values[first] + values[second]) / 2)
    value = float(np.median(means))
    k = _largest_rank_sum(values.size, level)
    if values.size < MIN_REPLICATES or k is None:
        return HodgesLehmann(value, None, None)
    return HodgesLehmann(value, float(means[k]), float(means[-1 - k]))


def _largest_rank_sum(count: int, level: float) -> int | None:
    """Return the largest k with 2 P(W <= k) <= `level`; None if no k has it.

    W is the sum over a random subset of the ranks 1..count.
    """
    subsets = np.zeros(count * (count + 1) // 2 + 1)
    subsets[0] = 1.0
    for rank in range(1, count + 1):
        subsets[rank:] = (subsets[rank:] + subsets[:-rank]) / 2
        subsets[:rank] /= 2
    allowed = int(np.count_nonzero(2 * np.cumsum(subsets) <= level * (1 + 1e-12)))
    return allowed - 1 if allowed else None


def replicate_sd(values: Floats) -> float | None:
    """Return the standard deviation over replicates [U]; None with a single one."""
    sd = float(values.std(ddof=1)) if values.size > 1 else math.nan
    return None if math.isnan(sd) else sd
