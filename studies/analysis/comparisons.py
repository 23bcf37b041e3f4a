"""Comparisons between arms, computed from the test losses of their confirm runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hylorada.data.perplexity import NUM_BINS, position_bins
from studies.analysis.confirm_losses import NO_MARGIN, ConfirmLosses, Floats
from studies.spec.study import Study
from studies.statistics import comparison as method
from studies.statistics.change import Change, Outcome
from studies.statistics.decision import level_per_look, parameters_per_percent, within_margin
from studies.statistics.differences import Differences, paired
from studies.statistics.positions import by_position
from studies.statistics.power import needed
from studies.statistics.profile import ArmProfile, OwnBest, depends_on_rate, own_best

WANTED_EFFECT = 0.1  # % PPL; results name the cheapest design that would see this difference


@dataclass(frozen=True)
class Rate:
    """The matched change with every arm at the winning learning rate times a factor."""

    factor: float
    change: Change
    searches: int


@dataclass(frozen=True)
class Needed:
    """The cheapest design expected to see an effect of ``effect`` %.

    If no design considered would see it, ``reachable`` is false and this is the one that would see
    the smallest effect.
    """

    effect: float
    searches: int
    seeds: int
    blocks: int
    smallest_visible: float
    reachable: bool


@dataclass(frozen=True)
class Comparison:
    """Change in test perplexity from `reference` to `arm`; negative means that `arm` is better.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        seeds: Number of paired seeds of each search.
        change: 100 (exp(D) - 1), D the mean over searches of their mean differences in NLL per
            token.
        low: Lower end of the interval, in %.
        high: Upper end of the interval, in %.
        by_seed: The change of each seed of each search, in %.
        median: Median of `by_seed`.
        p_value: Two-sided p-value for no change.
        p_holm: `p_value` adjusted for all comparisons made together.
        smallest_visible: Smallest |change| in % seen with 80 % power.
        decision: Class of the interval on the published scale of improvements, such as "minimal".
        outcome: Decision of :func:`studies.statistics.decision.decide`, which readers take from
            here: "better", "worse", "equivalent" or "undecided"; empty in results of earlier
            versions.
        scope: What the interval generalizes to: "method", "configurations" or "runs".
        searches: Number of independent searches.
        level: Level of this look; the interval covers 1 - level.
        margin: Largest change in % that does not matter.
        by_search: The change of each search, in %.
        replicate_sd: Standard deviation in % over searches, or over the seeds of a single one.
        hodges_lehmann: Robust centre of the replicates with its exact interval; None with fewer
            than six replicates.
        own_best: The change with each arm at its own best learning rate of the profile.
        profile: The matched change at each factor of the learning rate.
        depends_on_rate: Whether the answer depends on the learning rate
            (:func:`studies.statistics.profile.depends_on_rate`).
        positions: Change of LIM-PPL and of each tenth of the positions, with Holm's adjustment
            within this family.
        parameters_per_percent: Additional parameters for each 1 % of gain; None where no gain is
            certain.
        needed: The cheapest design that would see a change of 0.1 %.
        error: Standard error of D; None in results of earlier versions.
    """

    arm: str
    reference: str
    seeds: int
    change: float
    low: float
    high: float
    by_seed: tuple[float, ...]
    median: float
    p_value: float
    p_holm: float
    smallest_visible: float
    decision: str
    outcome: Outcome = ""
    scope: str = ""
    searches: int = 1
    level: float = 0.05
    margin: float = 0.5
    by_search: tuple[float, ...] = ()
    replicate_sd: float | None = None
    hodges_lehmann: Change | None = None
    own_best: Change | None = None
    profile: tuple[Rate, ...] = ()
    depends_on_rate: bool = False
    positions: Mapping[str, Change] = field(default_factory=dict)
    parameters_per_percent: float | None = None
    needed: Needed | None = None
    error: float | None = None


def stays_within(change: Change | Comparison, margin: float) -> bool:
    """Return whether the interval of a change lies within +-``margin`` %, whatever its outcome."""
    return within_margin(change.low, change.high, margin or NO_MARGIN)


def compare_arms(
    losses: ConfirmLosses, looks: Sequence[int], parameters: Mapping[str, int]
) -> tuple[Comparison, ...]:
    """Compare the study's pairs of arms that have finished paired runs.

    Args:
        losses: Test losses of the confirm runs.
        looks: Number of replicates at each look at the test split, declared or taken, ascending.
        parameters: Number of trainable parameters of each arm.
    """
    study = losses.study
    pairs = [pair for pair in study.comparisons if losses.searches(pair)]
    level = level_per_look(looks) if looks else 0.05
    matched = [_differences(losses, *pair, 1.0) for pair in pairs]
    compared = method.compare(matched, level=level, margin=losses.margin) if matched else ()
    own = (
        {pair: _own_best(losses, *pair) for pair in pairs}
        if study.blocks and len(study.factors) > 1
        else {}
    )
    at_best = {
        pair: method.compare([o.differences], level=level, margin=losses.margin)[0]
        for pair, o in own.items()
        if o
    }
    return tuple(
        _comparison(losses, c, at_best.get(pair), own.get(pair), parameters)
        for pair, c in zip(pairs, compared, strict=True)
    )


def run_spread(losses: ConfirmLosses, pair: tuple[str, str], factor: float) -> float | None:
    """Return the standard deviation of a pair's difference over the paired runs at a factor.

    The result is in loss per token; None with fewer than four paired runs.
    """
    if not losses.searches(pair, factor):
        return None
    runs = np.concatenate([d.mean(axis=1) for d in _differences(losses, *pair, factor).by_search])
    return float(runs.std(ddof=1)) if len(runs) > 3 else None


def _differences(losses: ConfirmLosses, arm: str, reference: str, factor: float) -> Differences:
    places = [(s, losses.seeds(s, factor)) for s in losses.searches((arm, reference), factor)]
    ours, theirs = (
        [losses.blocks(a, s, factor, seeds) for s, seeds in places] for a in (arm, reference)
    )
    return paired(
        arm,
        reference,
        ours,
        theirs,
        losses.study.block_size - 1,
        losses.documents_of(arm, reference),
    )


def _own_best(losses: ConfirmLosses, arm: str, reference: str) -> OwnBest | None:
    study = losses.study
    factors = sorted(study.factors)
    places = []
    for s in losses.searches((arm, reference)):
        seeds = set.intersection(*(set(losses.seeds(s, f)) for f in factors))
        if seeds and all(s in losses.searches((arm, reference), f) for f in factors):
            places.append((s, sorted(seeds)))
    if not places:
        return None
    # Rates are relative to the winning rate, which both arms share.
    rates = tuple(np.log(np.asarray(factors)) for _ in places)
    ours, theirs = (
        ArmProfile(
            a, tuple(_at_factors(losses, a, s, factors, seeds) for s, seeds in places), rates
        )
        for a in (arm, reference)
    )
    return own_best(ours, theirs, factors.index(1.0), losses.documents_of(arm, reference))


def _at_factors(
    losses: ConfirmLosses, arm: str, search: int, factors: Sequence[float], seeds: Sequence[int]
) -> Floats:
    """Return [S, P, N] losses per token of an arm's runs at each factor of the learning rate."""
    sums = [losses.blocks(arm, search, f, seeds) for f in factors]
    return np.stack(sums, axis=1) / (losses.study.block_size - 1)


