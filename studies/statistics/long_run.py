"""The variance of a mean over test blocks that are not independent of each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from studies.statistics.differences import Floats, Ints

MIN_DOCUMENTS = 5.5
MIN_SERIES = 20
MAX_CORRELATION = 0.95


@dataclass(frozen=True, eq=False)
class BlockVariance:
    """A quadratic form whose value is the variance of a mean over blocks.

    Attributes:
        features: Map [..., N] series to [..., K] values whose squares add up to the variance of the
            series' mean.
        df: Degrees of freedom: the estimated variance is approximately distributed as its
            expectation times chi-square(df)/df.
        correlation: Lag-1 autocorrelation that was removed before estimating; 0 for documents
            and independent blocks.
        kind: "documents", "series", or "independent" where there are too few blocks to measure a
            correlation.
    """

    features: Callable[[Floats], Floats]
    df: float
    correlation: float
    kind: str

    def of_mean(self, series: Floats) -> float:
        """Return the variance of the mean of `series` [N]."""
        return float(np.square(self.features(series)).sum())

    def common(self, units: Floats) -> float:
        """Return the part of the variance of the grand mean of `units` [U, N] that all units share.

        The variance of the mean series includes 1/U of what units do not share (seeds' and
        searches' own noise). That part is already in the spread of the unit means, so it is
        estimated from the deviations and subtracted. The result equals the mean of the long-run
        cross-covariances between different units, at least 0.
        """
        total = self.of_mean(units.mean(axis=0))
        count = len(units)
        if count == 1:
            return total
        own = np.square(self.features(units - units.mean(axis=0))).sum() / (count - 1)
        return max(0.0, total - float(own) / count)


def block_variance(series: Floats, documents: Ints | None = None) -> BlockVariance:
    """Return an estimator of the variance of the mean of `series` [N].

    Documents serve as clusters if they are worth about 6 equal ones (an effective number of at
    least 5.5): a few long documents tell little about how documents differ. They must also fill two
    blocks each on average, because shorter neighbours in a sorted text are alike. Otherwise the
    blocks are treated as a time series; fewer than 20 blocks are treated as independent, because
    too few cannot show a correlation.
    """
    if documents is not None and MIN_DOCUMENTS <= effective_documents(documents) <= series.size / 2:
        return _by_documents(documents)
    if series.size < MIN_SERIES:
        return _independent(series.size)
    return _by_cosines(series)


def _independent(count: int) -> BlockVariance:
    scale = 1 / math.sqrt(count * (count - 1))
    return BlockVariance(
        lambda y: (y - y.mean(axis=-1, keepdims=True)) * scale, count - 1, 0.0, "independent"
    )


def _by_documents(documents: Ints) -> BlockVariance:
    """Cluster by document: Var(mean) = G/(G-1) sum_g (sum_{n in g} (y_n - mean))^2 / N^2.

    The degrees of freedom are those of the effective number of equal clusters, N^2 / sum n_g^2 - 1.
    With them the interval covers 92-94 % from about 10 documents of unequal length on, where the
    cosines cover 84 %.
    Source: Cameron and Miller (2015), "A Practitioner's Guide to Cluster-Robust Inference".
    """
    labels, inverse = np.unique(documents, return_inverse=True)
    blocks, count = documents.size, len(labels)
    member = np.zeros((blocks, count))
    member[np.arange(blocks), inverse] = math.sqrt(count / (count - 1)) / blocks
    df = effective_documents(documents) - 1

    def features(y: Floats) -> Floats:
        return np.asarray((y - y.mean(axis=-1, keepdims=True)) @ member)

    return BlockVariance(features, max(1.0, df), 0.0, "documents")


def effective_documents(documents: Ints) -> float:
    """Return the effective number of equal documents, N^2 / sum n_g^2."""
    sizes = np.unique(documents, return_counts=True)[1]
    return documents.size**2 / float(np.square(sizes).sum())


def _by_cosines(series: Floats) -> BlockVariance:
    """Prewhiten by AR(1), then average the first K squared cosine weights of the residuals.

    With u_n = y_n - rho y_{n-1} and L_j = sqrt(2/M) sum_m u_m cos(pi j (m - 1/2)/M) over the M = N
    - 1 residuals, the long-run variance is mean(L_1^2 .. L_K^2) / (1 - rho)^2, and the mean divided
    by its root is Student's t with K degrees of freedom (the fixed-smoothing limit). K = 0.4
    N^(2/3).

    In simulation this covers 95.9 / 95.2 / 95.3 / 94.6 % at AR(1) 0 / 0.3 / 0.5 / 0.8 with 100
    blocks, where Bartlett weights with Andrews' AR(1) bandwidth and the critical values of Kiefer
    and Vogelsang (2005) cover 94.8 / 92.4 / 92.1 / 87.5 %; and Student's t combines with the spread
    of the replicates.

    Sources: Lazarus, Lewis, Stock and Watson (2018), "HAR Inference: Recommendations for Practice"
    (cosines, K); Andrews and Monahan (1992), "An Improved Heteroskedasticity and Autocorrelation
    Consistent Covariance Matrix Estimator" (prewhitening, with rho bounded); Kendall (1954), "Note
    on Bias in the Estimation of Autocorrelation".
    """
    rho = first_correlation(series)
    length = series.size - 1
    count = max(4, int(0.4 * series.size ** (2 / 3)))
    phases = np.outer(np.arange(length) + 0.5, np.arange(1, count + 1)) * np.pi / length
    weights = np.cos(phases) * math.sqrt(2 / length / count / series.size) / (1 - rho)

    def features(y: Floats) -> Floats:
        return np.asarray((y[..., 1:] - rho * y[..., :-1]) @ weights)

    return BlockVariance(features, count, rho, "series")


def first_correlation(series: Floats) -> float:
    """Return the first autocorrelation of `series` [N], between 0 and 0.95, corrected for its bias.

    r = sum_n (y_n - mean)(y_{n+1} - mean) / sum_n (y_n - mean)^2 is too small by about (1 + 3r)/N
    (Kendall 1954). A negative correlation counts as 0, which errs towards wider
    intervals.
    """
    y = series - series.mean()
    total = float(y @ y)
    if total == 0:
        return 0.0
    r = float(y[1:] @ y[:-1]) / total
    return float(np.clip(r + (1 + 3 * r) / y.size, 0.0, MAX_CORRELATION))
