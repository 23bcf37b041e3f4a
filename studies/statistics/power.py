"""The smallest effect that a study could have seen, and the design that would see a smaller one."""

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from studies.statistics.differences import Differences
from studies.statistics.intervals import Uncertainty

POWER = 0.80
MAX_SEARCHES = 24
MAX_SEEDS = 24
MAX_BLOCK_FACTOR = 64


@dataclass(frozen=True)
class Components:
    """Variances of one loss difference per token, by source.

    Attributes:
        search: Variance between searches beyond what their seeds explain; None with a single
            search. With one seed per search it holds the seeds' variance too.
        seed: Variance between paired seeds within a search; None with one seed per search.
        block: Long-run variance of one test block; divided by `blocks` it is the block part of the
            mean's variance.
        blocks: Number of test blocks.
        blocks_df: Degrees of freedom of `block`.
    """

    search: float | None
    seed: float | None
    block: float
    blocks: int
    blocks_df: float


@dataclass(frozen=True)
class Needed:
    """The cheapest design expected to see a given effect.

    Attributes:
        searches: Number of searches; 1 if the study has a single search, whose answer is about
            configurations.
        seeds: Number of paired seeds of each search.
        blocks: Number of test blocks; above the study's own only if no number of searches and seeds
            would do.
        smallest_visible: Smallest effect in % that this design is expected to see.
        reachable: Whether `smallest_visible` is at most the given effect; if not, this is the
            design with the smallest visible effect of all that were considered.
    """

    searches: int
    seeds: int
    blocks: int
    smallest_visible: float
    reachable: bool


def components(differences: Differences, parts: Uncertainty) -> Components:
    """Split the variance of the differences by source.

    seed = mean of var_s(d_rs), search = var_r(D_r) - mean of var_s(d_rs)/S_r, at least 0.
    These are the estimates of a nested analysis of variance (Searle, Casella and McCulloch 1992,
    "Variance Components", 3.6), where each search has its own number of seeds.
    """
    runs = [d.mean(axis=1) for d in differences.by_search]
    within = [(float(r.var(ddof=1)), len(r)) for r in runs if len(r) > 1]
    pooled_df = sum(count - 1 for _, count in within)
    seed = sum(v * (count - 1) for v, count in within) / pooled_df if within else None
    search = None
    if len(runs) > 1:
        between = float(np.var([r.mean() for r in runs], ddof=1))
        search = max(0.0, between - (seed or 0.0) * float(np.mean([1 / len(r) for r in runs])))
    blocks = differences.blocks
    return Components(search, seed, parts.blocks * blocks, blocks, parts.blocks_df)


def smallest_visible(parts: Uncertainty, level: float = 0.05, power: float = POWER) -> float:
    """Return the smallest fall in perplexity (%) seen with `power` at two-sided `level`.

    It is the noncentrality that gives a t-test this power, times the standard error. The degrees of
    freedom are those of the Student's t with the interval's critical value. A standard error from
    few replicates is too small on average, by the factor c4 = E[chi_v]/sqrt(v) (0.89 for three
    replicates), so it is divided by c4.
    Source: Bloom (1995), "Minimum Detectable Effects", with the noncentral t instead of its sum of
    two quantiles.
    """
    if parts.error == 0:
        return 0.0
    critical = parts.critical(level)
    df = float(special.stdtridf(1 - level / 2, critical))
    effect = float(special.nctdtrinc(df, 1 - power, critical)) * parts.error / _c4(df)
    return -100 * math.expm1(-effect)


def needed(
    variances: Components,
    effect: float,
    level: float = 0.05,
    search_cost: float = 8.0,
    max_searches: int = MAX_SEARCHES,
    power: float = POWER,
) -> Needed:
    """Return the cheapest number of searches and seeds that is expected to see `effect` %.

    Args:
        variances: Variances measured by the study at hand; with few replicates they are rough.
        effect: Smallest change in perplexity that should be seen, in %.
        level: Level of the look at which it should be seen.
        search_cost: Cost of a search without its confirm runs, in paired confirm seeds.
        max_searches: Largest number of searches considered.
        power: Probability of seeing it. Equal arms get an interval within +-`effect` with
            probability 2 power - 1.
    """
    if not effect > 0:
        raise ValueError(f"`effect` must be above 0, got {effect}")
    factor = 1
    while True:
        plans = _plans(variances, factor * variances.blocks, level, max_searches, power)
        fitting = [p for p in plans if p.smallest_visible <= effect]
        if fitting:
            return min(fitting, key=lambda p: p.searches * (search_cost + p.seeds))
        if factor >= MAX_BLOCK_FACTOR or variances.block == 0:
            best = min(plans, key=lambda p: p.smallest_visible)
            return Needed(
                best.searches, best.seeds, best.blocks, best.smallest_visible, reachable=False
            )
        factor *= 2


def expected(variances: Components, searches: int, seeds: int, blocks: int) -> Uncertainty:
    """Return the expected uncertainty of a design of `searches` x `seeds` on `blocks` blocks."""
    replicates = (variances.search or 0.0) / searches + (variances.seed or 0.0) / (searches * seeds)
    df = (searches if variances.search is not None else seeds) - 1
    return Uncertainty(replicates if df else 0.0, df, variances.block / blocks, variances.blocks_df)


def _plans(
    variances: Components, blocks: int, level: float, max_searches: int, power: float
) -> list[Needed]:
    searches = [1] if variances.search is None else range(2, max_searches + 1)
    seeds = (
        [1]
        if variances.seed is None
        else range(1 if variances.search is not None else 2, MAX_SEEDS + 1)
    )
    plans = []
    for r in searches:
        for s in seeds:
            visible = smallest_visible(expected(variances, r, s, blocks), level, power)
            plans.append(Needed(r, s, blocks, visible, reachable=True))
    return plans


def _c4(df: float) -> float:
    return math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(df / 2)
