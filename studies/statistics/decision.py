"""The rule that turns an interval into a decision; nothing else in the project decides."""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

Decision = Literal["better", "worse", "equivalent", "undecided"]

MARGIN = 0.5
SCALE = ((2.0, "strong"), (1.0, "moderate"), (0.5, "minimal"))


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values adjusted for several comparisons, in the order given.

    Sorted ascending, p_(i) becomes max over j <= i of min(1, (m - j + 1) p_(j)).
    Source: Holm (1979), "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    p = np.asarray(p_values, dtype=np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values must lie in [0, 1], got {list(p_values)}")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)))
    return tuple(adjusted.tolist())


def decide(
    low: float, high: float, p_holm: float, level: float = 0.05, margin: float = MARGIN
) -> Decision:
    """Decide a comparison from the interval of its change in perplexity (%, negative is better).

    "better" and "worse" require that the interval excludes 0 and that the Holm-adjusted p-value is
    below `level`. A difference may be certain and still too small to matter, so these two come
    first; `within_margin` tells whether it matters. "equivalent" is an interval within +-`margin`:
    as the interval inverts a two-sided test at `level`, each of the two one-sided tests has
    level/2.
    Source: Schuirmann (1987), "A Comparison of the Two One-Sided Tests Procedure and the Power
        Approach".
    """
    if not low <= high:
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}")
    sure = p_holm < level
    if sure and high < 0:
        return "better"
    if sure and low > 0:
        return "worse"
    return "equivalent" if within_margin(low, high, margin) else "undecided"


def within_margin(low: float, high: float, margin: float = MARGIN) -> bool:
    """Return whether the whole interval lies strictly within +-`margin` %."""
    if not margin > 0:
        raise ValueError(f"`margin` must be above 0, got {margin}")
    return -margin < low and high < margin


def published_scale(low: float, high: float) -> str:
    """Place an interval of the change in perplexity (%) on the published scale of improvements.

    An improvement (-change) of at least 2 % is strong, 1-2 % moderate, 0.5-1 % minimal, less none.
    The whole interval decides: one class if it lies in one, "worse" if all of it is a worsening,
    otherwise the range of classes, which begins with "worse" if the interval reaches a worsening of
    0.5 %.

    Returns:
        "strong", "moderate", "minimal", "none", "worse", or a range such as "none to moderate".
    """
    if not low <= high:
        raise ValueError(f"`low` must not exceed `high`, got {low} and {high}")
    if low > 0:
        return "worse"
    least, most = _class(-high), _class(-low)
    if high >= SCALE[-1][0]:
        least = "worse"
    return least if least == most else f"{least} to {most}"


def parameters_per_percent(
    extra_parameters: int, change: float, decision: Decision
) -> float | None:
    """Return the additional parameters for each 1 % of gain; None unless a gain is certain."""
    if decision != "better" or not change < 0 or not math.isfinite(change):
        return None
    return extra_parameters / -change


def _class(improvement: float) -> str:
    for edge, name in SCALE:
        if improvement >= edge:
            return name
    return "none"
