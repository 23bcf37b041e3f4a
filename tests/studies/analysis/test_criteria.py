"""The published criteria, against every point of an interval and a loop over reports."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.analysis.criteria import costs_less, gains_more, spikes, status

_CHANGES = st.floats(-12, 12)
_intervals = st.tuples(_CHANGES, _CHANGES).map(sorted)


def _of_ends(holds: list[bool]) -> str:
    return "yes" if all(holds) else "undecided" if any(holds) else "no"


@given(_intervals, st.sampled_from([0.0, 2.0, 5.0]))
def test_answer_is_that_of_every_change_in_the_interval(interval: list[float], gain: float) -> None:
    low, high = interval
    assert gains_more(low, high, gain) == _of_ends([-low > gain, -high > gain])


@given(_intervals, st.integers(-5_000, 500_000))
def test_cost_is_judged_as_a_quotient(interval: list[float], extra: int) -> None:
    """A change that is no gain costs too much, whatever it costs."""
    low, high = interval
    cheap = [-c > 0 and max(extra, 0) / -c < 50_000 for c in (low, high)]
    assert costs_less(extra, low, high) == _of_ends(cheap)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-9.0, -5.01, "core"),
        (-5.0, -2.0, "optional"),
        (-1.99, -0.1, "experimental"),
        (-6.0, -2.0, "optional or core"),
        (-3.0, 0.4, "experimental or optional"),
        (-5.5, -1.5, "experimental to core"),
        (-1.0, 3.0, "experimental"),
        (0.1, 3.0, "experimental (worse)"),
    ],
)
def test_status_names_all_that_the_interval_allows(low: float, high: float, expected: str) -> None:
    assert status(low, high) == expected


def test_interval_of_the_wrong_order_is_refused() -> None:
    with pytest.raises(ValueError, match="`low` must not exceed `high`, got 1 and 0"):
        status(1, 0)
    with pytest.raises(ValueError, match="`low` must not exceed `high`, got 3 and 2"):
        gains_more(3, 2, gain=2)


def _counted(losses: list[float]) -> int:
    count = 0
    for i in range(4, len(losses)):
        before = losses[:i]
        median = statistics.median(before)
        mad = statistics.median(abs(x - median) for x in before)
        count += losses[i] > median + 8 * mad
    return count


def test_spikes_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    runs = 5 + rng.standard_t(2, size=(200, 12))
    counts = [spikes(run) for run in runs.tolist()]
    assert counts == [_counted(run) for run in runs.tolist()]
    assert {0, 1, 2} <= set(counts)


def test_falling_loss_has_no_spike_and_a_lost_one_is_one() -> None:
    falling = [6 - 0.1 * i for i in range(12)]
    assert spikes(falling) == 0
    assert spikes([*falling, 9.0, 4.7, float("nan"), 4.6]) == 2
    assert spikes([1.0, 1.0, 9.0, 1.0]) == 0  # too few reports to tell
