"""Pool the same difference, measured in several cells, and measure how far the cells differ."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from studies.statistics.differences import Floats


@dataclass(frozen=True)
class Pool:
    """The mean of a difference over cells whose true differences vary, in loss per token.

    The model is y_i = mean + cell_i + noise_i with var(cell_i) = tau^2 and known var(noise_i).

    Attributes:
        mean: Mean difference over the cells that could have been drawn.
        error: Its standard error after Hartung and Knapp.
        tau: Standard deviation of the true differences between cells.
        q: Cochran's Q, the weighted sum of squared deviations with tau = 0.
        cells: Number of cells, k.
    """

    mean: float
    error: float
    tau: float
    q: float
    cells: int

    @property
    def df(self) -> int:
        """Degrees of freedom of the interval, k - 1."""
        return self.cells - 1

    @property
    def p_value(self) -> float:
        """Two-sided p-value for a mean of 0."""
        return 2 * float(special.stdtr(self.df, -abs(self.mean) / self.error))

    @property
    def q_p_value(self) -> float:
        """p-value for equal true differences in all cells, from Q's chi-square distribution."""
        return float(special.chdtrc(self.df, self.q))

    @property
    def i_squared(self) -> float:
        """Share of the variation between cells that their noise does not explain, in [0, 1].

        Source: Higgins and Thompson (2002), "Quantifying heterogeneity in a meta-analysis".
        """
        return max(0.0, (self.q - self.df) / self.q) if self.q else 0.0

    def interval(self, level: float = 0.05) -> tuple[float, float]:
        """Return the 1 - ``level`` interval of the mean."""
        return self._around(self.error, level)

    def prediction(self, level: float = 0.05) -> tuple[float, float]:
        """Return the interval in which the true difference of another cell is expected.

        Source: Higgins, Thompson and Spiegelhalter (2009), with k - 1 degrees of freedom as in
            the interval of the mean.
        """
        return self._around(math.hypot(self.error, self.tau), level)

    def _around(self, error: float, level: float) -> tuple[float, float]:
        half = float(special.stdtrit(self.df, 1 - level / 2)) * error
        return self.mean - half, self.mean + half


def pool(effects: Sequence[float], errors: Sequence[float]) -> Pool:
    """Pool differences with random effects.

    tau^2 is that of Paule and Mandel (1982). The standard error is that of Hartung and Knapp
    (2001), sqrt(q / sum w_i) with w_i = 1/(s_i^2 + tau^2) and q = sum w_i (y_i - mean)^2 / (k - 1),
    where q is at least 1, as Röver, Knapp and Friede (2015) advise for few cells: else cells that
    agree by chance would give an interval narrower than their noise allows.

    Args:
        effects: [k] difference in each cell.
        errors: [k] its standard error.

    Example:
        >>> pooled = pool([-0.02, 0.0, 0.02], [0.01, 0.01, 0.01])
        >>> round(pooled.tau**2, 6), round(pooled.q, 3), round(pooled.i_squared, 3)
        (0.0003, 8.0, 0.75)
    """
    y, variances = np.asarray(effects, float), np.asarray(errors, float) ** 2
    if y.size < 2 or y.shape != variances.shape:
        raise ValueError(f"2 or more cells must have an error each, got {effects} and {errors}")
    if not (np.isfinite(y).all() and np.isfinite(variances).all() and (variances > 0).all()):
        raise ValueError(f"differences must be finite with errors above 0, got {effects}, {errors}")
    tau2 = _paule_mandel(y, variances)
    weights = 1 / (variances + tau2)
    mean = float(np.average(y, weights=weights))
    q = float((weights * (y - mean) ** 2).sum() / (y.size - 1))
    error = math.sqrt(max(1.0, q) / float(weights.sum()))
    return Pool(mean, error, math.sqrt(tau2), _spread(y, variances), y.size)


def _spread(y: Floats, variances: Floats) -> float:
    """Return the weighted sum of squared deviations from the weighted mean."""
    weights = 1 / variances
    return float((weights * (y - np.average(y, weights=weights)) ** 2).sum())


def _paule_mandel(y: Floats, variances: Floats) -> float:
    """Return the tau^2 at which the weighted spread has its expectation, k - 1; 0 if none does.

    The spread falls with tau^2, so bisection finds it.
    """
    expected = y.size - 1
    if _spread(y, variances) <= expected:
        return 0.0
    low, high = 0.0, float(y.var(ddof=1))
    while _spread(y, variances + high) > expected:
        high *= 2
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        above = _spread(y, variances + middle) > expected
        low, high = (middle, high) if above else (low, middle)
    return high
