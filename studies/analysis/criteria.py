"""The published criteria of a component: how much it gains, what it costs, whether it is stable.

Changes are those of PPL in %, so negative is better. A criterion on a change is met, or not met,
if that holds for the whole interval; otherwise it is undecided.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from studies.statistics.differences import Floats

Answer = Literal["", "yes", "no", "undecided"]

PPL_GAIN = 2.0  # %
LIM_PPL_GAIN = 5.0  # %
PARAMETERS_PER_PERCENT = 50_000
STATUSES = ("experimental", "optional", "core")
CORE_GAIN, OPTIONAL_GAIN = 5.0, 2.0  # %: more is core, at least so much is optional
SPIKE_MADS = 8.0  # about five standard deviations
JUDGED_FROM = 5  # number of the first report that can be a spike


def gains_more(low: float, high: float, gain: float) -> Answer:
    """Return whether the change from `low` to `high` is a gain of more than `gain` %.

    Example:
        >>> gains_more(-3.1, -2.2, gain=2), gains_more(-3.1, -1.2, gain=2), gains_more(-1, 1, 2)
        ('yes', 'undecided', 'no')
    """
    _check(low, high)
    if high < -gain:
        return "yes"
    return "undecided" if low < -gain else "no"


def costs_less(extra_parameters: int, low: float, high: float) -> Answer:
    """Return whether 1 % of gain costs fewer than 50,000 additional parameters.

    That is so if the gain exceeds ``extra_parameters / 50,000`` %. A component without parameters
    of its own only has to gain anything.
    """
    return gains_more(low, high, max(extra_parameters, 0) / PARAMETERS_PER_PERCENT)


def status(low: float, high: float) -> str:
    """Return the published status of a component, or every status that its interval allows.

    A gain above 5 % is "core", one of 2 to 5 % "optional" and a smaller one "experimental"; a
    component that is certainly worse is "experimental (worse)".

    Example:
        >>> status(-9.0, -5.5), status(-6.0, -2.5), status(-6.0, 1.0), status(0.5, 1.0)
        ('core', 'optional or core', 'experimental to core', 'experimental (worse)')
    """
    _check(low, high)
    if low > 0:
        return f"{STATUSES[0]} (worse)"
    least, most = _class(-high), _class(-low)
    if least == most:
        return STATUSES[least]
    return f"{STATUSES[least]} {'or' if most - least == 1 else 'to'} {STATUSES[most]}"


def spikes(losses: Sequence[float]) -> int:
    """Count the spikes of a run's training loss.

    A reported loss is a spike if it lies above the median of all reports before it by more than
    eight times their median absolute deviation (MAD), or if it is not finite. The first four
    reports are too few to tell what is usual, and are not judged. In simulated runs of eight
    reports with normal noise, 8 % of those whose loss stands still have a spike, and under 1 % of
    those whose loss falls by half of the noise's standard deviation in each report.

    Args:
        losses: the ``train/nll`` of each report, in order: the mean since the last report.

    Example:
        >>> spikes([6.0, 5.8, 5.7, 5.6, 5.5, 7.9, 5.4])
        1
    """
    values = np.asarray(losses, dtype=np.float64)
    return sum(_is_spike(values[:i], float(values[i])) for i in range(JUDGED_FROM - 1, len(values)))


def _is_spike(before: Floats, loss: float) -> bool:
    usual = before[np.isfinite(before)]
    if not math.isfinite(loss) or not usual.size:
        return not math.isfinite(loss)
    median = float(np.median(usual))
    return loss - median > SPIKE_MADS * float(np.median(np.abs(usual - median)))


def _class(gain: float) -> int:
    """Return the index in `STATUSES` of a gain in %."""
    return (gain >= OPTIONAL_GAIN) + (gain > CORE_GAIN)


def _check(low: float, high: float) -> None:
    if not low <= high:
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}")
