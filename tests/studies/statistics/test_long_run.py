import numpy as np
import pytest
import statsmodels.api as sm
from arch.covariance.kernel import QuadraticSpectral
from scipy import fft, signal

from studies.statistics.differences import Floats
from studies.statistics.long_run import (
    BlockVariance,
    block_variance,
    effective_documents,
    first_correlation,
)


def autoregressive(rho: float, count: int, seed: int = 0) -> Floats:
    steps = np.random.default_rng(seed).normal(size=count + 100)
    return np.asarray(signal.lfilter([1.0], [1.0, -rho], steps)[100:])


def test_first_correlation_gives_hand_value() -> None:
    # deviations -1, 0, 0, 1: r = (0 + 0 + 0)/2, corrected by (1 + 0)/4
    assert first_correlation(np.array([1.0, 2.0, 2.0, 3.0])) == pytest.approx(0.25)
    # deviations -1.5, -0.5, 0.5, 1.5: r = (0.75 - 0.25 + 0.75)/5 = 0.25, corrected by 1.75/4
    assert first_correlation(np.arange(4.0)) == pytest.approx(0.25 + 1.75 / 4)


def test_first_correlation_is_bounded() -> None:
    assert first_correlation(np.array([1.0, -1.0] * 20)) == 0
    assert first_correlation(np.linspace(0, 1, 500)) == 0.95
    assert first_correlation(np.full(30, 2.0)) == 0


def test_few_blocks_are_taken_as_independent() -> None:
    series = np.random.default_rng(0).normal(size=12)
    variance = block_variance(series)
    assert variance.of_mean(series) == pytest.approx(series.var(ddof=1) / 12)
    assert (variance.df, variance.kind) == (11, "independent")


def test_cosine_weights_equal_a_discrete_cosine_transform() -> None:
    series = autoregressive(0.5, 100)
    variance = block_variance(series)
    rho = first_correlation(series)
    residuals = series[1:] - rho * series[:-1]
    weights = fft.dct(residuals, type=2, norm="ortho")[1:9]  # 0.4 * 100^(2/3) = 8.6
    assert variance.of_mean(series) == pytest.approx(np.mean(weights**2) / (1 - rho) ** 2 / 100)
    assert (variance.df, variance.correlation, variance.kind) == (8, rho, "series")


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_long_series_agrees_with_arch_and_the_truth(rho: float) -> None:
    series = autoregressive(rho, 4000)
    ours = block_variance(series).of_mean(series) * series.size
    theirs = float(np.squeeze(QuadraticSpectral(series).cov.long_run))
    assert ours == pytest.approx(1 / (1 - rho) ** 2, rel=0.3)  # 100 degrees of freedom: 14 % error
    assert ours == pytest.approx(theirs, rel=0.3)


def test_document_variance_equals_statsmodels() -> None:
    rng = np.random.default_rng(1)
    documents = np.repeat(np.arange(30), rng.integers(1, 6, size=30))
    series = rng.normal(size=30)[documents] + rng.normal(size=documents.size)
    variance = block_variance(series, documents)
    fit = sm.OLS(series, np.ones_like(series)).fit(
        cov_type="cluster", cov_kwds={"groups": documents}
    )
    assert variance.of_mean(series) == pytest.approx(float(fit.bse[0]) ** 2)
    assert variance.kind == "documents"


def test_equal_documents_give_their_number_less_one() -> None:
    documents = np.repeat(np.arange(25), 4)
    series = np.random.default_rng(2).normal(size=100)
    variance = block_variance(series, documents)
    means = series.reshape(25, 4).mean(axis=1)
    assert variance.df == pytest.approx(24)
    assert variance.of_mean(series) == pytest.approx(means.var(ddof=1) / 25)


def test_too_few_documents_are_a_series() -> None:
    series = np.random.default_rng(3).normal(size=100)
    assert block_variance(series, np.repeat(np.arange(5), 20)).kind == "series"
    assert block_variance(series, np.repeat(np.arange(6), 17)[:100]).kind == "documents"


def test_one_long_document_among_short_ones_makes_few() -> None:
    """Nine documents, of 52 blocks and eight of 6: 100^2 / (52^2 + 8 * 6^2) = 3.34 equal ones."""
    documents = np.repeat(np.arange(9), [52, *[6] * 8])
    assert effective_documents(documents) == pytest.approx(3.342, abs=1e-3)
    assert block_variance(np.random.default_rng(3).normal(size=100), documents).kind == "series"


def test_documents_of_a_block_each_are_a_series() -> None:
    """Rows that are sorted by their topic are alike from one to the next, however short."""
    series = np.random.default_rng(3).normal(size=100)
    assert block_variance(series, np.arange(100)).kind == "series"
    assert block_variance(series, np.repeat(np.arange(50), 2)).kind == "documents"


def test_common_is_the_covariance_between_units() -> None:
    units = np.random.default_rng(4).normal(size=(2, 10)) + 3 * np.random.default_rng(5).normal(
        size=10
    )
    variance = block_variance(units.mean(axis=0))
    assert variance.common(units) == pytest.approx(np.cov(units)[0, 1] / 10)


def test_common_is_never_negative() -> None:
    series = np.random.default_rng(6).normal(size=12)
    assert block_variance(series).common(np.stack([series, -series])) == 0


def test_common_of_one_unit_is_its_own_variance() -> None:
    series = np.random.default_rng(7).normal(size=(1, 50))
    variance: BlockVariance = block_variance(series[0])
    assert variance.common(series) == pytest.approx(variance.of_mean(series[0]))


def test_scale_and_shift_carry_through() -> None:
    series = autoregressive(0.6, 80)
    moved = 3 * series + 5
    assert block_variance(moved).of_mean(moved) == pytest.approx(
        9 * block_variance(series).of_mean(series)
    )
