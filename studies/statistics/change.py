"""A change in perplexity with its interval, and how both are written."""

import math
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["", "better", "worse", "equivalent", "undecided"]

_USUAL, _MOST = 2, 5  # decimals of a percentage


@dataclass(frozen=True)
class Change:
    """A change in PPL with its interval, in %; negative is better.

    Attributes:
        change: The change.
        low: Lower end of the interval.
        high: Upper end of the interval.
        p_holm: Two-sided p-value for no change, adjusted for its family of comparisons.
        outcome: Decision of :func:`studies.statistics.decision.decide`; empty if none was made.
    """

    change: float
    low: float
    high: float
    p_holm: float = 1.0
    outcome: Outcome = ""


def interval_text(change: float, low: float, high: float, unit: str = "") -> str:
    """Return a change in % with its interval, for example "-1.26 % PPL [-1.70, -0.83]".

    An interval so short that two decimals would hide its width gets more of them.
    """
    decimals = _decimals(low, high, change)
    return f"{change:+z.{decimals}f}{unit} [{low:+z.{decimals}f}, {high:+z.{decimals}f}]"


def ends_text(low: float, high: float) -> str:
    """Return the ends of an interval in %, for example "[-1.70, -0.83]"."""
    decimals = _decimals(low, high)
    return f"[{low:+z.{decimals}f}, {high:+z.{decimals}f}]"


def effect_text(percent: float) -> str:
    """Return the size of an effect in %, with a digit of it even when it is tiny."""
    return f"{percent:.{_decimals(-percent, percent)}f}"


def _decimals(low: float, high: float, change: float = 0.0) -> int:
    """Return how many decimals show a digit of half the interval's width.

    There are at most three significant digits, so that large changes don't get decimals which
    nobody reads.
    """
    half, largest = (high - low) / 2, max(abs(low), abs(high), abs(change))
    if not math.isfinite(half) or half <= 0 or largest == 0:
        return _USUAL
    needed = min(math.ceil(-math.log10(half)), 2 - math.floor(math.log10(largest)))
    return min(max(_USUAL, needed), _MOST)
