"""Comparisons between arms, made of the confirm runs' stored test losses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hylorada.data.perplexity import NUM_BINS, position_bins
from studies.spec.study import Study
from studies.statistics import comparison as method
from studies.statistics.change import Change
from studies.statistics.decision import parameters_per_percent
from studies.statistics.differences import Differences, paired
from studies.statistics.looks import level_per_look
from studies.statistics.positions import by_position
from studies.statistics.power import needed
from studies.statistics.profile import ArmProfile, OwnBest, depends_on_rate, own_best
from studies.trials.records import Record, read_block_bins
from studies.trials.winners import winners

Floats = npt.NDArray[np.float64]
Runs = Mapping[tuple[int, str], Sequence[Record]]
NO_MARGIN = 1e-12  # %; a study with margin 0 calls nothing equivalent
WANTED_EFFECT = 0.1  # % PPL; what it would take to see a difference of this size is said


@dataclass(frozen=True)
class Rate:
    """The matched change where all arms have the winning learning rate times a factor."""

    factor: float
    change: Change
    searches: int


@dataclass(frozen=True)
class Needed:
    """The cheapest design expected to see an effect of ``effect`` %, as far as any considered would."""

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
        arm: The arm in question.
        reference: The arm it is compared with.
        seeds: Number of paired seeds, of each search.
        change: 100 (exp(D) - 1), D the mean over searches of their mean differences in NLL per token.
        low: Lower end of the interval, in %.
        high: Upper end of the interval, in %.
        by_seed: The change of each seed of each search, in %.
        median: Median of `by_seed`.
        p_value: Two-sided, for no change.
        p_holm: `p_value` adjusted for all comparisons made together.
        smallest_visible: Smallest |change| in % seen with 80 % power.
        decision: The interval on the published scale.
        outcome: better, worse, equivalent or undecided; empty in results of earlier versions.
        scope: What the interval speaks about: the method, these configurations, or only these runs.
        searches: Number of independent searches.
        level: Level of this look; the interval covers 1 - level.
        margin: Largest change in % that does not matter.
        by_search: The change of each search, in %.
        replicate_sd: Standard deviation in % over searches, or over the seeds of a single one.
        hodges_lehmann: Robust centre of the replicates, with its exact interval from six replicates on.
        own_best: The change with each arm at its own best learning rate of the profile.
        profile: The matched change at each factor of the learning rate.
        depends_on_rate: Whether the matched and the own-best change are decided differently.
        positions: LIM-PPL and each tenth of the positions, with Holm's adjustment among themselves.
        parameters_per_percent: Additional parameters for each 1 % of gain; None where no gain is certain.
        needed: What it would take to see 0.1 %.
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
    outcome: str = ""
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


class Losses:
    """The test losses of all confirm runs that count, read once.

    Args:
        study: the study.
        records: all of its records.
        folder: of the study.
        documents: [N] the document of each test block, where the text has documents.
    """

    def __init__(
        self,
        study: Study,
        records: Mapping[str, Record],
        folder: Path,
        documents: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self.study, self.documents = study, documents
        self.margin = study.margin or NO_MARGIN
        every = {place: w.runs(records, "confirm") for place, w in winners(study, records).items()}
        self.runs = {
            place: [r for r in runs if r.state == "complete"] for place, runs in every.items()
        }
        self._diverged = {
            (*place, r.factor)
            for place, runs in every.items()
            for r in runs
            if r.state == "diverged"
        }
        found = [r for runs in self.runs.values() for r in runs]
        self._bins = {r.name: read_block_bins(folder, r) for r in found}
        self.has_bins = bool(self._bins) and all(b.ndim == 2 for b in self._bins.values())

    def seeds(self, search: int, factor: float = 1.0) -> tuple[int, ...]:
        """Return the seeds that every arm with any finished run of a search has finished at a factor."""
        by_arm = [{r.number for r in self._at(search, arm, factor)} for arm in self.study.arms]
        finished = [
            s
            for s, arm in zip(by_arm, self.study.arms, strict=True)
            if s or self._at(search, arm, 1.0)
        ]
        return tuple(sorted(set.intersection(*finished))) if finished else ()

    def searches(self, arms: Sequence[str], factor: float = 1.0) -> tuple[int, ...]:
        """Return the searches in which all of these arms have paired runs at a factor."""
        every = range(self.study.searches)
        return tuple(
            s
            for s in every
            if self.seeds(s, factor) and all(self._at(s, arm, factor) for arm in arms)
        )

    def kept(self, arm: str) -> list[Record]:
        """Return the arm's paired runs at the winning learning rate, by search and seed."""
        return [
            r
            for s in range(self.study.searches)
            for r in self._at(s, arm, 1.0)
            if r.number in self.seeds(s)
        ]

    def bins(self, arm: str, search: int, factor: float, seeds: Sequence[int]) -> Floats:
        """Return [S, N, 10] (or [S, N, 1] of earlier versions) loss sums of an arm's runs on these seeds."""
        by_seed = {r.number: self._bins[r.name] for r in self._at(search, arm, factor)}
        if not self.has_bins:  # some runs are of an earlier version
            by_seed = {
                seed: b.reshape(len(b), -1).sum(axis=1, keepdims=True)
                for seed, b in by_seed.items()
            }
        return np.stack([by_seed[seed] for seed in seeds]).astype(np.float64)

    def blocks(self, arm: str, search: int, factor: float, seeds: Sequence[int]) -> Floats:
        """Return [S, N] loss sums by block."""
        return np.asarray(self.bins(arm, search, factor, seeds).sum(axis=2))

    def names(self) -> list[str]:
        """Return the names of all paired runs at the winning learning rates."""
        return [r.name for arm in self.study.arms for r in self.kept(arm)]

    def tokens(self) -> int:
        """Return how many test tokens a run predicts."""
        return next((len(b) * (self.study.block_size - 1) for b in self._bins.values()), 0)

    def diverged(self, search: int, arm: str, factor: float) -> bool:
        """Return whether a run of an arm diverged at a factor."""
        return (search, arm, factor) in self._diverged

    def nll(self, record: Record) -> float:
        """Return a run's test NLL per token."""
        values = self._bins[record.name]
        return float(values.sum() / (len(values) * (self.study.block_size - 1)))

    def _at(self, search: int, arm: str, factor: float) -> list[Record]:
        return [r for r in self.runs.get((search, arm), ()) if r.factor == factor]


