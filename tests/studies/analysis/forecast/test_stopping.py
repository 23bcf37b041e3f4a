"""The expected length of a search trial, against ASHA's rule applied to random losses by hand."""

import numpy as np
import pytest

from studies.analysis.forecast.stopping import expected_trial, pass_probability, survivors

_SEARCHES = 600


def _passes(losses: list[float], loss: float, eta: int) -> bool:
    """Return whether ASHA lets a trial pass a rung, by Ray's rule: the quantile of those before."""
    return not losses or bool(loss <= np.percentile(losses, 100 / eta))


@pytest.mark.parametrize("eta", [2, 3, 4])
@pytest.mark.parametrize("before", [0, 1, 2, 5, 20])
def test_pass_probability_is_the_share_of_random_losses_that_pass(before: int, eta: int) -> None:
    rng = np.random.default_rng(before + eta)
    draws = rng.random((10_000, before + 1))
    if before:
        share = float(np.mean(draws[:, -1] <= np.percentile(draws[:, :-1], 100 / eta, axis=1)))
    else:
        share = 1.0
    assert pass_probability(before, eta) == pytest.approx(share, abs=0.018)  # 3.6 errors


@pytest.mark.parametrize(("trials", "eta"), [(1, 2), (2, 2), (4, 2), (8, 2), (9, 3)])
def test_expected_steps_are_those_of_simulated_searches(trials: int, eta: int) -> None:
    rungs, last, rng = (8, 16), 32, np.random.default_rng(0)
    total = 0.0
    for _ in range(_SEARCHES):
        reached: dict[int, list[float]] = {rung: [] for rung in rungs}
        for _ in range(trials):
            steps = last
            for rung in rungs:
                loss = float(rng.random())  # drawn anew at each rung
                passes = _passes(reached[rung], loss, eta)
                reached[rung].append(loss)
                if not passes:
                    steps = rung
                    break
            total += steps
    expected, reports = expected_trial(trials, (8, 16, 24, 32), rungs, eta)
    assert expected == pytest.approx(total / _SEARCHES / trials, rel=0.05)  # 3 errors or more
    assert reports == pytest.approx(expected / 8)  # one report every 8 steps


def test_without_rungs_every_trial_runs_to_its_end() -> None:
    assert expected_trial(5, (25, 50, 60), (), 2) == (60.0, 3.0)


def test_fractions_of_a_trial_are_interpolated() -> None:
    # one trial passes; a second one passes in half of the cases
    assert survivors(1.0, 2) == 1.0
    assert survivors(1.5, 2) == pytest.approx(1.25)
    assert survivors(2.0, 2) == pytest.approx(1.5)
