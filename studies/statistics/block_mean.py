"""The mean of a series over test blocks, with an interval that covers the choice of the blocks."""

from dataclasses import dataclass

from studies.statistics.differences import Floats, Ints
from studies.statistics.intervals import Uncertainty
from studies.statistics.long_run import block_variance


@dataclass(frozen=True)
class BlockMean:
    """A mean over blocks of one text.

    Attributes:
        mean: The mean.
        error: Its standard error.
        low: Lower end of its interval.
        high: Upper end of its interval.
        p: Two-sided p-value for a mean of 0.
        kind: What counts as independent: "documents", the blocks of a correlated "series", or
            "independent" blocks where there are too few to measure a correlation.
    """

    mean: float
    error: float
    low: float
    high: float
    p: float
    kind: str


def block_mean(series: Floats, documents: Ints | None = None, level: float = 0.05) -> BlockMean:
    """Return the mean of `series` [N] with its 1 - `level` interval.

    The variance is that of :func:`block_variance`, as in a study's verdict with a single run.

    Args:
        series: A value for each block, in the order of the text; at least 2.
        documents: [N] document of each block, if the text has documents.
        level: Share of intervals that miss the mean.

    Example:
        >>> import numpy as np
        >>> measured = block_mean(np.array([1.0, 2.0, 3.0]))
        >>> round(measured.error, 4), round(measured.low, 3), measured.kind
        (0.5774, -0.484, 'independent')
    """
    if series.size < 2:
        raise ValueError(f"`series` must have at least 2 blocks, got {series.size}")
    variance = block_variance(series, documents)
    spread = Uncertainty(0.0, 0.0, variance.of_mean(series), variance.df)
    mean, error = float(series.mean()), spread.error
    if error == 0:
        return BlockMean(mean, 0.0, mean, mean, float(mean == 0), variance.kind)
    half = spread.critical(level) * error
    p = spread.p_value(mean / error)
    return BlockMean(mean, error, mean - half, mean + half, p, variance.kind)
