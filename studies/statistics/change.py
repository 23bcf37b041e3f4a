"""A change in perplexity with its interval."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["", "better", "worse", "equivalent", "undecided"]


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
