"""Pooled differences against statsmodels' meta-analysis, closed forms and simulation."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.meta_analysis import combine_effects

from studies.statistics.pooling import pool

_CASES = {
    "far apart": ([-0.021, 0.004, 0.013, -0.008], [0.004, 0.006, 0.003, 0.009]),
    "one precise": ([-0.02, -0.001, 0.01], [0.0005, 0.02, 0.01]),
    "alike": ([0.011, 0.010, 0.012], [0.01, 0.02, 0.01]),
    "two": ([0.03, -0.01], [0.01, 0.01]),
}


@pytest.mark.parametrize("case", _CASES)
def test_pool_equals_statsmodels(case: str) -> None:
    effects, errors = _CASES[case]
    found = pool(effects, errors)
    expected = combine_effects(
        np.array(effects), np.array(errors) ** 2, "pm", use_t=True, atol=1e-12, maxiter=500
    )
    assert found.mean == pytest.approx(expected.mean_effect_re, rel=1e-6)
    assert found.tau**2 == pytest.approx(expected.tau2, rel=1e-6, abs=1e-15)
    assert found.q == pytest.approx(expected.q, rel=1e-9)
    assert found.i_squared == pytest.approx(max(0, 1 - (len(errors) - 1) / expected.q), abs=1e-9)
    scale = max(1.0, expected.scale_hksj_re)
    assert found.error == pytest.approx(expected.sd_eff_w_re * math.sqrt(scale), rel=1e-6)


def test_interval_is_statsmodels_where_cells_differ() -> None:
    effects, errors = _CASES["far apart"]
    expected = combine_effects(
        np.array(effects), np.array(errors) ** 2, "pm", use_t=True, atol=1e-12, maxiter=500
    )
    # In the order of statsmodels: fixed, random, fixed and random with the estimated scale.
    assert pool(effects, errors).interval() == pytest.approx(expected.conf_int()[3], rel=1e-6)


def test_equal_noise_has_a_closed_form() -> None:
    """Then tau^2 is the sample variance less the noise, and the mean's error s / sqrt(k)."""
    effects = [-0.03, 0.01, 0.02, 0.04]
    found = pool(effects, [0.01] * 4)
    spread = float(np.std(effects, ddof=1))
    assert found.tau**2 == pytest.approx(spread**2 - 0.01**2)
    assert found.error == pytest.approx(spread / 2)
    assert found.p_value == pytest.approx(stats.ttest_1samp(effects, 0).pvalue)
    assert found.q_p_value == pytest.approx(stats.chi2.sf(3 * spread**2 / 0.01**2, 3))


def test_cells_that_agree_by_chance_don_t_narrow_the_interval() -> None:
    """Hartung and Knapp's factor alone would make this interval a point."""
    found = pool([0.01, 0.01, 0.01], [0.02, 0.02, 0.02])
    assert (found.tau, found.q, found.i_squared) == (0, 0, 0)
    assert found.error == pytest.approx(0.02 / math.sqrt(3))


def test_prediction_adds_the_spread_of_cells() -> None:
    found = pool(*_CASES["far apart"])
    low, high = found.prediction(0.1)
    half = stats.t.ppf(0.95, 3) * math.sqrt(found.error**2 + found.tau**2)
    assert (high - low) / 2 == pytest.approx(half)
    assert (high + low) / 2 == pytest.approx(found.mean)


def test_interval_covers_the_mean_of_few_cells() -> None:
    """Three cells of unequal noise: 95 % intervals cover in at least 93.5 % of 2,000 draws."""
    draws, errors = np.random.default_rng(0), np.array([0.5, 1.0, 2.0])
    covered = 0
    for _ in range(2000):
        low, high = pool(
            (0.7 * draws.normal(size=3) + errors * draws.normal(size=3)).tolist(), errors.tolist()
        ).interval()
        covered += low < 0 < high
    assert covered / 2000 > 0.935


@pytest.mark.parametrize(
    ("effects", "errors", "problem"),
    [
        ([0.1], [0.1], "2 or more cells"),
        ([0.1, 0.2], [0.1], "2 or more cells"),
        ([0.1, 0.2], [0.1, 0.0], "errors above 0"),
        ([0.1, math.nan], [0.1, 0.1], "must be finite"),
    ],
)
def test_cells_without_noise_are_refused(
    effects: list[float], errors: list[float], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        pool(effects, errors)
