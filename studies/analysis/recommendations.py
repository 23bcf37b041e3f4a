"""What the measured components recommend for each use, in sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from studies.analysis.components import Component
from studies.analysis.criteria import JUDGED_FROM
from studies.analysis.verdict import listed, numbers
from studies.statistics.change import Change


@dataclass(frozen=True)
class _Figure:
    """A figure by which arms are ranked, with its interval; the lowest is best."""

    arm: str
    value: float
    low: float
    high: float
    text: str


def recommendations(components: Sequence[Component], ppl: Mapping[str, float]) -> tuple[str, ...]:
    """Return a sentence for each use; none unless several arms share one reference.

    Only an arm that is better than the reference is recommended, in LIM-PPL for long context.

    Args:
        components: The components of the study.
        ppl: Test PPL of each arm.
    """
    references = {c.reference for c in components}
    if len(references) != 1 or len(components) < 2:
        return ()
    (reference,) = references
    better = [c for c in components if c.change.outcome == "better"]
    costs = [f for c in better if (f := _cost(c))]
    losses = [
        _figure(c.arm, c.change, f"{ppl[c.arm]:,.3f} ({numbers(c.change)})") for c in components
    ]
    tenths = [_figure(c.arm, c.lim_ppl, _lim(c.lim_ppl)) for c in components if c.lim_ppl]
    good = {c.arm for c in better}
    good_tenths = {c.arm for c in components if c.lim_ppl and c.lim_ppl.outcome == "better"}
    return (
        _sentence("Fewest parameters per 1 %", costs, good, reference),
        _sentence("Lowest PPL", losses, good, reference),
        _sentence("Long context (lowest LIM-PPL)", tenths, good_tenths, reference),
        _steadiest(better, reference),
    )


def _cost(c: Component) -> _Figure | None:
    """Return the parameters per 1 % of a component that is certainly better."""
    if c.per_percent is None:
        return None
    text = f"{c.per_percent:,.0f} ({c.parameters:+,} parameters, {numbers(c.change)})"
    low, high = sorted((c.parameters / -c.change.low, c.parameters / -c.change.high))
    return _Figure(c.arm, c.per_percent, low, high, text)


def _figure(arm: str, change: Change, text: str) -> _Figure:
    return _Figure(arm, change.change, change.low, change.high, text)


def _lim(change: Change) -> str:
    return numbers(change).replace("PPL", "LIM-PPL")


def _sentence(use: str, figures: Sequence[_Figure], allowed: set[str], reference: str) -> str:
    """Name the allowed arm with the lowest figure, and the arms whose intervals overlap its own."""
    best = min((f for f in figures if f.arm in allowed), key=lambda f: f.value, default=None)
    if best is None:
        return f"{use}: none, because no arm is better than {reference}."
    rivals = [f.arm for f in figures if f is not best and f.low <= best.high]
    theirs = "those" if len(rivals) > 1 else "that"
    doubt = f"; its interval overlaps {theirs} of {listed(rivals)}" if rivals else ""
    return f"{use}: {best.arm}, {best.text}{doubt}."


def _steadiest(better: Sequence[Component], reference: str) -> str:
    """Name the better arms with the fewest spikes and divergences in their confirm runs."""
    use = "Most stable"
    if not better:
        return f"{use}: none, because no arm is better than {reference}."
    judged = [c for c in better if c.stability.runs]
    if not judged:
        return f"{use}: not judged, because a run needs {JUDGED_FROM} reports; lower eval_every."
    fewest = min(c.stability.incidents for c in judged)
    steady = [c for c in judged if c.stability.incidents == fewest]
    runs = sum(c.stability.runs for c in steady)
    return (
        f"{use}: {listed([c.arm for c in steady])}, {incidents(steady)} in {runs} confirm "
        f"run{'s' * (runs > 1)}."
    )


def incidents(components: Sequence[Component]) -> str:
    """Return the spikes and divergences of components in words, such as "no spikes"."""
    spikes = sum(c.stability.spikes for c in components)
    diverged = sum(c.stability.diverged for c in components)
    words = f"{spikes or 'no'} spike{'s' * (spikes != 1)}"
    return f"{words} and {diverged} divergence{'s' * (diverged > 1)}" if diverged else words
