"""Compare arms: the size of the difference, its uncertainty, and what it generalizes to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from studies.statistics.decision import (
    MARGIN,
    Decision,
    decide,
    holm,
    published_scale,
    within_margin,
)
from studies.statistics.differences import Differences
from studies.statistics.intervals import Interval, interval
from studies.statistics.power import Components, components, smallest_visible
from studies.statistics.robust import HodgesLehmann, hodges_lehmann, replicate_sd

Scope = Literal["method", "configurations", "runs"]


@dataclass(frozen=True)
class Comparison:
    """Change in test perplexity from `reference` to `arm`; negative means that `arm` is better.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        scope: What the interval generalizes to: the "method" with two or more searches, these
            "configurations" with one search and several seeds, or only these "runs" with one search
            and one seed (block noise alone).
        searches: Number of independent searches.
        seeds: Number of paired seeds of each search.
        blocks: Number of test blocks.
        change: 100 (exp(D) - 1), D the mean over searches of their mean differences in loss per
            token.
        low: Lower end of the 1 - `level` interval, in %.
        high: Upper end, in %.
        level: Level of this look.
        p: Two-sided p-value for no change.
        p_holm: `p` adjusted for all comparisons made together.
        decision: "better", "worse", "equivalent" or "undecided".
        margin: Largest change in % that does not matter.
        within_margin: Whether the whole interval lies within +-`margin`, whatever the decision.
        scale: The interval on the published scale of improvements.
        smallest_visible: Smallest fall in % seen with 80 % power at `level`, before Holm's
            adjustment.
        by_search: Change of each search, in %.
        by_seed: Change of each seed of each search, in %.
        replicate_sd: Standard deviation over the replicates in % (searches, or seeds of one
            search); None with one.
        hodges_lehmann: Robust centre of the replicates, in %.
        components: Variances of search, seed and block differences, in loss per token.
        error: Standard error of the difference, in loss per token.
    """

    arm: str
    reference: str
    scope: Scope
    searches: int
    seeds: tuple[int, ...]
    blocks: int
    change: float
    low: float
    high: float
    level: float
    p: float
    p_holm: float
    decision: Decision
    margin: float
    within_margin: bool
    scale: str
    smallest_visible: float
    by_search: tuple[float, ...]
    by_seed: tuple[tuple[float, ...], ...]
    replicate_sd: float | None
    hodges_lehmann: HodgesLehmann
    components: Components
    error: float


_LARGEST = 700.0  # log ratio whose exponential is a double


def compare(
    differences: Sequence[Differences], *, level: float = 0.05, margin: float = MARGIN
) -> tuple[Comparison, ...]:
    """Compare several pairs of arms as one family, with Holm's adjustment over them.

    Args:
        differences: One entry for each pair of arms, in the order of the result.
        level: Level of this look (`decision.level_per_look`); 0.05 if the study has a single look.
        margin: Largest change in perplexity, in %, that does not matter.

    Example:
        >>> import numpy as np
        >>> search = np.full((2, 30), -0.02)
        >>> d = Differences("learnable", "fixed", (search, search))
        >>> [(round(c.change, 3), c.decision, c.scope) for c in compare([d])]
        [(-1.98, 'better', 'method')]
    """
    if not 0 < level < 1:
        raise ValueError(f"`level` must lie between 0 and 1, got {level}")
    intervals = [interval(d, level) for d in differences]
    adjusted = holm([i.p for i in intervals])
    rows = zip(differences, intervals, adjusted, strict=True)
    return tuple(_comparison(d, i, p, level, margin) for d, i, p in rows)


def percent(log_ratio: float) -> float:
    """Return the change in perplexity in % for a difference in loss per token.

    It is infinite beyond the range of a double, which intervals of runs that blew up can reach.
    """
    return math.inf if log_ratio >= _LARGEST else 100 * math.expm1(log_ratio)


def _comparison(
    d: Differences, i: Interval, p_holm: float, level: float, margin: float
) -> Comparison:
    low, high = percent(i.low), percent(i.high)
    units = d.by_unit.mean(axis=1)
    sd = replicate_sd(units)
    return Comparison(
        arm=d.arm,
        reference=d.reference,
        scope=_scope(d),
        searches=d.searches,
        seeds=d.seeds,
        blocks=d.blocks,
        change=percent(i.mean),
        low=low,
        high=high,
        level=level,
        p=i.p,
        p_holm=p_holm,
        decision=decide(low, high, p_holm, level, margin),
        margin=margin,
        within_margin=within_margin(low, high, margin),
        scale=published_scale(low, high),
        smallest_visible=smallest_visible(i.uncertainty, level),
        by_search=tuple(percent(float(s.mean())) for s in d.by_search),
        by_seed=tuple(tuple(percent(float(run)) for run in s.mean(axis=1)) for s in d.by_search),
        replicate_sd=None if sd is None else 100 * sd,
        hodges_lehmann=_in_percent(hodges_lehmann(units, level)),
        components=components(d, i.uncertainty),
        error=i.uncertainty.error,
    )


def _scope(d: Differences) -> Scope:
    if d.searches > 1:
        return "method"
    return "configurations" if d.seeds[0] > 1 else "runs"


def _in_percent(centre: HodgesLehmann) -> HodgesLehmann:
    low = None if centre.low is None else percent(centre.low)
    high = None if centre.high is None else percent(centre.high)
    return HodgesLehmann(percent(centre.value), low, high)
