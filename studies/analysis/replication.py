"""How much of each published figure each fault of the published code explains."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from studies.analysis.confirm_losses import ConfirmLosses, Floats
from studies.analysis.verdict import listed, numbers
from studies.spec.published import CLAIMS, FAULTS, Claim
from studies.statistics.change import Change
from studies.statistics.comparison import percent
from studies.statistics.decision import holm
from studies.statistics.differences import Differences
from studies.statistics.intervals import interval
from studies.statistics.published import log_ratio_parts, unpaired_reach

MEAN_OF_PPL, SINGLE_SEED = "mean of perplexities", "one unpaired seed"
BARE_BASE = "compared with the base without any adapter"
ALL_FAULTS = "all faults together"
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FaultEffect:
    """What a fault does to the change in PPL that a claim is about, in %.

    Attributes:
        fault: What the report calls it.
        alone: Effect of switching it on where all else is right; None if it was not measured.
        off: Effect of switching it off in the published protocol.
        shares: The first of these as a share of each published figure, in %; empty where it is a
            spread and not a shift.
    """

    fault: str
    alone: Change | None
    off: Change | None
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Replicated:
    """A published claim, measured.

    Attributes:
        claim: What it is about.
        arm: Family of arms that it is about.
        reference: Family that it is compared with.
        published: The published changes in PPL in %.
        clean: The change without any fault.
        protocol: The change with all faults, as it was published.
        faults: Effect of each fault; p-values are adjusted over all faults of the claim.
        says: Which faults could turn no difference into the published figures.
        note: Why some effects are missing; empty if none is.
    """

    claim: str
    arm: str
    reference: str
    published: tuple[float, ...]
    clean: Change
    protocol: Change
    faults: tuple[FaultEffect, ...]
    says: str
    note: str = ""


def replicated(losses: ConfirmLosses, base_ppl: float | None) -> tuple[Replicated, ...]:
    """Return every published claim whose clean and published arms have finished paired runs.

    Args:
        losses: Test losses of the study ``replication``.
        base_ppl: Test PPL of the base alone, if it was measured.
    """
    measured = (_measure(_Measured(losses, claim), base_ppl) for claim in CLAIMS)
    return tuple(m for m in measured if m is not None)


class _Parts(NamedTuple):
    """The parts [S, N] of a claim's log ratio, for each search, and the documents of the blocks."""

    by_search: tuple[Floats, ...]
    documents: npt.NDArray[np.int64] | None

    def change(self) -> Change:
        """Return the change that the parts stand for; its p-value is not adjusted yet."""
        i = interval(Differences("arm", "reference", self.by_search, self.documents))
        return Change(percent(i.mean), percent(i.low), percent(i.high), i.p)

    def since(self, before: "_Parts") -> Change | None:
        """Return the effect of going from ``before`` to these parts.

        Padded rows and blocks are other texts. They are paired in order: the differences of
        independent texts have the sum of their variances, whatever the pairs.
        """
        if [a.shape for a in self.by_search] != [b.shape for b in before.by_search]:
            return None
        pairs = zip(self.by_search, before.by_search, strict=True)
        documents = self.documents if self.documents is before.documents else None
        return _Parts(tuple(a - b for a, b in pairs), documents).change()


@dataclass(frozen=True)
class _Measured:
    """The losses of the arms of one claim."""

    losses: ConfirmLosses
    claim: Claim

    def runs(self, arm: str, searches: Sequence[int]) -> list[Floats]:
        """Return [S, N] losses per token of an arm, for each of these searches."""
        study = self.losses.study
        places = [(s, self.losses.seeds(s)) for s in searches]
        return [self.losses.blocks(arm, s, 1.0, n) / (study.block_size - 1) for s, n in places]

    def parts(self, faults: frozenset[str], *, mean_of_ppl: bool = False) -> _Parts | None:
        """Return the parts with these faults; None if an arm is missing or has not finished."""
        arms = self.claim.pair(faults)
        if not set(arms) <= self.losses.study.arms.keys():
            return None
        searches = self.losses.searches(arms)
        if not searches:
            return None
        pairs = zip(*(self.runs(arm, searches) for arm in arms), strict=True)
        parts = (log_ratio_parts(a, b, mean_of_ppl=mean_of_ppl) for a, b in pairs)
        return _Parts(tuple(parts), self.losses.documents_of(*arms))

    def effect(
        self, faults: frozenset[str], since: _Parts, *, mean_of_ppl: bool = False
    ) -> Change | None:
        """Return the effect of going from these parts to those with these faults."""
        parts = self.parts(faults, mean_of_ppl=mean_of_ppl)
        return None if parts is None else parts.since(since)


def _measure(measured: _Measured, base_ppl: float | None) -> Replicated | None:
    claim = measured.claim
    clean = measured.parts(_NONE)
    protocol = measured.parts(claim.all_faults, mean_of_ppl=True)
    if clean is None or protocol is None:
        return None
    effects = [
        FaultEffect(ALL_FAULTS, protocol.since(clean), None),
        *(_of_fault(measured, fault, clean, protocol) for fault in claim.faults),
        FaultEffect(
            MEAN_OF_PPL,
            measured.effect(_NONE, clean, mean_of_ppl=True),
            measured.effect(claim.all_faults, protocol),
        ),
        FaultEffect(SINGLE_SEED, _reach(measured, _NONE), _reach(measured, claim.all_faults)),
        *_of_reference(measured, base_ppl),
    ]
    effects = [_with_shares(e, claim.published) for e in _adjusted(effects)]
    fields = (claim.title, claim.family, claim.reference, claim.published)
    says, note = _says(effects, claim.published), _unpaired(clean, protocol)
    return Replicated(*fields, clean.change(), protocol.change(), tuple(effects), says, note)


