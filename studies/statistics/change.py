"""A change in perplexity with its interval."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """A change in PPL with its interval, in %; negative is better."""

    change: float
    low: float
    high: float
    p_holm: float = 1.0
    outcome: str = ""