def _comparison(
    losses: ConfirmLosses,
    c: method.Comparison,
    own: method.Comparison | None,
    best: OwnBest | None,
    parameters: Mapping[str, int],
) -> Comparison:
    study = losses.study
    flat = tuple(x for search in c.by_seed for x in search)
    extra = parameters[c.arm] - parameters[c.reference]
    plan = needed(c.components, WANTED_EFFECT, c.level, search_cost=_search_cost(study))
    return Comparison(
        arm=c.arm,
        reference=c.reference,
        seeds=min(c.seeds),
        change=c.change,
        low=c.low,
        high=c.high,
        by_seed=flat,
        median=float(np.median(flat)),
        p_value=c.p,
        p_holm=c.p_holm,
        smallest_visible=c.smallest_visible,
        decision=c.scale,
        outcome=c.decision,
        scope=c.scope,
        searches=c.searches,
        level=c.level,
        margin=study.margin,
        by_search=c.by_search,
        replicate_sd=c.replicate_sd,
        hodges_lehmann=_robust(c),
        own_best=None if own is None else _decided(own),
        profile=_profile(losses, c.arm, c.reference, c.level),
        depends_on_rate=own is not None and best is not None and depends_on_rate(c, own, best.gap),
        positions=_positions(losses, c.arm, c.reference, c.level),
        parameters_per_percent=parameters_per_percent(extra, c.change, c.decision),
        needed=Needed(
            WANTED_EFFECT,
            plan.searches,
            plan.seeds,
            plan.blocks,
            plan.smallest_visible,
            plan.reachable,
        ),
        error=c.error,
    )


def _decided(c: method.Comparison) -> Change:
    return Change(c.change, c.low, c.high, c.p_holm, c.decision)


def _robust(c: method.Comparison) -> Change | None:
    centre = c.hodges_lehmann
    return (
        None
        if centre.low is None or centre.high is None
        else Change(centre.value, centre.low, centre.high)
    )


def _search_cost(study: Study) -> float:
    """Return the cost of a search without its confirm runs, in paired seeds.

    One paired seed costs a confirm run at each factor of the learning rate.
    """
    steps = study.trials * (
        1 + math.log(max(1, study.max_steps / max(1, study.grace_steps or study.max_steps)))
    )
    select = study.finalists * study.selection_seeds if study.finalists > 1 else 0
    return (0.5 * steps + select) / len(study.factors)


def _profile(losses: ConfirmLosses, arm: str, reference: str, level: float) -> tuple[Rate, ...]:
    rates = []
    for factor in sorted(losses.study.factors):
        if not losses.searches((arm, reference), factor) or len(losses.study.factors) == 1:
            continue
        (c,) = method.compare(
            [_differences(losses, arm, reference, factor)], level=level, margin=losses.margin
        )
        rates.append(Rate(factor, _decided(c), c.searches))
    return tuple(rates)


def _positions(losses: ConfirmLosses, arm: str, reference: str, level: float) -> dict[str, Change]:
    """Return the change of LIM-PPL and of each tenth of the positions, compared as one family."""
    if not losses.has_bins:
        return {}
    tokens = np.bincount(position_bins(losses.study.block_size), minlength=NUM_BINS)
    places = [(s, losses.seeds(s)) for s in losses.searches((arm, reference))]
    ours, theirs = (
        [losses.bins(a, s, 1.0, seeds) for s, seeds in places] for a in (arm, reference)
    )
    family = by_position(
        (arm, reference), ours, theirs, tokens, losses.documents_of(arm, reference)
    )
    compared = method.compare(list(family.values()), level=level, margin=losses.margin)
    return {name: _decided(c) for name, c in zip(family, compared, strict=True)}
