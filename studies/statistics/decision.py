"""The rule that turns an interval into a decision, and the level that it decides at.

Nothing else in the project decides. The level is lower where a study reads its test split more than
once, which keeps the rate of false verdicts over all looks.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from scipy import special

Decision = Literal["better", "worse", "equivalent", "undecided"]

MARGIN = 0.5
SCALE = ((2.0, "strong"), (1.0, "moderate"), (0.5, "minimal"))
# Levels for 5 % overall, from `simulate_level(looks, draws=2_000_000, seed=1)`, with a relative
# error of 0.3 %.
LEVELS: dict[tuple[int, ...], float] = {
    (2, 3, 5): 0.0191,
    (2, 3, 5, 8): 0.0148,
    (3, 5): 0.0281,
    (3, 6): 0.0273,
    (3, 5, 8): 0.0199,
    (3, 6, 9): 0.0199,
    (3, 6, 12): 0.0189,
    (3, 5, 8, 12): 0.0157,
    (3, 6, 12, 24): 0.0146,
    (3, 5, 8, 12, 18): 0.0130,
    (4, 8): 0.0275,
    (4, 8, 16): 0.0193,
    (5, 8): 0.0293,
    (5, 10): 0.0281,
    (6, 12): 0.0283,
    (8, 16): 0.0285,
}
_DRAWS = 400_000
_CHUNK = 50_000  # draws in memory at a time


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


def level_per_look(replicates: Sequence[int], overall: float = 0.05) -> float:
    """Return the level of each look that keeps the overall error rate at `overall`.

    Args:
        replicates: Number of independent replicates (searches, or seeds of a single search) at each
            declared look.
        overall: Probability of a false verdict over all looks together.

    Example:
        >>> level_per_look([3])
        0.05
    """
    looks = tuple(replicates)
    if not looks or any(a >= b for a, b in pairwise(looks)) or looks[0] < 2:
        raise ValueError(f"`replicates` must ascend from at least 2, got {list(looks)}")
    if len(looks) == 1:
        return overall
    if overall == 0.05 and looks in LEVELS:
        return LEVELS[looks]
    return simulate_level(looks, overall)


def simulate_level(
    looks: Sequence[int], overall: float = 0.05, draws: int = _DRAWS, seed: int = 0
) -> float:
    """Return the level at which P(any look's p < level) = `overall` when nothing differs.

    The level is simulated. Every study adds normal replicates up to the last look; the level is the
    `overall` quantile of the smallest p-value of its looks. This is Pocock's constant level with
    Student's t in place of the normal, which matters with three replicates. The shared block part
    only makes the looks more alike, so ignoring it errs towards fewer false verdicts.
    Source: Pocock (1977), "Group Sequential Methods in the Design and Analysis of Clinical Trials".
    """
    rng = np.random.default_rng(seed)
    smallest = []
    for start in range(0, draws, _CHUNK):
        values = rng.standard_normal((min(_CHUNK, draws - start), looks[-1]))
        p = np.ones(len(values))
        for count in looks:
            seen = values[:, :count]
            statistic = seen.mean(axis=1) / (seen.std(axis=1, ddof=1) / np.sqrt(count))
            p = np.minimum(p, 2 * special.stdtr(count - 1, -np.abs(statistic)))
        smallest.append(p)
    return float(np.quantile(np.concatenate(smallest), overall))


def _class(improvement: float) -> str:
    for edge, name in SCALE:
        if improvement >= edge:
            return name
    return "none"
