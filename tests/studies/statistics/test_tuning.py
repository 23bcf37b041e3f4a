from itertools import combinations

import numpy as np
import pytest

from studies.statistics.tuning import expected_best, tuning_curve


def test_expected_best_is_the_mean_over_all_subsets() -> None:
    # pairs of 1, 2, 4: lowest 1, 1, 2
    assert expected_best([4.0, 1.0, 2.0], 3) == pytest.approx([7 / 3, 4 / 3, 1])


def test_trials_without_a_loss_count_but_are_never_best() -> None:
    # With one such trial p, the pairs are (1,2) (1,4) (2,4) (1,p) (2,p) (4,p) and the triples
    # (1,2,4) (1,2,p) (1,4,p) (2,4,p).
    assert expected_best([1.0, 2.0, 4.0], 4) == pytest.approx([7 / 3, 11 / 6, 5 / 4, 1])


@pytest.mark.parametrize("trials", [5, 9])
def test_expected_best_equals_enumeration(trials: int) -> None:
    losses = np.random.default_rng(0).normal(size=5).tolist()
    every = [*losses, *[np.inf] * (trials - 5)]
    for n, found in enumerate(expected_best(losses, trials), 1):
        lowest = np.array([min(s) for s in combinations(every, n)])
        assert found == pytest.approx(lowest[np.isfinite(lowest)].mean())


def test_expected_best_of_thousands_of_trials_is_finite() -> None:
    found = expected_best(np.linspace(0, 1, 3000).tolist(), 5000)
    assert found[0] == pytest.approx(0.5)
    assert found[-1] == pytest.approx(0.0)
    assert (np.diff(found) <= 1e-12).all()


@pytest.mark.parametrize(("losses", "trials"), [([], 3), ([1.0, 2.0], 1), ([np.inf], 1)])
def test_expected_best_refuses_other_losses(losses: list[float], trials: int) -> None:
    with pytest.raises(ValueError, match=rf"`losses` must be 1 to {trials} finite numbers, got \["):
        expected_best(losses, trials)


def test_curve_is_the_mean_over_searches_as_far_as_all_go() -> None:
    curve = tuning_curve([([1.0, 2.0], 2), ([3.0, 3.0, 3.0], 3), ([], 5)])
    assert curve is not None
    assert curve.losses == pytest.approx([(1.5 + 3) / 2, (1 + 3) / 2])
    assert curve.searches == 2


def test_last_gain_is_that_of_the_last_doubling() -> None:
    curve = tuning_curve([([3.0, 3.01, 3.02, 3.03], 4)])
    assert curve is not None
    # pairs of 4: lowest 0, 0, 0, 1, 1, 2 hundredths
    assert curve.last_gain == pytest.approx(100 * (1 - np.exp(-0.04 / 6)))
    assert curve.half == 2


def test_last_gain_needs_four_trials() -> None:
    curve = tuning_curve([([3.0, 3.01, 3.02], 3)])
    assert curve is not None
    assert curve.last_gain is None


def test_search_without_finished_trials_has_no_curve() -> None:
    assert tuning_curve([([], 4)]) is None


def test_early_stopping_is_not_taken_for_a_flat_curve() -> None:
    """One finished trial of four gives a constant curve, which says nothing about more trials."""
    curve = tuning_curve([([5.0], 4), ([5.3, 5.2, 5.1, 5.0], 4)])
    assert curve is not None
    assert (curve.finished, curve.last_gain) == (1, None)


def test_thousands_of_trials_have_the_closed_form_of_equal_steps() -> None:
    """The lowest of n among the losses 0 to N - 1 is (N + 1) / (n + 1) - 1 on average."""
    trials = 2500
    numbers = np.arange(1, trials + 1)
    means = expected_best(np.arange(trials).tolist(), trials)
    assert means == pytest.approx((trials + 1) / (numbers + 1) - 1, rel=1e-9, abs=1e-6)
