"""A study's comparisons as components, held against the published criteria."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from studies.analysis.comparisons import Comparison
from studies.analysis.criteria import (
    JUDGED_FROM,
    LIM_PPL_GAIN,
    PPL_GAIN,
    Answer,
    costs_less,
    gains_more,
    spikes,
    status,
)
from studies.spec.study import Study
from studies.statistics.change import Change
from studies.trials.records import Record
from studies.trials.winners import winners


@dataclass(frozen=True)
class Stability:
    """How steadily an arm's confirm runs trained.

    Attributes:
        runs: Number of runs that have enough reports to be judged, or have diverged.
        spikes: Spikes of the training loss in all of them (:func:`criteria.spikes`).
        diverged: Number of runs that diverged.
    """

    runs: int = 0
    spikes: int = 0
    diverged: int = 0

    @property
    def incidents(self) -> int:
        return self.spikes + self.diverged


@dataclass(frozen=True)
class Component:
    """What an arm adds to its reference, and which published criteria it meets.

    Attributes:
        arm: Name of the arm.
        reference: Name of the arm that it is compared with.
        change: Change in test PPL; its outcome is the comparison's.
        gains_ppl: Whether PPL falls by more than 2 %.
        lim_ppl: Change in LIM-PPL; None if no losses by position were stored.
        gains_lim_ppl: Whether LIM-PPL falls by more than 5 %; empty without that change.
        parameters: Number of parameters that the arm has more than its reference.
        per_percent: Additional parameters for each 1 % of gain; None where no gain is certain.
        cheap: Whether 1 % of gain costs fewer than 50,000 parameters.
        stability: Spikes and divergences of the arm's runs.
        reference_stability: Those of its reference.
        stable: Whether the arm has no more of them than its reference; empty if the runs have too
            few reports to tell.
        status: "core", "optional" or "experimental", or all of these that the interval allows.
    """

    arm: str
    reference: str
    change: Change
    gains_ppl: Answer
    lim_ppl: Change | None
    gains_lim_ppl: Answer
    parameters: int
    per_percent: float | None
    cheap: Answer
    stability: Stability
    reference_stability: Stability
    stable: Answer
    status: str


def components_of(
    study: Study,
    records: Mapping[str, Record],
    comparisons: Sequence[Comparison],
    parameters: Mapping[str, int],
) -> tuple[Component, ...]:
    """Return each comparison held against the published criteria.

    Args:
        study: The study.
        records: All records of the study, by name.
        comparisons: The comparisons that could be made.
        parameters: Number of trainable parameters of each arm.
    """
    runs: dict[str, list[Record]] = {}
    for (_, arm), winner in winners(study, records).items():
        runs.setdefault(arm, []).extend(winner.runs(records, "confirm"))
    stability = {arm: stability_of(of_arm) for arm, of_arm in runs.items()}
    return tuple(
        component(
            c,
            parameters[c.arm] - parameters[c.reference],
            stability.get(c.arm, Stability()),
            stability.get(c.reference, Stability()),
        )
        for c in comparisons
    )


def stability_of(runs: Iterable[Record]) -> Stability:
    """Return how steadily an arm's confirm runs trained, at all factors of the learning rate."""
    judged = spiked = diverged = 0
    for run in runs:
        losses = [r.metrics["train/nll"] for r in run.reports if "train/nll" in r.metrics]
        lost = run.state == "diverged"
        judged += lost or len(losses) >= JUDGED_FROM
        diverged += lost
        spiked += spikes(losses)
    return Stability(judged, spiked, diverged)


def component(c: Comparison, extra: int, own: Stability, reference: Stability) -> Component:
    """Hold one comparison against the published criteria.

    Args:
        c: The comparison.
        extra: Number of parameters that the arm has more than its reference.
        own: Stability of the arm.
        reference: Stability of its reference.
    """
    lim = c.positions.get("lim_ppl")
    steadier: Answer = "yes" if own.incidents <= reference.incidents else "no"
    return Component(
        arm=c.arm,
        reference=c.reference,
        change=Change(c.change, c.low, c.high, c.p_holm, c.outcome),
        gains_ppl=gains_more(c.low, c.high, PPL_GAIN),
        lim_ppl=lim,
        gains_lim_ppl="" if lim is None else gains_more(lim.low, lim.high, LIM_PPL_GAIN),
        parameters=extra,
        per_percent=c.parameters_per_percent,
        cheap=costs_less(extra, c.low, c.high),
        stability=own,
        reference_stability=reference,
        stable=steadier if own.runs and reference.runs else "",
        status=status(c.low, c.high),
    )
