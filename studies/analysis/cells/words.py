"""What several cells say together, in sentences."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from studies.analysis.cells.boundaries import CellBoundaries
from studies.analysis.verdict import numbers
from studies.statistics.change import ends_text

if TYPE_CHECKING:
    from studies.analysis.cells.across import AcrossComparison, PooledChange

_LEVEL = 0.05
_OUTCOME = {
    "better": "{arm} is better than {reference} on average over {cells} cells",
    "worse": "{arm} is worse than {reference} on average over {cells} cells",
    "equivalent": "{arm} and {reference} differ by less than {margin:g} % on average over {cells} "
    "cells",
    "undecided": "{arm} vs {reference} is undecided on average over {cells} cells",
}


def verdict(
    comparisons: Sequence["AcrossComparison"], boundaries: Sequence[CellBoundaries]
) -> tuple[str, ...]:
    """Return the findings, one sentence or two for each comparison and each arm's boundaries."""
    if not comparisons:
        return ("No verdict: no cell has compared any pair of arms.",)
    return (*map(_compared, comparisons), *map(_agreed, boundaries))


def _compared(c: "AcrossComparison") -> str:
    if c.pooled is None:
        cells = "1 cell" if len(c.cells) == 1 else f"{len(c.cells)} cells"
        why = "is not pooled" if len(c.cells) == 1 else "can't be pooled: a cell has no noise"
        return f"{c.arm} vs {c.reference} {why} ({cells})."
    opening = _OUTCOME[c.pooled.outcome].format(
        arm=c.arm, reference=c.reference, cells=len(c.cells), margin=c.pooled.margin
    )
    nearly = c.pooled.outcome == "undecided" and c.pooled.low * c.pooled.high > 0
    p = f" (Holm-adjusted p = {c.pooled.p_holm:.3f})" if nearly else ""
    return f"{opening}: {numbers(c.pooled)}{p}. {_heterogeneity(c.pooled, len(c.cells))}"


def _heterogeneity(p: "PooledChange", cells: int) -> str:
    how = f"Q = {p.q:.2f} on {cells - 1} df, p = {p.q_p_value:.2g}; I² = {100 * p.i_squared:.0f} %"
    says = (
        "Cells differ by more than their noise"
        if p.q_p_value < _LEVEL
        else "Cells differ by no more than their noise explains"
    )
    ends = ends_text(p.prediction_low, p.prediction_high).replace("-", "\N{MINUS SIGN}")
    return f"{says} ({how}); another cell is expected within {ends} %."


def _agreed(b: CellBoundaries) -> str:
    numbers = (
        f"consistency {b.end.consistency:.2f}, p = {b.end.p_value:.2g}; "
        f"at the start {b.start.consistency:.2f}"
    )
    who = f"The boundaries of {b.arm} in different cells"
    if b.end.p_value >= 1 - _LEVEL:
        return f"{who} lie further apart than random ones would ({numbers})."
    if b.end.p_value > _LEVEL:
        return f"{who} agree no more than random ones would ({numbers})."
    why = (
        "training brought them together"
        if b.start.p_value > _LEVEL
        else "they already agreed at the start"
    )
    return f"{who} agree more than random ones would, as shares of the block ({numbers}): {why}."