def _unpaired(clean: _Parts, protocol: _Parts) -> str:
    """Say why blocks of text and padded rows can't be paired; empty if they can."""
    blocks, rows = clean.by_search[0].shape[1], protocol.by_search[0].shape[1]
    if blocks == rows:
        return ""
    return (
        f"Effects between blocks of text and padded rows are not measured: the test split has "
        f"{blocks:,} blocks and {rows:,} rows, and they are paired. Set test_blocks to at most "
        f"{min(blocks, rows):,}."
    )


def _of_fault(measured: _Measured, fault: str, clean: _Parts, protocol: _Parts) -> FaultEffect:
    """Return the effect of a fault that runs repeat."""
    every = measured.claim.all_faults
    alone = measured.effect(frozenset({fault}), clean)
    off = measured.effect(every - {fault}, protocol, mean_of_ppl=True) if fault in every else None
    return FaultEffect(FAULTS[fault].title, alone, off)


def _reach(measured: _Measured, faults: frozenset[str]) -> Change | None:
    """Return how far a single unpaired seed may lie off; it shifts nothing on average."""
    arms = measured.claim.pair(faults)
    searches = measured.losses.searches(arms)
    ours, theirs = (
        np.concatenate([run.mean(axis=1) for run in measured.runs(arm, searches)]) for arm in arms
    )
    if min(len(ours), len(theirs)) < 2:
        return None
    reach = unpaired_reach(ours, theirs)
    return Change(0.0, percent(-reach), percent(reach))


def _of_reference(measured: _Measured, base_ppl: float | None) -> list[FaultEffect]:
    """Return the effect of comparing with the bare base, for the figure published that way.

    The interval is that of searches, or of the seeds of a single one: the base's own losses on
    single blocks are not stored.
    """
    claim = measured.claim
    if base_ppl is None or not claim.against_base:
        return []
    reference = claim.pair(_NONE)[1]
    by_search = [
        r.mean(axis=1) for r in measured.runs(reference, measured.losses.searches((reference,)))
    ]
    runs = by_search[0] if len(by_search) == 1 else np.array([r.mean() for r in by_search])
    shift = np.stack([runs - math.log(base_ppl)] * 2, axis=1)  # two equal blocks: no block noise
    return [FaultEffect(BARE_BASE, _Parts((shift,), None).change(), None)] if len(runs) > 1 else []


def _adjusted(effects: Sequence[FaultEffect]) -> list[FaultEffect]:
    """Return the effects with Holm's adjustment over each column."""
    columns = [[e.alone for e in effects], [e.off for e in effects]]
    adjusted = []
    for column in columns:
        known = iter(holm([c.p_holm for c in column if c]))
        adjusted.append([c and replace(c, p_holm=next(known)) for c in column])
    return [replace(e, alone=a, off=o) for e, a, o in zip(effects, *adjusted, strict=True)]


def _with_shares(effect: FaultEffect, published: Sequence[float]) -> FaultEffect:
    if effect.alone is None or effect.fault == SINGLE_SEED:
        return effect
    shares = tuple(100 * effect.alone.change / figure for figure in published)
    return replace(effect, shares=shares)


def _says(effects: Sequence[FaultEffect], published: Sequence[float]) -> str:
    """Say which faults could make each published figure out of no difference at all."""
    single = [(e.fault, e.alone) for e in effects if e.fault != ALL_FAULTS and e.alone is not None]
    return " ".join(_sentence(single, figure) for figure in published if single)


def _sentence(single: Sequence[tuple[str, Change]], figure: float) -> str:
    """Say which faults alone reach a figure, which might, or which comes nearest."""
    reaching = [(f, c) for f, c in single if _reaches(_best_guess(f, c, figure), figure)]
    possible = [
        (f, c)
        for f, c in single
        if (f, c) not in reaching and _reaches(_far_end(c, figure), figure)
    ]
    parts = []
    if reaching:
        parts.append(
            f"Enough alone to turn no difference into {figure:+.2f} %: {_named(reaching)}."
        )
    else:
        seen = "is shown to be" if possible else "is"
        parts.append(
            f"No single fault {seen} large enough to produce {figure:+.2f} % where there is no "
            "difference."
        )
    if possible:
        parts.append(f"Their intervals do not exclude it: {_named(possible)}.")
    elif not reaching:
        nearest = max(single, key=lambda fault: _far_end(fault[1], figure) / figure)
        parts.append(f"The nearest is {_named([nearest])}.")
    return " ".join(parts)


def _named(faults: Sequence[tuple[str, Change]]) -> str:
    return listed([f"{fault} ({numbers(change)})" for fault, change in faults])


def _best_guess(fault: str, change: Change, figure: float) -> float:
    """Return the estimate of an effect; that of chance is how far it goes towards the figure."""
    return _far_end(change, figure) if fault == SINGLE_SEED else change.change


def _far_end(change: Change, figure: float) -> float:
    """Return the end of an effect's interval on the side of a figure."""
    return change.low if figure < 0 else change.high


def _reaches(effect: float, figure: float) -> bool:
    """Return whether an effect is at least as large as a figure, and of its sign."""
    return effect / figure >= 1
