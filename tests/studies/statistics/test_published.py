"""The published ways to compare runs, against closed forms and simulation."""

import numpy as np
import pytest
from scipy import stats

from studies.statistics.published import log_ratio_parts, unpaired_reach


def test_parts_of_a_mean_of_losses_are_the_paired_differences() -> None:
    arm, reference = np.array([[3.0, 3.5]]), np.array([[3.1, 3.2]])
    parts = log_ratio_parts(arm, reference, mean_of_ppl=False)
    np.testing.assert_allclose(parts, [[-0.1, 0.3]])


def test_parts_of_a_mean_of_perplexities_have_its_log_ratio_as_mean() -> None:
    """Two documents of PPL 10 and 1000 against 20 and 500: 505 / 260, though the losses agree."""
    arm, reference = np.log([[10.0, 1000.0]]), np.log([[20.0, 500.0]])
    assert log_ratio_parts(arm, reference, mean_of_ppl=False).mean() == pytest.approx(0)
    parts = log_ratio_parts(arm, reference, mean_of_ppl=True)
    assert np.exp(parts.mean()) == pytest.approx(505 / 260)


def test_spread_of_the_parts_is_that_of_resampled_texts() -> None:
    """The variance of the log ratio over bootstrapped blocks is that of the mean of the parts."""
    rng = np.random.default_rng(0)
    losses = rng.normal(4, 0.5, 400)
    arm, reference = losses + rng.normal(0, 0.1, 400), losses
    parts = log_ratio_parts(arm[None], reference[None], mean_of_ppl=True)[0]
    places = rng.integers(0, 400, (4000, 400))
    ratios = np.exp(arm)[places].mean(axis=1) / np.exp(reference)[places].mean(axis=1)
    assert parts.std() / 20 == pytest.approx(np.log(ratios).std(), rel=0.05)


def test_reach_of_an_unpaired_seed_is_welchs() -> None:
    arm, reference = np.array([3.0, 3.1, 3.3]), np.array([2.9, 3.0, 3.05, 2.8])
    a, b = np.var(arm, ddof=1), np.var(reference, ddof=1)
    df = (a + b) ** 2 / (a**2 / 2 + b**2 / 3)
    expected = stats.t.ppf(0.975, df) * (a + b) ** 0.5
    assert unpaired_reach(arm, reference) == pytest.approx(expected)
    assert unpaired_reach(np.ones(3), np.ones(2)) == 0


def test_few_unpaired_pairs_lie_beyond_the_reach() -> None:
    rng = np.random.default_rng(1)
    beyond = []
    for _ in range(3000):
        arm, reference = rng.normal(0, 1, 6), rng.normal(0, 1, 6)
        beyond.append(abs(rng.normal(0, 2**0.5)) > unpaired_reach(arm, reference))
    assert np.mean(beyond) == pytest.approx(0.05, abs=0.012)