def compare_arms(
    losses: Losses, looks: Sequence[int], parameters: Mapping[str, int]
) -> tuple[Comparison, ...]:
    """Compare the study's pairs of arms, as far as their runs have finished.

    Args:
        losses: of the confirm runs.
        looks: numbers of replicates of all looks at the test split, declared or taken, ascending.
        parameters: trainable numbers of each arm.
    """
    study = losses.study
    pairs = [pair for pair in study.comparisons if losses.searches(pair)]
    level = level_per_look(looks) if looks else 0.05
    matched = [_differences(losses, *pair, 1.0) for pair in pairs]
    found = method.compare(matched, level=level, margin=losses.margin) if matched else ()
    own = (
        {pair: _own_best(losses, *pair) for pair in pairs}
        if study.blocks and len(study.factors) > 1
        else {}
    )
    compared = {
        pair: method.compare([o.differences], level=level, margin=losses.margin)[0]
        for pair, o in own.items()
        if o
    }
    return tuple(
        _comparison(losses, c, compared.get(pair), own.get(pair), parameters)
        for pair, c in zip(pairs, found, strict=True)
    )


def run_spread(losses: Losses, pair: tuple[str, str], factor: float) -> float | None:
    """Return the standard deviation of a pair's difference over all runs at a factor; None with fewer than four."""
    if not losses.searches(pair, factor):
        return None
    runs = np.concatenate([d.mean(axis=1) for d in _differences(losses, *pair, factor).by_search])
    return float(runs.std(ddof=1)) if len(runs) > 3 else None


def _differences(losses: Losses, arm: str, reference: str, factor: float) -> Differences:
    places = [(s, losses.seeds(s, factor)) for s in losses.searches((arm, reference), factor)]
    ours, theirs = (
        [losses.blocks(a, s, factor, seeds) for s, seeds in places] for a in (arm, reference)
    )
    return paired(arm, reference, ours, theirs, losses.study.block_size - 1, losses.documents)


def _own_best(losses: Losses, arm: str, reference: str) -> OwnBest | None:
    study = losses.study
    factors = sorted(study.factors)
    places = []
    for s in losses.searches((arm, reference)):
        seeds = set.intersection(*(set(losses.seeds(s, f)) for f in factors))
        if seeds and all(s in losses.searches((arm, reference), f) for f in factors):
            places.append((s, sorted(seeds)))
    if not places:
        return None
    rates = tuple(
        np.log(np.asarray(factors)) for _ in places
    )  # relative to the winning rate, equal for both arms
    ours, theirs = (
        ArmProfile(
            a, tuple(_at_factors(losses, a, s, factors, seeds) for s, seeds in places), rates
        )
        for a in (arm, reference)
    )
    return own_best(ours, theirs, factors.index(1.0), losses.documents)


def _at_factors(
    losses: Losses, arm: str, search: int, factors: Sequence[float], seeds: Sequence[int]
) -> Floats:
    """Return [S, P, N] losses per token of an arm's runs at each factor of the learning rate."""
    found = [losses.blocks(arm, search, f, seeds) for f in factors]
    return np.stack(found, axis=1) / (losses.study.block_size - 1)


def _comparison(
    losses: Losses,
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
        own_best=None
        if own is None
        else Change(own.change, own.low, own.high, own.p_holm, own.decision),
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
    )


def _robust(c: method.Comparison) -> Change | None:
    centre = c.hodges_lehmann
    return (
        None
        if centre.low is None or centre.high is None
        else Change(centre.value, centre.low, centre.high)
    )


def _search_cost(study: Study) -> float:
    """Return what a search costs beside its confirm runs, in paired seeds: its blocks' steps in those of a run."""
    steps = study.trials * (
        1 + math.log(max(1, study.max_steps / max(1, study.grace_steps or study.max_steps)))
    )
    select = study.finalists * study.selection_seeds if study.finalists > 1 else 0
    return (0.5 * steps + select) / len(study.factors)


def _profile(losses: Losses, arm: str, reference: str, level: float) -> tuple[Rate, ...]:
    rates = []
    for factor in sorted(losses.study.factors):
        if not losses.searches((arm, reference), factor) or len(losses.study.factors) == 1:
            continue
        (c,) = method.compare(
            [_differences(losses, arm, reference, factor)], level=level, margin=losses.margin
        )
        rates.append(
            Rate(factor, Change(c.change, c.low, c.high, c.p_holm, c.decision), c.searches)
        )
    return tuple(rates)


def _positions(losses: Losses, arm: str, reference: str, level: float) -> dict[str, Change]:
    """Return LIM-PPL and each tenth of the positions, compared as one family."""
    if not losses.has_bins:
        return {}
    tokens = np.bincount(position_bins(losses.study.block_size), minlength=NUM_BINS)
    places = [(s, losses.seeds(s)) for s in losses.searches((arm, reference))]
    ours, theirs = (
        [losses.bins(a, s, 1.0, seeds) for s, seeds in places] for a in (arm, reference)
    )
    family = by_position((arm, reference), ours, theirs, tokens, losses.documents)
    found = method.compare(list(family.values()), level=level, margin=losses.margin)
    return {
        name: Change(c.change, c.low, c.high, c.p_holm, c.decision)
        for name, c in zip(family, found, strict=True)
    }
